"""`Chain`: layers one after another, and everything a user calls. What it is, is in `chains.network.architecture`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from chains.activations import sigmoid
from chains.backends import Backend, Executable
from chains.backends import backend as find_backend
from chains.backends.places import is_elsewhere, place_of, runner_of
from chains.checks import check_count, check_flags, check_shape
from chains.layers.base import Layer, SampleShape
from chains.layers.combine import last_layer
from chains.layers.softmax import Softmax
from chains.losses import Loss
from chains.messages import counted, shown
from chains.network import arguments, ensembles, record
from chains.network.host_calls import call_from_host
from chains.network.objective import Objective
from chains.network.programs import Programs, Shortcuts
from chains.network.second_order import SecondOrder
from chains.network.streaming import Streaming
from chains.optimizers import Optimizer
from chains.penalties import Penalty
from chains.program.program import Program
from chains.program.settings import Tunable

_SEED = 0  # the default
_FLOAT32 = np.dtype(np.float32)


class Chain(Streaming):
    """A network: layers one after another. It holds no parameters; every call takes them as one flat vector.

    A network with running statistics (`BatchNorm`) has a second vector, the state, which is passed as `state`. Where the
    mode is "train", a call of the network, `value_and_grad` and `train` update it in place; nothing else changes it.
    `input_shape` is the shape of one sample, without the batch; needed only where the first layer does not
    fix it. `backend` is "auto" or the name of one. Raises ValueError where layers do not fit together.

    >>> net = Chain(Dense(784, 30, σ), Dense(30, 10, σ))
    >>> p = net.init(seed=0)
    >>> y = net(x, p)  # x: (batch, 784), y: (batch, 10)
    """

    def __init__(self, *layers: Layer, input_shape: SampleShape | None = None, backend: str = "auto") -> None:
        super().__init__(*layers, input_shape=input_shape)
        self.backend = backend
        self.runner = find_backend(backend)
        self._programs = Programs(self.runner)
        self._elsewhere: dict[Backend, Programs] = {}  # for arrays on GPUs
        self._shortcuts = Shortcuts(self.runner)

    # What it computes

    def __call__(
        self,
        x: Any,
        p: Any,
        *,
        lengths: Any = None,
        state: Any = None,
        mode: str = "eval",
        seed: int = 0,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """The outputs, shape (batch, *output_shape), at inputs `x` of shape (batch, *input_shape).

        `p` is the parameter vector; its type is that of the computation. `out` is filled where given; with `p` on a
        GPU and `x` a NumPy array, it may be one too, and what is large goes there and back in pieces. `mode` is
        "eval" or "train" (which switches dropout on, `seed` choosing what is dropped, and has batch normalisation use
        the batch's statistics). `state`, for networks that have one, is read in "eval" and updated in place in "train".
        `lengths` (batch,), for recurrent networks, says how many steps each sample has; what lies behind them is not looked at,
        but must be finite. Of many networks at once, `p` (members, n_params), outputs are (members, batch, *output_shape); `x`
        is shared, or each member's own, (members, batch, *input_shape), and `state` is (members, n_state).
        Raises TypeError or ValueError, before anything is written, for arguments that do not fit.
        """
        training = arguments.check_mode(mode)
        kind = ("forward", training)
        plain = state is None and lengths is None and seed is _SEED
        quick = self._shortcuts.find(kind, p, x) if plain else None
        if quick is not None and (found := quick(p, x, out)) is not None:
            return found
        if ensembles.is_ensemble(p):
            return ensembles.call(self, x, p, lengths=lengths, state=state, mode=mode, seed=seed, out=out)
        p = arguments.check_params(p, self.n_params)
        x = arguments.check_input(x, self.input_shape, ids=self.network.id_count)
        known = self.network.declaration
        run = self.forward_pass(p, training, lengths is not None)
        if is_elsewhere(p) and not is_elsewhere(x):
            return call_from_host(self, run, x, p, arguments.lengths_of(lengths, x, known), state, training, seed, out)
        data = {**arguments.together(p, {"x": x, **arguments.lengths_of(lengths, x, known)}), "p": p}
        data |= self.state_for(run.program, state, p.dtype, training, data)
        shape = (len(x), *self.output_shape)
        y = place_of(p).empty(shape, p.dtype) if out is None else arguments.check_out(out, shape, p.dtype, data)
        data["y"] = y
        run(len(x), arguments.with_random(data, run, seed, p))
        if plain:
            self._shortcuts.add(kind, run, {"p": p, "x": x}, ["y"])
        return y

    def value_and_grad(
        self,
        p: Any,
        x: Any,
        t: Any,
        loss: Loss,
        *,
        weights: Any = None,
        lengths: Any = None,
        penalty: Penalty | None = None,
        state: Any = None,
        mode: str = "train",
        seed: int = 0,
        out: np.ndarray | None = None,
        check_finite: bool = False,
    ) -> tuple[float, np.ndarray]:
        """The loss at `p` (plus `penalty`) and its gradient, shape (n_params,); `out` is filled where given.

        `x` is (batch, *input_shape), `t` the targets as `loss` wants them, `weights` (batch,) multiply the samples'
        losses; any finite numbers, see `chains.losses`. In the mode "train" dropout is on, `seed` choosing what is dropped, and
        `state` is updated in place; in "eval" it is off, and `state` read. With `check_finite`, an infinity or NaN in the data
        raises ValueError. Of many networks, `p` (members, n_params), values are (members,), gradients (members, n_params); data
        are shared, or each member's own, with an axis of members in front. Other arguments as in a call.
        """
        training = arguments.check_mode(mode)
        kind = ("gradient", training)
        plain = weights is None and lengths is None and state is None and seed is _SEED and not check_finite
        quick = self._shortcuts.find(kind, p, x, loss, penalty) if plain else None
        if quick is not None:
            found = quick(p, x, t, out)
            if found is None and type(t) is np.ndarray and arguments.is_column(t, self.output_shape, loss):
                found = quick(p, x, t[:, None], out)
            if found is not None:
                return found
        if ensembles.is_ensemble(p):
            rest = {"state": state, "mode": mode, "seed": seed, "penalty": penalty, "out": out, "check_finite": check_finite}
            return ensembles.value_and_grad(self, p, x, t, loss, weights=weights, lengths=lengths, **rest)
        network = self.network
        p = arguments.check_params(p, network.layout.size)
        data = arguments.together(p, arguments.check_data(network.declaration, x, t, loss, weights, lengths))
        found_in = data["t"].shape[1:], weights is not None, lengths is not None
        run = self._programs_at(p).recent(
            (p.dtype, training, *found_in),
            (loss, penalty),
            lambda: self._gradient(p, self._objective(loss, *found_in, penalty), p.dtype, training),
        )
        if check_finite:
            check_flags(check_finite=check_finite)
            arguments.check_finite(p.dtype, p=p, **data)
        data["p"] = p
        data |= self.state_for(run.program, state, p.dtype, training, data)
        g = place_of(p).empty(p.shape, p.dtype) if out is None else arguments.check_out(out, p.shape, p.dtype, data)
        value = place_of(p).empty((), p.dtype)
        data["g"], data["value"] = g, value
        run(len(data["x"]), arguments.with_random(data, run, seed, p))
        if plain:
            own = type(loss).check_values is not Loss.check_values
            check = partial(arguments.check_target_values, output=self.output_shape, loss=loss) if own else None
            self._shortcuts.add(kind, run, {name: data[name] for name in ("p", "x", "t")}, ["g"], loss, penalty, check)
        return value.item(), g

    def loss(
        self, p: Any, x: Any, t: Any, loss: Loss, *, weights: Any = None, lengths: Any = None,
        penalty: Penalty | None = None, state: Any = None,
    ) -> float:  # fmt: skip
        """The loss at `p` (plus `penalty`), in the mode "eval". Arguments as in `value_and_grad`."""
        p = arguments.check_params(p, self.n_params)
        data, objective = self.problem(x, t, loss, weights, penalty, lengths)
        data, value = arguments.together(p, data), place_of(p).empty((), p.dtype)
        make = partial(record.loss, self.network, objective, p.dtype, False)
        run = self._program(p, ("loss", p.dtype), make, objective)
        data |= self.state_for(run.program, state, p.dtype, False, data)
        run(len(data["x"]), {"p": p, **data, "value": value})
        return float(value)

    def vjp(
        self,
        p: Any,
        x: Any,
        dy: Any,
        *,
        lengths: Any = None,
        state: Any = None,
        mode: str = "eval",
        seed: int = 0,
        out: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pull the cotangent `dy`, shaped like the output, back to the parameters and the inputs.

        Returns ``(dp, dx)``, shapes (n_params,) and (batch, *input_shape): the gradients of ``sum(dy * net(x, p))``; zero by
        ids. `out` is a pair of arrays to fill instead. `state` is read in the mode "eval", and never changed. Other arguments
        as in a call.
        """
        training = arguments.check_mode(mode)
        kind = ("vjp", training)
        if out is not None and (not isinstance(out, tuple) or len(out) != 2 or out[0] is None or out[1] is None):
            raise TypeError(f"`out` (={shown(out)}) must be a pair of arrays, for the parameters and for the inputs")
        plain = state is None and lengths is None and seed is _SEED
        quick = self._shortcuts.find(kind, p, x) if plain else None
        given = (None, None) if out is None else out
        if quick is not None and (found := quick(p, x, dy, given[0], given[1])) is not None:
            return found
        p = arguments.check_params(p, self.n_params)
        x = arguments.check_input(x, self.input_shape, ids=self.network.id_count)
        dy = arguments.check_input(dy, self.output_shape, "dy", "output")
        if len(dy) != len(x):
            raise ValueError(
                f"`dy` has shape {dy.shape}, but `x` is a batch of {len(x)}: both need {counted(len(x), 'sample')}"
            )
        masked, more = lengths is not None, arguments.lengths_of(lengths, x, self.network.declaration)
        make = partial(record.vjp, self.network, p.dtype, training, masked=masked)
        run = self._program(p, ("vjp", p.dtype, training, masked), make)
        inputs = {"p": p, **arguments.together(p, {"x": x, "dy": dy, **more})}
        inputs |= self.state_for(run.program, state, p.dtype, training, inputs)
        if out is None:
            g, dx = place_of(p).empty(p.shape, p.dtype), place_of(p).empty(x.shape, p.dtype)
        else:
            g = arguments.check_out(out[0], p.shape, p.dtype, inputs, "out[0]")
            dx = arguments.check_out(out[1], x.shape, p.dtype, {**inputs, "out[0]": g}, "out[1]")
        inputs["g"], inputs["dx"] = g, dx
        run(len(x), arguments.with_random(inputs, run, seed, p))
        if plain:
            self._shortcuts.add(kind, run, {"p": p, "x": x, "dy": dy}, ["g", "dx"])
        return g, dx

    def objective(
        self,
        x: Any,
        t: Any,
        loss: Loss,
        penalty: Penalty | None = None,
        *,
        weights: Any = None,
        lengths: Any = None,
        state: Any = None,
        mode: str = "eval",
        seed: int = 0,
    ) -> Objective:
        """The loss on this data as a function of the parameters alone, for SciPy's optimisers and the like.

        ``objective(p)`` returns a float and a fresh float64 gradient, computed in float64 whatever the type of
        `p`: ``minimize(objective, p, jac=True, method="BFGS")``. Arguments as in `value_and_grad`, but that `state` is
        copied, and never changed: the same `p` always gives the same value.
        """
        training = arguments.check_mode(mode)
        data, problem = self.problem(x, t, loss, weights, penalty, lengths)
        data = arguments.together(data["x"], data)
        executable = self._gradient(data["x"], problem, np.dtype(np.float64), training, pure=True)
        known = self.state_for(executable.program, state, None, training, data)
        own = {name: place_of(a).array(place_of(a).contiguous(a, np.float64)) for name, a in known.items()}
        remake = partial(self.objective, loss=loss, penalty=penalty, mode=mode, seed=seed)
        return Objective(
            executable,
            data,
            self.n_params,
            arguments.with_random(own, executable, seed, data["x"]),
            remake,
            SecondOrder(self, loss, penalty),
        )

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

        Print it to read them. `target_shape` is the shape of one sample's target, by default that of the output. Raises
        TypeError or ValueError for arguments that do not fit, such as an optimiser without a loss.
        """
        training, network, dtype = arguments.check_mode(mode), self.network, arguments.check_dtype(dtype)
        if loss is None:
            for name, given in (("optimizer", optimizer), ("penalty", penalty), ("target_shape", target_shape)):
                if given is not None:
                    raise TypeError(f"`loss` is missing: `{name}` (={given!r}) is of use with one only")
            return record.forward(network, dtype, training)
        target = self.output_shape if target_shape is None else check_shape("target_shape", target_shape)
        objective = self._objective(loss, target, False, False, penalty)
        loss.check_target(self.output_shape, target)
        if optimizer is not None:
            arguments.check_is("optimizer", optimizer, Optimizer, "an optimiser such as Adam(1e-3)")
        if optimizer is None:
            return record.gradient(network, objective, dtype, training)
        return record.training_step(network, objective, optimizer, dtype)

    def listing(self, program: Program, *, passes: bool = False, batch: int | None = None) -> str:
        """A program as this network's backend runs it: with "native", the operations, LLVM's code and the processor's.

        With `passes`, what each of the backend's passes made of the program on the way there, under the name of the pass;
        other backends than "native" show one stage. `batch` is the number of samples: for few of them, "native" partitions
        products among threads. None shows the code for any number.
        """
        arguments.check_is("program", program, Program, "a program such as net.program()")
        check_flags(passes=passes)
        if batch is not None:
            check_count("batch", batch)
        return self.runner.listing(program, passes=passes, batch=batch)

    def summary(self) -> str:
        """A table of the layers; below it, with the backend "auto", why NumPy runs a program of the network, where it does."""
        if self.runner.name == "auto":
            for kind, make in (("forward", record.forward), ("vjp", record.vjp)):
                self._program(None, (kind, _FLOAT32, True), partial(make, self.network, _FLOAT32, True))
        return "\n".join([super().summary(), *self._programs.fallbacks])

    def problem(
        self, x: Any, t: Any, loss: Loss, weights: Any, penalty: Penalty | None, lengths: Any = None
    ) -> tuple[dict[str, np.ndarray], record.Criterion]:
        """The checked data by buffer name, and what is minimised."""
        data = arguments.check_data(self.network.declaration, x, t, loss, weights, lengths)
        return data, self._objective(loss, data["t"].shape[1:], weights is not None, lengths is not None, penalty)

    def _objective(
        self, loss: Loss, target: SampleShape, weighted: bool, masked: bool, penalty: Penalty | None
    ) -> record.Criterion:
        arguments.check_loss(loss)
        last = last_layer(self)
        if loss.takes_logits and isinstance(last, Softmax):
            raise ValueError(f"{loss!r} takes logits, but the last layer is {last!r}: leave that layer out")
        if loss.takes_logits and sigmoid in (getattr(last, "activation", None), getattr(last, "f", None)):
            raise ValueError(f"{loss!r} takes logits, but the last layer is {last!r}: leave its sigmoid out")
        if penalty is not None:
            arguments.check_is("penalty", penalty, Penalty, "a penalty such as L2Penalty(1e-4)")
        return record.Criterion(loss, target, weighted, penalty, masked)

    def state_for(
        self, program: Program, state: Any, dtype: np.dtype[Any] | None, training: bool, inputs: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The checked state by buffer name, for a program that is to run on these inputs; checks the batch too."""
        network = self.network
        if state is None and network.forgets:
            return {}
        if training:
            network.check_batch(len(inputs["x"]))
        buffer = program.buffers.get("state")
        updated = buffer is not None and buffer.role == "state"
        if state is not None:
            return {"state": arguments.check_state(state, self.state_layout, dtype, updated, inputs)}
        if buffer is not None:
            raise ValueError(
                f"`state` is missing: this network has one ({self.state_layout[0].name}, ...), which this call "
                f"{'updates' if updated else 'reads'}; begin with net.init_state() and pass it to every call"
            )
        return {}

    def _programs_at(self, beside: Any) -> Programs:
        """The programs for arrays where `beside` lies."""
        if not is_elsewhere(beside):
            return self._programs
        runner = runner_of(beside, self.runner)
        if runner not in self._elsewhere:
            self._elsewhere[runner] = Programs(runner)
        return self._elsewhere[runner]

    def _program(self, beside: Any, kind: tuple[Any, ...], make: Callable[[], Program], *parts: Tunable) -> Executable:
        """The program of this kind, made of these parts, for arrays where `beside` lies."""
        return self._programs_at(beside).get(self._structure, kind, make, *parts)

    def _gradient(
        self, beside: Any, objective: record.Criterion, dtype: np.dtype[Any], training: bool, *, pure: bool = False
    ) -> Executable:
        make = partial(record.gradient, self.network, objective, dtype, training, pure=pure)
        return self._program(beside, ("gradient", dtype, training, pure), make, objective)

    def forward_pass(self, p: Any, training: bool, masked: bool = False) -> Executable:
        """A call of the network with these parameters, recorded the first time."""
        make = partial(record.forward, self.network, p.dtype, training, masked=masked)
        return self._program(p, ("forward", p.dtype, training, masked), make)

    def training_step(self, p: Any, objective: record.Criterion, optimizer: Optimizer) -> Executable:
        """A step of training from `p`, recorded the first time; for training loops."""
        make = partial(record.training_step, self.network, objective, optimizer, p.dtype)
        return self._program(p, ("training step", p.dtype), make, objective, optimizer)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in super().__getstate__().items()
            if name not in ("_programs", "_elsewhere", "_shortcuts", "runner")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        runner = find_backend(state["backend"])
        self.__dict__.update(state, runner=runner, _programs=Programs(runner), _elsewhere={}, _shortcuts=Shortcuts(runner))
