"""Weights that follow time: an equation counts at a time only once it holds at the times before.

A network that is trained at all times at once can leave a growing solution at the start and follow another one, such as zero.
Source: Wang, Sankaran and Perdikaris, "Respecting causality for training physics-informed neural networks", CMAME 421, 2024.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from chains.expr.formulas import Replay
from chains.residuals.problem import ResidualProblem
from chains.support import streams

INTERVALS = 40  # of time
STRENGTH = 100.0  # the logarithm of a weight for each interval whose residual is as large as its size
LITTLE = 0.2  # the effect of outputs at the ends of a coordinate, as a share of that inside, below which they have none
SETTLED = 0.99  # the least weight at which all times count


def time_axis(problem: ResidualProblem) -> int | None:
    """The coordinate along which there are conditions at the start and none at the end; None if there is none."""
    if problem.loss.transform is not None:
        transform = Replay(problem.loss.transform)
        fixed = [_is_fixed(problem, transform, axis) for axis in range(len(problem.coordinates))]
        return next((axis for axis, (first, last) in enumerate(fixed) if first and not last), None)
    low, high = problem.points.min(axis=0), problem.points.max(axis=0)
    near = 1e-6 * (high - low)
    places = [np.asarray(term.points, np.float64) for term in problem.terms]
    for axis in range(len(problem.coordinates)):
        if not high[axis] > low[axis]:
            continue
        at_start = [np.all(abs(points[:, axis] - low[axis]) <= near[axis]) for points in places]
        at_end = [np.any(abs(points[:, axis] - high[axis]) <= near[axis]) and _is_edge(points, axis) for points in places]
        if any(at_start) and not any(at_end):
            return axis
    return None


def _is_edge(points: np.ndarray, axis: int) -> bool:
    """Whether points have a few values of a coordinate, such as those of the ends of an interval."""
    return len(np.unique(points[:, axis])) <= 2


def _is_fixed(problem: ResidualProblem, transform: Replay, axis: int) -> tuple[bool, bool]:
    """Whether the transform leaves little of the outputs at the least and at the largest value of a coordinate."""
    points = problem.points[:100]
    values = streams.generator("scales", 0, len(problem.terms)).uniform(-1.0, 1.0, (2, len(problem.outputs), len(points)))

    def effect(places: np.ndarray) -> float:
        with np.errstate(all="ignore"):
            one, two = (np.array(transform(*each, *places.T)) for each in values)
        return float(abs(one - two).mean())

    inside = effect(points)
    ends = []
    for end in (problem.points[:, axis].min(), problem.points[:, axis].max()):
        places = points.copy()
        places[:, axis] = end
        ends.append(effect(places) < LITTLE * inside)
    return ends[0], ends[1]


class CausalWeights:
    """Factors of the points of terms that cover time."""

    def __init__(self, axis: int, unit: np.ndarray, settled: bool = False) -> None:
        self.axis, self.unit = axis, unit  # each term's mean square that counts as one, (terms,)
        self.settled = settled  # whether all times count

    def update(self, net: Any, p: np.ndarray, problem: ResidualProblem) -> ResidualProblem:
        """The problem with these factors for the parameters `p`."""
        squares = net.objective(problem.x, problem.t, problem.loss).residuals(p).reshape(len(problem.x), -1) ** 2
        weighted = copy.copy(problem)
        weighted.t = problem.t.copy()
        begin, least = 0, 1.0
        for number, term in enumerate(problem.terms):
            rows = slice(begin, begin + len(term.points))
            begin = rows.stop
            share = squares[rows].sum(axis=1) * (len(term.points) / len(problem.x)) / self.unit[number]
            factors = self._factors(problem.points[rows, self.axis], share)
            weighted.t[rows, number] *= factors
            least = min(least, float(factors.min()))
        self.settled = least >= SETTLED
        return weighted

    def _factors(self, times: np.ndarray, share: np.ndarray) -> np.ndarray:
        """The factor of each point, from the mean squares of the intervals before its own."""
        low, extent = times.min(), np.ptp(times)
        if not extent:
            return np.ones(len(times))
        interval = np.minimum((times - low) * (INTERVALS / extent), INTERVALS - 1).astype(int)
        counts = np.maximum(np.bincount(interval, minlength=INTERVALS), 1)
        means = np.bincount(interval, share, INTERVALS) / counts
        return np.asarray(np.exp(-STRENGTH * (np.cumsum(means) - means))[interval])
