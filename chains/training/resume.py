"""The start of a run: a fresh start, the end of an earlier run with a history, or a checkpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
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
    """The start of a run: the history that it extends, the optimiser's state that it updates, its position within an epoch.

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
                for name in {**left.data, **data}:
                    if name not in left.data or name not in data or left.data[name] != data[name]:
                        old, new = left.data.get(name, "none"), data.get(name, "none")
                        raise ValueError(
                            f"`resume` ({self.saved.path}) is a checkpoint with another `{name}`: {old}, not {new}; to "
                            "continue with other batches, pass the vectors and the history of Checkpoint(folder).load()"
                        )
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
        """The vectors of members that still train: those of the checkpoint, if there is one."""
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
        """Raise ValueError if the checkpoint's history records other quantities."""
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
    """The start of a run, which continues the run of `resume`, a history or a folder, if any.

    Raises TypeError or ValueError if `resume` is from another network, optimiser or loss, or has an invalid state or position.
    A folder without checkpoints is refused too, unless this run writes its checkpoints there.
    """
    names = names_of(net.layout)
    run = {} if checkpoint is None and resume is None else _identity(net, p, loss, optimizer)
    saved = _saved(resume, checkpoint)
    if saved is not None:
        check_names(f"`resume` ({saved.path}) is a checkpoint", saved.history.layout, names)
        for name, now in run.items():
            if (then := saved.run.get(name)) != now:
                raise ValueError(f"`resume` ({saved.path}) is a checkpoint with another `{name}`: {then}, not {now}")
        state = _checked(saved.history, names, p, optimizer)
        history = replace(saved.history, optimizer_state=OptimizerState(state), stopped="")
        return Start(history, state, history.position, run, saved)
    left = resume if isinstance(resume, History) else None
    state = optimizer_state.begin(optimizer, p) if left is None else _checked(left, names, p, optimizer)
    about = type(optimizer).__name__, "", OptimizerState(state), START if left is None else left.position, names
    if p.ndim == 1:
        history = History([], [], {}, [], 0, *about)
    else:
        history = members = EnsembleHistory([], [], {}, [], 0, *about, len(p))
        for member, (_, reason) in left.ended.items() if isinstance(left, EnsembleHistory) else ():
            members.end(member, 0, reason)
    return Start(history, state, history.position, run)


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
    """The checkpoint to continue, if `resume` is a folder; None if the run's own checkpoint folder is still empty.

    Raises ValueError if the folder for checkpoints holds those of another run.
    """
    own = None if checkpoint is None else checkpoint.folder
    path = resume.folder if isinstance(resume, Checkpoint) else resume
    saved = None
    if path is not None and not isinstance(path, History):
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"`resume` (={shown(path)}) must be the history of an earlier training, or a folder of checkpoints")
        path = check_path("resume", path, "runs/a")
        if own is not None and path.resolve() == own.resolve():
            return checkpoints.load(path) if checkpoints.files(path) else None
        saved = checkpoints.load(path)
    if own is not None and checkpoints.files(own):
        raise ValueError(
            f"`checkpoint` (={str(own)!r}) holds checkpoints of an earlier run: pass resume={str(own)!r} to continue it, or "
            "another folder"
        )
    return saved


def _checked(left: History, names: Any, p: np.ndarray, optimizer: Optimizer) -> State:
    """A copy of the optimiser's state in a history. Raises TypeError or ValueError unless the run can continue this history."""
    then, now = getattr(left, "members", None), len(p) if p.ndim > 1 else None
    if then != now:
        texts = ["one network" if count is None else f"an ensemble of {count}" for count in (then, now)]
        raise ValueError(f"`resume` is the history of {texts[0]}, but `p` is {texts[1]}")
    if left.optimizer not in ("", type(optimizer).__name__):
        raise ValueError(
            f"`resume` is the history of {left.optimizer}, which {optimizer!r} on {p.size} parameters cannot continue"
        )
    if left.layout:
        check_names("`resume` is the history", left.layout, names)
    if not left.optimizer_state:
        raise ValueError("`resume` must be a history that train returned, got one without an optimiser's state")
    _check_position(left.position, p.shape[:-1])
    return optimizer_state.copied("resume", left.optimizer_state, optimizer, p)


def _check_position(position: Any, rows: tuple[int, ...]) -> None:
    """Raise TypeError or ValueError unless this is a position: whole steps and float64 losses, in rows of members."""
    if not isinstance(position, Position):
        raise TypeError(f"`resume.position` must be a position of train's, got {shown(position)}")
    check_count("resume.position.step", position.step, 0)
    losses = position.losses
    fits = isinstance(losses, np.ndarray) and losses.dtype == np.float64 and losses.ndim > 0
    if not fits or losses.shape[:-1] != (rows if position.step else ()):
        shape = ", ".join([*map(str, rows), "n"]) + "," * (not rows)
        raise ValueError(f"`resume.position.losses` must be an array of float64, shape ({shape}), got {shown(losses)}")
