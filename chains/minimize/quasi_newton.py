"""Quasi-Newton methods: models of a function's curvature, and a line search to the strong Wolfe conditions.

Source: Nocedal and Wright, "Numerical Optimization", 2nd edition, algorithms 3.5 and 3.6 (line search), 6.1 (BFGS) and
7.5 (L-BFGS); of the self-scaled methods where they are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from chains.backends import backend
from chains.minimize.stopping import EPSILON, PRECISE, Limits
from chains.support.memory import HOST, memory_of
from chains.support.messages import shown

Array = Any
Function = Callable[[Array], tuple[float, Array]]

DECREASE, CURVATURE = 1e-4, 0.9  # of the strong Wolfe conditions; SciPy's
MAX_TRIES = 40
MAX_WIDENING = 10.0  # of BFGS's matrix in an iteration: 1 / (1 - CURVATURE) of the line search, the most after a unit step
BLOCK_ELEMENTS = 2**20  # entries of a matrix that are changed together, so that no second matrix is needed
MIN_COMPILED = 64  # parameters from which on the matrix is changed in machine code
ROUNDING = 1e-12  # of y'H y s'B s / (s'y)^2 - 1
Coefficients = Callable[[float, float, int], tuple[float, float]]


class Direction(ABC):
    """A model of the function's curvature; calling it gives the direction to go in."""

    @property
    @abstractmethod
    def scaled(self) -> bool:
        """Whether the model has the scale of the function, so that the first step to try is 1."""

    @property
    @abstractmethod
    def state(self) -> Array:
        """The model as an array, from which another one can be made."""

    @abstractmethod
    def __call__(self, g: Array) -> Array: ...

    @abstractmethod
    def learn(self, s: Array, y: Array, g: Array, expected: float) -> None:
        """Learn that a step `s` changed the gradient by `y`, to `g`, where the model expected s @ y to be `expected`."""

    @abstractmethod
    def forget(self) -> None: ...


