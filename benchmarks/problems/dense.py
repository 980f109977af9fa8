"""Fully connected problems: what is to be computed, and a plain float64 evaluation that judges everyone's answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Problem:
    """A chain of fully connected layers on given data.

    Parameters are one flat vector: for each layer the weight (inputs, outputs), row by row, then the bias.
    """

    sizes: tuple[int, ...]
    hidden: str  # the activation of all layers but the last: "tanh" or "sigmoid"
    last: str  # that of the last: "linear" or "sigmoid"
    loss: str  # "mse": mean over samples and outputs; "squared": half the sum over outputs, mean over samples
    optimizer: str  # "adam" or "sgd"
    rate: float
    x: np.ndarray  # (samples, sizes[0])
    t: np.ndarray  # (samples, sizes[-1])
    p: np.ndarray  # the starting parameters
    batch_size: int | None = None  # None: all samples in each step

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.p.dtype

    @property
    def samples(self) -> int:
        return len(self.x)

    @property
    def activations(self) -> list[str]:
        return [self.hidden] * (len(self.sizes) - 2) + [self.last]

    def layers(self, p: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Views of a flat vector: weight (inputs, outputs) and bias (outputs,) of each layer."""
        return list(_layers(p, self.sizes))


def _layers(p: np.ndarray, sizes: tuple[int, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    start = 0
    for inputs, outputs in pairwise(sizes):
        stop = start + inputs * outputs
        yield p[start:stop].reshape(inputs, outputs), p[stop : stop + outputs]
        start = stop + outputs


def n_params(sizes: tuple[int, ...]) -> int:
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(sizes))


def initial(sizes: tuple[int, ...], kind: str, seed: int, dtype: Any) -> np.ndarray:
    """Starting parameters: "glorot" (normal weights, zero biases) or "normal" (N(0, 1) throughout)."""
    rng = np.random.default_rng(seed)
    if kind == "normal":
        return rng.normal(size=n_params(sizes)).astype(dtype)
    p = np.zeros(n_params(sizes))
    for weight, _ in _layers(p, sizes):
        weight[...] = rng.normal(0.0, np.sqrt(2.0 / sum(weight.shape)), weight.shape)
    return p.astype(dtype)


# The judge: plain, in float64, used by nobody else

_FUNCTIONS = {
    "tanh": (np.tanh, lambda y: 1.0 - y * y),
    "sigmoid": (lambda z: 1.0 / (1.0 + np.exp(-z)), lambda y: y * (1.0 - y)),
    "linear": (lambda z: z, lambda y: np.ones_like(y)),
}


def outputs(problem: Problem, p: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The network's outputs, shape (batch, sizes[-1])."""
    return _forward(problem, np.asarray(p, np.float64), x)[-1]


def value_and_grad(problem: Problem, p: np.ndarray) -> tuple[float, np.ndarray]:
    """The loss on all samples and its gradient."""
    p = np.asarray(p, np.float64)
    ys = _forward(problem, p, problem.x)
    difference = ys[-1] - problem.t
    weight = 0.5 if problem.loss == "squared" else 1.0 / problem.sizes[-1]
    dy = 2.0 * weight / problem.samples * difference
    gradient = np.empty_like(p)
    layers = zip(problem.layers(p), problem.layers(gradient), problem.activations, strict=True)
    for k, ((w, _), (dw, db), name) in reversed(list(enumerate(layers))):
        dz = dy * _FUNCTIONS[name][1](ys[k + 1])
        dw[...], db[...] = ys[k].T @ dz, dz.sum(0)
        dy = dz @ w.T
    return weight / problem.samples * float((difference * difference).sum()), gradient


def gradient_error(problem: Problem, result: tuple[float, np.ndarray]) -> float:
    """The largest error of a value and gradient, relative to the largest entry of the gradient."""
    value, gradient = value_and_grad(problem, problem.p)
    error = np.abs(np.asarray(result[1], np.float64) - gradient).max() / np.abs(gradient).max()
    return max(float(error), abs(float(result[0]) / value - 1.0))


def _forward(problem: Problem, p: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    ys = [np.asarray(x, np.float64)]
    for (w, b), name in zip(problem.layers(p), problem.activations, strict=True):
        ys.append(_FUNCTIONS[name][0](ys[-1] @ w + b))
    return ys
