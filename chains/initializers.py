"""Starting values of parameters.

An initializer is any callable ``(rng, shape) -> array``; layers also accept a name from `INITIALIZERS`, a
number, or an array. Weights of shape (in, out) have fans in and out; kernels of shape (out, in, *window)
have in * window and out * window.
"""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

__all__ = ["Constant", "Normal", "Uniform", "VarianceScaling"]

import numpy as np

from chains.support.call_graph import Tape, record
from chains.support.checks import check_number, check_numbers, check_word, takes
from chains.support.messages import meant, shown

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
    """Normal numbers: ``Normal(0.01)`` has a standard deviation of 0.01 and a mean of 0.

    Parameters
    ----------
    std : float
        The standard deviation, 0 or more.
    mean : float
        The mean, by keyword only.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    std: float = 1.0
    mean: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        check_number("std", self.std, "in [0, inf)")
        check_number("mean", self.mean, "finite")

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.normal(self.mean, self.std, shape)


@dataclass(frozen=True)
class Uniform:
    """Uniform numbers in [low, high).

    Parameters
    ----------
    low, high : float
        The bounds; `low` may not be above `high`. Both are needed: ``Uniform(0.1)`` could mean either.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        check_number("low", self.low, "finite")
        check_number("high", self.high, "finite")
        if self.low > self.high:
            raise ValueError(f"`low` (={self.low}) must not be above `high` (={self.high})")

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(self.low, self.high, shape)


@dataclass(frozen=True)
class Constant:
    """One number everywhere, or a given array.

    Parameters
    ----------
    value : float or array
        Finite numbers; an array is broadcast.

    Raises
    ------
    TypeError, ValueError
        For anything else.
    """

    value: Any = 0.0

    def __post_init__(self) -> None:
        check_numbers("value", self.value)

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(np.asarray(self.value, dtype=np.float64), shape)


@dataclass(frozen=True)
class VarianceScaling:
    """Numbers of mean zero and variance scale / fan.

    Sources: Glorot and Bengio 2010 (scale 1, average), He et al. 2015 (scale 2, in), LeCun et al. 1998 (scale 1, in).

    Parameters
    ----------
    scale : float
        Positive.
    fan : str
        "in", "out" or "average": inputs of an output, outputs of an input, or the mean of both.
    distribution : str
        "normal" or "uniform".

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    scale: float
    fan: str
    distribution: str

    def __post_init__(self) -> None:
        check_number("scale", self.scale, "in (0, inf)")
        check_word("fan", self.fan, "in", "out", "average")
        check_word("distribution", self.distribution, "normal", "uniform")

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        fan_in, fan_out = fans(shape)
        fan = {"in": fan_in, "out": fan_out, "average": (fan_in + fan_out) / 2}[self.fan]
        std = math.sqrt(self.scale / fan)
        if self.distribution == "normal":
            return rng.normal(0.0, std, shape)
        return rng.uniform(-math.sqrt(3.0) * std, math.sqrt(3.0) * std, shape)


_BUILT_IN = (Normal, Uniform, Constant, VarianceScaling)  # of which the arguments are known


class _Own:
    """A custom function, `function(rng, shape)`.

    A function with a name in a module is pickled by that name. Any other, such as a lambda, is pickled as the calls that it
    makes on its generator, its shape and NumPy's arrays. If these cannot be recorded, raises PicklingError with the reason.
    """

    def __init__(self, function: Initializer) -> None:
        self.function = function

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        return self.function(rng, shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Own) and self.function == other.function

    def __hash__(self) -> int:
        return hash(self.function)

    def __repr__(self) -> str:
        return repr(self.function)

    def __copy__(self) -> _Own:
        return self

    def __deepcopy__(self, memo: Any) -> _Own:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Own, (self.function if _has_name(self.function) else self._recorded(),)

    def _recorded(self) -> Tape:
        try:
            return record(self.function, "rng", "shape")
        except Exception as error:
            raise pickle.PicklingError(
                f"the initializer {self.function!r} cannot be pickled: define it with def in a module, or call its generator "
                f"and NumPy's functions alone, np.sqrt(shape[0]) instead of math.sqrt ({error})"
            ) from error


def _has_name(function: Any) -> bool:
    """Whether a callable can be found again by its name, which is all that a pickle holds of it."""
    if not isinstance(function, FunctionType):
        return True
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


INITIALIZERS: dict[str, Initializer] = {
    "zeros": Constant(0.0),
    "ones": Constant(1.0),
    "normal": Normal(),
    "uniform": Uniform(-1.0, 1.0),
    "glorot_normal": VarianceScaling(1.0, "average", "normal"),
    "glorot_uniform": VarianceScaling(1.0, "average", "uniform"),
    "he_normal": VarianceScaling(2.0, "in", "normal"),
    "he_uniform": VarianceScaling(2.0, "in", "uniform"),
    "lecun_normal": VarianceScaling(1.0, "in", "normal"),
    "lecun_uniform": VarianceScaling(1.0, "in", "uniform"),
}


def initializer(choice: InitializerLike, name: str = "init", of: str = "", shape: tuple[int, ...] | None = None) -> Initializer:
    """The initializer, from a name, a number, an array or a callable.

    Raises ValueError or TypeError, with the argument `name` (and its owner, `of`), for anything else, and for an array that
    does not broadcast to the `shape`, if that is known.
    """
    if isinstance(choice, str):
        if choice not in INITIALIZERS:
            raise ValueError(
                f"`{name}` (={choice!r}){of} is not an initializer: choose one of {', '.join(INITIALIZERS)}, or pass a number, "
                f"an array, or a function of a random generator and a shape{meant(choice, INITIALIZERS)}"
            )
        return INITIALIZERS[choice]
    if isinstance(choice, type):
        raise TypeError(f"`{name}`{of} is the class {choice.__name__}: write {choice.__name__}(...)")
    if not callable(choice):
        check_numbers(name, choice, of, "must be a number, an array, a function or a name such as 'zeros'")
        choice = Constant(choice)
    if not isinstance(choice, _BUILT_IN) and not takes(choice, 2):
        raise TypeError(f"`{name}` (={shown(choice)}){of} must take two arguments, a random generator and a shape")
    if isinstance(choice, FunctionType):
        return _Own(choice)
    if isinstance(choice, Constant) and shape is not None:
        given = np.shape(choice.value)
        if not _broadcasts(given, shape):
            raise ValueError(f"`{name}`{of} must have shape {shape}, or one that broadcasts to it, got {given}")
    return choice


def setting_text(name: str, chosen: Initializer, default: str) -> str:
    """The printed setting of a layer; empty if it is the `default`."""
    if isinstance(chosen, Constant) and np.ndim(chosen.value):
        return f", {name}=<{shown(np.asarray(chosen.value))}>"
    known = next((known for known, other in INITIALIZERS.items() if chosen == other), None)
    if known == default:
        return ""
    number = float(chosen.value) if isinstance(chosen, Constant) else chosen
    return f", {name}={shown(known or number)}"


def _broadcasts(given: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether an array of one shape broadcasts to another."""
    try:
        return np.broadcast_shapes(given, shape) == shape
    except ValueError:
        return False
