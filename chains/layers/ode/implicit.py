"""Implicit Runge-Kutta steps: their stages by Newton's method, the pullback of a stage, and the solution of all steps.

Stage i is the solution k of ``k = rhs(b + h * gamma * k)``, where b comes from the earlier stages. All stages have the same
gamma. So one matrix serves all iterations of a step: the inverse of ``1 - h * gamma * J``, with the Jacobian matrix J at the
beginning of the step. Iterations end when they change almost nothing.

By the implicit function theorem, the cotangent c of k becomes the solution w of ``w = c + h * gamma * transpose(J_i) w``, with
the Jacobian matrix J_i at the stage. The pullback of the right-hand side takes w. The same iterations, transposed, find it.
They converge as Newton's do, and need neither J_i nor second derivatives.

Newton's iterations overwrite the saved arrays of the right-hand side. So it is evaluated again at all stages of a segment, for
the pullback. These evaluations and the gradients of parameters depend on no state, and become products over all steps and
stages.

Source: Hairer and Wanner, "Solving ordinary differential equations II", 1996, IV.8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from chains.expr import exp, log, maximum, where
from chains.jets.directions import Directions
from chains.jets.jet import Jet
from chains.layers.node import Node
from chains.layers.ode.grid import Around
from chains.layers.ode.methods import Length, Tableau, combine
from chains.layers.ode.right_side import Copies, GradientSums, at_once
from chains.layers.ode.solution import Solution
from chains.layers.ode.step_control import Step, StepControl
from chains.program.loop import Steps
from chains.program.recorder import Recorder
from chains.program.view import View


def record_inverse(ops: Recorder, out: View, matrix: View) -> None:
    """Record ``out = inverse of matrix``, both (batch, n, n). A singular matrix gives numbers that are not finite."""
    record_solution(ops, out, matrix, ops.constant("identity", np.eye(matrix.sample_shape[-1])))


def record_solution(ops: Recorder, out: View, matrix: View, right: View) -> None:
    """Record ``out``, (batch, n, m), with ``matrix @ out = right``; a singular matrix gives numbers that are not finite."""
    n, m = out.sample_shape
    both, marks = ops.scratch("matrix and right side", (n, n + m)), ops.scratch("pivots", (n, n))
    column, size, rank, free = (ops.scratch(name, (n,)) for name in ("column", "size", "rank", "free"))
    largest, chosen = ops.scratch("largest", (1,)), ops.scratch("chosen", (1,))
    row, pivot = ops.scratch("row of the pivot", (n + m,)), ops.scratch("pivot", (1,))
    numbers = ops.constant("numbers of rows", np.arange(n, dtype=np.float64))
    with ops.loop(1, closed=True, solves=(out, matrix, right)):
        ops.copy(both.slice(-1, 0, n), matrix)
        ops.copy(both.slice(-1, n, n + m), right)
        ops.fill(free, 1.0)
        with ops.loop(n, closed=True) as at:
            mark = at.now(marks, 1)
            ops.map((column, size), lambda a, free: (a, where(free > 0.5, abs(a), -1.0)), at.now(both, 2), free)
            ops.max(largest, size)
            ops.map(rank, lambda size, largest, number: where(size == largest, number, -1.0), size, largest, numbers)
            ops.max(chosen, rank)
            ops.map((mark, free), _marked, numbers, chosen, free)
            ops.matmul(row.expand(1), mark.expand(1), both)
            ops.matmul(pivot.expand(1), mark.expand(1), column.expand(2))
            ops.map(row, lambda row, pivot: row / pivot, row, pivot)
            ops.map(both, _eliminated, both, mark.expand(2), column.expand(2), row.expand(1))
        ops.matmul(out, marks, both.slice(-1, n, n + m))


def _marked(number: Any, chosen: Any, free: Any) -> tuple[Any, Any]:
    """Whether a row is the pivot, and whether it remains for later columns."""
    return where(number == chosen, 1.0, 0.0), where(number == chosen, 0.0, free)


def _eliminated(a: Any, mark: Any, column: Any, row: Any) -> Any:
    """An entry of the pivot's row, divided by the pivot, or of another row, without the column."""
    return where(mark > 0.5, row, a - column * row)


