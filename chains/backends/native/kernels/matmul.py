"""Matrix products as register-blocked code. All sizes except the batch are known when the code is written.

A block of the result stays in registers: some rows, and vectors of columns. Each step of the inner loop loads the vectors of
one row of b once and multiplies them by one number of a for each row.

The position of the batch gives three cases:

- Rows are samples (forward, input gradient). The weights are b. The maps that follow are applied to a block of samples in
  registers (`epilogue.py`).
- The inner axis is the batch (weight gradient): `matmul_sums.py`.
- There is no batch (a penalty's sum of squares).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from chains.backends.native.kernels.elementwise import Frame, horizontal, lower_map
from chains.backends.native.kernels.epilogue import ResultBlock, store_block
from chains.backends.native.kernels.fusion import FusedProduct, is_dots
from chains.backends.native.kernels.matmul_narrow import dots, is_narrow, lower_matmul_narrow
from chains.backends.native.kernels.matmul_shared import call_rows_block, shares_blocks
from chains.backends.native.kernels.matmul_sums import FIRST_LEVEL_CACHE_BYTES, SECOND_LEVEL_CACHE_BYTES, lower_matmul_sums
from chains.backends.native.kernels.prefetch import prefetch_lines, reads_samples
from chains.backends.native.llvm.accumulators import accumulators_for, combined
from chains.backends.native.llvm.blocking import blocks, panels
from chains.backends.native.llvm.emit import Type, Value, integer, number, real_type
from chains.backends.native.llvm.shuffles import sums_of_lanes

PART = 16  # length of a part of the inner axis, where weights exceed the second-level cache
STEPS_PER_PREFETCH = 6  # steps of the inner loop
MAX_UNROLLED_MULTIPLY_ADDS = 96  # multiply-adds in one straight run of code, at most


def lower_matmul(frame: Frame, product: FusedProduct) -> None:
    if product.sums_over_batch:
        lower_matmul_sums(frame, product)
        return
    apart = product.maps if product.shared else ()  # shared blocks know no maps: these go through the tile
    _rows(frame, replace(product, maps=()) if apart else product)
    for each in apart:
        lower_map(frame, each)


def _rows(frame: Frame, product: FusedProduct) -> None:
    """Compute the result, one block of rows at a time."""
    f, out, a = frame.f, product.out, product.a
    columns, inner = int(out.shape[1]), int(a.shape[1])  # type: ignore[arg-type]
    narrow = is_narrow(product, frame.lanes)
    begin = lower_matmul_narrow(frame, product) if narrow else integer(0)
    if columns == 1 and a.strides[1] == 1 and product.b.strides[0] == 1 and inner >= frame.lanes:
        _dots(frame, product, begin)
        return
    if not product.padded and is_dots(product, frame.lanes):
        _dot_rows(frame, product)
        return
    lanes = frame.lanes if out.strides[1] == 1 and (product.b.strides[1] == 1 or product.padded) else 1
    vectors = -(-columns // lanes)
    height, panel = frame.shapes.matmul.block(vectors)
    if frame.small_tiles:
        height, panel = frame.shapes.matmul_small_tiles.block(vectors)
        height = min(frame.lanes, height)
    heights = [] if narrow else [height, 2 * height // 3, height // 3, height // 6]
    if not narrow and inner * columns * out.dtype.itemsize > FIRST_LEVEL_CACHE_BYTES and not frame.small_tiles:
        heights.insert(1, 5 * height // 6)  # each block reads all weights again, so few blocks are better
    rows = frame.extent(out.shape[0])

    def of_part(product: FusedProduct, part: _Part) -> None:
        def run_panel(column: Value, masks: list[Value | None]) -> None:
            position = begin
            for height in dict.fromkeys(max(1, each) for each in (*heights, 1)):

                def step(i: Value, _: list[Value], height: int = height) -> list[Value]:
                    _block(frame, product, ResultBlock(i, height, column, masks, lanes), part)
                    return []

                position, _ = f.loop(position, f.add(rows, 1 - height), height, step)

        panels(f, columns, lanes, panel, run_panel)

    if not frame.small_tiles or product.accumulate or inner * columns * out.dtype.itemsize <= SECOND_LEVEL_CACHE_BYTES:
        of_part(product, _Part(integer(0), inner))
        return
    rest = inner % PART or PART  # each part reads a few rows of the weights, one after another
    sums = replace(product, maps=())
    f.loop(integer(0), integer(inner - rest), PART, lambda k, _: of_part(sums, _Part(k, PART, split=True)))
    of_part(product, _Part(integer(inner - rest), rest, split=True))


class _Part(NamedTuple):
    """A part of the inner axis. If the axis is `split`, sums go on from those of the part before."""

    begin: Value
    length: int
    split: bool = False


def _block(frame: Frame, product: FusedProduct, block: ResultBlock, part: _Part) -> None:
    """Compute a block of results whose rows are samples."""
    if not part.split and shares_blocks(frame, product, block.lanes):
        call_rows_block(frame, product, block)
        return
    f, out, a, b = frame.f, product.out, product.a, product.b
    row, column, masks, lanes = block.row, block.column, block.masks, block.lanes
    scalar, inner = real_type(out.dtype), part.length
    type = Type(scalar.name, lanes)
    a_rows = [frame.row(a, f.add(row, r), a.strides[0]) for r in range(block.height)]
    b_base = f.address(frame.base(b), f.mul(column, b.strides[1]), scalar)

    def multiply(k: Value, sums: list[Value]) -> list[Value]:
        b_row = f.address(b_base, f.mul(k, b.strides[0]), scalar)
        weights = [
            f.load(type, f.address(b_row, integer(c * lanes * b.strides[1]), scalar), None if product.padded else mask)
            for c, mask in enumerate(masks)
        ]
        results = []
        for r in range(block.height):
            x = f.splat(f.load(scalar, f.address(a_rows[r], f.mul(k, a.strides[1]), scalar)), lanes)
            results += [f.fma(x, w, sums[r * len(weights) + c]) for c, w in enumerate(weights)]
        return results

    width = block.size
    # With few sums, additions would wait for one another, so each sum gets several accumulators.
    accumulators = min(inner, accumulators_for(width))
    start = [number(type, 0.0)] * (width * accumulators)
    if part.split:
        rows = [frame.row(out, f.add(row, r), out.strides[0]) for r in range(block.height)]
        columns = [f.mul(f.add(column, c * lanes), out.strides[1]) for c in range(len(masks))]
        places = [(f.address(r, c, scalar), mask) for r in rows for c, mask in zip(columns, masks, strict=True)]
        zeros, first = start[:width], f.compare("eq", part.begin, integer(0))
        start[:width] = f.choice(first, lambda: zeros, lambda: [f.load(type, *place) for place in places])
    per_step = max(1, min(inner, MAX_UNROLLED_MULTIPLY_ADDS // (2 * width)))
    per_step = max(accumulators, per_step // accumulators * accumulators)

    def steps(k: Value, sums: list[Value], count: int) -> list[Value]:
        for u in range(count):
            s = u % accumulators
            sums[s * width : (s + 1) * width] = multiply(f.add(k, u), sums[s * width : (s + 1) * width])
        return sums

    whole = inner // per_step * per_step
    if whole == per_step:
        sums = steps(part.begin, start, per_step)
    else:
        sums = _along(
            frame, product, whole, per_step, lambda k, carried: steps(f.add(part.begin, k), list(carried), per_step), start
        )
    sums = steps(f.add(part.begin, whole), list(sums), inner - whole)
    results = combined(sums, width, partial(f.binary, "fadd"))
    store_block(frame, product, block, results)


def _along(
    frame: Frame,
    product: FusedProduct,
    whole: int,
    step: int,
    body: Callable[[Value, list[Value]], list[Value]],
    sums: list[Value],
) -> list[Value]:
    """The loop along the inner axis. If the rows are large samples, it also prefetches samples of the next step."""
    f, end = frame.f, integer(whole)
    if not reads_samples(product.a):
        return f.loop(integer(0), end, step, body, sums)[1]

    def piece(begin: Value, carried: list[Value]) -> list[Value]:
        prefetch_lines(frame)
        stop = f.add(begin, STEPS_PER_PREFETCH * step)
        return f.loop(begin, f.least(stop, end), step, body, carried)[1]

    return f.loop(integer(0), end, STEPS_PER_PREFETCH * step, piece, sums)[1]


def _dots(frame: Frame, product: FusedProduct, begin: Value) -> None:
    """A single column: each element is the dot product of two contiguous runs."""

    def step(i: Value, _: list[Value]) -> list[Value]:
        result = horizontal(frame.f, dots(frame, product, i, 1)[0])
        store_block(frame, product, ResultBlock(i, 1, integer(0), [None], 1), [result])
        return []

    frame.f.loop(begin, frame.extent(product.out.shape[0]), 1, step)


def _dot_rows(frame: Frame, product: FusedProduct) -> None:
    """A vector of columns at a time, which stays in cache for all rows. Lanes run along the inner axis."""
    f, out, a, b = frame.f, product.out, product.a, product.b
    scalar, lanes = real_type(out.dtype), frame.lanes
    type = Type(scalar.name, lanes)
    columns, inner = int(out.shape[1]), int(a.shape[1])  # type: ignore[arg-type]
    whole = inner // lanes * lanes

    def block(column: Value, width: int) -> None:
        b_columns = [f.address(frame.base(b), f.mul(f.add(column, c), b.strides[1]), scalar) for c in range(width)]

        def row(i: Value, _: list[Value]) -> None:
            a_row = frame.row(a, i, a.strides[0])

            def multiply(k: Value, sums: Sequence[Value], mask: Value | None = None) -> list[Value]:
                x = f.load(type, f.address(a_row, k, scalar), mask)
                return [f.fma(x, f.load(type, f.address(c, k, scalar), mask), s) for c, s in zip(b_columns, sums, strict=True)]

            sums = f.loop(integer(0), integer(whole), lanes, multiply, [number(type, 0.0)] * width)[1]
            if inner > whole:
                sums = multiply(integer(whole), sums, f.lane_mask(lanes, inner - whole))
            sums += [number(type, 0.0)] * (lanes - width)
            mask = f.lane_mask(lanes, width)
            store_block(frame, product, ResultBlock(i, 1, column, [mask], lanes), [sums_of_lanes(f, sums)])

        f.loop(integer(0), frame.extent(out.shape[0]), 1, row)

    blocks(f, columns, lanes, block)
