"""Step control: the lengths of steps that keep the estimated error of each within tolerances, for each sample separately.

The search is a loop of a fixed number of attempts. An attempt that is refused, or after the last time, does not change the
sample, like a step of length 0. So a plain loop can repeat the recorded steps, and attempts that no sample needs can be left
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Any, NamedTuple

import numpy as np

from chains.expr import exp, log, maximum, minimum, sqrt, where
from chains.layers.node import Node
from chains.layers.ode.course import ControlledCourse
from chains.layers.ode.events import Watch
from chains.layers.ode.grid import Grid, part
from chains.layers.ode.interpolation import Interpolation, Span
from chains.layers.ode.methods import Row, Tableau, move
from chains.layers.ode.right_side import Inputs, at_once
from chains.program.loop import Steps
from chains.program.recorder import Recorder
from chains.program.view import View

SAFETY, MIN_FACTOR, MAX_FACTOR = 0.9, 0.2, 10.0  # by which the length of a step changes


@dataclass(frozen=True)
class Attempts:
    """The record of each attempt, views (batch, attempts, 1): the time before, the length tried, the length, the time after.

    The length is 0 for refused steps, and after the last time. `checkpoints`, (batch, segments, n), are the states before the
    first attempt of each segment.
    """

    begins: View
    tried: View
    lengths: View
    ends: View
    checkpoints: View

    def __iter__(self) -> Iterator[View]:
        """The views of all attempts, in order."""
        return iter((self.begins, self.tried, self.lengths, self.ends))


class Step(NamedTuple):
    """A step that is tried: the state after it, the mean square of the estimated error over the tolerated one, and the pieces
    of the method's interpolant.
    """

    new: View
    error: View
    pieces: Sequence[View]


@dataclass(frozen=True)
class StepControl:
    """The search for the steps of a method with an error estimate; `record` records it.

    Parameters
    ----------
    ops, tableau, rhs
        The recorder, the method and the right-hand side.
    rtol, atol : float, or float or tuple of float
        The tolerated error of a number y of the state is ``atol + rtol * abs(y)``. The mean square over the state counts.
    times : View, shape (times,) or (batch, times)
        The times of the output, counted from the first one.
    inputs : Inputs
        The inputs of the right-hand side, for times since the first one.
    stops : View, shape (stops,) or (batch, stops), optional
        The times at which steps end, besides the last one.
    interpolation : Interpolation, optional
        Finds the states at the times. Without it, the times are among the stops.
    course : ControlledCourse, optional
        The doses and intervals of all attempts. Then the times are the numbers of the merged times.

    Source: Hairer, Nørsett and Wanner, "Solving ordinary differential equations I", 1993, II.4, also for the first step.
    """

    ops: Recorder
    tableau: Tableau
    rhs: Node
    rtol: float
    atol: float | Row
    times: View
    inputs: Inputs
    stops: View | None
    interpolation: Interpolation | None = None
    course: ControlledCourse | None = None

    def record(
        self, y: View, grid: Grid, attempts: Attempts, states: View | None = None, watch: Watch | None = None
    ) -> None:  # fmt: skip
        """Record how `attempts` and the states at the times are filled; states that are not reached are NaN.

        With `states`, also those before and after all attempts, (batch, attempts + 1, n). Without them, attempts that no sample
        needs may be left out. With a `watch`, these are also the attempts after the event.
        """
        ops, n, start = self.ops, self.inputs.n, self.inputs.x.slice(-1, 0, self.inputs.n)
        t, h, last, left = (ops.scratch(name, (1,)) for name in ("t", "h", "last time", "left"))
        state, found = ops.scratch("state", (n,)), ops.scratch("found", y.sample_shape)
        slopes = [ops.scratch(f"slope {i}", (n,)) for i in range(self._slopes)]
        seen, rhs = ops.scratch("seen", (self.inputs.width,)), at_once(ops, self.rhs)
        ops.copy(state, start)
        ops.copy(t, self.times.slice(-1, 0, 1))
        if self.course is not None:
            self.course.last(last)
        elif self.times.batched:
            ops.max(last, self.times)
        else:
            ops.copy(last, self.times.slice(-1, y.sample_shape[0] - 1, y.sample_shape[0]))
        for view in (attempts.begins, attempts.ends):
            ops.copy(view, last.expand(1))
        for view in (attempts.lengths, attempts.tried):
            ops.fill(view, 0.0)
        self._keep(found, t, state)
        moment = self._begin(h, t, last, state, slopes[0], seen, rhs)
        ops.map(left, _left, last, t)
        skip = (lambda _: left) if states is None else None
        if states is not None:
            ops.copy(states.index(1, 0), state)
        with ops.loop(grid.cut.segments, closed=True, skip_where_zero=skip) as segment:
            ops.copy(segment.now(attempts.checkpoints, 1), state)
            parts = [segment.part(view, 1, grid.cut.length) for view in attempts]
            with ops.loop(grid.cut.length, skip_where_zero=skip) as at:
                begin, tries, taken, end = (at.now(view, 1) for view in parts)
                length = h if self.course is None else self._in_interval(h, t, last, state, moment, segment, at)
                if grid.cut.spare:
                    self._skip_spare(length, grid, segment, at)
                if watch is not None:
                    watch.before(state)
                tried, reached = self._next_length(length, t, last)
                new, error, pieces = self._step(rhs, seen, state, moment, tried, slopes)
                ops.copy(begin, t)
                ops.copy(tries, tried)
                with ops.held():
                    ops.map((taken, end, length), partial(_next_lengths, self.tableau.order), error, t, length, tried, reached)
                ops.copy(t, end)
                if self.interpolation is not None:
                    self.interpolation.record(found, Span(begin, end, tried, taken), state, new, pieces)
                for view, after in ((state, new), (slopes[0], slopes[-1])):
                    ops.map(view, lambda taken, new, old: where(taken > 0.0, new, old), taken, after, view)
                if states is not None:
                    after = segment.part(states.slice(1, 1, grid.total + 1), 1, grid.cut.length)
                    ops.copy(at.now(after, 1), state)
                if self.interpolation is None:
                    self._keep(found, t, state, taken)
                if self.course is not None:
                    whole = self.course.length(moment)
                    with ops.held():
                        ops.map(h, lambda h, part, whole: where(whole > 0.0, part * whole, h), h, length, whole)
                    self.course.enter(moment, t, taken)
                if watch is not None:
                    watch.after((segment,), at, begin, taken, state)
                    ops.map(t, lambda t, over, last: where(over > 0.0, last, t), t, watch.over, last)
                ops.map(left, _left, last, t)
        ops.copy(y, found)

    def _begin(self, h: View, t: View, last: View, state: View, slope: View, seen: View, rhs: Node) -> View:
        """Record the first length, and the slope at the beginning. Returns what the inputs are recorded for: the time, or the
        row of the course.

        With a course, lengths are those in time, not parts of an interval.
        """
        ops, moment, span = self.ops, t, last
        if self.course is not None:
            moment, begin, t = ops.scratch("row", self.course.rows.sample_shape[1:]), state, ops.scratch("no time", (1,))
            state = ops.scratch("state after the first doses", begin.sample_shape)
            ops.copy(state, begin)
            ops.fill(t, 0.0)
            self.course.fill()
            span = self.course.first_row(moment, state)
        ops.copy(seen.slice(-1, 0, self.inputs.n), state)
        self.inputs.record(seen, moment)
        rhs.forward(ops, seen, slope)
        with ops.held():
            self._first_length(h, t, span, state, slope, seen, rhs, moment)
        if self.course is not None:
            self.course.enter(moment, t)
        return moment

    def _in_interval(self, h: View, t: View, last: View, state: View, row: View, segment: Steps, at: Steps) -> View:
        """Record the doses before an attempt, and its row. Returns its length as a part of the interval."""
        assert self.course is not None
        course, length = self.course, self.ops.scratch("part of the interval", (1,))
        course.add_doses(state, row)
        self.ops.copy(at.now(part(course.rows, (segment,)), 1), row)
        as_part = lambda h, t, last, whole: where(t < last, where(whole > 0.0, h / where(whole > 0.0, whole, 1.0), 2.0), 0.0)  # noqa: E731
        with self.ops.held():
            self.ops.map(length, as_part, h, t, last, course.length(row))
        return length

    def _step(self, rhs: Node, seen: View, state: View, t: View, h: View, slopes: Sequence[View]) -> Step:
        """Record a step."""
        new = seen.slice(-1, 0, self.inputs.n)
        if self.course is not None:  # a dose has changed the slope
            self.ops.copy(new, state)
            self.inputs.record(seen, t)
            rhs.forward(self.ops, seen, slopes[0])
        for i, k in enumerate(slopes[1:], 1):
            c, rows = self._stage(i)
            move(self.ops, self.tableau, new, state, h, rows, slopes)
            self.inputs.record(seen, t, h, c)
            rhs.forward(self.ops, seen, k)
        return Step(new, self._error(state, new, h, slopes), slopes)

    def _skip_spare(self, h: View, grid: Grid, segment: Steps, at: Steps) -> None:
        """Record that the spare attempts at the end have the length 0."""
        real = self.ops.constant("attempts", (np.arange(grid.total) < grid.needed).astype(np.float64)[:, None])
        own = at.now(segment.part(real, 0, grid.cut.length), 0)
        self.ops.map(h, lambda h, real: where(real > 0.0, h, 0.0), h, own)

    @property
    def _slopes(self) -> int:
        """The number of slopes of a step; the last one is the first of the next step."""
        return len(self.tableau.error)

    def _stage(self, i: int) -> tuple[float, list[Row]]:
        """The time of a stage, and its weights for each half of the state; after the last stage, those of the step's end."""
        if i < self.tableau.stages:
            return self.tableau.c[i], [a[i] for a, _ in self.tableau.halves]
        return 1.0, [b for _, b in self.tableau.halves]

    def _keep(self, found: View, t: View, state: View, taken: View | None = None) -> None:
        """Record the state in the places of the times that it has reached; the others are NaN at first."""
        operands = [self.times.expand(-1), t.expand(-1), state.expand(1)]
        if taken is None:
            self.ops.map(found, lambda time, t, y: where(time == t, y, nan), *operands)
        else:
            choose = lambda time, t, y, taken, old: where((time == t) & (taken > 0.0), y, old)  # noqa: E731
            self.ops.map(found, choose, *operands, taken.expand(-1), found)

    def _scale(self) -> tuple[Callable[..., Any], list[View]]:
        """The tolerated error as a formula of numbers of the state, and its operands."""
        rtol = self.rtol
        if isinstance(self.atol, tuple):
            each = self.ops.constant("atol", np.array(self.atol))
            return lambda y, atol: atol + rtol * y, [each]
        atol = self.atol
        return lambda y: atol + rtol * y, []

    def mean_square(self, name: str, value: Callable[..., Any], *views: View) -> View:
        """Record the mean over the state of the squares of a formula over the tolerated error.

        The formula gets the views. It returns the number to square, and the number of the state that sets the tolerance.
        """
        ops, (scale, more) = self.ops, self._scale()
        n = max(view.sample_shape[-1] for view in views)
        squares, mean = ops.scratch(f"{name} of each", (n,)), ops.scratch(name, (1,))

        def square(*values: Any) -> Any:
            own = values[: len(views)]
            number, y = value(*own)
            relative = number / scale(y, *values[len(views) :])
            return relative * relative * (1.0 / n)

        with ops.held():
            ops.map(squares, square, *views, *more)
            ops.sum(mean, squares)
        return mean

    def _first_length(
        self, h: View, t: View, last: View, state: View, slope: View, seen: View, rhs: Node, moment: View
    ) -> None:  # fmt: skip
        """Record a first length for which an explicit Euler step changes the state and its slope by little."""
        ops, n = self.ops, state.sample_shape[-1]
        size = self.mean_square("size", lambda y: (y, abs(y)), state)
        change = self.mean_square("change", lambda y, k: (k, abs(y)), state, slope)
        short, other = ops.scratch("short", (1,)), ops.scratch("other", (n,))
        ops.map(short, _short, size, change, t, last)
        ops.map(seen.slice(-1, 0, n), lambda y, h, k: y + h * k, state, short, slope)
        self.inputs.record(seen, moment, short, 1.0)
        rhs.forward(ops, seen, other)
        bend = self.mean_square("bend", lambda y, a, b: (a - b, abs(y)), state, other, slope)
        order = self.tableau.order
        ops.map(h, lambda *values: _first(order, *values), short, change, bend, t, last)

    def _next_length(self, h: View, t: View, last: View) -> tuple[View, View]:
        """Record the length to try, and the time after it: at most the next of the stops."""
        ops = self.ops
        behind, tried, reached = (ops.scratch(name, (1,)) for name in ("minus next", "tried", "reached"))
        if self.stops is None:
            ops.map(behind, lambda last: -last, last)
        else:
            ahead = ops.scratch("ahead", self.stops.sample_shape)
            ops.map(ahead, lambda time, t, last: where((time > t) & (time < last), -time, -last), self.stops, t, last)
            ops.max(behind, ahead)
        ops.map((tried, reached), _tried, h, t, behind)
        return tried, reached

    def _error(self, y: View, new: View, h: View, slopes: Sequence[View]) -> View:
        """Record the mean square of the estimated error over the tolerated one."""
        weights = self.tableau.error

        def relative(y: Any, new: Any, h: Any, *slopes: Any) -> Any:
            return h * sum(w * k for w, k in zip(weights, slopes, strict=True)), maximum(abs(y), abs(new))

        return self.mean_square("error", relative, y, new, h, *slopes)


