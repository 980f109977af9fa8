"""The search for a lower point along a line, to the strong Wolfe conditions.

Source: Nocedal and Wright, "Numerical Optimization", 2nd edition, algorithms 3.5 and 3.6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from chains.support.messages import shown

Array = Any
Function = Callable[[Array], tuple[float, Array]]

DECREASE, CURVATURE = 1e-4, 0.9  # of the strong Wolfe conditions; SciPy's
MAX_TRIES = 40


class Line:
    """The point reached, with its value and gradient, and the search for the next one along a line."""

    def __init__(self, function: Function, p: Array) -> None:
        self._function = function
        self.calls = 0
        self.p = p
        self.value, self.g = self._evaluate(p)

    def search(self, d: Array, slope: float, step: float) -> float:
        """Go along `d`, where the slope is `slope`, to a point of the strong Wolfe conditions, or at least of a lower value.

        `step` is tried first. Returns how far it went, 0 where there is no such point.
        """
        start = self.value
        origin, best = self.p, (0.0, self.p, self.value, self.g)
        low, high = (0.0, start, slope), None  # the ends of the interval: place, value, slope
        for _ in range(MAX_TRIES):
            p = origin + step * d
            value, g = self._evaluate(p)
            rise = float(d @ g)
            if not (math.isfinite(value) and math.isfinite(rise)):
                value = rise = math.inf
            if value < best[2]:
                best = (step, p, value, g)
            # Near the minimum values differ by rounding alone, and slopes tell (Hager and Zhang 2005, approximate Wolfe).
            flat = value <= start + 1e-15 * abs(start) and (2.0 * DECREASE - 1.0) * slope >= rise
            falls = value <= start + DECREASE * step * slope or flat
            if falls and abs(rise) <= -CURVATURE * slope:
                best = (step, p, value, g)
                break
            if not falls or (value > low[1] and low[0] > 0.0):
                high = (step, value, rise)
            elif rise >= 0.0:
                high, low = low, (step, value, rise)
            else:
                if high is not None and (high[0] - low[0]) * rise >= 0.0:
                    high = low
                low = (step, value, rise)
            if high is None:
                step *= 2.0 if step < 1.0 else 4.0
                continue
            if abs(high[0] - low[0]) <= 1e-14 * max(abs(high[0]), abs(low[0])):
                break
            step = _between(low, high)
        step, self.p, self.value, self.g = best
        return step

    def _evaluate(self, p: Array) -> tuple[float, Array]:
        self.calls += 1
        returned = self._function(p)
        if not isinstance(returned, (tuple, list)) or len(returned) != 2:
            raise TypeError(f"`function` must return the value and the gradient, not {shown(returned)}")
        value, g = returned
        if getattr(g, "shape", None) != p.shape or g.dtype.kind not in "fiu":
            raise ValueError(f"`function` must return a gradient of real numbers, of shape {p.shape}, not {shown(g)}")
        try:
            return float(value), g
        except (TypeError, ValueError) as error:
            raise TypeError(f"`function` must return a number as the value, not {shown(value)}") from error


def _between(low: tuple[float, float, float], high: tuple[float, float, float]) -> float:
    """The minimum of the cubic through both ends (equation 3.59), or the middle where that lies too near to an end."""
    (a, fa, da), (b, fb, db) = low, high
    middle = 0.5 * (a + b)
    if not (math.isfinite(fb) and math.isfinite(db)):
        return 0.9 * a + 0.1 * b
    d1 = da + db - 3.0 * (fa - fb) / (a - b)
    inside = d1 * d1 - da * db
    if inside < 0.0:
        return middle
    d2 = math.copysign(math.sqrt(inside), b - a)
    bottom = db - da + 2.0 * d2
    if bottom == 0.0:
        return middle
    step = b - (b - a) * (db + d2 - d1) / bottom
    edge = 0.1 * abs(b - a)
    return step if min(a, b) + edge <= step <= max(a, b) - edge else middle
