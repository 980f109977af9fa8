"""Events: a trajectory ends where a function of state and time crosses zero.

The search finds the first step over which the sign of the function changes. All later steps get the length 0, and segments of
such steps are left out. Then the Illinois method shortens the last step to the root of the function. So the pullback is that of
the steps, repeated from checkpoints, with the gradient by the length of the last one. By the implicit function theorem the root
h of ``event(step(y, h), t + h) = 0`` changes by ``-d event / (d event / dh)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.expr import floor, maximum, minimum, where
from chains.layers.node import Node
from chains.layers.ode.grid import Around, part
from chains.layers.ode.interpolation import Interpolation, Span
from chains.layers.ode.methods import Tableau, combine, move, pull_slope
from chains.layers.ode.right_side import Inputs, at_once, unread
from chains.program.loop import Steps
from chains.program.recorder import Recorder
from chains.program.view import View

DIRECTIONS = ("both", "up", "down")
ITERATIONS = 60  # of the Illinois method, at most; a simple root takes about eight
PATIENCE = 10  # iterations after which every second one halves the bracket, for events that grow like powers of e
BESIDE = 1e-4  # share of the step over which the slope for Newton's last iterations is measured


@dataclass(frozen=True)
class Event:
    """The event of a solution, being recorded.

    Parameters
    ----------
    ops, tableau, rhs, node, inputs
        The recorder, the method, the right-hand side, the event's function, and the inputs of both.
    direction : str
        The direction of the change of sign, one of `DIRECTIONS`.
    found : View, shape (batch, n + 4)
        The numbers kept of an event: the state and the time before the last step, its length, 1 if there is an event, and the
        time of the event or the last time.
    """

    ops: Recorder
    tableau: Tableau
    rhs: Node
    node: Node
    inputs: Inputs
    direction: str
    found: View

    @property
    def n(self) -> int:
        return self.inputs.n

    @property
    def before(self) -> View:
        """The state before the last step."""
        return self.found.slice(-1, 0, self.n)

    def number(self, k: int) -> View:
        """One of the numbers kept after the state."""
        return self.found.slice(-1, self.n + k, self.n + k + 1)

    @property
    def end(self) -> View:
        """The time of the event, counted as the steps are."""
        return self.number(3)

    @property
    def happens(self) -> View:
        """1 for samples with an event."""
        return self.number(2)

    def function(self) -> Callable[[View, View, View, View | None], None]:
        """A function that records the event's function of a state, at a time and a length after it."""
        seen = self.ops.scratch("seen by the event", (self.inputs.width,))

        def record(out: View, state: View, t: View, h: View | None) -> None:
            self.ops.copy(seen.slice(-1, 0, self.n), state)
            self.inputs.record(seen, t, 0.0 if h is None else h, 0.0 if h is None else 1.0)
            self.node.forward(self.ops, seen, out)

        return record

    def last_step(self, name: str, interpolation: Interpolation | None = None) -> Callable[..., None]:
        """A function that records the last step with a length; with `found`, also the states at the times within it."""
        ops = self.ops
        stages = range(self.tableau.stages)
        slopes = [ops.scratch(f"slope {i} {name}", (self.n,)) for i in stages]
        seen = ops.scratch(f"seen {name}", (self.inputs.width,))
        rhs = at_once(ops, self.rhs)

        def record(new: View, h: View, found: View | None = None) -> None:
            for i in stages:
                move(
                    ops, self.tableau, seen.slice(-1, 0, self.n), self.before, h, [a[i] for a, _ in self.tableau.halves], slopes
                )
                self.inputs.record(seen, self.number(0), h, self.tableau.c[i])
                rhs.forward(ops, seen, slopes[i])
            move(ops, self.tableau, new, self.before, h, [b for _, b in self.tableau.halves], slopes)
            if interpolation is not None and found is not None:
                interpolation.record(found, self.span, self.before, new, slopes)

        return record

    @property
    def span(self) -> Span:
        """The last step, which has the length 0 without an event."""
        return Span(self.number(0), self.end, self.number(1), self.number(1))

    def pullback(self, y: View, d_y: View, d_end: View, within: Sequence[View]) -> View:
        """Record the gradients of the event's parameters, and add to `d_y` the part of the time of the event, whose cotangent
        is `d_end`. `within` has the cotangents of the coefficients of the last step's interpolant, if there is one.

        Returns the gradient by the event's input.
        """
        ops, n, width = self.ops, self.n, self.inputs.width
        seen, value, one = ops.scratch("seen by the event", (width,)), ops.scratch("event", (1,)), ops.scratch("one", (1,))
        ops.copy(seen.slice(-1, 0, n), y)
        self.inputs.record(seen, self.number(0), self.number(1), 1.0)
        d_seen, d_event = ops.scratch("slope of the event", (width,)), ops.scratch("d_event", (width,))
        ops.fill(one, 1.0)
        self.node.forward(ops, seen, value)
        self.node.at_a_step(lambda view: view, unread(ops), {}).pullback(ops, seen, value, one, d_seen)
        pair, along = ops.scratch("cotangents of the end", (2, n)), ops.scratch("by the length", (2, 1))
        ops.copy(pair.index(1, 0), d_y)
        ops.copy(pair.index(1, 1), d_seen.slice(-1, 0, n))
        both = [ops.scratch(f"{view.buffer.name} twice {k}", (2, n)) for k, view in enumerate(within)]
        for each, view in zip(both, within, strict=True):  # the event's function does not see the states at the times
            ops.copy(each.index(1, 0), view)
            ops.fill(each.index(1, 1), 0.0)
        with ops.loop(2, closed=True) as at:
            self._by_length(at.now(along, 1), at.now(pair, 1), [at.now(each, 1) for each in both])
        by_time = [d_seen.slice(-1, width - 1, width)] if self.inputs.time else []
        weight = ops.scratch("d_value", (1,))
        ops.map(weight, _implicit, self.happens, along.index(1, 0), along.index(1, 1), d_end, *by_time)
        self.node.pullback(ops, seen, value, weight, d_event)
        ops.map(d_y, lambda a, b: a + b, d_y, d_event.slice(-1, 0, n))
        return d_event

    def _by_length(self, out: View, d: View, within: Sequence[View]) -> None:
        """Record the gradient by the length of the last step, from the cotangents of its end and of its interpolant."""
        ops, tableau, n, width = self.ops, self.tableau, self.n, self.inputs.width
        h, stages = self.number(1), range(tableau.stages)
        slopes, seen, d_slope = ([ops.scratch(f"{name} {i} of the last step", (m,)) for i in stages]
                                 for name, m in (("slope", n), ("seen", width), ("d_slope", n)))  # fmt: skip
        d_seen = [ops.scratch(f"d_x{i} of the last step", (width,)) for i in stages]
        nodes = [at_once(ops, self.rhs, unread(ops)) for _ in stages]
        zero = ops.scratch("zero", (n,))
        ops.fill(zero, 0.0)
        moves = [ops.scratch(f"move {i}", (n,)) for i in range(tableau.stages + 1)]
        rows = [*([a[i] for a, _ in tableau.halves] for i in stages), [b for _, b in tableau.halves]]
        for i, rhs in enumerate(nodes):
            move(ops, tableau, moves[i], zero, 1.0, rows[i], slopes)
            move(ops, tableau, seen[i].slice(-1, 0, n), self.before, h, rows[i], slopes)
            self.inputs.record(seen[i], self.number(0), h, tableau.c[i])
            rhs.forward(ops, seen[i], slopes[i])
        move(ops, tableau, moves[-1], zero, 1.0, rows[-1], slopes)
        terms, total = ops.scratch("by the length of each", (n,)), ops.scratch("along", (1,))
        ops.map(terms, lambda a, b: a * b, d, moves[-1])
        for power, each in enumerate(within[1:], 2):  # h times a power of (t - begin) / h
            weights = [row[power - 1] for row in tableau.interpolant]
            combine(ops, moves[-1], None, 1.0 - power, [(w, k) for w, k in zip(weights, slopes, strict=True) if w])
            ops.map(terms, lambda total, a, b: total + a * b, terms, each, moves[-1])
        d_states = [view.slice(-1, 0, n) for view in d_seen]
        for i in reversed(stages):
            pull_slope(ops, tableau, d_slope[i], d, h, i, d_states, within)
            nodes[i].pullback(ops, seen[i], slopes[i], d_slope[i], d_seen[i])
            ops.map(terms, lambda total, a, b: total + a * b, terms, d_states[i], moves[i])
        ops.sum(total, terms)
        times = [(c, view.slice(-1, width - 1, width)) for c, view in zip(tableau.c, d_seen, strict=False) if c]
        if self.inputs.time and times:
            ops.map(total, lambda total, *d: total + sum(c * each for (c, _), each in zip(times, d, strict=True)), total,
                    *(view for _, view in times))  # fmt: skip
        ops.copy(out, total)


