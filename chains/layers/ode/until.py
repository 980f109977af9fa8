"""The strategy of an `ODE` with an event: steps of another strategy, up to the event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chains.expr import where
from chains.layers.base import Declaration
from chains.layers.ode.events import Event, Watch
from chains.layers.ode.right_side import check_deterministic
from chains.layers.ode.strategy import AtTimes, Setup, Strategy
from chains.program.recorder import Recorder
from chains.program.view import View


class UntilEvent(Strategy):
    """The solution up to an event. The output, (times + 1, n + 1), has a time in each row, and in its last row the end."""

    def __init__(self, steps: AtTimes) -> None:
        super().__init__(steps.ode)
        self.steps = steps

    @property
    def may_fail(self) -> bool:
        return self.steps.may_fail

    def declare(self, d: Declaration, n: int) -> None:
        ode, grid = self.ode, self.steps.grid
        self.steps.declare_steps(d, n)
        assert ode.event is not None
        found = d.child("event", ode.event, (n + ode.given + ode.known,))
        if found != (1,):
            raise ValueError(f"`event` (={ode.event!r}) gives {found}, but must give one number, (1,)")
        check_deterministic(d.children[-1])
        d.saved("found", (n + 4,))
        d.output((grid.intervals + 2, n + 1))
        d.without_lengths = "ends solutions at its `event`"

    def forward(self, ops: Recorder, x: View, y: View, s: Any) -> None:
        with self.steps.setup(ops, x, s, masked=False) as setup:
            n, last = setup.n, self.steps.grid.intervals
            solved, final = ops.scratch("solved", (last + 1, n)), ops.scratch("final state", (n,))
            event = self._solve(setup, solved, final)
            last_row, rows = y.index(1, last + 1), y.slice(1, 0, last + 1)
            ops.copy(last_row.slice(-1, 0, n), final)
            ops.copy(rows.slice(-1, 0, n), solved)
            self._record_times(setup, event, last_row.slice(-1, n, n + 1), rows.index(-1, n))

    def _event(self, setup: Setup) -> Event:
        ode, solution = self.ode, setup.solution
        return Event(
            setup.ops, ode.tableau, solution.rhs, setup.s.children[1], solution.inputs, ode.direction, setup.s.found
        )  # fmt: skip

    def _solve(self, setup: Setup, solved: View, final: View) -> Event:
        """Record the states at the times, and the state of the event; both stay the same after it."""
        ops, grid, s, clock, event = setup.ops, self.steps.grid, setup.s, self.steps.clock(setup), self._event(setup)
        last = ops.scratch("last of the times", (1,))
        self.steps.last_time(setup, last)
        watch = Watch(event, grid.total, setup.start, clock.slice(-1, 0, 1), last)
        self.steps.solve(setup, solved, watch=watch)
        ops.copy(final, solved.index(1, grid.intervals))
        hits = watch.end(s.lengths, final)
        self.steps.end_at(setup, hits, event.end)
        if (interpolation := setup.solution.interpolation) is not None:
            event.last_step("within", interpolation)(ops.scratch("end of the last step", (setup.n,)), event.number(1), solved)
        begins = s.begins.split(1, grid.cut.segments).index(2, 0)
        for states, times in ((solved, clock.expand(-1)), (s.checkpoints, begins)):
            ops.map(
                states, lambda y, t, end, happens, final: where((happens > 0.0) & (t >= end), final, y),
                states, times, event.end.expand(-1), event.happens.expand(-1), final.expand(1),
            )  # fmt: skip
        return event

    def _record_times(self, setup: Setup, event: Event, end: View, times: View) -> None:
        """Record the time of the event, and the times up to it."""
        ops, offset = setup.ops, setup.solution.inputs.first
        first = [offset] if isinstance(offset, View) else []
        number = 0.0 if first else offset
        to_time: Callable[..., Any] = lambda t, *first: t + (first[0] if first else number)  # noqa: E731
        ops.map(end, to_time, event.end, *first)
        ops.map(
            times, lambda t, end, *first: to_time(where(t < end, t, end), *first), self.steps.clock(setup), event.end, *first
        )  # fmt: skip

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, s: Any) -> None:
        with self.steps.setup(ops, x, s, masked=False) as setup:
            n, last = setup.n, self.steps.grid.intervals
            event, end = self._event(setup), self.steps.clock(setup).expand(-1)
            d_rows, (d_end, d_time) = ops.scratch("d_rows", (last + 1, n)), self._of_event(setup, event, dy)
            failed = self.steps.failed(ops, y)
            ops.map(
                d_rows, lambda t, end, d: where(t >= end, 0.0, d), end, event.end.expand(-1),
                dy.slice(1, 0, last + 1).slice(-1, 0, n),
            )  # fmt: skip
            interpolation = setup.solution.interpolation
            within = [] if interpolation is None else interpolation.pull(d_rows, event.span)[1:]
            d_seen = event.pullback(y.index(1, last + 1).slice(-1, 0, n), d_end, d_time, within)
            setup.solution.pullback(y.slice(1, 0, last + 1), d_rows, dx, failed, d_end)
            if self.ode.given:
                own = dx.slice(-1, n, n + self.ode.given)
                ops.map(own, lambda a, b: a + b, own, d_seen.slice(-1, n, n + self.ode.given))

    def _of_event(self, setup: Setup, event: Event, dy: View) -> tuple[View, View]:
        """Record the cotangents of the state and the time of the event: sums over its row and those of later times."""
        ops, n, last = setup.ops, setup.n, self.steps.grid.intervals
        after, total = ops.scratch("rows after the event", (last + 2, n + 1)), ops.scratch("cotangent of the event", (n + 1,))
        d_end, d_time = ops.scratch("d_end", (n,)), ops.scratch("d_time", (1,))
        ops.map(
            after.slice(1, 0, last + 1), lambda t, end, d: where(t >= end, d, 0.0),
            self.steps.clock(setup).expand(-1), event.end.expand(-1), dy.slice(1, 0, last + 1),
        )  # fmt: skip
        ops.copy(after.index(1, last + 1), dy.index(1, last + 1))
        ops.sum(total.expand(1), after)
        ops.copy(d_end, total.slice(-1, 0, n))
        ops.copy(d_time, total.slice(-1, n, n + 1))
        return d_end, d_time
