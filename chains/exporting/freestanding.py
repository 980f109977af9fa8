"""The functions of C's mathematical library that LLVM's code would call: powers, and the sine and cosine of large arguments.

All of them are computed number by number in double precision. Powers carry the logarithm in two doubles, so that they are
within a unit in the last place; that of a known base is a constant. Sine and cosine take quarter turns off by as many digits
of 2 / pi as the argument needs (Payne and Hanek, "Radian reduction for trigonometric functions", 1983), and are within three
units.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal, localcontext

from chains.backends.native.llvm.emit import I32, I64, Function, Module, Type, Value, integer, number
from chains.backends.native.llvm.vectormath import circular_parts, polynomial

DOUBLE, I128 = Type("double"), Type("i128")
Pair = tuple[Value, Value]  # a number as the sum of two doubles, the second one far smaller


def freestanding(text: str) -> str:
    """The assembly with these functions instead of the library's."""
    text, bases = _with_known_bases(text)
    called = dict.fromkeys(re.findall(r"^declare (\S.*?) @llvm\.(pow|sin|cos)\.(\w+)\(", text, re.MULTILINE))
    if not called and not bases:
        return text
    text = re.sub(r"^declare .* @llvm\.(pow|sin|cos)\..*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"@llvm\.(pow|sin|cos)\.", r"@chains.\1.", text)
    module = Module()
    for name in dict.fromkeys(name for _, name, _ in called):
        module.add(_WRITERS[name](module), "internal")
    for base in bases:
        module.add(_power_of(module, base), "internal")
    for type, name, mangled in called:
        module.add(_each(module, name, mangled, type), "internal")
    own, _, _ = module.text().rpartition("attributes")
    declared = set(re.findall(r"^declare .*\n", text, re.MULTILINE))
    own = "".join(line for line in own.splitlines(keepends=True) if line not in declared)
    return text.replace("attributes #0", own.replace("@table", "@chains.table") + "attributes #0")


_KNOWN = re.compile(r"@llvm\.pow\.f64\(double 0x([0-9A-F]{16}), ")


def _with_known_bases(text: str) -> tuple[str, list[float]]:
    """The assembly with a function for each known base of powers, and these bases: their logarithms are known too."""
    digits = [each for each in dict.fromkeys(_KNOWN.findall(text)) if 0.0 < _double(each) < math.inf and _double(each) != 1.0]
    for each in digits:
        text = text.replace(f"@llvm.pow.f64(double 0x{each}, ", f"@{_name(_double(each))}(")
    if "call double @llvm.pow.f64(" not in text:
        text = re.sub(r"^declare .* @llvm\.pow\.f64\(.*\n", "", text, flags=re.MULTILINE)
    return text, [_double(each) for each in digits]


def _double(digits: str) -> float:
    return float(struct.unpack(">d", bytes.fromhex(digits))[0])


def _name(base: float) -> str:
    return f"chains.power.{struct.pack('>d', base).hex()}"


def _power_of(module: Module, base: float) -> Function:
    """The powers of a positive number, which are those of `_pow`."""
    f = Function(module, _name(base), [(DOUBLE, "y")], "double")
    (y,) = f.arguments
    most = number(DOUBLE, 2.0**70)
    bound = f.select(f.compare("ogt", y, most), most, y)
    bound = f.select(f.compare("olt", bound, number(DOUBLE, -(2.0**70))), number(DOUBLE, -(2.0**70)), bound)
    with localcontext() as context:
        context.prec = 50
        log = _pair(Decimal(base).ln())
    result = _exp(f, _times(f, log, (bound, number(DOUBLE, 0.0))))
    f.line(f"ret {f.select(f.compare('uno', y, y), y, result)}")
    return f


def _each(module: Module, name: str, mangled: str, text: str) -> Function:
    """The function on this type: number by number."""
    lanes, scalar = re.fullmatch(r"(?:<(\d+) x )?(\w+)>?", text).groups()  # type: ignore[union-attr]
    type = Type(scalar, int(lanes or 1))
    labels = ["x", "y"] if name == "pow" else ["x"]
    f = Function(module, f"chains.{name}.{mangled}", [(type, label) for label in labels], str(type))

    def of(numbers: list[Value]) -> Value:
        wide = [x if scalar == "double" else f.cast("fpext", x, DOUBLE) for x in numbers]
        result = f.assign(DOUBLE, f"call double @chains.{name}({', '.join(map(str, wide))})")
        return result if scalar == "double" else f.cast("fptrunc", result, Type(scalar))

    if type.lanes == 1:
        f.line(f"ret {of(f.arguments)}")
        return f

    def lane(k: Value, carried: list[Value]) -> list[Value]:
        numbers = [f.assign(Type(scalar), f"extractelement {vector}, {k}") for vector in f.arguments]
        return [f.assign(type, f"insertelement {carried[0]}, {of(numbers)}, {k}")]

    _, (results,) = f.loop(integer(0), integer(type.lanes), 1, lane, [Value("zeroinitializer", type)])
    f.line(f"ret {results}")
    return f


# Sums and products of two doubles with their rounding errors. No instruction here may be contracted.


def _exact(f: Function, operation: str, a: Value, b: Value) -> Value:
    return f.assign(a.type, f"{operation} {a}, {b.text}")


def _two_sum(f: Function, a: Value, b: Value) -> Pair:
    total = _exact(f, "fadd", a, b)
    other = _exact(f, "fsub", total, a)
    lost = _exact(f, "fadd", _exact(f, "fsub", a, _exact(f, "fsub", total, other)), _exact(f, "fsub", b, other))
    return total, lost


def _split(f: Function, a: Value) -> Pair:
    """The upper and the lower 26 bits (Dekker 1971)."""
    scaled = _exact(f, "fmul", a, number(DOUBLE, 2.0**27 + 1.0))
    high = _exact(f, "fsub", scaled, _exact(f, "fsub", scaled, a))
    return high, _exact(f, "fsub", a, high)


def _two_product(f: Function, a: Value, b: Value) -> Pair:
    product = _exact(f, "fmul", a, b)
    (a1, a2), (b1, b2) = _split(f, a), _split(f, b)
    rest = _exact(f, "fsub", _exact(f, "fmul", a1, b1), product)
    for x, y in ((a1, b2), (a2, b1), (a2, b2)):
        rest = _exact(f, "fadd", rest, _exact(f, "fmul", x, y))
    return product, rest


def _times(f: Function, a: Pair, b: Pair) -> Pair:
    high, low = _two_product(f, a[0], b[0])
    low = _exact(f, "fadd", low, _exact(f, "fadd", _exact(f, "fmul", a[0], b[1]), _exact(f, "fmul", a[1], b[0])))
    return _two_sum(f, high, low)


def _plus(f: Function, a: Pair, b: Pair) -> Pair:
    high, low = _two_sum(f, a[0], b[0])
    return _two_sum(f, high, _exact(f, "fadd", low, _exact(f, "fadd", a[1], b[1])))


def _pair(value: Decimal) -> Pair:
    high = float(value)
    return number(DOUBLE, high), number(DOUBLE, float(value - Decimal(high)))


# Powers


def _pow(module: Module) -> Function:
    """``chains.pow(x, y)``, with C's special cases."""
    f = Function(module, "chains.pow", [(DOUBLE, "x"), (DOUBLE, "y")], "double")
    x, y = f.arguments
    zero, one, infinity = (number(DOUBLE, value) for value in (0.0, 1.0, math.inf))
    size, most = f.intrinsic("fabs", x), number(DOUBLE, 2.0**70)
    bound = f.select(f.compare("ogt", y, most), most, y)  # beyond, the result is 0 or infinite, or 1
    bound = f.select(f.compare("olt", bound, number(DOUBLE, -(2.0**70))), number(DOUBLE, -(2.0**70)), bound)
    result = _exp(f, _times(f, _log(f, size), (bound, zero)))
    vanishes = f.compare("ogt", y, zero)  # at 0, and otherwise at infinity
    result = f.select(f.compare("oeq", size, zero), f.select(vanishes, zero, infinity), result)
    result = f.select(f.compare("oeq", size, infinity), f.select(vanishes, infinity, zero), result)
    result = f.select(f.compare("oeq", size, one), one, result)
    whole = f.compare("oeq", f.intrinsic("floor", y), y)
    half = f.binary("fmul", y, number(DOUBLE, 0.5))
    odd = f.binary("and", whole, f.compare("une", f.intrinsic("floor", half), half))
    negative = f.compare("slt", f.cast("bitcast", x, I64), integer(0))
    turned = f.binary("and", odd, negative)
    result = f.select(turned, f.assign(DOUBLE, f"fneg {result}"), result)
    strange = f.binary("and", f.compare("olt", x, zero), f.binary("xor", whole, Value("true", whole.type)))
    finite = f.compare("olt", size, infinity)
    result = f.select(f.binary("and", strange, finite), number(DOUBLE, math.nan), result)
    result = f.select(f.compare("uno", x, y), _exact(f, "fadd", x, y), result)
    certain = f.binary("or", f.compare("oeq", y, zero), f.compare("oeq", x, one))
    f.line(f"ret {f.select(certain, one, result)}")
    return f


def _log(f: Function, x: Value) -> Pair:
    """The logarithm of a positive number in two doubles: 2 atanh(s) of the mantissa, s = (m - 1) / (m + 1)."""
    tiny = f.compare("olt", x, number(DOUBLE, 2.0**-1022))
    bits = f.cast("bitcast", f.select(tiny, f.binary("fmul", x, number(DOUBLE, 2.0**54)), x), I64)
    exponent = f.binary("ashr", f.binary("sub", bits, integer(0x3FE6A09E667F3BCD)), integer(52))
    m = f.cast("bitcast", f.binary("sub", bits, f.binary("shl", exponent, integer(52))), DOUBLE)
    exponent = f.binary("sub", exponent, f.select(tiny, integer(54), integer(0)))
    k = f.cast("sitofp", f.cast("trunc", exponent, I32), DOUBLE)
    one = number(DOUBLE, 1.0)
    above, below = _exact(f, "fsub", m, one), _two_sum(f, m, one)
    high = _exact(f, "fdiv", above, below[0])
    back, lost = _two_product(f, high, below[0])
    left = _exact(f, "fsub", _exact(f, "fsub", _exact(f, "fsub", above, back), lost), _exact(f, "fmul", high, below[1]))
    s = _two_sum(f, high, _exact(f, "fdiv", left, below[0]))
    z = _times(f, s, s)
    tail = polynomial(f, z[0], [2.0 / power for power in range(27, 7, -2)])
    with localcontext() as context:
        context.prec = 50
        series: Pair = (tail, number(DOUBLE, 0.0))
        for power in (7, 5, 3):
            series = _plus(f, _pair(Decimal(2) / power), _times(f, z, series))
        ln2 = _pair(Decimal(2).ln())
    series = _times(f, _times(f, s, z), series)
    log = _plus(f, (_exact(f, "fadd", s[0], s[0]), _exact(f, "fadd", s[1], s[1])), series)
    return _plus(f, _times(f, (k, number(DOUBLE, 0.0)), ln2), log)


def _exp(f: Function, x: Pair) -> Value:
    """e to the power of a number in two doubles."""
    low, high = number(DOUBLE, -800.0), number(DOUBLE, 800.0)
    size = f.select(f.compare("ogt", x[0], high), high, x[0])
    size = f.select(f.compare("olt", size, low), low, size)
    rest = f.select(f.compare("oeq", size, x[0]), x[1], number(DOUBLE, 0.0))
    magic = number(DOUBLE, 6755399441055744.0)  # 1.5 * 2^52: adding it rounds
    shifted = _exact(f, "fadd", _exact(f, "fmul", size, number(DOUBLE, 1.4426950408889634)), magic)
    n = f.binary("sub", f.cast("bitcast", shifted, I64), f.cast("bitcast", magic, I64))
    turns = _exact(f, "fsub", shifted, magic)
    with localcontext() as context:
        context.prec = 50
        ln2 = _pair(-Decimal(2).ln())
    r = _plus(f, (size, rest), _times(f, (turns, number(DOUBLE, 0.0)), ln2))
    square = f.binary("fmul", r[0], r[0])
    p = f.binary("fmul", square, polynomial(f, r[0], [1.0 / math.factorial(k) for k in range(14, 1, -1)]))
    total, lost = _two_sum(f, number(DOUBLE, 1.0), r[0])
    sum = _exact(f, "fadd", total, _exact(f, "fadd", lost, _exact(f, "fadd", p, r[1])))
    half = f.binary("ashr", n, integer(1))
    for power in (half, f.binary("sub", n, half)):
        scale = f.cast("bitcast", f.binary("shl", f.add(power, 1023), integer(52)), DOUBLE)
        sum = _exact(f, "fmul", sum, scale)
    return sum


# Sine and cosine

_ZEROS, _WORDS = 128, 24  # bits before those of 2 / pi, so that small numbers need no special case; words of 64 bits


def _two_over_pi() -> list[int]:
    """2 / pi as words, highest first, after this many zeros."""
    digits = 64 * _WORDS - _ZEROS
    with localcontext() as context:
        context.prec = digits // 3 + 40
        bits = int(Decimal(2) ** (digits + 1) / _pi())
    return [bits >> 64 * (_WORDS - 1 - k) & (1 << 64) - 1 for k in range(_WORDS)]


def _pi() -> Decimal:
    """Pi by Machin's formula, in the digits of the context."""

    def arctan_of_inverse(n: int) -> Decimal:
        power = total = Decimal(1) / n
        k = 1
        while power:
            power /= -n * n
            k += 2
            before, total = total, total + power / k
            if total == before:
                break
        return total

    return 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))


