"""Quasi-Newton methods: models of a function's curvature, and a line search to the strong Wolfe conditions.

Source: Nocedal and Wright, "Numerical Optimization", 2nd edition, algorithms 3.5 and 3.6 (line search), 6.1 (BFGS) and
7.5 (L-BFGS).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from chains.support.memory import memory_of
from chains.support.messages import shown

Array = Any
Function = Callable[[Array], tuple[float, Array]]

DECREASE, CURVATURE = 1e-4, 0.9  # of the strong Wolfe conditions; SciPy's
MAX_TRIES = 40
EPSILON = float(np.finfo(np.float64).eps)
MAX_WIDENING = 10.0  # of BFGS's matrix in an iteration: 1 / (1 - CURVATURE) of the line search, the most after a unit step
BLOCK_ELEMENTS = 2**20  # entries of BFGS's matrix that are changed together, so that no second matrix is needed


class Direction(ABC):
    """A model of the function's curvature; calling it gives the direction to go in."""

    @property
    @abstractmethod
    def scaled(self) -> bool:
        """Whether the model is of the function's own scale, so that a step of 1 is the one to try first."""

    @abstractmethod
    def __call__(self, g: Array) -> Array: ...

    @abstractmethod
    def learn(self, s: Array, y: Array, expected: float) -> None:
        """A step `s` changed the gradient by `y`, where the model expected s @ y to be `expected`."""

    @abstractmethod
    def forget(self) -> None: ...


class DenseInverse(Direction):
    """BFGS: the inverse Hessian as a matrix, widened where the function is less curved than the matrix says.

    The line search corrects a matrix that is too large in one step, but accepts the short unit steps of one that is too small.
    Source: Al-Baali, "Numerical experience with a class of self-scaling quasi-Newton algorithms", JOTA 96, 1998.
    """

    def __init__(self, p: Array) -> None:
        self._inverse = memory_of(p).contiguous(np.eye(p.size))
        self._pair = memory_of(p).empty((2, p.size), p.dtype)  # of the latest update, of rank two

    @property
    def scaled(self) -> bool:
        return False

    def __call__(self, g: Array) -> Array:
        return -(self._inverse @ g)

    def learn(self, s: Array, y: Array, expected: float) -> None:
        sy = float(s @ y)
        if not sy > 1e-300:
            return
        scale = min(max(1.0, expected / sy), MAX_WIDENING)
        hy = self._inverse @ y * scale
        half = ((0.5 + 0.5 * float(y @ hy) / sy) * s - hy) / sy
        self._pair[0], self._pair[1] = s, half
        rows = max(1, BLOCK_ELEMENTS // s.size)
        for first in range(0, s.size, rows):
            block = self._inverse[first : first + rows]
            if scale != 1.0:
                block *= scale
            block += self._pair[:, first : first + rows].T @ self._pair[::-1]  # s half' + half s'

    def forget(self) -> None:
        self._inverse[...] = 0.0
        self._inverse.reshape(-1)[:: len(self._inverse) + 1] = 1.0


class Pairs(Direction):
    """L-BFGS: the latest steps and what they did to the gradient. Its scalars are arrays, which stay on a GPU."""

    def __init__(self, memory: int) -> None:
        self._pairs: deque[tuple[Array, Array, Array]] = deque(maxlen=memory)

    @property
    def scaled(self) -> bool:
        return bool(self._pairs)

    def __call__(self, g: Array) -> Array:
        q, factors = -g, []
        for s, y, rho in reversed(self._pairs):
            factors.append(rho * (s @ q))
            q -= factors[-1] * y
        if self._pairs:
            s, y, rho = self._pairs[-1]
            q *= 1.0 / (rho * (y @ y))
        for (s, y, rho), factor in zip(self._pairs, reversed(factors), strict=True):
            q += (factor - rho * (y @ q)) * s
        return q

    def learn(self, s: Array, y: Array, expected: float) -> None:
        sy = s @ y
        if float(sy) > 1e-300:
            self._pairs.append((s, y, 1.0 / sy))

    def forget(self) -> None:
        self._pairs.clear()


class QuasiNewton:
    """A point of the descent, with its value and gradient; it searches the next one along the direction of a model."""

    def __init__(self, function: Function, p: Array, direction: Direction) -> None:
        self._function, self._direction = function, direction
        self.calls = 0  # points at which the function was called
        self.p = p
        self.value, self.g = self._evaluate(p)
        self._start = abs(self.value)
        # How much the last step lowered the value; at first what makes the step about 1 long.
        self.fall = 0.5 * float(self.g @ self.g) / max(float(abs(self.g).sum()), 1e-300)

    def step(self) -> str:
        """Go to a lower point; the reason where none is found."""
        before, g = self.value, self.g
        # A model that promises no more than rounding is at the minimum, as far as values can say.
        rounding = math.sqrt(EPSILON) * abs(before) + EPSILON * self._start
        d = self._direction(g)
        slope = float(d @ g)  # along the line
        step = self._search(d, slope) if slope < 0.0 else 0.0
        if step == 0.0 and 0.0 < -slope <= rounding:
            return "the precision of the values is reached"
        if step == 0.0:  # rounding has spoilt the model, or it is wrong from here on: begin anew
            self._direction.forget()
            d = -g
            slope = float(d @ g)
            step = self._search(d, slope)
        if step == 0.0:
            return "no lower value was found along the line, though the gradient promises one"
        self._direction.learn(step * d, self.g - g, -step * step * slope)
        self.fall = before - self.value
        return ""

    def _search(self, d: Array, slope: float) -> float:
        """Go along `d`, where the slope is `slope`, to a point of the strong Wolfe conditions, or at least of a lower value.

        Returns how far it went, 0 where there is no such point.
        """
        # The first step is 1, or less where a parabola of this slope falls as much as the last step sooner (equation 3.60).
        reach = 2.02 * self.fall  # a hundredth more than the parabola's, so that it becomes 1 in the end
        step = reach / -slope if 0.0 < reach < -slope and not self._direction.scaled else 1.0
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
            # Near the minimum values differ by rounding alone: slopes decide (Hager and Zhang 2005, approximate Wolfe).
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
