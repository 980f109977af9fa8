"""What the right-hand side of a differential equation sees behind the state: given features, the time and the forcing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chains.expr import maximum, minimum
from chains.layers.ode.grid import Grid
from chains.layers.ode.runge_kutta import Length
from chains.layers.ode.tableaus import Row, Tableau
from chains.program.recorder import Recorder
from chains.program.view import View

Forcing = tuple[tuple[float, ...], tuple[Row, ...]]


@dataclass(frozen=True)
class Inputs:
    """What is seen behind the first n numbers, the state.

    Parameters
    ----------
    ops, x, n : Recorder, View, int
        The recorder, the samples, and the length of the state with which each begins.
    given, time, forcing : int, bool, (times, values) or None
        As of `ODE`.
    first : View or float
        The time from which times are counted.
    """

    ops: Recorder
    x: View
    n: int
    given: int
    time: bool
    forcing: Forcing | None
    first: View | float = 0.0

    @property
    def known(self) -> int:
        """How many features are functions of the time."""
        return int(self.time) + (0 if self.forcing is None else len(self.forcing[1][0]))

    @property
    def width(self) -> int:
        """How many features the right-hand side sees."""
        return self.n + self.given + self.known

    def at_stages(self, grid: Grid, tableau: Tableau) -> View | None:
        """The time and the forcing at each step and stage, (steps, stages, features), where all samples have the same steps."""
        if not self.known or grid.varies:
            return None
        begins, lengths = grid.equal()
        t = begins[:, None] + lengths[:, None] * np.array(tableau.c)
        features = [t] if self.time else []
        if self.forcing is not None:
            features += [np.interp(t, self.forcing[0], column) for column in zip(*self.forcing[1], strict=True)]
        return self.ops.constant("time and forcing", np.stack(features, -1))

    def record(self, seen: View, t: View | None = None, h: Length = 0.0, c: float = 0.0) -> None:
        """Record what is given; with a `t`, also time and forcing at t + c * h."""
        ops, behind = self.ops, self.n + self.given
        if self.given:
            ops.copy(seen.slice(-1, self.n, behind), self.x.slice(-1, self.n, behind))
        if not self.known or t is None:
            return
        now = ops.scratch("now", (1,))
        move_time = [h] if isinstance(h, View) and c else []
        ops.map(now, lambda t, *h: t + c * h[0] if h else t, t, *move_time)
        first = self.first
        if isinstance(first, View):
            ops.map(now, lambda first, t: first + t, first, now)
        elif first:
            ops.map(now, lambda t: first + t, now)
        if self.time:
            ops.copy(seen.slice(-1, behind, behind + 1), now)
        if self.forcing is not None:
            self._force(self.forcing, seen.slice(-1, behind + self.time, self.width), now)

    def _force(self, forcing: Forcing, out: View, now: View) -> None:
        """Record the forcing at a time of each sample: a mean of its values with weights that are hats over their times."""
        ops, at, values = self.ops, np.array(forcing[0]), np.array(forcing[1])
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
