"""Callbacks of the training loop: called after each epoch with a `TrainingState`; a text returned ends training.

Their methods `begin` and `finish`, where they have them, are called before the first step and at the end. What `state_dict`
gives is written into checkpoints, and given to `load_state_dict` where training goes on from one, after `begin`; a text that
this one returns ends training at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chains.backends.places import on_host, place_of
from chains.callbacks.base import Callback as Callback
from chains.callbacks.learning_rate import LearningRates as LearningRates
from chains.callbacks.learning_rate import find_learning_rate as find_learning_rate
from chains.callbacks.loggers import CSVLogger as CSVLogger
from chains.callbacks.loggers import TensorBoard as TensorBoard
from chains.checks import check_count, check_flags, check_number, check_word
from chains.messages import counted, listed, meant
from chains.network import arguments


class EarlyStopping:
    """Ends training when a quantity has not improved for `patience` epochs, and puts the best parameters back.

    `monitor` is "validation loss", "loss" or the name of a metric; `mode` is "min" or "max", what counts as
    better. An improvement is more than `min_delta`. With `restore`, `p`, and the state of a network that has one, are
    those of the best epoch at the end. Each training starts it anew. Raises TypeError or ValueError for other settings, and
    ValueError at the beginning of a training that does not record the quantity.
    """

    def __init__(
        self,
        patience: int = 10,
        *,
        monitor: str = "validation loss",
        mode: str = "min",
        min_delta: float = 0.0,
        restore: bool = True,
    ) -> None:
        check_word("mode", mode, "min", "max")
        if not isinstance(monitor, str):
            raise TypeError(f"`monitor` (={monitor!r}) must be the name of a quantity, such as 'validation loss'")
        check_number("min_delta", min_delta, "in [0, inf)")
        check_flags(restore=restore)
        self.patience = check_count("patience", patience, also=" of epochs")
        self.monitor = monitor
        self.mode = mode
        self.min_delta = min_delta
        self.restore = restore
        self._start()

    def begin(self, names: Sequence[str]) -> None:
        """Start anew. Raises ValueError unless the quantity is among those that will be recorded."""
        if self.monitor not in names:
            needed = "" if "validation loss" in names else "; the validation loss and metrics need `validation=(x, t)`"
            hint = meant(self.monitor, names) or needed
            raise ValueError(f"`monitor` (={self.monitor!r}) is not recorded; there are {listed(names)}{hint}")
        self._start()

    def _start(self) -> None:
        self.best = math.inf if self.mode == "min" else -math.inf
        self.best_epoch = 0
        self._epoch = 0  # seen last
        self._best: list[np.ndarray] = []  # parameters and state

    def __call__(self, state: Any) -> str | None:
        value = state.history.columns()[self.monitor][-1]
        gain = self.best - value if self.mode == "min" else value - self.best
        if gain > self.min_delta:
            self.best, self.best_epoch = value, state.epoch
            if self.restore:
                self._best = [vector.copy() for vector in _vectors(state)]
        self._epoch = state.epoch
        return self._reason()

    def _reason(self) -> str | None:
        if self._epoch - self.best_epoch < self.patience:
            return None
        return f"no better {self.monitor} than {self.best:g} (epoch {self.best_epoch}) for {counted(self.patience, 'epoch')}"

    def state_dict(self) -> dict[str, Any]:
        """What it has seen so far, for a checkpoint."""
        seen = {"best": self.best, "best_epoch": self.best_epoch, "epoch": self._epoch}
        return seen | {f"best vector {number}": vector for number, vector in enumerate(map(on_host, self._best))}

    def load_state_dict(self, saved: dict[str, Any]) -> str | None:
        """Go on from what `state_dict` gave. Returns why training is over, where it was ended then."""
        self.best, self.best_epoch, self._epoch = saved["best"], saved["best_epoch"], saved["epoch"]
        self._best = [array for name, array in sorted(saved.items()) if isinstance(array, np.ndarray)]
        return self._reason()

    def finish(self, state: Any) -> None:
        """Put the best parameters and the best state back."""
        for vector, best in zip(_vectors(state), self._best, strict=False):  # none, where no epoch was finished
            place_of(vector).assign(vector, best)

    def __repr__(self) -> str:
        return f"EarlyStopping({self.patience}, monitor={self.monitor!r}, mode={self.mode!r})"


def _vectors(state: Any) -> list[np.ndarray]:
    """What training updates: the parameters, and the network's state if it has one."""
    return [state.p] if state.state is None else [state.p, state.state]
