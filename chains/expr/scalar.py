"""The table of the scalar operations in formulas. Backends add only how they write each operation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Choice:
    """The derivative of `where(condition, a, b)`, min and max: the derivative of `a` if the condition holds, else of `b`."""

    condition: Any


Derivative = Callable[..., "tuple[Any, ...] | Choice"]


@dataclass(frozen=True)
class ScalarOperation:
    """One row of the table.

    `python` computes the operation on Python's numbers, also to fold constants. `ufunc` is NumPy's function; tracing
    recognises the operation by it. `symbol` is what people write between two operands. If `truth`, the result is a truth value.

    ``derivative(y, *operands)`` gives the derivatives of the result y with respect to the operands, or a `Choice`. It uses
    operators and ufuncs, which take symbols. It is None if the derivative is zero wherever it exists. At a kink it is the
    derivative from the left: -1 for abs(x) at 0. For min and max of equal operands, the first counts as the smaller.
    """

    name: str
    arity: int
    python: Callable[..., Any]
    ufunc: np.ufunc | None = None
    symbol: str = ""
    truth: bool = False
    derivative: Derivative | None = None


def _function(name: str, derivative: Derivative | None) -> ScalarOperation:
    """A function of one number that Python and NumPy know by the same name."""
    return ScalarOperation(name, 1, getattr(math, name), getattr(np, name), derivative=derivative)


def _comparison(name: str, symbol: str, ufunc: np.ufunc, python: Callable[..., Any]) -> ScalarOperation:
    return ScalarOperation(name, 2, python, ufunc, symbol, truth=True)


def _pow_derivative(y: Any, a: Any, b: Any) -> tuple[Any, ...]:
    """The derivatives of a power: zero by the base if the exponent is 0, zero by the exponent if the base is 0."""
    return (b != 0.0) * (b * a ** (b - 1.0)), (a != 0.0) * (y * np.log(a))


_ROWS = (
    ScalarOperation("neg", 1, lambda a: -a, np.negative, derivative=lambda y, a: (-1.0,)),
    ScalarOperation("abs", 1, abs, np.absolute, derivative=lambda y, a: (2.0 * (a > 0.0) - 1.0,)),
    ScalarOperation("sign", 1, lambda a: (a > 0) - (a < 0), np.sign),
    _function("floor", None),
    _function("exp", lambda y, a: (y,)),
    _function("log", lambda y, a: (1.0 / a,)),
    _function("log1p", lambda y, a: (1.0 / (1.0 + a),)),
    _function("expm1", lambda y, a: (np.exp(a),)),
    _function("sqrt", lambda y, a: (0.5 / y,)),
    _function("tanh", lambda y, a: (1.0 - y * y,)),
    _function("sin", lambda y, a: (np.cos(a),)),
    _function("cos", lambda y, a: (-np.sin(a),)),
    ScalarOperation("erf", 1, math.erf, derivative=lambda y, a: (2.0 / math.sqrt(math.pi) * np.exp(-(a * a)),)),
    ScalarOperation("not", 1, lambda a: not a, np.logical_not, truth=True),
    ScalarOperation("add", 2, lambda a, b: a + b, np.add, "+", derivative=lambda y, a, b: (1.0, 1.0)),
    ScalarOperation("sub", 2, lambda a, b: a - b, np.subtract, "-", derivative=lambda y, a, b: (1.0, -1.0)),
    ScalarOperation("mul", 2, lambda a, b: a * b, np.multiply, "*", derivative=lambda y, a, b: (b, a)),
    ScalarOperation("div", 2, lambda a, b: a / b, np.divide, "/", derivative=lambda y, a, b: (1.0 / b, -(y / b))),
    ScalarOperation("pow", 2, lambda a, b: a**b, np.power, "**", derivative=_pow_derivative),
    ScalarOperation("min", 2, min, np.minimum, derivative=lambda y, a, b: Choice(a <= b)),
    ScalarOperation("max", 2, max, np.maximum, derivative=lambda y, a, b: Choice(a > b)),
    _comparison("lt", "<", np.less, lambda a, b: a < b),
    _comparison("le", "<=", np.less_equal, lambda a, b: a <= b),
    _comparison("gt", ">", np.greater, lambda a, b: a > b),
    _comparison("ge", ">=", np.greater_equal, lambda a, b: a >= b),
    _comparison("eq", "==", np.equal, lambda a, b: a == b),
    _comparison("ne", "!=", np.not_equal, lambda a, b: a != b),
    _comparison("and", "&", np.logical_and, lambda a, b: a and b),
    _comparison("or", "|", np.logical_or, lambda a, b: a or b),
    ScalarOperation("where", 3, lambda c, a, b: a if c else b, derivative=lambda y, c, a, b: Choice(c)),
)

OPERATIONS = {row.name: row for row in _ROWS}

# The names by number of operands, the names of operations with truth values as results, and the columns by name.
UNARY = tuple(row.name for row in _ROWS if row.arity == 1 and not row.truth)
BINARY = tuple(row.name for row in _ROWS if row.arity == 2)
TERNARY = tuple(row.name for row in _ROWS if row.arity == 3)
COMPARISONS = tuple(row.name for row in _ROWS if row.truth)
PYTHON = {row.name: row.python for row in _ROWS}
SYMBOLS = {row.name: row.symbol for row in _ROWS if row.symbol}
UFUNCS = {row.ufunc: row.name for row in _ROWS if row.ufunc is not None}
