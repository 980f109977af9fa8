"""Scalar formulas: written once as ordinary Python functions, run by every backend.

``trace(lambda x, b: tanh(x + b))`` calls the function once with symbols and keeps what it did as a
`Formula`: a short list of instructions in static single assignment form, equal subexpressions shared.
A backend turns a formula into ufunc calls, vector instructions or a GPU kernel.

The functions of this module (`exp`, `where`, `maximum`, ...) also accept numbers and NumPy arrays, so
that an activation can be tried at the prompt: ``σ(0.5)``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from chains.expr.scalar import PYTHON, SYMBOLS, UFUNCS

# The operations by number of operands, which every backend implements, and those whose results are truth values.
UNARY = ("neg", "abs", "sign", "floor", "exp", "log", "log1p", "expm1", "sqrt", "tanh", "sin", "cos", "erf")
BINARY = ("add", "sub", "mul", "div", "pow", "min", "max", "lt", "le", "gt", "ge", "eq", "ne", "and", "or")
TERNARY = ("where",)
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not")

Scalar = Union["Expr", float, int]


class Expr:
    """A node of a formula being traced; built by arithmetic, comparisons and this module's functions."""

    __slots__ = ("operands", "operation", "setting", "value")
    __hash__ = object.__hash__

    def __init__(self, operation: str, operands: tuple[Expr, ...] = (), value: float | int = 0) -> None:
        self.operation = operation
        self.operands = operands
        self.value = value  # the number of a "const", the position of an "input" or "setting"
        # Whether it is made of settings and constants only, so that it is known before the program runs.
        known = all(operand.setting or operand.operation == "const" for operand in operands)
        self.setting: bool = operation == "setting" or (known and any(operand.setting for operand in operands))

    def __add__(self, other: Scalar) -> Expr:
        return _binary("add", self, other)

    def __radd__(self, other: Scalar) -> Expr:
        return _binary("add", other, self)

    def __sub__(self, other: Scalar) -> Expr:
        return _binary("sub", self, other)

    def __rsub__(self, other: Scalar) -> Expr:
        return _binary("sub", other, self)

    def __mul__(self, other: Scalar) -> Expr:
        return _binary("mul", self, other)

    def __rmul__(self, other: Scalar) -> Expr:
        return _binary("mul", other, self)

    def __truediv__(self, other: Scalar) -> Expr:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Scalar) -> Expr:
        return _binary("div", other, self)

    def __pow__(self, other: Scalar) -> Expr:
        return _binary("pow", self, other)

    def __rpow__(self, other: Scalar) -> Expr:
        return _binary("pow", other, self)

    def __neg__(self) -> Expr:
        return _unary("neg", self)

    def __abs__(self) -> Expr:
        return _unary("abs", self)

    def __lt__(self, other: Scalar) -> Expr:
        return _binary("lt", self, other)

    def __le__(self, other: Scalar) -> Expr:
        return _binary("le", self, other)

    def __gt__(self, other: Scalar) -> Expr:
        return _binary("gt", self, other)

    def __ge__(self, other: Scalar) -> Expr:
        return _binary("ge", self, other)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return _binary("eq", self, other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return _binary("ne", self, other)

    def __and__(self, other: Scalar) -> Expr:
        return _binary("and", self, other)

    def __or__(self, other: Scalar) -> Expr:
        return _binary("or", self, other)

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

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Expr:
        name = UFUNCS.get(ufunc)
        if name is None or method != "__call__" or kwargs:
            known = ", ".join(sorted(u.__name__ for u in UFUNCS))
            raise TypeError(f"`{ufunc.__name__}` cannot be traced in a formula; the ufuncs that can are {known}")
        return _unary(name, inputs[0]) if len(inputs) == 1 else _binary(name, *inputs)

    def __repr__(self) -> str:
        return (
            f"x{self.value}"
            if self.operation == "input"
            else _strip(_text(Instruction(self.operation, (), self.value), [repr(operand) for operand in self.operands]))
        )


@dataclass(frozen=True)
class Instruction:
    """One scalar operation; its result is known by its position in `Formula.instructions`."""

    operation: str
    operands: tuple[int, ...] = ()
    value: float = 0.0


@dataclass(frozen=True)
class Formula:
    """A traced function: results are numbered inputs first, then one per instruction.

    `outputs` are the numbers of the results the function returned. Equal functions give equal formulas.
    """

    inputs: tuple[str, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[int, ...]

    @property
    def copied_input(self) -> int | None:
        """The position of the input this formula returns unchanged, or None when it computes something."""
        if len(self.outputs) == 1 and self.outputs[0] < len(self.inputs):
            return self.outputs[0]
        return None

    def only(self, outputs: Sequence[int]) -> tuple[Formula, list[int]]:
        """The formula of only the outputs at these positions, and the positions of the inputs it still reads."""
        kept = [self.outputs[position] for position in outputs]
        needed = set(kept)
        first = len(self.inputs)
        for number in range(first + len(self.instructions) - 1, first - 1, -1):
            if number in needed:
                needed.update(self.instructions[number - first].operands)
        inputs = [position for position in range(first) if position in needed]
        renumber = {number: new for new, number in enumerate(sorted(needed))}
        instructions = tuple(
            Instruction(i.operation, tuple(renumber[operand] for operand in i.operands), i.value)
            for number, i in enumerate(self.instructions, first)
            if number in needed
        )
        names = tuple(self.inputs[position] for position in inputs)
        return Formula(names, instructions, tuple(renumber[number] for number in kept)), inputs

    def text(self, names: Sequence[str] | None = None) -> str:
        """The formula as a person would write it, with `names` for the inputs."""
        texts = list(names or self.inputs)
        for instruction in self.instructions:
            texts.append(_text(instruction, [texts[operand] for operand in instruction.operands]))
        return ", ".join(_strip(texts[output]) for output in self.outputs)

    def __str__(self) -> str:
        return f"({', '.join(self.inputs)}) -> {self.text()}"


def trace(function: Callable[..., Any], inputs: int | None = None) -> Formula:
    """Call `function` once with symbols and return what it computes as a `Formula`.

    `inputs` is the number of arguments, needed only where the signature does not say it (``*args``).
    Raises TypeError, naming what was called, where the function does something that is no formula.
    """
    return trace_with_settings(function, inputs)[0]


def trace_with_settings(function: Callable[..., Any], inputs: int | None = None) -> tuple[Formula, tuple[Expr, ...]]:
    """As `trace`, with the expressions of settings that are the formula's last inputs."""
    try:
        names = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    except ValueError:  # a builtin or ufunc that does not tell
        names = []
    if inputs is not None and len(names) != inputs:
        names = [f"x{position}" for position in range(inputs)]
    results = function(*(Expr("input", value=position) for position in range(len(names))))
    if not isinstance(results, tuple):
        results = (results,)
    return _numbered(tuple(as_expr(result) for result in results), tuple(names))


def trace_nodes(results: tuple[Expr, ...], names: tuple[str, ...]) -> Formula:
    """Number the nodes under `results`, equal ones once."""
    return _numbered(results, names)[0]


def _numbered(results: tuple[Expr, ...], names: tuple[str, ...]) -> tuple[Formula, tuple[Expr, ...]]:
    """The formula of these nodes, and what in it is made of settings alone, which becomes its last inputs."""
    settings: dict[Any, Expr] = {}
    seen: set[int] = set()

    def find(node: Expr) -> None:
        if node.setting:
            settings.setdefault(key_of(node), node)
        elif id(node) not in seen:
            seen.add(id(node))
            for operand in node.operands:
                find(operand)

    for result in results:
        find(result)
    positions = {key: position for position, key in enumerate(settings, len(names))}
    names = (*names, *map(repr, settings.values()))
    instructions: list[Instruction] = []
    known: dict[Instruction, int] = {}
    numbers: dict[int, int] = {}  # id of a node -> number of its result

    def number(node: Expr) -> int:
        if node.operation == "input":
            return int(node.value)
        if id(node) not in numbers:
            if node.setting:
                numbers[id(node)] = positions[key_of(node)]
                return numbers[id(node)]
            operands = tuple(number(operand) for operand in node.operands)
            instruction = Instruction(node.operation, operands, float(node.value))
            if instruction not in known:
                known[instruction] = len(names) + len(instructions)
                instructions.append(instruction)
            numbers[id(node)] = known[instruction]
        return numbers[id(node)]

    outputs = tuple(number(result) for result in results)
    return Formula(names, tuple(instructions), outputs), tuple(settings.values())


def key_of(node: Expr) -> tuple[Any, ...]:
    """What equal expressions have in common."""
    return (node.operation, node.value, *map(key_of, node.operands))


def as_expr(value: Any) -> Expr:
    """`value` as a node: an `Expr` as it is, a number as a constant. Raises TypeError for anything else."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        return Expr("const", value=float(value))
    raise TypeError(f"a formula is made of numbers and its arguments, not of `{value!r}` ({type(value).__name__})")


def _unary(operation: str, a: Any) -> Expr:
    a = as_expr(a)
    if operation != "not":
        a = _as_number(a)
    if a.operation == "const":
        return Expr("const", value=_evaluate(operation, a.value))
    if operation == "neg" and a.operation == "neg":
        return a.operands[0]
    return Expr(operation, (a,))


def _binary(operation: str, a: Any, b: Any) -> Expr:
    a, b = as_expr(a), as_expr(b)
    if operation not in ("and", "or"):
        a, b = _as_number(a), _as_number(b)
    if a.operation == b.operation == "const":
        return Expr("const", value=_evaluate(operation, a.value, b.value))
    simple = _simplified(operation, a, b)
    return Expr(operation, (a, b)) if simple is None else simple


def _as_number(a: Expr) -> Expr:
    """A truth value as 1 or 0."""
    return where(a, 1.0, 0.0) if a.operation in COMPARISONS else a


def _simplified(operation: str, a: Expr, b: Expr) -> Expr | None:
    """A cheaper node of the same value, where there is an obvious one."""
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
        simple = {1.0: lambda: a, 2.0: lambda: a * a, 0.5: lambda: sqrt(a), -1.0: lambda: 1 / a}.get(b.value)
        return simple() if simple else None
    return None


def _is(node: Expr, number: float) -> bool:
    return node.operation == "const" and node.value == number


def _evaluate(operation: str, *values: float) -> float:
    return float(PYTHON[operation](*values))


def _function(operation: str, ufunc: Callable[..., Any], doc: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return _unary(operation, x) if isinstance(x, Expr) else ufunc(x)

    function.__name__ = function.__qualname__ = operation
    function.__doc__ = doc
    return function


def _erf(x: Any) -> Any:
    try:
        from scipy.special import erf as scipy_erf
    except ImportError:
        return np.vectorize(math.erf, otypes=[float])(x)
    return scipy_erf(x)


exp = _function("exp", np.exp, "e to the power x.")
log = _function("log", np.log, "The natural logarithm.")
log1p = _function("log1p", np.log1p, "log(1 + x), accurate near zero.")
expm1 = _function("expm1", np.expm1, "exp(x) - 1, accurate near zero.")
sqrt = _function("sqrt", np.sqrt, "The square root.")
tanh = _function("tanh", np.tanh, "The hyperbolic tangent.")
sin = _function("sin", np.sin, "The sine, x in radians.")
cos = _function("cos", np.cos, "The cosine, x in radians.")
erf = _function("erf", _erf, "The error function.")
sign = _function("sign", np.sign, "-1, 0 or 1, and NaN for NaN.")
floor = _function("floor", np.floor, "The largest integer not above x.")


def where(condition: Any, a: Any, b: Any) -> Any:
    """`a` where `condition` holds, else `b`; both sides are computed."""
    if not any(isinstance(operand, Expr) for operand in (condition, a, b)):
        return np.where(condition, a, b)
    condition, a, b = as_expr(condition), as_expr(a), as_expr(b)
    if condition.operation == "const":
        return a if condition.value else b
    if condition.operation not in COMPARISONS:
        condition = condition != 0.0
    return Expr("where", (condition, a, b))


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two numbers, NaN if either is NaN."""
    return _binary("min", a, b) if isinstance(a, Expr) or isinstance(b, Expr) else np.minimum(a, b)


def maximum(a: Any, b: Any) -> Any:
    """The larger of two numbers, NaN if either is NaN."""
    return _binary("max", a, b) if isinstance(a, Expr) or isinstance(b, Expr) else np.maximum(a, b)


def _text(instruction: Instruction, operands: list[str]) -> str:
    operation = instruction.operation
    if operation == "const":
        return f"{instruction.value:g}"
    if operation in SYMBOLS:
        return f"({operands[0]} {SYMBOLS[operation]} {operands[1]})"
    if operation == "neg":
        return f"(-{operands[0]})"
    return f"{operation}({', '.join(_strip(operand) for operand in operands)})"


def _strip(text: str) -> str:
    """`text` without a pair of parentheses around all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[1:-1] if position == len(text) - 1 else text
    return text
