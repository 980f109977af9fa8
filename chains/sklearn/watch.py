"""When training has made no progress for long enough."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from chains.training.run import TrainingState


class Watch:
    """Counts the epochs without progress of a run, keeps what is worth keeping, and says when to stop.

    `score` gives the number to watch, larger is better, of the validation samples; without it, it is the negative loss.
    """

    def __init__(self, tol: float, patience: int, score: Callable[[TrainingState], float] | None) -> None:
        self.tol, self.patience, self.score = tol, patience, score
        self.scores: list[float] = []
        self.best, self.waited = -math.inf, 0
        self.kept: tuple[np.ndarray, np.ndarray | None] | None = None

    @property
    def epochs_at_once(self) -> int:
        """How many epochs may be done before the next look: losses can be looked at later, if none of them ends training."""
        return self.patience + 1 - self.waited if self.score is None else 1

    def __call__(self, state: TrainingState) -> str | None:
        if self.score is not None:
            self._look(self.score(state), state)
        else:
            for loss in state.history.loss[len(self.scores) :]:
                self._look(-loss, state)
        return f"no progress by {self.tol:g} in {self.patience} epochs" if self.waited > self.patience else None

    def _look(self, value: float, state: TrainingState) -> None:
        self.scores.append(value)
        self.waited = 0 if value >= self.best + self.tol else self.waited + 1
        if value > self.best:
            self.best = value
            if self.score is not None:
                self.kept = state.p.copy(), None if state.state is None else state.state.copy()
