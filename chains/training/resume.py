"""The beginning of a run: a fresh start, the end of an earlier run with a history, or a checkpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.expr.formulas import Replay
from chains.losses import Loss
from chains.optimizers import Optimizer
from chains.support.checks import check_count, check_path
from chains.support.memory import memory_of
from chains.support.messages import listed, shown
from chains.training import checkpoint as checkpoints
from chains.training import optimizer_state
from chains.training.checkpoint import Checkpoint, Saved
from chains.training.ensemble_history import EnsembleHistory
from chains.training.history import START, History, Position, check_names, names_of
from chains.training.optimizer_state import OptimizerState, State

Resume = History | Checkpoint | str | os.PathLike[str]
SOURCE = "len(x)"  # the number of batches a pass, for sources only


@dataclass
class Start:
    """Where a run starts: the history that it extends, the optimiser's state that it updates, its position within an epoch.

    `saved` is the checkpoint to continue, if any; `run` is the identity of the run.
    """

    history: History
    optimizer_state: State
    position: Position
    run: dict[str, Any]
    saved: Saved | None = None
    restored: bool = False

    def position_in(self, data: dict[str, Any], source_epoch: int | None = None) -> Position:
        """The position to continue from with these batches; `source_epoch` is the number of a source's pass.

        If the batches differ from those before, the next epoch begins; after a checkpoint, that raises ValueError.
        """
        left = self.position
        if left.data != data:
            if self.saved is not None:
                _check_data(self.saved, left.data, data)
            self.optimizer_state["epoch"] += left.step > 0  # an epoch that was begun is given up
            left = START
        numbers = 2 if SOURCE in data and left.step else left.step
        if left.losses.shape[-1] != numbers:
            raise ValueError(f"`resume` must hold {numbers} numbers in `position.losses`, got {left.losses.shape[-1]}")
        epoch = source_epoch if left.source_epoch is None else left.source_epoch
        seconds = 0.0 if self.saved is None else left.seconds
        self.position = self.history.position = Position(left.step, left.losses, epoch, data, seconds)
        return self.position

    def vectors(self, p: np.ndarray, state: np.ndarray | None) -> dict[str, np.ndarray | None]:
        """The vectors that training begins with: those of the checkpoint, if there is one; of members that still train."""
        vectors = {"p": p, "state": state} if self.saved is None else {"p": self.saved.p, "state": self.saved.state}
        if isinstance(self.history, EnsembleHistory):
            return {name: None if rows is None else rows[self.history.running] for name, rows in vectors.items()}
        return vectors

    def restore(self, p: np.ndarray, state: np.ndarray | None) -> None:
        """Copy the vectors of the checkpoint, if there is one, to the vectors to train."""
        if self.saved is not None and not self.restored:
            memory_of(p).assign(p, self.saved.p)
            if state is not None and self.saved.state is not None:
                memory_of(state).assign(state, self.saved.state)
        self.restored = True

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise ValueError where the checkpoint's history records other quantities than these."""
        then = [] if self.saved is None else list(self.saved.history.columns())
        if then and set(then) != set(names):
            raise ValueError(f"`resume` must be of a run that records {listed(names)}, got one that records {listed(then)}")

    def load_callbacks(self, callbacks: Sequence[Any]) -> None:
        """Give the saved states of the checkpoint's callbacks to this run's callbacks, in order, as long as kinds agree.

        A callback that returns a text ends the run.
        """
        mine = [callback for callback in callbacks if hasattr(callback, "load_state_dict")]
        for callback, then in zip(mine, [] if self.saved is None else self.saved.callbacks, strict=False):
            if type(callback).__name__ != then["name"]:
                return
            reason = callback.load_state_dict(then["saved"])
            self.history.stopped = self.history.stopped or reason or ""


def begin(
    net: Chain, p: np.ndarray, loss: Loss, optimizer: Optimizer, resume: Resume | None, checkpoint: Checkpoint | None
) -> Start:
    """The beginning of a run, which continues the run of `resume`, a history or a folder, if any.

    Raises TypeError or ValueError if `resume` is from another network, optimiser or loss, for a history with an invalid state
    or position, and for a folder without checkpoints, unless this run writes its checkpoints there.
    """
    names, run = names_of(net.layout), {}
    if checkpoint is not None or resume is not None:
        run = _identity(net, p, loss, optimizer)
    saved = None if resume is None or isinstance(resume, History) else _saved(resume, checkpoint)
    _check_folder(checkpoint, resume)
    if saved is not None:
        check_names(f"`resume` ({saved.path}) is a checkpoint", saved.history.layout, names)
        _check_run(saved, run)
        left = saved.history
    elif isinstance(resume, History):
        left = resume
    else:
        state = optimizer_state.begin(optimizer, p)
        return Start(_history(optimizer, p, state, START, names), state, START, run)
    _check_members(left, p)
    state = _state_of(left, names, p, optimizer)
    if saved is None:
        history = _history(optimizer, p, state, left.position, names)
        if isinstance(history, EnsembleHistory) and isinstance(left, EnsembleHistory):
            for member, (_, reason) in left.ended.items():
                history.end(member, 0, reason)
        return Start(history, state, left.position, run)
    left = replace(left, optimizer_state=OptimizerState(state), stopped="")
    return Start(left, state, left.position, run, saved)


