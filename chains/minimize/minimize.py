"""Minimisers of functions of flat vectors that stay where they are: in NumPy's memory or a GPU's.

SciPy's optimisers compute in NumPy's memory: vectors of a GPU would be copied at every call. Here only a few numbers an
iteration leave the device: the value, the slope along the line, the largest entry of the gradient. `quasi_newton` has BFGS,
SSBroyden and L-BFGS, `projected` has L-BFGS within bounds, `levenberg_marquardt` has the fourth method, and `rows` runs it in
machine code for many vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from chains.minimize.levenberg_marquardt import INFINITE, LevenbergMarquardt, SumOfSquares
from chains.minimize.projected import ProjectedQuasiNewton
from chains.minimize.quasi_newton import Array, DenseInverse, Direction, Pairs, QuasiNewton, bfgs, self_scaled_broyden
from chains.minimize.result import Result
from chains.minimize.rows import LIMIT, CompiledFits, run_compiled
from chains.minimize.spread import warn_of_spread
from chains.minimize.stopping import CONVERGED, FALLS_LITTLE, SUCCESSES, Limits
from chains.support.arguments import check_finite
from chains.support.arrays import as_array
from chains.support.checks import check_count, check_flags, check_number, check_word, takes, with_hints
from chains.support.memory import HOST, memory_of, on_host
from chains.support.messages import counted, shown
from chains.support.progress import Progress

BAR_DELAY_SECONDS = 0.5  # seconds before a bar is shown


@with_hints
def minimize(
    function: Any, p: Array, method: str = "BFGS", *, memory: int = 10, gtol: float = 1e-5, ftol: float | None = None,
    maxiter: int | None = None, bounds: tuple[Any, Any] | None = None, state: Array | None = None,
    callback: Callable[[Array], object] | None = None, progress: bool | None = None,
) -> Result:  # fmt: skip
    """Minimise a function of a vector, or of each row of an array, in NumPy's memory or on a GPU.

    Each row is a separate minimisation, with the bits that it has alone. Rows of "LM" run in machine code on all threads, if
    the objective can be compiled.

    Parameters
    ----------
    function : callable
        ``function(p)`` returns the value and the gradient. For "LM", the objective of a squared loss or a residual problem.
    p : array, shape (n,) or (members, n)
        The start. It is not changed. Each row is minimised, such as those of `Chain.init_many`.
    method : str
        "BFGS" and "SSBroyden", which keep a matrix (n, n); "L-BFGS", which keeps `memory` pairs of vectors; or "LM"
        (Levenberg-Marquardt). "SSBroyden" is a self-scaled method of Broyden's family; it reaches lower values than "BFGS" on
        residuals of differential equations.
    memory : int
        Pairs of vectors that "L-BFGS" keeps.
    gtol : float
        The method has converged when the gradient's largest entry is at most this. For "LM", when the gradient and the next
        step promise to lower the value by at most ``4 * gtol**2`` of the loss's size, the larger of r'r / 2 and p'J'Jp / 2 for
        residuals r and their Jacobian J, and the next step by at most 3 % of the value. So no unit matters.
    ftol : float, optional
        It has also converged when an iteration lowers the value by at most `ftol` times max(abs(value), 1), for "LM" times
        the loss's size. By default 2.2e-9 for "L-BFGS" and none for the others, as in SciPy.
    maxiter : int, optional
        The largest number of iterations: by default 200 n for "BFGS" and "SSBroyden", 15,000 for "L-BFGS", 1,000 for "LM".
    bounds : tuple (low, high), optional
        Bounds of the parameters, for "L-BFGS" and "LM": numbers or arrays that broadcast to `p`; None, -inf and inf
        stand for no bound. They are not a pair for each parameter, as in SciPy's `minimize`. The start is moved within them. A
        gradient's entry counts for `gtol` at most as much as its parameter may still move.
    state : array, optional
        The `state` of an earlier result of the same method: the first model of the curvature. It is not changed. The function
        may be another one, such as the same loss at other points. Not for rows.
    callback : callable, optional
        Called with the vector after each iteration; not for rows.
    progress : bool, optional
        Whether to show a bar that counts iterations, or the rows that have ended. None shows one on terminals and in
        notebooks after half a second, True lines of text elsewhere.

    Returns
    -------
    Result
        The minimum, with fields named as in SciPy, and the `state`: for "BFGS" and "SSBroyden" the estimate of the inverse
        Hessian matrix, (n, n), for "L-BFGS" steps and changes of the gradient, (pairs, 2, n), for "LM" None. For rows, the
        minima without a state, with `best`, the result of the lowest one. `success` is True if the method has converged, or
        has reached the precision of the values.

    Warns
    -----
    UserWarning
        Once, if the parameters that matter differ by six orders of magnitude at the start, for all methods but "LM".

    Raises
    ------
    TypeError, ValueError
        For invalid arguments, and if `function` returns anything but a value and a gradient.
    """
    if not callable(function) or not takes(function, 1):
        raise TypeError(f"`function` (={shown(function)}) must be a function of `p` that gives the value and the gradient")
    p = as_array("p", p)
    if p.ndim not in (1, 2):
        raise ValueError(f"`p` must be a vector, or rows that are vectors, got shape {p.shape}")
    if p.size and not bool(abs(p).max() < math.inf):
        check_finite(np.dtype(np.float64), p=on_host(p))
    check_word("method", method, "BFGS", "SSBroyden", "L-BFGS", "LM")
    check_count("memory", memory)
    check_count("maxiter", 0 if maxiter is None else maxiter, 0)
    check_number("gtol", gtol, "in [0, inf)")
    check_number("ftol", 0.0 if ftol is None else ftol, "in [0, inf)")
    if callback is not None and not (callable(callback) and takes(callback, 1)):
        raise TypeError(f"`callback` (={shown(callback)}) must be a function of `p`, or None")
    if callback is not None and p.ndim == 2:
        raise ValueError("`callback` is for one vector, but `p` has rows")
    if state is not None and p.ndim == 2:
        raise ValueError("`state` is for one vector, but `p` has rows")
    if progress is not None:
        check_flags(progress=progress)
    if method == "LM" and not hasattr(function, "normal_equations"):
        raise TypeError(f"`function` (={shown(function)}) must be an objective of a squared loss for the method 'LM'")
    n_params = getattr(function, "n_params", p.shape[-1])
    if p.shape[-1] != n_params:
        raise ValueError(f"`p` has shape {p.shape}, but `function` has {counted(n_params, 'parameter')}")
    by_rows = p.ndim == 2
    members = getattr(function, "members", None)
    if members is not None and (not by_rows or len(p) != members):
        raise ValueError(f"`p` must have a row for each of the {members} members of `function`, got shape {p.shape}")
    p, limited = memory_of(p).contiguous(p.astype(np.float64)), maxiter is not None  # a copy
    state = None if state is None else _checked_state(state, method, p)
    box = None if bounds is None else _bounds(bounds, p, method)
    if box is not None:
        p = np.clip(p, *box)
    if ftol is None:
        ftol = 2.2204460492503131e-9 if method == "L-BFGS" else 0.0
    if maxiter is None:
        maxiter = {"L-BFGS": 15_000, "LM": 1_000}.get(method, 200 * p.shape[-1])
    settings = Settings(method, memory, gtol, ftol, int(maxiter), state, callback)
    fits: CompiledFits | None = None
    rows = p if by_rows else p[None]
    if method == "LM" and rows.size and hasattr(function, "compiled_fits"):
        fits = function.compiled_fits(rows, *_rows_of(box, rows), gtol, ftol)
    total, unit = (len(p), "fit") if by_rows else (maxiter if limited else None, "iteration")
    with Progress(progress, total, unit, delay=BAR_DELAY_SECONDS) as bar:
        if fits is not None:
            with closing(fits):
                found = run_compiled(fits, settings.maxiter, callback, bar, by_member=by_rows)
            return found if by_rows else found.row(0)
        if not by_rows:
            return _descend(settings, function, p, box, bar)
        results: list[Result] = []
        for k, row in enumerate(p):
            one = function if members is None else cast(Any, function).member(k)
            results.append(_descend(settings, one, row, None if box is None else (box[0][k], box[1][k]), warns=not k))
            bar.update()
            if bar.due():
                bar.show({"lowest value": f"{min(each.fun for each in results):.6g}"})
    return _stacked(results, p)


@dataclass(frozen=True)
class Settings:
    """The checked settings of a descent."""

    method: str
    memory: int
    gtol: float
    ftol: float
    maxiter: int
    state: Array | None
    callback: Callable[[Array], object] | None


class Point(Protocol):
    """A point of a descent."""

    p: Array
    value: float
    g: Array
    calls: int

    def converged(self, limits: Limits) -> bool: ...
    def stalls(self, ftol: float) -> bool: ...
    def step(self) -> str: ...


def _bounds(bounds: Any, p: Array, method: str) -> tuple[np.ndarray, np.ndarray]:
    """The checked bounds, in the shape of `p`."""
    if method not in ("L-BFGS", "LM"):
        raise ValueError(f"`bounds` are for the methods 'L-BFGS' and 'LM', not for {method!r}")
    if memory_of(p) is not HOST:
        raise TypeError("`bounds` are for vectors in the computer's memory, but `p` is on the GPU")
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise TypeError(f"`bounds` (={shown(bounds)}) must be a pair (low, high) of numbers or arrays, as for `least_squares`")
    pairs = all(isinstance(each, (tuple, list)) and len(each) == 2 for each in bounds)
    if pairs and (isinstance(bounds, list) or all(isinstance(each, tuple) for each in bounds)):
        raise TypeError(
            f"`bounds` (={bounds!r}) could be (low, high), or a pair for each of two parameters, as for SciPy's `minimize`: "
            "pass two arrays, (low, high)"
        )
    ends = (none if each is None else each for each, none in zip(bounds, (-math.inf, math.inf), strict=True))
    try:
        low, high = (np.array(np.broadcast_to(np.asarray(each, np.float64), p.shape), order="C") for each in ends)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`bounds` must be numbers or arrays that broadcast to the shape of `p`, {p.shape}: {error}"
        ) from error
    if (wrong := ~((low <= high) & (low < math.inf) & (high > -math.inf))).any():
        pair = f"({low[wrong][0]:g}, {high[wrong][0]:g})"
        raise ValueError(
            "`bounds` must have low <= high for every parameter, and a number between them, with -inf or inf for no bound, got "
            f"{pair}"
        )
    return low, high


def _rows_of(box: tuple[np.ndarray, np.ndarray] | None, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of each row; infinite if there are none."""
    if box is None:
        return np.full(rows.shape, -math.inf), np.full(rows.shape, math.inf)
    return box[0].reshape(rows.shape), box[1].reshape(rows.shape)


