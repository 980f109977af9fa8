"""What is computed on the validation data after each epoch."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chains.backends.places import on_host, place_of
from chains.chain import Chain
from chains.losses import Loss
from chains.messages import shown
from chains.metrics import accuracy
from chains.network import arguments
from chains.penalties import Penalty

Metric = Callable[[np.ndarray, np.ndarray], float]
PIECE_BYTES = 1 << 26  # of intermediate results on validation data at once
LEAST_PIECE_SAMPLES = 32  # samples, so that there is work to share however large they are


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
        self._data = None
        if validation is not None:
            if not isinstance(validation, (tuple, list)) or len(validation) != 2:
                raise TypeError(f"`validation` (a {type(validation).__name__}) must be a pair of arrays (x, t)")
            x = arguments.check_input(validation[0], net.input_shape, "validation[0]", ids=net.network.id_count)
            t = arguments.check_targets(validation[1], len(x), net.output_shape, loss, "validation[1]", "validation[0]")
            both = arguments.together(p, {"validation[0]": x, "validation[1]": t})
            kind = p.dtype if net.network.id_count is None else None
            self._data = place_of(p).contiguous(both["validation[0]"], kind), both["validation[1]"]
            for metric in metrics:
                if getattr(metric, "__module__", "") == accuracy.__module__:  # others may count their calls
                    _value(metric, on_host(t[:1]), np.zeros((1, *net.output_shape)))
            self._pieces = _pieces(net, p, len(x))

    def __call__(self) -> dict[str, Any]:
        """The numbers by name; none without validation data."""
        if self._data is None:
            return {}
        net, p, state, loss, penalty = self._arguments
        x, t = self._data
        means = [(net.loss(p, x[piece], t[piece], loss, penalty=penalty, state=state), len(x[piece])) for piece in self._pieces]
        return {"validation loss": sum(mean * size for mean, size in means) / len(x), **self._measured()}

    @property
    def nothing(self) -> dict[str, Any]:
        """What stands in the place of the numbers where they are not computed."""
        return dict.fromkeys(self.names, math.nan)

    def of(self, p: np.ndarray, state: np.ndarray | None) -> Judge:
        """The same of another network of the structure."""
        twin = copy.copy(self)
        net, _, _, loss, penalty = self._arguments
        twin._arguments = (net, p, state, loss, penalty)
        return twin

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
        error.add_note(f"in the metric {name_of(metric)}, of targets of shape {t.shape} and outputs of shape {y.shape}")
        raise
    if not hasattr(value, "__float__") or np.shape(value):
        raise TypeError(f"the metric {name_of(metric)} must return a number, got {shown(value)}")
    return float(value)


def _pieces(net: Chain, p: np.ndarray, samples: int) -> list[slice]:
    """The samples in pieces, each with no more than `PIECE_BYTES` of intermediate results, or `LEAST_PIECE_SAMPLES` long."""
    per_sample = net.forward_pass(p, False).program.scratch.bytes_per_sample
    size = max(LEAST_PIECE_SAMPLES, PIECE_BYTES // max(1, per_sample))
    return [slice(start, start + size) for start in range(0, samples, size)]


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function; of a partial one, that of the function within."""
    return getattr(getattr(function, "func", function), "__name__", repr(function))
