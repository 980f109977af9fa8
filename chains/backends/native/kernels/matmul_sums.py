"""Products that sum over the samples, such as gradients of weights, as register-blocked kernels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.kernels.epilogue import ResultBlock, store_block
from chains.backends.native.kernels.fusion import FusedProduct
from chains.backends.native.kernels.matmul_shared import call_sums_block, shares_blocks
from chains.backends.native.kernels.prefetch import prefetch_lines, prefetch_row, reads_samples
from chains.backends.native.llvm.accumulators import accumulate, accumulators_for
from chains.backends.native.llvm.blocking import blocks, panels
from chains.backends.native.llvm.emit import Type, Value, integer, lanes_of, real_type
from chains.backends.native.llvm.shuffles import interleaved
from chains.program.view import Batch

FIRST_LEVEL_CACHE_BYTES = 32 << 10  # bytes of the smallest first-level caches
SECOND_LEVEL_CACHE_BYTES = 256 << 10  # bytes of the smallest second-level caches
PART_BYTES = 256 << 10  # of both operands: they stay in a second-level cache, and their pages in the TLB
MIN_PART = 64  # fewest rows of a part: with fewer, writing and reading the sums again costs too much


def lower_matmul_sums(frame: Frame, product: FusedProduct) -> None:
    """Blocks of the result, each a sum over the samples of the tile.

    If samples have many rows, the rows are taken in parts, since every block of the result reads a few columns of all rows.
    """
    product = product.turned(frame.lanes)
    frame = replace(frame, first=frame.begins(product.accumulate, product.continued))
    f, summed = frame.f, product.a.shape[1]
    count = frame.extent(summed)
    length = PART_BYTES // (sum(product.out.sample_shape) * product.out.dtype.itemsize)
    if product.maps or not isinstance(summed, Batch) or summed.per_sample == 1 or length < MIN_PART:
        _sum(frame, product, integer(0), count)
        return

    def part(begin: Value, _: list[Value]) -> None:
        first = frame.first and f.binary("and", frame.first, f.compare("eq", begin, integer(0)))
        _sum(replace(frame, first=first), product, begin, f.least(f.binary("sub", count, begin), integer(length)))

    f.loop(integer(0), count, length, part)


def _sum(frame: Frame, product: FusedProduct, begin: Value, count: Value) -> None:
    """The sum over `count` rows of the operands."""
    rows, columns = (int(extent) for extent in product.out.shape)  # type: ignore[arg-type]
    f = frame.f
    lanes = frame.lanes if product.b.strides[1] == 1 else 1
    vectors = -(-columns // lanes)
    prefetch = reads_samples(product.a)
    height, panel = frame.shapes.matmul_sums.block(vectors)
    height = min(rows, height)

    def block(i: Value, size: int, column: Value, masks: list[Value | None]) -> None:
        _sum_block(frame, product, ResultBlock(i, size, column, masks, lanes), begin, count)
        if prefetch and size == height:
            prefetch_lines(frame)

    if frame.small_tiles and rows * columns * product.out.dtype.itemsize > frame.shapes.sums_by_rows:
        # The operands of a few samples stay in cache; the result, from beyond it, is read as it lies.
        blocks(f, rows, height, lambda i, size: panels(f, columns, lanes, panel, partial(block, i, size)))
    else:
        panels(
            f,
            columns,
            lanes,
            panel,
            lambda column, masks: blocks(f, rows, height, lambda i, size: block(i, size, column, masks)),
        )


def _sum_block(frame: Frame, product: FusedProduct, block: ResultBlock, begin: Value, count: Value) -> None:
    """A block of the result: the sums over `count` rows of the operands from `begin` on."""
    if not product.maps and shares_blocks(frame, product, block.lanes):
        call_sums_block(frame, product, block, begin, count)
        return
    f, out, a, b = frame.f, product.out, product.a, product.b
    row, height, column, masks, lanes = block.row, block.height, block.column, block.masks, block.lanes
    scalar = real_type(out.dtype)
    type = Type(scalar.name, lanes)

    def step(i: Value, sums: list[Value]) -> list[Value]:
        s = f.add(begin, i)
        b_row = f.address(frame.row(b, s, b.strides[0]), f.mul(column, b.strides[1]), scalar)
        a_column = f.address(frame.row(a, s, a.strides[1]), f.mul(row, a.strides[0]), scalar)
        vectors = [
            f.load(type, f.address(b_row, integer(c * lanes * b.strides[1]), scalar), mask) for c, mask in enumerate(masks)
        ]
        results = []
        for r in range(height):
            x = f.splat(f.load(scalar, f.address(a_column, integer(r * a.strides[0]), scalar)), lanes)
            results += [f.fma(x, v, sums[r * len(masks) + c]) for c, v in enumerate(vectors)]
        return results

    _prefetch_updated(frame, product, block)
    start = block.zeros(scalar)
    sums = accumulate(f, count, accumulators_for(len(start)), step, start, start[0], partial(f.binary, "fadd"))

    def add_interleaved() -> None:
        for c, mask in enumerate(masks):
            first = f.address(frame.base(out), f.mul(f.add(column, c * lanes), height), scalar)
            left = height * lanes_of(mask, lanes)
            for k, total in enumerate(interleaved(f, sums[c :: len(masks)])[: -(-left // lanes)]):
                pointer = f.address(first, integer(k * lanes), scalar)
                _add(frame, total, pointer, f.lane_mask(lanes, left - k * lanes))

    def add_up() -> None:
        if out.shape[0] == height and out.strides == (1, height) and height & (height - 1) == 0:  # all rows of a transpose
            add_interleaved()
            return
        for (r, c, mask), total in zip(block.places(), sums, strict=True):
            offset = f.add(f.mul(f.add(row, r), out.strides[0]), f.mul(f.add(column, c * lanes), out.strides[1]))
            pointer = f.address(frame.base(out), offset, scalar)
            if out.strides[1] == 1:
                _add(frame, total, pointer, mask)
                continue
            for lane in range(lanes_of(mask, lanes)):
                x = f.assign(scalar, f"extractelement {total}, i64 {lane}") if lanes > 1 else total
                _add(frame, x, f.address(pointer, integer(lane * out.strides[1]), scalar), None)

    if product.maps:
        assert frame.whole is not None
        f.when(frame.whole, lambda: store_block(frame, product, block, sums), add_up)
    else:
        add_up()


def _prefetch_updated(frame: Frame, product: FusedProduct, block: ResultBlock) -> None:
    """Prefetch the weights that a later block updates, unless all of them stay in the first-level cache."""
    f, ahead = frame.f, frame.shapes.updates_ahead
    width = block.lanes * len(block.masks)
    for view in dict.fromkeys(view for fused in product.maps for view in fused.outs):
        if not ahead or view.sample_size * view.dtype.itemsize <= FIRST_LEVEL_CACHE_BYTES:
            continue
        scalar = real_type(view.dtype)
        for r in range(ahead * block.height, (ahead + 1) * block.height):
            start = f.add(f.mul(f.add(block.row, r), view.strides[0]), block.column)
            prefetch_row(f, f.address(frame.base(view), start, scalar), width * scalar.size)


def _add(frame: Frame, value: Value, pointer: Value, mask: Value | None) -> None:
    """Store a sum over the samples of this tile if sums begin with this tile, else add it to the present sum."""
    f = frame.f
    before = f.load(value.type, pointer, mask)
    total = f.binary("fadd", before, value)
    if frame.first is not None:
        total = f.select(frame.first, value, total)
    f.store(total, pointer, mask)
