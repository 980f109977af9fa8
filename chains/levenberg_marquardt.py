"""Levenberg-Marquardt: minima of sums of squares, by the Jacobian of the residuals.

Each iteration solves (J'J + damping * D) d = -J'r, where D holds the largest entries that the diagonal of J'J has had, within
bounds: it follows the scale of a parameter (Moré, "The Levenberg-Marquardt algorithm: implementation and theory", 1978). The
damping falls where the quadratic model was right and rises where it was not. Source: Madsen, Nielsen and Tingleff, "Methods for
non-linear least squares problems", 2nd edition, 2004, algorithm 3.16.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from chains.progress import Progress

FIRST_DAMPING = 1e-6
LEAST_SCALE = 0.1  # of the largest: with less, parameters run away to where little depends on them


class SumOfSquares(Protocol):
    """Half the sum of squared residuals, as `Objective` is where its loss is one."""

    def normal_equations(self, p: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """The value r'r / 2, its gradient J'r and the matrix J'J."""
        ...

    def value(self, p: np.ndarray) -> float:
        """The value alone."""
        ...


class LevenbergMarquardt:
    """A point of the descent, with what is known there."""

    def __init__(self, function: SumOfSquares, p: np.ndarray) -> None:
        self._function = function
        self.p = p
        self.calls = 0
        self._scale = np.zeros(len(p))
        self._look()
        self._damping = FIRST_DAMPING
        self._rise = 2.0

    def _look(self) -> None:
        self.value, self.g, self._matrix = self._function.normal_equations(self.p)
        self.calls += 1
        self._scale = np.maximum(self._scale, self._matrix.diagonal())
        self._scale = np.maximum(self._scale, LEAST_SCALE * float(self._scale.max(initial=0.0)) or 1.0)

    def step(self) -> float | None:
        """Go to a lower point; returns how much lower, None where there is no lower one at any damping."""
        while self._damping < 1e300:
            damped = self._matrix.copy()
            damped.reshape(-1)[:: len(damped) + 1] += self._damping * self._scale
            d = np.linalg.solve(damped, -self.g)
            if float(np.linalg.norm(d)) <= 1e-16 * float(np.linalg.norm(self.p)):
                return None
            value = self._function.value(self.p + d)
            self.calls += 1
            promised = 0.5 * float(d @ (self._damping * self._scale * d - self.g))
            fall = self.value - value
            if math.isfinite(value) and promised > 0.0 and fall > 0.0:
                self.p = self.p + d
                self._damping *= max(1.0 / 3.0, 1.0 - (2.0 * fall / promised - 1.0) ** 3)
                self._rise = 2.0
                self._look()
                return fall
            self._damping *= self._rise
            self._rise *= 2.0
        return None


def descend(
    point: LevenbergMarquardt, gtol: float, ftol: float, maxiter: int, callback: Callable[[Any], object] | None, bar: Progress
) -> tuple[bool, str, int]:
    """Step until it has converged; whether it has, why it ended, and the number of iterations."""
    if not (math.isfinite(point.value) and bool(np.isfinite(point.g).all())):
        return False, "the value or the gradient at `p` is infinite or NaN", 0
    for iteration in range(maxiter):
        if float(abs(point.g).max(initial=0.0)) <= gtol:
            return True, "the gradient is below `gtol`", iteration
        before = point.value
        fall = point.step()
        if fall is None:
            return False, "no lower value was found at any damping: the precision of the values is reached", iteration
        if callback is not None:
            callback(point.p)
        bar.update()
        if bar.due():
            bar.show({"value": f"{point.value:.6g}"})
        if ftol and fall <= ftol * max(abs(before), abs(point.value), 1.0):
            return True, "the value falls by less than `ftol`", iteration + 1
    return float(abs(point.g).max(initial=0.0)) <= gtol, "the limit of iterations was reached", maxiter
