"""Networks of convolutions, pools and dense layers for classification, and a plain float64 evaluation that judges them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.timing import Contestant, Criterion, Table


@dataclass(frozen=True)
class Conv:
    """A convolution of images, channels first, with stride 1."""

    inputs: int
    outputs: int
    kernel: int
    padding: int = 0
    relu: bool = True

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return self.outputs, self.inputs, self.kernel, self.kernel


@dataclass(frozen=True)
class Pool:
    """Maximum pooling over windows of 2x2, then perhaps a relu."""

    relu: bool = False


@dataclass(frozen=True)
class Flatten:
    """Each sample as one axis: channels, rows, columns."""


@dataclass(frozen=True)
class Dropout:
    rate: float


@dataclass(frozen=True)
class Dense:
    inputs: int
    outputs: int
    relu: bool = True

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return self.inputs, self.outputs


Layer = Conv | Pool | Flatten | Dropout | Dense


@dataclass(frozen=True)
class Problem:
    """Layers that end in logits, under the cross-entropy, on given data.

    Parameters are one flat vector: for each layer that has any the weight, in C order, then the bias.
    A pass goes through all samples, in the order in which they are, `batch_size` a step.
    """

    layers: tuple[Layer, ...]
    optimizer: str  # "adam", or "sgd" with `momentum`
    rate: float
    x: np.ndarray  # (samples, features) or (samples, channels, rows, columns)
    t: np.ndarray  # labels, (samples,)
    p: np.ndarray  # the starting parameters
    batch_size: int
    momentum: float = 0.0

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.p.dtype

    @property
    def samples(self) -> int:
        return len(self.x)

    def tensors(self, p: np.ndarray) -> list[np.ndarray]:
        """Views of a flat vector: weight, bias, weight, bias and so on."""
        return list(_tensors(p, self.layers))

    def without_dropout(self) -> Problem:
        return replace(self, layers=tuple(layer for layer in self.layers if not isinstance(layer, Dropout)))


def weighted(layers: Sequence[Layer]) -> list[Conv | Dense]:
    """The layers that have parameters."""
    return [layer for layer in layers if isinstance(layer, (Conv, Dense))]


def n_params(layers: Sequence[Layer]) -> int:
    return sum(prod(layer.weight_shape) + layer.outputs for layer in weighted(layers))


def _tensors(p: np.ndarray, layers: Sequence[Layer]) -> Iterator[np.ndarray]:
    start = 0
    for layer in weighted(layers):
        for shape in (layer.weight_shape, (layer.outputs,)):
            yield p[start : start + prod(shape)].reshape(shape)
            start += prod(shape)


def initial(layers: Sequence[Layer], seed: int, dtype: Any) -> np.ndarray:
    """Starting parameters: Glorot's uniform weights, zero biases."""
    rng = np.random.default_rng(seed)
    p = np.zeros(n_params(layers), dtype)
    for weight in list(_tensors(p, layers))[::2]:
        window = prod(weight.shape[2:])
        limit = np.sqrt(6.0 / (window * sum(weight.shape[:2])))
        weight[...] = rng.uniform(-limit, limit, weight.shape)
    return p


# The judge: plain, in float64, used by nobody else


def logits(problem: Problem, p: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The network's outputs, shape (batch, classes), without dropout."""
    tensors = iter(problem.tensors(np.asarray(p, np.float64)))
    y = np.asarray(x, np.float64)
    for layer in problem.layers:
        if isinstance(layer, Conv):
            y = _convolution(y, next(tensors), layer.padding) + next(tensors)[:, None, None]
        elif isinstance(layer, Dense):
            y = y @ next(tensors) + next(tensors)
        elif isinstance(layer, Pool):
            n, channels, rows, columns = y.shape
            y = y.reshape(n, channels, rows // 2, 2, columns // 2, 2).max((3, 5))
        elif isinstance(layer, Flatten):
            y = y.reshape(len(y), -1)
        if getattr(layer, "relu", False):
            y = np.maximum(y, 0.0)
    return y


def _convolution(x: np.ndarray, weight: np.ndarray, padding: int) -> np.ndarray:
    border = (padding, padding)
    x = np.pad(x, ((0, 0), (0, 0), border, border))
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], (2, 3))
    return np.tensordot(windows, weight, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)


def loss(problem: Problem, p: np.ndarray, samples: int = 256) -> float:
    """The cross-entropy, without dropout, on the first samples."""
    x, t = problem.x[:samples], problem.t[:samples]
    y = np.concatenate([logits(problem, p, x[k : k + 64]) for k in range(0, len(x), 64)])
    y = y - y.max(1, keepdims=True)
    return float((np.log(np.exp(y).sum(1)) - y[np.arange(len(t)), t]).mean())


def agreement(table: Table, within: float, prefix: str = "") -> list[Criterion]:
    """The criterion that all rows, or those whose names hold `prefix`, arrive at the same loss, relative to their median."""
    losses = [row.judged for row in table.rows if row.judged is not None and prefix in row.name]
    if len(losses) < 2:
        return []
    worst = max(abs(value / median(losses) - 1.0) for value in losses)
    text = f"{table.key}{prefix}: largest difference of a {table.judged} from the median of all"
    return [Criterion(text, worst, f"<= {within:g}")]


def per_sample(contestant: Contestant, problem: Problem) -> Contestant:
    """The contestant with samples as its unit of work, instead of passes through all of them."""
    samples, run = problem.samples, contestant.run
    name = f"{contestant.name}, batch {problem.batch_size:,}"
    return replace(contestant, name=name, run=lambda n: run(n // samples), chunk=samples * contestant.chunk)
