"""Starting values of parameters.

An initializer is any callable ``(rng, shape) -> array``; layers also accept a name from `INITIALIZERS`, a
number, or an array. Weights of shape (in, out) have fans in and out; kernels of shape (out, in, *window)
have in * window and out * window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.words import meant

Initializer = Callable[[np.random.Generator, tuple[int, ...]], Any]
InitializerLike = Initializer | str | float | np.ndarray


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """The number of inputs of one output and the number of outputs of one input."""
    if len(shape) < 2:
        size = math.prod(shape)
        return size, size
    if len(shape) == 2:
        return shape[0], shape[1]
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


@dataclass(frozen=True)
class Normal:
    """Normal numbers with a mean and a standard deviation."""

    mean: float = 0.0
    std: float = 1.0

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.normal(self.mean, self.std, shape)


@dataclass(frozen=True)
class Uniform:
    """Uniform numbers in [low, high)."""

    low: float = -1.0
    high: float = 1.0

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(self.low, self.high, shape)


@dataclass(frozen=True)
class Constant:
    """One number everywhere, or the given array."""

    value: Any = 0.0

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(np.asarray(self.value, dtype=np.float64), shape)


@dataclass(frozen=True)
class VarianceScaling:
    """Zero-mean numbers of variance scale / fan, `fan` being "in", "out" or "average".

    Sources: Glorot and Bengio 2010 (scale 1, average), He et al. 2015 (scale 2, in), LeCun et al. 1998
    (scale 1, in).
    """

    scale: float
    fan: str
    distribution: str

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        fan_in, fan_out = fans(shape)
        fan = {"in": fan_in, "out": fan_out, "average": (fan_in + fan_out) / 2}[self.fan]
        std = math.sqrt(self.scale / fan)
        if self.distribution == "normal":
            return rng.normal(0.0, std, shape)
        return rng.uniform(-math.sqrt(3.0) * std, math.sqrt(3.0) * std, shape)


INITIALIZERS: dict[str, Initializer] = {
    "zeros": Constant(0.0),
    "ones": Constant(1.0),
    "normal": Normal(),
    "uniform": Uniform(),
    "glorot_normal": VarianceScaling(1.0, "average", "normal"),
    "glorot_uniform": VarianceScaling(1.0, "average", "uniform"),
    "he_normal": VarianceScaling(2.0, "in", "normal"),
    "he_uniform": VarianceScaling(2.0, "in", "uniform"),
    "lecun_normal": VarianceScaling(1.0, "in", "normal"),
    "lecun_uniform": VarianceScaling(1.0, "in", "uniform"),
}


def initializer(choice: InitializerLike, name: str = "init", of: str = "") -> Initializer:
    """The initializer meant by a name, a number, an array or a callable.

    Raises ValueError or TypeError, naming the argument `name` (and what it is `of`), for anything else.
    """
    if isinstance(choice, str):
        if choice not in INITIALIZERS:
            raise ValueError(
                f"`{name}` (={choice!r}){of} is no initializer: choose one of {', '.join(INITIALIZERS)}, or pass a number, an "
                f"array, or a function of a random generator and a shape{meant(choice, INITIALIZERS)}"
            )
        return INITIALIZERS[choice]
    if isinstance(choice, type):
        raise TypeError(f"`{name}`{of} is the class {choice.__name__}: write {choice.__name__}(...)")
    if callable(choice):
        return choice
    if np.asarray(choice).dtype.kind not in "fiub":
        raise TypeError(f"`{name}` (={choice!r}){of} must be a number, an array, a function or a name such as 'zeros'")
    return Constant(choice)
