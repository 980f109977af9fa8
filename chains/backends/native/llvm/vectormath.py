"""Elementary functions on vectors of float or double.

Each reduces its argument to a small interval and evaluates a polynomial there, whose largest error is nearly the smallest
possible (Chebyshev interpolation in 40 digits). `ERRORS` states the largest errors, in units in the last place of the
result, and tests hold them. NaN gives NaN, infinities give the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from chains.backends.native.llvm.emit import Function, Type, Value, number
from chains.lowering.polynomials import COS, ERF_INNER, ERF_OUTER, EXP, LN2, LOG, PI_2, SIN, TANH

# Largest error in units in the last place, (float, double), over all arguments unless a comment limits them.
ERRORS = {
    "exp": (2, 2),
    "log": (2, 2),
    "log1p": (3, 3),
    "expm1": (3, 3),
    "tanh": (6, 3),
    "sin": (2, 2),  # of the larger of |result| and the spacing of the argument; |x| below REDUCED, others by libm
    "cos": (2, 2),
    "erf": (4, 4),
}
REDUCED = {"float": 8192.0, "double": 1e6}

HORNER = 3  # terms up to which pairs of terms make no shorter chain
AVX2_BYTES = 32
AVX2_FLOATS = 8  # lanes for which moving signs has a separate port from sums and products


def polynomial(f: Function, x: Value, coefficients: Sequence[float]) -> Value:
    """The polynomial with these coefficients, the highest power first; by pairs of terms in a function that waits."""
    if f.waits:
        return _by_pairs(f, x, [number(x.type, each) for each in reversed(coefficients)])
    result = number(x.type, coefficients[0])
    for coefficient in coefficients[1:]:
        result = f.fma(result, x, number(x.type, coefficient))
    return result


def _by_pairs(f: Function, x: Value, terms: Sequence[Value]) -> Value:
    """The polynomial with these coefficients, the lowest power first (Estrin 1960)."""
    if len(terms) <= HORNER:
        return reduce(lambda result, term: f.fma(result, x, term), reversed(terms[:-1]), terms[-1])
    pairs = [f.fma(terms[k + 1], x, terms[k]) if k + 1 < len(terms) else terms[k] for k in range(0, len(terms), 2)]
    return _by_pairs(f, f.binary("fmul", x, x), pairs)


def _is_constant(value: Value) -> bool:
    return not value.text.startswith("%")


def minimum(f: Function, a: Value, b: Value) -> Value:
    """The smaller value; NaN if either is NaN. One comparison keeps a NaN of `a`; a NaN of `b` needs another."""
    smaller = f.select(f.compare("olt", b, a), b, a)
    return smaller if _is_constant(b) else f.select(f.compare("uno", b, b), b, smaller)


def maximum(f: Function, a: Value, b: Value) -> Value:
    """The larger value; NaN if either is NaN."""
    larger = f.select(f.compare("ogt", b, a), b, a)
    return larger if _is_constant(b) else f.select(f.compare("uno", b, b), b, larger)


def absolute(f: Function, x: Value) -> Value:
    return f.intrinsic("fabs", x)


def sign(f: Function, x: Value) -> Value:
    zero = number(x.type, 0.0)
    one = f.select(f.compare("ogt", x, zero), number(x.type, 1.0), x)  # zero and NaN stay as they are
    return f.select(f.compare("olt", x, zero), number(x.type, -1.0), one)


def exp(f: Function, x: Value) -> Value:
    low, high = (-104.0, 89.0) if x.type.name == "float" else (-746.0, 710.0)
    x = maximum(f, minimum(f, x, number(x.type, high)), number(x.type, low))
    n, r = _reduced(f, x, 1.4426950408889634, LN2[x.type.name])
    p = f.binary("fadd", f.fma(f.binary("fmul", r, r), polynomial(f, r, EXP[x.type.name]), r), number(x.type, 1.0))
    half = f.binary("ashr", n, number(n.type, 1))
    other = f.binary("sub", n, half)
    return f.binary("fmul", f.binary("fmul", p, _power_of_two(f, half, x.type)), _power_of_two(f, other, x.type))


def expm1(f: Function, x: Value) -> Value:
    return f.intrinsic("copysign", _expm1(f, x), x)  # zero keeps its sign


def _expm1(f: Function, x: Value) -> Value:
    large = f.binary("fsub", exp(f, x), number(x.type, 1.0))
    return f.select(f.compare("olt", absolute(f, x), number(x.type, 20.0)), _moderate_expm1(f, x), large)


def _moderate_expm1(f: Function, x: Value) -> Value:
    """exp(x) - 1 where exp(x) neither overflows nor underflows."""
    n, r = _reduced(f, x, 1.4426950408889634, LN2[x.type.name])
    p = f.fma(f.binary("fmul", r, r), polynomial(f, r, EXP[x.type.name]), r)
    scale = _power_of_two(f, n, x.type)
    return f.fma(p, scale, f.binary("fsub", scale, number(x.type, 1.0)))


def log(f: Function, x: Value) -> Value:
    single = x.type.name == "float"
    integer = x.type.of("i32" if single else "i64")
    bits, bias = (23, 127) if single else (52, 1023)
    tiny = f.compare("olt", x, number(x.type, 2.0 ** (1 - bias)))
    scaled = f.select(tiny, f.binary("fmul", x, number(x.type, 2.0**bits)), x)
    raw = f.cast("bitcast", scaled, integer)
    # The exponent is taken so that the mantissa is in [sqrt(1/2), sqrt(2)).
    root = 0x3F3504F3 if single else 0x3FE6A09E667F3BCD
    shifted = f.binary("sub", raw, number(integer, root))
    if _has_condition_bits(x) and not single:
        k, lifted = _exponents(f, shifted, x.type)
    else:
        exponent = f.binary("ashr", shifted, number(integer, bits))
        k, lifted = f.cast("sitofp", exponent, x.type), f.binary("shl", exponent, number(integer, bits))
    mantissa = f.cast("bitcast", f.binary("sub", raw, lifted), x.type)
    k = f.binary("fsub", k, f.select(tiny, number(x.type, float(bits)), number(x.type, 0.0)))
    d = f.binary("fsub", mantissa, number(x.type, 1.0))
    s = f.binary("fdiv", d, f.binary("fadd", d, number(x.type, 2.0)))
    z = f.binary("fmul", s, s)
    r = f.binary("fmul", z, polynomial(f, z, LOG[x.type.name]))
    high, low = LN2[x.type.name]
    # log(1 + d) = d - s (d - r), since 2 s = d - s d
    correction = f.binary("fmul", s, f.binary("fsub", d, r))
    tail = f.binary("fsub", f.binary("fmul", k, number(x.type, low)), correction)
    result = f.fma(k, number(x.type, high), f.binary("fadd", d, tail))
    zero, infinity = number(x.type, 0.0), number(x.type, float("inf"))
    if _has_condition_bits(x):
        limits = [(infinity, infinity), (zero, number(x.type, float("-inf")))]
        added = [f.cast("bitcast", f.select(f.compare("oeq", x, at), limit, zero), integer) for at, limit in limits]
        result = f.binary("fadd", result, f.cast("bitcast", f.binary("or", *added), x.type))
        ones = f.cast("sext", f.compare("ult", x, zero), integer)  # a NaN
        return f.cast("bitcast", f.binary("or", f.cast("bitcast", result, integer), ones), x.type)
    result = f.select(f.compare("oeq", x, infinity), infinity, result)
    result = f.select(f.compare("oeq", x, zero), number(x.type, float("-inf")), result)
    return f.select(f.compare("ult", x, zero), number(x.type, float("nan")), result)


def _has_condition_bits(x: Value) -> bool:
    """Whether conditions on the vector are vectors of bits, as with AVX2: bitwise operations are faster than selections."""
    return x.type.lanes * x.type.size == AVX2_BYTES


def _exponents(f: Function, shifted: Value, type: Type) -> tuple[Value, Value]:
    """The exponents in the upper bits of integers: as doubles, and in their place. AVX2 has no instruction for either."""
    lift, magic = 1023 << 52, 0x4330000000000000  # 2^52: its lower bits hold integers
    lifted = f.binary("add", shifted, number(shifted.type, lift))
    upper = f.binary("lshr", lifted, number(shifted.type, 52))
    k = f.cast("bitcast", f.binary("or", upper, number(shifted.type, magic)), type)
    exponent = f.binary("fsub", k, number(type, 2.0**52 + 1023.0))
    return exponent, f.binary("sub", f.binary("shl", upper, number(shifted.type, 52)), number(shifted.type, lift))


def log1p(f: Function, x: Value) -> Value:
    one = number(x.type, 1.0)
    u = f.binary("fadd", x, one)
    lost = f.binary("fdiv", f.binary("fsub", x, f.binary("fsub", u, one)), u)  # what rounding took from 1 + x
    ordinary = f.compare("olt", absolute(f, lost), one)  # not at -1 and infinity
    result = f.binary("fadd", log(f, u), f.select(ordinary, lost, number(x.type, 0.0)))
    return f.intrinsic("copysign", result, x)  # zero keeps its sign


def tanh(f: Function, x: Value) -> Value:
    if x.type.name == "float":
        limit = 9.1  # there the quotient is above 1 by several units in the last place
        size, sign = _without_sign(f, x) if x.type.lanes == AVX2_FLOATS else (x, None)
        clipped = minimum(f, size, number(x.type, limit)) if sign else _within(f, x, limit)
        z = f.binary("fmul", clipped, clipped)
        above, below = (polynomial(f, z, coefficients) for coefficients in TANH)
        quotient = f.binary("fdiv", f.binary("fmul", clipped, above), below)
        if sign is None:
            return _within(f, quotient, 1.0)
        bits = f.cast("bitcast", minimum(f, quotient, number(x.type, 1.0)), sign.type)
        return f.cast("bitcast", f.binary("or", bits, sign), x.type)
    size = minimum(f, absolute(f, x), number(x.type, 22.0))
    e = _moderate_expm1(f, f.binary("fadd", size, size))
    result = f.binary("fdiv", e, f.binary("fadd", e, number(x.type, 2.0)))
    return f.intrinsic("copysign", result, x)


def _without_sign(f: Function, x: Value) -> tuple[Value, Value]:
    """The absolute value of a float, and its sign as bits. One constant does for both, and the sign goes back by one "or"."""
    bits = f.cast("bitcast", x, x.type.of("i32"))
    sign = f.binary("and", bits, number(bits.type, -(1 << 31)))
    return f.cast("bitcast", f.binary("xor", bits, sign), x.type), sign


def _within(f: Function, x: Value, limit: float) -> Value:
    """The number nearest to x from -limit to limit."""
    return maximum(f, minimum(f, x, number(x.type, limit)), number(x.type, -limit))


def sin(f: Function, x: Value) -> Value:
    zero = f.compare("oeq", x, number(x.type, 0.0))
    return f.select(zero, x, _circular(f, x, "sin", 0))  # zero keeps its sign


def cos(f: Function, x: Value) -> Value:
    return _circular(f, x, "cos", 1)


def erf(f: Function, x: Value) -> Value:
    name = x.type.name
    size = minimum(f, absolute(f, x), number(x.type, 6.1))
    inner = f.binary("fmul", size, polynomial(f, f.binary("fmul", size, size), ERF_INNER[name]))
    two = number(x.type, 2.0)
    s = f.binary("fdiv", f.binary("fsub", size, two), f.binary("fadd", size, two))
    decay = exp(f, f.binary("fmul", size, f.assign(size.type, f"fneg {size}")))
    outer = f.binary("fsub", number(x.type, 1.0), f.binary("fmul", decay, polynomial(f, s, ERF_OUTER[name])))
    result = f.select(f.compare("ult", size, number(x.type, 0.9)), inner, outer)
    return f.intrinsic("copysign", result, x)


def _reduced(f: Function, x: Value, inverse: float, parts: Sequence[float]) -> tuple[Value, Value]:
    """The nearest integer to x * inverse, and the remainder of x. NaN stays NaN."""
    single = x.type.name == "float"
    magic = number(x.type, 12582912.0 if single else 6755399441055744.0)  # 1.5 * 2^23: adding it rounds
    integer = x.type.of("i32" if single else "i64")
    shifted = f.fma(x, number(x.type, inverse), magic)
    n = f.binary("sub", f.cast("bitcast", shifted, integer), f.cast("bitcast", magic, integer))
    whole = f.binary("fsub", shifted, magic)
    for part in parts:
        x = f.fma(whole, number(x.type, -part), x)
    return n, x


def _power_of_two(f: Function, n: Value, type: Type) -> Value:
    bits, bias = (23, 127) if type.name == "float" else (52, 1023)
    return f.cast("bitcast", f.binary("shl", f.binary("add", n, number(n.type, bias)), number(n.type, bits)), type)


def _circular(f: Function, x: Value, name: str, quarter: int) -> Value:
    """The sine of x + quarter * pi / 2."""
    limit = number(x.type, REDUCED[x.type.name])
    small = f.compare("olt", absolute(f, x), limit)
    every = small if x.type.lanes == 1 else f.call(f"llvm.vector.reduce.and.{small.type.mangled}", Type("i1"), small)

    def reduced() -> Value:
        n, r = _reduced(f, x, 0.6366197723675814, PI_2[x.type.name])
        return circular_parts(f, f.binary("add", n, number(n.type, quarter)), r)

    return f.either(every, reduced, lambda: f.intrinsic(name, x))


def circular_parts(f: Function, n: Value, r: Value) -> Value:
    """The sine of n * pi / 2 + r, for r between -pi / 4 and pi / 4."""
    type = r.type
    z = f.binary("fmul", r, r)
    sine = f.fma(f.binary("fmul", r, z), polynomial(f, z, SIN[type.name]), r)
    fourth = f.binary("fmul", f.binary("fmul", z, z), polynomial(f, z, COS[type.name]))
    cosine = f.binary("fadd", f.fma(z, number(type, -0.5), number(type, 1.0)), fourth)
    odd = f.compare("ne", f.binary("and", n, number(n.type, 1)), number(n.type, 0))
    result = f.select(odd, cosine, sine)
    negative = f.compare("ne", f.binary("and", n, number(n.type, 2)), number(n.type, 0))
    return f.select(negative, f.assign(type, f"fneg {result}"), result)


ELEMENTARY = ("exp", "log", "log1p", "expm1", "tanh", "sin", "cos", "erf")  # functions of a dozen instructions or more
FUNCTIONS: dict[str, Callable[[Function, Value], Value]] = {
    **{function.__name__: function for function in (exp, log, log1p, expm1, tanh, sin, cos, erf, sign)},
    "abs": absolute,
    "sqrt": lambda f, x: f.intrinsic("sqrt", x),
    "floor": lambda f, x: f.intrinsic("floor", x),
    "neg": lambda f, x: f.assign(x.type, f"fneg {x}"),
}
