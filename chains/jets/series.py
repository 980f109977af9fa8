"""Taylor series of formulas: the coefficients of f(x0 + e x1 + e^2 x2 + ...).

A series has one coefficient of order zero. Along each of several directions it has coefficients of orders 1, 2, ..., those of
a curve that starts at the common point. Coefficients that are zero for all inputs are left out. Each scalar operation has a
rule for the coefficients along one direction. Most rules are recurrences, from a differential equation that the operation
satisfies. Source: Griewank and Walther, "Evaluating Derivatives", 2nd edition, 2008, table 13.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from chains.expr import Expr, Formula, as_expr, cos, exp, sin, where
from chains.expr.formulas import FUNCTIONS

Index = tuple[int, int]  # a direction and a power of e
ZERO: Index = (0, 0)  # order zero, which all directions share
Series = dict[Index, Expr]
Orders = tuple[int, ...]  # the highest power along each direction
Coefficients = list[Expr | None]  # along one direction; None for zero


def indices(orders: Orders) -> Iterator[Index]:
    """All indices of series of these orders, `ZERO` first."""
    yield ZERO
    for direction, order in enumerate(orders):
        for power in range(1, order + 1):
            yield direction, power


def products(orders: Orders, a: Sequence[Index], b: Sequence[Index]) -> Iterator[tuple[Index, Index, Index]]:
    """The indices (result, of a, of b) of the terms of a product of two series with these coefficients."""
    for i in a:
        for j in b:
            if i == ZERO or j == ZERO or i[0] == j[0]:
                direction, power = (j if i == ZERO else i)[0], i[1] + j[1]
                if power == 0 or power <= orders[direction]:
                    yield ((direction, power) if power else ZERO), i, j


def replay(formula: Formula, operands: Sequence[Series], orders: Orders) -> list[Series]:
    """The series of the formula's outputs, for these series of its inputs."""
    results = list(operands)
    for _ in formula.instructions:
        results.append(next_result(formula, results, orders))
    return [results[output] for output in formula.outputs]


def next_result(formula: Formula, results: Sequence[Series], orders: Orders) -> Series:
    """The series of the instruction that follows these results of inputs and instructions."""
    instruction = formula.instructions[len(results) - len(formula.inputs)]
    if instruction.operation == "const":
        return {ZERO: as_expr(instruction.value)}
    operands = [results[k] for k in instruction.operands]
    exponent = exponent_of_logistic(formula, len(results))
    if exponent is None:
        return apply(instruction.operation, operands, orders)
    return _along_all(orders, as_expr(operands[0][ZERO] / operands[1][ZERO]), _logistic, [results[exponent]])


def apply(operation: str, operands: Sequence[Series], orders: Orders) -> Series:
    """The series of a scalar operation on series."""
    zero = as_expr(FUNCTIONS[operation](*(a[ZERO] for a in operands)))
    return _along_all(orders, zero, _RULES.get(operation, _constant), operands)


def _along_all(orders: Orders, zero: Expr, rule: Callable[..., Coefficients], operands: Sequence[Series]) -> Series:
    """A scalar operation on series, direction by direction; `zero` is the coefficient of order zero of the result."""
    result = {ZERO: zero}
    for direction, order in enumerate(orders):
        lists = [[a.get((direction, k) if k else ZERO) for k in range(order + 1)] for a in operands]
        if any(coefficient is not None for each in lists for coefficient in each[1:]):
            found = rule(zero, *lists)
            result |= {(direction, k): found[k] for k in range(1, order + 1) if _is_there(found[k])}  # type: ignore[misc]
    return result


def _is_there(coefficient: Expr | None) -> bool:
    return coefficient is not None and not (coefficient.operation == "const" and coefficient.value == 0.0)


# Sums and products in which None is zero


def _plus(a: Expr | None, b: Expr | None) -> Expr | None:
    return b if a is None else a if b is None else a + b


def _minus(a: Expr | None, b: Expr | None) -> Expr | None:
    return a if b is None else -b if a is None else a - b


