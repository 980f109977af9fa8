"""Ordinary differential equations: a layer whose output is the solution at given times, for a right-hand side that is a layer.

Steps have fixed lengths, so that the pullback is the exact one of the numbers computed: it goes back through the same loop. The
right-hand side is recorded once a stage; its weights' gradients become products over all steps (`chains.program.hoist`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chains.checks import check_count, check_flags, check_word, whole
from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.recurrent import keep_each_step
from chains.layers.tableaus import METHODS, Row, Tableau
from chains.messages import shown
from chains.program.recorder import Recorder
from chains.program.steps import Steps
from chains.program.view import View


class ODE(Layer):
    """``dy/dt = rhs(y)``, solved from the state at the first of some times: the output has the states at all of them.

    A sample is the initial state, (n,), and the output (len(times), n), the initial state first. For an initial state to be
    trained put an `Embedding` before, which has one for each trajectory.

    Parameters
    ----------
    rhs : Layer
        A layer or chain from (n + given + time + forcing,) to (n,). Its input is the state, behind that the `given` features,
        the time, and the forcing, as far as there are any. `Equations` makes one of formulas and a network.
    times : sequence of float
        Two or more, ascending.
    method : str
        "euler" (order 1), "midpoint" (2), "rk4" (4), "tsit5" (5), or "leapfrog" (2, symplectic): the state is positions, then
        velocities, and the change of each half depends on the other half alone.
    steps : int
        How many equal steps there are from each of the times to the next one.
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

    Source: Hairer, Nørsett and Wanner, "Solving ordinary differential equations I", 1993; Chen et al. 2018 for layers of this
    kind, Rackauckas et al. 2020 (arXiv 2001.04385) for networks beside known terms.
    """

    def __init__(
        self, rhs: Layer, times: Sequence[float], method: str = "tsit5", steps: int = 1, *, given: int = 0,
        time: bool = False, forcing: Any = None,
    ) -> None:  # fmt: skip
        if not isinstance(rhs, Layer):
            raise TypeError(f"`rhs` (={shown(rhs)}) must be a layer, such as Chain(Dense(2, 5, tanh), Dense(5, 2))")
        check_word("method", method, *METHODS)
        check_flags(time=time)
        if whole(given, 0) is None:
            raise ValueError(f"`given` (={shown(given)}) must be a whole number of features, 0 or more")
        self.rhs = rhs
        self.times = tuple(_ascending("times", times, 2).tolist())
        self.method = method
        self.steps = check_count("steps", steps)
        self.given = int(given)
        self.time = time
        self.forcing = None if forcing is None else _forcing(forcing)

    @property
    def _tableau(self) -> Tableau:
        return METHODS[self.method]

    @property
    def _known(self) -> int:
        """How many features of the right-hand side are functions of the time."""
        return int(self.time) + (0 if self.forcing is None else len(self.forcing[1][0]))

    @property
    def _total(self) -> int:
        """The number of steps."""
        return (len(self.times) - 1) * self.steps

    def fixed_input(self) -> SampleShape | None:
        shape = self.rhs.fixed_input()
        return (shape[0] - self._known,) if shape is not None and len(shape) == 1 and shape[0] > self._known else None

    def declare(self, d: Declaration) -> None:
        if len(d.input) != 1 or d.input[0] <= self.given:
            raise ValueError(f"a sample must be a state (n,) and {self.given} given features, but its shape is {d.input}")
        n, stages = d.input[0] - self.given, self._tableau.stages
        output = d.child("", self.rhs, (d.input[0] + self._known,))
        if output != (n,):
            raise ValueError(f"`rhs` (={self.rhs!r}) gives {output} for a state of shape {(n,)}: it must give its change")
        if len(self._tableau.halves) > n or n % len(self._tableau.halves):
            raise ValueError(f"`method` (={self.method!r}) takes positions and as many velocities, not a state of length {n}")
        keep_each_step(d.children[-1], self._total, stages)
        d.saved("x", (self._total, stages, d.input[0] + self._known))  # what the right-hand side sees
        d.saved("k", (self._total, stages, n))  # what it gives
        d.output((len(self.times), n))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        n, (node,) = y.sample_shape[-1], s.children
        width, known = x.sample_shape[0], self._at_stages(ops)
        state, times = ops.scratch("state", (n,)), ops.scratch("states", (self._total, n))
        ops.copy(state, x.slice(-1, 0, n))
        with ops.loop(self._total) as at:
            h = self._length(ops, at)
            ops.copy(at.now(times, 1), state)
            slopes = [at.now(s.k, 1).index(1, i) for i in range(self._tableau.stages)]
            for i, k in enumerate(slopes):
                seen = at.now(s.x, 1).index(1, i)
                rows = [a[i] for a, _ in self._tableau.halves]
                self._move(ops, seen.slice(-1, 0, n), state, h, rows, slopes)
                if self.given:
                    ops.copy(seen.slice(-1, n, width), x.slice(-1, n, width))
                if known is not None:
                    ops.copy(seen.slice(-1, width, width + self._known), at.now(known, 0).index(0, i))
                stage = node.at_a_step(lambda view, i=i: at.now(view, 1).index(1, i), lambda _, view: view, {})
                stage.forward(ops, seen, k)
            self._move(ops, state, state, h, [b for _, b in self._tableau.halves], slopes)
        ops.copy(y.slice(1, 0, len(self.times) - 1), self._at_times(times))
        ops.copy(y.index(1, len(self.times) - 1), state)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        n, (node,), last = y.sample_shape[-1], s.children, len(self.times) - 1
        width, stages = x.sample_shape[0], range(self._tableau.stages)
        d_state, d_times = ops.scratch("d_state", (n,)), ops.scratch("d_states", (self._total, n))
        d_seen = [ops.scratch(f"d_x{i}", (width + self._known,)) for i in stages]
        d_slope = [ops.scratch(f"d_k{i}", (n,)) for i in stages]
        d_given = dx.slice(-1, n, width)
        ops.copy(d_state, dy.index(1, last))
        ops.fill(d_times, 0.0)
        ops.copy(self._at_times(d_times), dy.slice(1, 0, last))
        ops.fill(d_given, 0.0)
        sums: list[tuple[View, View]] = []  # the gradient of a parameter, and those of a stage at each step

        def gradient(name: str, view: View) -> View:
            each = ops.scratch(f"{name} of each step", (self._total, *view.sample_shape), batched=False)
            sums.append((view, each))
            return at.now(each, 0)

        with ops.loop(self._total, backwards=True) as at:
            h = self._length(ops, at)
            for i in reversed(stages):
                self._back(ops, d_slope[i], d_state, h, i, d_seen)
                stage = node.at_a_step(lambda view, i=i: at.now(view, 1).index(1, i), gradient, {})
                seen, k = (at.now(view, 1).index(1, i) for view in (s.x, s.k))
                stage.pullback(ops, seen, k, d_slope[i], d_seen[i])
            states = [view.slice(-1, 0, n) for view in d_seen]
            ops.map(d_state, lambda *terms: sum(terms), d_state, at.now(d_times, 1), *states)
            if self.given:
                ops.map(d_given, lambda *terms: sum(terms), d_given, *(view.slice(-1, n, width) for view in d_seen))
        ops.copy(dx.slice(-1, 0, n), d_state)
        _add_up(ops, sums)

    def _length(self, ops: Recorder, at: Steps) -> View | float:
        """The length of a step: a number where all are alike."""
        lengths = np.repeat(np.diff(self.times) / self.steps, self.steps)
        if np.ptp(lengths) <= 1e-14 * np.max(np.abs(self.times)):
            return float((self.times[-1] - self.times[0]) / self._total)
        return at.now(ops.constant("lengths of steps", lengths[:, None]), 0)

    def _at_stages(self, ops: Recorder) -> View | None:
        """The time and the forcing at each step and stage, (steps, stages, features)."""
        if not self._known:
            return None
        starts = [np.linspace(a, b, self.steps, endpoint=False) for a, b in zip(self.times, self.times[1:], strict=False)]
        lengths = np.repeat(np.diff(self.times) / self.steps, self.steps)
        t = np.concatenate(starts)[:, None] + lengths[:, None] * np.array(self._tableau.c)
        features = [t] if self.time else []
        if self.forcing is not None:
            features += [np.interp(t, self.forcing[0], column) for column in zip(*self.forcing[1], strict=True)]
        return ops.constant("time and forcing", np.stack(features, -1))

    def _at_times(self, states: View) -> View:
        """Of an array of each step those entries whose step begins at one of the times, which the last one is not."""
        return states.split(1, len(self.times) - 1).index(2, 0)

    def _halves(self, view: View) -> list[View]:
        """The parts of a state that have numbers of their own in the method."""
        halves = len(self._tableau.halves)
        size = view.sample_shape[-1] // halves
        return [view.slice(-1, k * size, (k + 1) * size) for k in range(halves)]

    def _move(self, ops: Recorder, out: View, y: View, h: View | float, rows: Sequence[Row], slopes: Sequence[View]) -> None:
        """Record ``out = y + h * (a weighted sum of slopes)``, with weights for each half."""
        parts = zip(rows, self._halves(out), self._halves(y), *map(self._halves, slopes), strict=True)
        for row, to, start, *ks in parts:
            _combine(ops, to, start, h, [(a, k) for a, k in zip(row, ks, strict=False) if a])

    def _back(self, ops: Recorder, out: View, d: View, h: View | float, i: int, d_seen: Sequence[View]) -> None:
        """Record the cotangent of slope i, from that of the step's end and those of the later stages."""
        n = d.sample_shape[-1]
        later = [self._halves(view.slice(-1, 0, n)) for view in d_seen]
        for number, ((a, b), to, end) in enumerate(zip(self._tableau.halves, self._halves(out), self._halves(d), strict=True)):
            terms = [(b[i], end)] if b[i] else []
            terms += [(a[r][i], later[r][number]) for r in range(i + 1, len(d_seen)) if a[r][i]]
            _combine(ops, to, None, h, terms)

    def __repr__(self) -> str:
        times = ", ".join(f"{t:g}" for t in self.times[:2]) + (f", ..., {self.times[-1]:g}" if len(self.times) > 2 else "")
        more = "".join(f", {name}={value}" for name, value in (("given", self.given), ("time", self.time)) if value)
        more += ", forcing=..." if self.forcing is not None else ""
        return f"ODE({self.rhs!r}, ({times}), method={self.method!r}, steps={self.steps}{more})"


