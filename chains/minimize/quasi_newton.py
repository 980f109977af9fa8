"""Models of a function's curvature, of BFGS and of L-BFGS, on vectors that stay where they are.

Source: Nocedal and Wright, "Numerical Optimization", 2nd edition, algorithms 6.1 (BFGS) and 7.5 (L-BFGS).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Any

import numpy as np

from chains.support.memory import memory_of

Array = Any

MAX_WIDENING = 10.0  # of BFGS's matrix in an iteration: 1 / (1 - CURVATURE) of the line search, the most after a unit step
BLOCK_ELEMENTS = 2**20  # entries of BFGS's matrix that are changed together, so that no second matrix is needed


class Direction(ABC):
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


class DenseInverse(Direction):
    """BFGS: the inverse Hessian as a matrix, widened where the function turns out to be less curved than the matrix says.

    For the line search mends a matrix that is too large at once, but accepts the short unit steps of one that is too small.
    Source: Al-Baali, "Numerical experience with a class of self-scaling quasi-Newton algorithms", JOTA 96, 1998.
    """

    def __init__(self, p: Array) -> None:
        self._inverse = memory_of(p).contiguous(np.eye(p.size))
        self._pair = memory_of(p).empty((2, p.size), p.dtype)  # of the latest update, of rank two

    @property
    def scaled(self) -> bool:
        return False

    def __call__(self, g: Array) -> Array:
        return -(self._inverse @ g)

    def learn(self, s: Array, y: Array, expected: float) -> None:
        sy = float(s @ y)
        if not sy > 1e-300:
            return
        scale = min(max(1.0, expected / sy), MAX_WIDENING)
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


class Pairs(Direction):
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
