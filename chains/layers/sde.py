"""Stochastic differential equations: a layer whose output is a path, for a drift and a diffusion that are layers.

The steps are those of a recurrence (`chains.layers.recurrent`), whose inputs are the coefficients of drift and diffusion, noise
among them. So loops, products over all steps, checkpoints and exports are the recurrence's.

Source: Kloeden and Platen, "Numerical solution of stochastic differential equations", 1992.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from chains.expr import cos, log, sin, sqrt
from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.ode.layer import MAX_SHOWN, ascending
from chains.layers.ode.right_side import check_deterministic
from chains.layers.recurrent import Cell, Recurrent
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_flags, check_word, whole
from chains.support.messages import shown


class Stage(NamedTuple):
    """What drift f and diffusion g at a point add: ``drift * length * f + noise(z, root) * g``, with z from N(0, 1).

    `root` is the square root of the step's length. They are added to the state, and, with the coefficients `to_drift` and
    `to_noise`, to the state before the step for the next point; at the last point both are the same.
    """

    drift: float
    noise: Callable[[Any, Any], Any]
    to_drift: float = 0.0
    to_noise: Callable[[Any, Any], Any] | None = None
    at: float = 0.0  # the part of the step after which the point is


def _half(z: Any, root: Any) -> Any:
    return 0.5 * root * z


def _increment(z: Any, root: Any) -> Any:
    return root * z


METHODS = {
    "euler": (Stage(1.0, _increment),),
    "heun": (Stage(0.5, _half, 1.0, _increment), Stage(0.5, _half, at=1.0)),
    "milstein": (
        Stage(1.0, lambda z, root: root * (z - 0.5 * (z * z - 1.0)), 1.0, lambda z, root: root + 0.0 * z),
        Stage(0.0, lambda z, root: 0.5 * root * (z * z - 1.0)),
    ),
}


class SDE(Layer):
    """``dy = drift(y) dt + diffusion(y) dW`` from a state at the first of some times; each number of the state has its noise.

    A sample is the initial state, (n,), and the output (times, n), the initial state first. Each sample of a batch has a path
    of its own. The numbers of the noise follow from a seed, the number of the training step and the number of the sample
    (`chains.program.operations.Random`): they are the same on every backend to rounding, and the pullback takes the same path.
    `train` draws other paths at each step, and calls in the mode "train" those of their `seed`. In the mode "eval", the default
    of ``net(x, p)``, the paths are those of the seed 0.

    Parameters
    ----------
    drift, diffusion : Layer
        Layers or chains from (n + given + time,) to (n,). Their input is the state, then the `given` features and the time.
    times : sequence of float
        Two or more, ascending.
    method : str
        "euler" (Euler and Maruyama: Itô's integral, strong order 1/2), "milstein" (Itô, order 1 where each number's diffusion
        depends on that number alone; without derivatives of the diffusion), or "heun" (Stratonovich's integral, order 1 for
        such a diffusion).
    steps : int
        How many equal steps there are from each of the times to the next one.
    given : int
        The number of features of a sample, after the initial state, that are constants, not state.
    time : bool
        Whether drift and diffusion take the time.
    checkpoint_every : int, optional
        As of `Recurrent`: keep only the state of every k-th step for the pullback.

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
                raise TypeError(f"`{name}` (={shown(layer)}) must be a layer, such as Chain(Dense(2, 5, tanh), Dense(5, 2))")
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
    def _total(self) -> int:
        """All steps."""
        return self.steps * (len(self.times) - 1)

    @property
    def _stages(self) -> tuple[Stage, ...]:
        return METHODS[self.method]

    def fixed_input(self) -> SampleShape | None:
        shape = self.drift.fixed_input()
        return (shape[0] - self.time,) if shape is not None and len(shape) == 1 and shape[0] > self.time else None

    def declare(self, d: Declaration) -> None:
        if len(d.input) != 1 or d.input[0] <= self.given:
            raise ValueError(f"a sample must be a state (n,) and {self.given} given features, but its shape is {d.input}")
        n = d.input[0] - self.given
        stages, draws = len(self._stages), -(-self._total * n // 2)
        path = Recurrent(
            _Point(self.drift, self.diffusion, n, stages > 1), return_sequences=True, checkpoint_every=self.checkpoint_every
        )
        inputs = (self._total * stages, (1 + stages) * n + stages + self.given + self.time)
        solved = d.child("", path, inputs)
        for part in d.children[-1].all:
            part.timed = False  # lengths are those of the times here
        d.saved("inputs", inputs)
        d.saved("solved", solved)
        d.temporary("uniform", (2, draws))
        d.temporary("normal", (2 * draws,))
        d.temporary("d_solved", solved)
        d.temporary("d_inputs", inputs)
        d.output_times = 0
        d.output((len(self.times), n))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        (path,), n = s.children, y.sample_shape[1]
        self._draw(ops, s)
        z = s.normal.slice(-1, 0, self._total * n).reshape(self._total, n)
        lengths = np.repeat(np.diff(self.times) / self.steps, self.steps)[:, None]
        numbers = np.tile(np.arange(self.steps), len(self.times) - 1)[:, None]
        begins = np.repeat(self.times[:-1], self.steps)[:, None] + lengths * numbers
        roots = ops.constant("roots of lengths", np.sqrt(lengths))
        steps = s.inputs.split(1, self._total)
        for k, stage in enumerate(self._stages):
            parts = _Inputs(steps.index(2, k), n, len(self._stages) > 1)
            last = stage if stage.to_noise is None else stage._replace(drift=stage.to_drift, noise=stage.to_noise)
            coefficients = (parts.drift, parts.noise, stage), (parts.to_drift, parts.to_noise, last)
            for drift, noise, each in coefficients[: len(self._stages)]:
                ops.map(noise, each.noise, z, roots)
                ops.copy(drift, ops.constant("lengths", each.drift * lengths))
            ops.fill(parts.start, 0.0)
            if self.given:
                ops.copy(parts.rest.slice(-1, 0, self.given), x.slice(-1, n, n + self.given).expand(1))
            if self.time:
                ops.copy(parts.rest.slice(-1, self.given, self.given + 1), ops.constant("time", begins + stage.at * lengths))
        ops.copy(_Inputs(s.inputs.index(1, 0), n, len(self._stages) > 1).start, x.slice(-1, 0, n))
        path.forward(ops, s.inputs, s.solved)
        ops.copy(y.index(1, 0), x.slice(-1, 0, n))
        ops.copy(y.slice(1, 1, len(self.times)), self._ends(s.solved))

    def _draw(self, ops: Recorder, s: Any) -> None:
        """Normal numbers, two from two uniform ones each (Box and Muller 1958)."""
        ops.random(s.uniform)
        half = s.uniform.sample_shape[1]
        normal = s.normal.slice(-1, 0, half), s.normal.slice(-1, half, 2 * half)
        ops.map(normal, _normal, s.uniform.index(1, 0), s.uniform.index(1, 1))

    def _ends(self, solved: View) -> View:
        """The states at the times after the first one."""
        return solved.split(1, len(self.times) - 1).index(2, self.steps * len(self._stages) - 1)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        (path,), n = s.children, y.sample_shape[1]
        ops.fill(s.d_solved, 0.0)
        ops.copy(self._ends(s.d_solved), dy.slice(1, 1, len(self.times)))
        path.pullback(ops, s.inputs, s.solved, s.d_solved, s.d_inputs)
        parts = _Inputs(s.d_inputs, n, len(self._stages) > 1)
        ops.map(dx.slice(-1, 0, n), lambda a, b: a + b, dy.index(1, 0), parts.start.index(1, 0))
        if self.given:
            ops.sum(dx.slice(-1, n, n + self.given).expand(1), parts.rest.slice(-1, 0, self.given))

    def __repr__(self) -> str:
        numbers = [f"{t:g}" for t in self.times]
        times = f"({', '.join(numbers if len(numbers) <= MAX_SHOWN else [*numbers[:2], '...', numbers[-1]])})"
        names = ("steps", "given", "time", "checkpoint_every")
        more = "".join(f", {name}={value}" for name in names if (value := getattr(self, name)))
        return f"SDE({self.drift!r}, {self.diffusion!r}, {times}, method={self.method!r}{more})"


def _normal(u: Any, v: Any) -> tuple[Any, Any]:
    radius, angle = sqrt(-2.0 * log(1.0 - u)), 2.0 * math.pi * v
    return radius * cos(angle), radius * sin(angle)


class _Inputs:
    """The parts of the inputs of a `_Point`: coefficients, the state to begin with, and features of drift and diffusion."""

    def __init__(self, inputs: View, n: int, several: bool) -> None:
        lengths = [n, n, 1, *([n, 1] if several else [])]
        ends = list(accumulate(lengths))
        parts = [inputs.slice(-1, end - length, end) for length, end in zip(lengths, ends, strict=True)]
        self.start, self.noise, self.drift = parts[:3]
        self.to_noise, self.to_drift = parts[3:] or (self.noise, self.drift)
        self.rest = inputs.slice(-1, ends[-1], int(inputs.shape[-1]))  # type: ignore[arg-type]


class _Point(Cell):
    """Drift and diffusion at a point of a step. It carries the next point and, of `several` in a step, the state before it."""

    def __init__(self, drift: Layer, diffusion: Layer, n: int, several: bool) -> None:
        self.drift, self.diffusion, self.n, self.several = drift, diffusion, n, several

    def declare(self, d: Declaration) -> None:
        n = self.n
        width = n + d.input[0] - (2 + self.several) * n - 1 - self.several
        d.carry("at", (n,))
        if self.several:
            d.carry("state", (n,))
        for name, layer in (("drift", self.drift), ("diffusion", self.diffusion)):
            output = d.child(name, layer, (width,))
            if output != (n,):
                raise ValueError(f"`{name}` (={layer!r}) gives {output} for a state of shape {(n,)}: it must give {(n,)}")
            check_deterministic(d.children[-1])
            d.saved(name, (n,))
            d.temporary(f"d_{name}", (n,))
        d.saved("seen", (width,))
        d.temporary("d_at", (width,))
        d.temporary("d_more", (width,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        (drift, diffusion), n, parts = s.children, self.n, _Inputs(x, self.n, self.several)
        at = s.seen.slice(-1, 0, n)
        ops.map(at, lambda a, b: a + b, s.before.at, parts.start)
        if parts.rest.sample_size:
            ops.copy(s.seen.slice(-1, n, s.seen.sample_shape[0]), parts.rest)
        drift.forward(ops, s.seen, s.drift)
        diffusion.forward(ops, s.seen, s.diffusion)
        if not self.several:
            ops.map(y, _added, at, s.drift, s.diffusion, parts.drift, parts.noise)
            return
        state, values = s.after.state, (s.drift, s.diffusion)
        ops.map(state, lambda a, b: a + b, s.before.state, parts.start)
        ops.map(y, _added, state, *values, parts.to_drift, parts.to_noise)
        ops.map(state, _added, state, *values, parts.drift, parts.noise)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        (drift, diffusion), n = s.children, self.n
        parts, d_parts = (_Inputs(view, n, self.several) for view in (x, dx))
        d_values = s.d_drift, s.d_diffusion
        if self.several:
            given = s.d_after.state, dy, parts.drift, parts.to_drift, parts.noise, parts.to_noise
            ops.map(d_values, lambda d, e, f, to_f, z, to_z: (d * f + e * to_f, d * z + e * to_z), *given)
        else:
            ops.map(d_values, lambda d, f, z: (d * f, d * z), dy, parts.drift, parts.noise)
        drift.pullback(ops, s.seen, s.drift, s.d_drift, s.d_at)
        diffusion.pullback(ops, s.seen, s.diffusion, s.d_diffusion, s.d_more)
        ops.map(s.d_at, lambda a, b: a + b, s.d_at, s.d_more)
        d_at = s.d_at.slice(-1, 0, n)
        if self.several:
            ops.map(s.d_before.state, lambda a, b: a + b, s.d_after.state, dy)
            ops.copy(s.d_before.at, d_at)
            ops.map(d_parts.start, lambda a, b: a + b, s.d_before.state, d_at)
        else:
            ops.map((s.d_before.at, d_parts.start), lambda a, b: (a + b, a + b), d_at, dy)
        for view in (d_parts.noise, d_parts.drift, d_parts.to_noise, d_parts.to_drift)[: 4 if self.several else 2]:
            ops.fill(view, 0.0)  # no parameter is before these
        if d_parts.rest.sample_size:
            ops.copy(d_parts.rest, s.d_at.slice(-1, n, s.d_at.sample_shape[0]))


def _added(y: Any, f: Any, g: Any, drift: Any, noise: Any) -> Any:
    return y + drift * f + noise * g
