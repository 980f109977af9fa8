"""The record of a training run of an ensemble."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from chains.support.axes import draw_many, new_axes
from chains.support.memory import on_host
from chains.support.messages import counted, listed
from chains.support.streams import member_seeds
from chains.training.history import History
from chains.training.optimizer_state import OptimizerState


@dataclass(eq=False)
class EnsembleHistory(History):
    """The record of a training run of an ensemble: the entries of a `History`'s lists are arrays, shape (members,).

    ``history[m]`` is the history of member m as it would be alone. `ended` has the members that ended early, with the number of
    epochs and the reason. Their later numbers are NaN. ``print(history)`` shows means and extremes of the other members.
    """

    members: int = 0
    ended: dict[int, tuple[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ended = dict(self.ended)

    @property
    def running(self) -> np.ndarray:
        """The numbers of the members that have not ended."""
        return np.array([member for member in range(self.members) if member not in self.ended], np.int64)

    def end(self, member: int, epochs: int, reason: str) -> None:
        """Note that a member has ended. When the last one ends, training ends."""
        self.ended.setdefault(member, (epochs, reason))
        if len(self.ended) == self.members:
            self.stopped = self.stopped or "all members have ended"

    def latest(self, name: str) -> float:
        """The latest number of this name: the mean over the members that still train, NaN if there are none.

        Parameters
        ----------
        name : str
            Such as "loss".
        """
        values = np.asarray(self.columns()[name][-1])
        kept = values[self.running] if values.ndim else values
        return float(kept.mean()) if kept.size else float("nan")

    def __getitem__(self, member: int) -> History:
        """The history of a member, as it would be alone. Raises IndexError for any other number."""
        if not -self.members <= member < self.members:
            raise IndexError(f"there is no member {member}: this is the history of {counted(self.members, 'member')}")
        member = range(self.members)[member]
        epochs, reason = self.ended.get(member, (self.epochs, self.stopped))
        state = {name: on_host(array) for name, array in self.optimizer_state.items()}
        own = {name: array[member, ...] if array.ndim else array for name, array in state.items()}
        if state:
            own["epoch"] = state["epoch"] - (self.epochs - epochs)
        position = self.position
        losses = position.losses[member] if position.step and member not in self.ended else np.empty(0)
        loss, validation = _column(self.loss[:epochs], member), _column(self.validation_loss[:epochs], member)
        metrics = {name: _column(values[:epochs], member) for name, values in self.metrics.items()}
        steps = self.steps - int(state["step"].max() - own["step"]) if state else self.steps
        seeds = position.data.get("seed")
        if isinstance(seeds, int):
            seeds = member_seeds(self.members, seeds)
        data = position.data | ({} if seeds is None else {"seed": seeds[member]})
        position = replace(position, step=len(losses), losses=losses, data=data)
        about = self.optimizer, reason, OptimizerState(own), position, self.layout
        return History(loss, validation, metrics, self.seconds[:epochs], steps, *about)

    def __iter__(self) -> Iterator[History]:
        return (self[member] for member in range(self.members))

    def __add__(self, later: History) -> History:
        if not isinstance(later, EnsembleHistory):
            return NotImplemented
        if later.members != self.members:
            raise ValueError(f"the later history is of {counted(later.members, 'member')}, but the first one of {self.members}")
        whole = super().__add__(later)
        assert isinstance(whole, EnsembleHistory)
        moved = {member: (self.epochs + epochs, reason) for member, (epochs, reason) in later.ended.items()}
        whole.ended = moved | self.ended
        return whole

    def to_dict(self) -> dict[str, Any]:
        """The histories of all members as JSON has them; `from_dict` of `History` reads each."""
        return {"members": [history.to_dict() for history in self]}

    def _head(self, name: str) -> str:
        return f"{name:>11}" if name == "seconds" else f"{name:>15}  {'least':>11}  {'largest':>11}"

    def _cell(self, name: str, value: Any) -> str:
        if name == "seconds":
            return f"{value:11.6g}"
        known = value[~np.isnan(value)]
        if not known.size:
            return f"{'nan':>15}  {'':>11}  {'':>11}"
        return f"{known.mean():15.6g}  {known.min():11.5g}  {known.max():11.5g}"

    def _endings(self) -> list[str]:
        if not self.ended:
            return super()._endings()
        first = [f"member {m} after {counted(e, 'epoch')}: {why}" for m, (e, why) in sorted(self.ended.items())[:3]]
        text = f"{len(self.ended)} of {counted(self.members, 'member')} ended before the others; {listed(first)}"
        return [text, *super()._endings()]

    def __repr__(self) -> str:
        return f"<history of {counted(self.members, 'member')} after {counted(self.epochs, 'epoch')}, {len(self.ended)} ended>"

    def plot(self, ax: Any = None) -> Any:
        """Draw the losses over the epochs with matplotlib: a line for each of few members, median and 90 % of them of many.

        `ax` and the result are as for `History`.
        """
        ax = new_axes() if ax is None else ax
        epochs = range(1, self.epochs + 1)
        for number, (name, values) in enumerate((("training", self.loss), ("validation", self.validation_loss))):
            if values:
                draw_many(ax, epochs, np.array(values), name, "members", color=f"C{number}")
        if all(np.nanmin(values, initial=np.inf) > 0 for values in (self.loss, self.validation_loss) if values):
            ax.set_yscale("log")
        ax.set(xlabel="epoch", ylabel="loss")
        ax.legend()
        return ax


def _column(values: Iterable[Any], member: int) -> list[float]:
    return [float(row[member]) for row in values]
