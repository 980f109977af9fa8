"""Steady states as a layer: the zero of a right-hand side, with the pullback of the implicit function theorem.

With ``f(y, x) = 0`` and the Jacobian matrix J of f by y, the cotangent c of y becomes ``w = -inverse(transpose(J)) c``, and w
is passed to the pullback of the right-hand side. The pullback needs the values at the solution, not those of the iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from chains.expr import where
from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.node import Node
from chains.layers.ode.implicit import LARGEST_STATE, record_solution, record_tangents
from chains.layers.ode.right_side import check_deterministic
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_flags, check_number, check_word, is_real
from chains.support.messages import shown

HISTORY = 5  # differences that Anderson's method combines
SUFFICIENT = 2e-4  # the share of its square by which a whole step must reduce f: Armijo's condition
SHORTEST = 1e-9  # the smallest share of a step that is tried


class SteadyState(Layer):
    """The state y with ``rhs(y, x) = 0``, or with ``y = rhs(y, x)``: an implicit layer.

    A sample is x, (given,), and the output is y, (size,). The right-hand side sees the state, then x, as in an `ODE` with given
    features.

    >>> rate = Equations(lambda a, b, feed, k: (feed - k * a * b, k * a * b - b), ("a", "b", "feed"), parameters={"k": 2.0})
    >>> net = Chain(SteadyState(rate, 2, guess=1.0))

    Parameters
    ----------
    rhs : Layer
        A layer or chain from (size + given,) to (size,).
    size : int
        The length of the state, at most 32.
    method : str
        "newton": Newton's method with a line search, which halves a step until the square of rhs is smaller. "anderson":
        Anderson acceleration of ``y = y + rhs(y, x)``, or of ``y = rhs(y, x)``, with 5 differences.
    fixed_point : bool
        Whether the equation is ``y = rhs(y, x)``, as in a deep equilibrium model.
    guess : float, sequence of float, or "input"
        The start of the iterations: a number, one for each number of the state, or "input" for the first `size` features of a
        sample, before x. Small changes of the guess do not change the solution, so its gradient is 0.
    rtol, atol : float, optional
        Iterations end when a step, as a mean square over the state, is at most ``atol + rtol * abs(y)``. By default both are
        4e-11 in float64 and 2e-5 in float32. With "newton" the error is about the square of the last step.
    max_steps : int
        The largest number of evaluations of `rhs`. If they do not reach a solution, ``net(x, p)``, ``net.bound(p)(x)`` and
        `value_and_grad` raise FloatingPointError; other calls give NaN for the sample's output and for gradients.

    Raises
    ------
    TypeError, ValueError
        For other settings, for a `rhs` whose output does not fit, and for one with a state, dropout or arrays of the whole
        batch.

    Notes
    ----- Gradients, also those of samples, and Jacobians are exact. Second derivatives and series (`hvp`, `derivatives`,
    `laplacian`, `gauss_newton`, residuals) raise NotImplementedError.

    Source: Nocedal and Wright, "Numerical optimization", 2006, 11.2; Walker and Ni, "Anderson acceleration for fixed-point
    iterations", 2011; Bai, Kolter and Koltun, "Deep equilibrium models", 2019.
    """

    advice: ClassVar[str] = "a call of the network says which steady state was not found"
    has_series: ClassVar[bool] = False

    def __init__(
        self, rhs: Layer, size: int, method: str = "newton", *, fixed_point: bool = False, guess: Any = 0.0,
        rtol: float | None = None, atol: float | None = None, max_steps: int = 64,
    ) -> None:  # fmt: skip
        if not isinstance(rhs, Layer):
            raise TypeError(f"`rhs` (={shown(rhs)}) must be a layer: a Chain, or Equations of formulas")
        check_word("method", method, "newton", "anderson")
        check_flags(fixed_point=fixed_point)
        self.rhs = rhs
        self.size = check_count("size", size)
        if self.size > LARGEST_STATE:
            raise ValueError(f"`size` (={size}) must be at most {LARGEST_STATE}: each step solves a linear system of the state")
        self.method = method
        self.fixed_point = bool(fixed_point)
        self.guess = _guess(guess, self.size)
        for name, value in (("rtol", rtol), ("atol", atol)):
            if value is not None:
                check_number(name, value, "in (0, inf)")
        self.rtol, self.atol = (None if value is None else float(value) for value in (rtol, atol))
        self.max_steps = check_count("max_steps", max_steps)

    @property
    def may_fail(self) -> bool:
        return True

    @property
    def _own(self) -> int:
        """How many features of a sample are the guess."""
        return self.size if self.guess == "input" else 0

    def fixed_input(self) -> SampleShape | None:
        shape = self.rhs.fixed_input()
        more = shape[0] - self.size + self._own if shape is not None and len(shape) == 1 else 0
        return (more,) if more > 0 else None

    def declare(self, d: Declaration) -> None:
        n = self.size
        if len(d.input) != 1 or d.input[0] < self._own:
            first = f"a guess ({n},), then " if self._own else ""
            raise ValueError(f"a sample must be {first}features (given,), but its shape is {d.input}")
        width = n + d.input[0] - self._own
        output = d.child("", self.rhs, (width,))
        if output != (n,):
            raise ValueError(
                f"`rhs` (={self.rhs!r}) gives {output} for {width} features, but `size` (={n}) of them are the state"
            )
        check_deterministic(d.children[-1])
        for part in d.children[-1].all:
            if part.state_slices or part.shared_shapes:
                raise ValueError(
                    f"`rhs` has {part.layer!r}, whose state or arrays of the whole batch a steady state cannot take"
                )
            part.timed = False
        d.saved("seen", (width,))  # the solution, and the features
        d.saved("value", (n,))  # of the right-hand side there
        d.saved("slopes", (n, n))  # of the equation there: a row has the derivatives by one of the state
        d.output_times = 0
        d.output((n,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        n, (node,) = self.size, s.children
        at = SimpleNamespace(**{name: ops.scratch(name, getattr(s, name).sample_shape) for name in ("seen", "value", "slopes")})
        state, width = at.seen.slice(-1, 0, n), at.seen.sample_shape[0]
        if width > n:
            ops.copy(at.seen.slice(-1, n, width), x.slice(-1, self._own, x.sample_shape[0]))
        if self._own:
            ops.copy(state, x.slice(-1, 0, n))
        else:
            ops.copy(state, ops.constant("guess", np.broadcast_to(np.array(self.guess, np.float64), (n,))))
        failed, step = (self._newton if self.method == "newton" else self._anderson)(ops, node, state, at)
        for name in vars(at):
            ops.copy(getattr(s, name), getattr(at, name))
        ops.map(y, lambda state, step, failed: where(failed > 0.0, nan, state - step), state, step, failed)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        n, (node,), own = self.size, s.children, self._own
        w, d_seen = ops.scratch("w", (n,)), ops.scratch("d_seen", s.seen.sample_shape)
        record_solution(ops, w.expand(-1), s.slopes, dy.expand(-1))
        ops.map(w, lambda w, y: where(y == y, -w, nan), w, y)
        node.pullback(ops, s.seen, s.value, w, d_seen)
        failed = y.slice(-1, 0, 1)  # NaN if no state was found; the others follow
        if own:
            ops.map(dx.slice(-1, 0, n), lambda y: where(y == y, 0.0, nan), y)
        if own < dx.sample_shape[0]:
            features = dx.slice(-1, own, dx.sample_shape[0])
            ops.map(features, lambda d, y: where(y == y, d, nan), d_seen.slice(-1, n, d_seen.sample_shape[0]), failed)

    def _linearise(self, ops: Recorder, node: Node, s: Any) -> None:
        """Record the right-hand side's value, and the transposed Jacobian matrix of the equation, where `s.seen` is."""
        slopes, identity = record_tangents(ops, node, s.seen, s.value), ops.constant("identity", np.eye(self.size))
        if self.fixed_point:
            terms = [identity] if slopes is None else [identity, slopes]
            ops.map(s.slopes, lambda one, *slope: sum(slope) - one, *terms)
        elif slopes is None:
            ops.fill(s.slopes, 0.0)
        else:
            ops.copy(s.slopes, slopes)

    def _residual(self, ops: Recorder, state: View, value: View) -> View:
        """Record the residual of the equation."""
        if not self.fixed_point:
            return value
        residual = ops.scratch("residual", state.sample_shape)
        ops.map(residual, lambda value, y: value - y, value, state)
        return residual

    def _excess(self, ops: Recorder, step: View, state: View) -> View:
        """Record the mean square of a step over the tolerated one."""
        n, digits = self.size, float(np.finfo(ops.dtype).eps) ** (2.0 / 3.0)
        rtol, atol = (digits if each is None else each for each in (self.rtol, self.atol))
        squares, excess = ops.scratch("squares of steps", (n,)), ops.scratch("excess", (1,))

        def square(step: Any, y: Any) -> Any:
            relative = step / (atol + rtol * abs(y))
            return relative * relative * (1.0 / n)

        ops.map(squares, square, step, state)
        ops.sum(excess, squares)
        return excess

    def _newton(self, ops: Recorder, node: Node, state: View, s: Any) -> tuple[View, View]:
        """Record Newton's method; returns a number that is above 0 if it did not converge, and the last step, which is tiny.

        Each iteration evaluates the end of a step. Then the next step begins there, or half of this step is tried. At the
        solution the steps have length 0, so further iterations change nothing.
        """
        n = self.size
        base, step, full, squares = (ops.scratch(name, (n,)) for name in ("begin of step", "step", "whole step", "squares"))
        active, length, least, size, accepted = (
            ops.scratch(name, (1,)) for name in ("active", "length", "least square", "square", "accepted")
        )
        ops.copy(base, state)
        ops.fill(step, 0.0)
        for view, start in ((active, 1.0), (length, 1.0), (least, inf)):
            ops.fill(view, start)
        with ops.loop(self.max_steps, skip_where_zero=lambda _: active):
            self._linearise(ops, node, s)
            residual = self._residual(ops, state, s.value)
            record_solution(ops, full.expand(-1), s.slopes.swap(1, 2), residual.expand(-1))
            ops.map(squares, lambda f: f * f, residual)
            ops.sum(size, squares)
            ops.map(accepted, lambda size, least, length: where(size <= least * (1.0 - SUFFICIENT * length), 1.0, 0.0),
                    size, least, length)  # fmt: skip
            ops.map((base, step), _taken, accepted, state, full, base, step)
            excess = self._excess(ops, step, base)
            ops.map((active, length, least), _next, active, length, least, size, accepted, excess)
            ops.map(state, lambda base, length, step: where(length > 0.0, base - length * step, base), base, length, step)
        return length, step

    def _anderson(self, ops: Recorder, node: Node, state: View, s: Any) -> tuple[View, View]:
        """Record Anderson acceleration; returns the same as `_newton`. The last step is Newton's."""
        n, m = self.size, HISTORY
        moved, changed = ops.scratch("differences of states", (m, n)), ops.scratch("differences of residuals", (m, n))
        before, earlier, new = (ops.scratch(name, (n,)) for name in ("state before", "residual before", "next state"))
        active, slot = (ops.scratch(name, (1,)) for name in ("active", "slot"))
        mark, weights, products = (ops.scratch(name, (m,)) for name in ("mark", "weights", "products"))
        matrix, both = ops.scratch("products of differences", (m, m)), ops.scratch("moves", (m, n))
        numbers, identity = ops.constant("slots", np.arange(m, dtype=np.float64)), ops.constant("identity", np.eye(m))
        ridge, tiny = float(np.finfo(ops.dtype).eps) ** (2.0 / 3.0), float(np.finfo(ops.dtype).tiny) ** 0.75
        for view, start in ((moved, 0.0), (changed, 0.0), (before, 0.0), (earlier, 0.0), (active, 1.0), (slot, -1.0)):
            ops.fill(view, start)
        with ops.loop(self.max_steps, skip_where_zero=lambda _: active):
            node.forward(ops, s.seen, s.value)
            residual = self._residual(ops, state, s.value)
            ops.map(mark, lambda number, slot: where(number == slot, 1.0, 0.0), numbers, slot)
            for rows, now, last in ((moved, state, before), (changed, residual, earlier)):
                differ = lambda mark, now, last, row: where(mark > 0.5, now - last, row)  # noqa: E731
                ops.map(rows, differ, mark.expand(-1), now.expand(1), last.expand(1), rows)
            ops.matmul(matrix, changed, changed.swap(1, 2))
            ops.matmul(products.expand(-1), changed, residual.expand(-1))
            ops.map(matrix, lambda a, one: a + one * (ridge * a + tiny), matrix, identity)
            record_solution(ops, weights.expand(-1), matrix, products.expand(-1))
            ops.map(both, lambda a, b: a + b, moved, changed)
            ops.matmul(new.expand(1), weights.expand(1), both)
            excess = self._excess(ops, residual, state)
            ops.copy(before, state)
            ops.copy(earlier, residual)
            ops.map(active, lambda active, excess: where(excess <= 1.0, 0.0, active), active, excess)
            ops.map(slot, lambda slot: where(slot > m - 1.5, 0.0, slot + 1.0), slot)
            ops.map(state, lambda active, y, f, less: where(active > 0.0, y + f - less, y), active, state, residual, new)
        self._linearise(ops, node, s)
        record_solution(ops, new.expand(-1), s.slopes.swap(1, 2), self._residual(ops, state, s.value).expand(-1))
        ops.map(state, lambda y, step: y - step, state, new)  # gradients are those of the state after this step
        self._linearise(ops, node, s)
        ops.fill(new, 0.0)
        return active, new

    def __repr__(self) -> str:
        defaults = {"fixed_point": False, "guess": 0.0, "rtol": None, "atol": None, "max_steps": 64}
        more = "".join(f", {name}={shown(v)}" for name, default in defaults.items() if (v := getattr(self, name)) != default)
        return f"SteadyState({self.rhs!r}, {self.size}, {self.method!r}{more})"