def record_tangents(ops: Recorder, rhs: Node, seen: View, value: View) -> View | None:
    """Record a right-hand side's `value`, (batch, n), at `seen`, a whole buffer: (batch, n + others).

    Returns the derivatives by the first n numbers of `seen`, a row for each: (batch, n, n), or (n, n) if all samples have the
    same ones; None if all are zero.
    """
    n, jet, along = value.sample_shape[-1], Jet(ops, (1,)), ops.scratch("direction", seen.sample_shape)
    around = ops.pop_operations()
    rhs.forward(ops, seen, value)
    jet.perturb(seen, (0, 1), along)
    jet.record(ops.pop_operations())
    slope = jet.coefficient(value, (0, 1))
    along_one, ops.operations = ops.operations, around
    rows = Directions(ops, {along.buffer: ops.constant("units", np.eye(n, seen.sample_shape[-1]))}, samples=True)
    rows.record(along_one)
    return None if slope is None else rows.rows_of(slope)


ITERATIONS = 16  # of Newton's method for each stage, at most
LARGEST_STATE = 32


class ImplicitStages:
    """The stages of a step: `solve` records them, `pull` the pullback of one.

    Parameters
    ----------
    ops, tableau : Recorder, Tableau
        The recorder and the method.
    rhs : Node
        The right-hand side with saved arrays of one evaluation.
    n : int
        The length of the state, which is the first part of the right-hand side's input.
    """

    def __init__(self, ops: Recorder, tableau: Tableau, rhs: Node, n: int) -> None:
        self.ops, self.rhs, self.n, self.order, self.gamma = ops, rhs, n, tableau.order, tableau.gamma
        self.later = tableau.stages - 1  # the implicit ones
        (rows, self.weights), *_ = tableau.halves
        self.rows = np.array([[*row, *[0.0] * (tableau.stages - len(row))] for row in rows])
        self.failed, self.taken = (ops.scratch(name, (1,)) for name in ("failed stages", "iterations"))
        self._active, self._excess = (ops.scratch(name, (1,)) for name in ("active", "excess of change"))
        self._start, self._value, self._rest, self._change, self._excesses = (
            ops.scratch(name, (n,)) for name in ("stage without itself", "value", "rest", "change", "excesses of change")
        )
        self._tolerated = float(np.finfo(ops.dtype).eps) ** (4.0 / 3.0)  # of squares: the result has two thirds of the digits

    def solve(self, seen: View, state: View, h: Length, inverse: View) -> None:
        """Record the stages of a step from a state, (batch, n).

        `seen`, (batch, stages, features), has the features after the state. The step fills the states of the stages, the last
        of which is the end of the step, and `inverse`, (batch, n, n). It counts the stages that have `failed` and the
        iterations `taken`.
        """
        ops, n, later = self.ops, self.n, self.later
        states, slopes = seen.slice(-1, 0, n), ops.scratch("slopes", (later + 1, n))
        behind = states.slice(1, 1, later + 1)
        columns = ops.constant("weights of slopes", self.rows[1:].T[:, :, None])  # (of slope, in stage, 1)
        ops.copy(states.index(1, 0), state)
        self._prepare(inverse, seen.index(1, 0), h)
        if ops.linearises:
            self.rhs.forward(ops, seen.index(1, 0), self._value)
        ops.copy(slopes.index(1, 0), self._value)
        self.add(behind, state.expand(1), h, columns.index(0, 0), self._value.expand(1))
        for view in (self.failed, self.taken):
            ops.fill(view, 0.0)
        with ops.loop(later, closed=True) as stage:
            before, slope = (stage.now(slopes.slice(1, k, k + later), 1) for k in (0, 1))
            ops.copy(slope, before)
            self._iterate(stage.now(seen.slice(1, 1, later + 1), 1), state, slope, h, inverse)
            column = stage.now(columns.slice(0, 1, later + 1), 0)
            self.add(behind, behind, h, column, slope.expand(1))

    def add(self, out: View, a: View, h: Length, weights: View, b: View) -> None:
        """Record ``out = a + h * weights * b``, of arrays (batch, stages, n)."""
        if isinstance(h, View):
            length = h.expand(1) if h.batched else h
            self.ops.map(out, lambda a, h, weight, b: a + h * weight * b, a, length, weights, b)
        else:
            self.ops.map(out, lambda a, weight, b: a + h * weight * b, a, weights, b)

    def _prepare(self, inverse: View, seen: View, h: Length) -> None:
        """Record the inverse of ``1 - h * gamma * J``, and the slope, at this input of the right-hand side."""
        with self.ops.held():
            self._record_inverse(inverse, seen, h)

    def _record_inverse(self, inverse: View, seen: View, h: Length) -> None:
        ops, gamma, n = self.ops, self.gamma, self.n
        matrix, identity = ops.scratch("newton matrix, transposed", (n, n)), ops.constant("identity", np.eye(n))
        at = ops.scratch("where the step begins", seen.sample_shape)
        ops.copy(at, seen)
        slopes = record_tangents(ops, self.rhs, at, self._value)
        if slopes is None:
            ops.copy(matrix, identity)
        elif isinstance(h, View):
            length = h.expand(-1) if h.batched else h
            ops.map(matrix, lambda one, slope, h: one - h * gamma * slope, identity, slopes, length)
        else:
            ops.map(matrix, lambda one, slope: one - h * gamma * slope, identity, slopes)
        record_inverse(ops, inverse, matrix.swap(1, 2))

    def _iterate(self, seen: View, before: View, slope: View, h: Length, inverse: View) -> None:
        """Record the slope and the state of a stage, from a guess of the slope and the state without the slope."""
        ops, state, start, gamma, tolerated = self.ops, seen.slice(-1, 0, self.n), self._start, self.gamma, self._tolerated
        lengths = [h] if isinstance(h, View) else []

        def improved(active: Any, k: Any, change: Any, x: Any, y: Any, *length: Any) -> tuple[Any, Any]:
            moved = (length[0] if length else h) * gamma * change
            return where(active > 0.0, k + change, k), moved * moved - tolerated * (x * x + y * y)

        ops.copy(start, state)
        with ops.held():
            ops.fill(self._active, 1.0)
            with ops.loop(ITERATIONS, skip_where_zero=lambda _: self._active):
                combine(ops, state, start, h, [(gamma, slope)])
                self._find_change(seen, slope, inverse)
                operands = self._active, slope, self._change, state, before, *lengths
                ops.map((slope, self._excesses), improved, *operands)
                ops.sum(self._excess, self._excesses)
                ops.map((self.taken, self._active), _counted, self.taken, self._active, self._excess)
            ops.map(self.failed, lambda failed, active: failed + active, self.failed, self._active)
        if ops.linearises:
            self._pass_tangents(seen, slope, h)
        combine(ops, state, start, h, [(gamma, slope)])

    def _find_change(self, seen: View, slope: View, inverse: View) -> None:
        """Record the change of the slope in an iteration of Newton's method."""
        self.rhs.forward(self.ops, seen, self._value)
        self.ops.map(self._rest, lambda value, k: value - k, self._value, slope)
        self.ops.matmul(self._change.expand(-1), inverse, self._rest.expand(-1))

    def _pass_tangents(self, seen: View, slope: View, h: Length) -> None:
        """Record one more iteration, with the matrix of the stage itself: its tangents are those of the solution.

        The iterations before it are constants of the tangents.
        """
        ops, inverse = self.ops, self.ops.scratch("inverse at the stage", (self.n, self.n))
        combine(ops, seen.slice(-1, 0, self.n), self._start, h, [(self.gamma, slope)])
        self._prepare(inverse, seen, h)
        self._find_change(seen, slope, inverse)
        ops.map(slope, lambda k, change: k + change, slope, self._change)

    def pull(
        self, d_value: View, d_seen: View, d_slope: View, h: Length, inverse: View, pullback: Callable[[View, View], None]
    ) -> None:
        """Record the cotangents of the right-hand side's output and input, from that of a slope.

        ``pullback(dy, dx)`` records the pullback of the right-hand side.
        """
        ops, d_state, gamma, tolerated = self.ops, d_seen.slice(-1, 0, self.n), self.gamma, self._tolerated
        lengths = [h] if isinstance(h, View) else []

        def improved(active: Any, w: Any, change: Any) -> tuple[Any, Any]:
            new = where(active > 0.0, w + change, w)
            return new, change * change - tolerated * new * new

        for view in (d_value, d_state):
            ops.fill(view, 0.0)
        ops.fill(self._active, 1.0)
        with ops.loop(ITERATIONS, skip_where_zero=lambda _: self._active):
            rest = lambda c, w, d, *length: c + (length[0] if length else h) * gamma * d - w  # noqa: E731
            ops.map(self._rest, rest, d_slope, d_value, d_state, *lengths)
            ops.matmul(self._change.expand(-1), inverse.swap(1, 2), self._rest.expand(-1))
            ops.map((d_value, self._excesses), improved, self._active, d_value, self._change)
            ops.sum(self._excess, self._excesses)
            ops.copy(self._value, d_value)  # a pullback may overwrite it
            pullback(self._value, d_seen)
            ops.map(self._active, lambda active, excess: where(excess <= 0.0, 0.0, active), self._active, self._excess)

    def judged(self, error: Any, failed: Any, taken: Any) -> Any:
        """A formula for the squared relative error of a step, which decides the next length.

        A step with a failed stage is halved. Lengths grow only as far as enough iterations remain.
        """
        safety, power = 0.9, 2.0 * self.order
        many = exp(log(maximum(taken * (safety / (self.later * ITERATIONS)), 1e-3)) * power)
        return where(failed > 0.0, maximum(error, (2.0 * safety) ** power), maximum(error, many))