class ArrayMatrix:
    """A symmetric matrix (n, n), changed by the operations of its array library, on the host or on a GPU."""

    def __init__(self, matrix: Array) -> None:
        self.array = memory_of(matrix).array(matrix)
        self._pair = memory_of(matrix).empty((2, len(matrix)), self.array.dtype)

    def change(self, scale: float, a: Array, sign_a: float, b: Array, sign_b: float, y: Array, g: Array) -> tuple[Array, Array]:
        """Let H be scale * H + sign_a * a a' + sign_b * b b'; returns H y and H g."""
        if (scale, sign_a, sign_b) != (1.0, 0.0, 0.0):
            self._pair[0], self._pair[1] = a, b
            signed = self._pair.copy()
            signed[0] *= sign_a
            signed[1] *= sign_b
            rows = max(1, BLOCK_ELEMENTS // a.size)
            for first in range(0, a.size, rows):
                block = self.array[first : first + rows]
                block *= scale
                block += signed[:, first : first + rows].T @ self._pair
        return self.array @ y, self.array @ g


class DenseInverse(Direction):
    """The inverse Hessian as a matrix, of Broyden's family: BFGS or SSBroyden.

    A step changes the matrix H to ``scale * H + sign_a * a a' + sign_b * b b'``. This change is made later, in the pass over
    the matrix that computes the next H y and H g. So an iteration reads and writes each entry once.
    """

    def __init__(self, p: Array, coefficients: Coefficients, state: Array | None = None) -> None:
        matrix = memory_of(p).contiguous(np.eye(p.size)) if state is None else state
        own = None
        if p.size >= MIN_COMPILED and memory_of(p) is HOST:
            own = backend("auto").symmetric_matrix(matrix)
        self._matrix = ArrayMatrix(matrix) if own is None else own
        self._coefficients = coefficients
        self._zero = memory_of(p).contiguous(np.zeros(p.size))
        self._unchanged = (1.0, self._zero, 0.0, self._zero, 0.0)
        self._change: tuple[float, Array, float, Array, float] = self._unchanged  # to be made
        self._product: tuple[Array, Array] | None = None  # the latest g, and H g

    @property
    def scaled(self) -> bool:
        return False

    @property
    def state(self) -> Array:
        self._pass(self._zero, self._zero)
        return self._matrix.array

    def _pass(self, y: Array, g: Array) -> tuple[Array, Array]:
        change, self._change = self._change, self._unchanged
        return self._matrix.change(*change, y, g)

    def __call__(self, g: Array) -> Array:
        if self._product is None or self._product[0] is not g:
            self._product = g, self._pass(self._zero, g)[1]
        return -self._product[1]

    def learn(self, s: Array, y: Array, g: Array, expected: float) -> None:
        sy = float(s @ y)
        if not sy > 1e-300:
            return
        hy, hg = self._pass(y, g)
        yhy = float(y @ hy)
        h, b = yhy / sy, expected / sy
        if not (h > 0.0 and b > 0.0 and h * b < math.inf):  # rounding has spoilt the matrix
            self.forget()
            return
        scale, phi = self._coefficients(h, b, s.size)
        # scale * (H - hy hy' / yhy + phi * yhy * v v') + s s' / sy, where v = s / sy - hy / yhy
        ss, sh, hh = (1.0 + scale * phi * yhy / sy) / sy, -scale * phi / sy, scale * (phi - 1.0) / yhy
        self._change = scale, *_squares(ss, sh, hh, s, hy)
        _, a, sign_a, b, sign_b = self._change
        self._product = g, scale * hg + (sign_a * float(a @ g)) * a + (sign_b * float(b @ g)) * b

    def forget(self) -> None:
        self._change, self._product = self._unchanged, None
        self._matrix.array[...] = 0.0
        number = np.arange(len(self._zero))
        self._matrix.array[number, number] = 1.0


def _squares(ss: float, sh: float, hh: float, s: Array, h: Array) -> tuple[Array, float, Array, float]:
    """``ss * s s' + sh * (s h' + h s') + hh * h h'`` as ``sign_a * a a' + sign_b * b b'``: a, sign_a, b, sign_b."""
    lengths = np.array([math.sqrt(float(s @ s)), math.sqrt(float(h @ h))])
    values, vectors = np.linalg.eigh(np.array([[ss, sh], [sh, hh]]) * np.outer(lengths, lengths))
    weights = np.sqrt(abs(values)) * vectors / lengths[:, None]
    (a_s, b_s), (a_h, b_h) = weights.tolist()
    sign_a, sign_b = np.sign(values).tolist()
    return a_s * s + a_h * h, sign_a, b_s * s + b_h * h, sign_b


def bfgs(h: float, b: float, n: int) -> tuple[float, float]:
    """The scale and phi of BFGS, whose matrix is widened if the function is less curved than the matrix says.

    The line search corrects a matrix that is too large in one step, but accepts the short unit steps of one that is too small.
    `h` is y'H y / s'y, and `b` is what the matrix expected s'y to be, divided by s'y.
    Source: Al-Baali, "Numerical experience with a class of self-scaling quasi-Newton algorithms", JOTA 96, 1998, where the
    scale has no bound; Urbán, Stefanou and Pons 2024, equation 11.
    """
    return min(max(1.0, b), MAX_WIDENING), 1.0


def self_scaled_broyden(h: float, b: float, n: int) -> tuple[float, float]:
    """The self-scaled Broyden family: 1 / tau and phi of Urbán, Stefanou and Pons, from `h` and `b` as in `bfgs`.

    Source: Urbán, Stefanou and Pons, "Unveiling the optimization process of physics informed neural networks", Journal of
    Computational Physics 523, 2025, equations 13 to 23, after Al-Baali, Spedicato and Maggioni, "Broyden's quasi-Newton
    methods for a nonlinear system of equations and unconstrained optimization", 2014.
    """
    a = h * b - 1.0  # 0 or more, by Cauchy and Schwarz
    if a <= ROUNDING:  # the members of the family differ by nothing
        return max(1.0, b), 1.0
    rho = min(1.0, 1.0 / (b * (1.0 + math.sqrt(a / (1.0 + a)))))  # h * (1 - root) of the source, without cancellation
    theta = max((rho - 1.0) / a, min(1.0 / rho, (1.0 - b) / b))
    sigma = max(1.0 + theta * a, rho)  # which is rho at the least theta, but for rounding
    root = sigma ** (1.0 / (1.0 - n)) if n > 1 else 1.0
    tau = min(root * min(1.0, 1.0 / b), sigma) if theta <= 0.0 else min(1.0, 1.0 / b) * min(root, 1.0 / theta)
    return 1.0 / tau, (1.0 - theta) / sigma


class Pairs(Direction):
    """L-BFGS: the latest steps and what they did to the gradient. Its scalars are arrays, which stay on a GPU."""

    def __init__(self, p: Array, memory: int, state: Array | None = None) -> None:
        self._n, self._memory = p.size, memory_of(p)
        self._pairs: deque[tuple[Array, Array, Array]] = deque(maxlen=memory)
        for s, y in () if state is None else state:
            self._pairs.append((s.copy(), y.copy(), 1.0 / (s @ y)))

    @property
    def scaled(self) -> bool:
        return bool(self._pairs)

    @property
    def state(self) -> Array:
        """The steps and what they did to the gradient, (pairs, 2, n)."""
        place, n = self._memory, self._n
        state = place.empty((len(self._pairs), 2, n), np.dtype(np.float64))
        for row, (s, y, _) in zip(state, self._pairs, strict=True):
            row[0], row[1] = s, y
        return state

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

    def learn(self, s: Array, y: Array, g: Array, expected: float) -> None:
        sy = s @ y
        if float(sy) > 1e-300:
            self._pairs.append((s, y, 1.0 / sy))

    def forget(self) -> None:
        self._pairs.clear()


class QuasiNewton:
    """A point of the descent, with its value and gradient; it searches the next one along the direction of a model."""

    def __init__(self, function: Function, p: Array, direction: Direction, *, knows: bool = False) -> None:
        self._function, self._direction = function, direction
        self.calls = 0  # points at which the function was called
        self.p = p
        self.value, self.g = self._evaluate(p)
        self._start = abs(self.value)
        # How much the last step lowered the value; at first what makes the step about 1 long, if the model knows nothing.
        self.fall = math.inf if knows else 0.5 * float(self.g @ self.g) / max(float(abs(self.g).sum()), 1e-300)

    @property
    def state(self) -> Array:
        """What the model has learnt."""
        return self._direction.state

    def step(self) -> str:
        """Go to a lower point; the reason where none is found."""
        before, g = self.value, self.g
        # A model that promises no more than rounding is at the minimum, as far as values can say.
        rounding = math.sqrt(EPSILON) * abs(before) + EPSILON * self._start
        d = self._direction(g)
        slope = float(d @ g)  # along the line
        step = self._search(d, slope) if slope < 0.0 else 0.0
        if step == 0.0 and 0.0 < -slope <= rounding:
            return PRECISE
        if step == 0.0:  # rounding has spoilt the model, or it is wrong from here on: begin anew
            self._direction.forget()
            d = -g
            slope = float(d @ g)
            step = self._search(d, slope)
        if step == 0.0:
            return "no lower value was found along the line, though the gradient promises one"
        self._direction.learn(step * d, self.g - g, self.g, -step * step * slope)
        self.fall = before - self.value
        return ""

    def _search(self, d: Array, slope: float) -> float:
        """Go along `d`, where the slope is `slope`, to a point of the strong Wolfe conditions, or at least of a lower value.

        Returns how far it went, 0 where there is no such point.
        """
        # The first step is 1, or less where a parabola of this slope falls as much as the last step sooner (equation 3.60).
        reach = 2.02 * self.fall  # a hundredth more than the parabola's, so that it becomes 1 in the end
        step = reach / -slope if 0.0 < reach < -slope and not self._direction.scaled else 1.0
        start = self.value
        origin, best = self.p, (0.0, self.p, self.value, self.g)
        low, high = (0.0, start, slope), None  # the ends of the interval: place, value, slope
        for _ in range(MAX_TRIES):
            p = origin + step * d
            value, g = self._evaluate(p)
            rise = float(d @ g)
            if not (math.isfinite(value) and math.isfinite(rise)):
                value = rise = math.inf
            if value < best[2]:
                best = (step, p, value, g)
            # Near the minimum values differ by rounding alone: slopes decide (Hager and Zhang 2005, approximate Wolfe).
            flat = value <= start + 1e-15 * abs(start) and (2.0 * DECREASE - 1.0) * slope >= rise
            falls = value <= start + DECREASE * step * slope or flat
            if falls and abs(rise) <= -CURVATURE * slope:
                best = (step, p, value, g)
                break
            if not falls or (value > low[1] and low[0] > 0.0):
                high = (step, value, rise)
            else:
                if rise >= 0.0 if high is None else (high[0] - low[0]) * rise >= 0.0:
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

    def converged(self, limits: Limits) -> bool:
        """Whether the gradient's largest entry is small."""
        return not self.g.size or bool(abs(self.g).max() <= limits.gtol)

    def stalls(self, ftol: float) -> bool:
        """Whether the last step lowered the value by little."""
        return ftol > 0.0 and self.fall <= ftol * max(abs(self.value + self.fall), abs(self.value), 1.0)

    def _evaluate(self, p: Array) -> tuple[float, Array]:
        self.calls += 1
        return evaluated(self._function, p)


def evaluated(function: Function, p: Array) -> tuple[float, Array]:
    """The value and the gradient, checked."""
    returned = function(p)
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
