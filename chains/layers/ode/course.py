"""The solution between doses: over each interval between merged times, time runs from one whole number to the next.

So all trajectories share the times 0, 1, 2, ... of the solver. The right-hand side is that of the interval: its length times
the rate of change. All derivatives by times of doses and observations come from the pullback of that right-hand side, also for
intervals of length 0. Amounts are added where an interval begins, after its state is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.expr import minimum, where
from chains.layers.base import Declaration, Layer
from chains.layers.ode.grid import Around, Grid, part
from chains.layers.ode.methods import Length, Tableau
from chains.layers.ode.right_side import Inputs
from chains.program.loop import Steps
from chains.program.recorder import Recorder
from chains.program.view import View


class Within(Layer):
    """The right-hand side within an interval. Its input is the state, the given features, the part of the interval that is
    over, the time at its beginning, its length, and the rates of infusions.

    Parameters
    ----------
    rhs : Layer
        The right-hand side.
    n, given : int
        The length of the state, and the number of features after it.
    time : bool
        Whether `rhs` takes the time.
    states : tuple of int
        The numbers of the state with infusions.
    """

    def __init__(self, rhs: Layer, n: int, given: int, time: bool, states: tuple[int, ...]) -> None:
        self.rhs, self.n, self.given, self.time, self.states = rhs, n, given, time, states

    def declare(self, d: Declaration) -> None:
        width = self.n + self.given + self.time
        d.saved("seen", (width,))
        d.saved("value", d.child("", self.rhs, (width,)))
        d.output((self.n,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        width, (share, begin, length) = self.n + self.given, self._interval(x)
        ops.copy(s.seen.slice(-1, 0, width), x.slice(-1, 0, width))
        if self.time:
            ops.map(s.seen.slice(-1, width, width + 1), lambda share, t, h: t + share * h, share, begin, length)
        s.children[0].forward(ops, s.seen, s.value)
        ops.map(y, lambda h, k: h * k, length, s.value)
        for i, rate in self._rates(x):
            ops.map(_entry(y, i), lambda y, h, rate: y + h * rate, _entry(y, i), length, rate)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        width, (share, _, length) = self.n + self.given, self._interval(x)
        d_value, d_seen, terms, along = (
            ops.scratch(name, shape) for name, shape in
            (("d_value", s.value.sample_shape), ("d_seen", s.seen.sample_shape), ("terms", dy.sample_shape), ("along", (1,)))
        )  # fmt: skip
        d_share, d_begin, d_length = self._interval(dx)
        ops.map((d_value, terms), lambda h, dy, k: (h * dy, dy * k), length, dy, s.value)
        for (i, rate), (_, d_rate) in zip(self._rates(x), self._rates(dx), strict=True):
            ops.map(_entry(terms, i), lambda total, d, rate: total + d * rate, _entry(terms, i), _entry(dy, i), rate)
            ops.map(d_rate, lambda h, d: h * d, length, _entry(dy, i))
        ops.sum(along, terms)
        s.children[0].pullback(ops, s.seen, s.value, d_value, d_seen)
        ops.copy(dx.slice(-1, 0, width), d_seen.slice(-1, 0, width))
        if self.time:
            d_time = d_seen.slice(-1, width, width + 1)
            ops.map(d_length, lambda along, share, d: along + share * d, along, share, d_time)
            ops.map(d_share, lambda h, d: h * d, length, d_time)
            ops.copy(d_begin, d_time)
        else:
            ops.copy(d_length, along)
            ops.fill(d_share, 0.0)
            ops.fill(d_begin, 0.0)

    def _interval(self, x: View) -> list[View]:
        """The part that is over, the time at the beginning, and the length."""
        return [_entry(x, self.n + self.given + k) for k in range(3)]

    def _rates(self, x: View) -> list[tuple[int, View]]:
        """The rates, with the numbers of the state that they are for."""
        return [(i, _entry(x, self.n + self.given + 3 + k)) for k, i in enumerate(self.states)]


def _entry(view: View, k: int) -> View:
    return view.slice(-1, k, k + 1)


@dataclass(frozen=True)
class WithinInputs(Inputs):
    """The features after the state in the input of `Within`: the given ones, then those of an interval."""

    features: int = 3

    @property
    def known(self) -> int:
        return self.features

    def at_stages(self, grid: Grid, tableau: Tableau) -> View | None:
        return None

    def record(self, seen: View, t: View | None = None, h: Length = 0.0, c: float = 0.0) -> None:
        """Record the features, for the row `t` of a course and a stage c * h after the beginning of the step."""
        ops, end = self.ops, self.n + self.given
        assert t is not None
        if self.given:
            ops.copy(seen.slice(-1, self.n, end), self.x.slice(-1, self.n, end))
        ops.copy(seen.slice(-1, end, self.width), t.slice(-1, 0, self.features))
        share = _entry(seen, end)
        if c and isinstance(h, View):
            ops.map(share, lambda share, h: share + c * h, share, h)
        elif c:
            ops.map(share, lambda share: share + c * h, share)


@dataclass
class Course:
    """The doses and intervals of all steps of a solution.

    The row of a step has the part of the interval that is over, its first time, its length, the rates in it, whether the step
    is the first one in it, and the amounts to add if it is.

    Parameters
    ----------
    ops : Recorder
        The recorder.
    intervals : View, shape (batch, merged times, numbers)
        The output of `Doses`.
    rows : View, shape (batch, steps, width)
        The rows of all steps.
    states : tuple of int
        The numbers of the state that amounts are added to.
    rates : int
        The number of rates.
    d_intervals : View, optional
        For the pullback, the cotangent of `intervals`.
    """

    ops: Recorder
    intervals: View
    rows: View
    states: tuple[int, ...]
    rates: int
    d_intervals: View | None = None

    @staticmethod
    def width(states: int, rates: int) -> int:
        """The length of a row."""
        return 3 + rates + 1 + states

    @property
    def features(self) -> int:
        """The numbers of a row that the right-hand side takes."""
        return 3 + self.rates

    @property
    def numbers(self) -> int:
        """The numbers of `intervals` that make a row: time, length, rates and amounts."""
        return 2 + self.rates + len(self.states)

    def add_doses(self, state: View, row: View) -> None:
        """Record that the amounts of a row are added to the state."""
        for k, i in enumerate(self.states):
            amount = _entry(row, self.features + 1 + k)
            self.ops.map(_entry(state, i), lambda y, amount: y + amount, _entry(state, i), amount)

    def row(self, at: Around, step: Steps) -> View:
        """The row of a step."""
        return step.now(part(self.rows, at), 1)

    def length(self, row: View) -> View:
        """The length of the interval of a row."""
        return _entry(row, 2)

    def starts(self) -> View:
        """1 for steps that are the first ones of intervals, (batch, steps, 1)."""
        return self.rows.slice(2, self.features, self.features + 1)

    def cotangent(self, at: Around, step: Steps, d_state: View, d_seen: Sequence[View]) -> View:
        """Record the cotangent of a step's time, length, rates and amounts, from those of the state after its doses, and of the
        inputs of the right-hand side.
        """
        ops, d, known = self.ops, self.ops.scratch("d_interval", (self.numbers,)), self.numbers - len(self.states)
        views = [view.slice(-1, view.sample_shape[0] - known, view.sample_shape[0]) for view in d_seen]
        ops.map(d.slice(-1, 0, known), lambda *terms: sum(terms), *views)
        starts = _entry(self.row(at, step), self.features)
        for k, i in enumerate(self.states):
            ops.map(_entry(d, known + k), lambda starts, d: where(starts > 0.0, d, 0.0), starts, _entry(d_state, i))
        return d

    def begin_pullback(self) -> None:
        """Record what the pullback begins with."""

    def pull(self, at: Around, step: Steps, d_state: View, d_seen: Sequence[View]) -> None:
        """Record the part of a step in `d_intervals`."""
        raise NotImplementedError

    def end_pullback(self) -> None:
        """Record what the pullback ends with."""


class EqualCourse(Course):
    """The course of equal steps: an interval has as many steps as every other one."""

    def __init__(self, grid: Grid, *rest: Any) -> None:
        super().__init__(*rest)
        self.grid = grid

    def fill(self) -> None:
        """Record the rows."""
        ops, grid, spare, count = self.ops, self.grid, self.grid.cut.spare, self.grid.intervals
        rows, shares = self.rows, np.arange(grid.steps) / grid.steps
        if spare and not grid.within:
            before = rows.slice(1, 0, spare * grid.steps)
            ops.fill(before, 0.0)
            ops.copy(before.slice(2, 1, 2), self.intervals.slice(1, 0, 1).slice(2, 0, 1))
            rows = rows.slice(1, spare * grid.steps, grid.total)
        elif spare:
            shares = np.concatenate([np.zeros(spare), shares])
        own = rows.split(1, count)  # (batch, intervals, steps, width)
        first = np.zeros((len(shares), 1))
        first[0] = 1.0
        ops.copy(own.index(3, 0), ops.constant("shares", shares))
        known, whole = self.numbers - len(self.states), self.intervals.slice(1, 0, count).expand(2)
        ops.copy(own.slice(3, 1, 1 + known), whole.slice(3, 0, known))
        starts = ops.constant("first steps", first)
        ops.copy(own.slice(3, self.features, self.features + 1), starts)
        ops.map(
            own.slice(3, self.features + 1, self.features + 1 + len(self.states)),
            lambda first, amount: where(first > 0.0, amount, 0.0), starts, whole.slice(3, known, self.numbers),
        )  # fmt: skip

    def begin_pullback(self) -> None:
        self._d_rows = self.ops.scratch("d_rows of steps", (self.grid.total, self.numbers))

    def pull(self, at: Around, step: Steps, d_state: View, d_seen: Sequence[View]) -> None:
        self.ops.copy(step.now(part(self._d_rows, at), 1), self.cotangent(at, step, d_state, d_seen))

    def end_pullback(self) -> None:
        assert self.d_intervals is not None
        grid, rows, d = self.grid, self._d_rows, self.d_intervals
        self.ops.fill(d, 0.0)
        if not grid.within:
            rows = rows.slice(1, grid.cut.spare * grid.steps, grid.total)
        own = d.slice(1, 0, grid.intervals).slice(2, 0, self.numbers).expand(2)
        self.ops.sum(own, rows.split(1, grid.intervals))


class ControlledCourse(Course):
    """The course of step control: each attempt has a row."""

    def __init__(self, begins: View, *rest: Any) -> None:
        super().__init__(*rest)
        self.begins = begins

    @property
    def count(self) -> int:
        """The number of merged times."""
        return self.intervals.sample_shape[0]

    @property
    def clock(self) -> View:
        """The numbers of the merged times."""
        return self.ops.constant("clock", np.arange(self.count, dtype=np.float64))

    def fill(self) -> None:
        """Record the rows of attempts that are left out."""
        self.ops.fill(self.rows, 0.0)
        self.ops.copy(self.rows.slice(2, 1, 2), self.intervals.slice(1, 0, 1).slice(2, 0, 1))

    def last(self, out: View) -> None:
        """Record the number of the last time."""
        ops, count = self.ops, self.count
        times, before = self.intervals.index(2, 0), ops.scratch("before the last time", (count,))
        ops.map(before, lambda t, last: where(t < last, 1.0, 0.0), times, times.slice(-1, count - 1, count))
        ops.sum(out, before)

    def places(self, out: View, times: View) -> None:
        """Record the times of the output as steps count them: the number of an interval and the part of it that is over."""
        ops, each = self.ops, self.ops.scratch("places within intervals", (times.sample_shape[0], self.count - 1))
        ops.map(each, lambda k, *own: _place(k, *own)[0], *self._intervals_of(times))
        ops.sum(out.expand(-1), each)
        first = _entry(self.intervals.index(2, 0), 0)
        ops.map(out, lambda place, t: place + (t - t), out, first)  # NaN for doses and times that do not fit

    def pull_places(self, d_times: View, d: View, times: View) -> None:
        """Record the cotangents of the times of the output, from those of their places, `d`; add those of intervals."""
        assert self.d_intervals is not None
        ops, shape = self.ops, (times.sample_shape[0], self.count - 1)
        by_time, by_length = (ops.scratch(f"by {name} of places", shape) for name in ("begin", "length"))
        operands = self._intervals_of(times)
        ops.map(
            (by_time, by_length), lambda d, k, *own: tuple(d * each for each in _place(k, *own)[1:]), d.expand(-1), *operands
        )
        ops.sum(d_times.expand(-1), by_time)
        sums = [ops.scratch(f"sum by {name}", shape[1:]) for name in ("begin", "length")]
        for total, terms in zip(sums, (by_time, by_length), strict=True):
            ops.sum(total.expand(1), terms)
        begins, lengths = (self.d_intervals.index(2, k).slice(1, 0, self.count - 1) for k in (0, 1))
        ops.map(begins, lambda total, d: total - d, begins, sums[0])
        ops.map(lengths, lambda total, d: total + d, lengths, sums[1])

    def _intervals_of(self, times: View) -> list[View]:
        """What places are found from: the numbers, begins, ends and lengths of intervals, and the times."""
        count = self.count - 1
        begins, ends = (self.intervals.index(2, 0).slice(1, k, k + count).expand(1) for k in (0, 1))
        lengths = self.intervals.index(2, 1).slice(1, 0, count).expand(1)
        return [self.clock.slice(0, 0, count), begins, ends, lengths, times.expand(-1)]

    def enter(self, row: View, t: View, taken: View | None = None) -> None:
        """Record the row of the next attempt, at time t, after a step of length `taken`, which is 0 if it was refused."""
        ops, known, end = self.ops, self.numbers - len(self.states), self.features + 1
        here, found = ops.scratch("here", (self.count,)), ops.scratch("found interval", (self.numbers + 1,))
        ops.map(here, lambda k, t: where((k <= t) & (t < k + 1.0), 1.0, 0.0), self.clock, t)
        ops.matmul(found.slice(-1, 0, self.numbers).expand(1), here.expand(1), self.intervals.slice(2, 0, self.numbers))
        ops.matmul(_entry(found, self.numbers), here, self.clock.expand(-1))
        ops.copy(row.slice(-1, 1, 1 + known), found.slice(-1, 0, known))
        share, starts = _entry(row, 0), _entry(row, self.features)
        ops.map(share, lambda t, k: t - k, t, _entry(found, self.numbers))
        if taken is None:
            ops.fill(starts, 1.0)
        else:
            ops.map(starts, lambda share, taken: where((share == 0.0) & (taken > 0.0), 1.0, 0.0), share, taken)
        ops.map(
            row.slice(-1, end, end + len(self.states)), lambda starts, amount: where(starts > 0.0, amount, 0.0),
            starts, found.slice(-1, known, self.numbers),
        )  # fmt: skip

    def first_row(self, row: View, state: View) -> View:
        """Record a row of length 1 for the first interval that is not empty, and the state after the doses at its beginning.

        Returns the whole time from the first to the last.
        """
        ops, table, known = self.ops, self.intervals, self.numbers - len(self.states)
        times, count, span = table.index(2, 0), self.count, ops.scratch("span", (1,))
        at_first, here = (ops.scratch(name, (count,)) for name in ("at the first time", "first interval"))
        amounts = ops.scratch("first amounts", (len(self.states),))
        first = times.slice(-1, 0, 1)
        ops.map(
            (at_first, here), lambda t, first, h: (where(t == first, 1.0, 0.0), where((t == first) & (h > 0.0), 1.0, 0.0)),
            times, first, table.index(2, 1),
        )  # fmt: skip
        ops.matmul(amounts.expand(1), at_first.expand(1), table.slice(2, known, self.numbers))
        for k, i in enumerate(self.states):
            ops.map(_entry(state, i), lambda y, amount: y + amount, _entry(state, i), _entry(amounts, k))
        ops.fill(row, 0.0)
        ops.copy(_entry(row, 1), first)
        ops.fill(_entry(row, 2), 1.0)
        if self.rates:
            ops.matmul(row.slice(-1, 3, 3 + self.rates).expand(1), here.expand(1), table.slice(2, 2, 2 + self.rates))
        ops.map(span, lambda last, first: last - first, times.slice(-1, count - 1, count), first)
        return span

    def begin_pullback(self) -> None:
        assert self.d_intervals is not None
        self.ops.fill(self.d_intervals, 0.0)

    def pull(self, at: Around, step: Steps, d_state: View, d_seen: Sequence[View]) -> None:
        assert self.d_intervals is not None
        own, begin = self.d_intervals.slice(2, 0, self.numbers), step.now(part(self.begins, at), 1)
        self.ops.map(
            own, lambda d, k, t, term: d + where((k <= t) & (t < k + 1.0), term, 0.0), own, self.clock.expand(-1),
            begin.expand(1), self.cotangent(at, step, d_state, d_seen).expand(1),
        )  # fmt: skip


def _place(k: Any, begin: Any, end: Any, length: Any, time: Any) -> tuple[Any, Any, Any]:
    """The place of a time within an interval, 0 if it is in another one, and its derivatives by the time and the length."""
    within, whole = (begin < time) & (time <= end), where(length > 0.0, length, 1.0)
    share = minimum((time - begin) / whole, 1.0)
    return where(within, k + share, 0.0), where(within, 1.0 / whole, 0.0), where(within, -share / whole, 0.0)
