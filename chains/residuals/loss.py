"""The loss of a residual problem: formulas of the coefficients of the outputs' series, and their derivatives."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from chains.expr import Expr, Formula, as_expr, sqrt, trace_nodes, where
from chains.expr.formulas import Replay
from chains.jets.series import ZERO, Index, Orders, Series, indices, replay
from chains.losses import SeriesLoss
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.residuals.scales import Scales
from chains.support.messages import listed, shown
from chains.support.moved import REMEDY

Piece = tuple[int, tuple[int, ...]]  # an output and the coordinates that it is derived by, in ascending order
Rows = Mapping[tuple[int, Index], View]  # an array (batch,) for each output and index of its series


@dataclass(frozen=True)
class Residual:
    """A traced residual: its formula's inputs are `pieces` of the outputs, then all coordinates, then all data."""

    formula: Formula
    pieces: tuple[Piece, ...]

    def values(self, *inputs: Any) -> tuple[Any, ...]:
        """The equations' values, from those of the pieces, coordinates and data."""
        found = Replay(self.formula)(*inputs)
        return found if isinstance(found, tuple) else (found,)


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

    def residual(self, label: str, function: Callable[..., Any], data: Iterable[str]) -> Residual:
        what = f"the residual of {label}"
        pieces: dict[Piece, int] = {}
        arguments = self._arguments(what, function, [*self.outputs, *self.coordinates, *data])
        fixed = [*self.coordinates, *self.data]
        first = 10**6  # coordinates and data follow the pieces, whose number is known last

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
        except AttributeError as error:
            if not isinstance(error.obj, Expr):
                raise
            raise TypeError(f"`transform`: a formula has no `{error.name}`: derivatives belong in the terms") from error
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


