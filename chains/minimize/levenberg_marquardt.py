"""Levenberg-Marquardt: minima of sums of squares, by the Jacobian of the residuals.

Each iteration minimises the quadratic model of J'r and J'J within a trust region: steps d with d'D d <= radius^2, where D holds
the largest entries that the diagonal of J'J has had, so that the method follows the scale of each parameter, within bounds, so
that parameters do not run away to where little depends on them. The step solves (J'J + damping * D) d = -J'r. The radius grows
where the model was right and shrinks where it was not.
Source: Moré, "The Levenberg-Marquardt algorithm: implementation and theory", 1978, as in MINPACK's lmder.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

EPSILON = float(np.finfo(np.float64).eps)
MIN_SCALE = 0.1  # of the largest of D times the square of a parameter at the start
RADIUS_TOLERANCE = 0.5  # of a step's length: less costs more solutions of the equations, and gains nothing
MAX_CORRECTIONS = 10  # of the damping, for a step


class SumOfSquares(Protocol):
    """Half the sum of squared residuals, as `Objective` is where its loss is one."""

    def normal_equations(self, p: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """The value r'r / 2, its gradient J'r and the matrix J'J."""
        ...

    def value(self, p: np.ndarray) -> float:
        """The value alone."""
        ...


class LevenbergMarquardt:
    """A point of the descent, with the model of the function there."""

    def __init__(self, function: SumOfSquares, p: np.ndarray) -> None:
        self._function = function
        self.p = p
        self.calls = 1  # points at which the function was called
        self.fall = 0.0  # of the value, in the last step
        self._largest = np.zeros(len(p))
        self._squares = p * p  # of the parameters at the start
        self._sizes = np.maximum(self._squares, float(self._squares.sum()) / max(1, len(p)) or 1.0)
        self._look()
        self._least = len(p) * EPSILON  # what solves singular equations
        self._damping = self._least
        self._radius = self._tried = self._length(p) or 1.0

    def _look(self) -> None:
        self.value, self.g, self._matrix = self._function.normal_equations(self.p)
        self._largest = np.maximum(self._largest, self._matrix.diagonal())
        least = MIN_SCALE * float((self._largest * self._squares).max(initial=0.0)) / self._sizes
        scale = np.maximum(self._largest, least)
        self._scale = np.where(scale > 0.0, scale, 1.0)

    def _length(self, d: np.ndarray) -> float:
        return math.sqrt(float(d @ (self._scale * d)))

    def _solve(self, v: np.ndarray) -> np.ndarray:
        damped = self._matrix.copy()
        damped.reshape(-1)[:: len(damped) + 1] += self._damping * self._scale
        return np.linalg.solve(damped, v)

    def _trial(self) -> tuple[np.ndarray, float]:
        """A step about as long as the radius, or a shorter one without damping, and its length."""
        # The length of a step times its damping changes little from one step to the next.
        self._damping = max(self._least, self._damping * self._tried / self._radius)
        d = self._solve(-self.g)
        for _ in range(MAX_CORRECTIONS):
            length = self._length(d)
            excess = length / self._radius - 1.0
            if abs(excess) <= RADIUS_TOLERANCE or (excess < 0.0 and self._damping == self._least):
                break
            # Newton's method for 1 / length, which depends on the damping almost linearly (Moré, equation 5.6).
            change = length * length * excess / float((self._scale * d) @ self._solve(self._scale * d))
            self._damping = max(self._least, self._damping + change)
            d = self._solve(-self.g)
        self._tried = self._length(d)
        return d, self._tried

    def step(self) -> str:
        """Go to a lower point; the reason where there is no lower one at any damping."""
        most_promised = 0.0
        while True:
            d, length = self._trial()
            slope = float(d @ self.g)
            promised = 0.5 * (self._damping * length * length - slope)
            most_promised = max(most_promised, promised)
            if not promised > EPSILON * self.value or length <= EPSILON * self._length(self.p):
                return self._explain(most_promised)
            value = self._function.value(self.p + d)
            self.calls += 1
            fall = self.value - value if math.isfinite(value) else -math.inf
            if fall <= 0.25 * promised:
                shrink = 0.5 * slope / (slope + fall)  # to the minimum of the parabola through both values
                self._radius = min(0.5, max(0.1, shrink)) * length
            elif fall >= 0.75 * promised or self._damping == self._least:
                self._radius = 2.0 * length
            if fall >= 1e-4 * promised:
                self.p = self.p + d
                self._look()
                self.fall = fall
                return ""

    def _explain(self, promised: float) -> str:
        """Why a step finds no lower value: rounding, or a Jacobian that is not that of the values."""
        rounding = math.sqrt(EPSILON) * self.value + (EPSILON * self._length(self.p)) ** 2
        if promised <= rounding:
            return "the precision of the values is reached"
        return "no lower value was found at any damping, though the model promises one"
