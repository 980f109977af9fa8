"""Early stopping, of one network or of each member of an ensemble."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chains.support.checks import check_count, check_flags, check_number, check_word
from chains.support.memory import memory_of, on_host
from chains.support.messages import counted, listed, meant


class EarlyStopping:
    """Ends training when a quantity has not improved for some epochs, and puts the best parameters back.

    Each training resets it.

    Parameters
    ----------
    patience : int
        How many epochs without an improvement end training.
    monitor : str
        The quantity: "validation loss", "loss" or the name of a metric.
    mode : str
        "min" or "max": what counts as better.
    min_delta : float
        An improvement is larger than this.
    restore : bool
        Whether `p`, and the state of a network that has one, are those of the best epoch at the end.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name, and at the beginning of a training that does not record the quantity.
    """

    def __init__(
        self, patience: int = 10, *, monitor: str = "validation loss", mode: str = "min", min_delta: float = 0.0,
        restore: bool = True,
    ) -> None:  # fmt: skip
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
        """Reset. Raises ValueError unless the quantity will be recorded."""
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
        self._members: list[EarlyStopping] = []  # one for each, of an ensemble

    def __call__(self, state: Any) -> str | dict[int, str] | None:
        values = state.history.columns()[self.monitor][-1]
        if state.p.ndim == 1:
            return self._see(values, state.epoch, _vectors(state))
        reasons = {}
        for member in state.history.running.tolist():
            rows = [vectors[member] for vectors in _vectors(state)]
            reason = self._member(member, len(state.p))._see(float(values[member]), state.epoch, rows)
            if reason is not None:
                reasons[member] = reason
        return reasons

    def _member(self, member: int, count: int) -> EarlyStopping:
        """The watcher of one of `count` members."""
        if not self._members:
            self._members = [copy.copy(self) for _ in range(count)]
        return self._members[member]

    def _see(self, value: float, epoch: int, vectors: list[np.ndarray]) -> str | None:
        """Note an epoch's value. Returns the reason to end training, if any."""
        gain = self.best - value if self.mode == "min" else value - self.best
        if gain > self.min_delta:
            self.best, self.best_epoch = value, epoch
            if self.restore:
                self._best = [vector.copy() for vector in vectors]
        self._epoch = epoch
        return self._reason()

    def _reason(self) -> str | None:
        if self._epoch - self.best_epoch < self.patience:
            return None
        return f"no better {self.monitor} than {self.best:g} (epoch {self.best_epoch}) for {counted(self.patience, 'epoch')}"

    def state_dict(self) -> dict[str, Any]:
        """The values so far, for a checkpoint."""
        if self._members:
            each = [member.state_dict() for member in self._members]
            blank = {name: np.zeros_like(value) for name, value in max(each, key=len).items()}  # if there is no best epoch yet
            return {name: np.stack([(blank | found)[name] for found in each]) for name in blank}
        seen = {"best": self.best, "best_epoch": self.best_epoch, "epoch": self._epoch}
        return seen | {f"best vector {number}": vector for number, vector in enumerate(map(on_host, self._best))}

    def load_state_dict(self, saved: dict[str, Any]) -> str | None:
        """Continue from the result of `state_dict`. Returns the reason to end training, if it had ended."""
        if isinstance(saved["best"], np.ndarray):
            for number in range(len(saved["best"])):
                row = {name: array[number] for name, array in saved.items()}
                counts = {name: row[name].item() for name in ("best", "best_epoch", "epoch")}
                self._member(number, len(saved["best"])).load_state_dict({**(row if counts["best_epoch"] else {}), **counts})
            return None
        self.best, self.best_epoch, self._epoch = saved["best"], saved["best_epoch"], saved["epoch"]
        self._best = [array for name, array in sorted(saved.items()) if isinstance(array, np.ndarray)]
        return self._reason()

    def finish(self, state: Any) -> None:
        """Put the best parameters and state back; in an ensemble, not for a member that ended for another reason."""
        for number, member in enumerate(self._members):
            if number not in state.history.ended or member._reason():
                for vectors, best in zip(_vectors(state), member._best, strict=False):
                    memory_of(vectors).assign(vectors[number], best)
        for vector, best in zip(_vectors(state), self._best, strict=False):  # none, if no epoch was finished
            memory_of(vector).assign(vector, best)

    def __repr__(self) -> str:
        return f"EarlyStopping({self.patience}, monitor={self.monitor!r}, mode={self.mode!r})"


def _vectors(state: Any) -> list[np.ndarray]:
    """The vectors that training updates: the parameters, and the network's state if it has one."""
    return [state.p] if state.state is None else [state.p, state.state]
