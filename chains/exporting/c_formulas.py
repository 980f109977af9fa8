"""How C99 writes numbers, and the functions that exported C source calls."""

from __future__ import annotations

import math
from collections.abc import Sequence

from chains.lowering import polynomials
from chains.lowering.c_language import Dialect


def _special(value: float, kind: str) -> str:
    return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"


def _number(value: float, kind: str) -> str:
    return f"{value!r}{'f' if kind == 'float' else ''}"


C99 = Dialect(
    _special, _number, lambda size, kind: f"(-{_number(size, kind)})", {"float": "float", "double": "double"},
    quick=("exp", "tanh"), named_constants=False,
)  # fmt: skip
literal = C99.literal


def _horner(coefficients: Sequence[float], variable: str) -> str:
    text = literal(coefficients[0], "float")
    for coefficient in coefficients[1:]:
        text = f"({text} * {variable} + {literal(coefficient, 'float')})"
    return text[1:-1]


_ABOVE, _BELOW = polynomials.TANH
_HIGH, _LOW = polynomials.LN2["float"]

PRELUDE = f"""\
/* The larger, the smaller: NaN where either is. */
{C99.helpers("static inline")}
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
    const float q = {_horner(polynomials.EXP["float"], "r")};
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