def _combine(ops: Recorder, out: View, start: View | None, h: View | float, terms: Sequence[tuple[float, View]]) -> None:
    """Record ``out = start + h * sum(weight * view)``; without a start from zero."""
    weights, views = [weight for weight, _ in terms], [view for _, view in terms]
    first = [] if start is None else [start]
    if not terms:
        ops.fill(out, 0.0) if start is None else ops.copy(out, start)
    elif isinstance(h, View):

        def varying(h: Any, *values: Any) -> Any:
            change = h * sum(w * value for w, value in zip(weights, values[len(first) :], strict=True))
            return values[0] + change if first else change

        ops.map(out, varying, h, *first, *views)
    else:

        def fixed(*values: Any) -> Any:
            terms = [*values[: len(first)], *(h * w * value for w, value in zip(weights, values[len(first) :], strict=True))]
            return sum(terms[1:], terms[0])

        ops.map(out, fixed, *first, *views)


def _add_up(ops: Recorder, sums: Sequence[tuple[View, View]]) -> None:
    """Record the sums of gradients over all steps, and over the stages that have the same parameter."""
    totals: dict[View, list[View]] = {}
    for view, each in sums:
        total = ops.scratch(f"{each.buffer.name}, summed", view.sample_shape, batched=False)
        ops.sum(total, each)
        totals.setdefault(view, []).append(total)
    for view, parts in totals.items():
        ops.map(view, lambda *parts: sum(parts[1:], parts[0]), *parts)


