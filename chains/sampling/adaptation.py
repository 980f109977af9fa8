"""What warmup finds: the time of a leapfrog step and the scales of the parameters (Hoffman and Gelman 2014; Stan's manual)."""

from __future__ import annotations

import math

import numpy as np


class DualAveraging:
    """The time of a leapfrog step for which the share `target` of trajectories is accepted (Hoffman and Gelman 2014, 3.2)."""

    def __init__(self, time: float, target: float) -> None:
        self._target = target
        self.begin(time)

    def begin(self, time: float) -> None:
        """Forget all trajectories, and look about this time."""
        self._center, self._error, self._mean, self._count = math.log(10 * time), 0.0, math.log(time), 0
        self.time = time

    def note(self, accepted: float) -> None:
        """A trajectory was accepted with this probability, the mean over the chains."""
        self._count += 1
        count = self._count
        self._error += (self._target - accepted - self._error) / (count + 10)
        now = self._center - math.sqrt(count) / 0.05 * self._error
        share = count**-0.75
        self._mean = share * now + (1 - share) * self._mean
        self.time = math.exp(now)

    @property
    def final(self) -> float:
        """The time to go on with."""
        return math.exp(self._mean)


class Variances:
    """The variances of the parameters within the chains, of the positions noted."""

    def __init__(self) -> None:
        self._count = 0

    def note(self, p: np.ndarray) -> None:
        """Positions, a row for each chain."""
        if not self._count:
            self._mean, self._squares = np.zeros(p.shape), np.zeros(p.shape)
        self._count += 1
        away = p - self._mean
        self._mean += away / self._count
        self._squares += away * (p - self._mean)

    def take(self) -> np.ndarray:
        """The variances, drawn towards 1e-3 where there are few positions, as Stan does; the positions are forgotten."""
        count = self._count
        variance = self._squares.mean(axis=0) / max(1, count - 1)
        self._count = 0
        return (count * variance + 5e-3) / (count + 5)


def windows(warmup: int) -> list[int]:
    """The trajectories behind which variances are taken: windows that grow twofold, between two parts for the time alone."""
    first, last = math.ceil(0.15 * warmup), warmup - math.ceil(0.1 * warmup)
    ends, width, at = [], 25, first
    while at + width <= last:
        end = last if at + 3 * width > last else at + width
        ends.append(end)
        at, width = end, 2 * width
    return ends
