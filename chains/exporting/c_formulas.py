"""Formulas as C99: an expression for each instruction, and the functions that these call."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from chains.backends.native.llvm import vectormath
from chains.expr import COMPARISONS, Formula
from chains.expr.scalar import SYMBOLS

_SYMBOLS = {name: symbol for name, symbol in SYMBOLS.items() if name != "pow"} | {"and": "&&", "or": "||"}
_LIBRARY = {"abs": "fabs"} | {
    name: name for name in ("floor", "exp", "log", "log1p", "expm1", "sqrt", "tanh", "sin", "cos", "erf", "pow")
}
_OWN = ("min", "max", "sign")  # of functions of the prelude, whose names end with the type


def literal(value: float, kind: str) -> str:
    """A number of the C type "float" or "double", to the last bit."""
    if math.isnan(value):
        return "NAN"
    rounded = float(np.float32(value)) if kind == "float" and abs(value) < 3.5e38 else value
    if math.isinf(rounded):
        return "INFINITY" if rounded > 0 else "-INFINITY"
    return f"{rounded!r}{'f' if kind == 'float' else ''}" if rounded >= 0.0 else f"(-{literal(-rounded, kind)})"


def statements(formula: Formula, operands: Sequence[str], kind: str) -> tuple[list[str], list[str]]:
    """The statements that compute a formula from these expressions, and its results. Constants stand where they are used."""
    names, lines = list(operands), []
    for number, step in enumerate(formula.instructions):
        if step.operation == "const":
            names.append(literal(step.value, kind))
            continue
        text = _expression(step.operation, [names[operand] for operand in step.operands], kind)
        lines.append(f"const {'int' if step.operation in COMPARISONS else kind} v{number} = {text};")
        names.append(f"v{number}")
    return lines, [names[output] for output in formula.outputs]


def _expression(operation: str, operands: Sequence[str], kind: str) -> str:
    if operation in _SYMBOLS:
        return f"{operands[0]} {_SYMBOLS[operation]} {operands[1]}"
    if operation == "neg":
        return f"-{operands[0]}"
    if operation == "not":
        return f"!{operands[0]}"
    if operation == "where":
        return f"{operands[0]} ? {operands[1]} : {operands[2]}"
    ending = "f" if kind == "float" else ""
    if operation in _OWN:
        name = f"{operation}_{kind}"
    elif operation in ("exp", "tanh") and kind == "float":
        name = f"quick_{operation}"
    else:
        name = f"{_LIBRARY[operation]}{ending}"
    return f"{name}({', '.join(operands)})"


def _horner(coefficients: Sequence[float], variable: str) -> str:
    text = literal(coefficients[0], "float")
    for coefficient in coefficients[1:]:
        text = f"({text} * {variable} + {literal(coefficient, 'float')})"
    return text[1:-1]


_ABOVE, _BELOW = vectormath.TANH
_HIGH, _LOW = vectormath.LN2["float"]

PRELUDE = f"""\
/* The larger, the smaller: NaN where either is. */
static inline float max_float(float a, float b) {{ return a > b || a != a ? a : b; }}
static inline float min_float(float a, float b) {{ return a < b || a != a ? a : b; }}
static inline float sign_float(float a) {{ return a != a ? a : (float)((a > 0.0f) - (a < 0.0f)); }}
static inline double max_double(double a, double b) {{ return a > b || a != a ? a : b; }}
static inline double min_double(double a, double b) {{ return a < b || a != a ? a : b; }}
static inline double sign_double(double a) {{ return a != a ? a : (double)((a > 0.0) - (a < 0.0)); }}

/* exp and tanh without branches, so that compilers can make vectors of them. */
static inline float power_of_two(int32_t n)
{{
    union {{ uint32_t bits; float number; }} u;
    u.bits = (uint32_t)(n + 127) << 23;
    return u.number;
}}
static inline float quick_exp(float x)
{{
    const float above = x > 89.0f ? 89.0f : x;
    const float y = above < -104.0f ? -104.0f : above;
    const float turns = y * 1.4426950408889634f;
    const int32_t n = (int32_t)(turns != turns ? 0.0f : turns + (turns < 0.0f ? -0.5f : 0.5f));
    const float whole = (float)n;
    const float r = (y - whole * {literal(_HIGH, "float")}) - whole * {literal(_LOW, "float")};
    const float q = {_horner(vectormath.EXP["float"], "r")};
    const int32_t half = n / 2;
    return (r * r * q + r + 1.0f) * power_of_two(half) * power_of_two(n - half);
}}
static inline float quick_tanh(float x)
{{
    const float below = x > 9.1f ? 9.1f : x;
    const float y = below < -9.1f ? -9.1f : below;
    const float z = y * y;
    const float top = {_horner(_ABOVE, "z")};
    const float bottom = {_horner(_BELOW, "z")};
    const float t = y * top / bottom;
    const float most = t > 1.0f ? 1.0f : t;
    return most < -1.0f ? -1.0f : most;
}}
"""

PHILOX = """\
/* Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). */
static uint64_t high_product(uint64_t a, uint64_t b)
{
    const uint64_t a1 = a >> 32, a0 = (uint32_t)a, b1 = b >> 32, b0 = (uint32_t)b;
    const uint64_t low = a0 * b0, first = a1 * b0 + (low >> 32), second = a0 * b1 + (uint32_t)first;
    return a1 * b1 + (first >> 32) + (second >> 32);
}
static double uniform(const uint64_t random[2], uint64_t draw, uint64_t i)
{
    const uint64_t m0 = UINT64_C(0xD2E7470EE14C6C93), m1 = UINT64_C(0xCA5A826395121157);
    uint64_t c[4] = {1 + i / 8, draw, random[1], 0}, k0 = random[0], k1 = 0;
    for (int round = 0; round < 10; round++) {
        const uint64_t h0 = high_product(m0, c[0]), l0 = m0 * c[0], h1 = high_product(m1, c[2]), l1 = m1 * c[2];
        c[0] = h1 ^ c[1] ^ k0;
        c[2] = h0 ^ c[3] ^ k1;
        c[1] = l1;
        c[3] = l0;
        k0 += UINT64_C(0x9E3779B97F4A7C15);
        k1 += UINT64_C(0xBB67AE8584CAA73B);
    }
    return (double)((uint32_t)(c[i % 8 / 2] >> (i % 2 ? 32 : 0)) >> 8) * 5.9604644775390625e-08;
}
"""
