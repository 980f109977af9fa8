"""The training loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from chains.backends.places import on_host, place_of
from chains.chain import Chain
from chains.checks import check_count, check_flags
from chains.losses import Loss
from chains.messages import counted, shown
from chains.metrics import accuracy
from chains.network import arguments
from chains.network.record import Objective
from chains.optimizers import Optimizer
from chains.penalties import Penalty
from chains.progress import Progress
from chains.training.history import History
from chains.training.steps import ArraySteps, Steps, check_parameters
from chains.training.stream import Stream, StreamSteps

Metric = Callable[[np.ndarray, np.ndarray], float]
PIECE_BYTES = 1 << 26  # of intermediate results on validation data at once
LEAST_PIECE = 32  # samples, so that there is work to share however large they are


@dataclass(frozen=True)
class TrainingState:
    """What a callback sees after an epoch, which count from 1: `p`, `history` and `state`, the network's, are the live ones."""

    net: Chain
    p: np.ndarray
    epoch: int
    history: History
    state: np.ndarray | None = None

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name} {values[-1]:.4g}" for name, values in self.history.columns().items())
        return f"<{self.net!r} after {counted(self.epoch, 'epoch')}: {numbers}>"


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
    state: np.ndarray | None = None,
    validation: tuple[Any, Any] | None = None,
    metrics: Sequence[Metric] = (),
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
    check_finite: bool = True,
    resume: History | None = None,
) -> History:
    """Train `net` on `x` and `t`, updating the parameter vector `p`, and for networks that have one the `state`, in place.

    `x`: (samples, *input_shape); `t`: targets as `loss` wants them; `weights`: (samples,) factors of their losses.
    Or `x` is a source of batches (x, t) or (x, t, weights), such as `data.Batches` or a list, and `t` is None: every pass
    over it is an epoch, and it decides `batch_size`, `shuffle`, `drop_last` and `weights`, which may not be given then. A
    batch that does not fit is refused before its step, with a note of its number.
    `batch_size`: samples a step, None for all. Each epoch goes through all samples once, shuffled unless
    `shuffle` is false; a last, smaller batch is used too unless `drop_last`. The same `seed` gives the same run.
    `check_finite`: refuse an infinity or NaN in the data, `p` or `state`, for which all of them are read once.
    `validation`: (x, t) to compute the loss (with the penalty) and the `metrics` (functions of targets and outputs) on
    after each epoch; functions of one's own are first called after the first one. `progress`: show a bar; None shows one on
    terminals and in notebooks, True lines of text elsewhere. `callbacks` are called with a `TrainingState` after each
    epoch; one that returns a text stops the training, others return None. One that has a method `begin` is called
    there before the first step, with the names of what will be recorded, and one that has `finish` at the end, with a
    `TrainingState`. `resume`: the history of an earlier call with the same optimiser, whose momentum and step
    count are carried on; `p` and `state` are to be those it left.

    Returns the `History`. Ctrl-C ends training after a step, with `p` and `state` as of then and the reason in
    ``history.stopped``. Raises FloatingPointError, naming the step and carrying the history as its attribute `history`,
    where the loss is not a finite number, the last step leaves parameters that are none, or, before its step, a schedule gives
    a learning rate that is negative or not finite; and TypeError or ValueError, before anything is written, for arguments that
    do not fit.
    """
    arguments.check_is("net", net, Chain, "a network such as Chain(Dense(2, 3))")
    p = arguments.check_trained(p, net.n_params)
    seed = arguments.check_seed(seed)
    arguments.check_loss(loss)
    _check_run(p, optimizer, epochs, callbacks, resume)
    check_flags(shuffle=shuffle, drop_last=drop_last, check_finite=check_finite)
    if progress is not None:
        check_flags(progress=progress)
    arguments.check_functions("metrics", metrics, "functions of targets and outputs", 2)
    data: dict[str, np.ndarray] = {}
    steps_through: Callable[..., Steps]
    if t is None:
        given = {"batch_size": batch_size, "shuffle": not shuffle, "drop_last": drop_last, "weights": weights}
        stream = Stream(_check_source(x, given), _batch_problem(net, p, loss, penalty, check_finite), epochs)
        objective, steps_through = stream.objective, partial(StreamSteps, stream)
    else:
        if hasattr(x, "__iter__") and not isinstance(x, (list, tuple)) and not hasattr(x, "shape"):
            raise TypeError(f"`t` must be None: `x` (a {type(x).__name__}) is a source of batches, which gives targets too")
        data, objective = net.problem(x, t, loss, weights, penalty)
        batch_size = _check_batch_size(net, len(data["x"]), batch_size, drop_last)
        data = arguments.together(p, data, move=False)
        steps_through = partial(ArraySteps, data, batch_size=batch_size, drop_last=drop_last)
    step = net.training_step(p, objective, optimizer)
    state = net.state_for(step.program, state, p.dtype, False, {"p": p, **data}).get("state")
    judge = _Judge(net, p, state, loss, penalty, validation, metrics)
    trained = {"p": p} if state is None else {"p": p, "state": state}
    for name, array in trained.items():
        arguments.check_apart(name, array, {**data, **judge.data})
    if check_finite:
        arguments.check_finite(p.dtype, p=p, state=state, **data, **judge.data)
    for callback in callbacks:
        begin = getattr(callback, "begin", None)
        if begin is not None:
            begin(["loss", *judge.names, "seconds"])
    optimizer_state = None if resume is None else resume.optimizer_state
    steps = steps_through(step, trained, optimizer, seed=seed, optimizer_state=optimizer_state)
    history = History(optimizer_state=steps.optimizer_state, optimizer=type(optimizer).__name__)
    bar = Progress(progress, None if steps.per_epoch is None else epochs * steps.per_epoch, "step")
    tick = bar.update if bar.begun else None
    start = time.perf_counter()
    try:
        while history.epochs < epochs and not history.stopped:
            most = 1 if callbacks or validation is not None else epochs - history.epochs
            losses = steps.epochs(most, shuffle, tick)
            judgement = judge()
            history.loss += losses
            history.add(judgement)
            history.seconds += [time.perf_counter() - start] * len(losses)
            for callback in callbacks:
                reason = _reason(callback, TrainingState(net, p, history.epochs, history, state))
                history.stopped = history.stopped or reason
            if bar.due() or history.epochs == epochs:
                bar.show(_newest(history, epochs))
        check_parameters(p, steps.done)
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
            finish(TrainingState(net, p, history.epochs, history, state))
    return history


