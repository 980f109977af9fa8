"""Formulas and numbers as CUDA C.

The text is the common part of C and C++, so that an ordinary C compiler can read the very same kernels: a test runs
them on the processor that way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chains.expr import COMPARISONS, Formula
from chains.expr.scalar import SYMBOLS

PRELUDE = """\
#ifndef KERNEL
#define KERNEL_OF(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
#define KERNEL extern "C" __global__ void __launch_bounds__(256)
#define DEVICE static __device__ __forceinline__
#define SHARED __shared__
#define SHARED_MEMORY extern __shared__ __align__(16) unsigned char shared_memory[]
#define ALIGNED(bytes) __align__(bytes)
#endif
typedef long long int64;
typedef unsigned long long uint64;
typedef {index} Index;
typedef unsigned {index} Count;

DEVICE float max_f(float a, float b) {{ return a > b || a != a ? a : b; }}
DEVICE float min_f(float a, float b) {{ return a < b || a != a ? a : b; }}
DEVICE float sign_f(float a) {{ return a != a ? a : (float)((a > 0.0f) - (a < 0.0f)); }}
DEVICE double max_d(double a, double b) {{ return a > b || a != a ? a : b; }}
DEVICE double min_d(double a, double b) {{ return a < b || a != a ? a : b; }}
DEVICE double sign_d(double a) {{ return a != a ? a : (double)((a > 0.0) - (a < 0.0)); }}
"""

_TYPES = {
    "float32": "float", "float64": "double", "int8": "signed char", "int16": "short", "int32": "int", "int64": "int64",
    "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int", "uint64": "uint64",
    "bool": "unsigned char",
}  # fmt: skip
_SYMBOLS = {name: symbol for name, symbol in SYMBOLS.items() if name != "pow"} | {"and": "&&", "or": "||"}
_LIBRARY = {"abs": "fabs"} | {
    name: name for name in ("floor", "exp", "log", "log1p", "expm1", "sqrt", "tanh", "sin", "cos", "erf", "pow")
}


def ctype(dtype: np.dtype[Any]) -> str:
    """The C type of a NumPy type. Raises KeyError for one that kernels cannot read."""
    return _TYPES[dtype.name]


def converted(value: str, source: str, target: str) -> str:
    """A value of one C type as another."""
    return value if source == target else f"({target}){value}"


def readable(dtype: np.dtype[Any]) -> bool:
    """Whether kernels can read numbers of this type."""
    return dtype.isnative and dtype.name in _TYPES


def literal(value: float, kind: str) -> str:
    """A number of the C type "float" or "double", to the last bit."""
    if math.isnan(value) or math.isinf(value):
        bits = "0x7ff8000000000000" if math.isnan(value) else "0x7ff0000000000000"
        return f"{'-' if value < 0 else ''}({kind})__longlong_as_double({bits}ll)"
    rounded = float(np.float32(value)) if kind == "float" and abs(value) < 3.5e38 else value
    if math.isinf(rounded):
        return literal(rounded, kind)
    return f"({kind}){rounded!r}" if rounded >= 0.0 else f"(-({kind}){-rounded!r})"


def instruction(operation: str, operands: Sequence[str], value: float, kind: str) -> str:
    """One instruction of a formula over variables of the C type `kind`; truth values are ints."""
    single = kind == "float"
    if operation == "const":
        return literal(value, kind)
    if operation in _SYMBOLS:
        return f"{operands[0]} {_SYMBOLS[operation]} {operands[1]}"
    if operation == "neg":
        return f"-{operands[0]}"
    if operation == "not":
        return f"!{operands[0]}"
    if operation == "where":
        return f"{operands[0]} ? {operands[1]} : {operands[2]}"
    if operation in ("min", "max", "sign"):
        return f"{operation}_{'f' if single else 'd'}({', '.join(operands)})"
    return f"{_LIBRARY[operation]}{'f' if single else ''}({', '.join(operands)})"


def formula_lines(formula: Formula, operands: Sequence[str], prefix: str, kind: str) -> tuple[list[str], list[str]]:
    """The statements that compute a formula from the variables `operands`, and the names of its results."""
    names, lines = list(operands), []
    for number, step in enumerate(formula.instructions):
        name = f"{prefix}{number}"
        result = "int" if step.operation in COMPARISONS else kind
        text = instruction(step.operation, [names[operand] for operand in step.operands], step.value, kind)
        lines.append(f"const {result} {name} = {text};")
        names.append(name)
    return lines, [names[output] for output in formula.outputs]
