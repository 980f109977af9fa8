"""The base class of callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Callback:
    """A base for callbacks of `train`: override the methods for these moments.

    A method ``on_batch_end(state, loss)``, if there is one, is called after each step with the step's loss. Steps are then done
    one by one, which costs a few microseconds each.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def on_train_begin(self, names: Sequence[str]) -> None:
        """Before the first step. `names` are the quantities that will be recorded, such as "loss" and "validation loss"."""

    def on_epoch_end(self, state: Any) -> str | None:
        """After each epoch, with a `TrainingState`. A text that is returned ends training, as its reason."""
        return None

    def on_train_end(self, state: Any) -> None:
        """At the end, with a `TrainingState`."""

    def begin(self, names: Sequence[str]) -> None:
        """Called by `train` before the first step."""
        self.on_train_begin(names)

    def __call__(self, state: Any) -> str | None:
        """Called by `train` after each epoch."""
        return self.on_epoch_end(state)

    def finish(self, state: Any) -> None:
        """Called by `train` at the end."""
        self.on_train_end(state)