def _point(
    settings: Settings, function: Any, p: Array, box: tuple[np.ndarray, np.ndarray] | None
) -> LevenbergMarquardt | ProjectedQuasiNewton | QuasiNewton:
    """The start of a descent."""
    if settings.method == "LM":
        low, high = box or (np.full(p.shape, -math.inf), np.full(p.shape, math.inf))
        return LevenbergMarquardt(cast(SumOfSquares, function), p, low, high)
    if box is not None:
        return ProjectedQuasiNewton(function, p, _direction(settings, p), *box)
    return QuasiNewton(function, p, _direction(settings, p), knows=settings.state is not None)


def _direction(settings: Settings, p: Array) -> Direction:
    if settings.method == "L-BFGS":
        return Pairs(p, settings.memory, settings.state)
    return DenseInverse(p, bfgs if settings.method == "BFGS" else self_scaled_broyden, settings.state)


def _checked_state(state: Any, method: str, p: Array) -> Array:
    """The state as an array in the memory of `p`. Raises TypeError or ValueError for a state of another method or length."""
    if method == "LM":
        raise ValueError("`state` is of no use to the method 'LM', which keeps nothing")
    state = as_array("state", state)
    n = p.size
    if method == "L-BFGS":
        fits, wanted = state.ndim == 3 and state.shape[1:] == (2, n), f"(pairs, 2, {n})"
    else:
        fits, wanted = state.shape == (n, n), f"({n}, {n})"
    if not fits:
        raise ValueError(f"`state` has shape {state.shape}, but the method {method!r} takes {wanted} for {n} parameters")
    if state.size and not bool(abs(state).max() < math.inf):
        check_finite(np.dtype(np.float64), state=on_host(state))
    return memory_of(p).contiguous(state, np.float64)


