"""`Chain`: layers one after another, and what it computes. What it is made of and further calls are in `chains.network`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from chains.losses import Loss
from chains.network import arguments, ensembles, record
from chains.network.bound import Bound
from chains.network.host_calls import call_from_host
from chains.network.objectives import Objectives
from chains.network.ode_steps import check_solved
from chains.network.parallel import check_comm, part_arrays, part_of
from chains.penalties import Penalty
from chains.support.checks import check_flags, check_is
from chains.support.lazy import lazy
from chains.support.memory import is_elsewhere, memory_of
from chains.support.messages import counted, shown

_SEED = 0  # the default
_FLOAT32 = np.dtype(np.float32)


class Chain(Objectives):
    """A network: layers one after another. It holds no parameters; every call takes them as one flat vector.

    A network with running statistics (`BatchNorm`) has a second vector, the state, which is passed as `state`. Where the
    mode is "train", a call of the network, `value_and_grad` and `train` update the state in place; nothing else changes it.

    Parameters
    ----------
    *layers : Layer
        The layers, each of which takes the output of the one before.
    input_shape : tuple of int, optional
        The shape of one sample, without the batch; needed where the first layer does not fix it.
    backend : str or backends.Cupy
        "auto" or the name of a backend: "native", "numpy" or "cupy"; or the settings of the last.

    Raises
    ------
    TypeError, ValueError
        For layers that do not fit together, and backends that are not known or not available.

    Examples
    --------
    >>> net = Chain(Dense(784, 30, σ), Dense(30, 10, σ))
    >>> p = net.init(seed=0)
    >>> y = net(x, p)  # x: (batch, 784), y: (batch, 10)
    """

    @lazy
    def _may_fail(self) -> bool:
        return self.network.declaration.may_fail

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
        """The outputs at a batch of inputs.

        Parameters
        ----------
        x : array, shape (batch, *input_shape)
            The inputs.
        p : array, shape (n_params,) or (members, n_params)
            The parameters, whose type is that of the computation. Of many networks at once, a row is one of them; then `x` is
            shared or each member's own, (members, batch, *input_shape), and `state` is (members, n_state).
        lengths : array, shape (batch,), optional
            How many steps each sample has, for recurrent networks, or times each trajectory of an `ODE`. What lies behind
            must be finite, and is not looked at.
        state : array, shape (n_state,), optional
            The state of a network that has one: read in the mode "eval", updated in place in the mode "train".
        mode : str
            "eval" or "train", in which dropout is on and batch normalisation uses the statistics of the batch.
        seed : int
            Decides what dropout drops.
        out : array, shape (batch, *output_shape), optional
            Filled instead of a fresh array. With `p` on a GPU, `x` and `out` may be NumPy arrays, which go there and back in
            pieces where they are large.

        Returns
        -------
        array, shape (batch, *output_shape) or (members, batch, *output_shape)
            The outputs.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, before anything is written.
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
        y = memory_of(p).empty(shape, p.dtype) if out is None else arguments.check_out(out, shape, p.dtype, data)
        data["y"] = y
        run(len(x), arguments.with_random(data, run, seed, p))
        if self._may_fail:
            check_solved(self, p, x, y, lengths=lengths)
        elif plain:
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
        comm: Any = None,
    ) -> tuple[float, np.ndarray]:
        """The loss, plus the penalty, and its gradient with respect to the parameters.

        Parameters
        ----------
        p : array, shape (n_params,) or (members, n_params)
            The parameters, as in a call of the network. Of many networks at once, data are shared, or each member's own with
            an axis of members in front.
        x : array, shape (batch, *input_shape)
            The inputs.
        t : array
            The targets, in the shape that the loss takes.
        loss : Loss
            What the outputs are compared by.
        weights : array, shape (batch,), or that of `t` or what broadcasts to it, optional
            Factors of the samples' losses, or of the terms that the loss sums or averages, any finite numbers. The denominators
            do not depend on them: `MSELoss` is ``sum(weights * (y - t) ** 2) / y.size``. A target of weight 0 may be NaN.
        lengths : array, shape (batch,), optional
            As in a call of the network.
        penalty : Penalty, optional
            Added to the loss.
        state, mode, seed
            As in a call of the network, but that the mode is "train" unless said.
        out : array, shape (n_params,), optional
            Filled with the gradient instead of a fresh array.
        check_finite : bool
            Whether to refuse an infinity or NaN in the data, which are read once for that. Targets of weight 0 may be either.
        comm : mpi4py.MPI.Intracomm, optional
            Processes that do this together: each passes its own samples, one at least, and else the same arguments.
            Value and gradient are those of all samples, the same bits on each process.

        Returns
        -------
        value : float, or array, shape (members,)
            The mean of the samples' losses, plus the penalty.
        gradient : array, shape (n_params,) or (members, n_params)
            Its derivative with respect to `p`, zero where parameters are frozen.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, before anything is written.
        """
        training = arguments.check_mode(mode)
        kind = ("gradient", training)
        plain = weights is None and lengths is None and state is None and seed is _SEED and not check_finite
        plain = plain and comm is None
        quick = self._shortcuts.find(kind, p, x, loss, penalty) if plain else None
        if quick is not None:
            found = quick(p, x, t, out)
            if found is None and type(t) is np.ndarray and arguments.is_column(t, self.output_shape, loss):
                found = quick(p, x, t[:, None], out)
            if found is not None:
                return found
        shared = None if comm is None else check_comm(comm)
        if ensembles.is_ensemble(p):
            rest = {
                "state": state,
                "mode": mode,
                "seed": seed,
                "penalty": penalty,
                "out": out,
                "check_finite": check_finite,
                "comm": comm,
            }
            return ensembles.value_and_grad(self, p, x, t, loss, weights=weights, lengths=lengths, **rest)
        network = self.network
        p = arguments.check_params(p, network.layout.size)
        data = arguments.together(p, arguments.check_data(network.declaration, x, t, loss, weights, lengths))
        found_in = arguments.target_shapes(data)
        run = self._programs_at(p).recent(
            (p.dtype, training, *found_in, comm is not None),
            (loss, penalty),
            lambda: self._gradient(p, self._objective(loss, *found_in, penalty), p.dtype, training, parallel=comm is not None),
        )
        if check_finite:
            check_flags(check_finite=check_finite)
            arguments.check_finite(p.dtype, p=p, **arguments.with_counted_targets(network.declaration, data))
        data["p"] = p
        total, first = (len(data["x"]), 0) if shared is None else part_of(shared, len(data["x"]))
        data |= self.state_for(run.program, state, p.dtype, training, data, total)
        g = memory_of(p).empty(p.shape, p.dtype) if out is None else arguments.check_out(out, p.shape, p.dtype, data)
        value = memory_of(p).empty((), p.dtype)
        data["g"], data["value"] = g, value
        if shared is not None:
            data |= part_arrays(shared, run, total, first, p)
        run(len(data["x"]), arguments.with_random(data, run, seed, p))
        if self._may_fail:
            check_solved(self, p, data["x"], value, lengths=lengths)
            if comm is not None and np.isnan(value):
                raise FloatingPointError("the loss is nan: a solution of another process ends before its last time")
        elif plain:
            own = type(loss).check_values is not Loss.check_values
            check = partial(arguments.check_target_values, output=self.output_shape, loss=loss) if own else None
            self._shortcuts.add(kind, run, {name: data[name] for name in ("p", "x", "t")}, ["g"], loss, penalty, check)
        return value.item(), g

    def loss(
        self, p: Any, x: Any, t: Any, loss: Loss, *, weights: Any = None, lengths: Any = None,
        penalty: Penalty | None = None, state: Any = None,
    ) -> float:  # fmt: skip
        """The loss, plus the penalty, in the mode "eval".

        Parameters
        ----------
        p, x, t, loss, weights, lengths, penalty, state
            As in `value_and_grad`; the state is read.

        Returns
        -------
        float
            The mean of the samples' losses, plus the penalty.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit.
        """
        p = arguments.check_params(p, self.n_params)
        data, objective = self.problem(x, t, loss, weights, penalty, lengths)
        data, value = arguments.together(p, data), memory_of(p).empty((), p.dtype)
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
        """Pull a cotangent of the outputs back to the parameters and the inputs: a vector-Jacobian product.

        Parameters
        ----------
        p, x
            As in a call of the network.
        dy : array, shape (batch, *output_shape)
            The cotangent.
        lengths, state, mode, seed
            As in a call of the network, but that the state is never changed.
        out : pair of arrays, optional
            Filled instead of fresh arrays.

        Returns
        -------
        dp : array, shape (n_params,)
            The gradient of ``sum(dy * net(x, p))`` with respect to the parameters.
        dx : array, shape (batch, *input_shape)
            That with respect to the inputs; zero by ids.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, before anything is written.
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
        run = self.backward_pass(p, training, masked)
        inputs = {"p": p, **arguments.together(p, {"x": x, "dy": dy, **more})}
        inputs |= self.state_for(run.program, state, p.dtype, training, inputs)
        if out is None:
            g, dx = memory_of(p).empty(p.shape, p.dtype), memory_of(p).empty(x.shape, p.dtype)
        else:
            g = arguments.check_out(out[0], p.shape, p.dtype, inputs, "out[0]")
            dx = arguments.check_out(out[1], x.shape, p.dtype, {**inputs, "out[0]": g}, "out[1]")
        inputs["g"], inputs["dx"] = g, dx
        run(len(x), arguments.with_random(inputs, run, seed, p))
        if plain:
            self._shortcuts.add(kind, run, {"p": p, "x": x, "dy": dy}, ["g", "dx"])
        return g, dx

    def bound(self, p: Any, *, state: Any = None) -> Bound:
        """The network with these parameters as a function of one sample, for the solvers of others.

        >>> f = net.bound(p)
        >>> solution = solve_ivp(lambda t, y: f(y), (0, 10), start)

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters, which are copied; their type is that of the computation.
        state : array, shape (n_state,), optional
            That of a network that has one, copied too.

        Returns
        -------
        Bound
            ``f(x)`` and ``f.vjp(x, dy)``, of arrays without an axis of the batch, and ``f.c_function()``.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, and for parameters on a GPU.
        """
        p = arguments.check_params(p, self.n_params)
        if is_elsewhere(p):
            raise TypeError(
                "`p` lies on a GPU, where calls for single samples take longer than the samples: pass cupy.asnumpy(p)"
            )
        known = self.state_for(self.forward_pass(p, False).program, state, p.dtype, False, {})
        own = {name: np.array(array, p.dtype) for name, array in known.items()}
        return Bound(self, np.array(p), own.get("state"))


def check_net(net: Any) -> None:
    """Raise TypeError unless `net` is a network."""
    check_is("net", net, Chain, "a network such as Chain(Dense(2, 3))")
