"""Levenberg-Marquardt: minima of sums of squares, by the Jacobian of the residuals.

Each iteration minimises the quadratic model of J'r and J'J within a trust region: steps d with d'D d <= radius^2. D holds the
largest entries so far of the diagonal of J'J, within bounds. So the method follows the scale of each parameter, and parameters
do not run to values on which little depends. The step solves (J'J + damping * D) d = -J'r. The radius grows if the model was
right and shrinks if it was not.

With bounds, parameters that stay at a bound are left out of the equations, and a step is projected to the bounds. Source: Moré,
"The Levenberg-Marquardt algorithm: implementation and theory", 1978, as in MINPACK's lmder.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from chains.minimize.stopping import EPSILON, PRECISE, REST, Limits, falls_little, promised_fall, way_down

MIN_SCALE = 0.1  # of the largest of D times the square of a parameter at the start
RADIUS_TOLERANCE = 0.5  # of a step's length: a smaller tolerance costs more solutions of the equations, and gains nothing
MAX_CORRECTIONS = 10  # of the damping, for a step
FORGET = 1e-8  # of the largest size of the loss: at lower ones, sizes and scales of earlier points are forgotten
MAX_FACTORINGS = 50  # of a matrix that is not positive, by rounding; the damping grows tenfold after each

STUCK = "no lower value was found at any damping, though the model promises one"
INFINITE, SINGULAR = "the value or the gradient at `p` is infinite or NaN", "the Jacobian is infinite or NaN"


class SumOfSquares(Protocol):
    """Half the sum of squared residuals, such as the `Objective` of a squared loss."""

    def normal_equations(self, p: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """The value r'r / 2, its gradient J'r and the matrix J'J."""
        ...

    def value(self, p: np.ndarray) -> float:
        """The value alone."""
        ...