def _ascending(name: str, given: Any, least: int) -> np.ndarray:
    """Times as an array (n,). Raises TypeError or ValueError, naming the setting, for others than finite, ascending ones."""
    try:
        times = np.array(given, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` (={shown(given)}) must be a sequence of ascending times") from None
    if times.ndim != 1 or len(times) < least:
        raise ValueError(f"`{name}` has shape {times.shape}, but must be {least} or more times, one behind another")
    if not np.isfinite(times).all():
        raise ValueError(f"`{name}` must be finite, but time {int(np.argmin(np.isfinite(times)))} is not")
    if (falls := np.diff(times) <= 0).any():
        k = int(np.argmax(falls))
        raise ValueError(f"`{name}` must ascend, but {times[k + 1]:g} comes after {times[k]:g}")
    return times


def _forcing(given: Any) -> tuple[tuple[float, ...], tuple[Row, ...]]:
    """Times (m,) and values (m, features), as a value that can be compared."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(f"`forcing` (={shown(given)}) must be a pair of arrays, times (m,) and values (m, features)")
    times = _ascending("forcing[0]", given[0], 1)
    try:
        values = np.array(given[1], np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"`forcing[1]` (={shown(given[1])}) must be numbers, an array (m, features)") from None
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or len(values) != len(times) or not values.shape[1]:
        raise ValueError(f"`forcing[1]` has shape {np.shape(given[1])}, but there are {len(times)} times: wanted (m, features)")
    if not np.isfinite(values).all():
        raise ValueError("`forcing[1]` must be finite")
    return tuple(times.tolist()), tuple(map(tuple, values.tolist()))
