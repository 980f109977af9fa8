"""L-BFGS within bounds: the direction of a quasi-Newton model for the free parameters, projected to the bounds.

Source: Schmidt, Kim and Sra, "Projected Newton-type methods in machine learning", 2012 (two-metric projection).
"""

from __future__ import annotations

import math

import numpy as np

from chains.minimize.levenberg_marquardt import at_bounds
from chains.minimize.quasi_newton import DECREASE, MAX_TRIES, Array, Direction, Function, evaluated
from chains.minimize.stopping import EPSILON, PRECISE, Limits, way_down

MIN_CURVATURE = 1e-10  # of a pair: s'y relative to |s| |y|


class ProjectedQuasiNewton:
    """A point within bounds, with its value and gradient. It searches for the next one along a projected line."""

    def __init__(self, function: Function, p: Array, direction: Direction, low: Array, high: Array) -> None:
        self._function, self._direction, self._low, self._high = function, direction, low, high
        self.calls = 1  # points at which the function was called
        self.fall = 0.0  # of the value, in the last step
        self.p = p
        self.value, self.g = evaluated(function, p)

    def converged(self, limits: Limits) -> bool:
        """Whether the gradient's largest entry is small; each counts at most as the distance to the bound."""
        way = way_down(self.p, self.g, self._low, self._high)
        return float(np.minimum(abs(self.g), way).max(initial=0.0)) <= limits.gtol

    def stalls(self, ftol: float) -> bool:
        """Whether the last step lowered the value by little."""
        return ftol > 0.0 and self.fall <= ftol * max(abs(self.value + self.fall), abs(self.value), 1.0)

    @property
    def state(self) -> Array:
        """The model of the curvature, as an array."""
        return self._direction.state

    def step(self) -> str:
        """Go to a lower point. Returns the reason if none is found."""
        free = 1.0 - at_bounds(self.p, self.g, self._low, self._high)
        slope = self.g * free
        promised = 0.0
        for attempt in range(2):
            if attempt:
                self._direction.forget()
            scaled = self._direction.scaled
            d = self._direction(slope) * free
            if not float(d @ slope) < 0.0:
                d = -slope
                scaled = False
            first = 1.0 if scaled else min(1.0, 1.0 / max(float(abs(slope).sum()), 1e-300))
            found, promised = self._search(d, first)
            if found:
                return ""
        return (
            PRECISE if promised <= math.sqrt(EPSILON) * abs(self.value) else "no lower value was found along the projected line"
        )

    def _search(self, d: Array, step: float) -> tuple[bool, float]:
        """Go along `d` to a point of sufficient decrease. Returns whether there is one, and the decrease that the model
        promised.
        """
        most = 0.0
        for _ in range(MAX_TRIES):
            p = np.clip(self.p + step * d, self._low, self._high)
            moved = p - self.p
            promised = -float(self.g @ moved)
            most = most or promised
            if not promised > 0.0:
                break
            value, g = evaluated(self._function, p)
            self.calls += 1
            fall = self.value - value
            if math.isfinite(value) and bool(abs(g).max() < math.inf) and fall >= DECREASE * promised and fall > 0.0:
                change = g - self.g
                sizes = math.sqrt(float(moved @ moved) * float(change @ change))
                if float(moved @ change) > MIN_CURVATURE * sizes:
                    self._direction.learn(moved, change, g, promised)
                self.p, self.value, self.g, self.fall = p, value, g, fall
                return True, most
            # To the minimum of the parabola through both values, within limits.
            shrink = 0.5 * promised / (promised - fall) if math.isfinite(fall) and fall < promised else 0.1
            step *= min(0.5, max(0.1, shrink))
        return False, most
