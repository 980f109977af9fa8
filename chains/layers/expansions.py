"""Expansions in known functions, with trained coefficients: Chebyshev polynomials and Fourier series."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np

from chains.expr import cos, sin
from chains.initializers import Initializer, InitializerLike, initializer
from chains.layers.base import Declaration, Layer, SampleShape, check_last_axis
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_number
from chains.support.messages import shown

MOST_TERMS = 2**16


class _Expansion(Layer):
    """``y = basis(x) @ weight``, over the last axis, where the first function of the basis is 1.

    `functions` is the number of the others. It is found without making them, since they may be too many.
    """

    inputs: int
    outputs: int
    terms: int
    weight_init: Initializer

    def _build(self, outputs: int, size: str, functions: int, weight_init: InitializerLike) -> None:
        """Check the settings that both share; `size` names the one that the number of `functions` depends on."""
        self.outputs = check_count("outputs", outputs)
        if functions >= MOST_TERMS:
            raise ValueError(
                f"`{size}` (={getattr(self, size)}) of {self.inputs} inputs makes {functions + 1} terms: at most {MOST_TERMS}"
            )
        self.terms = functions + 1
        self.weight_init = initializer(weight_init, "weight_init", shape=(self.terms, self.outputs))

    def fixed_input(self) -> SampleShape:
        return (self.inputs,)

    def declare(self, d: Declaration) -> None:
        check_last_axis(d.input, "inputs", self.inputs)
        d.param("weight", (self.terms, self.outputs), self.weight_init)
        d.output((*d.input[:-1], self.outputs))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(y.rows, self._basis(ops, x, s).rows, p.weight)

    @abstractmethod
    def _basis(self, ops: Recorder, x: View, s: Any) -> View:
        """Record the functions of `x` and return their values, (..., terms)."""


class Chebyshev(_Expansion):
    """A polynomial: all products of Chebyshev polynomials up to a total degree, times trained coefficients.

    Along the last axis, (..., inputs) to (..., outputs). An `interval` is mapped to [-1, 1]; there each product is between -1
    and 1. Outside the interval the polynomial continues, and a term of degree n grows like the n-th power of the distance: keep
    inputs inside, or clip them before. The outputs are linear in the parameters, so that "LM" ends after a
    step or two. There are (inputs + degree)! / (inputs! degree!) terms; `degrees` lists them.

    Parameters
    ----------
    inputs, outputs : int
        The length of the last axis, before and after.
    degree : int
        The largest sum of the degrees in a product, at least 1.
    interval : pair of float, or sequence of pairs
        The ends, for all inputs or for each input: ``((0.0, 1.0), (300.0, 700.0))``.
    weight_init : initializer
        Of the coefficients, (terms, outputs).

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name; for more than 65,536 terms.
    """

    def __init__(
        self, inputs: int, outputs: int, degree: int, interval: Sequence[Any] = (-1, 1), *,
        weight_init: InitializerLike = "glorot_normal",
    ) -> None:  # fmt: skip
        self.inputs, self.degree = check_count("inputs", inputs), check_count("degree", degree)
        self._build(outputs, "degree", math.comb(self.inputs + self.degree, self.inputs) - 1, weight_init)
        self.interval = _interval(interval, self.inputs)

    @property
    def degrees(self) -> np.ndarray:
        """The degree of each input in each term, (terms, inputs): 1, x, y, xx, xy, yy, xxx ... of inputs x and y."""
        return _degrees(self.inputs, self.degree)

    def declare(self, d: Declaration) -> None:
        super().declare(d)
        for k in range(self.inputs):
            d.saved(f"table{k}", (*d.input[:-1], self.degree + 1))
            if self.inputs > 1:
                d.saved(f"factors{k}", (*d.input[:-1], self.terms))
            if k:
                d.saved(f"product{k}", (*d.input[:-1], self.terms))

    def affine(self) -> tuple[np.ndarray, np.ndarray]:
        """The centre of each input's interval, and what a distance from it is multiplied by: ``u = (x - centre) * factor``."""
        low, high = np.broadcast_to(np.array(self.interval, float), (self.inputs, 2)).T
        return 0.5 * (low + high), 2.0 / (high - low)

    def choices(self) -> np.ndarray:
        """For each input a matrix of zeros and ones, (degree + 1, terms), that gives each term the polynomial of its degree."""
        return np.stack([np.equal.outer(np.arange(self.degree + 1), column).astype(float) for column in self.degrees.T])

    def _basis(self, ops: Recorder, x: View, s: Any) -> View:
        tables = [self._table(ops, x, getattr(s, f"table{k}"), k) for k in range(self.inputs)]
        if self.inputs == 1:
            return tables[0]
        factors = [getattr(s, f"factors{k}") for k in range(self.inputs)]
        for k, choice in enumerate(self.choices()):
            ops.matmul(factors[k].rows, tables[k].rows, ops.constant(f"choice {k}", choice))
        basis = factors[0]
        for k in range(1, self.inputs):
            basis, before = getattr(s, f"product{k}"), basis
            ops.map(basis, lambda a, b: a * b, before, factors[k])
        return basis

    def _table(self, ops: Recorder, x: View, table: View, k: int) -> View:
        """Fill the polynomials of input k, (..., degree + 1)."""
        at = [table.slice(-1, n, n + 1) for n in range(self.degree + 1)]
        centre, factor = (float(each[k]) for each in self.affine())
        ops.fill(at[0], 1.0)
        ops.map(at[1], lambda x: (x - centre) * factor, x.slice(-1, k, k + 1))
        for n in range(2, self.degree + 1):
            ops.map(at[n], lambda u, last, older: 2.0 * u * last - older, at[1], at[n - 1], at[n - 2])
        return table


