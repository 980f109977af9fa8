"""Callbacks that write the numbers of each epoch to files."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from typing import Any

from chains.callbacks.base import Callback
from chains.support.checks import check_path


class CSVLogger(Callback):
    """Writes the numbers of each epoch to a file, a line each, as soon as they are known.

    Parameters
    ----------
    path : str or path
        The file. Its first line has the names: "epoch", "loss", "validation loss", metrics, "seconds".
    append : bool
        Whether to append to a file that exists, which must have the same names, or to replace it.

    Raises
    ------
    TypeError
        For something that is not a path.
    ValueError
        At the beginning of a training that records other quantities than the file has.
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False) -> None:
        self.path = check_path("path", path)
        self.append = append

    def on_train_begin(self, names: Sequence[str]) -> None:
        self._names = ["epoch", *names]
        if self.append and self.path.exists() and self.path.stat().st_size:
            with self.path.open(newline="") as file:
                found = next(csv.reader(file))
            if found != self._names:
                raise ValueError(f"`path` (={str(self.path)!r}) has the columns {found}, but this run records {self._names}")
            return
        with self.path.open("w", newline="") as file:
            csv.writer(file).writerow(self._names)

    def on_epoch_end(self, state: Any) -> None:
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow([state.epoch, *(state.history.latest(name) for name in self._names[1:])])

    def __repr__(self) -> str:
        return f"CSVLogger({str(self.path)!r}, append={self.append})"


class TensorBoard(Callback):
    """Writes the numbers of each epoch for TensorBoard, through tensorboardX.

    Parameters
    ----------
    folder : str or path
        The folder of the files: ``tensorboard --logdir FOLDER``.
    histograms : bool
        Whether to write also a histogram of each parameter array.

    Raises
    ------
    ImportError
        If tensorboardX is missing.
    """

    def __init__(self, folder: str | os.PathLike[str], *, histograms: bool = False) -> None:
        self.folder = str(check_path("folder", folder))
        self.histograms = histograms

    def on_train_begin(self, names: Sequence[str]) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ImportError(f"TensorBoard needs tensorboardX: pip install tensorboardX ({error})", name=error.name) from error
        self._writer = SummaryWriter(self.folder)

    def on_epoch_end(self, state: Any) -> None:
        for name in state.history.columns():
            self._writer.add_scalar(name.replace(" ", "/"), state.history.latest(name), state.epoch)
        if self.histograms and state.p.ndim == 1:
            for name, array in state.net.views(state.p).items():
                self._writer.add_histogram(name, array, state.epoch)
        self._writer.flush()

    def on_train_end(self, state: Any) -> None:
        self._writer.close()

    def __repr__(self) -> str:
        return f"TensorBoard({self.folder!r}, histograms={self.histograms})"
