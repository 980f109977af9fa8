"""Blocks of products as functions that products of all sizes share: lengths and distances between rows are arguments.

A program of many different products compiles in a fraction of the time so. A call takes some nanoseconds, a block some fifty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.kernels.fusion import FusedProduct
from chains.backends.native.llvm.accumulators import accumulate, accumulators_for, combined
from chains.backends.native.llvm.emit import I64, Function, Type, Value, integer, number, real_type

UNROLLED_MULTIPLY_ADDS = 24  # in one straight run of code, at most: with more, LLVM keeps operands in memory


def shares_blocks(frame: Frame, product: FusedProduct, lanes: int) -> bool:
    """Whether the blocks of a product are calls: where operands lie in memory at even distances, with columns side by side."""
    by_pointers = frame.rows is not None and frame.rows.buffer in (product.a.buffer, product.b.buffer)
    return product.shared and lanes > 1 and not by_pointers and product.out.strides[1] == product.b.strides[1] == 1


def call_rows_block(
    frame: Frame, product: FusedProduct, row: Value, block: int, column: Value, masks: list[Value | None], lanes: int
) -> None:
    """Compute `block` rows from `row` on, and a vector of columns for each mask, from `column` on."""
    f, a, b = frame.f, product.a, product.b
    scalar = real_type(product.out.dtype)
    inner = integer(int(a.shape[1]))  # type: ignore[arg-type]
    places = [(frame.row(a, row, a.strides[0]), a.strides[0]), (f.address(frame.base(b), column, scalar), b.strides[0])]
    begin = [number(Type(scalar.name, lanes), 0.0)] * (block * len(masks))
    along = a.strides[1]

    def write(g: Function, a: _Rows, b: _Rows, out: _Rows, length: Value, masks: list[Value | None], first: Value) -> None:
        def step(k: Value, sums: list[Value]) -> list[Value]:
            vectors = b.vectors(g, k, lanes, [None if product.padded else mask for mask in masks])
            numbers = (g.load(scalar, g.address(row, g.mul(k, along), scalar)) for row in rows)
            return _multiplied(g, numbers, vectors, sums)

        rows = [a.row(g, r) for r in range(block)]
        sums = _sums(g, length, step, begin)
        for r in range(block):
            for c, mask in enumerate(masks):
                total, place = sums[r * len(masks) + c], g.address(out.row(g, r), integer(c * lanes), scalar)
                if product.accumulate:
                    total = g.binary("fadd", total, g.load(total.type, place, mask))
                g.store(total, place, mask)

    key = "rows", block, along, product.padded, product.accumulate
    _call(frame, product, key, write, places, inner, row, column, masks, lanes, None)


def call_sums_block(
    frame: Frame,
    product: FusedProduct,
    start: Value,
    count: Value,
    row: Value,
    block: int,
    column: Value,
    masks: list[Value | None],
    lanes: int,
) -> None:
    """Compute `block` rows of sums over `count` samples, and add them to the present sums unless sums begin here."""
    f, a, b = frame.f, product.a, product.b
    scalar = real_type(product.out.dtype)
    across = a.strides[0]
    left = f.address(frame.row(a, start, a.strides[1]), f.mul(row, across), scalar)
    right = f.address(frame.row(b, start, b.strides[0]), column, scalar)
    begin = [number(Type(scalar.name, lanes), 0.0)] * (block * len(masks))

    def write(g: Function, a: _Rows, b: _Rows, out: _Rows, length: Value, masks: list[Value | None], first: Value) -> None:
        def step(s: Value, sums: list[Value]) -> list[Value]:
            sample = a.row(g, s)
            numbers = (g.load(scalar, g.address(sample, integer(r * across), scalar)) for r in range(block))
            return _multiplied(g, numbers, b.vectors(g, s, lanes, masks), sums)

        sums = _sums(g, length, step, begin)
        begins = g.compare("ne", first, integer(0))
        for r in range(block):
            for c, mask in enumerate(masks):
                total, place = sums[r * len(masks) + c], g.address(out.row(g, r), integer(c * lanes), scalar)
                before = g.load(total.type, place, mask)
                g.store(g.select(begins, total, g.binary("fadd", before, total)), place, mask)

    first = integer(0) if frame.first is None else f.cast("zext", frame.first, I64)
    key = "sums", block, across
    _call(frame, product, key, write, [(left, a.strides[1]), (right, b.strides[0])], count, row, column, masks, lanes, first)


class _Rows:
    """Rows of numbers inside a function: the address of the first one, and the distance between two."""

    def __init__(self, first: Value, distance: Value, scalar: Type) -> None:
        self.first, self.distance, self.scalar = first, distance, scalar

    def row(self, g: Function, k: Value | int) -> Value:
        return g.address(self.first, g.mul(self.distance, k), self.scalar)

    def vectors(self, g: Function, k: Value, lanes: int, masks: list[Value | None]) -> list[Value]:
        """The vectors of row k, one for each mask."""
        row, type = self.row(g, k), Type(self.scalar.name, lanes)
        return [g.load(type, g.address(row, integer(c * lanes), self.scalar), mask) for c, mask in enumerate(masks)]


_Write = Callable[[Function, _Rows, _Rows, _Rows, Value, list[Value | None], Value], None]


def _call(
    frame: Frame,
    product: FusedProduct,
    key: tuple[object, ...],
    write: _Write,
    places: list[tuple[Value, int]],
    length: Value,
    row: Value,
    column: Value,
    masks: list[Value | None],
    lanes: int,
    first: Value | None,
) -> None:
    """Call the function of this kind of block, which `write` fills; the lanes of a mask are an argument too."""
    f, out = frame.f, product.out
    scalar = real_type(out.dtype)
    last = masks[-1]
    target = f.address(f.address(frame.base(out), f.mul(row, out.strides[0]), scalar), column, scalar)
    pairs = [*places, (target, out.strides[0])]
    arguments = [each for place, distance in pairs for each in (place, integer(distance))]
    arguments += [length, integer(lanes if last is None else last.text.count("i1 1")), first or integer(0)]

    def body(g: Function, given: list[Value]) -> None:
        a, b, out = (_Rows(given[k], given[k + 1], scalar) for k in (0, 2, 4))
        inside = [*masks[:-1], None if last is None else g.first_lanes(lanes, given[7])]
        write(g, a, b, out, given[6], inside, given[8])

    whole = (*key, scalar.name, lanes, len(masks), last is None)
    name = f.module.outline("block", [argument.type for argument in arguments], body, whole)
    f.line(f"call void @{name}({', '.join(map(str, arguments))})")


def _multiplied(g: Function, numbers: Iterable[Value], vectors: list[Value], sums: list[Value]) -> list[Value]:
    """The sums, with the products of every number and every vector added."""
    results = []
    for r, x in enumerate(numbers):
        repeated = g.splat(x, vectors[0].type.lanes)
        results += [g.fma(repeated, vector, sums[r * len(vectors) + c]) for c, vector in enumerate(vectors)]
    return results


def _sums(g: Function, length: Value, step: Callable[[Value, list[Value]], list[Value]], begin: list[Value]) -> list[Value]:
    """``for k in range(length): sums = step(k, sums)``, with a few steps in a run of code, or several accumulators per sum."""
    width, several = len(begin), accumulators_for(len(begin))
    if several > 1:
        return accumulate(g, length, several, step, begin, begin[0], partial(g.binary, "fadd"))
    run = max(1, UNROLLED_MULTIPLY_ADDS // width)

    def steps(k: Value, sums: list[Value]) -> list[Value]:
        for u in range(run):
            sums = step(g.add(k, u), sums)
        return sums

    position, sums = g.loop(integer(0), g.add(length, 1 - run), run, steps, begin)
    return g.loop(position, length, 1, step, combined(sums, width, partial(g.binary, "fadd")))[1]
