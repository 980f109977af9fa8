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
#define ON_CHIP extern __shared__ __align__(16) unsigned char chip[]
#define ALIGNED(bytes) __align__(bytes)
#endif
typedef long long int64;
typedef unsigned long long uint64;
typedef unsigned short bfloat16;
typedef unsigned short float16;
typedef {index} Index;
typedef unsigned {index} Count;

DEVICE bfloat16 bfloat16_of(float a)
{{
    union {{ float number; unsigned bits; }} both;
    both.number = a;
    if (a != a) return (bfloat16)(both.bits >> 16 | 64);
    return (bfloat16)(both.bits + 0x7fff + (both.bits >> 16 & 1) >> 16);
}}
DEVICE float float_of(bfloat16 a)
{{
    union {{ float number; unsigned bits; }} both;
    both.bits = (unsigned)a << 16;
    return both.number;
}}
DEVICE float16 float16_of(float a)
{{
#ifdef __CUDA_ARCH__
    float16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(a));
    return result;
#else
    union {{ float number; unsigned bits; }} both;
    both.number = a;
    const unsigned sign = both.bits >> 16 & 0x8000;
    both.bits &= 0x7fffffff;
    if (both.bits > 0x7f800000) return (float16)(sign | 0x7e00);
    if (both.bits >= 0x477ff000) return (float16)(sign | 0x7c00);
    if (both.bits < 0x38800000) {{
        both.number += 0.5f;
        return (float16)(sign | (both.bits - 0x3f000000));
    }}
    return (float16)(sign | (both.bits - 0x38000000 + 0xfff + (both.bits >> 13 & 1)) >> 13);
#endif
}}
DEVICE float float_of_float16(float16 a)
{{
#ifdef __CUDA_ARCH__
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(a));
    return result;
#else
    union {{ float number; unsigned bits; }} both;
    const unsigned sign = (a & 0x8000u) << 16, size = a & 0x7fffu;
    if (size < 0x400) both.number = size * 5.9604644775390625e-8f;
    else both.bits = size < 0x7c00 ? (size << 13) + 0x38000000 : (size << 13) + 0x70000000;
    both.bits |= sign;
    return both.number;
#endif
}}
DEVICE float max_f(float a, float b) {{ return a > b || a != a ? a : b; }}
DEVICE float min_f(float a, float b) {{ return a < b || a != a ? a : b; }}
DEVICE float sign_f(float a) {{ return a != a ? a : (float)((a > 0.0f) - (a < 0.0f)); }}
DEVICE double max_d(double a, double b) {{ return a > b || a != a ? a : b; }}
DEVICE double min_d(double a, double b) {{ return a < b || a != a ? a : b; }}
DEVICE double sign_d(double a) {{ return a != a ? a : (double)((a > 0.0) - (a < 0.0)); }}
"""

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])  # NumPy has no type for these: the upper half of a float32
FLOAT16 = np.dtype(np.float16)

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
    return half_name(dtype) or _TYPES[dtype.name]


def half_name(dtype: np.dtype[Any]) -> str:
    """The name of a type of 16 bits, which kernels store and never compute in; empty for other types."""
    return "bfloat16" if dtype == BFLOAT16 else "float16" if dtype == FLOAT16 else ""


def computed(dtype: np.dtype[Any]) -> str:
    """The C type that kernels compute in for a NumPy type."""
    return "float" if half_name(dtype) else ctype(dtype)


def converted(value: str, source: str, target: str) -> str:
    """A value of one C type as another, rounded to nearest."""
    if source == target:
        return value
    if source in ("bfloat16", "float16"):
        name = "float_of" if source == "bfloat16" else "float_of_float16"
        return converted(f"{name}({value})", "float", target)
    return f"{target}_of({value})" if target in ("bfloat16", "float16") else f"({target}){value}"


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
