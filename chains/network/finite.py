"""SciPy's optimisers on functions that fail somewhere: at such points the value or the gradient is infinite or NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

FAILING_FACTOR = 1e4  # in `benchmarks/studies/optimisers.py`, smaller ones cost more calls, larger ones end higher


class FiniteFunction:
    """A function with finite values, for SciPy's line searches, which cannot step back from NaN.

    A point where `function` fails has a large value, and the gradient of a line that rises to it from zero at the lowest point
    seen.
    """

    def __init__(self, function: Callable[[np.ndarray], tuple[float, np.ndarray]]) -> None:
        self._function = function
        self._best: tuple[float, np.ndarray, np.ndarray] | None = None
        self._calls = self._failures = 0

    def __call__(self, p: np.ndarray) -> tuple[float, np.ndarray]:
        value, g = self._function(p)
        self._calls += 1
        if math.isfinite(value) and np.isfinite(g).all():
            if self._best is None or value < self._best[0]:
                self._best = value, p.copy(), g.copy()
            return value, g
        self._failures += 1
        if self._best is None:  # the start fails
            return value, g
        lowest, origin, _ = self._best
        large, away = FAILING_FACTOR * max(1.0, abs(lowest)), p - origin
        return large, large / max(float(away @ away), 1e-300) * away

    def complete(self, result: Any, restricted: bool) -> Any:
        """SciPy's result; if the function failed, at the lowest finite point, with a message that says so.

        Where bounds or constraints restrict the points, the lowest one may violate them, and SciPy's point is kept.
        """
        if self._failures == 0:
            return result
        failures = f"The value or the gradient was infinite or NaN at {self._failures} of {self._calls} points."
        message = f"{result.message.rstrip('.')}. {failures}"
        if self._best is None or restricted:
            p = result.x
            value, g = self._function(p)
            result.success = bool(result.success and math.isfinite(value))
        else:
            value, p, g = self._best
            if value < result.fun or math.isnan(result.fun):
                result.success = False
                message += " The lowest finite point is returned."
        result.update(x=p, fun=value, message=message)
        for name in ("grad", "jac"):  # trust-constr has the gradient as `grad`, and constraints' derivatives as `jac`
            if name in result:
                result[name] = g
                break
        return result
