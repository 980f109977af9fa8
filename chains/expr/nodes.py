"""Nodes of formulas: the symbols for numbers while a formula is traced, and the functions of symbols.

The functions (`exp`, `where`, `maximum`, ...) also take numbers and NumPy arrays, so that users can try an activation at the
prompt: ``σ(0.5)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np

from chains.expr.scalar import COMPARISONS, OPERATIONS, PYTHON, SYMBOLS, UFUNCS

Scalar = Union["Expr", float, int]


def _operators(operation: str) -> tuple[Callable[[Expr, Scalar], Expr], Callable[[Expr, Scalar], Expr]]:
    """The methods for an operator and for its reflected form."""
    return lambda self, other: _binary(operation, self, other), lambda self, other: _binary(operation, other, self)


class Expr:
    """A node of a formula that is traced. Arithmetic, comparisons and the functions of this module make nodes."""

    __slots__ = ("operands", "operation", "setting", "value")
    __hash__ = object.__hash__

    def __init__(self, operation: str, operands: tuple[Expr, ...] = (), value: float | int = 0) -> None:
        self.operation = operation
        self.operands = operands
        self.value = value  # the number of a "const", the position of an "input" or "setting"
        # Whether the node consists of settings and constants only: then its value is known before the program runs.
        known = all(operand.setting or operand.operation == "const" for operand in operands)
        self.setting: bool = operation == "setting" or (known and any(operand.setting for operand in operands))

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("sub")
    __mul__, __rmul__ = _operators("mul")
    __truediv__, __rtruediv__ = _operators("div")
    __pow__, __rpow__ = _operators("pow")
    __lt__, __gt__ = _operators("lt")[0], _operators("gt")[0]
    __le__, __ge__ = _operators("le")[0], _operators("ge")[0]
    __eq__, __ne__ = _operators("eq")[0], _operators("ne")[0]  # type: ignore[assignment]
    __and__, __or__ = _operators("and")[0], _operators("or")[0]

    def __neg__(self) -> Expr:
        return _unary("neg", self)

    def __abs__(self) -> Expr:
        return _unary("abs", self)

    def __invert__(self) -> Expr:
        return _unary("not", self)

    def __bool__(self) -> bool:
        raise TypeError(
            "a traced formula has no truth value: use where(condition, a, b) instead of `if`, "
            "and `&`, `|`, `~` instead of `and`, `or`, `not`"
        )

    def __float__(self) -> float:
        raise TypeError(
            "cannot convert a traced expression to a number: use the functions of chains.expr (or NumPy's), not math's"
        )

    def _reduced(self, *args: Any, **kwargs: Any) -> Expr:
        """Refuse reductions. NumPy's functions call these methods too: ``np.mean`` of a symbol would be the symbol."""
        raise TypeError(
            "a formula is of one element: it has no sum, mean, max or min over others; a loss sums over a sample's outputs, "
            "with average=True takes their mean, and averages over the batch"
        )

    sum = mean = max = min = _reduced

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Expr:
        name = UFUNCS.get(ufunc)
        if name is None or method != "__call__" or kwargs:
            known = ", ".join(sorted(u.__name__ for u in UFUNCS))
            raise TypeError(f"`{ufunc.__name__}` cannot be traced in a formula; the ufuncs that can are {known}")
        return _unary(name, inputs[0]) if len(inputs) == 1 else _binary(name, *inputs)

    def __repr__(self) -> str:
        if self.operation == "input":
            return f"x{self.value}"
        return stripped(text_of(self.operation, self.value, [repr(operand) for operand in self.operands]))


def key_of(node: Expr) -> tuple[Any, ...]:
    """A key that equal expressions share."""
    return (node.operation, node.value, *map(key_of, node.operands))


