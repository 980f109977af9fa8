"""Random numbers, the same as NumPy's: Philox4x64-10."""

from __future__ import annotations

from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.llvm.emit import I64, Function, Type, Value, integer, number, real_type
from chains.program.operations import Random


def lower_random(frame: Frame, operation: Random) -> None:
    """Uniform numbers from Philox4x64-10, in blocks of 8 elements; see `chains.program.operations.Random`."""
    f = frame.f
    (out,), (key, *first) = operation.outs, operation.ins
    key_pointer, pointer = frame.base(key), frame.base(out)
    seed, step = (f.load(I64, f.address(key_pointer, integer(k), I64)) for k in range(2))
    scalar = real_type(out.dtype)
    start, count = (frame.start, frame.count) if out.batched else (integer(0), integer(1))
    for position in first:
        start = f.add(start, f.load(I64, frame.base(position)))
    begin = f.mul(start, out.sample_size)
    length = f.mul(count, out.sample_size)
    end = f.add(begin, length)

    def block(i: Value, _: list[Value]) -> list[Value]:
        words = philox(f, [f.add(i, 1), integer(operation.draw), step, integer(0)], [seed, integer(0)])
        vector = Value("poison", Type("i64", 4))
        for k, word in enumerate(words):
            vector = f.assign(vector.type, f"insertelement {vector}, {word}, i64 {k}")
        bits = f.binary("lshr", f.cast("bitcast", vector, Type("i32", 8)), number(Type("i32", 8), 8))
        uniform = f.binary("fmul", f.cast("uitofp", bits, Type(scalar.name, 8)), number(Type(scalar.name, 8), 2.0**-24))
        offset = f.binary("sub", f.mul(i, 8), begin)  # of the block's first element in this view; may be negative
        iota = Value("<" + ", ".join(f"i64 {k}" for k in range(8)) + ">", Type("i64", 8))
        place = f.binary("add", iota, f.splat(offset, 8))
        inside = f.compare("ult", place, f.splat(length, 8))  # unsigned: negative positions are outside too
        f.store(uniform, f.address(pointer, offset, scalar), inside)
        return []

    f.loop(f.binary("lshr", begin, integer(3)), f.binary("lshr", f.add(end, 7), integer(3)), 1, block)


def philox(f: Function, counter: list[Value], key: list[Value]) -> list[Value]:
    """Four 64-bit words (Salmon et al. 2011)."""
    wide = Type("i128")
    for round in range(10):
        if round:
            key = [
                f.add(key[0], integer(0x9E3779B97F4A7C15 - (1 << 64))),
                f.add(key[1], integer(0xBB67AE8584CAA73B - (1 << 64))),
            ]
        parts = []
        for multiplier, word in ((0xD2E7470EE14C6C93, counter[0]), (0xCA5A826395121157, counter[2])):
            product = f.binary("mul", f.cast("zext", word, wide), Value(str(multiplier), wide))
            high = f.cast("trunc", f.binary("lshr", product, Value("64", wide)), I64)
            parts.append((high, f.cast("trunc", product, I64)))
        (high0, low0), (high1, low1) = parts
        counter = [
            f.binary("xor", f.binary("xor", high1, counter[1]), key[0]),
            low1,
            f.binary("xor", f.binary("xor", high0, counter[3]), key[1]),
            low0,
        ]
    return counter
