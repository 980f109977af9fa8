"""When a descent ends: rules that do not depend on the unit of the loss, nor for "LM" on those of the parameters.

Two falls are compared with the size of the loss: the one that the gradient promises, and the one of the next step. The next
step must promise little of the value itself, too, so that a fit without noise, whose value falls to zero, goes on to its end.

The size of a sum of squares r'r / 2 is that of the residuals or of the predictions: the larger of r'r / 2 and p'J'Jp / 2, where
J p is how the predictions change if all parameters go to zero. So the size does not depend on the start. Machine code for "LM"
has the same rule: `chains.backends.native.runtime.levenberg_marquardt`.

Source: for sums of squares, the tests of MINPACK's lmder (Moré 1978), whose `gtol` is a cosine, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

EPSILON = float(np.finfo(np.float64).eps)

CONVERGED, FALLS_LITTLE = "the gradient is below `gtol`", "the value falls by less than `ftol`"
PRECISE = "the precision of the values is reached"
SUCCESSES = (CONVERGED, FALLS_LITTLE, PRECISE)


@dataclass(frozen=True)
class Limits:
    """What `gtol` allows."""

    gtol: float
    promise: float  # of the size of the loss
    floor: float  # of the size, or its square of the largest size so far: lower values are zero

    @staticmethod
    def of(gtol: float) -> Limits:
        """The limits of a `gtol`, with which the roots of promises are compared.

        With the 4, fits whose loss is about 1 take as many iterations as if their gradients were compared with `gtol`.
        """
        return Limits(gtol, 4.0 * gtol**2, gtol**4)


REST = 0.03  # of the value: the most that the next step may promise at the end


def falls_little(fall: float, size: float, ftol: float) -> bool:
    """Whether the last iteration lowered the value by at most `ftol` of the size of the loss; never if `ftol` is 0."""
    return ftol > 0.0 and fall <= ftol * size


def way_down(p: np.ndarray, g: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """How far each parameter may go downhill within its bounds."""
    way: np.ndarray = np.where(g > 0.0, p - low, high - p)
    return way


def promised_fall(g: np.ndarray, columns: np.ndarray, way: np.ndarray) -> float:
    """The sum of the falls that a sum of squares promises if each parameter moves alone, at most its `way`.

    `columns` are the squared lengths of the columns of J. A fall is that of a step to the minimum of the parabola. As a part of
    r'r / 2, it is the squared cosine of the angle between the residuals and the column.
    """
    used = columns > 0.0
    steps = np.where(used, abs(g) / np.where(used, columns, 1.0), 0.0)
    return 0.5 * float((abs(g) * np.minimum(way, steps)).sum())
