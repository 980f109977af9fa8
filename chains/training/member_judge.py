"""Loss and metrics on the validation data of an ensemble after each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.losses import Loss
from chains.penalties import Penalty
from chains.training.ensemble_history import EnsembleHistory
from chains.training.judge import Judge, Metric


class MemberJudge:
    """Computes the loss and the metrics of each member that has not ended, on shared validation data or its own."""

    def __init__(
        self,
        net: Chain,
        p: np.ndarray,
        state: np.ndarray | None,
        loss: Loss,
        penalty: Penalty | None,
        validation: Any,
        metrics: Sequence[Metric],
        history: EnsembleHistory,
    ) -> None:
        self._history = history
        states = [None] * len(p) if state is None else state
        if _are_own(validation, net):
            self._check(validation, len(p))
            own = [[None if array is None else array[m] for array in validation] for m in range(len(p))]
            self._judges = [Judge(net, p[m], states[m], loss, penalty, own[m], metrics) for m in range(len(p))]
            self._data_of = {f" of member {m}": judge for m, judge in enumerate(self._judges)}
        else:
            first = Judge(net, p[0], states[0], loss, penalty, validation, metrics)
            self._judges = [first.of(p[m], states[m]) for m in range(len(p))]
            self._data_of = {"": first}
        self.names = self._judges[0].names

    @property
    def data(self) -> dict[str, np.ndarray]:
        """The validation data by argument."""
        return {f"{name}{of}": array for of, judge in self._data_of.items() for name, array in judge.data.items()}

    def with_counted_targets(self) -> dict[str, np.ndarray]:
        """The validation data by argument, for checks of their numbers."""
        judges = self._data_of.items()
        return {f"{name}{of}": array for of, judge in judges for name, array in judge.with_counted_targets().items()}

    @staticmethod
    def _check(validation: Any, count: int) -> None:
        """Raise ValueError unless there are data for each member."""
        for k, array in enumerate(validation):
            if array is not None and np.shape(array)[:1] != (count,):
                raise ValueError(
                    f"`validation[{k}]` must have an axis of {count} members in front, got shape {np.shape(array)}"
                )

    @property
    def nothing(self) -> dict[str, Any]:
        """Placeholders for the numbers when they are not computed."""
        return {name: np.full(self._history.members, np.nan) for name in self.names}

    def __call__(self) -> dict[str, Any]:
        """The numbers by name, each of shape (members,), NaN for members that have ended; none without validation data."""
        numbers = self.nothing
        if numbers:
            for member in self._history.running:
                for name, number in self._judges[member]().items():
                    numbers[name][member] = number
        return numbers


def _are_own(validation: Any, net: Chain) -> bool:
    """Whether inputs have an axis of members in front."""
    if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 3, 4):
        return False
    shape = np.shape(validation[0])
    return len(shape) == len(net.input_shape) + 2 and shape[2:] == net.input_shape
