"""Minimisers of functions of flat vectors that stay where they are: in NumPy's memory or a GPU's.

SciPy's optimisers compute in NumPy's memory, so that on a GPU the vectors would travel at every call. Here nothing leaves the
device but a few numbers an iteration: the value, the slope along the line, the largest entry of the gradient.
`quasi_newton` has the parts of BFGS, SSBroyden and L-BFGS, `levenberg_marquardt` the fourth method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from chains.minimize.levenberg_marquardt import LevenbergMarquardt, SumOfSquares
from chains.minimize.quasi_newton import Array, DenseInverse, Direction, Function, Pairs, QuasiNewton, bfgs, self_scaled_broyden
from chains.support.arrays import as_array
from chains.support.checks import check_count, check_flags, check_number, check_word, takes
from chains.support.memory import memory_of
from chains.support.messages import shown
from chains.support.progress import Progress

BAR_DELAY_SECONDS = 0.5  # seconds before a bar is shown


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
    state: Array | None = None  # what the method knows of the curvature, for another call

    def __repr__(self) -> str:
        numbers = {"fun": f"{self.fun:.6g}", "jac": f"{_largest(self.jac):.3g} at most", "nit": self.nit, "nfev": self.nfev}
        rows = {"message": self.message, "success": self.success, **numbers, "x": shown(self.x)}
        return "\n".join(f"{name:>7}: {value}" for name, value in rows.items())


def minimize(
    function: Function, p: Array, method: str = "BFGS", *, memory: int = 10, gtol: float = 1e-5, ftol: float | None = None,
    maxiter: int | None = None, state: Array | None = None, callback: Callable[[Array], object] | None = None,
    progress: bool | None = None,
) -> Result:  # fmt: skip
    """Minimise a function of a vector where that vector lies, in NumPy's memory or on a GPU.

    Parameters
    ----------
    function : callable
        ``function(p)`` returns the value and the gradient. For "LM", the objective of a squared loss or a residual problem.
    p : array, shape (n,)
        Where to begin; it is left as it is.
    method : str
        "BFGS" and "SSBroyden", which keep a matrix (n, n); "L-BFGS", which keeps `memory` pairs of vectors; or "LM"
        (Levenberg-Marquardt). "SSBroyden" is a self-scaled method of Broyden's family, which goes further than "BFGS" on
        residuals of differential equations.
    memory : int
        Pairs of vectors that "L-BFGS" keeps.
    gtol : float
        The method has converged when the gradient's largest entry is at most this,
    ftol : float, optional
        or when an iteration lowers the value by at most `ftol` times max(abs(value), 1): by default 2.2e-9 for "L-BFGS" and
        never for the others, as in SciPy.
    maxiter : int, optional
        The most iterations: by default 200 n for "BFGS" and "SSBroyden", 15,000 for "L-BFGS", 1,000 for "LM".
    state : array, optional
        The `state` of an earlier result of the same method, from which the model of the curvature begins; it is left as it is.
        The function may be another one, such as the same loss at other points.
    callback : callable, optional
        Called with the vector after each iteration.
    progress : bool, optional
        Whether to show a bar that counts iterations. None shows one on terminals and in notebooks after half a second, True
        lines of text elsewhere.

    Returns
    -------
    Result
        The minimum, with fields named as in SciPy, and the `state`: for "BFGS" and "SSBroyden" the inverse of the Hessian
        matrix as the method knows it, (n, n), for "L-BFGS" steps and changes of the gradient, (pairs, 2, n), for "LM" None.

    Raises
    ------
    TypeError, ValueError
        For arguments that make no sense, and where `function` returns anything else than a value and a gradient.
    """
    if not callable(function) or not takes(function, 1):
        raise TypeError(f"`function` (={shown(function)}) must be a function of `p` that gives the value and the gradient")
    p = as_array("p", p)
    if p.ndim != 1:
        raise ValueError(f"`p` must be a vector, got shape {p.shape}")
    if p.size and not bool(abs(p).max() < math.inf):
        raise ValueError("`p` must be finite, but holds an infinity or NaN")
    check_word("method", method, "BFGS", "SSBroyden", "L-BFGS", "LM")
    check_count("memory", memory)
    check_count("maxiter", 0 if maxiter is None else maxiter, 0)
    check_number("gtol", gtol, "in [0, inf)")
    check_number("ftol", 0.0 if ftol is None else ftol, "in [0, inf)")
    if callback is not None and not (callable(callback) and takes(callback, 1)):
        raise TypeError(f"`callback` (={shown(callback)}) must be a function of `p`, or None")
    if progress is not None:
        check_flags(progress=progress)
    p = p.astype(np.float64)  # a copy
    state = None if state is None else _checked_state(state, method, p)
    total = None if maxiter is None else int(maxiter)
    if method == "LM" and not hasattr(function, "normal_equations"):
        raise TypeError(f"`function` (={shown(function)}) must be an objective of a squared loss for the method 'LM'")
    if ftol is None:
        ftol = 2.2204460492503131e-9 if method == "L-BFGS" else 0.0
    if maxiter is None:
        maxiter = {"L-BFGS": 15_000, "LM": 1_000}.get(method, 200 * p.size)
    with Progress(progress, total, "iteration", delay=BAR_DELAY_SECONDS) as bar:
        point: LevenbergMarquardt | QuasiNewton
        if method == "LM":
            point = LevenbergMarquardt(cast(SumOfSquares, function), p)
        else:
            point = QuasiNewton(function, p, _direction(method, p, memory, state), knows=state is not None)
        success, message, iterations = _descend(point, gtol, ftol, maxiter, callback, bar)
        bar.show(_numbers(point))
        learnt = point.state if isinstance(point, QuasiNewton) else None
    return Result(point.p, point.value, point.g, success, message, iterations, point.calls, learnt)


def _direction(method: str, p: Array, memory: int, state: Array | None) -> Direction:
    if method == "L-BFGS":
        return Pairs(p, memory, state)
    return DenseInverse(p, bfgs if method == "BFGS" else self_scaled_broyden, state)


def _checked_state(state: Any, method: str, p: Array) -> Array:
    """The state as an array where `p` lies. Raises TypeError or ValueError for one of another method or length."""
    if method == "LM":
        raise ValueError("`state` is of no use to the method 'LM', which keeps nothing")
    state = as_array("state", state)
    n = p.size
    if method == "L-BFGS":
        fits, wanted = state.ndim == 3 and state.shape[1:] == (2, n), f"(pairs, 2, {n})"
    else:
        fits, wanted = state.shape == (n, n), f"({n}, {n})"
    if not fits:
        raise ValueError(f"`state` has shape {state.shape}, but the method {method!r} wants {wanted} for {n} parameters")
    if state.size and not bool(abs(state).max() < math.inf):
        raise ValueError("`state` must be finite, but holds an infinity or NaN")
    return memory_of(p).contiguous(state, np.float64)


def _descend(
    point: LevenbergMarquardt | QuasiNewton, gtol: float, ftol: float, maxiter: int,
    callback: Callable[[Array], object] | None, bar: Progress,
) -> tuple[bool, str, int]:  # fmt: skip
    """Step until it has converged; whether it has, why it ended, and the number of iterations."""
    if not (math.isfinite(point.value) and math.isfinite(_largest(point.g))):
        return False, "the value or the gradient at `p` is infinite or NaN", 0
    for iteration in range(maxiter):
        if _largest(point.g) <= gtol:
            return True, "the gradient is below `gtol`", iteration
        before = point.value
        if reason := point.step():
            return False, reason, iteration
        if callback is not None:
            callback(point.p)
        bar.update()
        if bar.due():
            bar.show(_numbers(point))
        if ftol and point.fall <= ftol * max(abs(before), abs(point.value), 1.0):
            return True, "the value falls by less than `ftol`", iteration + 1
    return _largest(point.g) <= gtol, "the limit of iterations was reached", maxiter


def _numbers(point: LevenbergMarquardt | QuasiNewton) -> dict[str, str]:
    return {"value": f"{point.value:.6g}", "gradient": f"{_largest(point.g):.3g}"}


def _largest(g: Array) -> float:
    return float(abs(g).max()) if g.size else 0.0