def _left(last: Any, t: Any) -> Any:
    """1 before the last time, 0 after it."""
    return where(last > t, 1.0, 0.0)


def _short(size: Any, change: Any, t: Any, last: Any) -> Any:
    """A length over which the state changes by a hundredth."""
    unknown = (size < 1e-10) | (change < 1e-10)
    return minimum(where(unknown, 1e-6, 0.01 * sqrt(size / where(unknown, 1.0, change))), last - t)


def _first(order: int, short: Any, change: Any, bend: Any, t: Any, last: Any) -> Any:
    """The first length, from the mean squares of the slope and of its change over a short step."""
    largest = maximum(change, bend / (short * short))
    still = largest <= 1e-30
    long = where(still, maximum(1e-6, 1e-3 * short), exp(log(1e-4 / where(still, 1.0, largest)) * (0.5 / order)))
    return where(last > t, minimum(minimum(100.0 * short, long), last - t), 0.0)


def _tried(h: Any, t: Any, behind: Any) -> tuple[Any, Any]:
    """The length to try, and the time after it. Two halves of the rest are better than a long and a tiny step.

    The length is the difference of the two rounded times.
    """
    following = -behind
    left = following - t
    whole = 1.01 * h >= left
    reached = where(whole, following, t + where(2.0 * h > left, 0.5 * left, h))
    return reached - t, reached


def _next_lengths(order: int, error: Any, t: Any, h: Any, tried: Any, reached: Any) -> tuple[Any, Any, Any]:
    """The length of the step, 0 if it is refused; the time after it; and the next length."""
    accepted = error <= 1.0
    factor = SAFETY * exp(log(maximum(error, 1e-20)) * (-0.5 / order))
    factor = where(error < 1e20, minimum(maximum(factor, MIN_FACTOR), MAX_FACTOR), MIN_FACTOR)
    cut = tried < 0.999 * h  # more than rounding: a step that was cut at a time says little about the next one
    grown = where(cut, maximum(h, factor * tried), factor * tried)
    return where(accepted, tried, 0.0), where(accepted, reached, t), where(accepted, grown, factor * tried)
