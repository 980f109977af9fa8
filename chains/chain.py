"""`Chain`: layers one after another, and everything a user calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from chains import arguments, record
from chains.backends import Executable
from chains.backends import backend as find_backend
from chains.backends.places import place_named, place_of, runner_of
from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.combine import Series, last_layer
from chains.layers.softmax import Softmax
from chains.losses import Loss
from chains.objective import Objective
from chains.optimizers import Optimizer
from chains.params import Layout, LayoutBuilder
from chains.penalties import Penalty
from chains.program import Program

KEPT_PROGRAMS = 64  # of one network; beyond, the oldest are forgotten


class Chain(Series):
    """A network: layers one after another. It holds no parameters; every call takes them as one flat vector.

    `input_shape` is the shape of one sample, without the batch; needed only where the first layer does not
    fix it. `backend` is "auto" or the name of one. Raises ValueError where layers do not fit together.

    >>> net = Chain(Dense(784, 30, σ), Dense(30, 10, σ))
    >>> p = net.init(seed=0)
    >>> y = net(x, p)  # x: (batch, 784), y: (batch, 10)
    """

    def __init__(self, *layers: Layer, input_shape: SampleShape | None = None, backend: str = "auto") -> None:
        for k, layer in enumerate(layers):
            if not isinstance(layer, Layer):
                raise TypeError(f"layer {k} (={layer!r}) is a {type(layer).__name__}, not a layer")
        super().__init__(*layers)
        self.backend = backend
        self.runner = find_backend(backend)
        self._given_shape = None if input_shape is None else arguments.check_shape("input_shape", input_shape)
        self._input_shape = super().fixed_input() if self._given_shape is None else self._given_shape
        self._frozen_names: frozenset[str] = frozenset()
        self._executables: dict[Any, Executable] = {}
        if self._input_shape is not None:
            self.network  # noqa: B018 - declared now, so that layers that do not fit are refused here

    def fixed_input(self) -> SampleShape | None:
        return self._input_shape

    # What the network is

    @cached_property
    def network(self) -> record.Network:
        """The declared layers, for recording programs."""
        if self._input_shape is None:
            raise ValueError(f"`input_shape` is needed: {self!r} begins with a layer that does not fix the shape of its input")
        builder = LayoutBuilder()
        declaration = Declaration(self, self._input_shape, builder)
        return record.Network(declaration, Layout(builder.slices), frozenset(builder.frozen))

    def declare(self, d: Declaration) -> None:
        if self._given_shape not in (None, d.input):
            raise ValueError(f"`input_shape` (={self._given_shape}) of this chain is not the shape of its input, {d.input}")
        super().declare(d)
        for name in self._frozen_names:
            d.freeze(name)

    @property
    def input_shape(self) -> SampleShape:
        """The shape of one input sample."""
        return self.network.declaration.input

    @property
    def output_shape(self) -> SampleShape:
        """The shape of one output sample."""
        return self.network.declaration.output_shape

    @property
    def n_params(self) -> int:
        """The length of the flat parameter vector."""
        return self.network.layout.size

    @property
    def layout(self) -> Layout:
        """The slices of the flat vector: a sequence of entries with name, start, stop and shape."""
        return self.network.layout

    @property
    def frozen(self) -> frozenset[str]:
        """The names of the parameters that are not trained."""
        return self.network.frozen

    def init(self, seed: int | np.random.Generator = 0, dtype: Any = np.float32, *, device: str = "cpu") -> Any:
        """A fresh parameter vector, shape (n_params,), filled by the layers' initializers.

        The same seed gives the same numbers. `device` is "cpu", for a NumPy array, or "cuda", for CuPy's: whatever is
        computed from it is then computed on the GPU. Raises TypeError unless `dtype` is float32 or float64, and ValueError
        for another device and where there is no GPU to use.
        """
        p = self.layout.init(seed, arguments.check_dtype(dtype))
        return p if device == "cpu" else place_named(device).array(p)

    def views(self, p: np.ndarray) -> dict[str, np.ndarray]:
        """Each parameter by name, as an array of its own shape that shares the memory of `p`."""
        return self.layout.views(arguments.check_params(p, self.n_params))

    def freeze(self, *patterns: str) -> Chain:
        """This network with the parameters that match also frozen: their gradient is zero, and no step moves them.

        Patterns are those of the shell: ``net.freeze("0.*", "*.bias")``. Raises ValueError naming one that
        matches nothing.
        """
        return self._with_frozen(self.frozen | self.layout.names(*patterns))

    def train_only(self, *patterns: str) -> Chain:
        """This network with all parameters frozen but those that match: ``net.train_only("2.*")``."""
        return self._with_frozen(frozenset(entry.name for entry in self.layout) - self.layout.names(*patterns))

    def _with_frozen(self, frozen: frozenset[str]) -> Chain:
        twin = copy.copy(self)
        twin.__dict__.pop("network", None)
        twin._frozen_names = frozen
        twin._executables = {}
        return twin

    # What it computes

    def __call__(self, x: Any, p: Any, *, mode: str = "eval", seed: int = 0, out: np.ndarray | None = None) -> np.ndarray:
        """The outputs, shape (batch, *output_shape), at inputs `x` of shape (batch, *input_shape).

        `p` is the parameter vector; its type is that of the computation. `out` is filled where given. `mode` is
        "eval" or "train" (which switches dropout on, `seed` choosing what is dropped). Raises TypeError or
        ValueError, before anything is written, for arguments that do not fit.
        """
        training = arguments.check_mode(mode)
        p = arguments.check_params(p, self.n_params)
        x = arguments.check_input(x, self.input_shape)
        data = arguments.together(p, {"x": x})
        shape = (len(x), *self.output_shape)
        y = place_of(p).empty(shape, p.dtype) if out is None else arguments.check_out(out, shape, p.dtype, {"p": p, **data})
        run = self._executable(p, ("forward", p.dtype, training), lambda: record.forward(self.network, p.dtype, training))
        run(len(x), {**data, "p": p, "y": y, **_random(run, seed, p)})
        return y

    def value_and_grad(
        self,
        p: Any,
        x: Any,
        t: Any,
        loss: Loss,
        *,
        weights: Any = None,
        penalty: Penalty | None = None,
        mode: str = "train",
        seed: int = 0,
        out: np.ndarray | None = None,
        check_finite: bool = False,
    ) -> tuple[float, np.ndarray]:
        """The loss at `p` (plus `penalty`) and its gradient, shape (n_params,); `out` is filled where given.

        `x` is (batch, *input_shape), `t` the targets as `loss` wants them, `weights` (batch,) multiply the samples'
        losses. In the mode "train" dropout is on, `seed` choosing what is dropped; in "eval" it is off. With
        `check_finite`, an infinity or NaN in the data raises ValueError. Other arguments as in a call.
        """
        training = arguments.check_mode(mode)
        network = self.network
        p = arguments.check_params(p, network.layout.size)
        data, objective = self.problem(x, t, loss, weights, penalty)
        data, place = arguments.together(p, data), place_of(p)
        if check_finite:
            arguments.check_finite(p=p, **data)
        g = place.empty(p.shape, p.dtype) if out is None else arguments.check_out(out, p.shape, p.dtype, {"p": p, **data})
        value = place.empty((), p.dtype)
        run = self._gradient(p, objective, p.dtype, training)
        run(len(data["x"]), {"p": p, **data, "g": g, "value": value, **_random(run, seed, p)})
        return value.item(), g

    def loss(self, p: Any, x: Any, t: Any, loss: Loss, *, weights: Any = None, penalty: Penalty | None = None) -> float:
        """The loss at `p` (plus `penalty`), in the mode "eval". Arguments as in `value_and_grad`."""
        p = arguments.check_params(p, self.n_params)
        data, objective = self.problem(x, t, loss, weights, penalty)
        data, value = arguments.together(p, data), place_of(p).empty((), p.dtype)
        run = self._executable(p, ("loss", objective, p.dtype), lambda: record.loss(self.network, objective, p.dtype, False))
        run(len(data["x"]), {"p": p, **data, "value": value})
        return float(value)

    def vjp(
        self,
        p: Any,
        x: Any,
        dy: Any,
        *,
        mode: str = "eval",
        seed: int = 0,
        out: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pull the cotangent `dy`, shaped like the output, back to the parameters and the inputs.

        Returns ``(dp, dx)``, shapes (n_params,) and (batch, *input_shape): the gradients of ``sum(dy * net(x, p))``.
        `out` is a pair of arrays to fill instead. Other arguments as in a call.
        """
        training = arguments.check_mode(mode)
        p = arguments.check_params(p, self.n_params)
        x = arguments.check_input(x, self.input_shape)
        dy = arguments.check_input(dy, self.output_shape, "dy", "output")
        if len(dy) != len(x):
            raise ValueError(f"`dy` has shape {dy.shape}, but `x` is a batch of {len(x)}: wanted {len(x)} samples in both")
        inputs = {"p": p, **arguments.together(p, {"x": x, "dy": dy})}
        if out is None:
            g, dx = place_of(p).empty(p.shape, p.dtype), place_of(p).empty(x.shape, p.dtype)
        else:
            if not isinstance(out, tuple) or len(out) != 2:
                raise TypeError(f"`out` (={out!r}) must be a pair of arrays, for the parameters and for the inputs")
            g = arguments.check_out(out[0], p.shape, p.dtype, inputs, "out[0]")
            dx = arguments.check_out(out[1], x.shape, p.dtype, {**inputs, "out[0]": g}, "out[1]")
        run = self._executable(p, ("vjp", p.dtype, training), lambda: record.vjp(self.network, p.dtype, training))
        run(len(x), {**inputs, "g": g, "dx": dx, **_random(run, seed, p)})
        return g, dx

    def objective(
        self,
        x: Any,
        t: Any,
        loss: Loss,
        penalty: Penalty | None = None,
        *,
        weights: Any = None,
        mode: str = "eval",
        seed: int = 0,
    ) -> Objective:
        """The loss on this data as a function of the parameters alone, for SciPy's optimisers and the like.

        ``objective(p)`` returns a float and a fresh float64 gradient, computed in float64 whatever the type of
        `p`: ``minimize(objective, p, jac=True, method="BFGS")``. Arguments as in `value_and_grad`.
        """
        training = arguments.check_mode(mode)
        data, problem = self.problem(x, t, loss, weights, penalty)
        data = arguments.together(data["x"], data)
        executable = self._gradient(data["x"], problem, np.dtype(np.float64), training)
        return Objective(executable, data, self.n_params, _random(executable, seed, data["x"]))

    # How it computes

    def program(
        self,
        loss: Loss | None = None,
        optimizer: Optimizer | None = None,
        *,
        penalty: Penalty | None = None,
        target_shape: SampleShape | None = None,
        dtype: Any = np.float32,
        mode: str = "train",
    ) -> Program:
        """The recorded operations: of the forward pass, with a `loss` of the gradient, with an `optimizer` of a step.

        Print it to read them. `target_shape` is the shape of one sample's target, by default that of the output.
        """
        training, network, dtype = arguments.check_mode(mode), self.network, arguments.check_dtype(dtype)
        if loss is None:
            return record.forward(network, dtype, training)
        objective = self._objective(loss, self.output_shape if target_shape is None else target_shape, False, penalty)
        if optimizer is not None:
            arguments.check_is("optimizer", optimizer, Optimizer, "an optimiser such as Adam(1e-3)")
        if optimizer is None:
            return record.gradient(network, objective, dtype, training)
        return record.training_step(network, objective, optimizer, dtype)

    def listing(self, program: Program) -> str:
        """A program as this network's backend runs it: with "native", the operations, LLVM's code and the processor's."""
        return self.runner.choose(program).listing(program)

    def summary(self) -> str:
        """A table of the layers: output shapes, numbers of parameters, what is frozen."""
        rows = [("layer", "output", "parameters")]
        for child in self.network.declaration.children:
            slices = [entry for entry in self.layout if entry.name.split(".")[0] == child.name]
            frozen = sum(entry.stop - entry.start for entry in slices if entry.name in self.frozen)
            note = f" ({frozen:,} frozen)" if frozen else ""
            rows.append((f"{child.name}  {child.layer!r}", str(child.output_shape), f"{child.n_params:,}{note}"))
        frozen = sum(self.layout[name].stop - self.layout[name].start for name in self.frozen)
        rows.append(("in all", f"from {self.input_shape}", f"{self.n_params:,}" + (f" ({frozen:,} frozen)" if frozen else "")))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [f"{a:{widths[0]}}  {b:{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
        rule = "-" * max(map(len, lines))
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])

    def problem(
        self, x: Any, t: Any, loss: Loss, weights: Any, penalty: Penalty | None
    ) -> tuple[dict[str, np.ndarray], record.Objective]:
        """The checked data by buffer name, and what is minimised."""
        x = arguments.check_input(x, self.input_shape)
        arguments.check_is("loss", loss, Loss, "a loss such as SquaredLoss()")
        t = arguments.check_targets(t, len(x), self.output_shape, loss)
        data = {"x": x, "t": t}
        if weights is not None:
            data["weights"] = arguments.check_weights(weights, len(x))
        return data, self._objective(loss, t.shape[1:], weights is not None, penalty)

    def _objective(self, loss: Loss, target: SampleShape, weighted: bool, penalty: Penalty | None) -> record.Objective:
        arguments.check_is("loss", loss, Loss, "a loss such as SquaredLoss()")
        last = last_layer(self)
        if loss.takes_logits and isinstance(last, Softmax):
            raise ValueError(f"{loss!r} takes logits, but the last layer is {last!r}: leave that layer out")
        if penalty is not None:
            arguments.check_is("penalty", penalty, Penalty, "a penalty such as L2Penalty(1e-4)")
        return record.Objective(loss, target, weighted, penalty)

    def _gradient(self, beside: Any, objective: record.Objective, dtype: np.dtype[Any], training: bool) -> Executable:
        key = ("gradient", objective, dtype, training)
        return self._executable(beside, key, lambda: record.gradient(self.network, objective, dtype, training))

    def training_step(self, p: Any, objective: record.Objective, optimizer: Optimizer) -> Program:
        """The program of a step from `p`, recorded the first time; for training loops."""
        key = ("training step", objective, optimizer, p.dtype)
        return self._executable(p, key, lambda: record.training_step(self.network, objective, optimizer, p.dtype)).program

    def _executable(self, beside: Any, key: Any, make: Callable[[], Program]) -> Executable:
        """The program under this key, recorded the first time, for arrays where `beside` lies."""
        runner = runner_of(beside, self.runner)
        key = (key, runner)
        try:
            return self._executables[key]
        except KeyError:
            if len(self._executables) >= KEPT_PROGRAMS:
                self._executables.pop(next(iter(self._executables)), None)
            return self._executables.setdefault(key, Executable(runner, make()))

    def __getstate__(self) -> dict[str, Any]:
        dropped = ("network", "_executables", "runner")
        return {name: value for name, value in self.__dict__.items() if name not in dropped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _executables={}, runner=find_backend(state["backend"]))


def _random(run: Executable, seed: int, beside: Any) -> dict[str, Any]:
    """The seed for programs that draw random numbers, where `beside` lies."""
    seed = arguments.check_seed(seed)
    if "random" not in run.program.buffers:
        return {}
    return {"random": place_of(beside).contiguous(np.array([seed, 0], np.uint64))}
