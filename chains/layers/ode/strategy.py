"""How an `ODE` finds its steps: equal ones, or those of step control. Each way is a strategy, which records the whole solution.

`Setup` has what all strategies begin with. A strategy says how steps count time, records the search for the steps, and leaves
the pullback to the `Solution`. A strategy may also work on top of another one, as `UntilEvent` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import numpy as np

from chains.expr import maximum, where
from chains.layers.base import Declaration, SampleShape
from chains.layers.ode.adjoint import Adjoint
from chains.layers.ode.course import ControlledCourse
from chains.layers.ode.events import Watch
from chains.layers.ode.grid import Grid
from chains.layers.ode.implicit import ImplicitControl, ImplicitSolution
from chains.layers.ode.interpolation import Interpolation
from chains.layers.ode.right_side import Inputs
from chains.layers.ode.settings import Settings
from chains.layers.ode.solution import Solution, Until
from chains.layers.ode.step_control import Attempts, StepControl
from chains.layers.recurrent import keep_each_step, mask_of
from chains.program.recorder import Recorder
from chains.program.view import View


@dataclass(frozen=True)
class Setup:
    """What a recording of a solution begins with.

    Parameters
    ----------
    ops, x, s : Recorder, View, namespace of View
        The recorder, the samples, and the arrays kept.
    mask : View, optional
        1 at the times that a sample has, 0 after these, (batch, times, 1), if the caller gives lengths.
    times : View, optional
        The times of each sample, (batch, times), if they are its own.
    solution : Solution
        The steps.
    """

    ops: Recorder
    x: View
    s: Any
    mask: View | None
    times: View | None
    solution: Solution

    @property
    def n(self) -> int:
        """The length of the state."""
        return self.solution.n

    @property
    def start(self) -> View:
        """The initial states."""
        return self.x.slice(-1, 0, self.n)


class Strategy:
    """A way to the solution of an `ode`, and its pullback."""

    def __init__(self, ode: Settings) -> None:
        self.ode = ode

    @property
    def may_fail(self) -> bool:
        """Whether a solution may end before its last time."""
        raise NotImplementedError

    def declare_rhs(self, d: Declaration, n: int) -> SampleShape:
        """Declare the right-hand side, for states of length n. Returns the shape of its output."""
        return d.child("", self.ode.rhs, (n + self.ode.given + self.ode.known,))

    def declare(self, d: Declaration, n: int) -> None:
        """Declare the arrays kept of steps, and the output."""
        raise NotImplementedError

    def forward(self, ops: Recorder, x: View, y: View, s: Any) -> None:
        """Record the output."""
        raise NotImplementedError

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, s: Any) -> None:
        """Record the gradients of parameters, and `dx`."""
        raise NotImplementedError


class AtTimes(Strategy):
    """A strategy whose output are the states at the times, (times, n)."""

    @property
    def grid(self) -> Grid:
        ode = self.ode
        return Grid(ode.times, ode.steps, ode.max_steps, ode.checkpoint_every, ode.adjoint, ode.event is not None)

    def declare(self, d: Declaration, n: int) -> None:
        grid = self.grid
        self.declare_steps(d, n)
        if self.ode.adjoint:
            d.saved("solved", (grid.intervals + 1, n))
        d.output_times = grid.intervals + 1
        d.output((grid.intervals + 1, n))

    def width(self, n: int) -> int:
        """The length of the right-hand side's input."""
        return n + self.ode.given + self.ode.known

    def declare_steps(self, d: Declaration, n: int) -> None:
        """Declare the arrays kept of the steps."""
        grid, ode = self.grid, self.ode
        keep_each_step(d.children[0], grid.cut.length, ode.tableau.stages)
        d.saved("x", (grid.cut.length, ode.tableau.stages, self.width(n)))  # the input of the right-hand side
        d.saved("k", (grid.cut.length, ode.tableau.stages, n))  # its output
        if ode.implicit:
            d.saved("inverse", (grid.cut.length, n, n))  # of the matrix of Newton's method
        if grid.repeats:
            d.saved("checkpoints", (grid.cut.segments, n))
        for name in ("begins", "lengths", "tried", "ends") if grid.varies else ():
            d.saved(name, (grid.total, 1))

    def forward(self, ops: Recorder, x: View, y: View, s: Any) -> None:
        solved = s.solved if self.ode.adjoint else y
        with self.setup(ops, x, s) as setup:
            self.solve(setup, solved)
        ops.copy(y, solved)
        if setup.mask is not None:
            ops.map(y, within_lengths, setup.mask, y)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, s: Any) -> None:
        with self.setup(ops, x, s) as setup:
            if setup.mask is not None:
                ops.map(dy, within_lengths, setup.mask, dy)
            failed = self.failed(ops, y)
            setup.solution.pullback(s.solved if self.ode.adjoint else y, dy, dx, failed)

    @contextmanager
    def setup(self, ops: Recorder, x: View, s: Any, *, masked: bool = True) -> Iterator[Setup]:
        """The beginning of a recording, in a context in which the right-hand side has no lengths."""
        lengths, ops.output_lengths = ops.output_lengths, None
        try:
            mask = mask_of(ops, lengths, self.grid.intervals + 1) if masked else None
            times = self._own_times(ops, x, mask) if self.ode.own_times else None
            yield Setup(ops, x, s, mask, times, self.solution(ops, x, s, mask, times))
        finally:
            ops.output_lengths = lengths

    def _own_times(self, ops: Recorder, x: View, mask: View | None) -> View:
        """The times of each sample. After a sample's length its last time is repeated."""
        times = x.slice(-1, x.sample_shape[0] - self.ode.own_times, x.sample_shape[0])
        return times if mask is None else repeat_last(ops, times, mask)

    def inputs(self, ops: Recorder, x: View, first: View | float) -> Inputs:
        """The features after the state in the right-hand side's input."""
        ode = self.ode
        n = x.sample_shape[0] - ode.given - ode.own_times
        return Inputs(ops, x, n, ode.given, ode.time, ode.forcing, first)

    def failed(self, ops: Recorder, y: View) -> View | None:
        """0 for a solution with all its states, NaN for any other: this makes its gradients NaN too. None if none may fail."""
        return failed_of(ops, y) if self.may_fail else None

    # What is different

    def solution(self, ops: Recorder, x: View, s: Any, mask: View | None, times: View | None) -> Solution:
        """The steps to record."""
        raise NotImplementedError

    def solve(self, setup: Setup, y: View, *, states: View | None = None, watch: Watch | None = None) -> None:
        """Record the states at the times, `y`.

        With `states`, (batch, steps + 1, n), also those before all steps and after the last one. With a `watch` for an event,
        steps after it have the length 0.
        """
        raise NotImplementedError

    def clock(self, setup: Setup) -> View:
        """The times as steps count them, (times,) or (batch, times)."""
        raise NotImplementedError

    def last_time(self, setup: Setup, out: View) -> None:
        """Record the last of the times, as steps count them."""
        clock, last = self.clock(setup), self.grid.intervals
        if setup.times is None:
            setup.ops.copy(out, clock.slice(-1, last, last + 1))
        else:
            setup.ops.max(out, clock)

    def end_at(self, setup: Setup, hits: View, end: View) -> None:
        """Record that the steps marked by 1 in `hits`, (batch, steps, 1), end at the time `end`."""
        raise NotImplementedError