def _counted(taken: Any, active: Any, excess: Any) -> tuple[Any, Any]:
    """The number of iterations, and whether there are more: if the last one has changed something or given NaN."""
    return taken + active, where(excess <= 0.0, 0.0, active)


class ImplicitControl(StepControl):
    """The search for the steps of an implicit method, as `StepControl`."""

    @property
    def _slopes(self) -> int:
        return 1  # for the first length: each step finds its own

    def _step(self, rhs: Node, seen: View, state: View, t: View, h: View, slopes: Sequence[View]) -> Step:
        ops, n, stages = self.ops, self.inputs.n, self.tableau.stages
        newton = ImplicitStages(ops, self.tableau, rhs, n)
        all_seen, inverse = ops.scratch("seen in stages", (stages, self.inputs.width)), ops.scratch("inverse", (n, n))
        for i, c in enumerate(self.tableau.c):
            self.inputs.record(all_seen.index(1, i), t, h, c)
        newton.solve(all_seen, state, h, inverse)
        states = [all_seen.index(1, i).slice(-1, 0, n) for i in range(stages)]
        *_, other, new = states
        error = self.mean_square("error", _difference, state, new, other)
        ops.map(error, newton.judged, error, newton.failed, newton.taken)
        return Step(new, error, states)


def _difference(y: Any, new: Any, other: Any) -> tuple[Any, Any]:
    """The ends of a step by both methods, and the number of the state whose error is tolerated.

    The sum of slopes is equal in exact arithmetic, but the rounding of stiff slopes would count as an error.
    """
    return new - other, maximum(abs(y), abs(new))


