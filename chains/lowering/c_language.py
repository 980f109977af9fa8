"""Formulas as C. C99 and CUDA C have the same operators and functions; a `Dialect` says how they differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from chains.expr import COMPARISONS, Formula
from chains.expr.scalar import SYMBOLS

_SYMBOLS = {name: symbol for name, symbol in SYMBOLS.items() if name != "pow"} | {"and": "&&", "or": "||"}
_FUNCTIONS = ("floor", "exp", "log", "log1p", "expm1", "sqrt", "tanh", "sin", "cos", "erf", "pow")
_LIBRARY = {"abs": "fabs", **{name: name for name in _FUNCTIONS}}
_HELPERS = ("min", "max", "sign")  # functions of `helpers`


@dataclass(frozen=True)
class Dialect:
    """How a language writes numbers and names functions.

    `special` writes an infinity or NaN of a C type, `number` a finite number that is not negative. `endings` are those of the
    `helpers` by C type. Functions in `quick` have a version of the dialect for "float". `named_constants`: whether a constant
    of a formula is a variable.
    """

    special: Callable[[float, str], str]
    number: Callable[[float, str], str]
    negative: Callable[[float, str], str]
    endings: dict[str, str]
    quick: tuple[str, ...] = ()
    named_constants: bool = True

    def literal(self, value: float, kind: str) -> str:
        """A number of the C type "float" or "double", exact to the last bit."""
        rounded = float(np.float32(value)) if kind == "float" and abs(value) < 3.5e38 else value
        if math.isnan(rounded) or math.isinf(rounded):
            return self.special(rounded, kind)
        return self.number(rounded, kind) if rounded >= 0.0 else self.negative(-rounded, kind)

    def statements(self, formula: Formula, operands: Sequence[str], prefix: str, kind: str) -> tuple[list[str], list[str]]:
        """The statements that compute a formula from the expressions `operands`, and the names of its results.

        Variables begin with `prefix`. They have the C type `kind`; truth values are ints.
        """
        names, lines = list(operands), []
        for number, step in enumerate(formula.instructions):
            if step.operation == "const" and not self.named_constants:
                names.append(self.literal(step.value, kind))
                continue
            text = self._expression(step.operation, [names[operand] for operand in step.operands], step.value, kind)
            lines.append(f"const {'int' if step.operation in COMPARISONS else kind} {prefix}{number} = {text};")
            names.append(f"{prefix}{number}")
        return lines, [names[output] for output in formula.outputs]

    def _expression(self, operation: str, operands: Sequence[str], value: float, kind: str) -> str:
        if operation == "const":
            return self.literal(value, kind)
        if operation in _SYMBOLS:
            return f"{operands[0]} {_SYMBOLS[operation]} {operands[1]}"
        if operation == "neg":
            return f"-{operands[0]}"
        if operation == "not":
            return f"!{operands[0]}"
        if operation == "where":
            return f"{operands[0]} ? {operands[1]} : {operands[2]}"
        if operation in _HELPERS:
            name = f"{operation}_{self.endings[kind]}"
        elif operation in self.quick and kind == "float":
            name = f"quick_{operation}"
        else:
            name = f"{_LIBRARY[operation]}{'f' if kind == 'float' else ''}"
        return f"{name}({', '.join(operands)})"

    def helpers(self, head: str) -> str:
        """Definitions of the larger and the smaller of two numbers, which are NaN if `a` or `b` is, and of the sign.

        `head` is how a definition begins.
        """
        lines = []
        for kind, end in self.endings.items():
            zero = "0.0f" if kind == "float" else "0.0"
            for name, sign in (("max", ">"), ("min", "<")):
                lines.append(f"{head} {kind} {name}_{end}({kind} a, {kind} b) {{ return a {sign} b || a != a ? a : b; }}")
            signs = f"({kind})((a > {zero}) - (a < {zero}))"
            lines.append(f"{head} {kind} sign_{end}({kind} a) {{ return a != a ? a : {signs}; }}")
        return "\n".join(lines) + "\n"


def converted(value: str, source: str, target: str) -> str:
    """A value of one C type as another."""
    return value if source == target else f"({target}){value}"


def sum_text(start: int, parts: Sequence[tuple[str, int]]) -> str:
    """The number of an element: start + the sum of coordinate * stride."""
    terms = [name if stride == 1 else f"{name} * {stride}" for name, stride in parts if stride]
    return " + ".join([*terms, str(start)] if start or not terms else terms)
