"""Steps that were recorded, done again in NumPy, with the states between them by the method's interpolant."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from chains.layers.ode.methods import METHODS

Rate = Callable[[np.ndarray, float], np.ndarray]


def states_at(method: str, rate: Rate, start: np.ndarray, ends: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The states at ascending times, (times, n), by steps that end at `ends`, the first of which is the beginning."""
    found, y = [start] * int(np.sum(times <= ends[0])), np.array(start)
    for t, end in pairwise(ends):
        h = end - t
        between = _explicit(method, rate, y, t, h) if not METHODS[method].gamma else _implicit(method, rate, y, t, h)
        found += [between((time - t) / h) for time in times[(times > t) & (times <= end)]]
        y = between(1.0)
    return np.stack(found)


def _explicit(method: str, rate: Rate, y: np.ndarray, t: float, h: float) -> Callable[[float], np.ndarray]:
    ((a, b),) = METHODS[method].halves
    slopes: list[np.ndarray] = []
    for row, c in zip((*a, b), (*METHODS[method].c, 1.0), strict=True):
        slopes.append(rate(y + h * sum((w * k for w, k in zip(row, slopes, strict=False)), np.zeros_like(y)), t + c * h))
    return _polynomial(method, y, h * np.array(slopes))


def _implicit(method: str, rate: Rate, y: np.ndarray, t: float, h: float) -> Callable[[float], np.ndarray]:
    """Stages by Newton's method, until they do not change."""
    ((rows, _),), gamma, c = METHODS[method].halves, METHODS[method].gamma, METHODS[method].c
    slopes, stages = [rate(y, t)], [y]
    for i, row in enumerate(rows[1:], 1):
        known = y + h * sum(w * k for w, k in zip(row, slopes, strict=True))
        x, at = np.array(stages[-1]), t + c[i] * h
        for _ in range(30):
            steps = 1e-7 * np.eye(len(y))
            jacobian = np.stack([(rate(x + d, at) - rate(x - d, at)) / 2e-7 for d in steps], 1)
            change = np.linalg.solve(np.eye(len(y)) - h * gamma * jacobian, known + h * gamma * rate(x, at) - x)
            x = x + change
            if np.max(np.abs(change)) < 1e-15 * np.max(np.abs(x)):
                break
        slopes.append(rate(x, at))
        stages.append(x)
    return _polynomial(method, y, np.array(stages) - y)


def _polynomial(method: str, y: np.ndarray, pieces: np.ndarray) -> Callable[[float], np.ndarray]:
    weights = np.array(METHODS[method].interpolant)
    return lambda s: y + (weights @ s ** np.arange(1.0, weights.shape[1] + 1.0)) @ pieces