def as_expr(value: Any) -> Expr:
    """`value` as a node: an `Expr` as it is, a number as a constant. Raises TypeError for anything else."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        return Expr("const", value=float(value))
    advice = "; several results are a tuple" if isinstance(value, (np.ndarray, list)) else ""
    raise TypeError(f"a formula is made of numbers and its arguments, not of `{value!r}` ({type(value).__name__}){advice}")


def _unary(operation: str, a: Any) -> Expr:
    a = as_expr(a)
    if operation != "not":
        a = _as_number(a)
    if (folded := _folded(operation, a)) is not None:
        return folded
    if operation == "neg" and a.operation == "neg":
        return a.operands[0]
    return Expr(operation, (a,))


def _binary(operation: str, a: Any, b: Any) -> Expr:
    a, b = as_expr(a), as_expr(b)
    if operation not in ("and", "or"):
        a, b = _as_number(a), _as_number(b)
    if (folded := _folded(operation, a, b)) is not None:
        return folded
    simple = _simplified(operation, a, b)
    return Expr(operation, (a, b)) if simple is None else simple


def _as_number(a: Expr) -> Expr:
    """A truth value as 1 or 0."""
    return where(a, 1.0, 0.0) if a.operation in COMPARISONS else a


def _simplified(operation: str, a: Expr, b: Expr) -> Expr | None:
    """A cheaper node with the same value, if there is an obvious one."""
    if operation == "add" and _is(a, 0):
        return b
    if operation in ("add", "sub") and _is(b, 0):
        return a
    if operation in ("mul", "div") and _is(b, 1):
        return a
    if operation == "mul":
        if _is(a, 1):
            return b
        for factor, choice in ((a, b), (b, a)):  # x * where(c, 0, 1) is a choice, not a product
            if choice.operation == "where" and all(_is(o, 0) or _is(o, 1) for o in choice.operands[1:]):
                condition, *sides = choice.operands
                return where(condition, *(factor if _is(side, 1) else side for side in sides))
    if operation == "pow" and b.operation == "const":
        powers: dict[float | None, Callable[[], Expr]]
        powers = {1.0: lambda: a, 2.0: lambda: a * a, 0.5: lambda: sqrt(a), -1.0: lambda: 1 / a}
        return powers[b.value]() if b.value in powers else None
    return None


def _is(node: Expr, number: float) -> bool:
    return node.operation == "const" and node.value == number


def _folded(operation: str, *operands: Expr) -> Expr | None:
    """The value of an operation on constants; None for other operands, and if the result is no number."""
    if any(operand.operation != "const" for operand in operands):
        return None
    try:
        return Expr("const", value=float(PYTHON[operation](*(operand.value for operand in operands))))
    except (ArithmeticError, TypeError, ValueError):
        return None


def _function(operation: str, doc: str) -> Callable[[Any], Any]:
    on_arrays = OPERATIONS[operation].ufunc or _erf

    def function(x: Any) -> Any:
        return _unary(operation, x) if isinstance(x, Expr) else on_arrays(x)

    return _named(function, operation, f"{doc}\n\nParameters\n----------\nx : Expr, number or array\n    The argument.")


def _named(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def _erf(x: Any) -> Any:
    try:
        from scipy.special import erf as scipy_erf
    except ImportError:
        return np.vectorize(math.erf, otypes=[float])(x)
    return scipy_erf(x)


exp = _function("exp", "e to the power x.")
log = _function("log", "The natural logarithm.")
log1p = _function("log1p", "log(1 + x), accurate near zero.")
expm1 = _function("expm1", "exp(x) - 1, accurate near zero.")
sqrt = _function("sqrt", "The square root.")
tanh = _function("tanh", "The hyperbolic tangent.")
sin = _function("sin", "The sine, x in radians.")
cos = _function("cos", "The cosine, x in radians.")
erf = _function("erf", "The error function.")
sign = _function("sign", "-1, 0 or 1, and NaN for NaN.")
floor = _function("floor", "The largest integer not above x.")


def where(condition: Any, a: Any, b: Any) -> Any:
    """One number or another, by a condition; both are computed.

    Parameters
    ----------
    condition : Expr, number or array
        A comparison, or a number: every number but 0 is true.
    a, b : Expr, number or array
        The result where the condition holds, and the result elsewhere.
    """
    if not any(isinstance(operand, Expr) for operand in (condition, a, b)):
        return np.where(condition, a, b)
    condition, a, b = as_expr(condition), as_expr(a), as_expr(b)
    if condition.operation == "const":
        return a if condition.value else b
    if condition.operation not in COMPARISONS:
        condition = condition != 0.0
    return Expr("where", (condition, a, b))


def _choice(operation: str, name: str, doc: str) -> Callable[[Any, Any], Any]:
    on_arrays = getattr(np, name)

    def function(a: Any, b: Any) -> Any:
        return _binary(operation, a, b) if isinstance(a, Expr) or isinstance(b, Expr) else on_arrays(a, b)

    return _named(function, name, f"{doc}\n\nParameters\n----------\na, b : Expr, number or array\n    The numbers.")


minimum = _choice("min", "minimum", "The smaller of two numbers, NaN if either is NaN.")
maximum = _choice("max", "maximum", "The larger of two numbers, NaN if either is NaN.")


def text_of(operation: str, value: float, operands: Sequence[str]) -> str:
    """An operation as people write it, in parentheses if it has an operator."""
    if operation == "const":
        return f"{value:g}"
    if operation in SYMBOLS:
        return f"({operands[0]} {SYMBOLS[operation]} {operands[1]})"
    if operation == "neg":
        return f"(-{operands[0]})"
    return f"{operation}({', '.join(stripped(operand) for operand in operands)})"


def stripped(text: str) -> str:
    """`text` without a pair of parentheses around all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[1:-1] if position == len(text) - 1 else text
    return text