class EqualSteps(AtTimes):
    """A number of equal steps from each of the times to the next."""

    @property
    def may_fail(self) -> bool:
        return self.ode.implicit

    def solution(self, ops: Recorder, x: View, s: Any, mask: View | None, times: View | None) -> Solution:
        ode, grid = self.ode, self.grid
        kind = ImplicitSolution if ode.implicit else Adjoint if ode.adjoint else Solution
        lengths = s.lengths if grid.varies else None if mask is None else grid.until(ops, mask)
        return kind(ops, ode.tableau, grid, s.children[0], self.inputs(ops, x, 0.0), s, lengths=lengths)

    def solve(self, setup: Setup, y: View, *, states: View | None = None, watch: Watch | None = None) -> None:
        solution, start = setup.solution, setup.start
        if watch is not None:
            solution = replace(solution, until=Until(watch, self._planned(setup)))
        elif setup.times is not None:
            self.grid.fill(setup.ops, setup.times, setup.s.begins, setup.s.lengths)
        if setup.times is not None:
            start = _nan_if_falling(setup.ops, start, setup.times)
        if watch is not None:
            setup.ops.fill(setup.s.lengths, 0.0)
        solution.forward(start, y, states)

    def _planned(self, setup: Setup) -> View:
        """The lengths of all steps, (batch, steps, 1) or (steps, 1), if no event ends them; their begins are filled."""
        ops, grid, s = setup.ops, self.grid, setup.s
        if setup.times is None:
            begins, lengths = (ops.constant("steps", each[:, None]) for each in grid.equal())
            ops.copy(s.begins, begins)
        else:
            lengths = ops.scratch("lengths without the event", (grid.total, 1))
            grid.fill(ops, setup.times, s.begins, lengths)
        return lengths

    def clock(self, setup: Setup) -> View:
        return setup.times if setup.times is not None else setup.ops.constant("times", np.array(self.ode.times))

    def end_at(self, setup: Setup, hits: View, end: View) -> None:
        pass  # ends are not kept