class Watch:
    """The search for an event and its time, along steps that begin at a state and a time. `last` is the last time.

    `over` is 1 after the step with the event, and `searching` is 1 before.
    """

    def __init__(self, event: Event, steps: int, start: View, begin: View, last: View) -> None:
        ops = event.ops
        self.event, self._function = event, event.function()
        self._old, self._new, self._least, self._most = (
            ops.scratch(name, (1,)) for name in ("event before", "event after", "event at begin", "event at end")
        )
        self.over, self.searching, self._before = (
            ops.scratch(name, (size,)) for name, size in (("over", 1), ("before the event", 1), ("state before", event.n))
        )
        self._hits = ops.scratch("last step", (steps, 1))  # 1 for the last step before an event, 0 for others
        t, h, _, end = (event.number(k) for k in range(4))
        for view, first in ((event.before, start), (t, begin), (end, last)):
            ops.copy(view, first)
        for view in (h, self.over, self._least, self._most, self._hits):
            ops.fill(view, 0.0)
        ops.fill(self.searching, 1.0)
        self._function(self._old, start, t, None)

    def before(self, state: View) -> None:
        """Record that a step begins at a state."""
        self.event.ops.copy(self._before, state)

    def after(self, around: Around, at: Steps, begin: View, length: View, state: View) -> None:
        """Record that the step ends at a state."""
        event, ops = self.event, self.event.ops
        hit = at.now(part(self._hits, around), 1)
        kept = event.number(0), event.number(1), self._least, self._most
        self._function(self._new, state, begin, length)
        ops.map(
            (hit, self.over, self.searching, *kept), lambda *values: _hit(event.direction, *values),
            self._old, self._new, begin, length, self.over, *kept,
        )  # fmt: skip
        ops.map(event.before, _chosen, hit, self._before, event.before)
        ops.copy(self._old, self._new)

    def end(self, lengths: View, y: View) -> View:
        """Record, after all steps, the event's time and the length of its step; `y`, (batch, n), is the state at the end.

        Returns 1 for the last step before an event, 0 for others, like `lengths`.
        """
        event, ops = self.event, self.event.ops
        t, h, happens, end = (event.number(k) for k in range(4))
        ops.copy(happens, self.over)
        self._find_root(y)
        ops.map(end, lambda happens, t, h, end: where(happens > 0.0, t + h, end), happens, t, h, end)
        ops.map(lengths, _chosen, self._hits, h.expand(1), lengths)
        return self._hits

    def _find_root(self, y: View) -> None:
        """Record the length of the last step, at first the whole one, and the state after it if there is an event."""
        event, ops, function, least, most = self.event, self.event.ops, self._function, self._least, self._most
        t, h, happens = (event.number(k) for k in range(3))
        tried = ops.scratch("length tried", (1,))
        low, high, value, active, done = (
            ops.scratch(name, (1,)) for name in ("low", "high", "event tried", "searching", "iterations")
        )
        new = ops.scratch("event state", (event.n,))
        tolerated = 4.0 * float(np.finfo(ops.dtype).eps)
        whole = ops.scratch("whole length", (1,))
        ops.copy(whole, h)
        ops.fill(low, 0.0)
        ops.copy(high, h)
        ops.copy(active, happens)
        ops.fill(done, 0.0)
        step = event.last_step("tried")
        with ops.loop(ITERATIONS, closed=True, skip_where_zero=lambda _: active):
            ops.map(tried, _within, low, high, least, most, done)
            step(new, tried)
            function(value, new, t, tried)
            ops.map(
                (low, high, least, most, h, active, done), lambda *values: _closer(tolerated, *values),
                low, high, least, most, h, active, done, tried, value, whole,
            )  # fmt: skip
        slope, sides = ops.scratch("slope of the event", (1,)), ops.scratch("values beside", (2, 1))
        for k, sign in enumerate((-1.0, 1.0)):
            ops.map(tried, lambda h, whole, sign=sign: h + sign * BESIDE * whole, h, whole)
            step(new, tried)
            function(sides.index(1, k), new, t, tried)
        ops.map(
            slope, lambda a, b, whole: where(b == a, 1.0, (b - a) / where(whole > 0.0, 2.0 * BESIDE * whole, 1.0)),
            sides.index(1, 0), sides.index(1, 1), whole,
        )  # fmt: skip
        with ops.loop(2, closed=True):  # these find all derivatives of h too, for programs on series
            step(new, h)
            function(value, new, t, h)
            ops.map(h, lambda h, value, slope, on: where(on > 0.0, h - value / slope, h), h, value, slope, happens)
        step(new, h)
        ops.map(y, _chosen, happens, new, y)


