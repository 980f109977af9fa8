"""The strategy of an `ODE` with doses: steps of another strategy, over the intervals between the merged times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from chains.expr import where
from chains.layers.base import Declaration, SampleShape
from chains.layers.ode.course import ControlledCourse, Course, EqualCourse, Within, WithinInputs
from chains.layers.ode.doses import Doses
from chains.layers.ode.events import Watch
from chains.layers.ode.implicit import ImplicitSolution
from chains.layers.ode.interpolation import Interpolation
from chains.layers.ode.right_side import Inputs
from chains.layers.ode.settings import Settings
from chains.layers.ode.solution import Solution
from chains.layers.ode.strategy import (
    AtTimes,
    ControlledSteps,
    EqualSteps,
    Setup,
    Strategy,
    failed_of,
    repeat_last,
    within_lengths,
)
from chains.layers.recurrent import mask_of
from chains.program.recorder import Recorder
from chains.program.view import View


class _BetweenSteps(AtTimes):
    """Steps over the intervals between merged times. `doses` are those of the equation."""

    def __init__(self, ode: Settings, doses: Doses) -> None:
        super().__init__(ode)
        self.doses = doses

    def width(self, n: int) -> int:
        return n + self.ode.given + 3 + self.doses.rates

    def inputs(self, ops: Recorder, x: View, first: View | float) -> Inputs:
        n = x.sample_shape[0] - self.ode.given
        return WithinInputs(ops, x, n, self.ode.given, False, None, features=3 + self.doses.rates)


class _EqualBetween(_BetweenSteps, EqualSteps):
    def solution(self, ops: Recorder, x: View, s: Any, mask: View | None, times: View | None) -> Solution:
        course = EqualCourse(self.grid, ops, s.intervals, s.rows, self.doses.states, self.doses.rates)
        return replace(super().solution(ops, x, s, mask, times), course=course)

    def solve(self, setup: Setup, y: View, *, states: View | None = None, watch: Watch | None = None) -> None:
        assert isinstance(setup.solution.course, EqualCourse)
        setup.solution.course.fill()
        super().solve(setup, y, states=states)


class _ControlledBetween(_BetweenSteps, ControlledSteps):
    def solution(self, ops: Recorder, x: View, s: Any, mask: View | None, times: View | None) -> Solution:
        ode, kind = self.ode, ImplicitSolution if self.ode.implicit else Solution
        course = ControlledCourse(s.begins, ops, s.intervals, s.rows, self.doses.states, self.doses.rates)
        inputs = self.inputs(ops, x, 0.0)
        way = Interpolation(ops, ode.tableau, s.places) if ode.interpolates else None
        return kind(
            ops, ode.tableau, self.grid, s.children[0], inputs, s, course.clock, s.lengths, course=course, interpolation=way
        )  # fmt: skip

    def stops(self, setup: Setup) -> View:
        return self.clock(setup)


class BetweenDoses(Strategy):
    """The solution with doses. The output are the states at the times, before the doses there.

    Parameters
    ----------
    ode, doses : Settings, Doses
        The equation and its doses.
    """

    def __init__(self, ode: Settings, doses: Doses) -> None:
        super().__init__(ode)
        self.doses = doses
        self.times = ode.times if isinstance(ode.times, int) else len(ode.times)
        self.interpolates, merged = ode.interpolates, Settings()
        self.ends = 2 if self.interpolates else self.times  # the times among which doses are merged
        numbers = tuple(map(float, range(self.ends + doses.events)))
        vars(merged).update(vars(ode), times=numbers, time=False, doses=None, interpolate=self.interpolates)
        self.steps = _EqualBetween(merged, doses) if ode.rtol is None else _ControlledBetween(merged, doses)

    @property
    def may_fail(self) -> bool:
        return self.steps.may_fail

    def declare_rhs(self, d: Declaration, n: int) -> SampleShape:
        ode, doses = self.ode, self.doses
        if max(doses.states) >= n:
            raise ValueError(f"`doses` (={doses!r}) go into number {max(doses.states)} of the state, which has {n}")
        infused = doses.states if doses.rates else ()
        d.child("", Within(ode.rhs, n, ode.given, ode.time, infused), (self.steps.width(n),))
        return d.children[-1].children[0].output_shape

    def declare(self, d: Declaration, n: int) -> None:
        self.steps.declare_steps(d, n)
        grid, doses, dosing = self.steps.grid, self.doses, (self.doses.width + self.ends,)
        d.saved("dosing", dosing)
        d.saved("intervals", d.child("doses", doses, dosing))
        d.saved("rows", (grid.total, Course.width(len(doses.states), doses.rates)))
        if self.interpolates:
            d.saved("times", (self.times,))
            d.saved("places", (self.times,))
        else:
            d.saved("solved", (grid.intervals + 1, n))
        d.output_times = self.times
        d.output((self.times, n))

    @contextmanager
    def _setup(self, ops: Recorder, x: View, s: Any) -> Iterator[tuple[Setup, View | None]]:
        """The beginning of a recording, and 1 at the times that a sample has, if the caller gives lengths."""
        mask, own = mask_of(ops, ops.output_lengths, self.times), x.sample_shape[0] - self.ode.own_features
        with self.steps.setup(ops, x.slice(-1, 0, own), s, masked=False) as setup:
            yield setup, mask

    def forward(self, ops: Recorder, x: View, y: View, s: Any) -> None:
        with self._setup(ops, x, s) as (setup, mask):
            self._record_intervals(setup, x, mask)
            self._solve(setup, y)
        if mask is not None:
            ops.map(y, within_lengths, mask, y)

    def _solve(self, setup: Setup, y: View, states: View | None = None) -> None:
        """Record the states at the times; with `states`, also those of all steps."""
        if self.interpolates:
            self.steps.solve(setup, y, states=states)
        else:
            self.steps.solve(setup, setup.s.solved, states=states)
            self._pick(setup, y)

    def _record_intervals(self, setup: Setup, x: View, mask: View | None) -> None:
        """Record the merged times and what happens between them."""
        ops, s, own, width = setup.ops, setup.s, x.sample_shape[0] - self.ode.own_features, self.doses.width
        if isinstance(self.ode.times, tuple):
            times = ops.constant("times", np.array(self.ode.times))
        else:
            times = x.slice(-1, own + width, x.sample_shape[0])
        ops.copy(s.dosing.slice(-1, 0, width), x.slice(-1, own, own + width))
        times = times if mask is None else repeat_last(ops, times, mask)
        if self.interpolates:
            ops.copy(s.times, times)
            for k, own in enumerate((0, self.times - 1)):
                ops.copy(s.dosing.slice(-1, width + k, width + k + 1), s.times.slice(-1, own, own + 1))
        else:
            ops.copy(s.dosing.slice(-1, width, width + self.times), times)
        s.children[1].forward(ops, s.dosing, s.intervals)
        if self.interpolates:
            assert isinstance(setup.solution.course, ControlledCourse)
            setup.solution.course.places(s.places, s.times)

    def _pick(self, setup: Setup, y: View) -> None:
        """Record the states at the times of the output, from those at the merged times."""
        ops, s, (total, n) = setup.ops, setup.s, setup.s.solved.sample_shape
        picked = ops.scratch("picked", (self.times, total, n))
        places, first = self._places(s).swap(1, 2), s.intervals.slice(1, 0, 1).slice(2, 0, 1)
        ops.map(
            picked, lambda here, y, t: where(here > 0.0, y, 0.0) + (t - t),  # NaN for doses and times that do not fit
            places.expand(-1), s.solved.expand(1), first.expand(-1),
        )  # fmt: skip
        ops.sum(y.expand(2), picked)

    def _places(self, s: Any) -> View:
        """1 where one of the merged times, (batch, merged times, times), is one of the output's."""
        width = s.intervals.sample_shape[1]
        return s.intervals.slice(2, width - self.times, width)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, s: Any) -> None:
        own = x.sample_shape[0] - self.ode.own_features
        d_intervals, d_dosing = (
            ops.scratch(f"d_{name}", view.sample_shape) for name, view in (("intervals", s.intervals), ("dosing", s.dosing))
        )  # fmt: skip
        with self._setup(ops, x, s) as (setup, mask):
            if mask is not None:
                ops.map(dy, within_lengths, mask, dy)
            failed = failed_of(ops, y) if self.may_fail else None
            assert setup.solution.course is not None
            setup.solution.course.d_intervals = d_intervals
            d_times = self._pull_steps(setup, y, dy, dx.slice(-1, 0, own), failed)
            s.children[1].pullback(ops, s.dosing, s.intervals, d_intervals, d_dosing)
        if self.interpolates:
            ops.copy(dx.slice(-1, own, own + self.doses.width), d_dosing.slice(-1, 0, self.doses.width))
            if self.ode.own_times:
                self._add_ends(ops, dx.slice(-1, own + self.doses.width, dx.sample_shape[0]), d_times, d_dosing, mask)
        else:
            ops.copy(dx.slice(-1, own, dx.sample_shape[0]), d_dosing.slice(-1, 0, dx.sample_shape[0] - own))
        if mask is not None and self.ode.own_times:
            d_times = dx.slice(-1, dx.sample_shape[0] - self.times, dx.sample_shape[0])
            ops.map(d_times, within_lengths, mask.index(2, 0), d_times)

    def _pull_steps(self, setup: Setup, y: View, dy: View, dx: View, failed: View | None) -> View:
        """Record the pullback of the steps. Returns the cotangents of the times, if states there are interpolated."""
        ops, s, solution, d_times = setup.ops, setup.s, setup.solution, setup.ops.scratch("d_times", (self.times,))
        if solution.interpolation is None:
            d_solved = ops.scratch("d_solved", s.solved.sample_shape)
            ops.matmul(d_solved, self._places(s), dy)
            solution.pullback(s.solved, d_solved, dx, failed)
            return d_times
        d_places = ops.scratch("d_places", (self.times,))
        ops.fill(d_places, 0.0)
        replace(solution, interpolation=replace(solution.interpolation, d_times=d_places)).pullback(y, dy, dx, failed)
        assert isinstance(solution.course, ControlledCourse)
        solution.course.pull_places(d_times, d_places, s.times)
        return d_times

    def _add_ends(self, ops: Recorder, out: View, d_times: View, d_dosing: View, mask: View | None) -> None:
        """Record the cotangents of own times: those of the first and the last one also have those of the intervals' ends."""
        first, last = np.zeros((2, self.times))
        first[0] = last[-1] = 1.0
        at_last = ops.constant("last time", last)
        if mask is not None:
            has, after = mask.index(2, 0), ops.scratch("times after", (self.times,))
            ops.fill(after, 0.0)
            ops.copy(after.slice(-1, 0, self.times - 1), has.slice(-1, 1, self.times))
            at_last = ops.scratch("last time", (self.times,))
            ops.map(at_last, lambda has, after: has - after, has, after)
        begin, end = (d_dosing.slice(-1, self.doses.width + k, self.doses.width + k + 1) for k in (0, 1))
        ops.map(
            out, lambda d, first, begin, last, end: d + first * begin + last * end,
            d_times, ops.constant("first time", first), begin, at_last, end,
        )  # fmt: skip

    def trace(self, ops: Recorder, x: View, y: View, s: Any) -> None:
        """Record a row for each step, as an `ODE`'s trace has them."""
        total, n, controlled = self.steps.grid.total, y.sample_shape[-1] - 3, self.ode.rtol is not None
        with self._setup(ops, x, s) as (setup, mask):
            self._record_intervals(setup, x, mask)
            self._solve(setup, ops.scratch("y", (self.times, n)), states=y.slice(-1, 3, 3 + n))
        begins, lengths, tried = (y.slice(1, 0, total).slice(-1, k, k + 1) for k in range(3))
        share, first, whole = (s.rows.slice(2, k, k + 1) for k in range(3))
        ops.fill(y.index(1, total).slice(-1, 0, 3), 0.0)
        if controlled:
            self._real_times(setup, begins, s.begins)
            self._real_times(setup, y.index(1, total).slice(-1, 0, 1).expand(1), s.ends.slice(1, total - 1, total))
            for out, length in ((lengths, s.lengths), (tried, s.tried)):
                ops.map(out, lambda length, whole: length * whole, length, whole)
        else:
            ops.map(begins, lambda share, t, h: t + share * h, share, first, whole)
            own = ops.constant("lengths of parts", self.steps.grid.equal()[1][:, None])
            ops.map((lengths, tried), lambda length, whole: (length * whole, length * whole), own, whole)

    def _real_times(self, setup: Setup, out: View, times: View) -> None:
        """Record the times since the first one, (batch, steps, 1), for those that count intervals."""
        ops, table = setup.ops, setup.s.intervals
        count, steps = table.sample_shape[0], times.sample_shape[0]
        each, numbers = ops.scratch("times in intervals", (steps, count)), ops.constant("clock", np.arange(float(count)))
        begins, lengths = (table.index(2, k) for k in range(2))
        ops.map(
            each, lambda t, k, begin, h, first: where((k <= t) & (t < k + 1.0), begin - first + (t - k) * h, 0.0),
            times, numbers, begins.expand(1), lengths.expand(1), begins.slice(1, 0, 1).expand(1),
        )  # fmt: skip
        ops.sum(out, each)
