"""Blocks of products as functions that products of all sizes share: lengths and distances between rows are arguments.

So a program of many different products compiles in a fraction of the time. A call takes a few nanoseconds, a block about fifty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.kernels.products import FusedProduct, ResultBlock
from chains.backends.native.llvm.emit import I64, Function, Type, Value, integer, lanes_of, real_type
from chains.backends.native.llvm.loops import Step, accumulate, accumulators_for, combined, multiply_add

UNROLLED_MULTIPLY_ADDS = 24  # in one straight run of code, at most: with more, LLVM keeps operands in memory


@dataclass(frozen=True)
class Rows:
    """Rows of numbers: the address of the first one, and the distance between two."""

    first: Value
    distance: Value
    scalar: Type

    def row(self, g: Function, k: Value | int) -> Value:
        return g.address(self.first, g.mul(self.distance, k), self.scalar)

    def vectors(self, g: Function, k: Value, lanes: int, masks: Iterable[Value | None]) -> list[Value]:
        """The vectors of row k, one for each mask."""
        row, type = self.row(g, k), Type(self.scalar.name, lanes)
        return [g.load(type, g.address(row, integer(c * lanes), self.scalar), mask) for c, mask in enumerate(masks)]


@dataclass(frozen=True)
class Operands:
    """What the function of a block is called with."""

    a: Rows
    b: Rows
    out: Rows
    length: Value  # of the sums
    columns: Value  # of the last vector, where that has a mask
    begins: Value  # other than 0 where sums begin here

    def values(self) -> list[Value]:
        """The arguments of a call."""
        rows = [value for each in (self.a, self.b, self.out) for value in (each.first, each.distance)]
        return [*rows, self.length, self.columns, self.begins]

    def within(self, arguments: list[Value]) -> Operands:
        """The same inside the function, which has the `values` as these arguments."""
        a, b, out = (Rows(arguments[k], arguments[k + 1], self.out.scalar) for k in (0, 2, 4))
        return Operands(a, b, out, *arguments[6:])


def shares_blocks(frame: Frame, product: FusedProduct, lanes: int) -> bool:
    """Whether the blocks of a product are calls: where operands have rows at even distances and contiguous columns."""
    by_pointers = frame.rows is not None and frame.rows.buffer in (product.a.buffer, product.b.buffer)
    return product.shared and lanes > 1 and not by_pointers and product.out.strides[1] == product.b.strides[1] == 1


def call_rows_block(frame: Frame, product: FusedProduct, block: ResultBlock) -> None:
    """Compute a block of results whose rows are those of the left operand."""
    f, a, b = frame.f, product.a, product.b
    scalar = real_type(product.out.dtype)
    along = a.strides[1]

    def write(g: Function, given: Operands, block: ResultBlock) -> None:
        rows = [given.a.row(g, r) for r in range(block.height)]
        masks = [None if product.padded else mask for mask in block.masks]

        def step(k: Value, sums: list[Value]) -> list[Value]:
            vectors = given.b.vectors(g, k, block.lanes, masks)
            numbers = (g.load(scalar, g.address(row, g.mul(k, along), scalar)) for row in rows)
            return multiply_add(g, numbers, vectors, sums)

        sums = _sums(g, given.length, step, block.zeros(scalar))
        for (r, c, mask), total in zip(block.places(), sums, strict=True):
            place = g.address(given.out.row(g, r), integer(c * block.lanes), scalar)
            if product.accumulate:
                total = g.binary("fadd", total, g.load(total.type, place, mask))
            g.store(total, place, mask)

    left = Rows(frame.row(a, block.row, a.strides[0]), integer(a.strides[0]), scalar)
    right = Rows(f.address(frame.base(b), block.column, scalar), integer(b.strides[0]), scalar)
    length = integer(int(a.shape[1]))  # type: ignore[arg-type]
    given = Operands(left, right, _results(frame, product, block), length, _columns(block), integer(0))
    _call(frame, ("rows", along, product.padded, product.accumulate), write, given, block)


def call_sums_block(frame: Frame, product: FusedProduct, block: ResultBlock, start: Value, count: Value) -> None:
    """Compute a block of sums over `count` samples from `start` on; add it to the present sums unless sums begin here."""
    f, a, b = frame.f, product.a, product.b
    scalar = real_type(product.out.dtype)
    across = a.strides[0]

    def write(g: Function, given: Operands, block: ResultBlock) -> None:
        def step(s: Value, sums: list[Value]) -> list[Value]:
            sample = given.a.row(g, s)
            numbers = (g.load(scalar, g.address(sample, integer(r * across), scalar)) for r in range(block.height))
            return multiply_add(g, numbers, given.b.vectors(g, s, block.lanes, block.masks), sums)

        sums = _sums(g, given.length, step, block.zeros(scalar))
        begins = g.compare("ne", given.begins, integer(0))
        for (r, c, mask), total in zip(block.places(), sums, strict=True):
            place = g.address(given.out.row(g, r), integer(c * block.lanes), scalar)
            before = g.load(total.type, place, mask)
            g.store(g.select(begins, total, g.binary("fadd", before, total)), place, mask)

    first_a = f.address(frame.row(a, start, a.strides[1]), f.mul(block.row, across), scalar)
    first_b = f.address(frame.row(b, start, b.strides[0]), block.column, scalar)
    begins = integer(0) if frame.first is None else f.cast("zext", frame.first, I64)
    left, right = Rows(first_a, integer(a.strides[1]), scalar), Rows(first_b, integer(b.strides[0]), scalar)
    given = Operands(left, right, _results(frame, product, block), count, _columns(block), begins)
    _call(frame, ("sums", across), write, given, block)


def _results(frame: Frame, product: FusedProduct, block: ResultBlock) -> Rows:
    """The memory that a block of results is written to."""
    f, out = frame.f, product.out
    scalar = real_type(out.dtype)
    first = f.address(f.address(frame.base(out), f.mul(block.row, out.strides[0]), scalar), block.column, scalar)
    return Rows(first, integer(out.strides[0]), scalar)


def _columns(block: ResultBlock) -> Value:
    """The number of columns of a block's last vector."""
    return integer(lanes_of(block.masks[-1], block.lanes))


