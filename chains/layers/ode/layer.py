"""Ordinary differential equations: a layer whose output is the solution at given times, for a right-hand side that is a layer.

The pullback is exact for the steps that were done; their lengths are constants. The right-hand side is recorded once for each
stage. The gradients of its weights become products over all steps (`chains.program.hoist`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import nan
from typing import Any, ClassVar

import numpy as np

from chains.expr import where
from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.ode.adjoint import Adjoint
from chains.layers.ode.events import DIRECTIONS, Event, Watch
from chains.layers.ode.grid import Grid
from chains.layers.ode.implicit import LARGEST_STATE, ImplicitControl, ImplicitSolution
from chains.layers.ode.methods import METHODS, Row, Tableau
from chains.layers.ode.right_side import Inputs, check_deterministic
from chains.layers.ode.solution import Solution, Until
from chains.layers.ode.step_control import Attempts, StepControl
from chains.layers.recurrent import keep_each_step, mask_of
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_flags, check_number, check_word, is_real, whole
from chains.support.messages import listed, shown


def ascending(name: str, given: Any, least: int, also: str = "") -> np.ndarray:
    """Times as an array (n,). Raises TypeError or ValueError, naming the setting, unless they are finite and ascending."""
    try:
        flags = isinstance(given, (tuple, list)) and any(isinstance(each, (bool, np.bool_)) for each in given)
        if flags or np.asarray(given).dtype.kind not in "iufO":  # NumPy takes flags and words for numbers
            raise TypeError
        times = np.array(given, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` (={shown(given)}) must be a sequence of ascending times{also}") from None
    if not times.ndim:
        raise TypeError(f"`{name}` (={shown(given)}) must be a sequence of times{also}")
    if times.ndim != 1 or len(times) < least:
        raise ValueError(f"`{name}` has shape {times.shape}, but must be {least} or more times, shape (n,)")
    if not np.isfinite(times).all():
        raise ValueError(f"`{name}` must be finite, but time {int(np.argmin(np.isfinite(times)))} is not")
    if (falls := np.diff(times) <= 0).any():
        k = int(np.argmax(falls))
        raise ValueError(f"`{name}` must ascend, but {times[k + 1]:g} comes after {times[k]:g}")
    return times


def forcing_of(given: Any) -> tuple[tuple[float, ...], tuple[Row, ...]]:
    """Times (m,) and values (m, features), as a value that can be compared."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(f"`forcing` (={shown(given)}) must be a pair of arrays, times (m,) and values (m, features)")
    times = ascending("forcing[0]", given[0], 1)
    try:
        values = np.array(given[1], np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"`forcing[1]` (={shown(given[1])}) must be numbers, an array (m, features)") from None
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or len(values) != len(times) or not values.shape[1]:
        raise ValueError(f"`forcing[1]` has shape {np.shape(given[1])}, but there are {len(times)} times: use (m, features)")
    if not np.isfinite(values).all():
        raise ValueError("`forcing[1]` must be finite")
    return tuple(times.tolist()), tuple(map(tuple, values.tolist()))


def tolerance(name: str, given: Any) -> float | Row:
    """A tolerance: one for the whole state, or one for each of its numbers. Raises TypeError or ValueError, naming it."""
    several = isinstance(given, (tuple, list)) or np.ndim(given) == 1
    values = given if several else [given.item() if isinstance(given, np.ndarray) and given.ndim == 0 else given]
    if not len(values) or not all(map(is_real, values)):
        raise TypeError(f"`{name}` (={shown(given)}) must be a positive number, or one for each number of the state")
    if not all(0.0 < value < np.inf for value in values):
        raise ValueError(f"`{name}` (={shown(given)}) must be positive and finite")
    return tuple(map(float, values)) if several else float(values[0])


MAX_STEPS = 256  # attempts of step control, by default
STEPS_TO_A_TIME = 4  # or as many attempts to each of the times, if these are more
MAX_SHOWN = 6  # times in a printed layer; of more, the first ones and the last


