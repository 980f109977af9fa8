"""Writes the checkpoints of a run: the time of the next one, its contents, and which ones are kept."""

from __future__ import annotations

import errno
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chains.support import storage
from chains.support.memory import on_host
from chains.support.messages import listed
from chains.training import checkpoint as checkpoints
from chains.training.checkpoint import Checkpoint, Saved
from chains.training.history import History
from chains.training.optimizer_state import OptimizerState
from chains.training.steps import UNLIMITED_STEPS, TrainingSteps

FULL_DISK = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


class CheckpointWriter:
    """Writes the checkpoints of a run: of its vectors `p` and `state`, its `steps`, its `history`, its `callbacks`.

    `watched` is the quantity whose best epoch is kept, or empty; `run` is the identity of the run; `saved` is the checkpoint
    that it continues, if any. The steps must be flushed, and their position be in the history, when something is written.
    """

    def __init__(
        self, checkpoint: Checkpoint, watched: str, p: np.ndarray, state: np.ndarray | None, steps: TrainingSteps,
        history: History, callbacks: Sequence[Any], run: dict[str, Any], saved: Saved | None,
    ) -> None:  # fmt: skip
        self.watched = watched
        self._checkpoint = checkpoint
        self._resumed = saved is not None
        self._p, self._state, self._steps, self._history, self._run = p, state, steps, history, run
        self._callbacks = [callback for callback in callbacks if hasattr(callback, "state_dict")]
        self._best: dict[str, float] = {} if saved is None or not watched else saved.best
        self._unwritten: Saved | None = None  # of the best epoch, until it is written
        self._last = (-1, -1)  # steps and epochs at the last one written
        self._next = 0.0
        self._plan(time.monotonic(), 0.0)

    def epochs_left(self) -> int:
        """The number of epochs until the next checkpoint may be due."""
        return int(self._next) - self._steps.epoch if self._checkpoint.unit == "epochs" else UNLIMITED_STEPS

    def steps_left(self) -> int:
        """The number of steps until the next checkpoint may be due."""
        return int(self._next) - self._steps.total if self._checkpoint.unit == "steps" else UNLIMITED_STEPS

    def due(self) -> bool:
        """Whether a checkpoint is due."""
        unit, steps = self._checkpoint.unit, self._steps
        if unit == "steps":
            return steps.total >= self._next
        if unit == "seconds":
            return time.monotonic() >= self._next
        return steps.step == 0 and (steps.epoch if unit == "epochs" else time.monotonic()) >= self._next

    def look(self) -> None:
        """Compare the watched quantity of the finished epoch with the best one."""
        value = self._history.latest(self.watched)
        least = self._best.get("value", np.inf if self._checkpoint.mode == "min" else -np.inf)
        if value < least if self._checkpoint.mode == "min" else value > least:
            self._best = {"value": value, "epoch": float(self._history.epochs)}
            self._unwritten = self._snapshot(checkpoints.BEST, np.array)

    def begin(self) -> None:
        """Write the first checkpoint. Raises OSError if that fails, unless the run has an earlier one.

        Files that a killed run was writing are deleted. Files of later steps than the current one, which can only be damaged,
        are renamed.
        """
        try:
            for path in self._checkpoint.folder.glob(storage.UNFINISHED):
                path.unlink(missing_ok=True)
            for number, path in checkpoints.files(self._checkpoint.folder):
                if number > self._steps.total:
                    path.replace(path.with_name(f"{path.name}.damaged"))
            self._write()
        except OSError as error:
            if not self._resumed:
                raise
            self._warn(error)

    def write(self) -> None:
        """Write a checkpoint, and delete the ones not to be kept. If writing fails, warn and continue."""
        if self._last == (self._steps.total, self._history.epochs):
            return
        try:
            self._write()
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        warnings.warn(f"no checkpoint could be written: {error}", stacklevel=3)
        self._plan(time.monotonic(), 0.0)

    def _write(self) -> None:
        start, steps = time.monotonic(), self._steps.total
        now = self._snapshot(f"step-{steps:012}.safetensors", on_host)
        # Otherwise the next loss ends training, and the previous checkpoint is kept. In an ensemble, other members continue.
        if now.p.ndim > 1 or np.isfinite(now.p).all():
            if self._unwritten is not None:
                self._store(self._unwritten)
                self._unwritten = None
            now.callbacks.extend({"name": type(each).__name__, "saved": each.state_dict()} for each in self._callbacks)
            self._store(now)
            self._last = (steps, self._history.epochs)
            self._delete(steps + 1, self._checkpoint.keep)
        self._plan(time.monotonic(), time.monotonic() - start)

    def _store(self, saved: Saved) -> None:
        """Write a file. Where the disk is full, first delete the checkpoints that the next one makes superfluous."""
        epochs = int(saved.history.optimizer_state["epoch"]) - (self._steps.epoch - self._history.epochs)
        arrays, texts = checkpoints.contents(saved, epochs)
        try:
            storage.write(saved.path, arrays, texts)
        except OSError as error:
            # The latest one stays, so that there is always a whole checkpoint.
            if error.errno not in FULL_DISK or not self._delete(self._steps.total, max(self._checkpoint.keep - 1, 1)):
                raise
            storage.write(saved.path, arrays, texts)

    def _delete(self, steps: int, keep: int) -> int:
        """Delete the checkpoints of less than these steps, except the last ones to keep. Returns how many."""
        older = [path for number, path in checkpoints.files(self._checkpoint.folder) if number < steps]
        for path in older[keep:]:
            path.unlink(missing_ok=True)
        return len(older[keep:])

    def _snapshot(self, name: str, take: Callable[[Any], np.ndarray]) -> Saved:
        """The present state of the run, for the file of this name; `take` gets the vectors in host memory, copied or not.

        The lists of the history are not copied, although they may grow before the file is written.
        """
        state = None if self._state is None else take(on_host(self._state))
        optimizer_state = {name: take(on_host(array)) for name, array in self._steps.optimizer_state.items()}
        history = replace(self._history, optimizer_state=OptimizerState(optimizer_state))
        return Saved(self._checkpoint.folder / name, take(on_host(self._p)), state, history, self._run, self._best, [])

    def _plan(self, now: float, taken: float) -> None:
        """Plan the next checkpoint; the last one has `taken` this many seconds to write."""
        unit, amount = self._checkpoint.unit, self._checkpoint.amount
        if unit in ("epochs", "steps"):
            done = self._steps.epoch if unit == "epochs" else self._steps.total
            self._next = (done // amount + 1) * amount
        else:
            self._next = now + (amount if unit == "seconds" else taken / amount)


def watched_quantity(checkpoint: Checkpoint, names: Sequence[str]) -> str:
    """The quantity whose best epoch is kept, or empty. Raises ValueError for a quantity that is not recorded."""
    if checkpoint.best is None or (checkpoint.best == "validation loss" and "validation loss" not in names):
        return ""
    if checkpoint.best not in names:
        raise ValueError(f"`best` (={checkpoint.best!r}) of the checkpoint must be one of {listed(names)}")
    return checkpoint.best