class LevenbergMarquardt:
    """A point of the descent, with the model of the function there."""

    @np.errstate(all="ignore")
    def __init__(self, function: SumOfSquares, p: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
        self._function = function
        self.p = p
        self.calls = 1  # points at which the function was called
        self.fall = 0.0  # of the value, in the last step
        self._low, self._high = low, high
        self._most = 0.0  # of the sizes of the loss
        self._begin()

    def _begin(self) -> None:
        """Look at a point that is the start, or as good as one."""
        self._largest, self._recent = np.zeros(len(self.p)), 0.0  # of the diagonal of J'J, and of the sizes since the start
        self._used = 0  # parameters on which something depends at the start
        self._look()
        # Lengths are kept as squares, whose unit is that of the loss: other powers of two change no bits.
        self._radius = self._tried = self._length(self.p) or 2.0 * self.value or 1.0
        self._damping = self._least

    def _look(self) -> None:
        self.value, self.g, self._matrix = self._function.normal_equations(self.p)
        columns = self._matrix.diagonal()
        if not self._used:
            self._note_sizes(columns)
        way = way_down(self.p, self.g, self._low, self._high)
        self._promised = promised_fall(self.g, columns, way)
        self._size = max(self.value, 0.5 * float(self.p @ (self._matrix @ self.p)))
        self._most, self._recent = max(self._most, self._size), max(self._recent, self._size)
        self._largest = np.maximum(self._largest, columns)
        least = MIN_SCALE * float((self._largest * self._squares).max(initial=0.0)) / self._sizes
        idle = self._largest == 0.0  # frozen parameters, and others on which nothing has depended yet
        self._scale = np.where(idle, 0.0, np.maximum(self._largest, least))
        fixed = idle | at_bounds(self.p, self.g, self._low, self._high)
        self._slope = np.where(fixed, 0.0, self.g)
        if fixed.any():
            self._matrix = np.where(fixed | fixed[:, None], np.diag(fixed.astype(np.float64)), self._matrix)

    def _note_sizes(self, columns: np.ndarray) -> None:
        """Keep the sizes of the parameters at the start; those on which nothing depends do not count."""
        self._used = max(1, int(np.count_nonzero(columns)))
        self._squares = np.where(columns == 0.0, 0.0, self.p * self.p)
        self._sizes = np.maximum(self._squares, float(self._squares.sum()) / self._used or 1.0)
        self._least = self._used * EPSILON  # the solver of singular equations

    def converged(self, limits: Limits) -> bool:
        """Whether the gradient and the next step promise little, or the value is zero; see `stopping`."""
        if self.value <= limits.floor * max(self._size, limits.floor * self._most):
            return True
        little = limits.promise * self._size
        return self._promised <= little and self._next_promise() <= min(little, REST * self.value)

    @np.errstate(all="ignore")
    def _next_promise(self) -> float:
        """The fall that the next step promises, without bounds; infinite if there is none."""
        kept = self._damping, self._tried
        d = self._trial()
        promised = math.inf if d is None else self._whole_promise(float(d @ self._slope))
        self._damping, self._tried = kept
        return promised

    def _whole_promise(self, slope: float) -> float:
        """The fall that the step of a trial promises, if it goes down by `slope` along the gradient."""
        return 0.5 * (self._damping * self._tried - slope)

    def stalls(self, ftol: float) -> bool:
        """Whether the last step lowered the value by little."""
        return falls_little(self.fall, max(self._size, self.value + self.fall), ftol)

    def _length(self, d: np.ndarray) -> float:
        """The square of the length of a step."""
        return float(d @ (self._scale * d))

    def _factor(self) -> bool:
        """Make the damped matrix. The damping grows until rounding no longer makes it indefinite; returns whether that ends."""
        for _ in range(MAX_FACTORINGS):
            self._damped = self._matrix.copy()
            self._damped.reshape(-1)[:: len(self._damped) + 1] += self._damping * self._scale
            try:
                np.linalg.cholesky(self._damped)
            except np.linalg.LinAlgError:
                self._damping *= 10.0
            else:
                return True
        return False

    def _trial(self) -> np.ndarray | None:
        """A step about as long as the radius, or a shorter one without damping; None if the equations have no solution."""
        # The length of a step times its damping changes little from one step to the next.
        self._damping = max(self._least, self._damping * math.sqrt(self._tried / self._radius))
        for correction in range(MAX_CORRECTIONS + 1):
            if not self._factor():
                return None
            d = np.linalg.solve(self._damped, -self._slope)
            self._tried = length = self._length(d)
            excess = math.sqrt(length / self._radius) - 1.0
            enough = abs(excess) <= RADIUS_TOLERANCE or (excess < 0.0 and self._damping == self._least) or not length
            if enough or correction == MAX_CORRECTIONS:
                break
            # Newton's method for 1 / length, which depends on the damping almost linearly (Moré, equation 5.6).
            scaled = self._scale * d
            change = length * excess / float(scaled @ np.linalg.solve(self._damped, scaled))
            self._damping = max(self._least, self._damping + change)
        return d

    @np.errstate(all="ignore")
    def step(self) -> str:
        """Go to a lower point. Returns the reason if no damping gives one."""
        most_promised = 0.0
        while True:
            d = self._trial()
            if d is None:
                return SINGULAR
            p = self.p + d
            within = np.clip(p, self._low, self._high)
            clipped, length = bool((within != p).any()), self._tried
            if clipped:
                p, d = within, within - self.p
                length = self._length(d)
            slope = float(d @ self._slope)
            promised = -slope - 0.5 * float(d @ self._matrix @ d) if clipped else self._whole_promise(slope)
            most_promised = max(most_promised, promised)
            if not length > EPSILON**2 * self._length(self.p) or not (clipped or promised > EPSILON * self.value):
                return self._explain(most_promised)
            if not promised > EPSILON * self.value:  # too long for the bounds
                self._radius = 0.0625 * self._tried
                continue
            value = self._function.value(p)
            self.calls += 1
            fall = self.value - value if math.isfinite(value) else -math.inf
            if fall <= 0.25 * promised:
                shrink = 0.5 * slope / (slope + fall)  # to the minimum of the parabola through both values
                self._radius = min(0.5, max(0.1, shrink)) ** 2 * length
            elif fall >= 0.75 * promised or self._damping == self._least:
                self._radius = max(4.0 * length, self._radius) if clipped else 4.0 * length
            if fall >= 1e-4 * promised:
                self.p = p
                self._look()
                if self._size < FORGET * self._recent:
                    self._begin()
                self.fall = fall
                return "" if math.isfinite(self.value + float(abs(self.g).sum())) else SINGULAR

    def _explain(self, promised: float) -> str:
        """The reason why a step finds no lower value: rounding, or a Jacobian that does not belong to the values."""
        rounding = math.sqrt(EPSILON) * self.value + EPSILON**2 * self._length(self.p)
        return PRECISE if promised <= rounding else STUCK


def at_bounds(p: Any, g: Any, low: Any, high: Any) -> Any:
    """Which parameters are at a bound and would leave it along the negative gradient."""
    return ((p <= low) & (g > 0.0)) | ((p >= high) & (g < 0.0))
