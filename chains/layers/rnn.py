"""The usual recurrent cells (plain, LSTM and GRU), and the layers that repeat them along the time axis."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from chains.activations import Activation, resolve, tanh
from chains.initializers import InitializerLike, initializer
from chains.layers.base import Declaration
from chains.layers.elementwise import record_slope
from chains.layers.recurrent import Cell, Recurrent
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_flags


def _gate(x: Any) -> Any:
    """The sigmoid, by tanh, which is shorter than by exp. Near 0 its error is that of numbers near 1."""
    return 0.5 + 0.5 * tanh(0.5 * x)


class GatedCell(Cell):
    """The base of these cells: an input of length `inputs`, a state `h` of length `units`, and weights of `gates` gates.

    `weight` has shape (inputs, gates * units), `recurrent_weight` (units, gates * units), `bias` (gates * units,).
    """

    gates = 1

    def __init__(
        self, inputs: int, units: int, *, weight_init: InitializerLike = "glorot_uniform",
        recurrent_init: InitializerLike = "glorot_uniform", bias_init: InitializerLike = "zeros",
    ) -> None:  # fmt: skip
        self.inputs = check_count("inputs", inputs)
        self.units = check_count("units", units)
        width = self.gates * self.units
        self.weight_init = initializer(weight_init, "weight_init", shape=(self.inputs, width))
        self.recurrent_init = initializer(recurrent_init, "recurrent_init", shape=(self.units, width))
        self.bias_init = initializer(bias_init, "bias_init", shape=(width,))

    def declare(self, d: Declaration) -> None:
        if d.input != (self.inputs,):
            raise ValueError(f"`inputs` (={self.inputs}) must be the length of a step's input, whose shape is {d.input}")
        width = self.gates * self.units
        d.carry("h", (self.units,))
        d.param("weight", (self.inputs, width), self.weight_init)
        d.param("recurrent_weight", (self.units, width), self.recurrent_init)
        d.param("bias", (width,), self.bias_init)
        d.temporary("a", (width,))  # the argument of the gates; in the pullback its gradient

    def _gates(self, view: View) -> list[View]:
        """The parts of an array that belong to each gate."""
        return [view.slice(-1, k * self.units, (k + 1) * self.units) for k in range(self.gates)]

    def _input_gradients(self, ops: Recorder, x: View, dx: View, da: View, p: Any, g: Any) -> None:
        """Record those of ``x @ weight + bias``."""
        ops.matmul(g.weight, x.T, da)
        ops.sum(g.bias, da)
        ops.matmul(dx, da, p.weight.T)


class RNNCell(GatedCell):
    """``h' = activation(x @ weight + h @ recurrent_weight + bias)``. As PyTorch's RNNCell, with one bias instead of two.

    Source: Elman 1990.

    Parameters
    ----------
    inputs, units : int
        The lengths of a step's input `x` and of the state `h`.
    activation : activation or str
        Of the state.
    weight_init, recurrent_init, bias_init : initializer
        Of (inputs, units), (units, units) and (units,).

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    def __init__(
        self, inputs: int, units: int, activation: Activation | str = tanh, *, weight_init: InitializerLike = "glorot_uniform",
        recurrent_init: InitializerLike = "glorot_uniform", bias_init: InitializerLike = "zeros",
    ) -> None:  # fmt: skip
        super().__init__(inputs, units, weight_init=weight_init, recurrent_init=recurrent_init, bias_init=bias_init)
        self.activation = resolve(activation)

    def declare(self, d: Declaration) -> None:
        super().declare(d)
        if self.activation.needs_input:
            d.saved("z", (self.units,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        f = self.activation
        ops.matmul(s.a, x, p.weight)
        ops.matmul(s.a, s.before.h, p.recurrent_weight, accumulate=True)
        if f.needs_input:
            ops.map((s.z, y), lambda a, b: (a + b, f(a + b)), s.a, p.bias)
        else:
            ops.map(y, lambda a, b: f(a + b), s.a, p.bias)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        da = record_slope(ops, self.activation, s.a, dy, y, s)
        ops.matmul(s.d_before.h, da, p.recurrent_weight.T)
        ops.matmul(g.recurrent_weight, s.before.h.T, da)
        self._input_gradients(ops, x, dx, da, p, g)


class LSTMCell(GatedCell):
    """Long short-term memory: a second state `c`, and gates i, f, g, o, in this order in the weights.

    ``a = x @ weight + h @ recurrent_weight + bias``; ``c' = σ(a_f) * c + σ(a_i) * tanh(a_g)``; ``h' = σ(a_o) * tanh(c')``. As
    PyTorch's LSTMCell, with one bias instead of two. Source: Hochreiter and Schmidhuber 1997, Gers et al. 2000.

    Parameters
    ----------
    inputs, units : int
        The lengths of a step's input `x` and of both states.
    weight_init, recurrent_init, bias_init : initializer
        Of (inputs, 4 units), (units, 4 units) and (4 units,).

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    gates = 4

    def declare(self, d: Declaration) -> None:
        super().declare(d)
        d.carry("c", (self.units,))
        for name in ("i", "f", "g", "o", "tanh_c"):
            d.saved(name, (self.units,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.a, x, p.weight)
        ops.matmul(s.a, s.before.h, p.recurrent_weight, accumulate=True)

        def step(ai: Any, af: Any, ag: Any, ao: Any, bi: Any, bf: Any, bg: Any, bo: Any, c: Any) -> tuple[Any, ...]:
            i, f, g, o = _gate(ai + bi), _gate(af + bf), tanh(ag + bg), _gate(ao + bo)
            c = f * c + i * g
            return i, f, g, o, c, tanh(c), o * tanh(c)

        outs = (s.i, s.f, s.g, s.o, s.after.c, s.tanh_c, y)
        ops.map(outs, step, *self._gates(s.a), *self._gates(p.bias), s.before.c)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        def step(dh: Any, dc: Any, i: Any, f: Any, g: Any, o: Any, t: Any, c: Any) -> tuple[Any, ...]:
            dc = dc + dh * o * (1.0 - t * t)
            return (
                dc * g * i * (1.0 - i), dc * c * f * (1.0 - f), dc * i * (1.0 - g * g), dh * t * o * (1.0 - o), dc * f
            )  # fmt: skip

        da = s.a
        ops.map(
            (*self._gates(da), s.d_before.c), step, dy, s.d_after.c, s.i, s.f, s.g, s.o, s.tanh_c, s.before.c
        )  # fmt: skip
        ops.matmul(s.d_before.h, da, p.recurrent_weight.T)
        ops.matmul(g.recurrent_weight, s.before.h.T, da)
        self._input_gradients(ops, x, dx, da, p, g)


class GRUCell(GatedCell):
    """Gated recurrent unit, with gates r, z, n, in this order in the weights: ``h' = (1 - z) * n + z * h``.

    With ``a = x @ weight + bias`` and ``q = h @ recurrent_weight + recurrent_bias``, ``r = σ(a_r + q_r)``, ``z = σ(a_z + q_z)``
    and ``n = tanh(a_n + r * q_n)``, as in PyTorch and cuDNN. Source: Cho et al. 2014.

    Parameters
    ----------
    inputs, units : int
        The lengths of a step's input `x` and of the state `h`.
    reset_after : bool
        Whether r is applied after the product, as above. If not, ``n = tanh(a_n + (r * h) @ recurrent_weight_n)``, as in the
        paper, and `bias` is the only bias.
    weight_init, recurrent_init, bias_init : initializer
        Of (inputs, 3 units), (units, 3 units) and (3 units,).

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    gates = 3

    def __init__(
        self, inputs: int, units: int, *, reset_after: bool = True, weight_init: InitializerLike = "glorot_uniform",
        recurrent_init: InitializerLike = "glorot_uniform", bias_init: InitializerLike = "zeros",
    ) -> None:  # fmt: skip
        super().__init__(inputs, units, weight_init=weight_init, recurrent_init=recurrent_init, bias_init=bias_init)
        check_flags(reset_after=reset_after)
        self.reset_after = reset_after

    def declare(self, d: Declaration) -> None:
        super().declare(d)
        for name in ("r", "z", "n"):
            d.saved(name, (self.units,))
        if self.reset_after:
            d.param("recurrent_bias", (3 * self.units,), self.bias_init)
            d.saved("q", (self.units,))  # q_n
            d.temporary("b", (3 * self.units,))  # h @ recurrent_weight
            d.temporary("dq", (self.units,))
        else:
            d.saved("rh", (self.units,))
            d.temporary("drh", (self.units,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.a, x, p.weight)
        if self.reset_after:
            self._reset_after(ops, y, p, s)
            return
        h, gates, (ar, az, an), (br, bz, bn) = s.before.h, 2 * self.units, self._gates(s.a), self._gates(p.bias)
        weight = p.recurrent_weight
        ops.matmul(s.a.slice(-1, 0, gates), h, weight.slice(1, 0, gates), accumulate=True)

        def reset(ar: Any, az: Any, br: Any, bz: Any, h: Any) -> tuple[Any, ...]:
            r = _gate(ar + br)
            return r, _gate(az + bz), r * h

        def step(an: Any, bn: Any, z: Any, h: Any) -> tuple[Any, ...]:
            n = tanh(an + bn)
            return n, n + z * (h - n)

        ops.map((s.r, s.z, s.rh), reset, ar, az, br, bz, h)
        ops.matmul(an, s.rh, weight.slice(1, gates, 3 * self.units), accumulate=True)
        ops.map((s.n, y), step, an, bn, s.z, h)

    def _reset_after(self, ops: Recorder, y: View, p: Any, s: Any) -> None:
        def step(ar: Any, az: Any, an: Any, qr: Any, qz: Any, qn: Any, *rest: Any) -> tuple[Any, ...]:
            br, bz, bn, cr, cz, cn, h = rest
            r, z, q = _gate(ar + qr + (br + cr)), _gate(az + qz + (bz + cz)), qn + cn
            n = tanh(an + bn + r * q)
            return r, z, n, q, n + z * (h - n)

        ops.matmul(s.b, s.before.h, p.recurrent_weight)
        biases = (*self._gates(p.bias), *self._gates(p.recurrent_bias))
        ops.map((s.r, s.z, s.n, s.q, y), step, *self._gates(s.a), *self._gates(s.b), *biases, s.before.h)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        h, dh, da, gates = s.before.h, s.d_before.h, s.a, 2 * self.units
        dar, daz, dan = self._gates(da)
        both, last = da.slice(-1, 0, gates), slice_of(gates, 3 * self.units)
        weight, g_weight = p.recurrent_weight, g.recurrent_weight
        if self.reset_after:

            def step(dy: Any, r: Any, z: Any, n: Any, q: Any, h: Any) -> tuple[Any, ...]:
                dn = dy * (1.0 - z) * (1.0 - n * n)
                return dn * q * r * (1.0 - r), dy * (h - n) * z * (1.0 - z), dn, dn * r, dy * z

            ops.map((dar, daz, dan, s.dq, dh), step, dy, s.r, s.z, s.n, s.q, h)
            ops.matmul(dh, s.dq, last(weight).T, accumulate=True)
            ops.matmul(last(g_weight), h.T, s.dq)
            ops.sum(g.recurrent_bias.slice(0, 0, gates), both)
            ops.sum(g.recurrent_bias.slice(0, gates, 3 * self.units), s.dq)
        else:

            def candidate(dy: Any, z: Any, n: Any, h: Any) -> tuple[Any, ...]:
                return dy * (h - n) * z * (1.0 - z), dy * (1.0 - z) * (1.0 - n * n), dy * z

            ops.map((daz, dan, dh), candidate, dy, s.z, s.n, h)
            ops.matmul(s.drh, dan, last(weight).T)
            ops.map((dar, dh), lambda d, r, h, dh: (d * h * r * (1.0 - r), dh + d * r), s.drh, s.r, h, dh)
            ops.matmul(last(g_weight), s.rh.T, dan)
        ops.matmul(dh, both, weight.slice(1, 0, gates).T, accumulate=True)
        ops.matmul(g_weight.slice(1, 0, gates), h.T, both)
        self._input_gradients(ops, x, dx, da, p, g)


def slice_of(start: int, stop: int) -> Any:
    """The columns start..stop of a matrix, as a function of it."""
    return lambda view: view.slice(1, start, stop)


def _of_cell(name: str) -> Any:
    """A setting of a layer that is one of its cell."""
    return property(attrgetter(f"cell.{name}"))


class _Named(Recurrent):
    """A recurrence as a layer with a name and the settings of its cell."""

    cell: Any
    inputs, units = _of_cell("inputs"), _of_cell("units")
    weight_init, recurrent_init, bias_init = _of_cell("weight_init"), _of_cell("recurrent_init"), _of_cell("bias_init")


class RNN(_Named):
    """An `RNNCell` repeated along the time axis: samples are (steps, inputs).

    Parameters
    ----------
    inputs, units : int
        The lengths of a step's input and of the state.
    activation : activation or str
        Of the state.
    return_sequences : bool
        Whether to return the outputs of all steps, (steps, units), instead of the last one, (units,).
    bidirectional : bool
        Whether a second cell, with separate parameters, runs from the end to the beginning. Its output follows that of the
        first along the last axis, whose length is then 2 units.
    initial_state : str
        "zeros", or "parameter" for a trained state that starts as zeros.
    checkpoint_every : int, optional
        Keep only the state of every k-th step; the pullback repeats the steps between. By default everything is kept.
    weight_init, recurrent_init, bias_init : initializer
        Of the weights, (inputs, units), of the recurrent weights, (units, units), and of the bias, (units,).

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    activation = _of_cell("activation")

    def __init__(
        self, inputs: int, units: int, activation: Activation | str = tanh, *, return_sequences: bool = False,
        bidirectional: bool = False, initial_state: str = "zeros", checkpoint_every: int | None = None,
        weight_init: InitializerLike = "glorot_uniform", recurrent_init: InitializerLike = "glorot_uniform",
        bias_init: InitializerLike = "zeros",
    ) -> None:  # fmt: skip
        cell = RNNCell(
            inputs, units, activation, weight_init=weight_init, recurrent_init=recurrent_init, bias_init=bias_init
        )  # fmt: skip
        super().__init__(
            cell, return_sequences=return_sequences, bidirectional=bidirectional, initial_state=initial_state,
            checkpoint_every=checkpoint_every,
        )  # fmt: skip


class LSTM(_Named):
    """An `LSTMCell` repeated along the time axis: samples are (steps, inputs).

    Parameters
    ----------
    inputs, units : int
        The lengths of a step's input and of both states.
    return_sequences, bidirectional, initial_state, checkpoint_every
        As of `RNN`.
    weight_init, recurrent_init, bias_init : initializer
        Of the weights, (inputs, 4 units), of the recurrent weights, (units, 4 units), and of the bias, (4 units,).

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    def __init__(
        self, inputs: int, units: int, *, return_sequences: bool = False, bidirectional: bool = False,
        initial_state: str = "zeros", checkpoint_every: int | None = None, weight_init: InitializerLike = "glorot_uniform",
        recurrent_init: InitializerLike = "glorot_uniform", bias_init: InitializerLike = "zeros",
    ) -> None:  # fmt: skip
        cell = LSTMCell(inputs, units, weight_init=weight_init, recurrent_init=recurrent_init, bias_init=bias_init)
        super().__init__(
            cell, return_sequences=return_sequences, bidirectional=bidirectional, initial_state=initial_state,
            checkpoint_every=checkpoint_every,
        )  # fmt: skip


class GRU(_Named):
    """A `GRUCell` repeated along the time axis: samples are (steps, inputs).

    Parameters
    ----------
    inputs, units : int
        The lengths of a step's input and of the state.
    reset_after : bool
        Whether the reset gate is applied after the recurrent product, as in PyTorch and cuDNN. If not, it is applied before the
        product, as in the paper.
    return_sequences, bidirectional, initial_state, checkpoint_every
        As of `RNN`.
    weight_init, recurrent_init, bias_init : initializer
        Of the weights, (inputs, 3 units), of the recurrent weights, (units, 3 units), and of the bias, (3 units,).

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    reset_after = _of_cell("reset_after")

    def __init__(
        self, inputs: int, units: int, *, reset_after: bool = True, return_sequences: bool = False,
        bidirectional: bool = False, initial_state: str = "zeros", checkpoint_every: int | None = None,
        weight_init: InitializerLike = "glorot_uniform", recurrent_init: InitializerLike = "glorot_uniform",
        bias_init: InitializerLike = "zeros",
    ) -> None:  # fmt: skip
        cell = GRUCell(
            inputs, units, reset_after=reset_after, weight_init=weight_init, recurrent_init=recurrent_init, bias_init=bias_init
        )  # fmt: skip
        super().__init__(
            cell, return_sequences=return_sequences, bidirectional=bidirectional, initial_state=initial_state,
            checkpoint_every=checkpoint_every,
        )  # fmt: skip
