"""Residuals of differential equations as losses: formulas of a network's outputs and of their derivatives.

>>> burgers = Term(lambda u: u.t + u * u.x - 0.01 / math.pi * u.xx, points)  # points: (n, 2), columns t and x
>>> start = Term(lambda u, x: u + sin(math.pi * x), np.column_stack([np.zeros(100), np.linspace(-1, 1, 100)]))
>>> problem = ResidualProblem(("t", "x"), ("u",), [burgers, start])
>>> train(net, p, problem.x, problem.t, problem.loss, Adam(1e-3), epochs=1000, batch_size=None)

The derivatives are exact: the network is recorded for Taylor series, and the loss pulls back the cotangents of all
coefficients at once (`chains.jets`). Source of the method: Raissi, Perdikaris and Karniadakis, "Physics-informed neural
networks", Journal of Computational Physics 378, 2019.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from chains.checks import check_number
from chains.expr import Expr, Formula, as_expr, trace_nodes
from chains.expr.replay import Replay
from chains.jets.series import ZERO, Index, Orders, Series, replay
from chains.losses import Loss
from chains.messages import counted, listed, shown
from chains.program.recorder import Recorder
from chains.program.view import View

Piece = tuple[int, tuple[int, ...]]  # an output and the coordinates that it is derived by, in ascending order


@dataclass(frozen=True)
class Term:
    """One condition on the outputs: a residual that is to be zero at some points.

    Parameters
    ----------
    residual : callable
        A formula whose arguments are named like outputs, coordinates and `data`; an output ``u`` has derivatives ``u.x``,
        ``u.xx``, ``u.xt``, or ``u.d("x", "x")``. It returns a number, or a tuple of numbers for several equations.
    points : array, shape (n, coordinates)
        Where the condition holds.
    data : mapping of arrays, each of shape (n,), optional
        Numbers that belong to the points: coefficients, forcing, values to be met.
    weight : float
        What the mean of the squared residuals over the points is multiplied by.
    """

    residual: Callable[..., Any]
    points: Any
    data: Mapping[str, Any] | None = None
    weight: float = 1.0


class ResidualProblem:
    """Equations and conditions as a training problem: points `x`, numbers `t` and a `loss`.

    The loss is the sum over the terms of ``weight * mean(residual ** 2)``, with the mean over the term's points. It goes where
    any other goes: ``net.value_and_grad(p, problem.x, problem.t, problem.loss)``, `train`, ``net.objective``.

    Parameters
    ----------
    coordinates : sequence of str
        The names of the network's inputs.
    outputs : sequence of str
        The names of the network's outputs.
    terms : sequence of Term
        The conditions.
    transform : callable, optional
        A formula of outputs and coordinates that gives what the terms see in place of the outputs, for conditions that are to
        hold exactly: ``lambda u, x: x * (1 - x) * u``.

    Raises
    ------
    TypeError, ValueError
        Where a name is unknown or not a word, and where points and data do not fit together.
    """

    def __init__(
        self,
        coordinates: Sequence[str],
        outputs: Sequence[str],
        terms: Sequence[Term],
        *,
        transform: Callable[..., Any] | None = None,
    ) -> None:
        self.coordinates, self.outputs = _names("coordinates", coordinates), _names("outputs", outputs)
        self.terms = tuple(terms)
        if not self.terms or not all(isinstance(term, Term) for term in self.terms):
            raise TypeError(f"`terms` (={shown(terms)}) must be a list of Term(residual, points), at least one")
        twice = {name for name in self.coordinates if name in self.outputs}
        if twice:
            raise ValueError(f"`{min(twice)}` is the name of a coordinate and of an output")
        points = [_points(term, len(self.coordinates), number) for number, term in enumerate(self.terms)]
        data = list(dict.fromkeys(name for term in self.terms for name in term.data or ()))
        total = sum(map(len, points))
        self.x = np.concatenate(points)
        self.t = np.zeros((total, len(self.terms) + len(data)))
        begin = 0
        for number, (term, own) in enumerate(zip(self.terms, points, strict=True)):
            rows = slice(begin, begin + len(own))
            self.t[rows, number] = term.weight * total / len(own)
            for name, values in (term.data or {}).items():
                self.t[rows, len(self.terms) + data.index(name)] = _values(name, values, len(own), number)
            begin = rows.stop
        tracer = _Tracer(self.coordinates, self.outputs, tuple(data))
        shape = None if transform is None else tracer.transform(transform)
        self.loss = ResidualLoss(
            self.coordinates,
            self.outputs,
            len(data),
            tuple(tracer.residual(k, term) for k, term in enumerate(self.terms)),
            shape,
        )

    def evaluate(self, net: Any, p: np.ndarray, points: Any) -> dict[str, np.ndarray]:
        """The outputs at `points`, shape (n, coordinates), by name, each of shape (n,), with the transform."""
        x = np.asarray(points)
        values = [*np.moveaxis(net(x, p), -1, 0)]
        if self.loss.transform is not None:
            found = Replay(self.loss.transform)(*values, *np.moveaxis(x, -1, 0))
            values = list(found) if isinstance(found, tuple) else [found]
        return dict(zip(self.outputs, values, strict=True))

    def __repr__(self) -> str:
        names = f"{', '.join(self.outputs)} in {', '.join(self.coordinates)}"
        return f"<residual problem of {names}: {counted(len(self.terms), 'term')}, {counted(len(self.x), 'point')}>"


@dataclass(frozen=True)
class Residual:
    """A traced residual: its formula's inputs are `pieces` of the outputs, then all coordinates, then all data."""

    formula: Formula
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class ResidualLoss(Loss):
    """The weighted sum of squared residuals; made by `ResidualProblem`."""

    coordinates: tuple[str, ...]
    outputs: tuple[str, ...]
    n_data: int
    residuals: tuple[Residual, ...]
    transform: Formula | None = None

    def check_target(self, output: tuple[int, ...], target: tuple[int, ...]) -> None:
        if output != (len(self.outputs),):
            raise ValueError(
                f"outputs of sample shape {output} do not go with the outputs {', '.join(self.outputs)} of the residuals: "
                f"wanted ({len(self.outputs)},)"
            )
        if target != (len(self.residuals) + self.n_data,):
            raise ValueError(f"`t` of sample shape {target} is not that of the problem: pass `problem.t`, with `problem.x`")

    # The curves along which outputs are derived

    @cached_property
    def directions(self) -> dict[tuple[int, ...], int]:
        """The order of derivative wanted along sums of coordinate axes: (0,) is the first axis, (0, 1) a diagonal."""
        found: dict[tuple[int, ...], int] = {}
        for residual in self.residuals:
            for _, by in residual.pieces:
                axes = tuple(dict.fromkeys(by))
                for direction in [axes] * (len(axes) > 1) + [(axis,) for axis in axes]:
                    found[direction] = max(found.get(direction, 1), len(by))
        return dict(sorted(found.items()))

    @property
    def orders(self) -> Orders:
        return tuple(self.directions.values())

    @property
    def tangents(self) -> np.ndarray:
        """The directions as vectors, shape (directions, coordinates)."""
        rows = [[float(axis in axes) for axis in range(len(self.coordinates))] for axes in self.directions]
        return np.array(rows).reshape(len(rows), len(self.coordinates))

    def record(self, ops: Recorder, y: View, t: View, w: View | None, value: View, dy: View) -> None:
        raise TypeError("residuals are made of derivatives: `record_series` has them")

    def record_series(
        self,
        ops: Recorder,
        x: View,
        rows: Mapping[tuple[int, Index], View],
        t: View,
        w: View | None,
        value: View,
        adjoints: Mapping[tuple[int, Index], View],
    ) -> None:
        """Record how `value` and the `adjoints` are filled from the coefficients of the outputs, `rows`.

        Both are arrays (batch,) by the same outputs and indices; coefficients without a row are zero.
        """
        keys, width = list(rows), len(self.coordinates)
        columns = [x.index(-1, k) for k in range(width)] + [t.index(-1, k) for k in range(len(self.residuals) + self.n_data)]
        symbols = {key: Expr("input", value=k) for k, key in enumerate(keys)}
        others = [Expr("input", value=len(keys) + k) for k in range(len(columns))]
        weights, data = others[width : width + len(self.residuals)], others[width + len(self.residuals) :]
        total, slopes = self._sum_of_squares(symbols, others[:width], data, weights)
        terms = ops.scratch("terms", ())
        names = tuple(f"x{k}" for k in range(len(keys) + len(columns)))
        function = Replay(trace_nodes((total, *slopes), names))

        def weighted(inverse: Any, *values: Any) -> tuple[Any, ...]:
            first, *rest = function(*values[: len(names)])
            for weight in values[len(names) :]:
                first, inverse = first * weight, inverse * weight
            return first, *(slope * inverse for slope in rest)

        ins = [rows[key] for key in keys] + columns + ([] if w is None else [w])
        ops.map((terms, *(adjoints[key] for key in keys)), weighted, ops.inverse_batch, *ins)
        ops.sum(value, terms)
        ops.map(value, lambda total, inverse: total * inverse, value, ops.inverse_batch)

    def _sum_of_squares(
        self, symbols: Mapping[tuple[int, Index], Expr], coordinates: list[Expr], data: list[Expr], weights: list[Expr]
    ) -> tuple[Expr, list[Expr]]:
        """A sample's loss as a formula of the coefficients, and its derivatives with respect to them."""
        outputs = self._transformed(symbols, coordinates)
        total: Any = 0.0
        for weight, residual in zip(weights, self.residuals, strict=True):
            values = Replay(residual.formula)(*(self._piece(outputs, piece) for piece in residual.pieces), *coordinates, *data)
            squares = [each * each for each in (values if isinstance(values, tuple) else (values,))]
            total = total + weight * sum(squares[1:], squares[0])
        # Each coefficient is a direction of its own, along which the first derivative is the slope.
        inputs = len(symbols) + len(coordinates) + len(weights) + len(data)
        formula = trace_nodes((as_expr(total),), tuple(f"x{k}" for k in range(inputs)))
        operands: list[Series] = [{ZERO: Expr("input", value=k)} for k in range(inputs)]
        for k in range(len(symbols)):
            operands[k] = {**operands[k], (k, 1): as_expr(1.0)}
        (series,) = replay(formula, operands, (1,) * len(symbols))
        return series[ZERO], [series.get((k, 1), as_expr(0.0)) for k in range(len(symbols))]

    def _transformed(self, symbols: Mapping[tuple[int, Index], Expr], coordinates: list[Expr]) -> list[Series]:
        """The series of what the terms see as outputs."""
        outputs: list[Series] = [
            {index: symbol for (which, index), symbol in symbols.items() if which == output}
            for output in range(len(self.outputs))
        ]
        if self.transform is None:
            return outputs
        curves: list[Series] = []
        for axis, coordinate in enumerate(coordinates):
            tangent = {(d, 1): as_expr(1.0) for d, axes in enumerate(self.directions) if axis in axes}
            curves.append({ZERO: coordinate, **tangent})
        return replay(self.transform, [*outputs, *curves], self.orders)

    def _piece(self, outputs: list[Series], piece: Piece) -> Expr:
        """An output, or a derivative of it, from its coefficients."""
        output, by = piece
        if not by:
            return outputs[output][ZERO]
        place = {axes: number for number, axes in enumerate(self.directions)}

        def derivative(*axes: int) -> Any:
            return math.factorial(len(by)) * outputs[output].get((place[axes], len(by)), as_expr(0.0))

        axes = tuple(dict.fromkeys(by))
        if len(axes) == 1:
            return as_expr(derivative(*axes))
        a, b = axes  # (a + b)^2 = a^2 + 2 a b + b^2
        return as_expr(0.5 * (derivative(a, b) - derivative(a) - derivative(b)))

    def __repr__(self) -> str:
        return f"ResidualLoss({', '.join(f'{each.formula}' for each in self.residuals)})"


