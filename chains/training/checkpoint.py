"""Checkpoints: settings for writing them, their contents, and how they are read from a folder."""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from chains.support import encoding, storage
from chains.support.checks import check_count, check_number, check_path, check_word, is_real, whole
from chains.support.messages import counted, listed, shown
from chains.training.ensemble_history import EnsembleHistory
from chains.training.history import History, Position, names_from
from chains.training.optimizer_state import COUNTS, OptimizerState

BEST = "best.safetensors"
NAME = re.compile(r"step-(\d+)\.safetensors")
UNITS = {
    "s": ("seconds", 1), "second": ("seconds", 1), "min": ("seconds", 60), "minute": ("seconds", 60), "h": ("seconds", 3600),
    "hour": ("seconds", 3600), "step": ("steps", 1), "epoch": ("epochs", 1),
}  # fmt: skip


@dataclass(frozen=True)
class Saved:
    """The contents of a checkpoint: `p` and `state` (None for networks without) as fresh arrays, and the run's `history`."""

    path: Path
    p: np.ndarray
    state: np.ndarray | None
    history: History
    run: dict[str, Any]  # the network, the loss and so on of the run, as texts
    best: dict[str, float]  # the best value of the watched quantity, and its epoch; empty without one
    callbacks: list[dict[str, Any]]

    def __repr__(self) -> str:
        return f"<checkpoint {str(self.path)!r}: {counted(self.p.shape[-1], 'parameter')}, {self.history!r}>"


