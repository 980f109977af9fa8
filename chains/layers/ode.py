"""Ordinary differential equations: a layer whose output is the solution at given times, for a right-hand side that is a layer.

The pullback is the exact one of the steps that were done: it goes back through the same loop. Lengths of steps are constants
there. The right-hand side is recorded once a stage; its weights' gradients become products over all steps
(`chains.program.hoist`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from chains.checks import check_count, check_flags, check_number, check_word, whole
from chains.expr import maximum, minimum, where
from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.ode_settings import ascending, forcing_of, tolerance
from chains.layers.recurrent import keep_each_step
from chains.layers.runge_kutta import Length, add_up, move, pull_slope
from chains.layers.stages import Kept, check_no_chance
from chains.layers.step_control import Attempts, StepControl
from chains.layers.tableaus import METHODS, Tableau
from chains.messages import shown
from chains.program.recorder import Recorder
from chains.program.steps import Steps
from chains.program.view import View

MOST_STEPS = 256  # attempts of step control, unless said


class ODE(Layer):
    """``dy/dt = rhs(y)``, solved from the state at the first of some times: the output has the states at all of them.

    A sample is the initial state, (n,), and the output (times, n), the initial state first. For an initial state to be
    trained put an `Embedding` before, which has one for each trajectory.

    Parameters
    ----------
    rhs : Layer
        A layer or chain from (n + given + time + forcing,) to (n,). Its input is the state, behind that the `given` features,
        the time, and the forcing, as far as there are any. `Equations` makes one of formulas and a network.
    times : sequence of float, or int
        Two or more, ascending. A whole number k: each sample brings k times of its own, which are its last features. They
        ascend too; equal ones give equal states.
    method : str
        "euler" (order 1), "midpoint" (2), "rk4" (4), "tsit5" (5), or "leapfrog" (2, symplectic): the state is positions, then
        velocities, and the change of each half depends on the other half alone.
    steps : int
        How many equal steps there are from each of the times to the next one.
    rtol : float, optional
        Step control, with "tsit5", in place of equal steps: the estimated error of a step stays below ``atol + rtol * abs(y)``,
        as a mean square over the state. Each trajectory has steps of its own, which end at the times.
    atol : float, or sequence of n floats, optional
        By default a thousandth of `rtol`.
    max_steps : int, optional
        With step control: how many steps are tried at most on the whole way, 256 unless said. The pullback takes memory and
        time for so many. States at times that are not reached are NaN, and `ode_steps` tells why.
    given : int
        So many of a sample's features, behind the initial state, are no state but stay as they are: a dose, a temperature.
    time : bool
        Whether `rhs` takes the time.
    forcing : pair of arrays, shapes (m,) and (m, features), optional
        Ascending times, and what acts on the system at these. Between them it is interpolated linearly, and constant outside.

    Raises
    ------
    TypeError, ValueError
        For other settings, for a `rhs` whose output does not fit, and for one with a state or arrays of the whole batch.

    Notes
    -----
    Times and lengths of steps are constants of the pullback, as in diffrax: the gradient by a sample's times is 0.

    Source: Hairer, Nørsett and Wanner, "Solving ordinary differential equations I", 1993; Chen et al. 2018 for layers of this
    kind, Rackauckas et al. 2020 (arXiv 2001.04385) for networks beside known terms.
    """

    checked: ClassVar[bool] = True  # whether a call raises where step control does not reach the last time

    def __init__(
        self, rhs: Layer, times: Sequence[float] | int, method: str = "tsit5", steps: int = 1, *, rtol: float | None = None,
        atol: Any = None, max_steps: int | None = None, given: int = 0, time: bool = False, forcing: Any = None,
    ) -> None:  # fmt: skip
        if not isinstance(rhs, Layer):
            raise TypeError(f"`rhs` (={shown(rhs)}) must be a layer, such as Chain(Dense(2, 5, tanh), Dense(5, 2))")
        check_word("method", method, *METHODS)
        check_flags(time=time)
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

    def _control(self, rtol: Any, atol: Any, max_steps: Any) -> tuple[float | None, Any, int | None]:
        """The checked settings of step control."""
        if rtol is None:
            for name, given in (("atol", atol), ("max_steps", max_steps)):
                if given is not None:
                    raise ValueError(f"`{name}` (={shown(given)}) is of use with step control only: set `rtol` too")
            return None, None, None
        check_number("rtol", rtol, "in (0, inf)")
        if not self._tableau.error:
            raise ValueError(f"`rtol` (={shown(rtol)}): method {self.method!r} does not estimate its error, but 'tsit5' does")
        if self.steps != 1:
            raise ValueError(f"`steps` (={self.steps}) is a number of equal steps, but `rtol` (={shown(rtol)}) chooses steps")
        most = MOST_STEPS if max_steps is None else check_count("max_steps", max_steps)
        return float(rtol), 1e-3 * float(rtol) if atol is None else tolerance("atol", atol), most

    @property
    def _tableau(self) -> Tableau:
        return METHODS[self.method]

    @property
    def _own_times(self) -> int:
        """How many features of a sample are times."""
        return self.times if isinstance(self.times, int) else 0

    @property
    def _known(self) -> int:
        """How many features of the right-hand side are functions of the time."""
        return int(self.time) + (0 if self.forcing is None else len(self.forcing[1][0]))

    @property
    def _intervals(self) -> int:
        return (self.times if isinstance(self.times, int) else len(self.times)) - 1

    @property
    def _total(self) -> int:
        """The number of steps."""
        return self.max_steps or self._intervals * self.steps

    @property
    def _varies(self) -> bool:
        """Whether samples have steps of their own."""
        return self.rtol is not None or bool(self._own_times)

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
            raise ValueError(f"`rhs` (={self.rhs!r}) gives {output} for a state of shape {(n,)}: it must give its change")
        if len(self._tableau.halves) > n or n % len(self._tableau.halves):
            raise ValueError(f"`method` (={self.method!r}) takes positions and as many velocities, not a state of length {n}")
        if isinstance(self.atol, tuple) and len(self.atol) != n:
            raise ValueError(f"`atol` (={self.atol}) must have as many numbers as the state, {n}, or be one for all")
        check_no_chance(d.children[-1])
        keep_each_step(d.children[-1], self._total, stages)
        d.saved("x", (self._total, stages, n + self.given + self._known))  # what the right-hand side sees
        d.saved("k", (self._total, stages, n))  # what it gives
        for name in ("begins", "lengths", "tried", "ends") if self._varies else ():
            d.saved(name, (self._total, 1))
        d.saved("end", (n,))
        d.output((self._intervals + 1, n))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        n, (node,), adaptive = y.sample_shape[-1], s.children, self.rtol is not None
        state, known = ops.scratch("state", (n,)), self._at_stages(ops)
        if self.rtol is not None:
            around = lambda seen, t, h, c: self._around(ops, seen, x, n, t, h, c)  # noqa: E731
            control = StepControl(ops, self._tableau, node, self.rtol, self.atol, self._clock(ops, x), around)
            attempts = Attempts(s.begins, s.tried, s.lengths, s.ends)
            control.record(y, x.slice(-1, 0, n), n + self.given + self._known, attempts)
        elif self._own_times:
            self._cut(ops, x, s)
        states = ops.scratch("states", (self._total, n)) if not adaptive else None
        ops.copy(state, x.slice(-1, 0, n))
        with ops.loop(self._total) as at:
            h = self._length(ops, at, s)
            if states is not None:
                ops.copy(at.now(states, 1), state)
            slopes = [at.now(s.k, 1).index(1, i) for i in range(self._tableau.stages)]
            for i, k in enumerate(slopes):
                seen = at.now(s.x, 1).index(1, i)
                rows = [a[i] for a, _ in self._tableau.halves]
                move(ops, self._tableau, seen.slice(-1, 0, n), state, h, rows, slopes)
                if known is not None:
                    self._around(ops, seen, x, n)
                    ops.copy(seen.slice(-1, n + self.given, n + self.given + self._known), at.now(known, 0).index(0, i))
                else:
                    t = at.now(s.begins, 1) if self._varies else None
                    self._around(ops, seen, x, n, t, h, self._tableau.c[i])
                kept = Kept(ops, at, i)
                node.at_a_step(kept.array, lambda _, view: view, {}).forward(ops, seen, k)
                kept.keep()
            move(ops, self._tableau, state, state, h, [b for _, b in self._tableau.halves], slopes)
        ops.copy(s.end, state)
        if states is not None:
            ops.copy(y.slice(1, 0, self._intervals), self._at_times(states))
            ops.copy(y.index(1, self._intervals), state)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        n, (node,), last = y.sample_shape[-1], s.children, self._intervals
        stages, tableau, known = range(self._tableau.stages), self._tableau, n + self.given
        d_state, adaptive = ops.scratch("d_state", (n,)), self.rtol is not None
        d_seen = [ops.scratch(f"d_x{i}", (known + self._known,)) for i in stages]
        d_states = [view.slice(-1, 0, n) for view in d_seen]
        d_slope = [ops.scratch(f"d_k{i}", (n,)) for i in stages]
        d_given = dx.slice(-1, n, known)
        if adaptive:
            ops.fill(d_state, 0.0)
        else:
            ops.copy(d_state, dy.index(1, last))
        d_times = None if adaptive else self._cotangents(ops, dy)
        ops.fill(dx.slice(-1, n, known + self._own_times), 0.0)
        sums: list[tuple[View, View]] = []  # the gradient of a parameter, and those of a stage at each step

        def gradient(name: str, view: View) -> View:
            each = ops.scratch(f"{name} of each step", (self._total, *view.sample_shape), batched=False)
            sums.append((view, each))
            return at.now(each, 0)

        with ops.loop(self._total, backwards=True) as at:
            h = self._length(ops, at, s)
            if d_times is None:
                arrived = at.now(s.ends, 1), at.now(s.lengths, 1)
                self._arrive(ops, d_state, dy, self._clock(ops, x), *arrived)
            for i in reversed(stages):
                pull_slope(ops, tableau, d_slope[i], d_state, h, i, d_states)
                kept = Kept(ops, at, i)
                stage = node.at_a_step(kept.array, gradient, {})
                kept.fetch()
                seen, k = (at.now(view, 1).index(1, i) for view in (s.x, s.k))
                stage.pullback(ops, seen, k, d_slope[i], d_seen[i])
            more = [] if d_times is None else [at.now(d_times, 1)]
            ops.map(d_state, lambda *terms: sum(terms), d_state, *more, *d_states)
            if self.given:
                ops.map(d_given, lambda *terms: sum(terms), d_given, *(view.slice(-1, n, known) for view in d_seen))
        if d_times is None:
            clock = self._clock(ops, x)
            self._arrive(ops, d_state, dy, clock, clock.slice(-1, 0, 1))
        ops.copy(dx.slice(-1, 0, n), d_state)
        add_up(ops, sums)

    # Times

    def _times(self, x: View) -> View:
        """Each sample's own times, (batch, times)."""
        return x.slice(-1, x.sample_shape[0] - self._own_times, x.sample_shape[0])

    def _clock(self, ops: Recorder, x: View) -> View:
        """The times since the first one, by which step control goes: far from time 0, sums of lengths would lose digits."""
        if isinstance(self.times, tuple):
            return ops.constant("clock", np.array(self.times) - self.times[0])
        clock, times = ops.scratch("clock", (self.times,)), self._times(x)
        ops.map(clock, lambda t, first: t - first, times, times.slice(-1, 0, 1))
        return clock

    def _cut(self, ops: Recorder, x: View, s: Any) -> None:
        """Record the equal steps between the samples' own times."""
        times, steps = self._times(x), self.steps
        starts, stops = (times.slice(-1, k, k + self._intervals).expand(-1) for k in (0, 1))
        numbers = ops.constant("numbers of steps", np.arange(steps, dtype=np.float64))
        lengths, begins = (view.reshape(self._intervals, steps) for view in (s.lengths, s.begins))
        ops.map(lengths, lambda a, b: (b - a) * (1.0 / steps), starts, stops)
        ops.map(begins, lambda a, h, k: a + k * h, starts, lengths, numbers)

    def _length(self, ops: Recorder, at: Steps, s: Any) -> Length:
        """The length of a step: a number where all are alike."""
        if self._varies:
            return at.now(s.lengths, 1)
        assert isinstance(self.times, tuple)
        lengths = np.repeat(np.diff(self.times) / self.steps, self.steps)
        if np.ptp(lengths) <= 1e-14 * np.max(np.abs(self.times)):
            return float((self.times[-1] - self.times[0]) / self._total)
        return at.now(ops.constant("lengths of steps", lengths[:, None]), 0)

    def _at_stages(self, ops: Recorder) -> View | None:
        """The time and the forcing at each step and stage, (steps, stages, features), where all samples have the same steps."""
        if not self._known or self._varies:
            return None
        assert isinstance(self.times, tuple)
        starts = [np.linspace(a, b, self.steps, endpoint=False) for a, b in zip(self.times, self.times[1:], strict=False)]
        lengths = np.repeat(np.diff(self.times) / self.steps, self.steps)
        t = np.concatenate(starts)[:, None] + lengths[:, None] * np.array(self._tableau.c)
        features = [t] if self.time else []
        if self.forcing is not None:
            features += [np.interp(t, self.forcing[0], column) for column in zip(*self.forcing[1], strict=True)]
        return ops.constant("time and forcing", np.stack(features, -1))

    def _around(
        self, ops: Recorder, seen: View, x: View, n: int, t: View | None = None, h: Length = 0.0, c: float = 0.0
    ) -> None:
        """Record what the right-hand side sees behind the state: what is given; with a `t`, time and forcing at t + c * h.

        With step control, `t` is a time since the first one.
        """
        known = n + self.given
        if self.given:
            ops.copy(seen.slice(-1, n, known), x.slice(-1, n, known))
        if not self._known or t is None:
            return
        now = ops.scratch("now", (1,))
        move_time = [h] if isinstance(h, View) and c else []
        ops.map(now, lambda t, *h: t + c * h[0] if h else t, t, *move_time)
        if self.rtol is not None:
            first = self.times[0] if isinstance(self.times, tuple) else self._times(x).slice(-1, 0, 1)
            if isinstance(first, View):
                ops.map(now, lambda first, t: first + t, first, now)
            elif first:
                ops.map(now, lambda t: first + t, now)
        if self.time:
            ops.copy(seen.slice(-1, known, known + 1), now)
        if self.forcing is not None:
            self._force(ops, seen.slice(-1, known + self.time, known + self._known), now)

    def _force(self, ops: Recorder, out: View, now: View) -> None:
        """Record the forcing at a time of each sample: a mean of its values with weights that are hats over their times."""
        assert self.forcing is not None
        at, values = np.array(self.forcing[0]), np.array(self.forcing[1])
        if len(at) == 1:
            ops.copy(out, ops.constant("forcing", values[0]))
            return
        gaps = 1.0 / np.diff(at)
        rise, fall = (ops.constant(f"forcing, {name}", each) for name, each in
                      (("rise", np.r_[gaps[0], gaps]), ("fall", np.r_[gaps, gaps[-1]])))  # fmt: skip
        knots, weights = ops.constant("forcing, times", at), ops.scratch("weights of forcing", (len(at),))
        inside = ops.scratch("within forcing", (1,))
        ops.map(inside, lambda t: minimum(maximum(t, float(at[0])), float(at[-1])), now)
        hat = lambda t, a, rise, fall: maximum(minimum(1.0 + (t - a) * rise, 1.0 - (t - a) * fall), 0.0)  # noqa: E731
        ops.map(weights, hat, inside, knots, rise, fall)
        ops.matmul(out, weights, ops.constant("forcing", values))

    def _at_times(self, states: View) -> View:
        """Of an array of each step those entries whose step begins at one of the times, which the last one is not."""
        return states.split(1, self._intervals).index(2, 0)

    def _cotangents(self, ops: Recorder, dy: View) -> View:
        """The cotangents of the states that steps begin with, (steps, n)."""
        d_times = ops.scratch("d_states", (self._total, dy.sample_shape[-1]))
        ops.fill(d_times, 0.0)
        ops.copy(self._at_times(d_times), dy.slice(1, 0, self._intervals))
        return d_times

    def _arrive(self, ops: Recorder, d_state: View, dy: View, times: View, end: View, h: View | None = None) -> None:
        """Record that the cotangents of the states at the end of a step of length h are added."""
        here, total = ops.scratch("here", dy.sample_shape), ops.scratch("all here", d_state.sample_shape)
        taken = [] if h is None else [h.expand(-1)]
        picked = lambda time, t, d, *h: where((time == t) & (h[0] > 0.0) if h else time == t, d, 0.0)  # noqa: E731
        ops.map(here, picked, times.expand(-1), end.expand(-1), dy, *taken)
        ops.sum(total.expand(1), here)
        ops.map(d_state, lambda a, b: a + b, d_state, total)

    def __repr__(self) -> str:
        if isinstance(self.times, int):
            times = str(self.times)
        else:
            times = (
                "("
                + ", ".join(f"{t:g}" for t in self.times[:2])
                + (f", ..., {self.times[-1]:g}" if len(self.times) > 2 else "")
                + ")"
            )
        pairs: list[tuple[str, Any]] = [("given", self.given), ("time", self.time)]
        if self.rtol is None:
            pairs.insert(0, ("steps", self.steps))
        else:
            pairs[:0] = [("rtol", self.rtol), ("atol", self.atol), ("max_steps", self.max_steps)]
        more = "".join(f", {name}={value}" for name, value in pairs if value)
        more += ", forcing=..." if self.forcing is not None else ""
        return f"ODE({self.rhs!r}, {times}, method={self.method!r}{more})"