@dataclass(frozen=True)
class ResidualLoss(SeriesLoss):
    """The weighted sum of squared residuals; made by `ResidualProblem`."""

    coordinates: tuple[str, ...]
    outputs: tuple[str, ...]
    data: tuple[str, ...]
    residuals: tuple[Residual, ...]
    transform: Formula | None = None
    scales: Scales | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "data" not in state:
            raise ValueError(f"a pickle of a residual problem's loss names no data: {REMEDY}")
        self.__dict__.update(state)

    def check_target(self, output: tuple[int, ...], target: tuple[int, ...]) -> None:
        if output != (len(self.outputs),):
            raise ValueError(
                f"outputs of sample shape {output} do not go with the outputs {', '.join(self.outputs)} of the residuals: "
                f"wanted ({len(self.outputs)},)"
            )
        if target != (len(self.residuals) + len(self.data),):
            raise ValueError(f"`t` of sample shape {target} is not that of the problem: pass `problem.t`, with `problem.x`")

    # The curves along which outputs are derived

    @cached_property
    def directions(self) -> dict[tuple[int, ...], int]:
        """The highest order of derivative along each direction, a vector of whole numbers: (1, 0) is the first axis."""
        found: dict[tuple[int, ...], int] = {}
        for residual in self.residuals:
            for _, by in residual.pieces:
                for direction in along_directions(by, len(self.coordinates)):
                    found[direction] = max(found.get(direction, 1), len(by))
        return dict(sorted(found.items(), reverse=True))

    @property
    def orders(self) -> Orders:
        return tuple(self.directions.values())

    @property
    def tangents(self) -> np.ndarray:
        return np.array([*self.directions], np.float64).reshape(-1, len(self.coordinates))

    def record(self, ops: Recorder, y: View, t: View, w: View | None, value: View, dy: View) -> None:
        raise TypeError("residuals are made of derivatives: `record_series` has them")

    def record_series(self, ops: Recorder, x: View, rows: Rows, t: View, w: View | None, value: View, adjoints: Rows) -> None:
        terms = ops.scratch("terms", ())
        ins = self._operands(rows, x, t)
        function = self._sloped(rows, self._sum_of_squares)

        def weighted(inverse: Any, *values: Any) -> tuple[Any, ...]:
            first, *rest = function(*values[: len(ins)])
            if w is None:
                return first, *(slope * inverse for slope in rest)
            weight = values[len(ins)]
            return tuple(
                where(weight == 0.0, 0.0, each) for each in (first * weight, *(slope * (inverse * weight) for slope in rest))
            )

        ops.map((terms, *adjoints.values()), weighted, ops.inverse_batch, *ins, *([] if w is None else [w]))
        ops.sum(value, terms)
        ops.map(value, lambda total, inverse: total * inverse, value, ops.inverse_batch)

    def record_equation(self, ops: Recorder, number: int, x: View, rows: Rows, t: View, residual: View, adjoints: Rows) -> None:

        def rooted(residuals: Sequence[tuple[Any, ...]], weights: Sequence[Expr]) -> Any:
            own = [(weight, each[number]) for weight, each in zip(weights, residuals, strict=True) if number < len(each)]
            return sum((sqrt(weight) * each for weight, each in own[1:]), sqrt(own[0][0]) * own[0][1])

        ops.map((residual, *adjoints.values()), self._sloped(rows, rooted), *self._operands(rows, x, t))

    @property
    def equations(self) -> int:
        return max(len(residual.formula.outputs) for residual in self.residuals)

    def _operands(self, rows: Rows, x: View, t: View) -> list[View]:
        """The inputs of formulas: coefficients, coordinates, weights of the terms, data."""
        coordinates = [x.index(-1, k) for k in range(len(self.coordinates))]
        return [*rows.values(), *coordinates, *(t.index(-1, k) for k in range(len(self.residuals) + len(self.data)))]

    def _sloped(
        self, keys: Collection[tuple[int, Index]], combine: Callable[[Sequence[tuple[Any, ...]], Sequence[Expr]], Any]
    ) -> Replay:
        """The value of `combine` for each term's residuals and weight, and its derivatives by the coefficients `keys`."""
        width, terms = len(self.coordinates), len(self.residuals)
        inputs = [Expr("input", value=k) for k in range(len(keys) + width + terms + len(self.data))]
        names = tuple(f"x{k}" for k in range(len(inputs)))
        symbols, others = dict(zip(keys, inputs, strict=False)), inputs[len(keys) :]
        coordinates, weights, data = others[:width], others[width : width + terms], others[width + terms :]
        found = self._equations(symbols, coordinates, data)
        formula = trace_nodes((as_expr(combine(found, weights)),), names)
        # Each coefficient has a direction, along which the first derivative is its slope.
        operands: list[Series] = [{ZERO: each} for each in inputs]
        for k in range(len(keys)):
            operands[k] = {**operands[k], (k, 1): as_expr(1.0)}
        (series,) = replay(formula, operands, (1,) * len(keys))
        slopes = [series.get((k, 1), as_expr(0.0)) for k in range(len(keys))]
        return Replay(trace_nodes((series[ZERO], *slopes), names))

    @cached_property
    def keys(self) -> tuple[tuple[int, Index], ...]:
        """The output and index of all coefficients that residuals can be made of."""
        return tuple((output, index) for output in range(len(self.outputs)) for index in indices(self.orders))

    def equations_of(self, number: int) -> Residual:
        """The equations of one term as a formula of all coefficients, `keys`, of the network's coordinates, and of data."""
        count, width = len(self.keys), len(self.coordinates)
        symbols = [Expr("input", value=k) for k in range(count + width + len(self.data))]
        rows = dict(zip(self.keys, symbols, strict=False))
        values = self._equations(rows, symbols[count : count + width], symbols[count + width :])[number]
        return Residual(trace_nodes(tuple(map(as_expr, values)), tuple(f"x{k}" for k in range(len(symbols)))), ())

    def _equations(
        self, symbols: Mapping[tuple[int, Index], Expr], coordinates: Sequence[Expr], data: Sequence[Expr]
    ) -> list[tuple[Any, ...]]:
        """Each term's equations, divided by their sizes, from the coefficients, coordinates and data of a point."""
        if self.scales is not None:
            pairs = zip(coordinates, self.scales.coordinates, strict=True)
            coordinates = [offset + length * coordinate for coordinate, (offset, length) in pairs]
        outputs = self._transformed(symbols, coordinates)
        found = []
        for number, residual in enumerate(self.residuals):
            values = residual.values(*(self._piece(outputs, piece) for piece in residual.pieces), *coordinates, *data)
            if self.scales is not None and self.scales.residuals:
                sizes = self.scales.residuals[number]
                values = tuple(value * (1.0 / size) for value, size in zip(values, sizes, strict=True))
            found.append(values)
        return found

    @staticmethod
    def _sum_of_squares(residuals: Sequence[tuple[Any, ...]], weights: Sequence[Expr]) -> Any:
        """A sample's loss."""
        total: Any = 0.0
        for weight, each in zip(weights, residuals, strict=True):
            squares = [value * value for value in each]
            total = total + weight * sum(squares[1:], squares[0])
        return total

    def _transformed(self, symbols: Mapping[tuple[int, Index], Expr], coordinates: Sequence[Expr]) -> list[Series]:
        """The series of the outputs as the terms see them, by the network's coordinates."""
        outputs: list[Series] = [{} for _ in self.outputs]
        for (output, index), symbol in symbols.items():
            outputs[output][index] = symbol if self.scales is None else self.scales.outward(output, index, symbol)
        if self.transform is None:
            return outputs
        curves: list[Series] = []
        for axis, coordinate in enumerate(coordinates):
            length = 1.0 if self.scales is None else self.scales.coordinates[axis][1]
            tangent = {(d, 1): as_expr(length * v[axis]) for d, v in enumerate(self.directions) if v[axis]}
            curves.append({ZERO: coordinate, **tangent})
        return replay(self.transform, [*outputs, *curves], self.orders)

    def _piece(self, outputs: list[Series], piece: Piece) -> Expr:
        """An output, or a derivative of it, from its coefficients."""
        output, by = piece
        if not by:
            return outputs[output][ZERO]
        order, total = len(by), as_expr(0.0)
        length = 1.0 if self.scales is None else math.prod(self.scales.coordinates[axis][1] for axis in by)
        for number, direction in enumerate(self.directions):
            factor = math.factorial(order) / length * along_directions(by, len(self.coordinates)).get(direction, 0.0)
            if factor:
                total = total + factor * outputs[output].get((number, order), as_expr(0.0))
        return total

    def __repr__(self) -> str:
        fixed = [*self.coordinates, *self.data]
        texts = [each.formula.text([*map(self._name, each.pieces), *fixed]) for each in self.residuals]
        texts += [] if self.transform is None else [f"transform={self.transform.text()}"]
        texts += [] if self.scales is None else [f"scales={self.scales!r}"]
        return f"ResidualLoss({'; '.join(texts)})"

    def _name(self, piece: Piece) -> str:
        """A piece as users write it: ``u``, or ``u.xx``."""
        output, by = piece
        return ".".join([self.outputs[output], *(["".join(self.coordinates[k] for k in by)] if by else [])])


