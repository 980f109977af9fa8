"""Functions of arrays as lists of the calls they make, which can be pickled even where the functions cannot.

A function is called once with symbols for its arguments. Each use of them, by operators, methods, items, and NumPy's functions,
is written on a tape, in order, and replayed with values. A value that Python itself needs, such as a truth value or a length,
cannot be recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any, NoReturn

import numpy as np

BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "and", "or", "xor"]
COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]
UNARY = ["neg", "pos", "abs", "invert"]


@dataclass(frozen=True)
class Reference:
    """A value on a tape: an argument, or the result of a call."""

    number: int


@dataclass(frozen=True, eq=False)
class Tape:
    """The recorded calls of a function, as a function of its arguments."""

    arguments: tuple[str, ...]
    calls: tuple[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], ...]
    result: Any

    def __call__(self, *values: Any) -> Any:
        known = list(values)
        for function, args, kwargs in self.calls:
            known.append(function(*_replaced(args, known), **_replaced(kwargs, known)))
        return _replaced(self.result, known)

    @property
    def __signature__(self) -> Signature:
        return Signature([Parameter(name, Parameter.POSITIONAL_ONLY) for name in self.arguments])

    def __repr__(self) -> str:
        return f"<a function of {', '.join(self.arguments)} in {len(self.calls)} calls>"


def record(function: Callable[..., Any], *arguments: str) -> Tape:
    """Record a function with symbols for these arguments. Raises TypeError if a call cannot be recorded."""
    calls: list[Any] = []
    symbols = [Symbol(calls, number, len(arguments)) for number in range(len(arguments))]
    result = _referenced(function(*symbols))
    return Tape(arguments, tuple(calls), result)


def play_method(thing: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """A call of a method by its name."""
    return getattr(thing, name)(*args, **kwargs)


def take_item(thing: Any, key: Any) -> Any:
    """An item, or a slice."""
    return thing[key]


class Symbol:
    """The symbol of a value while a function is recorded."""

    def __init__(self, calls: list[Any], number: int, arguments: int) -> None:
        self._calls, self._number, self._arguments = calls, number, arguments

    def _called(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Symbol:
        self._calls.append((function, _referenced(args), _referenced(kwargs)))
        return Symbol(self._calls, self._arguments + len(self._calls) - 1, self._arguments)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Attribute(self, name)

    def __getitem__(self, key: Any) -> Symbol:
        return self._called(take_item, self, key)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Symbol:
        if method == "__call__":
            return self._called(ufunc, *inputs, **kwargs)
        return self._called(play_method, ufunc, method, *inputs, **kwargs)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Symbol:
        return self._called(function, *args, **kwargs)

    def _refused(self, *_: Any) -> NoReturn:
        raise TypeError("Python would have to know a value that is not known yet: its truth, its length, a number")

    __hash__ = None  # type: ignore[assignment]
    __bool__ = __len__ = __iter__ = __float__ = __int__ = __index__ = __complex__ = __array__ = __contains__ = _refused


def _operator(function: Callable[..., Any], reflected: bool = False) -> Callable[..., Symbol]:
    """The method for one of Python's operators."""

    def method(self: Symbol, *other: Any) -> Symbol:
        return self._called(function, *other, self) if reflected else self._called(function, self, *other)

    return method


for _name in (*BINARY, *COMPARISONS, *UNARY):
    setattr(Symbol, f"__{_name}__", _operator(getattr(operator, f"__{_name}__")))
for _name in BINARY:
    setattr(Symbol, f"__r{_name}__", _operator(getattr(operator, f"__{_name}__"), reflected=True))


class Attribute(Symbol):
    """An attribute of a symbol: a method if it is called, else a value."""

    def __init__(self, owner: Symbol, name: str) -> None:
        super().__init__(owner._calls, -1, owner._arguments)
        self._owner, self._name = owner, name

    def __call__(self, *args: Any, **kwargs: Any) -> Symbol:
        return self._called(play_method, self._owner, self._name, *args, **kwargs)

    def _value(self) -> Symbol:
        return self._called(getattr, self._owner, self._name)


def _referenced(value: Any) -> Any:
    """`value` with references for symbols."""
    if isinstance(value, Attribute):
        value = value._value()
    if isinstance(value, Symbol):
        return Reference(value._number)
    return _mapped(_referenced, value)


def _replaced(value: Any, known: list[Any]) -> Any:
    """`value` with the known values of references."""
    return known[value.number] if isinstance(value, Reference) else _mapped(lambda part: _replaced(part, known), value)


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """A tuple, list, dictionary or slice with its parts changed, anything else as it is."""
    if type(value) in (tuple, list):
        return type(value)(change(part) for part in value)
    if type(value) is dict:
        return {key: change(part) for key, part in value.items()}
    if type(value) is slice:
        return slice(*map(change, (value.start, value.stop, value.step)))
    return value
