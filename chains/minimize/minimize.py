"""Minimisers of functions of flat vectors that stay where they are: in NumPy's memory or a GPU's.

SciPy's optimisers compute in NumPy's memory, so that on a GPU the vectors would travel at every call. Here nothing leaves the
device but a few numbers an iteration: the value, the slope along the line, the largest entry of the gradient.
`line_search` and `quasi_newton` have the parts of both methods, `levenberg_marquardt` the third one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.minimize.levenberg_marquardt import LevenbergMarquardt, descend
from chains.minimize.line_search import Array, Function, Line
from chains.minimize.quasi_newton import DenseInverse, Direction, Pairs
from chains.support.arrays import as_array
from chains.support.checks import check_count, check_flags, check_number, check_word, takes
from chains.support.messages import shown
from chains.support.progress import Progress

BAR_DELAY_SECONDS = 0.5  # seconds before a bar is shown
EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Result:
    """What `minimize` found: the vector `x`, its value `fun` and gradient `jac`, named as in SciPy."""

    x: Array
    fun: float
    jac: Array
    success: bool
    message: str
    nit: int  # iterations
    nfev: int  # points at which the function was called

    def __repr__(self) -> str:
        numbers = {"fun": f"{self.fun:.6g}", "jac": f"{_largest(self.jac):.3g} at most", "nit": self.nit, "nfev": self.nfev}
        rows = {"message": self.message, "success": self.success, **numbers, "x": shown(self.x)}
        return "\n".join(f"{name:>7}: {value}" for name, value in rows.items())


def minimize(
    function: Function,
    p: Array,
    method: str = "BFGS",
    *,
    memory: int = 10,
    gtol: float = 1e-5,
    ftol: float | None = None,
    maxiter: int | None = None,
    callback: Callable[[Array], object] | None = None,
    progress: bool | None = None,
) -> Result:
    """Minimise a function of a vector where that vector lies, in NumPy's memory or on a GPU.

    Parameters
    ----------
    function : callable
        ``function(p)`` returns the value and the gradient. For "LM", the objective of a squared loss or a residual problem.
    p : array, shape (n,)
        Where to begin; it is left as it is.
    method : str
        "BFGS", which keeps a matrix (n, n); "L-BFGS", which keeps `memory` pairs of vectors; or "LM" (Levenberg-Marquardt).
    memory : int
        Pairs of vectors that "L-BFGS" keeps.
    gtol : float
        The method has converged when the gradient's largest entry is at most this,
    ftol : float, optional
        or when an iteration lowers the value by at most `ftol` times max(abs(value), 1): by default 2.2e-9 for "L-BFGS" and
        never for the others, as in SciPy.
    maxiter : int, optional
        The most iterations: by default 200 n for "BFGS", 15,000 for "L-BFGS", 1,000 for "LM".
    callback : callable, optional
        Called with the vector after each iteration.
    progress : bool, optional
        Whether to show a bar that counts iterations. None shows one on terminals and in notebooks after half a second, True
        lines of text elsewhere.

    Returns
    -------
    Result
        The minimum, with fields named as in SciPy.

    Raises
    ------
    TypeError, ValueError
        For arguments that make no sense, and where `function` returns anything else than a value and a gradient.
    """
    if not callable(function) or not takes(function, 1):
        raise TypeError(f"`function` (={shown(function)}) must be a function of `p` that gives the value and the gradient")
    p = _vector("p", p)
    check_word("method", method, "BFGS", "L-BFGS", "LM")
    _check_options(memory, gtol, ftol, maxiter, callback, progress)
    p = p.astype(np.float64)  # a copy
    total = None if maxiter is None else int(maxiter)
    if method == "LM":
        return _least_squares(function, p, gtol, ftol, 1_000 if maxiter is None else maxiter, total, callback, progress)
    direction: Direction = DenseInverse(p) if method == "BFGS" else Pairs(memory)
    ftol = (0.0 if method == "BFGS" else 2.2204460492503131e-9) if ftol is None else ftol
    maxiter = (200 * p.size if method == "BFGS" else 15_000) if maxiter is None else maxiter
    line = Line(function, p)
    with Progress(progress, total, "iteration", delay=BAR_DELAY_SECONDS) as bar:
        result = _descend(line, direction, gtol, ftol, maxiter, callback, bar)
        bar.show(_numbers(line))
    return result


def _least_squares(
    function: Any, p: np.ndarray, gtol: float, ftol: float | None, maxiter: int, total: int | None,
    callback: Callable[[Array], object] | None, progress: bool | None,
) -> Result:  # fmt: skip
    if not hasattr(function, "normal_equations"):
        raise TypeError(f"`function` (={shown(function)}) must be an objective of a squared loss for the method 'LM'")
    with Progress(progress, total, "iteration", delay=BAR_DELAY_SECONDS) as bar:
        point = LevenbergMarquardt(function, p)
        success, message, iterations = descend(point, gtol, ftol or 0.0, maxiter, callback, bar)
        bar.show({"value": f"{point.value:.6g}"})
    return Result(point.p, point.value, point.g, success, message, iterations, point.calls)


def _vector(name: str, given: Any) -> Array:
    """A vector of finite real numbers."""
    array = as_array(name, given)
    if array.ndim != 1:
        raise ValueError(f"`{name}` must be a vector, got shape {array.shape}")
    if not bool(abs(array).max() < math.inf if array.size else True):
        raise ValueError(f"`{name}` must be finite, but holds an infinity or NaN")
    return array


def _check_options(memory: Any, gtol: Any, ftol: Any, maxiter: Any, callback: Any, progress: Any) -> None:
    check_count("memory", memory)
    check_count("maxiter", 0 if maxiter is None else maxiter, 0)
    check_number("gtol", gtol, "in [0, inf)")
    check_number("ftol", 0.0 if ftol is None else ftol, "in [0, inf)")
    if callback is not None and not (callable(callback) and takes(callback, 1)):
        raise TypeError(f"`callback` (={shown(callback)}) must be a function of `p`, or None")
    if progress is not None:
        check_flags(progress=progress)


def _descend(
    line: Line,
    direction: Direction,
    gtol: float,
    ftol: float,
    maxiter: int,
    callback: Callable[[Array], object] | None,
    bar: Progress,
) -> Result:
    if not math.isfinite(line.value) or not math.isfinite(_largest(line.g)):
        return _result(line, False, "the value or the gradient at `p` is infinite or NaN", 0)
    # How much the last iteration gained; at first what makes the step about 1 long.
    fall = 0.5 * float(line.g @ line.g) / max(float(abs(line.g).sum()), 1e-300)
    first = abs(line.value)
    for iteration in range(maxiter):
        if _largest(line.g) <= gtol:
            return _result(line, True, "the gradient is below `gtol`", iteration)
        before, g = line.value, line.g
        # A model that promises no more than rounding is at the minimum, as far as values can say.
        rounding = math.sqrt(EPSILON) * abs(before) + EPSILON * first
        d = direction(g)
        slope = float(d @ g)  # along the line
        step = line.search(d, slope, _first(direction, fall, slope)) if slope < 0.0 else 0.0
        if step == 0.0 and 0.0 < -slope <= rounding:
            return _result(line, False, "the precision of the values is reached", iteration)
        if step == 0.0:  # the model is spoilt by rounding, or wrong from here on: begin anew
            direction.forget()
            d = -g
            slope = float(d @ g)
            step = line.search(d, slope, _first(direction, fall, slope))
        if step == 0.0:
            return _result(line, False, "no lower value was found along the line, though the gradient promises one", iteration)
        direction.learn(step * d, line.g - g, -step * step * slope)
        fall = before - line.value
        if callback is not None:
            callback(line.p)
        bar.update()
        if bar.due():
            bar.show(_numbers(line))
        if fall <= ftol * max(abs(before), abs(line.value), 1.0) and ftol:
            return _result(line, True, "the value falls by less than `ftol`", iteration + 1)
    return _result(line, _largest(line.g) <= gtol, "the limit of iterations was reached", maxiter)


def _result(line: Line, success: bool, message: str, iterations: int) -> Result:
    return Result(line.p, line.value, line.g, success, message, iterations, line.calls)


def _first(direction: Direction, fall: float, slope: float) -> float:
    """The step to try first: 1, or less where a parabola of this slope falls sooner by what was gained last.

    Source: Nocedal and Wright, equation 3.60.
    """
    reach = 2.02 * fall  # a hundredth more than the parabola's, so that it becomes 1 in the end
    return reach / -slope if 0.0 < reach < -slope and not direction.scaled else 1.0


def _numbers(line: Line) -> dict[str, str]:
    """Where it is, for people."""
    return {"value": f"{line.value:.6g}", "gradient": f"{_largest(line.g):.3g}"}


def _largest(g: Array) -> float:
    return float(abs(g).max()) if g.size else 0.0
