"""BFGS and L-BFGS on flat vectors that stay where they are: in NumPy's memory or a GPU's.

SciPy's optimisers compute in NumPy's memory, so that on a GPU the vectors would travel at every call. Here nothing leaves the
device but a few numbers an iteration: the value, the slope along the line, the largest entry of the gradient.
Source: Nocedal and Wright, "Numerical Optimization", 2nd edition, algorithms 3.5, 3.6 (line search), 6.1 (BFGS), 7.5 (L-BFGS).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.arrays import as_array
from chains.backends.places import place_of
from chains.checks import check_count, check_flags, check_number, check_word, takes
from chains.levenberg_marquardt import LevenbergMarquardt, descend
from chains.messages import shown
from chains.progress import Progress

Array = Any
Function = Callable[[Array], tuple[float, Array]]

DECREASE, CURVATURE = 1e-4, 0.9  # of the strong Wolfe conditions; SciPy's
MOST_TRIES = 40  # of a line search
MOST_WIDENING = 10.0  # of BFGS's matrix in an iteration: 1 / (1 - CURVATURE), the most after a unit step
BLOCK_ELEMENTS = 2**20  # entries of BFGS's matrix that are changed together, so that no second matrix is needed
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
    nfev: int  # calls of the function

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
    direction: _Direction = _Dense(p) if method == "BFGS" else _Pairs(memory)
    ftol = (0.0 if method == "BFGS" else 2.2204460492503131e-9) if ftol is None else ftol
    maxiter = (200 * p.size if method == "BFGS" else 15_000) if maxiter is None else maxiter
    line = _Line(function, p)
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
    line: _Line,
    direction: _Direction,
    gtol: float,
    ftol: float,
    maxiter: int,
    callback: Callable[[Array], object] | None,
    bar: Progress,
) -> Result:
    if not math.isfinite(line.value) or not math.isfinite(_largest(line.g)):
        return line.result(False, "the value or the gradient at `p` is infinite or NaN", 0)
    # How much the last iteration gained; at first what makes the step about 1 long.
    fall = 0.5 * float(line.g @ line.g) / max(float(abs(line.g).sum()), 1e-300)
    for iteration in range(maxiter):
        if _largest(line.g) <= gtol:
            return line.result(True, "the gradient is below `gtol`", iteration)
        d = direction(line.g)
        slope = float(d @ line.g)  # along the line
        if not slope < 0.0:  # a quadratic model spoilt by rounding: begin anew
            direction.forget()
            d = -line.g
            slope = float(d @ line.g)
        before, g = line.value, line.g
        step = line.search(d, slope, _first(direction, fall, slope))
        if step == 0.0:
            return line.result(
                False, "no lower value was found along the line: the precision of the values is reached", iteration
            )
        direction.learn(step * d, line.g - g, -step * step * slope)
        fall = before - line.value
        if callback is not None:
            callback(line.p)
        bar.update()
        if bar.due():
            bar.show(_numbers(line))
        if fall <= ftol * max(abs(before), abs(line.value), 1.0) and ftol:
            return line.result(True, "the value falls by less than `ftol`", iteration + 1)
    return line.result(_largest(line.g) <= gtol, "the limit of iterations was reached", maxiter)


def _first(direction: _Direction, fall: float, slope: float) -> float:
    """The step to try first: 1, or less where a parabola of this slope falls sooner by what was gained last (equation 3.60)."""
    reach = 2.02 * fall  # a hundredth more than the parabola's, so that it becomes 1 in the end
    return reach / -slope if 0.0 < reach < -slope and not direction.scaled else 1.0


def _numbers(line: _Line) -> dict[str, str]:
    """Where it is, for people."""
    return {"value": f"{line.value:.6g}", "gradient": f"{_largest(line.g):.3g}"}


def _largest(g: Array) -> float:
    return float(abs(g).max()) if g.size else 0.0


class _Direction(ABC):
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


class _Dense(_Direction):
    """BFGS: the inverse Hessian as a matrix, widened where the function turns out to be less curved than the matrix says.

    For the line search mends a matrix that is too large at once, but accepts the short unit steps of one that is too small.
    Source: Al-Baali, "Numerical experience with a class of self-scaling quasi-Newton algorithms", JOTA 96, 1998.
    """

    def __init__(self, p: Array) -> None:
        self._inverse = place_of(p).contiguous(np.eye(p.size))
        self._pair = place_of(p).empty((2, p.size), p.dtype)  # of the latest update, of rank two
        self._fresh = True

    @property
    def scaled(self) -> bool:
        return False

    def __call__(self, g: Array) -> Array:
        return -(self._inverse @ g)

    def learn(self, s: Array, y: Array, expected: float) -> None:
        sy = float(s @ y)
        if not sy > 1e-300:
            return
        # The first step tells the scale (equation 6.20); later ones widen where unit steps are too short.
        scale = sy / float(y @ y) if self._fresh else min(max(1.0, expected / sy), MOST_WIDENING)
        self._fresh = False
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
        self._fresh = True


class _Pairs(_Direction):
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


class _Line:
    """The point reached, with its value and gradient, and the search for the next one along a line."""

    def __init__(self, function: Function, p: Array) -> None:
        self._function = function
        self.calls = 0
        self.p = p
        self.value, self.g = self._evaluate(p)

    def result(self, success: bool, message: str, iterations: int) -> Result:
        return Result(self.p, self.value, self.g, success, message, iterations, self.calls)

    def search(self, d: Array, slope: float, step: float) -> float:
        """Go along `d`, where the slope is `slope`, to a point of the strong Wolfe conditions, or at least of a lower value.

        `step` is tried first. Returns how far it went, 0 where there is no such point.
        """
        start = self.value
        origin, best = self.p, (0.0, self.p, self.value, self.g)
        low, high = (0.0, start, slope), None  # the ends of the interval: place, value, slope
        for _ in range(MOST_TRIES):
            p = origin + step * d
            value, g = self._evaluate(p)
            rise = float(d @ g) if math.isfinite(value) else math.inf
            if math.isfinite(value) and value < best[2]:
                best = (step, p, value, g)
            # Near the minimum values differ by rounding alone, and slopes tell (Hager and Zhang 2005, approximate Wolfe).
            flat = value <= start + 1e-15 * abs(start) and (2.0 * DECREASE - 1.0) * slope >= rise
            falls = value <= start + DECREASE * step * slope or flat
            if falls and abs(rise) <= -CURVATURE * slope:
                best = (step, p, value, g)
                break
            if not falls or (value >= low[1] and low[0] > 0.0):
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
