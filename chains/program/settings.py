"""Settings: numbers with many values in practice, such as learning rates. They are inputs of a program, not parts of it.

A `Tunable` lists the fields that are settings. Programs are recorded with a symbol for each, so that one program, compiled
once, serves all values. Zero and None are not settings: with them, operations are left out, and the program is another.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import FunctionType, NoneType
from typing import Any, ClassVar, TypeVar

from chains.expr import Expr
from chains.expr.scalar import PYTHON
from chains.support.checks import is_real

T = TypeVar("T")
_PLAIN = frozenset((NoneType, bool, int, float, str, type, FunctionType))  # types of what holds no settings


class Tunable:
    """A frozen dataclass with settings: the fields listed in `settings`, and the settings of tunable fields."""

    settings: ClassVar[tuple[str, ...]] = ()


class FrozenOnceRecorded:
    """Base class of objects that programs record. Afterwards, attributes cannot change: programs would not follow."""

    def __setattr__(self, name: str, value: Any) -> None:
        if "_chains_recorded" in self.__dict__ and hasattr(self, name):
            raise AttributeError(
                f"`{name}` (={getattr(self, name)!r}) of {self} cannot become {value!r}: a program was recorded of it; "
                f"make a new {type(self).__name__}"
            )
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_chains_recorded"}  # a copy may be changed


def freeze(thing: Any) -> None:
    """Make `thing` and its parts immutable; frozen dataclasses already are."""
    kind: Any = type(thing)
    if kind in _PLAIN:
        return
    if kind.__setattr__ is FrozenOnceRecorded.__setattr__:
        vars(thing)["_chains_recorded"] = True
    for part in thing if isinstance(thing, tuple) else [getattr(thing, name) for name in field_names(kind)]:
        if type(part) not in _PLAIN:
            freeze(part)


class Setting(Expr):
    """The symbol of a number that is given at each run of a program, such as a learning rate; never zero."""

    __slots__ = ("name",)
    __hash__ = object.__hash__

    def __init__(self, name: str, position: int) -> None:
        super().__init__("setting", value=position)
        self.name = name

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return self.name


def evaluate(node: Expr, numbers: Sequence[float]) -> float:
    """The value of an expression of settings, for these numbers."""
    if node.operation in ("const", "setting"):
        return float(node.value if node.operation == "const" else numbers[int(node.value)])
    operands = [evaluate(operand, numbers) for operand in node.operands]
    return float(PYTHON[node.operation](*operands))


def structure(thing: Any) -> Hashable:
    """`thing` without the values of its settings: equal for all things that one program serves."""
    return _taken_apart(thing, [])


def numbers_of(thing: Any) -> list[float]:
    """The settings of `thing` in order."""
    found: list[float] = []
    _taken_apart(thing, found)
    return found


def _taken_apart(thing: Any, numbers: list[float]) -> Hashable:
    """The structure of `thing`; its settings are appended to `numbers`."""
    if isinstance(thing, tuple):
        return tuple([part if type(part) in _PLAIN else _taken_apart(part, numbers) for part in thing])
    if not _is_tunable(thing):
        kept: Hashable = thing
        return kept
    parts: list[Any] = [type(thing)]
    for name in field_names(type(thing)):  # type: ignore[arg-type]
        value = getattr(thing, name)
        if _is_setting(thing, name, value):
            numbers.append(float(value))
            value = Setting
        parts.append(value if type(value) in _PLAIN else _taken_apart(value, numbers))
    return tuple(parts)


def symbolic(thing: T, first: int = 0) -> T:
    """`thing` with a symbol for each setting, numbered from `first` in the order of `numbers_of`."""
    if isinstance(thing, tuple):
        parts = []
        for part in thing:
            parts.append(symbolic(part, first))
            first += len(numbers_of(part))
        return tuple(parts)  # type: ignore[return-value]
    if not _is_tunable(thing):
        return thing
    twin = copy.copy(thing)
    for name in field_names(type(thing)):  # type: ignore[arg-type]
        value = getattr(thing, name)
        if _is_setting(thing, name, value):
            symbol: Any = Setting(f"{type(thing).__name__}.{name}", first)
            first += 1
        else:
            symbol = symbolic(value, first)
            first += len(numbers_of(value))
        object.__setattr__(twin, name, symbol)
    return twin


def _is_setting(thing: Any, name: str, value: Any) -> bool:
    return name in thing.settings and is_real(value) and value != 0


def _is_tunable(thing: Any) -> bool:
    return isinstance(thing, Tunable) and is_dataclass(thing)


@lru_cache
def field_names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass; none of another class."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