def _check_run(p: np.ndarray, optimizer: Optimizer, epochs: int, callbacks: Sequence[Callback], resume: History | None) -> None:
    """Raise TypeError or ValueError where these make no sense, or not together."""
    arguments.check_is("optimizer", optimizer, Optimizer, "an optimiser such as Adam(1e-3)")
    if resume is not None:
        arguments.check_is("resume", resume, History, "the history of an earlier call of train")
        if resume.optimizer not in ("", type(optimizer).__name__):
            raise ValueError(
                f"`resume` is the history of {resume.optimizer}, which {optimizer!r} on {p.size} parameters cannot go on from"
            )
    arguments.check_functions("callbacks", callbacks, "functions to call with a `TrainingState`", 1)
    check_count("epochs", epochs, 0)


def _check_batch_size(net: Chain, samples: int, batch_size: int | None, drop_last: bool) -> int:
    """The batch size, at most the number of samples. Raises ValueError where it makes no sense, or not for this network."""
    batch_size = samples if batch_size is None else check_count("batch_size", batch_size, also=", or None for all samples")
    if drop_last and batch_size > samples:
        raise ValueError(f"`drop_last` leaves nothing to train on: `batch_size` (={batch_size}) exceeds the {samples} samples")
    batch_size = min(batch_size, samples)
    net.network.check_batch(batch_size)
    if samples % batch_size and not drop_last:
        net.network.check_batch(samples % batch_size, "the last batch, which `drop_last` would leave out,")
    return batch_size


def _check_source(x: Any, given: dict[str, Any]) -> Any:
    """`x`. Raises TypeError or ValueError unless it can be gone through, and nothing is given that the batches decide."""
    if isinstance(x, np.ndarray) or not hasattr(x, "__iter__"):
        raise TypeError(
            f"`t` is None, and `x` (a {type(x).__name__}) is not a source of batches: pass targets, or Batches(x, t, ...)"
            + "; call it, if it returns one" * callable(x)
        )
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(f"`{name}` is decided by the source of batches: give it there, not to train")
    return x


def _batch_problem(net: Chain, p: np.ndarray, loss: Loss, penalty: Penalty | None, finite: bool) -> Callable[..., Any]:
    """`net.problem` for a batch of a source: one that the network cannot be trained on is refused too, and so are parts of
    `p` and, where only `finite` numbers will do, others."""

    def problem(x: Any, t: Any, weights: Any = None) -> tuple[dict[str, np.ndarray], Objective]:
        data, objective = net.problem(x, t, loss, weights, penalty)
        net.network.check_batch(len(data["x"]))
        arguments.check_apart("p", p, data)
        if finite:
            arguments.check_finite(p.dtype, **data)
        return data, objective

    return problem