class ImplicitSolution(Solution):
    """The steps of an implicit method on a grid, as `Solution`. `s` also has the `inverse` of the matrix of each step."""

    def _run(self, at: Around, length: int, state: View, befores: View | None, *, keeps: bool) -> None:
        ops, n, s, stages = self.ops, self.n, self.s, self.tableau.stages
        newton = ImplicitStages(ops, self.tableau, at_once(ops, self.rhs), n)
        known = self.inputs.at_stages(self.grid, self.tableau)
        with ops.loop(length) as step:
            h = self._length(at, step)
            if befores is not None:
                ops.copy(step.now(befores, 1), state)
            self._add_doses(state, at, step)
            seen = step.now(s.x, 1) if keeps else ops.scratch("seen", (stages, self.inputs.width))
            inverse = step.now(s.inverse, 1) if keeps else ops.scratch("inverse", (n, n))
            for i, c in enumerate(self.tableau.c):
                own = None if known is None else self._now(known, at, step).index(0, i)
                self._record_inputs(seen.index(1, i), own, at, step, h, c)
            newton.solve(seen, state, h, inverse)
            end = seen.index(1, stages - 1).slice(-1, 0, n)
            if self.clock is None:
                ops.map(state, lambda y, failed: where(failed > 0.0, np.nan, y), end, newton.failed)
            else:
                ops.copy(state, end)
        if keeps:
            with ops.loop(self._evaluations) as each:
                kept = Copies(ops, partial(self._flat, each))
                evaluated = self.rhs.at_a_step(kept.array, lambda _, view: view, {})
                evaluated.forward(ops, self._flat(each, s.x), self._flat(each, s.k))
                kept.keep()

    @property
    def _evaluations(self) -> int:
        """The number of stages in a segment."""
        return self.grid.cut.length * self.tableau.stages

    def _flat(self, each: Steps, view: View) -> View:
        """The entry of a stage in an array (batch, steps, stages, ...)."""
        return each.now(view.reshape(self._evaluations, *view.sample_shape[2:]), 1)

    def _pull_steps(self, at: Around, sums: GradientSums, d_state: View, dy: View, d_times: View | None, d_given: View) -> None:
        ops, n, s, stages, width = self.ops, self.n, self.s, self.tableau.stages, self.inputs.width
        newton = ImplicitStages(ops, self.tableau, at_once(ops, self.rhs), n)
        d_values = ops.scratch("d_k", (self.grid.cut.length, stages, n))
        d_slopes = ops.scratch("d_slopes", (stages, n))
        d_seen, d_all = (ops.scratch(name, (width,)) for name in ("d_x", "d_x of all stages"))
        weights = ops.constant("weights of ends", np.array(newton.weights)[:, None])
        rows = ops.constant("weights in stages", newton.rows[:, :, None])  # (in stage, of slope, 1)
        with ops.loop(self.grid.cut.length, backwards=True) as step:
            h = self._length(at, step)
            d_begin, within = self._at_times(d_state, dy, None if d_times is None else step.now(d_times, 1), at, step)
            own, inverse = step.now(d_values, 1), step.now(s.inverse, 1)
            ops.fill(d_all, 0.0)
            ops.fill(d_slopes, 0.0)
            newton.add(d_slopes, d_slopes, h, weights, d_state.expand(1))
            for column, each in zip(self.tableau.slopes_interpolant.T, within, strict=False):
                newton.add(d_slopes, d_slopes, h, ops.constant("weights within", column[:, None]), each.expand(1))
            with ops.loop(stages - 1, backwards=True, closed=True) as stage:
                later: Callable[[View], View] = lambda view: stage.now(view.slice(1, 1, stages), 1)  # noqa: E731
                pullback = self._pullback(ops, lambda view: later(step.now(view, 1)))
                newton.pull(later(own), d_seen, later(d_slopes), h, inverse, pullback)
                row = stage.now(rows.slice(0, 1, stages), 0)
                newton.add(d_slopes, d_slopes, h, row, d_seen.slice(-1, 0, n).expand(1))
                ops.map(d_all, lambda total, d: total + d, d_all, d_seen)
            ops.copy(own.index(1, 0), d_slopes.index(1, 0))
            ops.copy(d_slopes.index(1, 1), d_slopes.index(1, 0))  # a pullback may overwrite it
            pullback = self._pullback(ops, lambda view: step.now(view, 1).index(1, 0))
            pullback(d_slopes.index(1, 1), d_seen)
            ops.map(d_all, lambda total, d: total + d, d_all, d_seen)
            self._add_up(d_state, d_begin, [d_all], at, step)
            if self.inputs.given:
                given = d_all.slice(-1, n, n + self.inputs.given)
                ops.map(d_given, lambda total, d: total + d, d_given, given)
        self._gradients(at, sums, d_values)

    def _pullback(self, ops: Recorder, entry: Callable[[View], View]) -> Callable[[View, View], None]:
        """A function that records the pullback of the right-hand side in a stage, without gradients of parameters."""
        kept = Copies(ops, entry)
        unread = lambda name, view: ops.scratch(f"{name}, unread", view.sample_shape, batched=False)  # noqa: E731
        evaluated = self.rhs.at_a_step(kept.array, unread, {})
        kept.fetch()
        return partial(evaluated.pullback, ops, entry(self.s.x), entry(self.s.k))

    def _gradients(self, at: Around, sums: GradientSums, d_values: View) -> None:
        """Record the gradients of parameters of all evaluations of a segment."""
        ops = self.ops
        with ops.loop(self._evaluations, backwards=True) as each:
            kept = Copies(ops, partial(self._flat, each))
            evaluated = self.rhs.at_a_step(kept.array, partial(sums.of_step, at, each), {})
            kept.fetch()
            x, k, d_value = (self._flat(each, view) for view in (self.s.x, self.s.k, d_values))
            evaluated.pullback(ops, x, k, d_value, ops.scratch("d_x, unread", (self.inputs.width,)))
