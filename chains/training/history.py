"""The record of a training run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from chains.messages import counted


@dataclass(eq=False)
class History:
    """What happened in each epoch: lists of equal length, one entry an epoch. ``print(history)`` shows a table."""

    loss: list[float] = field(default_factory=list)  # mean over the epoch's samples, each before its step
    validation_loss: list[float] = field(default_factory=list)  # after the epoch; empty without validation data
    metrics: dict[str, list[float]] = field(default_factory=dict)  # on the validation data, after the epoch
    seconds: list[float] = field(default_factory=list)  # since training began, at the end of each epoch
    steps: int = 0
    optimizer: str = ""  # its name
    stopped: str = ""  # why training ended before the last epoch, or empty
    optimizer_state: dict[str, Any] = field(default_factory=dict, repr=False)  # for train(..., resume=history)

    @property
    def epochs(self) -> int:
        """How many epochs were finished."""
        return len(self.loss)

    def add(self, numbers: dict[str, float]) -> None:
        """Append an epoch's numbers on the validation data."""
        for name, number in numbers.items():
            column = self.validation_loss if name == "validation loss" else self.metrics.setdefault(name, [])
            column.append(number)

    def columns(self) -> dict[str, list[float]]:
        """The lists that hold anything, by name."""
        columns = {"loss": self.loss, "validation loss": self.validation_loss, **self.metrics, "seconds": self.seconds}
        return {name: values for name, values in columns.items() if values}

    def __getattr__(self, name: str) -> Any:
        hint = "; did you mean `validation_loss`?" if name == "val_loss" else ""
        raise AttributeError(f"a History has no attribute {name!r}{hint}", name=name, obj=self)

    def __len__(self) -> int:
        return self.epochs

    def __str__(self) -> str:
        columns = self.columns()
        lines = ["  ".join(["epoch", *(f"{name:>15}" for name in columns)])]
        for epoch in _shown(self.epochs):
            if epoch < 0:
                lines.append("  ...")
                continue
            lines.append("  ".join([f"{epoch + 1:5}", *(f"{values[epoch]:15.6g}" for values in columns.values())]))
        if self.stopped:
            lines.append(f"stopped after {counted(self.epochs, 'epoch')}: {self.stopped}")
        return "\n".join(lines)

    def plot(self, ax: Any = None) -> Any:
        """Draw losses and metrics over the epochs with matplotlib.

        Parameters
        ----------
        ax
            The `Axes` to draw on; by default those of a new figure of pyplot, which notebooks show.

        Returns the `Axes` of the losses. ``history.plot().figure.savefig("history.png")`` saves the figure.
        """
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.subplots(figsize=(6, 4), layout="constrained")[1]
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


def _shown(epochs: int, most: int = 20) -> Iterator[int]:
    """The epochs to print, -1 for a gap."""
    if epochs <= most:
        yield from range(epochs)
    else:
        yield from range(most // 2)
        yield -1
        yield from range(epochs - most // 2, epochs)