def _circular(quarter: int, name: str) -> Callable[[Module], Function]:
    """``chains.sin(x)`` or ``chains.cos(x)``."""

    def write(module: Module) -> Function:
        f = Function(module, f"chains.{name}", [(DOUBLE, "x")], "double")
        (x,) = f.arguments
        bits = f.cast("bitcast", x, I64)
        size = f.intrinsic("fabs", x)
        exponent = f.binary("and", f.binary("lshr", bits, integer(52)), integer(2047))
        mantissa = f.binary("or", f.binary("and", bits, integer((1 << 52) - 1)), integer(1 << 52))
        # Digit i of 2 / pi, i = 1, 2, ..., counts mantissa * 2^(exponent - 1075 - i) quarter turns; four of them are none.
        first = f.add(exponent, _ZEROS - 1075 - 2)
        usual = f.binary(
            "and", f.compare("ogt", size, number(DOUBLE, 2.0**-70)), f.compare("one", size, number(DOUBLE, math.inf))
        )

        def turned() -> Value:
            n, r = _reduced(f, module, mantissa, first)
            below = f.compare("slt", bits, integer(0))
            n = f.select(below, f.binary("sub", integer(0), n), n)
            r = f.select(below, f.assign(DOUBLE, f"fneg {r}"), r)
            return circular_parts(f, f.add(n, quarter), r)

        def limit() -> Value:
            near = x if name == "sin" else number(DOUBLE, 1.0)
            return f.select(f.compare("olt", size, number(DOUBLE, 1.0)), near, _exact(f, "fsub", x, x))

        f.line(f"ret {f.either(usual, turned, limit)}")
        return f

    return write


