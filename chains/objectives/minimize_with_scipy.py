"""`scipy.optimize.minimize` of an objective, with line searches that step back from NaN."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from chains.minimize.minimize import BAR_DELAY_SECONDS
from chains.support.arrays import as_numpy
from chains.support.checks import check_flags
from chains.support.progress import Progress

FAILING_FACTOR = 1e4  # in `benchmarks/studies/optimisers.py`, smaller ones cost more calls, larger ones end higher
WITHOUT_GRADIENT = ("nelder-mead", "powell", "cobyla", "cobyqa")  # methods that warn about a gradient


def check_start(p: Any) -> np.ndarray:
    """The start in float64. Raises ValueError unless it is a vector."""
    p = np.asarray(as_numpy("p", p), np.float64)
    if p.ndim != 1:
        raise ValueError(f"`p` must be a vector, got shape {p.shape}: of many starts, minimize each row")
    return p


def minimize_with_scipy(function: Any, p: Any, method: Any, progress: bool | None, options: Mapping[str, Any]) -> Any:
    """SciPy's result for a function that returns a value and a gradient; see `Objective.minimize`."""
    try:
        from scipy.optimize import OptimizeResult, minimize
    except ImportError as error:
        text = f"`minimize` of an objective needs SciPy: pip install scipy ({error}); chains.minimize does not"
        raise ImportError(text, name=error.name) from error

    if progress is not None:
        check_flags(progress=progress)
    others = {name: value for name, value in options.items() if name not in inspect.signature(minimize).parameters}
    if others:
        raise TypeError(
            f"`{next(iter(others))}` is not an argument of scipy.optimize.minimize: pass settings of its methods as "
            f"options={others}"
        )
    if method in ("L-BFGS", "LM"):
        raise ValueError(f"`method` (={method!r}) is not one of SciPy: chains.minimize(objective, p, {method!r}) has it")
    p = check_start(p)
    if not p.size:
        value, g = function(p)
        return OptimizeResult(x=p, fun=value, jac=g, success=True, status=0, message="No parameter is trained.", nit=0, nfev=1)
    has_gradient = not isinstance(method, str) or method.lower() not in WITHOUT_GRADIENT
    with Progress(progress, None, "evaluation", delay=BAR_DELAY_SECONDS) as bar:

        def counting(p: np.ndarray) -> tuple[float, np.ndarray]:
            value, g = function(p)
            bar.update()
            if bar.due():
                bar.show({"value": f"{value:.6g}"})
            return value, g

        finite = FiniteFunction(counting if bar.begun else function)
        given: dict[str, Any] = {"fun": finite, "jac": True} if has_gradient else {"fun": lambda p: finite(p)[0]}
        restricted = options.get("bounds") is not None or bool(options.get("constraints"))
        result = finite.complete(minimize(x0=p, method=method, **given, **options), restricted)
        bar.show({"value": f"{result.fun:.6g}"})
    return result


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

        With bounds or constraints, the lowest point may violate them, so SciPy's point is kept.
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
