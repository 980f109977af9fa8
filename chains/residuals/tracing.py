"""From a residual as a Python function to a formula: its arguments are names, and what it reads of an output its pieces."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from chains.expr import Expr, Formula, as_expr, trace_nodes
from chains.support.messages import listed, shown

Piece = tuple[int, tuple[int, ...]]  # an output and the coordinates that it is derived by, in ascending order


@dataclass(frozen=True)
class Residual:
    """A traced residual: its formula's inputs are `pieces` of the outputs, then all coordinates, then all data."""

    formula: Formula
    pieces: tuple[Piece, ...]


class Field(Expr):
    """An output in a residual being traced; its attributes are its derivatives."""

    __slots__ = ("_derive",)
    __hash__ = object.__hash__

    def __init__(self, position: int, derive: Callable[[tuple[str, ...]], Expr]) -> None:
        super().__init__("input", value=position)
        self._derive = derive

    def d(self, *coordinates: str) -> Expr:
        """The derivative by these coordinates, one after another."""
        if not coordinates or not all(isinstance(name, str) for name in coordinates):
            raise TypeError(f'`d` takes the names of coordinates, such as d("x", "x"), got {shown(coordinates)}')
        return self._derive(coordinates)

    def __getattr__(self, name: str) -> Expr:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._derive((name,))


@dataclass(frozen=True)
class Tracer:
    coordinates: tuple[str, ...]
    outputs: tuple[str, ...]
    data: tuple[str, ...]

    def residual(self, number: int, function: Callable[..., Any], data: Iterable[str]) -> Residual:
        what = f"the residual of term {number}"
        pieces: dict[Piece, int] = {}
        arguments = self._arguments(what, function, [*self.outputs, *self.coordinates, *data])
        fixed = [*self.coordinates, *self.data]
        first = 10**6  # coordinates and data stand behind the pieces, whose number is known last

        def symbol(name: str) -> Expr:
            if name in self.outputs:
                output = self.outputs.index(name)
                return Field(pieces.setdefault((output, ()), len(pieces)), lambda names: derive(output, names))
            return Expr("input", value=first + fixed.index(name))

        def derive(output: int, names: tuple[str, ...]) -> Expr:
            by = tuple(sorted(axis for name in names for axis in self._axes(what, name)))
            if len(by) > 4:
                name = f"`{self.outputs[output]}` by {', '.join(self.coordinates[k] for k in by)}"
                raise ValueError(f"{what}: the derivative of {name} is not available: those up to order 4 are")
            return Expr("input", value=pieces.setdefault((output, by), len(pieces)))

        try:
            results = function(*map(symbol, arguments))
            results = tuple(map(as_expr, results if isinstance(results, tuple) else (results,)))
        except TypeError as error:
            raise TypeError(f"{what}: {error}") from error
        except AttributeError as error:
            if not isinstance(error.obj, Expr):
                raise
            first_name, second = self.outputs[0], 2 * self.coordinates[0]
            advice = f"a second derivative is `{first_name}.{second}`, and only an output has derivatives"
            raise TypeError(f"{what}: a formula has no `{error.name}`: {advice}") from error
        return Residual(_numbered(results, len(pieces), len(fixed), first), tuple(pieces))

    def transform(self, function: Callable[..., Any]) -> Formula:
        names = [*self.outputs, *self.coordinates]
        arguments = self._arguments("`transform`", function, names)
        try:
            results = function(*(Expr("input", value=names.index(name)) for name in arguments))
            results = tuple(map(as_expr, results if isinstance(results, tuple) else (results,)))
        except TypeError as error:
            raise TypeError(f"`transform`: {error}") from error
        if len(results) != len(self.outputs):
            raise ValueError(f"`transform` gives {len(results)} numbers for {len(self.outputs)} outputs")
        return trace_nodes(results, tuple(names))

    def _arguments(self, what: str, function: Callable[..., Any], known: list[str]) -> list[str]:
        if not callable(function):
            raise TypeError(f"{what} (={shown(function)}) must be a formula, such as lambda u: u.xx + u")
        names = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        for name in names:
            if name not in known:
                raise ValueError(f"{what} takes `{name}`, but there are only {listed(known)}")
        return names

    def _axes(self, what: str, name: str) -> list[int]:
        """The coordinates of a derivative: ``xx`` is x twice."""
        if name in self.coordinates:
            return [self.coordinates.index(name)]
        for k, coordinate in enumerate(self.coordinates):
            if name.startswith(coordinate):
                return [k, *self._axes(what, name[len(coordinate) :])]
        raise ValueError(f"{what}: `{name}` is not made of the coordinates {', '.join(self.coordinates)}")


def _numbered(results: tuple[Expr, ...], pieces: int, fixed: int, first: int) -> Formula:
    """The formula of residuals; the inputs from `first` on follow those before."""

    def moved(node: Expr) -> Expr:
        if node.operation == "input":
            position = int(node.value)
            return Expr("input", value=position if position < first else position - first + pieces)
        return Expr(node.operation, tuple(map(moved, node.operands)), node.value)

    return trace_nodes(tuple(map(moved, results)), tuple(f"x{k}" for k in range(pieces + fixed)))