def _reason(callback: Callback, state: TrainingState) -> str:
    """Why a callback would have training stop; empty where it would not. Raises TypeError where it returns something else."""
    reason = callback(state)
    if not isinstance(reason, (str, type(None))):
        raise TypeError(f"the callback {_name(callback)} returned {shown(reason)}: return a string to stop, or None")
    return reason or ""


def _name(function: Callable[..., Any]) -> str:
    return getattr(getattr(function, "func", function), "__name__", repr(function))


class _Judge:
    """Computes the loss and the metrics on the validation data."""

    def __init__(
        self,
        net: Chain,
        p: np.ndarray,
        state: np.ndarray | None,
        loss: Loss,
        penalty: Penalty | None,
        validation: Any,
        metrics: Sequence[Metric],
    ) -> None:
        names = [_name(metric) for metric in metrics]
        if validation is None and metrics:
            raise ValueError("`metrics` are computed on validation data: pass `validation=(x, t)` too")
        if len(set(names)) < len(names) or {"loss", "validation loss", "seconds"} & set(names):
            raise ValueError(f"`metrics` (={names}) must have names of their own: give a function another __name__")
        self._arguments = (net, p, state, loss, penalty)
        self._metrics = dict(zip(names, metrics, strict=True))
        self.names = [] if validation is None else ["validation loss", *names]
        self._data = None
        if validation is not None:
            if not isinstance(validation, (tuple, list)) or len(validation) != 2:
                raise TypeError(f"`validation` (a {type(validation).__name__}) must be a pair of arrays (x, t)")
            x = arguments.check_input(validation[0], net.input_shape, "validation[0]")
            t = arguments.check_targets(validation[1], len(x), net.output_shape, loss, "validation[1]", "validation[0]")
            both = arguments.together(p, {"validation[0]": x, "validation[1]": t})
            self._data = place_of(p).contiguous(both["validation[0]"], p.dtype), both["validation[1]"]
            for metric in metrics:
                if getattr(metric, "__module__", "") == accuracy.__module__:  # others may count their calls
                    _value(metric, on_host(t[:1]), np.zeros((1, *net.output_shape)))
            self._pieces = _pieces(net, p, len(x))

    def __call__(self) -> dict[str, float]:
        """The numbers by name; none without validation data."""
        if self._data is None:
            return {}
        net, p, state, loss, penalty = self._arguments
        x, t = self._data
        means = [(net.loss(p, x[piece], t[piece], loss, penalty=penalty, state=state), len(x[piece])) for piece in self._pieces]
        return {"validation loss": sum(mean * size for mean, size in means) / len(x), **self._measured()}

    @property
    def data(self) -> dict[str, np.ndarray]:
        """The validation data by argument."""
        return {} if self._data is None else {f"validation[{k}]": array for k, array in enumerate(self._data)}

    def _measured(self) -> dict[str, float]:
        """The metrics by name."""
        if self._data is None or not self._metrics:
            return {}
        net, p, state, *_ = self._arguments
        x, t = self._data
        y, t = np.concatenate([on_host(net(x[piece], p, state=state)) for piece in self._pieces]), on_host(t)
        return {name: _value(metric, t, y) for name, metric in self._metrics.items()}


def _value(metric: Metric, t: np.ndarray, y: np.ndarray) -> float:
    """What a metric gives. Raises TypeError, naming it, where that is no number."""
    try:
        value: Any = metric(t, y)
    except Exception as error:
        error.add_note(f"in the metric {_name(metric)}, of targets of shape {t.shape} and outputs of shape {y.shape}")
        raise
    if not hasattr(value, "__float__") or np.shape(value):
        raise TypeError(f"the metric {_name(metric)} must return a number, got {shown(value)}")
    return float(value)


def _pieces(net: Chain, p: np.ndarray, samples: int) -> list[slice]:
    """The samples in pieces, each with no more than `PIECE_BYTES` of intermediate results, or `LEAST_PIECE` long."""
    per_sample = net.forward_pass(p, False).program.scratch.bytes_per_sample
    size = max(LEAST_PIECE, PIECE_BYTES // max(1, per_sample))
    return [slice(start, start + size) for start in range(0, samples, size)]


def _newest(history: History, epochs: int) -> dict[str, str]:
    """The numbers of the last epoch, for people."""
    numbers = {name: f"{values[-1]:.4g}" for name, values in history.columns().items() if name != "seconds"}
    return {"epoch": f"{history.epochs}/{epochs}", **numbers}