class ODE(Layer):
    """``dy/dt = rhs(y)``, solved from the state at the first of some times: the output has the states at all of them.

    A sample is the initial state, (n,), and the output (times, n), the initial state first. To train initial states, put an
    `Embedding` before the layer: it has one for each trajectory.

    Parameters
    ----------
    rhs : Layer
        A layer or chain from (n + given + time + forcing,) to (n,). Its input is the state, then the `given` features, the time
        and the forcing, if there are any. `Equations` makes a right-hand side from formulas and networks.
    times : sequence of float, or int
        Two or more, ascending. A whole number k means that each sample has k times, its last features. They ascend too: equal
        times give equal states, and falling times give NaN.
    method : str
        "euler" (order 1), "midpoint" (2), "rk4" (4), "tsit5" (5), or "leapfrog" (2, symplectic). For "leapfrog" the state is
        positions, then velocities, and the change of each half depends on the other half alone. For stiff equations of at most
        32 numbers there are "kvaerno3" (3) and "kvaerno5" (5), implicit and L-stable. If a step is too long for Newton's method
        to converge, states from there on are NaN.
    steps : int
        The number of equal steps from each of the times to the next.
    rtol : float, optional
        Step control instead of equal steps, with "tsit5" or an implicit method: the estimated error of a step stays below
        ``atol + rtol * abs(y)``, as a mean square over the state. Each trajectory has its own steps, which end at the times.
    atol : float, or sequence of n floats, optional
        By default a thousandth of `rtol`.
    max_steps : int, optional
        The largest number of steps that step control tries, by default 256, or four to each of the times if these are more.
        Steps that are not needed are left out. If there are too few, ``net(x, p)``, ``net.bound(p)(x)`` and `value_and_grad`
        raise FloatingPointError with the reason that `ode_steps` gives; other calls, such as `loss` and `vjp`, give NaN for the
        states that are not reached, and for gradients.
    given : int
        The number of features of a sample, after the initial state, that are constants, not state: a dose, a temperature.
    time : bool
        Whether `rhs` takes the time.
    forcing : pair of arrays, shapes (m,) and (m, features), optional
        Ascending times, and the inputs to the system at these times. Between them inputs are interpolated linearly; outside
        they are constant.
    checkpoint_every : int, optional
        Keep only the state of every k-th step; the pullback repeats the steps between. This needs less memory and one more
        forward pass. By default everything is kept. With step control the default is 8, since its pullback repeats the accepted
        steps anyway. If the steps do not divide evenly, there are fewer between checkpoints.
    adjoint : bool
        Whether the gradient is that of the continuous adjoint equations, solved back in time by the same method and steps, from
        the state at each of the times. It keeps no steps. It is not exact: it approximates the gradient of the solution to the
        order of the method, which must be explicit. diffrax calls this BacksolveAdjoint, torchdiffeq odeint_adjoint.

    event : Layer, optional
        A layer or chain with the input of `rhs` and one number, (1,), as output. The trajectory ends where the number first
        changes its sign; the sign is compared after each step. The output becomes (times + 1, n + 1): the states with their
        times, and in its last row the state and the time of the event. Rows of later times repeat the last row. Without an
        event before the last time, the last row has the state at that time. `event` may have parameters; the gradient by the
        time of the event is exact. Events need an explicit method, without `forcing`, `adjoint` or `checkpoint_every`.
    direction : str
        "up" for a function that becomes positive, "down" for one that becomes negative, "both" by default. A function that
        begins at zero crosses it only when it comes back.

    Raises
    ------
    TypeError, ValueError
        For other settings, for a `rhs` whose output does not fit, and for one with a state or arrays of the whole batch.

    Notes
    -----
    Times and lengths of steps are constants of the pullback, as in diffrax: the gradient by a sample's times is 0.

    Source: Hairer, Nørsett and Wanner, "Solving ordinary differential equations I", 1993; Kværnø, "Singly diagonally implicit
    Runge-Kutta methods with an explicit first stage", 2004; Chen et al. 2018 for layers of this kind, Rackauckas et al. 2020
    (arXiv 2001.04385) for networks together with known terms.
    """

    advice: ClassVar[str] = "`ode_steps(net, p, x)` gives the status of each solution"

    def __init__(
        self, rhs: Layer, times: Sequence[float] | int, method: str = "tsit5", steps: int = 1, *, rtol: float | None = None,
        atol: Any = None, max_steps: int | None = None, given: int = 0, time: bool = False, forcing: Any = None,
        checkpoint_every: int | None = None, adjoint: bool = False, event: Layer | None = None, direction: str = "both",
    ) -> None:  # fmt: skip
        if not isinstance(rhs, Layer):
            raise TypeError(f"`rhs` (={shown(rhs)}) must be a layer: a Chain, or Equations of formulas")
        check_word("method", method, *METHODS)
        check_flags(time=time, adjoint=adjoint)
        if adjoint and len(METHODS[method].halves) > 1:
            raise ValueError(f"`adjoint` (=True) goes back in time by a method for the whole state, not by {method!r}")
        if adjoint and METHODS[method].gamma:
            raise ValueError(f"`adjoint` (=True) goes back in time, where stiff equations explode: not with {method!r}")
        if whole(given, 0) is None:
            raise ValueError(f"`given` (={shown(given)}) must be a whole number of features, 0 or more")
        self.rhs = rhs
        own = whole(times, -np.inf)
        self.times = (
            tuple(ascending("times", times, 2, " or a whole number").tolist()) if own is None else check_count("times", own, 2)
        )
        self.method = method
        self.steps = check_count("steps", steps)
        self.rtol, self.atol, self.max_steps = self._control(rtol, atol, max_steps)
        self.given = int(given)
        self.time = time
        self.forcing = None if forcing is None else forcing_of(forcing)
        self.checkpoint_every = None if checkpoint_every is None else check_count("checkpoint_every", checkpoint_every)
        self.adjoint = bool(adjoint)
        self.event, self.direction = self._checked_event(event, direction)

    def _checked_event(self, event: Any, direction: Any) -> tuple[Layer | None, str]:
        """The checked settings of an event."""
        check_word("direction", direction, *DIRECTIONS)
        if event is None:
            if direction != "both":
                raise ValueError(f"`direction` (={direction!r}) is of use with an `event` only")
            return None, direction
        if not isinstance(event, Layer):
            raise TypeError(f'`event` (={shown(event)}) must be a layer, such as Equations(lambda h, v: h, ("h", "v"))')
        if self.implicit:
            raise ValueError(f"`event` (={event!r}) goes with explicit methods, not with {self.method!r}")
        for name in ("forcing", "adjoint", "checkpoint_every"):
            if getattr(self, name):
                raise ValueError(f"`{name}` (={shown(getattr(self, name))}) does not go with an `event`")
        return event, direction

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state if "event" in state else state | {"event": None, "direction": "both"})  # as earlier pickles

    def _control(self, rtol: Any, atol: Any, max_steps: Any) -> tuple[float | None, Any, int | None]:
        """The checked settings of step control."""
        if rtol is None:
            for name, given in (("atol", atol), ("max_steps", max_steps)):
                if given is not None:
                    raise ValueError(f"`{name}` (={shown(given)}) is of use with step control only: set `rtol` too")
            return None, None, None
        check_number("rtol", rtol, "in (0, inf)")
        if not self._tableau.error:
            estimate = listed(repr(name) for name, tableau in METHODS.items() if tableau.error)
            raise ValueError(f"`rtol` (={shown(rtol)}): method {self.method!r} does not estimate its error, but {estimate} do")
        if self.steps != 1:
            raise ValueError(f"`steps` (={self.steps}) is a number of equal steps, but `rtol` (={shown(rtol)}) chooses steps")
        intervals = (len(self.times) if isinstance(self.times, tuple) else self.times) - 1
        default = max(MAX_STEPS, STEPS_TO_A_TIME * intervals)
        most = default if max_steps is None else check_count("max_steps", max_steps)
        if most < intervals:
            raise ValueError(f"`max_steps` (={most}) must be at least {intervals}: steps end at each of the times")
        return float(rtol), 1e-3 * float(rtol) if atol is None else tolerance("atol", atol), most

    @property
    def may_fail(self) -> bool:
        return self.rtol is not None or self.implicit

    @property
    def _tableau(self) -> Tableau:
        return METHODS[self.method]

    @property
    def implicit(self) -> bool:
        """Whether stages are solutions of equations."""
        return self._tableau.gamma > 0.0

    @property
    def _own_times(self) -> int:
        """The number of features of a sample that are times."""
        return self.times if isinstance(self.times, int) else 0

    @property
    def _known(self) -> int:
        """The number of features of the right-hand side that are functions of the time."""
        return int(self.time) + (0 if self.forcing is None else len(self.forcing[1][0]))

    @property
    def _grid(self) -> Grid:
        return Grid(self.times, self.steps, self.max_steps, self.checkpoint_every, self.adjoint, self.event is not None)

    def fixed_input(self) -> SampleShape | None:
        shape = self.rhs.fixed_input()
        known = shape is not None and len(shape) == 1 and shape[0] > self._known
        return (shape[0] - self._known + self._own_times,) if shape is not None and known else None

    def declare(self, d: Declaration) -> None:
        beside = self.given + self._own_times
        if len(d.input) != 1 or d.input[0] <= beside:
            times = f" and {self._own_times} times" if self._own_times else ""
            raise ValueError(
                f"a sample must be a state (n,) and {self.given} given features{times}, but its shape is {d.input}"
            )
        n, stages = d.input[0] - beside, self._tableau.stages
        output = d.child("", self.rhs, (n + self.given + self._known,))
        if output != (n,):
            more = self.given + self._known
            sees = f", from the state and {more} more (given, time, forcing)" if more else ""
            raise ValueError(f"`rhs` (={self.rhs!r}) gives {output} for a state of shape {(n,)}: it must give its change{sees}")
        if len(self._tableau.halves) > n or n % len(self._tableau.halves):
            raise ValueError(f"`method` (={self.method!r}) takes positions and as many velocities, not a state of length {n}")
        if self.implicit and n > LARGEST_STATE:
            raise ValueError(f"`method` (={self.method!r}) takes states of at most {LARGEST_STATE} numbers, but there are {n}")
        if isinstance(self.atol, tuple) and len(self.atol) != n:
            raise ValueError(f"`atol` (={self.atol}) must have as many numbers as the state, {n}, or be one for all")
        check_deterministic(d.children[-1])
        for part in d.children[-1].all:
            part.timed = False  # lengths are those of the times here
        grid = self._grid
        keep_each_step(d.children[-1], grid.cut.length, stages)
        d.saved("x", (grid.cut.length, stages, n + self.given + self._known))  # the input of the right-hand side
        d.saved("k", (grid.cut.length, stages, n))  # its output
        if self.implicit:
            d.saved("inverse", (grid.cut.length, n, n))  # of the matrix of Newton's method
        if grid.repeats:
            d.saved("checkpoints", (grid.cut.segments, n))
        for name in ("begins", "lengths", "tried", "ends") if grid.varies else ():
            d.saved(name, (grid.total, 1))
        if self.adjoint:
            d.saved("solved", (grid.intervals + 1, n))
        if self.event is not None:
            found = d.child("event", self.event, (n + self.given + self._known,))
            if found != (1,):
                raise ValueError(f"`event` (={self.event!r}) gives {found}, but must give one number, (1,)")
            check_deterministic(d.children[-1])
            d.saved("found", (n + 4,))
            d.output((grid.intervals + 2, n + 1))
            return
        d.output_times = grid.intervals + 1
        d.output((grid.intervals + 1, n))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        if self.event is not None:
            with self._mask(ops):
                self._forward_to_event(ops, x, y, s)
            return
        solved = s.solved if self.adjoint else y
        with self._mask(ops) as mask:
            self._solve(ops, x, solved, s, mask)
        ops.copy(y, solved)
        if mask is not None:
            ops.map(y, _within, mask, y)

    def _solve(
        self, ops: Recorder, x: View, y: View, s: Any, mask: View | None = None, states: View | None = None
    ) -> None:  # fmt: skip
        """Record the solution; with `states`, also those before all steps and after the last one, (steps + 1, n)."""
        times = self._times(ops, x, mask) if self._own_times else None
        solution = self._solution(ops, x, y, s, times, mask)
        if self.rtol is not None and solution.clock is not None:
            kind = ImplicitControl if self.implicit else StepControl
            control = kind(ops, self._tableau, solution.rhs, self.rtol, self.atol, solution.clock, solution.inputs)
            attempts = Attempts(s.begins, s.tried, s.lengths, s.ends, s.checkpoints)
            control.record(y, solution.grid, attempts, states)
            return
        start = x.slice(-1, 0, solution.n)
        if times is not None:
            solution.grid.fill(ops, times, s.begins, s.lengths)
            start = self._nan_if_falling(ops, start, times)
        solution.forward(start, y, states)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        if self.event is not None:
            with self._mask(ops):
                self._pull_from_event(ops, x, y, dy, dx, s)
            return
        with self._mask(ops) as mask:
            if mask is not None:
                ops.map(dy, _within, mask, dy)
            times = self._times(ops, x, mask) if self._own_times else None
            failed = self._failed(ops, y) if self.may_fail else None
            self._solution(ops, x, y, s, times, mask).pullback(s.solved if self.adjoint else y, dy, dx, failed)

    def _forward_to_event(self, ops: Recorder, x: View, y: View, s: Any) -> None:
        """Record the solution up to the event."""
        n, grid = y.sample_shape[-1] - 1, self._grid
        rows, last_row = y.slice(1, 0, grid.intervals + 1), y.index(1, grid.intervals + 1)
        solved, last = ops.scratch("solved", (grid.intervals + 1, n)), ops.scratch("last of the times", (1,))
        times = self._times(ops, x, None) if self._own_times else None
        solution, clock = self._solution(ops, x, solved, s, times, None), self._clock_of_event(ops, times)
        start, event, final = x.slice(-1, 0, n), self._event(solution, s), ops.scratch("final state", (n,))
        if times is None:
            ops.copy(last, clock.slice(-1, grid.intervals, grid.intervals + 1))
        else:
            ops.max(last, clock)
        watch = Watch(event, grid.total, start, clock.slice(-1, 0, 1), last)
        if self.rtol is not None:
            attempts = Attempts(s.begins, s.tried, s.lengths, s.ends, s.checkpoints)
            control = StepControl(ops, self._tableau, solution.rhs, self.rtol, self.atol, clock, solution.inputs)
            control.record(solved, grid, attempts, watch=watch)
        else:
            if times is None:
                begins, lengths = (ops.constant("steps", each[:, None]) for each in grid.equal())
                ops.copy(s.begins, begins)
            else:
                lengths = ops.scratch("lengths without the event", (grid.total, 1))
                grid.fill(ops, times, s.begins, lengths)
                start = self._nan_if_falling(ops, start, times)
            ops.fill(s.lengths, 0.0)
            replace(solution, until=Until(watch, lengths)).forward(start, solved)
        ops.copy(final, solved.index(1, grid.intervals))
        hits = watch.end(s.lengths, final)
        if self.rtol is not None:
            ops.map(s.ends, lambda hit, t, end: where(hit > 0.0, t, end), hits, event.end.expand(1), s.ends)
        self._end_early(ops, solved, clock.expand(-1), event, final)
        begins = s.begins.split(1, grid.cut.segments).index(2, 0)
        self._end_early(ops, s.checkpoints, begins, event, final)
        ops.copy(last_row.slice(-1, 0, n), final)
        ops.copy(rows.slice(-1, 0, n), solved)
        offset = solution.inputs.first
        first = [offset] if isinstance(offset, View) else []
        number = 0.0 if first else offset
        to_time: Callable[..., Any] = lambda t, *first: t + (first[0] if first else number)  # noqa: E731
        ops.map(last_row.slice(-1, n, n + 1), to_time, event.end, *first)
        ops.map(
            rows.index(-1, n), lambda t, end, *first: to_time(where(t < end, t, end), *first), clock, event.end, *first
        )  # fmt: skip

    def _end_early(self, ops: Recorder, states: View, times: View, event: Event, final: View) -> None:
        """Record that the states from the time of the event on are the final state."""
        ops.map(
            states, lambda y, t, end, happens, final: where((happens > 0.0) & (t >= end), final, y),
            states, times, event.end.expand(-1), event.happens.expand(-1), final.expand(1),
        )  # fmt: skip

    def _clock_of_event(self, ops: Recorder, times: View | None) -> View:
        """The times as steps count them, (times,) or (batch, times)."""
        if self.rtol is not None:
            return self._clock(ops, times, None)
        return times if times is not None else ops.constant("times", np.array(self.times))

    def _event(self, solution: Solution, s: Any) -> Event:
        return Event(solution.ops, self._tableau, solution.rhs, s.children[1], solution.inputs, self.direction, s.found)

    def _pull_from_event(self, ops: Recorder, x: View, y: View, dy: View, dx: View, s: Any) -> None:
        """Record the pullback of `_forward_to_event`."""
        n, last = y.sample_shape[-1] - 1, self._grid.intervals
        d_rows, d_end, d_time = ops.scratch("d_rows", (last + 1, n)), ops.scratch("d_end", (n,)), ops.scratch("d_time", (1,))
        times = self._times(ops, x, None) if self._own_times else None
        solution, clock = self._solution(ops, x, d_rows, s, times, None), self._clock_of_event(ops, times)
        event, rows = self._event(solution, s), y.slice(1, 0, last + 1)
        after = ops.scratch("rows after the event", (last + 2, n + 1))
        ops.map(
            after.slice(1, 0, last + 1), lambda t, end, d: where(t >= end, d, 0.0),
            clock.expand(-1), event.end.expand(-1), dy.slice(1, 0, last + 1),
        )  # fmt: skip
        ops.copy(after.index(1, last + 1), dy.index(1, last + 1))
        total = ops.scratch("cotangent of the event", (n + 1,))
        ops.sum(total.expand(1), after)
        ops.copy(d_end, total.slice(-1, 0, n))
        ops.copy(d_time, total.slice(-1, n, n + 1))
        failed = self._failed(ops, y) if self.may_fail else None
        d_seen = event.pullback(y.index(1, last + 1).slice(-1, 0, n), d_end, d_time)
        ops.map(
            d_rows, lambda t, end, d: where(t >= end, 0.0, d), clock.expand(-1), event.end.expand(-1),
            dy.slice(1, 0, last + 1).slice(-1, 0, n),
        )  # fmt: skip
        if self.rtol is None:
            ops.copy(d_rows.index(1, last), d_end)
        solution.pullback(rows, d_rows, dx, failed, d_end)
        if self.given:
            own = dx.slice(-1, n, n + self.given)
            ops.map(own, lambda a, b: a + b, own, d_seen.slice(-1, n, n + self.given))

    def _failed(self, ops: Recorder, y: View) -> View:
        """0 for a solution with all its states, NaN for any other: this makes its gradients NaN too."""
        states, failed = ops.scratch("failed states", y.sample_shape), ops.scratch("failed", (1,))
        ops.map(states, lambda y: where(y == y, 0.0, nan), y)
        ops.sum(failed, states.reshape(y.sample_size))
        return failed

    @contextmanager
    def _mask(self, ops: Recorder) -> Iterator[View | None]:
        """1 at the times that a sample has, 0 after these, in a context in which the right-hand side has no lengths."""
        lengths, ops.output_lengths = ops.output_lengths, None
        try:
            yield mask_of(ops, lengths, self._grid.intervals + 1)
        finally:
            ops.output_lengths = lengths

    def _solution(self, ops: Recorder, x: View, y: View, s: Any, times: View | None, mask: View | None) -> Solution:
        n, node, clock, lengths = y.sample_shape[-1], s.children[0], None, None
        first: View | float = 0.0
        if self.rtol is not None:
            clock = self._clock(ops, times, mask)
            first = self.times[0] if isinstance(self.times, tuple) else times.slice(-1, 0, 1) if times is not None else 0.0
        inputs = Inputs(ops, x, n, self.given, self.time, self.forcing, first)
        kind = ImplicitSolution if self.implicit else Adjoint if self.adjoint else Solution
        if self._grid.varies:
            lengths = s.lengths
        elif mask is not None:
            lengths = self._grid.until(ops, mask)
        return kind(ops, self._tableau, self._grid, node, inputs, s, clock, lengths)

    def _times(self, ops: Recorder, x: View, mask: View | None) -> View:
        """The times of each sample, (batch, times). After a sample's length its last time is repeated."""
        count = self._own_times
        times = x.slice(-1, x.sample_shape[0] - count, x.sample_shape[0])
        return times if mask is None else _repeat_last(ops, times, mask)

    def _nan_if_falling(self, ops: Recorder, start: View, times: View) -> View:
        """The initial state, or NaN for a sample whose times do not ascend."""
        falls, largest = ops.scratch("falls", (self._own_times - 1,)), ops.scratch("largest fall", (1,))
        sound = ops.scratch("initial state", start.sample_shape)
        ops.map(falls, lambda a, b: a - b, *(times.slice(-1, k, k + self._own_times - 1) for k in (0, 1)))
        ops.max(largest, falls)
        ops.map(sound, lambda y, falls: where(falls > 0.0, nan, y), start, largest)
        return sound

    def _clock(self, ops: Recorder, times: View | None, mask: View | None) -> View:
        """The times since the first one, for step control: far from time 0, sums of lengths would lose digits."""
        if times is None:
            shared = ops.constant("clock", np.array(self.times) - self.times[0])  # type: ignore[index]
            return shared if mask is None else _repeat_last(ops, shared, mask)
        clock = ops.scratch("clock", (self._own_times,))
        ops.map(clock, lambda t, first: t - first, times, times.slice(-1, 0, 1))
        return clock

    def __repr__(self) -> str:
        times = text_of(self.times) if isinstance(self.times, tuple) else str(self.times)
        names = ["steps"] if self.rtol is None else ["rtol", "atol", "max_steps"]
        names += ["given", "time", "checkpoint_every", "adjoint"]
        more = "".join(f", {name}={value}" for name in names if (value := getattr(self, name)))
        more += f", event={self.event!r}" if self.event is not None else ""
        more += f", direction={self.direction!r}" if self.direction != "both" else ""
        more += ", forcing=..." if self.forcing is not None else ""
        return f"ODE({self.rhs!r}, {times}, method={self.method!r}{more})"


