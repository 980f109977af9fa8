"""Adjoints: the cotangents of the coefficients of a series, and the rules by which linear operations act on them.

A cotangent c_k belongs to each coefficient y_k. Where y = h x for a series h, y_k is the sum of h_(k-j) x_j, and so the
cotangent of x_j is the sum of h_(k-j) c_k over k: the product read backwards. With this rule, the operations that pull back
one cotangent pull back the cotangents of all coefficients. One pass gives the gradient of any function of u, u', u'', ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chains.expr import Formula, as_expr
from chains.jets.series import ZERO, Index, Orders, Series, apply, next_result


@dataclass(frozen=True)
class Linear:
    """A sum of products, cotangent times series. `factors` are the series by the cotangent's position among the inputs."""

    factors: dict[int, Series]

    def transposed(self, inputs: Sequence[Series]) -> Series:
        """The rows of the sum, for these rows of the inputs."""
        rows: Series = {}
        for position, factor in self.factors.items():
            for k, i, j in adjoint_products(list(inputs[position]), list(factor)):
                term = inputs[position][i] * factor[j]
                rows[k] = as_expr(rows[k] + term if k in rows else term)
        return rows

    def times(self, operation: str, series: Series, orders: Orders) -> Linear:
        """The sum multiplied or divided by a series."""
        return Linear({position: apply(operation, [factor, series], orders) for position, factor in self.factors.items()})

    def negative(self, orders: Orders) -> Linear:
        return Linear({position: apply("neg", [factor], orders) for position, factor in self.factors.items()})


def adjoint_products(adjoint: Sequence[Index], series: Sequence[Index]) -> Iterator[tuple[Index, Index, Index]]:
    """The indices (result, of the adjoint, of the series) of the terms of a product of these rows and coefficients."""
    for i in adjoint:
        for j in series:
            if j == ZERO:
                yield i, i, j
            elif i[0] == j[0] and i[1] >= j[1]:
                yield ((i[0], i[1] - j[1]) if i[1] > j[1] else ZERO), i, j


def linear_parts(
    formula: Formula, inputs: Sequence[Series], is_adjoint: Sequence[bool], orders: Orders
) -> list[Series | Linear]:
    """Each output of a formula: a series if it contains no cotangent, else a sum of products of cotangents and series.

    Raises ValueError where an output is not linear in the cotangents.
    """
    one: Series = {ZERO: as_expr(1.0)}
    known: list[Series] = [{} if adjoint else each for adjoint, each in zip(is_adjoint, inputs, strict=True)]
    linear: dict[int, Linear] = {k: Linear({k: one}) for k, adjoint in enumerate(is_adjoint) if adjoint}
    for instruction in formula.instructions:
        number = len(known)
        if any(k in linear for k in instruction.operands):
            operands = [linear.get(k, known[k]) for k in instruction.operands]
            linear[number] = _linear(instruction.operation, operands, orders)
            known.append({})
        else:
            known.append(next_result(formula, known, orders))
    return [linear.get(output, known[output]) for output in formula.outputs]


def _linear(operation: str, operands: Sequence[Series | Linear], orders: Orders) -> Linear:
    """The result of an operation; at least one of the operands is linear in cotangents."""
    first, last = operands[0], operands[-1]
    if operation == "neg" and isinstance(first, Linear):
        return first.negative(orders)
    if operation in ("add", "sub"):
        return _sum(first, last.negative(orders) if operation == "sub" and isinstance(last, Linear) else last, orders)
    if operation == "mul":
        if isinstance(first, Linear) and not isinstance(last, Linear):
            return first.times("mul", last, orders)
        if isinstance(last, Linear) and not isinstance(first, Linear):
            return last.times("mul", first, orders)
    if operation == "div" and isinstance(first, Linear) and not isinstance(last, Linear):
        return first.times("div", last, orders)
    if operation == "where" and not isinstance(first, Linear):
        sides = [_as_linear(each) for each in operands[1:]]
        if sides[0] is not None and sides[1] is not None:
            zero: Series = {ZERO: as_expr(0.0)}
            a, b = sides[0].factors, sides[1].factors
            keys = dict.fromkeys([*a, *b])
            return Linear({k: apply("where", [first, a.get(k, zero), b.get(k, zero)], orders) for k in keys})
    raise ValueError(f"`{operation}` of a cotangent is not linear, as a pullback must be")


def _sum(a: Series | Linear, b: Series | Linear, orders: Orders) -> Linear:
    factors: dict[int, Series] = {}
    for each in map(_as_linear, (a, b)):
        if each is None:
            raise ValueError("a cotangent plus another number is not linear, as a pullback must be")
        for position, factor in each.factors.items():
            factors[position] = apply("add", [factors[position], factor], orders) if position in factors else factor
    return Linear(factors)


def _as_linear(part: Series | Linear) -> Linear | None:
    """A term as a sum of cotangents: zero is the empty sum, None stands for any other series."""
    if isinstance(part, Linear):
        return part
    is_zero = list(part) == [ZERO] and part[ZERO].operation == "const" and part[ZERO].value == 0.0
    return Linear({}) if is_zero else None