def _taken(accepted: Any, state: Any, full: Any, base: Any, step: Any) -> tuple[Any, Any]:
    """The start of a step, and the whole step."""
    return where(accepted > 0.5, state, base), where(accepted > 0.5, full, step)


def _next(active: Any, length: Any, least: Any, size: Any, accepted: Any, excess: Any) -> tuple[Any, Any, Any]:
    """Whether iterations continue, the share of the step to try, 0 at a solution, and the least square so far."""
    found = (accepted > 0.5) & (excess <= 1.0)
    tried = where(found, 0.0, where(accepted > 0.5, 1.0, 0.5 * length))
    length = where(active > 0.0, tried, length)
    return where(length < SHORTEST, 0.0, active), length, where(accepted > 0.5, size, least)


def _guess(given: Any, size: int) -> float | tuple[float, ...] | str:
    """The checked guess."""
    if isinstance(given, str):
        check_word("guess", given, "input")
        return given
    if is_real(given):
        check_number("guess", given, "finite")
        return float(given)
    if not isinstance(given, (Sequence, np.ndarray)) or np.ndim(given) != 1 or not all(map(is_real, given)):
        raise TypeError(f'`guess` (={shown(given)}) must be a number, one for each of the state, or "input"')
    if len(given) != size or not np.isfinite(np.asarray(given, np.float64)).all():
        raise ValueError(f"`guess` (={shown(given)}) must be {size} finite numbers, as `size` (={size}) says")
    return tuple(map(float, given))
