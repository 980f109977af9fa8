"""How the samples of a run come in batches: from arrays, or from a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.losses import Loss
from chains.network import arguments
from chains.network.record import Criterion
from chains.penalties import Penalty
from chains.support.checks import check_count
from chains.training.history import Position
from chains.training.identity import data_of, source_data
from chains.training.resume import Beginning
from chains.training.steps import Steps
from chains.training.stream import Stream, StreamSteps, source_epoch
from chains.training.subject import Data, Subject


@dataclass(frozen=True)
class Batching:
    """The `objective` on all batches, the `position` to go on from, and the steps, which are made of an executable."""

    objective: Criterion
    position: Position
    steps: Callable[..., Steps]
    data: dict[str, np.ndarray]  # the arrays by buffer name; none from a source


def from_source(
    subject: Subject,
    source: Any,
    loss: Loss,
    penalty: Penalty | None,
    epochs: int,
    start: Beginning,
    finite: bool,
    **given: Any,
) -> Batching:
    """Batches of a source, of which the first one is taken at once; `epochs` of the run. `finite`: refuse other numbers.

    Raises TypeError or ValueError if it is no source, and if one of the arguments `given` is something that it decides.
    """
    subject.check_source()
    settings = source_data(_check_source(source, given), subject.seed)
    position = start.position_in(settings, source_epoch(source))
    problem = _batch_problem(subject.net, subject.p, loss, penalty, finite)
    stream = Stream(source, problem, epochs - start.history.epochs, position)
    return Batching(stream.objective, position, partial(StreamSteps, stream, data=settings), {})


def from_arrays(
    subject: Subject,
    x: Any,
    t: Any,
    loss: Loss,
    penalty: Penalty | None,
    start: Beginning,
    *,
    weights: Any,
    lengths: Any,
    batch_size: int | None,
    drop_last: bool,
    shuffle: bool,
) -> Batching:
    """Batches of arrays. Raises TypeError or ValueError for data and settings that do not fit."""
    if hasattr(x, "__iter__") and not isinstance(x, (list, tuple)) and not hasattr(x, "shape"):
        raise TypeError(f"`t` must be None: `x` (a {type(x).__name__}) is a source of batches, which gives targets too")
    data, objective = subject.problem(x, t, loss, weights, penalty, lengths)
    samples = subject.samples_of(data)
    batch_size = _check_batch_size(subject.net, samples, batch_size, drop_last)
    data = arguments.together(subject.p, data, move=False)
    position = start.position_in(data_of(samples, batch_size, drop_last, shuffle, subject.seed))
    kind = subject.steps_on_arrays(samples, batch_size, drop_last, objective, start.history)
    steps = partial(kind, data, batch_size=batch_size, drop_last=drop_last, shuffle=shuffle)
    return Batching(objective, position, steps, data)


def _check_batch_size(net: Chain, samples: int, batch_size: int | None, drop_last: bool) -> int:
    """The batch size, at most the number of samples. Raises ValueError if it is invalid, or too small for this network."""
    batch_size = samples if batch_size is None else check_count("batch_size", batch_size, also=", or None for all samples")
    if drop_last and batch_size > samples:
        raise ValueError(f"`drop_last` leaves nothing to train on: `batch_size` (={batch_size}) exceeds the {samples} samples")
    batch_size = min(batch_size, samples)
    net.network.check_batch(batch_size)
    if samples % batch_size and not drop_last:
        net.network.check_batch(samples % batch_size, "the last batch, which `drop_last` would leave out,")
    return batch_size


def _check_source(x: Any, given: dict[str, Any]) -> Any:
    """`x`. Raises TypeError or ValueError unless it is iterable, and if an argument is given that the batches decide."""
    if isinstance(x, np.ndarray) or not hasattr(x, "__iter__"):
        raise TypeError(
            f"`t` is None, and `x` (a {type(x).__name__}) is not a source of batches: pass targets, or Batches(x, t, ...)"
            + "; call it, if it returns one" * callable(x)
        )
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(f"`{name}` is decided by the source of batches: give it there, not to train")
    return x


def _batch_problem(net: Chain, p: np.ndarray, loss: Loss, penalty: Penalty | None, finite: bool) -> Callable[..., Data]:
    """`net.problem` for a batch of a source. It also refuses batches that are too small or share memory with `p` and,
    if numbers must be `finite`, infinities and NaN."""

    def problem(x: Any, t: Any, weights: Any = None) -> Data:
        data, objective = net.problem(x, t, loss, weights, penalty)
        net.network.check_batch(len(data["x"]))
        arguments.check_apart("p", p, data)
        if finite:
            arguments.check_finite(p.dtype, **arguments.with_counted_targets(net.network.declaration, data))
        return data, objective

    return problem