def text_of(times: Sequence[float]) -> str:
    """Times as they are printed."""
    numbers = [f"{t:g}" for t in times]
    return f"({', '.join(numbers if len(numbers) <= MAX_SHOWN else [*numbers[:2], '...', numbers[-1]])})"


def _repeat_last(ops: Recorder, times: View, mask: View) -> View:
    """Record the times of each sample, (batch, times), with its last one repeated after its length."""
    kept, last, has = ops.scratch("own times", mask.sample_shape[:1]), ops.scratch("last own time", (1,)), mask.index(2, 0)
    ops.map(kept, lambda has, t, first: where(has > 0.0, t, first), has, times, times.slice(-1, 0, 1))
    ops.max(last, kept)
    ops.map(kept, lambda has, t, last: where(has > 0.0, t, last), has, times, last)
    return kept


def _within(mask: Any, y: Any) -> Any:
    """Zero after a sample's length, where states may be NaN."""
    return where(mask > 0.0, y, 0.0)


def trace_of(ode: ODE) -> Layer:
    """The trace of a layer, with its parameters: a layer whose output are the steps."""
    made = _Trace.__new__(_Trace)
    vars(made).update(ode.__getstate__(), checkpoint_every=ode.max_steps or ode._grid.needed, adjoint=False)  # one segment
    return made


