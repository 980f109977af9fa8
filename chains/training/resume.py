"""What a run begins with: fresh, or where an earlier one ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.checks import check_count
from chains.messages import shown
from chains.network import arguments
from chains.optimizers import Optimizer
from chains.training import optimizer_state
from chains.training.history import History, Position, check_names, names_of
from chains.training.identity import SOURCE
from chains.training.optimizer_state import OptimizerState, State
from chains.training.steps import START


@dataclass
class Beginning:
    """The history that a run adds to, the optimiser's state that it updates, and where within an epoch it goes on."""

    history: History
    optimizer_state: State
    position: Position
    seconds: float = 0.0  # that training took so far

    def position_in(self, data: dict[str, Any], source_epoch: int | None = None) -> Position:
        """Where to go on with these batches, of a source in a pass of this number; other batches than before begin an epoch."""
        left = self.position
        if left.data != data:
            self.optimizer_state["epoch"] += left.step > 0  # one that was begun is left
            left = START
        numbers = 2 if SOURCE in data and left.step else left.step
        if len(left.losses) != numbers:
            raise ValueError(f"`resume` must hold {numbers} numbers in `position.losses`, got {len(left.losses)}")
        epoch = source_epoch if left.source_epoch is None else left.source_epoch
        self.position = self.history.position = Position(left.step, left.losses, epoch, data, self.seconds)
        return self.position


def begin(net: Chain, p: np.ndarray, optimizer: Optimizer, resume: History | None) -> Beginning:
    """The beginning of a run, after the one that left the history `resume`, if any.

    Raises TypeError or ValueError for a history of another network or optimiser, or with a state or position that is none.
    """
    state, position = optimizer_state.begin(optimizer, p), START
    names = names_of(net.layout)
    if resume is not None:
        state, position = _left_by(resume, names, p, optimizer)
    history = History(
        optimizer=type(optimizer).__name__, optimizer_state=OptimizerState(state), position=position, layout=names
    )
    return Beginning(history, state, position)


def _left_by(resume: History, names: Any, p: np.ndarray, optimizer: Optimizer) -> tuple[State, Position]:
    arguments.check_is("resume", resume, History, "the history of an earlier call of train")
    if resume.optimizer not in ("", type(optimizer).__name__):
        raise ValueError(
            f"`resume` is the history of {resume.optimizer}, which {optimizer!r} on {p.size} parameters cannot go on from"
        )
    if resume.layout:
        check_names("`resume` is the history", resume.layout, names)
    if not resume.optimizer_state:
        raise ValueError("`resume` must be a history that train returned, got one without an optimiser's state")
    state = optimizer_state.copied("resume", resume.optimizer_state, optimizer, p)
    check_position(resume.position)
    return state, resume.position


def check_position(position: Any) -> None:
    """Raise TypeError or ValueError unless this is a position: a whole number of steps and float64 losses."""
    if not isinstance(position, Position):
        raise TypeError(f"`resume.position` must be a position of train's, got {shown(position)}")
    check_count("resume.position.step", position.step, 0)
    losses = position.losses
    if not isinstance(losses, np.ndarray) or losses.dtype != np.float64 or losses.ndim != 1:
        raise ValueError(f"`resume.position.losses` must be an array of float64, shape (n,), got {shown(losses)}")
