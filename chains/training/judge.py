"""Loss and metrics on the validation data after each epoch."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.losses import Loss
from chains.metrics import accuracy
from chains.network import arguments
from chains.penalties import Penalty
from chains.support.memory import memory_of, on_host
from chains.support.messages import shown

Metric = Callable[[np.ndarray, np.ndarray], float]
PLACES = ("x", "t", "lengths", "weights")  # in the argument `validation`
PIECE_BYTES = 1 << 26  # of intermediate results on validation data at once
MIN_PIECE_SAMPLES = 32  # samples, so that there is work to share however large they are


class Judge:
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
        names = [name_of(metric) for metric in metrics]
        if validation is None and metrics:
            raise ValueError("`metrics` are computed on validation data: pass `validation=(x, t)` too")
        if len(set(names)) < len(names) or {"loss", "validation loss", "seconds"} & set(names):
            raise ValueError(f"`metrics` (={names}) must have names of their own: give a function another __name__")
        self._arguments = (net, p, state, loss, penalty)
        self._metrics = dict(zip(names, metrics, strict=True))
        self.names = [] if validation is None else ["validation loss", *names]
        self._data: dict[str, Any] | None = None
        if validation is not None:
            if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 3, 4):
                raise TypeError(
                    f"`validation` (a {type(validation).__name__}) must be a pair of arrays (x, t), or (x, t, lengths), or "
                    "(x, t, lengths, weights)"
                )
            x = arguments.check_input(validation[0], net.input_shape, "validation[0]", ids=net.network.id_count)
            known, (counts, weights) = net.network.declaration, (*validation, None, None)[2:4]
            lengths = arguments.lengths_of(counts, x, known, "validation[2]", "validation[0]")
            t = arguments.check_targets(validation[1], len(x), net.output_shape, loss, "validation[1]", "validation[0]")
            given = {"x": x, "t": t} | lengths
            if weights is not None:
                given["weights"] = arguments.check_weights(weights, t.shape, loss, "validation[3]", "validation[0]")
            counted = arguments.with_counted_targets(known, given)["t"]
            arguments.check_target_values(counted, net.output_shape, loss, "validation[1]")
            self._names = {name: f"validation[{PLACES.index(name)}]" for name in given}
            together = arguments.together(p, {self._names[name]: array for name, array in given.items()})
            self._data = {name: together[self._names[name]] for name in given}
            self._data["x"] = memory_of(p).contiguous(self._data["x"], p.dtype if net.network.id_count is None else None)
            for metric in metrics:
                if getattr(metric, "__module__", "") == accuracy.__module__:  # others may count their calls
                    _value(metric, on_host(t[:1]), np.zeros((1, *net.output_shape)))
            self._pieces = _pieces(net, p, len(x))

    def __call__(self) -> dict[str, Any]:
        """The numbers by name; none without validation data."""
        if self._data is None:
            return {}
        net, p, state, loss, penalty = self._arguments
        total = 0.0
        for part in self._parts():
            total += net.loss(p, loss=loss, penalty=penalty, state=state, **part) * len(part["x"])
        return {"validation loss": total / len(self._data["x"]), **self._measured()}

    @property
    def nothing(self) -> dict[str, Any]:
        """Placeholders for the numbers when they are not computed."""
        return dict.fromkeys(self.names, math.nan)

    def of(self, p: np.ndarray, state: np.ndarray | None) -> Judge:
        """The same judge for another parameter vector and state."""
        twin = copy.copy(self)
        net, _, _, loss, penalty = self._arguments
        twin._arguments = (net, p, state, loss, penalty)
        return twin

    @property
    def data(self) -> dict[str, np.ndarray]:
        """The validation data by argument."""
        return {} if self._data is None else {self._names[name]: array for name, array in self._data.items()}

    def with_counted_targets(self) -> dict[str, np.ndarray]:
        """The validation data by argument, for checks of their numbers."""
        if self._data is None:
            return {}
        counted = arguments.with_counted_targets(self._arguments[0].network.declaration, self._data)
        return {self._names[name]: array for name, array in counted.items()}

    def _parts(self) -> list[dict[str, Any]]:
        """The data by argument, a piece at a time."""
        assert self._data is not None
        return [{name: array[piece] for name, array in self._data.items()} for piece in self._pieces]

    def _measured(self) -> dict[str, float]:
        """The metrics by name."""
        if self._data is None or not self._metrics:
            return {}
        net, p, state, *_ = self._arguments
        y = np.concatenate([on_host(net(part["x"], p, lengths=part.get("lengths"), state=state)) for part in self._parts()])
        t = on_host(self._data["t"])
        return {name: _value(metric, t, y) for name, metric in self._metrics.items()}


def _value(metric: Metric, t: np.ndarray, y: np.ndarray) -> float:
    """The value of a metric. Raises TypeError, with its name, if that is no number."""
    try:
        value: Any = metric(t, y)
    except Exception as error:
        error.add_note(f"in the metric {name_of(metric)}, of targets of shape {t.shape} and outputs of shape {y.shape}")
        raise
    if not hasattr(value, "__float__") or np.shape(value):
        raise TypeError(f"the metric {name_of(metric)} must return a number, got {shown(value)}")
    return float(value)


def _pieces(net: Chain, p: np.ndarray, samples: int) -> list[slice]:
    """The samples in pieces, each with no more than `PIECE_BYTES` of intermediate results, or `MIN_PIECE_SAMPLES` long."""
    per_sample = net.forward_pass(p, False).program.scratch.bytes_per_sample
    size = max(MIN_PIECE_SAMPLES, PIECE_BYTES // max(1, per_sample))
    return [slice(start, start + size) for start in range(0, samples, size)]


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function; of a partial one, that of the function within."""
    return getattr(getattr(function, "func", function), "__name__", repr(function))