class Checkpoint:
    """The folder, interval and number of checkpoints of a run: ``train(..., checkpoint=Checkpoint("folder", every="60s"))``.

    Parameters
    ----------
    folder
        The folder; it is made if it is missing. It belongs to one run.
    every
        Whole numbers are epochs, floats are seconds, texts have a unit: "5 epochs", "1000 steps", "60s", "10 min". None: after
        epochs, at an interval at which writing takes at most a twentieth of the time. A checkpoint is also written at the
        beginning and at the end, even after Ctrl-C.
    keep
        The number of latest checkpoints to keep.
    best
        The quantity whose best epoch is kept too, if it is recorded: "validation loss", "loss" or the name of a metric; None
        for no such checkpoint.
    mode
        "min" or "max": whether smaller or larger values are better.

    A file is written under another name and then renamed, so that a run killed at any moment leaves whole files. During a run,
    a file in the folder locks it. On a full disk, the oldest checkpoint is deleted before the next one is written, not after.
    The format is safetensors. Raises TypeError or ValueError for settings that make no sense.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, every: int | float | str | None = None,
        keep: int = 2, best: str | None = "validation loss", mode: str = "min",
    ) -> None:  # fmt: skip
        self.folder = check_path("folder", folder)
        if best is not None and not isinstance(best, str):
            raise TypeError(f"`best` must be the name of a quantity, such as 'validation loss', or None, got {shown(best)}")
        check_word("mode", mode, "min", "max")
        self.unit, self.amount = parse_every(every)
        self.every = every
        self.keep = check_count("keep", keep)
        self.best = best
        self.mode = mode

    def load(self, which: str = "last") -> Saved:
        """A checkpoint of the folder. Damaged ones among the last are skipped, with a warning.

        Parameters
        ----------
        which : str
            "last" or "best".

        Returns
        -------
        Saved
            With `p`, `state` (None for networks without) and `history`.

        Raises
        ------
        ValueError
            If none is whole.
        """
        check_word("which", which, "last", "best")
        best = self.folder / BEST
        if which == "best" and self.folder.is_dir() and not best.exists():
            raise ValueError(
                f"`which` (='best'): {str(self.folder)!r} has no {BEST}, which a run writes where it records what its "
                "Checkpoint names as `best`, by default the validation loss"
            )
        return load(best if which == "best" else self.folder, "folder")

    def __repr__(self) -> str:
        return (
            f"Checkpoint({str(self.folder)!r}, every={self.every!r}, keep={self.keep}, best={self.best!r}, mode={self.mode!r})"
        )


def as_checkpoint(checkpoint: Any) -> Checkpoint | None:
    """The argument `checkpoint` of train. Raises TypeError for anything but a folder, a Checkpoint or None."""
    if checkpoint is None or isinstance(checkpoint, Checkpoint):
        return checkpoint
    if not isinstance(checkpoint, (str, os.PathLike)):
        raise TypeError(f"`checkpoint` must be a folder or a Checkpoint, got {shown(checkpoint)}")
    return Checkpoint(check_path("checkpoint", checkpoint, "runs/a"))


def parse_every(every: Any) -> tuple[str, float]:
    """The unit, "epochs", "steps", "seconds" or "share", and the number. Raises TypeError or ValueError for anything else."""
    if every is None:
        return "share", 0.05
    if isinstance(every, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)s?\s*|\s*(\d+(?:\.\d+)?)\s*(s)\s*", every)
        number, name = (found[1] or found[3], found[2] or found[4]) if found else ("", "")
        if name not in UNITS:
            raise ValueError(f"`every` must be such as '60s', '10 min', '1000 steps' or '5 epochs', got {every!r}")
        unit, scale = UNITS[name]
        amount = float(number) * scale
        if amount == 0 or (unit != "seconds" and not amount.is_integer()):
            raise ValueError(f"`every` must be a positive {'whole ' * (unit != 'seconds')}number of {unit}, got {every!r}")
        return unit, amount
    if whole(every, -math.inf) is not None:
        return "epochs", check_count("every", every, also=" of epochs")
    if is_real(every):
        check_number("every", every, "in (0, inf)", " seconds")
        return "seconds", float(every)
    raise TypeError(f"`every` must be a number of epochs, a time such as '60s', or None, got {shown(every)}")


def files(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints in a folder with their numbers of steps, the last one first."""
    names = [(NAME.fullmatch(path.name), path) for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(((int(found[1]), path) for found, path in names if found), reverse=True)


def load(path: Path, argument: str = "resume") -> Saved:
    """The last whole checkpoint of a folder, or the checkpoint in a file. Raises ValueError if there is none."""
    wanted = f"`{argument}` must be a folder of checkpoints"
    if not path.is_dir():
        try:
            return _read(path)
        except (storage.DamagedFileError, OSError) as error:
            raise ValueError(f"{wanted}, or one of them, got {str(path)!r}: {error}") from error
    found = None
    while found != (found := files(path)):  # another training may write newer ones, and delete these
        failed = []
        for _, file in found:
            try:
                saved = _read(file)
            except FileNotFoundError:
                continue
            except (storage.DamagedFileError, OSError) as error:
                failed.append(f"{file.name} ({error})")
                continue
            for text in failed:
                warnings.warn(f"the checkpoint {text} cannot be used; training continues from {file.name}", stacklevel=2)
            return saved
    raise ValueError(f"{wanted}, got {str(path)!r}, in which none is whole: {listed(failed)}")


def contents(saved: Saved, epochs: int) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays of a checkpoint and its text, by name, with the first `epochs` of the history.

    Raises TypeError if the state of a callback cannot be written.
    """
    history = saved.history
    arrays = {"p": saved.p, **({} if saved.state is None else {"state": saved.state})}
    arrays |= {f"optimizer.{name}": history.optimizer_state[name] for name in ("moments", *COUNTS)}
    arrays |= {"position.losses": history.position.losses}
    lists = {"loss": history.loss, "validation loss": history.validation_loss, "seconds": history.seconds}
    lists |= {f"metric.{name}": values for name, values in history.metrics.items()}
    arrays |= {f"history.{name}": np.array(values[:epochs], np.float64) for name, values in lists.items()}
    texts = []
    for number, callback in enumerate(saved.callbacks):
        found = callback["saved"]
        arrays |= {f"callback.{number}.{key}": value for key, value in found.items() if isinstance(value, np.ndarray)}
        numbers = {k: _number(callback["name"], value) for k, value in found.items() if not isinstance(value, np.ndarray)}
        texts.append({"name": callback["name"], "numbers": numbers})
    about = {
        "format": 1,
        "run": saved.run,
        "layout": [[name, list(shape)] for name, shape in history.layout],
        "steps": history.steps,
        "optimizer": history.optimizer,
        "stopped": history.stopped,
        **({"ended": sorted(history.ended.items())} if isinstance(history, EnsembleHistory) else {}),
        "position": {key: value for key, value in vars(history.position).items() if key != "losses"},
        "best": {key: encoding.encoded([value])[0] for key, value in saved.best.items()},
        "callbacks": texts,
    }
    return arrays, {"text": json.dumps(about, allow_nan=False)}


def _number(name: str, value: Any) -> Any:
    if isinstance(value, (bool, str, type(None))):
        return value
    if is_real(value):
        return {"number": encoding.encoded([value])[0], "whole": whole(value, -math.inf) is not None}
    raise TypeError(f"`state_dict` of the callback {name} must hold numbers, texts and NumPy arrays, got {shown(value)}")


def _read(path: Path) -> Saved:
    """A checkpoint from its file. Raises DamagedFileError for any other file, OSError as `open` does."""
    arrays, texts = storage.read(path)
    try:
        about = json.loads(texts["text"])
        if about["format"] != 1:
            raise ValueError(f"its format is {about['format']}")
        return _saved(path, arrays, about)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        raise storage.DamagedFileError(f"it is no checkpoint of chains: {error!r}") from error


def _saved(path: Path, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> Saved:
    """Raises one of several errors for contents of another kind."""
    columns = {name.removeprefix("history."): a for name, a in arrays.items() if name.startswith("history.")}
    if any(array.dtype != np.float64 or len(array) != len(columns["loss"]) for array in columns.values() if array.size):
        raise ValueError("the lists of its history have several lengths")
    lists = {name: array.tolist() if array.ndim == 1 else list(array) for name, array in columns.items()}
    history = History(
        lists["loss"],
        lists["validation loss"],
        {name.removeprefix("metric."): values for name, values in lists.items() if name.startswith("metric.")},
        lists["seconds"],
        encoding.as_count(about["steps"]),
        str(about["optimizer"]),
        str(about["stopped"]),
        OptimizerState({name: arrays[f"optimizer.{name}"] for name in ("moments", *COUNTS)}),
        replace(Position.from_dict({**about["position"], "losses": []}), losses=arrays["position.losses"]),
        names_from(about["layout"]),
    )
    if "ended" in about:
        ended = {encoding.as_count(member): (encoding.as_count(epochs), str(why)) for member, (epochs, why) in about["ended"]}
        history = EnsembleHistory(**vars(history), members=len(arrays["p"]), ended=ended)
    best = {str(key): encoding.decoded([value])[0] for key, value in about["best"].items()}
    callbacks = []
    for index, saved in enumerate(about["callbacks"]):
        prefix = f"callback.{index}."
        found: dict[str, Any] = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
        for key, value in saved["numbers"].items():
            if isinstance(value, dict):
                [number] = encoding.decoded([value["number"]])
                value = int(number) if value["whole"] else number
            found[key] = value
        callbacks.append({"name": saved["name"], "saved": found})
    return Saved(path, arrays["p"], arrays.get("state"), history, dict(about["run"]), best, callbacks)