class ControlledSteps(AtTimes):
    """Steps whose estimated error stays within tolerances. They count times from the first one: far from time 0, sums of
    lengths would lose digits.
    """

    @property
    def may_fail(self) -> bool:
        return True

    def solution(self, ops: Recorder, x: View, s: Any, mask: View | None, times: View | None) -> Solution:
        ode = self.ode
        if times is not None:
            first, clock = times.slice(-1, 0, 1), ops.scratch("clock", (ode.own_times,))
            ops.map(clock, lambda t, first: t - first, times, first)
            inputs = self.inputs(ops, x, first)
        else:
            own = np.array(ode.times)
            shared = ops.constant("clock", own - own[0])
            clock = shared if mask is None else repeat_last(ops, shared, mask)
            inputs = self.inputs(ops, x, float(own[0]))
        kind = ImplicitSolution if ode.implicit else Adjoint if ode.adjoint else Solution
        way = Interpolation(ops, ode.tableau, clock) if ode.interpolates else None
        return kind(ops, ode.tableau, self.grid, s.children[0], inputs, s, clock, s.lengths, interpolation=way)

    def stops(self, setup: Setup) -> View | None:
        """The times at which steps end, (stops,) or (batch, stops), besides the last one."""
        ode, ops, clock = self.ode, setup.ops, self.clock(setup)
        if not ode.jumps:
            return None if ode.interpolates else clock
        jumps = _sides(ops, np.array(ode.jumps), setup.solution.inputs.first)
        if ode.interpolates:
            return jumps
        count, own = jumps.sample_shape[0], clock.sample_shape[0]
        both = ops.scratch("stops", (count + own,))
        ops.copy(both.slice(-1, 0, own), clock)
        ops.copy(both.slice(-1, own, own + count), jumps)
        return both

    def solve(self, setup: Setup, y: View, *, states: View | None = None, watch: Watch | None = None) -> None:
        ode, solution, s = self.ode, setup.solution, setup.s
        assert ode.rtol is not None
        assert ode.atol is not None
        kind = ImplicitControl if ode.implicit else StepControl
        course = solution.course if isinstance(solution.course, ControlledCourse) else None
        control = kind(
            setup.ops, ode.tableau, solution.rhs, ode.rtol, ode.atol, solution.times, solution.inputs, self.stops(setup),
            solution.interpolation, course,
        )  # fmt: skip
        control.record(y, solution.grid, Attempts(s.begins, s.tried, s.lengths, s.ends, s.checkpoints), states, watch)

    def clock(self, setup: Setup) -> View:
        assert setup.solution.clock is not None
        return setup.solution.clock

    def end_at(self, setup: Setup, hits: View, end: View) -> None:
        ends = setup.s.ends
        setup.ops.map(ends, lambda hit, t, end: where(hit > 0.0, t, end), hits, end.expand(1), ends)


def _sides(ops: Recorder, jumps: np.ndarray, first: View | float) -> View:
    """Times shortly before and after the jumps, counted from the first time: they differ in the arithmetic of the program."""
    both, least = np.concatenate([jumps, jumps]), 4.0 * float(np.finfo(ops.dtype).eps)
    signs = np.repeat([-least, least], len(jumps))
    if not isinstance(first, View):
        return ops.constant("sides of jumps", both - first + signs * np.maximum(np.abs(both), np.abs(first)))
    sides = ops.scratch("sides of jumps", both.shape)
    beside = lambda t, sign, first: t - first + sign * maximum(abs(t), abs(first))  # noqa: E731
    ops.map(sides, beside, ops.constant("jumps", both), ops.constant("signs", signs), first)
    return sides


def failed_of(ops: Recorder, y: View) -> View:
    """0 for a solution with all its states, NaN for any other."""
    states, failed = ops.scratch("failed states", y.sample_shape), ops.scratch("failed", (1,))
    ops.map(states, lambda y: where(y == y, 0.0, nan), y)
    ops.sum(failed, states.reshape(y.sample_size))
    return failed


def repeat_last(ops: Recorder, times: View, mask: View) -> View:
    """Record the times of each sample, (batch, times), with its last one repeated after its length."""
    kept, last, has = ops.scratch("own times", mask.sample_shape[:1]), ops.scratch("last own time", (1,)), mask.index(2, 0)
    ops.map(kept, lambda has, t, first: where(has > 0.0, t, first), has, times, times.slice(-1, 0, 1))
    ops.max(last, kept)
    ops.map(kept, lambda has, t, last: where(has > 0.0, t, last), has, times, last)
    return kept


def _nan_if_falling(ops: Recorder, start: View, times: View) -> View:
    """The initial state, or NaN for a sample whose times do not ascend."""
    count = times.sample_shape[0]
    falls, largest = ops.scratch("falls", (count - 1,)), ops.scratch("largest fall", (1,))
    sound = ops.scratch("initial state", start.sample_shape)
    ops.map(falls, lambda a, b: a - b, *(times.slice(-1, k, k + count - 1) for k in (0, 1)))
    ops.max(largest, falls)
    ops.map(sound, lambda y, falls: where(falls > 0.0, nan, y), start, largest)
    return sound


def within_lengths(mask: Any, y: Any) -> Any:
    """Zero after a sample's length, where states may be NaN."""
    return where(mask > 0.0, y, 0.0)
