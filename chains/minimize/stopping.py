"""When a descent has converged: rules that do not depend on the unit of the loss.

`gtol` compares the loss with what the gradient promises, the change of the value if a parameter moves by its size; this must
also be less than at other points. For sums of
squares, this size is known from the Jacobian, and the promise is a cosine. `ftol` compares the value with its falls. Machine
code for "LM" has the same rules: `chains.backends.native.runtime.levenberg_marquardt`.

Source: Dennis and Schnabel, "Numerical Methods for Unconstrained Optimization and Nonlinear Equations", 1983, section 7.2; for
sums of squares, MINPACK's lmder (Moré 1978).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.support.memory import memory_of, on_host

GENTLE = 0.03  # of the largest slope: below it, small falls of the value say that a minimum is near
EPSILON = float(np.finfo(np.float64).eps)
FLOOR = EPSILON  # of the value at the start: lower values count as this, since a minimum may be zero
CONVERGED, FALLS_LITTLE = "the gradient is below `gtol`", "the value falls by less than `ftol`"
PRECISE = "the precision of the values is reached"
SUCCESSES = (CONVERGED, FALLS_LITTLE, PRECISE)


def scale_of(value: float, start: float) -> float:
    """The size of the loss, if it was `start` in the beginning."""
    return max(abs(value), FLOOR * abs(start))


def falls_little(fall: float, before: float, value: float, ftol: float) -> bool:
    """Whether an iteration has lowered the value by at most `ftol` of it; never if `ftol` is 0."""
    return ftol > 0.0 and fall <= ftol * max(abs(before), abs(value))


def sizes_at(p: Any, g: Any) -> Any:
    """The sizes of parameters at the start: their magnitudes; where it is zero, the root of the mean square of others, or 1.

    Those without a gradient, as frozen ones, do not count.
    """
    start = abs(on_host(p))
    others = start[(start > 0.0) & (on_host(g) != 0.0)]
    most = float(others.max(initial=0.0))
    mean = most * math.sqrt(float(((others / most) ** 2).mean())) if most else 0.0
    return memory_of(p).contiguous(np.where(start > 0.0, start, mean or 1.0))


@dataclass
class Slope:
    """The largest change of the value, to first order, if a parameter moves by its size: now, and the most so far."""

    now: float = math.inf
    most: float = 0.0

    def look(self, change: float) -> None:
        """Take note of the change at a point."""
        self.now, self.most = change, max(self.most, change)

    def settles(self, fall: float, value: float, start: float, gtol: float) -> bool:
        """Whether a quasi-Newton method has converged: the change is at most `gtol` of the loss, and the last `fall` of the value.

        The loss is the geometric mean of the value and that at the start: the first alone is too little where a minimum is near
        zero, the second too much after a poor start. Parameters that are far from the size that they need promise little
        everywhere, so the change must also have become less than at other points, by the root of `gtol`.
        """
        if self.now == 0.0:
            return True
        scale = scale_of(value, start)
        loss = math.sqrt(scale * max(abs(value), abs(start)))
        return self.now <= min(gtol * loss, math.sqrt(gtol) * self.most) and fall <= gtol * scale

    def stalls(self, fall: float, before: float, value: float, ftol: float) -> bool:
        """Whether the value falls little, where the slope is gentle: first steps may be short on a steep one."""
        return falls_little(fall, before, value, ftol) and self.now <= GENTLE * self.most


@np.errstate(over="ignore", invalid="ignore")  # of points far away, from which minimisers step back
def change_along(p: Any, g: Any, sizes: Any) -> float:
    """The largest change of the value, to first order, if a parameter moves by its size here and at the start."""
    return float((abs(g) * (abs(p) + sizes)).max()) if p.size else 0.0


@np.errstate(over="ignore", invalid="ignore")
def change_within(p: np.ndarray, g: np.ndarray, sizes: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """As `change_along`, if a parameter moves downhill, and at most to its bound."""
    return float((abs(g) * np.minimum(way_down(p, g, low, high), abs(p) + sizes)).max(initial=0.0))


def is_square(g: np.ndarray, columns: np.ndarray, way: np.ndarray, value: float, start: float, gtol: float) -> bool:
    """Whether residuals are at right angles to the columns of J: the root of the sum of squared cosines is at most `gtol`.

    `columns` has their squared lengths. A parameter promises less if only a short way is left to its bound.
    """
    scale = scale_of(value, start)
    used = columns > 0.0
    lengths = np.where(used, columns, 1.0)
    promised = abs(g) * np.minimum(way, np.where(used, np.sqrt(2.0 * scale / lengths), 0.0))
    return math.sqrt(float(promised @ promised)) <= 2.0 * scale * gtol


def way_down(p: np.ndarray, g: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """How far each parameter may go downhill within its bounds."""
    way: np.ndarray = np.where(g > 0.0, p - low, high - p)
    return way