class _Trace(ODE):
    """An `ODE` whose output has a row for each step: time before it, its length, the length that was tried, state before it.

    One more row has the time and the state after the last step. With step control, times are counted from the first one.
    """

    @property
    def may_fail(self) -> bool:
        return False

    def declare(self, d: Declaration) -> None:
        super().declare(d)
        d.output((self._grid.total + 1, 3 + d.output_shape[-1] - (self.event is not None)))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        n, grid = y.sample_shape[-1] - 3, self._grid
        clock = y.slice(1, 0, grid.total)
        with self._mask(ops) as mask:
            self._solve(ops, x, ops.scratch("y", (grid.intervals + 1, n)), s, mask, y.slice(-1, 3, 3 + n))
        ops.fill(y.index(1, grid.total).slice(-1, 0, 3), 0.0)
        if self.rtol is not None:
            ops.copy(y.index(1, grid.total).slice(-1, 0, 1), s.ends.index(1, grid.total - 1))
        begins, lengths = (s.begins, s.lengths) if grid.varies else self._equal(ops)
        for k, view in enumerate((begins, lengths, lengths if self.rtol is None else s.tried)):
            ops.copy(clock.slice(-1, k, k + 1), view)

    def _equal(self, ops: Recorder) -> tuple[View, View]:
        """The times before the steps that all samples share, and their lengths, (steps, 1)."""
        begins, lengths = self._grid.equal()
        return ops.constant("begins", begins[:, None]), ops.constant("lengths", lengths[:, None])

    def pullback(self, *_: Any) -> None:
        raise NotImplementedError("steps have no pullback")