class FourierSeries(_Expansion):
    """A periodic function: a constant, cosines and sines of whole waves in a period, times trained coefficients.

    Along the last axis, (..., inputs) to (..., outputs). A wave has a whole number of periods in each input, and the sum of
    their absolute values is at most `order`. For one input these are ``cos(2 pi j x / period)`` and the sines, for j = 1, ...,
    order. `waves` lists them. The outputs are linear in the parameters, so that "LM" ends after a step or two.

    Parameters
    ----------
    inputs, outputs : int
        The length of the last axis, before and after.
    order : int
        The largest number of waves in a period, at least 1.
    period : float or sequence of float
        The period of all inputs, or of each input.
    weight_init : initializer
        Of the coefficients, (terms, outputs): of the constant, of the cosines, then of the sines.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name; for more than 65,536 terms.
    """

    def __init__(
        self, inputs: int, outputs: int, order: int, period: float | Sequence[float], *,
        weight_init: InitializerLike = "glorot_normal",
    ) -> None:  # fmt: skip
        self.inputs, self.order = n, largest = check_count("inputs", inputs), check_count("order", order)
        points = sum(math.comb(n, k) * math.comb(largest, k) * 2**k for k in range(1, min(n, largest) + 1))
        self._build(outputs, "order", points, weight_init)
        self.period = _period(period, self.inputs)

    @property
    def waves(self) -> np.ndarray:
        """How many periods of each input each wave has, (waves, inputs): [1], [2], ... of one input."""
        return np.array(list(_waves(self.inputs, self.order)), float)

    def angular_frequencies(self) -> np.ndarray:
        """Those of each wave for each input, (inputs, waves)."""
        return 2.0 * math.pi * self.waves.T / np.broadcast_to(np.array(self.period, float), (self.inputs,))[:, None]

    def declare(self, d: Declaration) -> None:
        super().declare(d)
        d.saved("angles", (*d.input[:-1], self.terms // 2))
        d.saved("basis", (*d.input[:-1], self.terms))

    def _basis(self, ops: Recorder, x: View, s: Any) -> View:
        ops.matmul(s.angles.rows, x.rows, ops.constant("frequencies", self.angular_frequencies()))
        middle = 1 + self.terms // 2
        ops.fill(s.basis.slice(-1, 0, 1), 1.0)
        halves = s.basis.slice(-1, 1, middle), s.basis.slice(-1, middle, self.terms)
        ops.map(halves, lambda a: (cos(a), sin(a)), s.angles)
        return s.basis


def _degrees(inputs: int, largest: int) -> np.ndarray:
    """The degree of each input in each product, from the lowest sum to the largest."""
    factors = [each for total in range(largest + 1) for each in combinations_with_replacement(range(inputs), total)]
    return np.array([np.bincount(np.array(each, int), minlength=inputs) for each in factors])


def _waves(inputs: int, order: int) -> Iterator[tuple[int, ...]]:
    """The wave vectors up to this order: of two opposite ones, that whose first number is positive."""
    for degrees in _degrees(inputs, order)[1:].tolist():
        first = next(k for k, count in enumerate(degrees) if count)
        signs = [(1, -1) if count and k != first else (1,) for k, count in enumerate(degrees)]
        yield from (tuple(s * count for s, count in zip(each, degrees, strict=True)) for each in product(*signs))


def _interval(given: Any, inputs: int) -> tuple[Any, ...]:
    """A checked pair of ends, or a tuple of a pair for each input."""
    values = given.tolist() if isinstance(given, np.ndarray) else given
    many = isinstance(values, (list, tuple)) and any(isinstance(each, (list, tuple)) for each in values)
    pairs = tuple(_pair(given, each) for each in (values if many else (values,)))
    if many and len(pairs) != inputs:
        raise ValueError(f"`interval` (={shown(given)}) must have a pair for each of the {inputs} inputs")
    return pairs if many else pairs[0]


def _pair(given: Any, pair: Any) -> tuple[float, float]:
    """A checked pair of ends."""
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise TypeError(f"`interval` (={shown(given)}) must be a pair of numbers, or a pair for each input, such as (0.0, 1.0)")
    for end in pair:
        check_number("interval", end, "finite")
    low, high = (end if isinstance(end, int) else float(end) for end in pair)
    if not low < high:
        raise ValueError(f"`interval` (={shown(given)}) must begin below its end")
    return low, high


def _period(given: Any, inputs: int) -> float | tuple[float, ...]:
    """A checked period, or one for each input."""
    if not np.ndim(given):
        check_number("period", given, "in (0, inf)")
        return float(given)
    for period in given:
        check_number("period", period, "in (0, inf)")
    if len(given) != inputs:
        raise ValueError(f"`period` (={shown(given)}) must be a number, or one for each of the {inputs} inputs")
    return tuple(each if isinstance(each, int) else float(each) for each in given)
