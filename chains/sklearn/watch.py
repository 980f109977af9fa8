"""When training has made no progress for long enough."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from chains.training.run import TrainingState


class Watch:
    """Counts the epochs without progress of a run, keeps what is worth keeping, and says when to stop.

    `score` gives the number to watch, larger is better: of the validation samples, or the negative loss.
    """

    def __init__(self, tol: float, patience: int, score: Callable[[TrainingState], float], keep: bool) -> None:
        self.tol, self.patience, self.score, self.keep = tol, patience, score, keep
        self.scores: list[float] = []
        self.best, self.waited = -math.inf, 0
        self.kept: tuple[np.ndarray, np.ndarray | None] | None = None

    def __call__(self, state: TrainingState) -> str | None:
        self.scores.append(value := self.score(state))
        self.waited = 0 if value >= self.best + self.tol else self.waited + 1
        if value > self.best:
            self.best = value
            if self.keep:
                self.kept = state.p.copy(), None if state.state is None else state.state.copy()
        return f"no progress by {self.tol:g} in {self.patience} epochs" if self.waited > self.patience else None