# Tracing


class Field(Expr):
    """An output in a residual being traced; its attributes are its derivatives."""

    __slots__ = ("_derive",)
    __hash__ = object.__hash__

    def __init__(self, position: int, derive: Callable[[tuple[str, ...]], Expr]) -> None:
        super().__init__("input", value=position)
        self._derive = derive

    def d(self, *coordinates: str) -> Expr:
        """The derivative by these coordinates, one after another."""
        return self._derive(coordinates)

    def __getattr__(self, name: str) -> Expr:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._derive((name,))


@dataclass(frozen=True)
class _Tracer:
    coordinates: tuple[str, ...]
    outputs: tuple[str, ...]
    data: tuple[str, ...]

    def residual(self, number: int, term: Term) -> Residual:
        what = f"the residual of term {number}"
        pieces: dict[Piece, int] = {}
        arguments = self._arguments(what, term.residual, [*self.outputs, *self.coordinates, *(term.data or ())])
        fixed = [*self.coordinates, *self.data]
        first = 10**6  # coordinates and data stand behind the pieces, whose number is known last

        def symbol(name: str) -> Expr:
            if name in self.outputs:
                output = self.outputs.index(name)
                return Field(pieces.setdefault((output, ()), len(pieces)), lambda names: derive(output, names))
            return Expr("input", value=first + fixed.index(name))

        def derive(output: int, names: tuple[str, ...]) -> Expr:
            by = tuple(sorted(axis for name in names for axis in self._axes(what, name)))
            if len(by) > 4 or (len(set(by)) > 1 and len(by) > 2):
                name = f"`{self.outputs[output]}` by {', '.join(self.coordinates[k] for k in by)}"
                raise ValueError(
                    f"{what}: the derivative of {name} is not available: those by one coordinate are, up to order 4, and mixed "
                    "ones of order 2"
                )
            return Expr("input", value=pieces.setdefault((output, by), len(pieces)))

        try:
            results = term.residual(*map(symbol, arguments))
            results = tuple(map(as_expr, results if isinstance(results, tuple) else (results,)))
        except TypeError as error:
            raise TypeError(f"{what}: {error}") from error
        return Residual(_numbered(results, len(pieces), len(fixed), first), tuple(pieces))

    def transform(self, function: Callable[..., Any]) -> Formula:
        names = [*self.outputs, *self.coordinates]
        arguments = self._arguments("`transform`", function, names)
        results = function(*(Expr("input", value=names.index(name)) for name in arguments))
        results = tuple(map(as_expr, results if isinstance(results, tuple) else (results,)))
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


def _names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) and name.isidentifier() for name in names) or not names:
        raise TypeError(f'`{what}` (={shown(names)}) must be names such as ("t", "x")')
    if len(set(names)) < len(names):
        raise ValueError(f"`{what}` (={shown(names)}) names one twice")
    return tuple(names)


def _points(term: Term, coordinates: int, number: int) -> np.ndarray:
    points = np.asarray(term.points)
    if points.ndim != 2 or points.shape[1] != coordinates or not len(points):
        raise ValueError(
            f"the `points` of term {number} have shape {points.shape}: wanted (n, {coordinates}), at least one point"
        )
    check_number("weight", term.weight, "in (0, inf)")
    return points.astype(np.float64)


def _values(name: str, values: Any, count: int, number: int) -> np.ndarray:
    array = np.asarray(values, np.float64)
    if array.shape not in ((), (count,)):
        raise ValueError(f"`{name}` of term {number} has shape {array.shape}, but there are {count} points")
    return array
