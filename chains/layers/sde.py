"""Stochastic differential equations: a layer whose output is a path. Drift and diffusion are layers.

Noise is drawn before the first step. Steps, checkpoints and the sums of gradients are those of an `ODE`.

Source: Kloeden and Platen, "Numerical solution of stochastic differential equations", 1992.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from chains.expr import cos, log, sin, sqrt
from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.ode.grid import Around, Grid
from chains.layers.ode.methods import Tableau
from chains.layers.ode.right_side import GradientSums, Inputs, Kept, at_once, check_deterministic
from chains.layers.ode.settings import ascending, text_of
from chains.layers.ode.solution import Solution
from chains.layers.recurrent import keep_each_step
from chains.program.loop import Steps
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_flags, check_word, whole
from chains.support.messages import shown

Coefficient = Callable[[Any, Any, Any], Any]  # of z from N(0, 1), the length of a step, and its square root
Terms = Sequence[tuple[Coefficient, View]]


class Stage(NamedTuple):
    """The coefficients of drift and diffusion at a point: those for the state, and those for the next point, `ahead`."""

    drift: Coefficient | None
    diffusion: Coefficient
    ahead: tuple[Coefficient, Coefficient] | None = None
    at: float = 0.0  # the position of the point within the step

    @property
    def used(self) -> list[tuple[int, Coefficient]]:
        """The coefficients of the drift, 0, and of the diffusion, 1, if any."""
        return [(k, each) for k, each in enumerate((self.drift, self.diffusion)) if each is not None]


def _length(z: Any, h: Any, root: Any) -> Any:
    return h


def _increment(z: Any, h: Any, root: Any) -> Any:
    return root * z


def _correction(z: Any, h: Any, root: Any) -> Any:
    return (0.5 * root) * (z * z - 1.0)


_HALVES: tuple[Coefficient, Coefficient] = (lambda z, h, root: 0.5 * h, lambda z, h, root: (0.5 * root) * z)
METHODS = {
    "euler": (Stage(_length, _increment),),
    "heun": (Stage(*_HALVES, (_length, _increment)), Stage(*_HALVES, at=1.0)),
    "milstein": (
        Stage(_length, lambda z, h, root: root * z - _correction(z, h, root), (_length, lambda z, h, root: root)),
        Stage(None, _correction),
    ),
}


class SDE(Layer):
    """Paths of ``dy = drift(y) dt + diffusion(y) dW``, with separate noise for each number of the state.

    A sample is the initial state, (n,), and the output (times, n), the initial state first. Each sample of a batch has a
    separate path. The noise follows from a seed, the number of the training step and the number of the sample
    (`chains.program.operations.Random`). It is the same on every backend to rounding, and the pullback takes the same path.
    `train` draws other paths at each step; calls in the mode "train" draw those of their `seed`. In the mode "eval", the
    default of ``net(x, p)``, the paths are those of the seed 0.

    Parameters
    ----------
    drift, diffusion : Layer
        Layers or chains from (n + given + time,) to (n,). Their input is the state, then the `given` features and the time.
    times : sequence of float
        Two or more, ascending.
    method : str
        "euler" (Euler and Maruyama: Itô's integral, strong order 1/2), "milstein" (Itô; order 1 if each number's diffusion
        depends on that number alone; without derivatives of the diffusion), or "heun" (Stratonovich's integral, order 1 for
        such a diffusion).
    steps : int
        The number of equal steps from each of the times to the next.
    given : int
        The number of features of a sample, after the initial state, that are constants, not state.
    time : bool
        Whether drift and diffusion take the time.
    checkpoint_every : int, optional
        As of `ODE`: keep only the noise and the state of every k-th step for the pullback.

    Raises
    ------
    TypeError, ValueError
        For other settings, and for a drift or a diffusion whose output does not fit, or that draws random numbers.
    """

    def __init__(
        self, drift: Layer, diffusion: Layer, times: Sequence[float], method: str = "euler", steps: int = 1, *, given: int = 0,
        time: bool = False, checkpoint_every: int | None = None,
    ) -> None:  # fmt: skip
        for name, layer in (("drift", drift), ("diffusion", diffusion)):
            if not isinstance(layer, Layer):
                raise TypeError(f"`{name}` (={shown(layer)}) must be a layer: a Chain, or Equations of formulas")
        check_word("method", method, *METHODS)
        check_flags(time=time)
        if whole(given, 0) is None:
            raise ValueError(f"`given` (={shown(given)}) must be a whole number of features, 0 or more")
        self.drift, self.diffusion = drift, diffusion
        self.times = tuple(ascending("times", times, 2).tolist())
        self.method = method
        self.steps = check_count("steps", steps)
        self.given = int(given)
        self.time = time
        self.checkpoint_every = None if checkpoint_every is None else check_count("checkpoint_every", checkpoint_every)

    @property
    def _grid(self) -> Grid:
        return Grid(self.times, self.steps, every=self.checkpoint_every)

    def fixed_input(self) -> SampleShape | None:
        shape = self.drift.fixed_input()
        return (shape[0] - self.time,) if shape is not None and len(shape) == 1 and shape[0] > self.time else None

    def declare(self, d: Declaration) -> None:
        if len(d.input) != 1 or d.input[0] <= self.given:
            raise ValueError(f"a sample must be a state (n,) and {self.given} given features, but its shape is {d.input}")
        n, grid, stages = d.input[0] - self.given, self._grid, len(METHODS[self.method])
        d.child("", _Coefficients(self.drift, self.diffusion, n), (n + self.given + self.time,))
        check_deterministic(d.children[-1])
        for part in d.children[-1].all:
            part.timed = False  # lengths are those of the times here
        keep_each_step(d.children[-1], grid.cut.length, stages)
        d.saved("x", (grid.cut.length, stages, n + self.given + self.time))  # the input of drift and diffusion
        for name in ("drift", "diffusion"):
            d.saved(name, (grid.cut.length, stages, n))
        if grid.repeats:
            d.saved("checkpoints", (grid.cut.segments, n))
        draws = -(-grid.needed * n // 2)
        d.temporary("uniform", (2, draws))
        d.saved("normal", (2 * draws,))
        if grid.cut.spare:
            d.saved("noise", (grid.total, n))
        d.output_times = 0
        d.output((grid.intervals + 1, n))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        path, n, draws = self._path(ops, x, y, s), y.sample_shape[1], s.uniform.sample_shape[1]
        ops.random(s.uniform, fixed=not ops.training)
        normal = s.normal.slice(-1, 0, draws), s.normal.slice(-1, draws, 2 * draws)
        ops.map(normal, _normal, s.uniform.index(1, 0), s.uniform.index(1, 1))
        if path.grid.cut.spare:
            ops.fill(s.noise, 0.0)
            ops.copy(path.grid.own_steps(s.noise), self._drawn(s, n).split(1, path.grid.intervals))
        path.forward(x.slice(-1, 0, n), y)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        self._path(ops, x, y, s).pullback(y, dy, dx, None)

    def _drawn(self, s: Any, n: int) -> View:
        """The normal numbers of the steps, (steps, n)."""
        return s.normal.slice(-1, 0, self._grid.needed * n).reshape(self._grid.needed, n)

    def _path(self, ops: Recorder, x: View, y: View, s: Any) -> _Path:
        n, grid, stages = y.sample_shape[1], self._grid, METHODS[self.method]
        inputs = Inputs(ops, x, n, self.given, self.time, None)
        tableau = Tableau(1, tuple(stage.at for stage in stages), ())
        noise = s.noise if grid.cut.spare else self._drawn(s, n)
        return _Path(ops, tableau, grid, s.children[0], inputs, s, stages=stages, noise=noise)

    def __repr__(self) -> str:
        names = ("steps", "given", "time", "checkpoint_every")
        more = "".join(f", {name}={value}" for name in names if (value := getattr(self, name)))
        return f"SDE({self.drift!r}, {self.diffusion!r}, {text_of(self.times)}, method={self.method!r}{more})"


def _normal(u: Any, v: Any) -> tuple[Any, Any]:
    radius, angle = sqrt(-2.0 * log(1.0 - u)), 2.0 * math.pi * v
    return radius * cos(angle), radius * sin(angle)


class _Coefficients(Layer):
    """Drift and diffusion, whose functions `_Path` records."""

    def __init__(self, drift: Layer, diffusion: Layer, n: int) -> None:
        self.drift, self.diffusion, self.n = drift, diffusion, n

    def declare(self, d: Declaration) -> None:
        for name in ("drift", "diffusion"):
            output = d.child(name, getattr(self, name), d.input)
            if output != (self.n,):
                layer = f"`{name}` (={getattr(self, name)!r})"
                raise ValueError(f"{layer} gives {output} for a state of shape {(self.n,)}: it must give {(self.n,)}")
        d.output((2, self.n))

    def forward(self, *_: Any) -> None:
        raise NotImplementedError("a path records drift and diffusion")

    def pullback(self, *_: Any) -> None:
        raise NotImplementedError("a path records drift and diffusion")


@dataclass(frozen=True)
class _Path(Solution):
    """The steps of a method with `noise`, (batch, steps, n), numbers from N(0, 1)."""

    stages: tuple[Stage, ...] = ()
    noise: Any = None

    def _run(self, at: Around, length: int, state: View, befores: View | None, *, keeps: bool) -> None:
        ops, n, s, known = self.ops, self.n, self.s, self.inputs.at_stages(self.grid, self.tableau)
        once = None if keeps else [at_once(ops, node) for node in self.rhs.children]
        arrays = [self._scratch(i) for i in range(len(self.stages))] if once else []
        with ops.loop(length) as step:
            if befores is not None:
                ops.copy(step.now(befores, 1), state)
            added: list[tuple[Coefficient, View]] = []
            ahead: Terms = ()
            for i, stage in enumerate(self.stages):
                seen, *values = arrays[i] if once else [step.now(view, 1).index(1, i) for view in (s.x, s.drift, s.diffusion)]
                self._add(seen.slice(-1, 0, n), at, step, state, ahead)
                self._record_inputs(seen, None if known is None else self._now(known, at, step).index(0, i), at, step, 0.0, 0.0)
                kept = Kept(ops, step, i)
                for k, coefficient in stage.used:
                    node = once[k] if once else self.rhs.children[k].at_a_step(kept.array, lambda _, view: view, {})
                    node.forward(ops, seen, values[k])
                    added.append((coefficient, values[k]))
                kept.keep()
                ahead = list(zip(stage.ahead, values, strict=True)) if stage.ahead else ()
            self._add(state, at, step, state, added)

    def _scratch(self, i: int) -> list[View]:
        """The input of drift and diffusion at a point, and their outputs, if they are not kept."""
        lengths = {"seen": self.inputs.width, "drift": self.n, "diffusion": self.n}
        return [self.ops.scratch(f"{name} {i}", (length,)) for name, length in lengths.items()]

    def _add(self, out: View, at: Around, step: Steps, start: View | None, terms: Terms) -> None:
        """Record ``out = start + sum(coefficient * view)``; without a start from zero."""
        ops, first = self.ops, [] if start is None else [start]
        if not terms:
            assert start is not None
            ops.copy(out, start)
            return
        h = self._length(at, step)
        fixed: tuple[float, ...] = ()
        varying: list[View] = []
        if isinstance(h, View):
            roots = ops.constant("roots of lengths", np.sqrt(self.grid.equal()[1])[:, None])
            varying = [h, self._now(roots, at, step)]
        else:
            fixed = (h, math.sqrt(h))

        def formula(z: Any, *values: Any) -> Any:
            lengths, values = fixed or values[:2], values[len(varying) :]
            scaled = zip(terms, values[len(first) :], strict=True)
            parts = [*values[: len(first)], *(coefficient(z, *lengths) * value for (coefficient, _), value in scaled)]
            return sum(parts[1:], parts[0])

        ops.map(out, formula, self._now(self.noise, at, step), *varying, *first, *(view for _, view in terms))

    def _pull_steps(self, at: Around, sums: GradientSums, d_state: View, dy: View, d_times: View | None, d_given: View) -> None:
        ops, n, s, shape = self.ops, self.n, self.s, (self.inputs.width,)
        assert d_times is not None
        with ops.loop(self.grid.cut.length, backwards=True) as step:
            d_seen: list[View] = []
            for i, stage in reversed(list(enumerate(self.stages))):
                seen, *values = (step.now(view, 1).index(1, i) for view in (s.x, s.drift, s.diffusion))
                kept = Kept(ops, step, i)
                gradient = partial(sums.of_step, at, step)
                nodes = {k: self.rhs.children[k].at_a_step(kept.array, gradient, {}) for k, _ in stage.used}
                kept.fetch()
                later = [view.slice(-1, 0, n) for view in d_seen[-1:]]  # of the next point
                for k, coefficient in stage.used:
                    d_value, d_x = ops.scratch(f"d_value {i} {k}", (n,)), ops.scratch(f"d_x {i} {k}", shape)
                    ahead = [(stage.ahead[k], view) for view in later] if stage.ahead else []
                    self._add(d_value, at, step, None, [(coefficient, d_state), *ahead])
                    nodes[k].pullback(ops, seen, values[k], d_value, d_x)
                    d_seen.append(d_x)
                if len(stage.used) > 1:
                    parts, total = d_seen[-2:], ops.scratch(f"d_x {i}", shape)
                    ops.map(total, lambda a, b: a + b, *parts)
                    d_seen[-2:] = [total]
            states = [view.slice(-1, 0, n) for view in d_seen]
            ops.map(d_state, lambda *terms: sum(terms), d_state, step.now(d_times, 1), *states)
            if self.inputs.given:
                given = [view.slice(-1, n, n + self.inputs.given) for view in d_seen]
                ops.map(d_given, lambda *terms: sum(terms), d_given, *given)
