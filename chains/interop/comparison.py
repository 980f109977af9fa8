"""The comparison of a network with the model that it was read from, on random batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.network.network import network_of

# The factors of normal random numbers, one for each sample: small ones, and such as reach where functions saturate.
BATCHES = ((1.0, 10.0), (0.1, 3.0, 1.0))
ROUNDINGS = 30.0  # how many times as much as the rounding of the network's own type two results may differ


@dataclass
class Source:
    """A model of another library.

    `name` is for messages. `run` takes an input of the network and further arguments of its calls, and returns the output of
    the model and the results within it, by the names that parts have. `tolerance` is what counts as rounding in the model,
    relative to the largest number of a sample. `settings` gives the further arguments for a number of samples. `unread` is a
    sentence about what was seen in the model and not read; empty if there is nothing.
    """

    name: str
    run: Callable[..., tuple[np.ndarray, dict[str, np.ndarray]]]
    tolerance: float
    settings: Callable[[int], dict[str, Any]] = lambda count: {}
    unread: str = ""


def check_same(net: Chain, p: np.ndarray, state: np.ndarray | None, names: Sequence[str], source: Source) -> None:
    """Raise ValueError unless the network computes what its source does. `names` are those of the layers in the source.

    A source that cannot be run is not compared, which gives a warning.
    """
    rng = np.random.default_rng(0)
    for factors in BATCHES:
        x = _drawn(rng, net, p.dtype, np.array(factors))
        settings = source.settings(len(x))
        try:
            with np.errstate(all="ignore"):
                y, inner = source.run(x, **settings)
        except Exception as error:
            warnings.warn(
                f"the network was not compared with {source.name}, which could not be run: {type(error).__name__}: "
                f"{error}. Compare its results, or pass check=False",
                stacklevel=4,
            )
            return
        case = _Case(net, p, state, x, settings, source.tolerance)
        if difference := case.difference(len(names), y):
            raise ValueError(_message(case, names, source, difference, inner))


def _message(case: _Case, names: Sequence[str], source: Source, difference: str, inner: dict[str, np.ndarray]) -> str:
    found, unread = (
        f"the network does not compute what {source.name} does: {difference}",
        source.unread and f". {source.unread}",
    )
    for k, name in enumerate(names):
        if name and name in inner and (first := case.difference(k + 1, inner[name])):
            return f"{found}. The first layer that differs is {k}, {case.net.layers[k]!r}, read from {name!r}: {first}{unread}"
    return (
        f"{found}. The first layer that differs is the last one, {len(names) - 1}" if names and not unread else found + unread
    )


@dataclass
class _Case:
    """A network with its input. Results are computed by NumPy, where nothing needs to be compiled."""

    net: Chain
    p: np.ndarray
    state: np.ndarray | None
    x: np.ndarray
    settings: dict[str, Any]
    tolerance: float

    def difference(self, count: int, right: np.ndarray) -> str:
        """How the result of the first layers differs from the right one beyond rounding; empty if it does not."""
        y, exact = self._results(count)
        if y.shape != right.shape:
            return f"its result for {len(self.x)} samples has the shape {y.shape}, not {right.shape}"
        right = right.astype(np.float64)
        known = np.isfinite(right)  # the source may overflow earlier
        with np.errstate(all="ignore"):
            error, rounding = (_largest(np.where(known, np.abs(exact - other), 0.0)) for other in (right, y))
            scale = _largest(np.where(known, np.abs(right), 0.0))
            rounding = np.where(np.isfinite(rounding), rounding, 0.0)
            wrong = ~(error <= self.tolerance * np.maximum(scale, 1e-30) + ROUNDINGS * rounding)
        if not wrong.any():
            return ""
        worst = int(np.argmax(np.where(wrong, np.nan_to_num(error / np.maximum(scale, 1e-30), nan=np.inf), -1.0)))
        return f"by {error[worst]:.2g}, where the largest number is {scale[worst]:.2g}"

    def _results(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The result of the first layers in the type of the parameters, and in float64."""
        net = Chain(*self.net.layers[:count], input_shape=self.net.input_shape, backend="numpy")
        found = []
        settings = self.settings if network_of(net).declaration.has_time_axis else {}
        for dtype in (self.p.dtype, np.float64):
            state = self.state[: net.n_state].astype(dtype) if self.state is not None and net.n_state else None
            x = self.x if self.x.dtype.kind in "iu" else self.x.astype(dtype)
            with np.errstate(all="ignore"):
                found.append(net(x, self.p[: net.n_params].astype(dtype), state=state, **settings))
        return found[0], found[1]


def _largest(values: np.ndarray) -> np.ndarray:
    """The largest number of each sample."""
    return values.reshape(len(values), -1).max(axis=1, initial=0.0)


def _drawn(rng: np.random.Generator, net: Chain, dtype: Any, factors: np.ndarray) -> np.ndarray:
    shape, ids = (len(factors), *net.input_shape), network_of(net).id_count
    if ids is not None:
        return rng.integers(0, ids, shape)
    return (rng.normal(size=shape) * factors.reshape(-1, *(1 for _ in net.input_shape))).astype(dtype)