_Write = Callable[[Function, Operands, ResultBlock], None]


def _call(frame: Frame, kind: tuple[object, ...], write: _Write, given: Operands, block: ResultBlock) -> None:
    """Call the function of this kind of block, which `write` fills; the lanes of a mask are an argument too."""
    f, lanes, last = frame.f, block.lanes, block.masks[-1]

    def body(g: Function, arguments: list[Value]) -> None:
        inside = given.within(arguments)
        mask = None if last is None else g.first_lanes(lanes, inside.columns)
        write(g, inside, replace(block, masks=[*block.masks[:-1], mask]))

    arguments = given.values()
    key = (*kind, block.height, given.out.scalar.name, lanes, len(block.masks), last is None)
    name = f.module.outline("block", [argument.type for argument in arguments], body, key)
    f.invoke(name, None, *arguments)


def _sums(g: Function, length: Value, step: Step, begin: list[Value]) -> list[Value]:
    """``for k in range(length): sums = step(k, sums)``, with a few steps in a run of code, or several accumulators per sum."""
    width, several = len(begin), accumulators_for(len(begin))
    if several > 1:
        return accumulate(g, length, several, step, begin)
    run = max(1, UNROLLED_MULTIPLY_ADDS // width)

    def steps(k: Value, sums: list[Value]) -> list[Value]:
        for u in range(run):
            sums = step(g.add(k, u), sums)
        return sums

    position, sums = g.loop(integer(0), g.add(length, 1 - run), run, steps, begin)
    return g.loop(position, length, 1, step, combined(g, sums, width))[1]