def _times(a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None or b is None:
        return None
    (first, a), (second, b) = _factored(a), _factored(b)
    return _scaled(first * second, a * b)


def _scaled(factor: float, a: Expr | None) -> Expr | None:
    if a is None:
        return None
    own, a = _factored(a)
    return a if factor * own == 1.0 else -a if factor * own == -1.0 else factor * own * a


def _factored(a: Expr) -> tuple[float, Expr]:
    """A number and the node that it multiplies, so that the numbers of nested products are merged."""
    if a.operation == "mul" and a.operands[0].operation == "const":
        return float(a.operands[0].value), a.operands[1]
    return (-1.0, a.operands[0]) if a.operation == "neg" else (1.0, a)


def _convolved(u: Coefficients, v: Coefficients, k: int, first: int = 0, left_out: int = 0) -> Expr | None:
    """The sum of ``u[j] * v[k - j]`` for j from `first` to ``k - left_out``."""
    total: Expr | None = None
    for j in range(first, k - left_out + 1):
        total = _plus(total, _times(u[j], v[k - j]))
    return total


def _squared(u: Coefficients, k: int, first: int = 0) -> Expr | None:
    """The sum of ``u[j] * u[k - j]`` for j from `first` to ``k - first``; equal terms are computed once."""
    total: Expr | None = None
    for j in range(first, (k + 1) // 2):
        total = _plus(total, _times(u[j], u[k - j]))
    total = _scaled(2.0, total)
    return total if k % 2 else _plus(total, _times(u[k // 2], u[k // 2]))


def _integrated(u: Coefficients, v: Coefficients, k: int, left_out: int = 0) -> Expr | None:
    """Coefficient k of the y with y' = v u': the sum of ``j / k * u[j] * v[k - j]`` for j from 1 to ``k - left_out``."""
    total: Expr | None = None
    for j in range(1, k - left_out + 1):
        total = _plus(total, _scaled(j / k, _times(u[j], v[k - j])))
    return total


# Rules: the coefficients of a result along one direction, from its coefficient of order zero and those of the operands


def _constant(y: Expr, *operands: Coefficients) -> Coefficients:
    """The rule of operations whose derivative is zero wherever it exists."""
    return [y] + [None] * (len(operands[0]) - 1)


def _solved(y: Expr, order: int, step: Callable[[Coefficients, int], Expr | None]) -> Coefficients:
    """The coefficients that `step` computes one after another, each from the ones before."""
    found: Coefficients = [y]
    for k in range(1, order + 1):
        found.append(step(found, k))
    return found


def _neg(y: Expr, u: Coefficients) -> Coefficients:
    return [None if c is None else -c for c in u]


def _add(y: Expr, u: Coefficients, v: Coefficients) -> Coefficients:
    return [_plus(a, b) for a, b in zip(u, v, strict=True)]


def _sub(y: Expr, u: Coefficients, v: Coefficients) -> Coefficients:
    return [_minus(a, b) for a, b in zip(u, v, strict=True)]


def _mul(y: Expr, u: Coefficients, v: Coefficients) -> Coefficients:
    if all(a is b for a, b in zip(u, v, strict=True)):
        return [y] + [_squared(u, k) for k in range(1, len(u))]
    return [y] + [_convolved(u, v, k) for k in range(1, len(u))]


def _div(y: Expr, u: Coefficients, v: Coefficients) -> Coefficients:
    divisor = _known(v[0])
    if not any(c is not None for c in v[1:]):
        return [None if c is None else c / divisor for c in u]
    inverse = 1.0 / divisor
    return _solved(y, len(u) - 1, lambda q, k: _times(_minus(u[k], _convolved(v, q, k, first=1)), inverse))


def _exp(y: Expr, u: Coefficients) -> Coefficients:
    return _solved(y, len(u) - 1, lambda e, k: _integrated(u, e, k))


def _expm1(y: Expr, u: Coefficients) -> Coefficients:
    return [y, *_exp(y + 1.0, u)[1:]]


def _log(y: Expr, u: Coefficients) -> Coefficients:
    inverse = 1.0 / _known(u[0])
    return _solved(y, len(u) - 1, lambda log, k: _times(_minus(u[k], _integrated(log, u, k, left_out=1)), inverse))


def _log1p(y: Expr, u: Coefficients) -> Coefficients:
    return _log(y, [_known(u[0]) + 1.0, *u[1:]])


def _sqrt(y: Expr, u: Coefficients) -> Coefficients:
    half = 0.5 / y
    return _solved(y, len(u) - 1, lambda s, k: _times(_minus(u[k], _squared([*s, None], k, first=1)), half))


def _tanh(y: Expr, u: Coefficients) -> Coefficients:
    return _with_slope(y, u, 1.0 - y * y, lambda square, _: _scaled(-1.0, square))


def _logistic(y: Expr, u: Coefficients) -> Coefficients:
    """1 / (1 + exp(u)), in which exp may overflow."""
    return _with_slope(y, u, y * (y - 1.0), _minus)


def _with_slope(
    y: Expr, u: Coefficients, first: Expr, slope_of: Callable[[Expr | None, Expr | None], Expr | None]
) -> Coefficients:
    """The y with y' = slope u', where a coefficient of the slope follows from those of y * y and y: `slope_of(square, y)`."""
    slope: Coefficients = [first]

    def step(found: Coefficients, k: int) -> Expr | None:
        y_k = _integrated(u, slope, k)
        slope.append(slope_of(_squared([*found, y_k], k), y_k))
        return y_k

    return _solved(y, len(u) - 1, step)


def _sin_and_cos(u: Coefficients, s: Expr, c: Expr) -> tuple[Coefficients, Coefficients]:
    sines: Coefficients = [s]
    cosines: Coefficients = [c]
    for k in range(1, len(u)):
        s_k, c_k = _integrated(u, cosines, k), _scaled(-1.0, _integrated(u, sines, k))
        sines.append(s_k)
        cosines.append(c_k)
    return sines, cosines


def _sin(y: Expr, u: Coefficients) -> Coefficients:
    return _sin_and_cos(u, y, cos(u[0]))[0]


def _cos(y: Expr, u: Coefficients) -> Coefficients:
    return _sin_and_cos(u, sin(u[0]), y)[1]


def _erf(y: Expr, u: Coefficients) -> Coefficients:
    square = _mul(_known(u[0]) * _known(u[0]), u, u)
    bell = _exp(exp(-_known(square[0])), [_scaled(-1.0, c) for c in square])
    factor = 2.0 / math.sqrt(math.pi)
    return [y] + [_scaled(factor, _integrated(u, bell, k)) for k in range(1, len(u))]


# At kinks, derivatives are those from the left, as in `chains.expr.scalar`: so smooth formulas with kinks in their parts, such
# as max(x, 0) + log1p(exp(-abs(x))), have the right derivatives there.


def _abs(y: Expr, u: Coefficients) -> Coefficients:
    return [y] + [_chosen(_known(u[0]) > 0.0, c, None if c is None else -c) for c in u[1:]]


def _min(y: Expr, u: Coefficients, v: Coefficients) -> Coefficients:
    u, v = _constant_last(u, v)
    return [y] + [_chosen(_known(u[0]) <= _known(v[0]), a, b) for a, b in zip(u[1:], v[1:], strict=True)]


def _max(y: Expr, u: Coefficients, v: Coefficients) -> Coefficients:
    u, v = _constant_last(u, v)
    return [y] + [_chosen(_known(u[0]) > _known(v[0]), a, b) for a, b in zip(u[1:], v[1:], strict=True)]


def _constant_last(u: Coefficients, v: Coefficients) -> tuple[Coefficients, Coefficients]:
    """The operands of min or max, a constant last: of equal operands, the first counts as the smaller."""
    return (v, u) if _known(u[0]).operation == "const" else (u, v)


def _where(y: Expr, condition: Coefficients, u: Coefficients, v: Coefficients) -> Coefficients:
    return [y] + [_chosen(_known(condition[0]), a, b) for a, b in zip(u[1:], v[1:], strict=True)]


def _chosen(condition: Expr, a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None and b is None:
        return None
    return as_expr(where(condition, 0.0 if a is None else a, 0.0 if b is None else b))


def _pow(y: Expr, u: Coefficients, v: Coefficients) -> Coefficients:
    order, base, exponent = len(u) - 1, _known(u[0]), _known(v[0])
    if any(c is not None for c in v[1:]):  # y' = y (v log u)'
        logarithm = FUNCTIONS["log"](base)
        product = _mul(exponent * logarithm, v, _log(logarithm, u))
        return _solved(y, order, lambda p, k: _integrated(product, p, k))
    # The derivatives of u ** r are r u ** (r - 1), r (r - 1) u ** (r - 2), ..., with no division by u, which may be zero.
    derivatives: Coefficients = []
    factor: Any = 1.0
    for m in range(1, order + 1):
        factor = factor * (exponent - (m - 1.0)) / m
        node = as_expr(factor)
        derivatives.append(node * base ** (exponent - float(m)) if _is_there(node) else None)
    power: Coefficients = [None, *u[1:]]  # of the difference of u from its coefficient of order zero
    change, total = power, _constant(y, u)
    for m in range(order):
        total = [total[0]] + [_plus(total[k], _times(derivatives[m], power[k])) for k in range(1, order + 1)]
        power = [_convolved(power, change, k) for k in range(order + 1)]
    return total


def _known(coefficient: Expr | None) -> Expr:
    assert coefficient is not None  # of order zero, which every series has
    return coefficient


_RULES: dict[str, Callable[..., Coefficients]] = {
    "neg": _neg, "add": _add, "sub": _sub, "mul": _mul, "div": _div, "exp": _exp, "expm1": _expm1, "log": _log,
    "log1p": _log1p, "sqrt": _sqrt, "tanh": _tanh, "sin": _sin, "cos": _cos, "erf": _erf, "abs": _abs, "min": _min,
    "max": _max, "where": _where, "pow": _pow,
}  # fmt: skip


def exponent_of_logistic(formula: Formula, number: int) -> int | None:
    """The number of u, if the result with this number is 1 / (1 + exp(u))."""

    def instruction(k: int) -> Any:
        return formula.instructions[k - len(formula.inputs)] if k >= len(formula.inputs) else None

    def is_one(k: int) -> bool:
        found = instruction(k)
        return found is not None and found.operation == "const" and found.value == 1.0

    quotient = instruction(number)
    if quotient.operation != "div" or not is_one(quotient.operands[0]):
        return None
    total = instruction(quotient.operands[1])
    if total is None or total.operation != "add":
        return None
    for one, other in (total.operands, total.operands[::-1]):
        power = instruction(other)
        if is_one(one) and power is not None and power.operation == "exp":
            return int(power.operands[0])
    return None
