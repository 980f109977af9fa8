"""Loss and metrics on the validation data after each epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.losses import Loss
from chains.metrics import accuracy
from chains.network import checks, executables
from chains.network.network import Network, network_of
from chains.penalties import Penalty
from chains.support import arguments
from chains.support.memory import memory_of, on_host
from chains.support.messages import shown
from chains.training.history import History

Metric = Callable[[np.ndarray, np.ndarray], float]
PLACES = ("x", "t", "lengths", "weights")  # in the argument `validation`
PIECE_BYTES = 1 << 26  # of intermediate results in a piece of the validation data
MIN_PIECE_SAMPLES = 32  # samples, so that there is work to share however large they are


class Evaluator:
    """Computes the loss and the metrics on the validation data; of an ensemble, those of each member that has not ended.

    Members share the data, or each has its own. Raises TypeError or ValueError for data and metrics that do not fit.
    """

    def __init__(
        self, net: Chain, p: np.ndarray, state: np.ndarray | None, loss: Loss, penalty: Penalty | None, validation: Any,
        metrics: Sequence[Metric], history: History,
    ) -> None:  # fmt: skip
        names = [name_of(metric) for metric in metrics]
        if validation is None and metrics:
            raise ValueError("`metrics` are computed on validation data: pass `validation=(x, t)` too")
        if len(set(names)) < len(names) or {"loss", "validation loss", "seconds"} & set(names):
            raise ValueError(f"`metrics` (={names}) must have different names: give a function another __name__")
        self._net, self._network, self._p, self._state = net, network_of(net), p, state
        self._loss, self._penalty, self._history = loss, penalty, history
        self._metrics = dict(zip(names, metrics, strict=True))
        self.names = [] if validation is None else ["validation loss", *names]
        self._data: list[dict[str, Any]] = []  # shared, or a member's each; by argument of the network's loss
        self._pieces: list[slice] = []
        self.arrays: dict[str, Any] = {}  # the same by argument of train
        if validation is None:
            return
        if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 3, 4):
            raise TypeError(
                f"`validation` (a {type(validation).__name__}) must be a pair of arrays (x, t), or (x, t, lengths), or "
                "(x, t, lengths, weights)"
            )
        each = [validation]
        if p.ndim > 1 and _has_members(validation[0], net):
            for number, array in enumerate(validation):
                if array is not None and np.shape(array)[:1] != p.shape[:1]:
                    raise ValueError(
                        f"`validation[{number}]` must have an axis of {len(p)} members in front, got shape {np.shape(array)}"
                    )
            each = [[None if array is None else array[member] for array in validation] for member in range(len(p))]
        self._data = [self._checked(data) for data in each]
        self.arrays = self._by_argument(self._data)
        t = self._data[0]["t"]
        for metric in metrics:
            if getattr(metric, "__module__", "") == accuracy.__module__:  # other metrics may count their calls
                _value(metric, on_host(t[:1]), np.zeros((1, *net.output_shape)))
        self._pieces = _pieces(self._network, p if p.ndim == 1 else p[0], len(t))

    def _checked(self, validation: Sequence[Any]) -> dict[str, Any]:
        """The arrays in the memory of the parameters. Raises TypeError or ValueError if they do not fit the network."""
        network, loss, known = self._network, self._loss, self._network.declaration
        x = arguments.check_input(validation[0], network.input_shape, "validation[0]", ids=network.id_count)
        counts, weights = (*validation, None, None)[2:4]
        lengths = checks.lengths_of(counts, x, known, "validation[2]", "validation[0]")
        t = checks.check_targets(validation[1], len(x), network.output_shape, loss, "validation[1]", "validation[0]")
        given = {"x": x, "t": t} | lengths
        if weights is not None:
            given["weights"] = checks.check_weights(weights, t.shape, loss, "validation[3]", "validation[0]")
        counted = checks.with_counted_targets(known, given)["t"]
        checks.check_target_values(counted, network.output_shape, loss, "validation[1]")
        moved = arguments.to_device_of(self._p, {_argument(name): array for name, array in given.items()})
        data = {name: moved[_argument(name)] for name in given}
        kind = self._p.dtype if network.id_count is None else None
        data["x"] = memory_of(self._p).contiguous(data["x"], kind)
        return data

    def __call__(self) -> dict[str, Any]:
        """The numbers by name, of an ensemble (members,), NaN for members that have ended; none without validation data."""
        if self._p.ndim == 1 or not self._data:
            return self._evaluate(self._p, self._state, self._data[0]) if self._data else {}
        numbers = self.nothing
        for member in self._history.running:
            state = None if self._state is None else self._state[member]
            data = self._data[member if len(self._data) > 1 else 0]
            for name, number in self._evaluate(self._p[member], state, data).items():
                numbers[name][member] = number
        return numbers

    def _evaluate(self, p: np.ndarray, state: np.ndarray | None, data: dict[str, Any]) -> dict[str, float]:
        """The numbers of one vector of parameters."""
        net, loss, penalty = self._net, self._loss, self._penalty
        parts = [{name: array[piece] for name, array in data.items()} for piece in self._pieces]
        total = 0.0  # no `sum`, which rounds otherwise from Python 3.12 on
        for part in parts:
            total += net.loss(p, loss=loss, penalty=penalty, state=state, **part) * len(part["x"])
        numbers = {"validation loss": total / len(data["x"])}
        if self._metrics:
            y = np.concatenate([on_host(net(part["x"], p, lengths=part.get("lengths"), state=state)) for part in parts])
            t = on_host(data["t"])
            numbers |= {name: _value(metric, t, y) for name, metric in self._metrics.items()}
        return numbers

    @property
    def nothing(self) -> dict[str, Any]:
        """Placeholders for the numbers when they are not computed."""
        return {name: math.nan if self._p.ndim == 1 else np.full(len(self._p), np.nan) for name in self.names}

    def counted_numbers(self) -> dict[str, Any]:
        """The `arrays` for checks of their numbers, without targets that do not count."""
        if not self._data:
            return {}
        known = self._network.declaration
        return self._by_argument([checks.with_counted_targets(known, data) for data in self._data])

    @staticmethod
    def _by_argument(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        of = [f" of member {member}" if len(each) > 1 else "" for member in range(len(each))]
        return {f"{_argument(name)}{of[m]}": array for m, data in enumerate(each) for name, array in data.items()}


def _argument(name: str) -> str:
    """Where an array is given to train."""
    return f"validation[{PLACES.index(name)}]"


def _has_members(x: Any, net: Chain) -> bool:
    """Whether inputs have an axis of members in front."""
    shape = np.shape(x)
    return len(shape) == len(net.input_shape) + 2 and shape[2:] == net.input_shape


def _value(metric: Metric, t: np.ndarray, y: np.ndarray) -> float:
    """The value of a metric. Raises TypeError, with its name, if that is not a number."""
    try:
        value: Any = metric(t, y)
    except Exception as error:
        error.add_note(f"in the metric {name_of(metric)}, of targets of shape {t.shape} and outputs of shape {y.shape}")
        raise
    if not hasattr(value, "__float__") or np.shape(value):
        raise TypeError(f"the metric {name_of(metric)} must return a number, got {shown(value)}")
    return float(value)


def _pieces(network: Network, p: np.ndarray, samples: int) -> list[slice]:
    """The samples in pieces, each with no more than `PIECE_BYTES` of intermediate results, or `MIN_PIECE_SAMPLES` long."""
    per_sample = executables.forward_pass(network, p, False).program.scratch.bytes_per_sample
    size = max(MIN_PIECE_SAMPLES, PIECE_BYTES // max(1, per_sample))
    return [slice(start, start + size) for start in range(0, samples, size)]


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function; of a partial one, that of the function within."""
    return getattr(getattr(function, "func", function), "__name__", repr(function))
