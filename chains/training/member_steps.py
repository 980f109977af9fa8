"""Training steps of many networks at once. All members are at the same step, except those that have ended."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.backends import Executable
from chains.backends.base import MemberFeed
from chains.network.record import Criterion
from chains.optimizers import Optimizer
from chains.training.ensemble import Ensemble
from chains.training.ensemble_history import EnsembleHistory
from chains.training.finite import loss_text, parameter_text
from chains.training.optimizer_state import State
from chains.training.steps import Arrays, ArraySteps


class MemberSteps(ArraySteps):
    """Steps of the members of an `ensemble`, which share some of the `data`. Members that end are noted in the `history`.

    Other arguments are those of `ArraySteps`; there may be a seed for each member.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        objective: Criterion,
        history: EnsembleHistory,
        data: Arrays,
        executable: Executable,
        trained: Arrays,
        optimizer: Optimizer,
        **rest: Any,
    ) -> None:
        self._settings = ensemble.settings(executable, objective)
        self._own = {*ensemble.members.own, *trained, *self._settings, "moments", "step", "random"}
        self._history = history
        super().__init__(data, executable, trained, optimizer, samples=ensemble.members.samples, **rest)

    @property
    def _rows(self) -> tuple[int, ...]:
        return (self._history.members,)

    @property
    def sound(self) -> bool:
        return len(self._history.ended) < self._history.members

    def check(self) -> None:
        """Members end by themselves."""

    def check_parameters(self, p: np.ndarray) -> None:
        for member in self._history.running:
            text = parameter_text(p[member], self.done)
            if text:
                self._history.end(int(member), self._history.epochs, text)

    def _unordered(self) -> np.ndarray:
        rows = 1 if isinstance(self._seed, int) or self._whole_batch or not self._shuffle else self._history.members
        return np.tile(self._sorted, (rows, 1))

    def _feed_of(self, data: State, batch: int, order: slice) -> MemberFeed:
        shared = {name: array for name, array in self._shared.items() if name != "value"} | self._used(self._settings)
        given = self._program, batch, shared, data, self._order[:, order], self._own
        return self._runner.member_feed(*given)

    def _run(self, feed: MemberFeed, first: int, losses: np.ndarray) -> int:
        history, running = self._history, self._history.running
        losses[...] = np.nan
        done = feed(first, losses, running)
        for member, count in zip(running.tolist(), done.tolist(), strict=True):
            losses[member, count:] = np.nan
            if not np.isfinite(loss := losses[member, count - 1]):
                epochs = count if self._whole_batch else self.step + count == self.per_epoch
                history.end(member, history.epochs + epochs, loss_text(loss, self.done + count, self.advice))
        return int(done.max())

    def _shuffle_all(self) -> None:
        seeds = [self._seed] if isinstance(self._seed, int) else self._seed
        for row, seed in zip(self._order, seeds, strict=True):
            np.random.default_rng([seed, self.epoch]).shuffle(row)

    def _means(self) -> list[float]:
        if self._whole_batch:
            return list(self._losses.T.copy())
        return super()._means()
