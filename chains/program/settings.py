"""Settings: numbers with many values in practice, such as learning rates. They are inputs of a program, not parts of it.

A `Tunable` lists the fields that are settings. Programs are recorded with a symbol for each, so that one program, compiled
once, serves all values. Zero and None are not settings: with them, operations are left out, and the program is another.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, TypeVar

from chains.expr import Expr
from chains.expr.scalar import PYTHON
from chains.support.checks import is_real

T = TypeVar("T")


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
    if isinstance(thing, tuple):
        for part in thing:
            freeze(part)
        return
    own: Any = type(thing)
    if own.__setattr__ is FrozenOnceRecorded.__setattr__:
        vars(thing)["_chains_recorded"] = True
    if is_dataclass(thing) and not isinstance(thing, type):
        for _, value in _items(thing):
            freeze(value)


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
    if isinstance(thing, tuple):
        return tuple(map(structure, thing))
    if not _is_tunable(thing):
        return thing
    return type(thing), *(Setting if _is_setting(thing, name) else structure(value) for name, value in _items(thing))


def numbers_of(thing: Any) -> list[float]:
    """The settings of `thing` in order."""
    if isinstance(thing, tuple):
        return [number for part in thing for number in numbers_of(part)]
    if not _is_tunable(thing):
        return []
    parts = ([float(value)] if _is_setting(thing, name) else numbers_of(value) for name, value in _items(thing))
    return [number for part in parts for number in part]


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
    for name, value in _items(thing):
        if _is_setting(thing, name):
            symbol: Any = Setting(f"{type(thing).__name__}.{name}", first)
            first += 1
        else:
            symbol = symbolic(value, first)
            first += len(numbers_of(value))
        object.__setattr__(twin, name, symbol)
    return twin


def _is_tunable(thing: Any) -> bool:
    return isinstance(thing, Tunable) and is_dataclass(thing)


def _is_setting(thing: Any, name: str) -> bool:
    value = getattr(thing, name)
    return name in thing.settings and is_real(value) and value != 0


def _items(thing: Any) -> Iterator[tuple[str, Any]]:
    return ((field.name, getattr(thing, field.name)) for field in fields(thing))
