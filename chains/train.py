"""The training loop."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains import arguments
from chains.backends.places import place_of
from chains.chain import Chain
from chains.history import History
from chains.losses import Loss
from chains.optimizers import Optimizer
from chains.penalties import Penalty
from chains.steps import Steps

Metric = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class TrainingState:
    """What a callback sees after an epoch: `p` and `history` are the live ones, `epoch` counts from 1."""

    net: Chain
    p: np.ndarray
    epoch: int
    history: History


# Called after each epoch; where it returns a text, training stops with that as the reason.
Callback = Callable[[TrainingState], str | None]


def train(
    net: Chain,
    p: np.ndarray,
    x: Any,
    t: Any,
    loss: Loss,
    optimizer: Optimizer,
    *,
    epochs: int = 1,
    batch_size: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
    weights: Any = None,
    penalty: Penalty | None = None,
    validation: tuple[Any, Any] | None = None,
    metrics: Sequence[Metric] = (),
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
    check_finite: bool = True,
    resume: History | None = None,
) -> History:
    """Train `net` on `x` and `t`, updating the parameter vector `p` in place.

    `x`: (samples, *input_shape); `t`: targets as `loss` wants them; `weights`: (samples,) factors of their losses.
    `batch_size`: samples a step, None for all. Each epoch goes through all samples once, shuffled unless
    `shuffle` is false; a last, smaller batch is used too unless `drop_last`. The same `seed` gives the same run.
    `validation`: (x, t) to compute the loss and the `metrics` (functions of outputs and targets) on after each
    epoch. `progress`: show a bar; None shows one on terminals and in notebooks. `callbacks` are called with a
    `TrainingState` after each epoch; one that returns a text stops the training, and one that has a method `finish` is
    called there at the end. `resume`: the history of
    an earlier call with the same optimiser, whose momentum and step count are carried on.

    Returns the `History`. Ctrl-C ends training after a step, with `p` as of then and the reason in
    ``history.stopped``. Raises FloatingPointError, naming the step and the loss and carrying the history as its
    attribute `history`, where the loss is not a finite number, and TypeError or ValueError, before anything is
    written, for arguments that do not fit.
    """
    p = arguments.check_trained(p, net.n_params)
    arguments.check_is("optimizer", optimizer, Optimizer, "an optimiser such as Adam(1e-3)")
    seed = arguments.check_seed(seed)
    if resume is not None:
        arguments.check_is("resume", resume, History, "the history of an earlier call of train")
        if resume.optimizer not in ("", type(optimizer).__name__):
            raise ValueError(
                f"`resume` is the history of {resume.optimizer}, which {optimizer!r} on {p.size} parameters cannot go on from"
            )
    for callback in callbacks:
        if not callable(callback) or isinstance(callback, type):
            raise TypeError(f"`callbacks` holds {callback!r}, but something to call after each epoch is wanted")
    data, objective = net.problem(x, t, loss, weights, penalty)
    samples = len(data["x"])
    batch_size = _check_counts(samples, epochs, batch_size, drop_last)
    judge = _Judge(net, p, loss, penalty, validation, metrics)
    data = arguments.together(p, data)
    if check_finite:
        arguments.check_finite(p=p, **data)
    program = net.training_step(p, objective, optimizer)
    state = None if resume is None else resume.optimizer_state
    steps = Steps(net.runner, program, p, data, optimizer, batch_size=batch_size, drop_last=drop_last, seed=seed, state=state)
    history = History(optimizer_state=steps.state, optimizer=type(optimizer).__name__)
    bar = _Bar(progress, epochs, steps.per_epoch)
    start = time.perf_counter()
    try:
        while history.epochs < epochs and not history.stopped:
            most = 1 if callbacks or validation is not None else epochs - history.epochs
            losses = steps.epochs(most, shuffle, bar.tick)
            judgement = judge()
            history.loss += losses
            history.add(judgement)
            history.seconds += [time.perf_counter() - start] * len(losses)
            for callback in callbacks:
                reason = callback(TrainingState(net, p, history.epochs, history))
                history.stopped = history.stopped or str(reason or "")
            bar.show(history)
    except KeyboardInterrupt:
        history.stopped = f"interrupted by the user in epoch {history.epochs + 1}"
    except FloatingPointError as error:
        error.history = history  # type: ignore[attr-defined]
        raise
    finally:
        history.steps = steps.done
        bar.close()
    for callback in callbacks:
        finish = getattr(callback, "finish", None)
        if finish is not None:
            finish(TrainingState(net, p, history.epochs, history))
    return history


def _check_counts(samples: int, epochs: int, batch_size: int | None, drop_last: bool) -> int:
    """The batch size, at most the number of samples. Raises ValueError for counts that make no sense."""
    if not isinstance(epochs, (int, np.integer)) or epochs < 0:
        raise ValueError(f"`epochs` (={epochs!r}) must be a whole number, zero or more")
    if batch_size is None:
        return samples
    if not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise ValueError(f"`batch_size` (={batch_size!r}) must be a positive whole number, or None for all samples")
    if drop_last and batch_size > samples:
        raise ValueError(f"`drop_last` leaves nothing to train on: `batch_size` (={batch_size}) exceeds the {samples} samples")
    return min(int(batch_size), samples)


def _name(metric: Metric) -> str:
    return getattr(metric, "__name__", repr(metric))


class _Judge:
    """Computes the loss and the metrics on the validation data."""

    def __init__(
        self, net: Chain, p: np.ndarray, loss: Loss, penalty: Penalty | None, validation: Any, metrics: Sequence[Metric]
    ) -> None:
        names = [_name(metric) for metric in metrics]
        if validation is None and metrics:
            raise ValueError("`metrics` are computed on validation data: pass `validation=(x, t)` too")
        if len(set(names)) < len(names) or {"loss", "validation loss", "seconds"} & set(names):
            raise ValueError(f"`metrics` (={names}) must have names of their own: give a function another __name__")
        self._arguments = (net, p, loss, penalty)
        self._metrics = dict(zip(names, metrics, strict=True))
        self._data = None
        if validation is not None:
            if not isinstance(validation, (tuple, list)) or len(validation) != 2:
                raise TypeError(f"`validation` (a {type(validation).__name__}) must be a pair of arrays (x, t)")
            x = arguments.check_input(validation[0], net.input_shape, "validation[0]")
            t = arguments.check_targets(validation[1], len(x), net.output_shape, loss, "validation[1]", "validation[0]")
            both = arguments.together(p, {"validation[0]": x, "validation[1]": t})
            self._data = place_of(p).contiguous(both["validation[0]"], p.dtype), both["validation[1]"]

    def __call__(self) -> dict[str, float]:
        """The numbers by name; none without validation data."""
        if self._data is None:
            return {}
        net, p, loss, penalty = self._arguments
        x, t = self._data
        numbers = {"validation loss": net.loss(p, x, t, loss, penalty=penalty)}
        if self._metrics:
            y = net(x, p)
            numbers |= {name: float(metric(y, t)) for name, metric in self._metrics.items()}
        return numbers


class _Bar:
    """A progress bar that counts steps; `tick` is None where no bar is shown."""

    def __init__(self, wanted: bool | None, epochs: int, per_epoch: int) -> None:
        self.tick: Callable[[int], object] | None = None
        self._bar: Any = None
        self._epochs = epochs
        self._shown = -math.inf
        if wanted is None:
            wanted = (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel" in sys.modules
        if wanted:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # without widgets, tqdm.auto warns and falls back on text
                from tqdm.auto import tqdm
            self._bar = tqdm(total=epochs * per_epoch, unit="step", dynamic_ncols=True)
            self.tick = self._bar.update

    def show(self, history: History) -> None:
        """The newest numbers beside the bar, at most ten times a second."""
        if self._bar is None:
            return
        now = time.perf_counter()
        if now - self._shown > 0.1 or history.epochs == self._epochs:
            self._shown = now
            numbers = {name: f"{values[-1]:.4g}" for name, values in history.columns().items() if name != "seconds"}
            self._bar.set_postfix({"epoch": f"{history.epochs}/{self._epochs}", **numbers}, refresh=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
