"""The record of a training run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from chains.params import Layout
from chains.support import encoding
from chains.support.axes import new_axes
from chains.support.memory import on_host
from chains.support.messages import as_html, counted, listed, shown
from chains.training.optimizer_state import OptimizerState

SHOWN_EPOCHS = 20  # in a printed table, half of them the first ones
Names = tuple[tuple[str, tuple[int, ...]], ...]  # of a layout: name and shape of each array


@dataclass(frozen=True, eq=False)
class Position:
    """The position of a run within an epoch, to continue from: `step` steps of the epoch are done."""

    step: int = 0
    losses: np.ndarray = field(default_factory=lambda: np.empty(0))  # of these steps; from a source: their sum, and samples
    source_epoch: int | None = None  # the number of the pass, if the source counts its passes
    data: dict[str, Any] = field(default_factory=dict)  # what decides the batches: samples, batch size, seed ...
    seconds: float = 0.0  # from the start of training to this position

    def to_dict(self) -> dict[str, Any]:
        """The position as JSON has it."""
        return {**vars(self), "losses": encoding.encoded(self.losses), "data": dict(self.data)}

    @classmethod
    def from_dict(cls, data: Any) -> Position:
        """What `to_dict` gave. Raises TypeError, KeyError or ValueError for anything else."""
        source = data["source_epoch"]
        return cls(
            encoding.as_count(data["step"]),
            np.array(encoding.decoded(data["losses"]), np.float64),
            None if source is None else encoding.as_count(source),
            dict(data["data"]),
            encoding.as_number(data["seconds"]),
        )


START = Position()


@dataclass(eq=False)
class History:
    """The record of a training run: lists with one entry for each epoch. ``print(history)`` shows a table.

    ``train(..., resume=history)`` continues where training ended; ``first + second`` joins two histories. A history can be
    pickled; ``json.dumps(history.to_dict())`` is its JSON.

    Parameters
    ----------
    loss : list of float
        The mean loss of the epoch's samples, each computed before its step.
    validation_loss : list of float
        After the epoch; empty without validation data.
    metrics : dict of list of float
        On the validation data, after the epoch.
    seconds : list of float
        Since training began, at the end of each epoch.
    steps : int
        How many steps were done.
    optimizer : str
        The optimiser's name.
    stopped : str
        The reason why training ended before the last epoch, or empty.
    optimizer_state : mapping
        The state of the optimiser, to continue from.
    position : Position
        The position within an epoch that was not finished.
    layout : tuple
        The names and shapes of the network's parameters.
    """

    loss: list[float] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    steps: int = 0
    optimizer: str = ""
    stopped: str = ""
    optimizer_state: Mapping[str, Any] = field(default_factory=dict)
    position: Position = field(default_factory=Position)
    layout: Names = ()

    @property
    def epochs(self) -> int:
        """How many epochs were finished."""
        return len(self.loss)

    def add(self, numbers: dict[str, float]) -> None:
        """Append an epoch's numbers on the validation data.

        Parameters
        ----------
        numbers : dict of float
            By name, such as "validation loss".
        """
        for name, number in numbers.items():
            column = self.validation_loss if name == "validation loss" else self.metrics.setdefault(name, [])
            column.append(number)

    def columns(self) -> dict[str, list[float]]:
        """The lists that hold anything, by name."""
        columns = {"loss": self.loss, "validation loss": self.validation_loss, **self.metrics, "seconds": self.seconds}
        return {name: values for name, values in columns.items() if values}

    def latest(self, name: str) -> float:
        """The latest number of this name.

        Parameters
        ----------
        name : str
            Such as "loss".
        """
        return self.columns()[name][-1]

    def __getattr__(self, name: str) -> Any:
        hint = "; did you mean `validation_loss`?" if name == "val_loss" else ""
        raise AttributeError(f"a History has no attribute {name!r}{hint}", name=name, obj=self)

    def __len__(self) -> int:
        return self.epochs

    def __add__(self, later: History) -> History:
        """This history joined with the one that continues it.

        Raises ValueError if the later one has another network or optimiser, did not begin where this one ended, or records
        other quantities.
        """
        if not isinstance(later, History):
            return NotImplemented
        _check_follows(self, later)
        begun = max([self.position.seconds, *self.seconds[-1:]])
        return replace(
            later,
            loss=self.loss + later.loss,
            validation_loss=self.validation_loss + later.validation_loss,
            metrics={n: self.metrics.get(n, []) + later.metrics.get(n, []) for n in {**self.metrics, **later.metrics}},
            seconds=self.seconds + [begun + seconds for seconds in later.seconds],
            steps=self.steps + later.steps,
            position=replace(later.position, seconds=begun + later.position.seconds),
        )

    def to_dict(self) -> dict[str, Any]:
        """The history as lists, numbers and texts, for JSON: numbers that are not finite as texts, moments in base64."""
        return {
            "loss": encoding.encoded(self.loss),
            "validation_loss": encoding.encoded(self.validation_loss),
            "metrics": {name: encoding.encoded(values) for name, values in self.metrics.items()},
            "seconds": encoding.encoded(self.seconds),
            "steps": self.steps,
            "optimizer": self.optimizer,
            "stopped": self.stopped,
            "optimizer_state": {name: encoding.encoded_array(on_host(a)) for name, a in self.optimizer_state.items()},
            "position": self.position.to_dict(),
            "layout": [[name, list(shape)] for name, shape in self.layout],
        }

    @classmethod
    def from_dict(cls, data: Any) -> History:
        """A history from the dictionary that `to_dict` has made.

        Parameters
        ----------
        data : dict
            The dictionary, perhaps written to JSON and read again.

        Raises
        ------
        ValueError
            For anything else.
        """
        try:
            state = {str(name): encoding.decoded_array(array) for name, array in data["optimizer_state"].items()}
            return cls(
                encoding.decoded(data["loss"]),
                encoding.decoded(data["validation_loss"]),
                {str(name): encoding.decoded(values) for name, values in data["metrics"].items()},
                encoding.decoded(data["seconds"]),
                encoding.as_count(data["steps"]),
                str(data["optimizer"]),
                str(data["stopped"]),
                OptimizerState(state),
                Position.from_dict(data["position"]),
                names_from(data["layout"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ValueError(f"`data` (={shown(data)}) is not what History.to_dict gives: {error!r}") from error

    def _repr_html_(self) -> str:
        """For notebooks."""
        return as_html(str(self))

    def __repr__(self) -> str:
        numbers = [f"{name} {self.latest(name):.4g}" for name in self.columns()]
        return f"<history after {', '.join([counted(self.epochs, 'epoch'), *numbers])}{self.stopped and f', {self.stopped}'}>"

    def __str__(self) -> str:
        columns = self.columns()
        lines = ["  ".join(["epoch", *map(self._head, columns)])]
        for epoch in range(self.epochs):
            if self.epochs <= SHOWN_EPOCHS or not SHOWN_EPOCHS // 2 <= epoch < self.epochs - SHOWN_EPOCHS // 2:
                numbers = [self._cell(name, values[epoch]) for name, values in columns.items()]
                lines.append("  ".join([f"{epoch + 1:5}", *numbers]))
            elif epoch == SHOWN_EPOCHS // 2:
                lines.append("  ...")
        return "\n".join([*lines, *self._endings()])

    def _head(self, name: str) -> str:
        """The head of a column of the table."""
        return f"{name:>15}"

    def _cell(self, name: str, value: Any) -> str:
        return f"{value:15.6g}"

    def _endings(self) -> list[str]:
        """The lines after the table."""
        return [f"stopped after {counted(self.epochs, 'epoch')}: {self.stopped}"] if self.stopped else []

    def plot(self, ax: Any = None) -> Any:
        """Draw losses and metrics over the epochs with matplotlib.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; by default on the axes of a new pyplot figure, which notebooks show.

        Returns
        -------
        Axes
            Those of the losses: ``history.plot().figure.savefig("history.png")`` saves the figure.
        """
        ax = new_axes() if ax is None else ax
        epochs = range(1, self.epochs + 1)
        lines = ax.plot(epochs, self.loss, label="training")
        if self.validation_loss:
            lines += ax.plot(epochs, self.validation_loss, label="validation")
        if all(math.isfinite(loss) and loss > 0 for loss in self.loss + self.validation_loss):
            ax.set_yscale("log")
        ax.set(xlabel="epoch", ylabel="loss")
        if self.metrics:
            right = ax.twinx()
            for number, (name, values) in enumerate(self.metrics.items(), 2):
                lines += right.plot(epochs, values, color=f"C{number}", linestyle="--", label=name)
            right.set_ylabel(", ".join(self.metrics))
        ax.legend(handles=lines)
        return ax


def names_of(layout: Layout) -> Names:
    """The names and shapes of a layout."""
    return tuple((entry.name, entry.shape) for entry in layout)


def names_from(data: Any) -> Names:
    """The names and shapes of a layout from lists of them. Raises TypeError or ValueError for anything else."""
    return tuple((str(name), tuple(encoding.as_count(length) for length in shape)) for name, shape in data)


def check_names(what: str, then: Names, now: Names) -> None:
    """Raise ValueError if `what` is from another network than now; the message names the first array that differs."""
    for old, new in zip(then, now, strict=False):
        if old != new:
            raise ValueError(f"{what} of another network, with {old[0]} {old[1]} in the place of {new[0]} {new[1]}")
    if len(then) != len(now):
        raise ValueError(f"{what} of another network, with {counted(len(then), 'array')} in the place of {len(now)}")


def _check_follows(first: History, later: History) -> None:
    """Raise ValueError unless the later history continues where the first one ended."""
    if later.optimizer != first.optimizer:
        raise ValueError(f"a history of {later.optimizer} does not continue one of {first.optimizer}")
    check_names("the first history is that", first.layout, later.layout)
    steps = [int(on_host(history.optimizer_state["step"]).max()) for history in (first, later) if history.optimizer_state]
    if len(steps) == 2 and steps[1] - later.steps != steps[0]:
        raise ValueError(
            f"the later history began after {counted(steps[1] - later.steps, 'step')}, but the first one ended after {steps[0]}"
        )
    if first.epochs and later.epochs and (other := first.columns().keys() ^ later.columns().keys()):
        raise ValueError(f"one history records {listed(sorted(other))} and the other does not")