def _descend(
    settings: Settings, function: Any, p: Array, box: tuple[np.ndarray, np.ndarray] | None, bar: Progress | None = None, *,
    warns: bool = True,
) -> Result:  # fmt: skip
    """Step until it has converged, or finds no lower point."""
    point = _point(settings, function, p, box)
    if warns and not isinstance(point, LevenbergMarquardt):
        warn_of_spread(point.p, point.g)
    message, iterations = _steps(settings, point, bar)
    if bar is not None:
        bar.show(_numbers(point))
    learnt = None if bar is None or isinstance(point, LevenbergMarquardt) else point.state
    return Result(point.p, point.value, point.g, message in SUCCESSES, message, iterations, point.calls, learnt)


def _steps(settings: Settings, point: Point, bar: Progress | None) -> tuple[str, int]:
    """The reason for the end, and the number of iterations."""
    if not (math.isfinite(point.value) and (not point.g.size or bool(abs(point.g).max() < math.inf))):
        return INFINITE, 0
    limits = Limits.of(settings.gtol)
    for iteration in range(settings.maxiter):
        if point.converged(limits):
            return CONVERGED, iteration
        if reason := point.step():
            return reason, iteration
        if settings.callback is not None:
            settings.callback(point.p.copy())
        if bar is not None:
            bar.update()
            if bar.due():
                bar.show(_numbers(point))
        if point.stalls(settings.ftol):
            return FALLS_LITTLE, iteration + 1
    return CONVERGED if point.converged(limits) else LIMIT, settings.maxiter


def _numbers(point: Point) -> dict[str, str]:
    steepest = float(abs(point.g).max()) if point.g.size else 0.0
    return {"value": f"{point.value:.6g}", "gradient": f"{steepest:.3g}"}


def _stacked(found: list[Result], p: Array) -> Result:
    """The results of rows as one."""
    x, jac = (memory_of(p).empty(p.shape, np.dtype(np.float64)) for _ in range(2))
    for k, each in enumerate(found):
        x[k], jac[k] = each.x, each.jac
    columns = {name: [getattr(each, name) for each in found] for name in ("fun", "success", "message", "nit", "nfev")}
    types = {"fun": float, "success": bool, "message": object, "nit": int, "nfev": int}
    return Result(x=x, jac=jac, **{name: np.array(values, types[name]) for name, values in columns.items()})
