"""The steps of a differential equation, being recorded: forwards, and backwards for the pullback.

With several segments, the forward pass keeps the state at the beginning of each, and the pullback repeats the steps of a
segment from there. With step control, the search for the steps is the forward pass; with an event, that for its step is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from chains.expr import where
from chains.layers.node import Node
from chains.layers.ode.course import Course
from chains.layers.ode.events import Watch
from chains.layers.ode.grid import Around, Grid, part
from chains.layers.ode.interpolation import Interpolation, Span
from chains.layers.ode.methods import Length, Tableau, move, pull_slope
from chains.layers.ode.right_side import GradientSums, Inputs, Kept, at_once
from chains.program.loop import Steps
from chains.program.recorder import Recorder
from chains.program.view import View


class Until(NamedTuple):
    """The search for an event, and how long all steps would be without it."""

    watch: Watch
    lengths: View


@dataclass(frozen=True)
class Solution:
    """The steps of a method on a grid.

    Parameters
    ----------
    ops, tableau, grid, rhs, inputs
        The recorder, the method, the steps, the right-hand side, and its inputs.
    s : namespace of View
        The arrays kept: `x` and `k`, (batch, steps of a segment, stages, features), input and output of the right-hand side;
        `checkpoints`, (batch, segments, n), if there are several segments; `begins`, `lengths` and, with step control, `ends`,
        (batch, steps, 1), if samples have different steps.
    clock : View, optional
        With step control, the times since the first one.
    lengths : View, optional
        The lengths of the steps of each sample, (batch, steps, 1), if they differ.
    until : Until, optional
        For `forward`, the event to search for. Segments after it are left out.
    course : Course, optional
        The doses and intervals of all steps.
    interpolation : Interpolation, optional
        The states at times within steps.
    """

    ops: Recorder
    tableau: Tableau
    grid: Grid
    rhs: Node
    inputs: Inputs
    s: Any
    clock: View | None = None
    lengths: View | None = None
    until: Until | None = None
    course: Course | None = None
    interpolation: Interpolation | None = None

    @property
    def n(self) -> int:
        return self.inputs.n

    @property
    def times(self) -> View:
        """With step control, the times of the output, as steps count them."""
        found = self.clock if self.interpolation is None else self.interpolation.times
        assert found is not None
        return found

    # Forwards

    def forward(self, start: View, y: View, states: View | None = None) -> None:
        """Record the states at the times and the arrays kept; for grids of one segment also `states`, (batch, steps + 1, n)."""
        ops, grid, intervals = self.ops, self.grid, self.grid.intervals
        state = ops.scratch("state", (self.n,))
        ops.copy(state, start)
        spare = 0 if grid.within else grid.cut.spare
        at_times = y.slice(1, 0, intervals) if not spare else ops.scratch("y with spare", (spare + intervals, self.n))
        with self._segments() as at:
            for each in at:
                ops.copy(each.now(self.s.checkpoints, 1), state)
            befores = ops.scratch("states", (grid.cut.length, self.n))
            self._run(at, grid.cut.length, state, befores, keeps=not at)
            if not grid.within:
                found = part(at_times, at)
                ops.copy(found, befores.split(1, int(found.shape[1])).index(2, 0))  # type: ignore[arg-type]
        if grid.within:
            ops.copy(y.slice(1, 0, intervals), self.s.checkpoints.split(1, intervals).index(2, 0))
        elif spare:
            ops.copy(y.slice(1, 0, intervals), at_times.slice(1, spare, spare + intervals))
        ops.copy(y.index(1, intervals), state)
        if states is not None:
            ops.copy(states.slice(1, 0, grid.total), befores)
            ops.copy(states.index(1, grid.total), state)

    def _run(self, at: Around, length: int, state: View, befores: View | None, *, keeps: bool) -> None:
        """Record steps from state to state. `befores` are filled with the states before each step."""
        ops, tableau, n, s, until = self.ops, self.tableau, self.n, self.s, self.until
        stages = range(tableau.stages)
        known = self.inputs.at_stages(self.grid, tableau)
        alone = None if keeps else at_once(ops, self.rhs)
        rows_seen = [ops.scratch(f"seen {i}", (self.inputs.width,)) for i in stages] if alone else []
        values = [ops.scratch(f"slope {i}", (n,)) for i in stages] if alone else []
        with ops.loop(length) as step:
            h = self._length(at, step)
            if befores is not None:
                ops.copy(step.now(befores, 1), state)
            self._add_doses(state, at, step)
            if until is not None and isinstance(h, View):
                ops.map(h, lambda over, h: where(over > 0.0, 0.0, h), until.watch.over, self._now(until.lengths, at, step))
                until.watch.before(state)
            slopes = values or [step.now(s.k, 1).index(1, i) for i in stages]
            for i, k in enumerate(slopes):
                seen = rows_seen[i] if alone else step.now(s.x, 1).index(1, i)
                move(ops, tableau, seen.slice(-1, 0, n), state, h, [a[i] for a, _ in tableau.halves], slopes)
                self._record_inputs(
                    seen, None if known is None else self._now(known, at, step).index(0, i), at, step, h, tableau.c[i]
                )
                if alone is not None:
                    alone.forward(ops, seen, k)
                else:
                    kept = Kept(ops, step, i)
                    self.rhs.at_a_step(kept.array, lambda _, view: view, {}).forward(ops, seen, k)
                    kept.keep()
            move(ops, tableau, state, state, h, [b for _, b in tableau.halves], slopes)
            if until is not None and isinstance(h, View):
                until.watch.after(at, step, self._now(s.begins, at, step), h, state)

    def _add_doses(self, state: View, at: Around, step: Steps) -> None:
        """Record that the doses at the beginning of a step are added to its state."""
        if self.course is not None:
            self.course.add_doses(state, self.course.row(at, step))

    def _record_inputs(self, seen: View, known: View | None, at: Around, step: Steps, h: Length, c: float) -> None:
        """Record the right-hand side's features after the state, at the time c * h after the beginning of a step."""
        if self.course is not None:
            self.inputs.record(seen, self.course.row(at, step), h, c)
        elif known is not None:
            self.inputs.record(seen)
            self.ops.copy(seen.slice(-1, self.n + self.inputs.given, self.inputs.width), known)
        else:
            self.inputs.record(seen, self._now(self.s.begins, at, step) if self.grid.varies else None, h, c)

    # Backwards

    def pullback(self, y: View, dy: View, dx: View, failed: View | None, d_end: View | None = None) -> None:
        """Record the gradients of parameters, and `dx`, from the cotangents of the states at the times, `y`.

        `failed`, (batch, 1), is NaN for failed solutions and 0 for others, if solutions may fail. `d_end` may be the cotangent
        of the state after the last step, if it is at none of the times.
        """
        ops, n, known = self.ops, self.n, self.n + self.inputs.given
        d_state, adaptive = ops.scratch("d_state", (n,)), self.clock is not None
        d_last = d_end if adaptive or d_end is not None else dy.index(1, self.grid.intervals)
        self._begin_pullback(d_state, d_last, dx, failed, dy)
        d_begins = self._at_begins(dy) if not adaptive else None
        sums = GradientSums(ops, self.grid, self.rhs)
        if self.course is not None:
            self.course.begin_pullback()
        with self._segments(backwards=True, failed=failed) as at:
            for each in at:
                state = ops.scratch("state", (n,))
                ops.copy(state, each.now(self.s.checkpoints, 1))
                self._run(at, self.grid.cut.length, state, None, keeps=True)
            d_times = None if d_begins is None else self._of_segment(at, d_begins)
            self._pull_steps(at, sums, d_state, dy, d_times, dx.slice(-1, n, known))
            sums.end_segment(at)
        if self.clock is not None:
            self._add_cotangents(d_state, dy, self.times.slice(-1, 0, 1))
        ops.copy(dx.slice(-1, 0, n), d_state)
        sums.add_up()
        if self.course is not None:
            self.course.end_pullback()

    def _begin_pullback(self, d_state: View, d_last: View | None, dx: View, failed: View | None, dy: View) -> None:
        """Record the first cotangents of the pullback: those of the state, and of the features after it in a sample.

        Those of failed solutions are NaN, as products with a cotangent, so that series of cotangents have a rule for them.
        """
        for view, given in ((d_state, d_last), (dx.slice(-1, self.n, dx.sample_shape[0]), None)):
            if failed is None:
                self.ops.fill(view, 0.0) if given is None else self.ops.copy(view, given)
            else:
                any_one, zero = (given, False) if given is not None else (dy.index(1, 0).slice(-1, 0, 1), True)
                spoilt = lambda d, failed, zero=zero: where(failed == 0.0, 0.0 if zero else d, failed * d)  # noqa: E731
                self.ops.map(view, spoilt, any_one, failed)

    def _pull_steps(self, at: Around, sums: GradientSums, d_state: View, dy: View, d_times: View | None, d_given: View) -> None:
        """Record the pullback of the steps of a segment."""
        ops, tableau, n, s, known = self.ops, self.tableau, self.n, self.s, self.n + self.inputs.given
        stages = range(tableau.stages)
        d_seen = [ops.scratch(f"d_x{i}", (self.inputs.width,)) for i in stages]
        d_states = [view.slice(-1, 0, n) for view in d_seen]
        d_slope = [ops.scratch(f"d_k{i}", (n,)) for i in stages]
        with ops.loop(self.grid.cut.length, backwards=True) as step:
            h = self._length(at, step)
            d_begin, within = self._at_times(d_state, dy, None if d_times is None else step.now(d_times, 1), at, step)
            for i in reversed(stages):
                pull_slope(ops, tableau, d_slope[i], d_state, h, i, d_states, within)
                kept = Kept(ops, step, i)
                stage = self.rhs.at_a_step(kept.array, partial(sums.of_step, at, step), {})
                kept.fetch()
                seen, k = (step.now(view, 1).index(1, i) for view in (s.x, s.k))
                stage.pullback(ops, seen, k, d_slope[i], d_seen[i])
            self._add_up(d_state, d_begin, d_seen, at, step)
            if self.inputs.given:
                ops.map(d_given, lambda *terms: sum(terms), d_given, *(view.slice(-1, n, known) for view in d_seen))

    def _at_times(
        self, d_state: View, dy: View, d_begin: View | None, at: Around, step: Steps
    ) -> tuple[View | None, Sequence[View]]:
        """Record that the cotangents of the states at the end of a step are added to that of the state.

        Returns those of the state before it, if there are any, and of the coefficients of the interpolant.
        """
        if d_begin is not None:
            return d_begin, ()
        begin, end, h = (self._now(view, at, step) for view in (self.s.begins, self.s.ends, self.s.lengths))
        if self.interpolation is None:
            self._add_cotangents(d_state, dy, end, h)
            return None, ()
        span = Span(begin, end, h, h)
        d_begin, *within = self.interpolation.pull(dy, span)
        if self.interpolation.d_times is not None:
            kept, count = (self.s.x if self.tableau.gamma else self.s.k), range(self.tableau.stages)
            pieces = [step.now(kept, 1).index(1, i).slice(-1, 0, self.n) for i in count]
            self.interpolation.pull_times(dy, span, pieces[0], pieces)
        return d_begin, within

    def _add_up(self, d_state: View, d_time: View | None, d_seen: Sequence[View], at: Around, step: Steps) -> None:
        """Record the cotangent of the state before a step: from that after it, those of the inputs of the right-hand side, and
        that of the output there.
        """
        add, terms = lambda *terms: sum(terms), [view.slice(-1, 0, self.n) for view in d_seen]
        more = [] if d_time is None else [d_time]
        if self.interpolation is not None:  # interpolants begin after doses
            terms, more = terms + more, []
        if self.course is not None:
            self.ops.map(d_state, add, d_state, *terms)
            self.course.pull(at, step, d_state, d_seen)
            terms = []
        if more or terms:
            self.ops.map(d_state, add, d_state, *more, *terms)

    def _at_begins(self, dy: View) -> View:
        """The cotangents of the states at the beginning of intervals, or of segments if an interval has several."""
        ops, grid = self.ops, self.grid
        segments, _, spare = grid.cut
        d_times = dy.slice(1, 0, grid.intervals)
        if not grid.within and not spare:
            return d_times
        filled = ops.scratch("dy with spare", (segments if grid.within else spare + grid.intervals, self.n))
        ops.fill(filled, 0.0)
        own = filled.split(1, grid.intervals).index(2, 0) if grid.within else filled.slice(1, spare, spare + grid.intervals)
        ops.copy(own, d_times)
        return filled

    def _of_segment(self, at: Around, d_begins: View) -> View:
        """The cotangents of the states before the steps of a segment, (steps, n)."""
        ops, own = self.ops, part(d_begins, at)
        d_times = ops.scratch("d_states", (self.grid.cut.length, self.n))
        ops.fill(d_times, 0.0)
        ops.copy(d_times.split(1, int(own.shape[1])).index(2, 0), own)  # type: ignore[arg-type]
        return d_times

    def _add_cotangents(self, d_state: View, dy: View, end: View, h: View | None = None) -> None:
        """Record that the cotangents of the states at the end of a step of length h are added."""
        ops = self.ops
        here, total = ops.scratch("here", dy.sample_shape), ops.scratch("all here", d_state.sample_shape)
        taken = [] if h is None else [h.expand(-1)]
        picked = lambda time, t, d, *h: where((time == t) & (h[0] > 0.0) if h else time == t, d, 0.0)  # noqa: E731
        ops.map(here, picked, self.times.expand(-1), end.expand(-1), dy, *taken)
        ops.sum(total.expand(1), here)
        ops.map(d_state, lambda a, b: a + b, d_state, total)

    # Steps

    @contextmanager
    def _segments(self, *, backwards: bool = False, failed: View | None = None) -> Iterator[Around]:
        """A context: operations recorded inside are done for each segment. It gives the enclosing loop, if there is one.

        With step control, and after events, segments without a step are left out. The first one is always done for solutions
        that have failed.
        """
        if not self.grid.repeats:
            yield ()
            return
        skip = None
        if (until := self.until) is not None:
            skip = lambda _: until.watch.searching  # noqa: E731
        elif self.clock is not None or self.grid.ends:
            needed = lengths = self.s.lengths
            if self.course is not None:
                lengths = self.ops.scratch("lengths or doses", needed.sample_shape)
                self.ops.map(lengths, lambda h, starts: where(starts > 0.0, 1.0, h), needed, self.course.starts())
                needed = lengths
            if failed is not None:
                needed = self.ops.scratch("steps needed", lengths.sample_shape)
                self.ops.copy(needed, lengths)
                self.ops.map(needed.index(1, 0), lambda h, failed: where(failed == 0.0, h, 1.0), lengths.index(1, 0), failed)
            skip = lambda at: part(needed, (at,))  # noqa: E731
        with self.ops.loop(self.grid.cut.segments, backwards=backwards, closed=True, skip_where_zero=skip) as at:
            yield (at,)

    def _now(self, view: View, at: Around, step: Steps) -> View:
        """The entry for a step in an array with an entry for each of all steps."""
        axis = int(view.batched)
        return step.now(part(view, at, axis), axis)

    def _length(self, at: Around, step: Steps) -> Length:
        """The length of a step: a number if all are equal."""
        if self.lengths is not None:
            return self._now(self.lengths, at, step)
        assert isinstance(self.grid.times, tuple)
        _, lengths = self.grid.equal()
        if np.ptp(lengths) <= min(1e-14 * np.max(np.abs(self.grid.times)), 1e-6 * np.max(lengths)):
            return float((self.grid.times[-1] - self.grid.times[0]) / self.grid.total)
        return self._now(self.ops.constant("lengths of steps", lengths[:, None]), at, step)