def _reduced(f: Function, module: Module, mantissa: Value, first: Value) -> tuple[Value, Value]:
    """The nearest number of quarter turns, of which the last two bits count, and the rest of the angle."""
    words = module.table([word - (1 << 64) if word >> 63 else word for word in _two_over_pi()])
    at, shift = f.binary("lshr", first, integer(6)), f.binary("and", first, integer(63))
    back = f.binary("sub", integer(63), shift)

    def window(k: int) -> Value:
        """64 digits, beginning 64 k after the first."""
        place = f.address(words, f.add(at, k), I64)
        high, low = f.load(I64, place), f.load(I64, f.address(place, integer(1), I64))
        return f.binary("or", f.binary("shl", high, shift), f.binary("lshr", f.binary("lshr", low, integer(1)), back))

    def product(word: Value) -> tuple[Value, Value]:
        wide = f.binary("mul", f.cast("zext", word, I128), f.cast("zext", mantissa, I128))
        return f.cast("trunc", f.binary("lshr", wide, Value("64", I128)), I64), f.cast("trunc", wide, I64)

    (_, top), (middle, upper), (lower, _) = (product(window(k)) for k in range(3))
    second = f.binary("add", upper, lower)
    carry = f.cast("zext", f.compare("ult", second, upper), I64)
    head = f.binary("add", f.binary("add", top, middle), carry)
    n = f.binary("lshr", head, integer(62))
    fraction = f.binary("or", f.binary("shl", head, integer(2)), f.binary("lshr", second, integer(62)))
    beyond = f.binary("shl", second, integer(2))
    over = f.compare("slt", fraction, integer(0))  # more than half a quarter turn: measured from the other side
    n = f.binary("add", n, f.cast("zext", over, I64))
    some = f.cast("zext", f.compare("eq", beyond, integer(0)), I64)
    negated = f.binary("add", f.binary("xor", fraction, integer(-1)), some)
    high = f.select(over, negated, fraction)
    low = f.select(over, f.binary("sub", integer(0), beyond), beyond)
    part = f.binary("fmul", f.cast("uitofp", high, DOUBLE), number(DOUBLE, 2.0**-64))
    rest = f.binary("fmul", f.cast("uitofp", low, DOUBLE), number(DOUBLE, 2.0**-128))
    r = f.binary("fmul", f.binary("fadd", part, rest), number(DOUBLE, math.pi / 2))
    return n, f.select(over, f.assign(DOUBLE, f"fneg {r}"), r)


_WRITERS = {"pow": _pow, "sin": _circular(0, "sin"), "cos": _circular(1, "cos")}