def _chosen(hit: Any, new: Any, old: Any) -> Any:
    return where(hit > 0.0, new, old)


def _hit(
    direction: str, old: Any, new: Any, begin: Any, length: Any, over: Any, t: Any, h: Any, least: Any, most: Any
) -> tuple[Any, ...]:
    """Whether the event is in this step, in this or an earlier one, or not so far; and what is kept of its step."""
    up, down = (old < 0.0) & (new >= 0.0), (old > 0.0) & (new <= 0.0)
    crosses = {"both": up | down, "up": up, "down": down}[direction]
    now = where(crosses & (length > 0.0) & (over == 0.0), 1.0, 0.0)
    over = maximum(over, now)
    pairs = ((begin, t), (length, h), (old, least), (new, most))
    return now, over, 1.0 - over, *(where(now > 0.0, each, kept) for each, kept in pairs)


def _within(low: Any, high: Any, least: Any, most: Any, done: Any) -> Any:
    """Where the chord crosses zero. Late in a search, every second time the middle of the bracket."""
    slope = most - least
    chord = where(slope == 0.0, high, minimum(maximum(high - most * (high - low) / where(slope == 0.0, 1.0, slope),
                                                       minimum(low, high)), maximum(low, high)))  # fmt: skip
    odd = done - 2.0 * floor(0.5 * done)
    return where((done > PATIENCE) & (odd > 0.0), 0.5 * (low + high), chord)


def _closer(
    tolerated: float, low: Any, high: Any, least: Any, most: Any, h: Any, active: Any, done: Any, tried: Any, value: Any,
    whole: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """The next bracket with its latest end `high`, the length, and whether to continue. An end that stays counts half."""
    on = active > 0.0
    crosses = ((value < 0.0) & (most > 0.0)) | ((value > 0.0) & (most < 0.0))
    found = (value == 0.0) | (abs(tried - h) <= tolerated * whole)
    return (
        where(on & crosses, high, low),
        where(on, tried, high),
        where(on, where(crosses, most, 0.5 * least), least),
        where(on, value, most),
        where(on, tried, h),
        where(on, where(found, 0.0, 1.0), 0.0),
        done + 1.0,
    )


def _implicit(happens: Any, by_y: Any, by_event: Any, d_end: Any, *by_time: Any) -> Any:
    """The cotangent of the event's value: that of the length by the implicit function theorem."""
    slope = by_event + sum(by_time)
    return where(happens > 0.0, -(by_y + d_end) / where(happens > 0.0, slope, 1.0), 0.0)