def along_directions(by: tuple[int, ...], coordinates: int) -> dict[tuple[int, ...], float]:
    """A derivative by these coordinates as a sum of derivatives of its order along directions, each with its factor.

    Mixed derivatives follow by polarisation. For order k, 2^(k-1) k! a b c ... is the sum of +-(a +- b +- c ...)^k over all
    signs, where the first sign is the product of the others. For order 2, 2 a b = (a + b)^2 - a^2 - b^2 shares its directions
    with the derivatives by a and by b. Source: Griewank, Utke and Walther 2000.
    """
    order, axes = len(by), np.eye(coordinates, dtype=int)
    found: dict[tuple[int, ...], float] = {}

    def add(vector: np.ndarray, factor: float) -> None:
        scale = math.gcd(*vector.tolist())
        if scale:
            scale = scale if vector[np.flatnonzero(vector)[0]] > 0 else -scale
            direction = tuple((vector // scale).tolist())
            found[direction] = found.get(direction, 0.0) + factor * scale**order

    if not by:
        return {}
    if len(set(by)) == 1:
        add(axes[by[0]], 1.0)
    elif order == 2:
        for vector, factor in ((axes[by[0]] + axes[by[1]], 0.5), (axes[by[0]], -0.5), (axes[by[1]], -0.5)):
            add(vector, factor)
    else:
        for signs in itertools.product((1, -1), repeat=order - 1):
            vector = axes[by[0]] + np.array(signs) @ axes[list(by[1:])]
            add(vector, math.prod(signs) / (2 ** (order - 1) * math.factorial(order)))
    return {direction: factor for direction, factor in found.items() if factor}