def _history(optimizer: Optimizer, p: np.ndarray, state: State, position: Position, names: Any) -> History:
    about = type(optimizer).__name__, "", OptimizerState(state), position, names
    return History([], [], {}, [], 0, *about) if p.ndim == 1 else EnsembleHistory([], [], {}, [], 0, *about, len(p))


def _check_members(history: History, p: np.ndarray) -> None:
    """Raise ValueError unless a history has as many members as the parameters."""
    then, now = getattr(history, "members", None), len(p) if p.ndim > 1 else None
    if then != now:
        texts = ["one network" if count is None else f"an ensemble of {count}" for count in (then, now)]
        raise ValueError(f"`resume` is the history of {texts[0]}, but `p` is {texts[1]}")


def _identity(net: Chain, p: np.ndarray, loss: Loss, optimizer: Optimizer) -> dict[str, Any]:
    """The identity of a run, as texts by the names of the arguments.

    Networks are identified by their layers without starting values, losses with the formulas of those made by `chains.loss`.
    """
    layers = ", ".join(_without_address(layer.short_repr()) for layer in net.layers)
    formulas: list[Any] = [getattr(loss, field.name) for field in fields(loss)] if is_dataclass(loss) else []
    return {
        "net": f"Chain({layers})",
        "p": str(p.dtype) if p.ndim == 1 else f"{p.dtype}, {len(p)} members",
        "loss": " ".join(map(text_of, (loss, *(formula for formula in formulas if isinstance(formula, Replay))))),
        "optimizer": type(optimizer).__name__,
    }


def text_of(thing: Any) -> str:
    """The printed form, without memory addresses."""
    return _without_address(repr(thing))


def _without_address(text: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _saved(resume: Any, checkpoint: Checkpoint | None) -> Saved | None:
    """The checkpoint in a folder; None if the run's own checkpoint folder is still empty."""
    if isinstance(resume, Checkpoint):
        resume = resume.folder
    if not isinstance(resume, (str, os.PathLike)):
        raise TypeError(f"`resume` (={shown(resume)}) must be the history of an earlier training, or a folder of checkpoints")
    path = check_path("resume", resume, "runs/a")
    if checkpoint is not None and _same(path, checkpoint.folder) and not checkpoints.files(path):
        return None
    return checkpoints.load(path)


def _check_folder(checkpoint: Checkpoint | None, resume: Any) -> None:
    """Raise ValueError if the folder for checkpoints holds checkpoints of another run."""
    if checkpoint is None:
        return
    folder = checkpoint.folder
    path = resume.folder if isinstance(resume, Checkpoint) else resume
    if checkpoints.files(folder) and not (isinstance(path, (str, os.PathLike)) and _same(Path(path), folder)):
        raise ValueError(
            f"`checkpoint` (={str(folder)!r}) holds checkpoints of an earlier run: pass resume={str(folder)!r} to go on with "
            "it, or another folder"
        )


def _same(a: Path, b: Path) -> bool:
    return a.resolve() == b.resolve()


def _check_run(saved: Saved, run: Mapping[str, Any]) -> None:
    """Raise ValueError if a checkpoint is from another run; the message names the first argument that differs."""
    for name, now in run.items():
        then = saved.run.get(name)
        if then != now:
            raise ValueError(f"`resume` ({saved.path}) is a checkpoint with another `{name}`: {then}, not {now}")


def _check_data(saved: Saved, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ValueError if the batches of a checkpoint's run were others; the message names the setting."""
    for name in {**then, **now}:
        if name not in then or name not in now or then[name] != now[name]:
            old, new = then.get(name, "none"), now.get(name, "none")
            raise ValueError(
                f"`resume` ({saved.path}) is a checkpoint with another `{name}`: {old}, not {new}; to go on with other "
                "batches, pass the vectors and the history of Checkpoint(folder).load()"
            )


def _state_of(resume: History, names: Any, p: np.ndarray, optimizer: Optimizer) -> State:
    """A copy of the optimiser's state in a history; the history's position is checked too."""
    if resume.optimizer not in ("", type(optimizer).__name__):
        raise ValueError(
            f"`resume` is the history of {resume.optimizer}, which {optimizer!r} on {p.size} parameters cannot go on from"
        )
    if resume.layout:
        check_names("`resume` is the history", resume.layout, names)
    if not resume.optimizer_state:
        raise ValueError("`resume` must be a history that train returned, got one without an optimiser's state")
    check_position(resume.position, p.shape[:-1])
    return optimizer_state.copied("resume", resume.optimizer_state, optimizer, p)


def check_position(position: Any, rows: tuple[int, ...] = ()) -> None:
    """Raise TypeError or ValueError unless this is a position: whole steps and float64 losses, in rows of members."""
    if not isinstance(position, Position):
        raise TypeError(f"`resume.position` must be a position of train's, got {shown(position)}")
    check_count("resume.position.step", position.step, 0)
    losses = position.losses
    fits = isinstance(losses, np.ndarray) and losses.dtype == np.float64 and losses.ndim > 0
    if not fits or losses.shape[:-1] != (rows if position.step else ()):
        shape = ", ".join([*map(str, rows), "n"]) + "," * (not rows)
        raise ValueError(f"`resume.position.losses` must be an array of float64, shape ({shape}), got {shown(losses)}")
