"""The structure of a network as a value. Networks with equal values have equal programs, recorded once per process.

Two objects get the same value only if they certainly record the same programs: numbers of one type with the same bits; layers,
losses and formulas of this package with such settings; functions of this package. An object of another package's class is a
value if the class defines both `__eq__` and `__hash__`, as frozen dataclasses do. Equality of other objects (a lambda, an
array, a custom layer without `__eq__`) is unknown: they raise `Unknown`.

A value is taken when a program is recorded or looked up, with the contents of lists and dictionaries at that time.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Hashable, Iterable
from dataclasses import is_dataclass
from functools import lru_cache
from types import FunctionType, NoneType
from typing import Any

import numpy as np

from chains.activations import Activation
from chains.layers.base import Layer
from chains.program.settings import field_names

_EXACT = frozenset((NoneType, int, str, bytes))  # equal objects of these types are the same
_CLASSES = frozenset((type, ABCMeta))
_OTHER_NAMES = ("_chains_settings", "_chains_declared")  # of a layer, on which no program depends


class Unknown(Exception):  # noqa: N818 - an answer rather than an error
    """It is unknown whether an object equals another."""


def value_of(thing: Any) -> Hashable:
    """`thing` as a value to compare. Raises Unknown if there is none."""
    kind = type(thing)
    if kind in _EXACT:
        found: Hashable = thing
        return found
    if kind is bool:
        return bool, thing  # True equals 1
    if kind is float:
        return float, thing.hex()  # distinguishes 0.0 and -0.0
    if kind in _CLASSES:
        return _of_class(thing)
    if kind in (tuple, list):
        return kind, *_each(thing)
    if kind is dict:
        return dict, _each(thing), _each(thing.values())
    if kind is frozenset:
        return frozenset, frozenset(map(value_of, thing))
    if kind.__module__.startswith("chains."):
        return kind, *_settings(thing)
    if isinstance(thing, (type, FunctionType)):
        return _named(thing)
    if isinstance(thing, np.generic) and kind.__module__ == "numpy" and thing.dtype.kind in "biuf":
        return kind, thing.tobytes()
    if isinstance(thing, np.dtype):
        return np.dtype, thing.str
    if _compares(kind):
        return kind, _fields(thing) if is_dataclass(thing) else _hashed(thing)
    raise Unknown


def _settings(thing: Any) -> tuple[Hashable, ...]:
    """The settings of an object of this package."""
    if isinstance(thing, Layer):  # programs do not depend on starting values
        kept = vars(thing) if type(thing).__getstate__ is Layer.__getstate__ else thing.__getstate__()
        names = sorted([name for name in kept if name[-5:] != "_init" and name not in _OTHER_NAMES])
        return _each([kept[name] for name in names], *names)
    if isinstance(thing, Activation):
        return _each(thing._recipe or (thing.name, thing.function, thing.derivative))
    if is_dataclass(thing):
        return _fields(thing)
    raise Unknown


def _fields(thing: Any) -> tuple[Hashable, ...]:
    return _each([getattr(thing, name) for name in field_names(type(thing))])  # type: ignore[arg-type]


def _each(things: Iterable[Any], *before: Hashable) -> tuple[Hashable, ...]:
    """The values of some things, after others; the most frequent ones without a call."""
    found = list(before)
    for thing in things:
        kind = type(thing)
        found.append(thing if kind in _EXACT else _of_class(thing) if kind in _CLASSES else value_of(thing))
    return tuple(found)


@lru_cache
def _of_class(kind: type) -> Hashable:
    """As `_named`, whose answer for a class is always the same."""
    return _named(kind)


def _named(thing: type | FunctionType) -> Hashable:
    """A class or function of this package, or a class that defines equality. Raises Unknown for others."""
    if thing.__module__.startswith("chains.") and "<" not in thing.__qualname__:
        return thing
    if isinstance(thing, type) and _compares(thing):
        return thing
    raise Unknown


def _compares(kind: type) -> bool:
    """Whether a class itself, not a base class, defines equality of its objects."""
    return kind.__module__ != "builtins" and "__eq__" in vars(kind) and vars(kind).get("__hash__") is not None


def _hashed(thing: Any) -> Hashable:
    try:
        hash(thing)
    except TypeError:  # it holds something that cannot be hashed
        raise Unknown from None
    found: Hashable = thing
    return found
