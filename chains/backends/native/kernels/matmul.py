"""Matrix products as register-blocked code. All sizes except the batch are known when the code is written.

A block of the result stays in registers: some rows, and vectors of columns. Each step of the inner loop loads the vectors of
one row of b once and multiplies them by one number of a for each row.

The position of the batch gives three cases:

- Rows are samples (forward, input gradient). The weights are b. The maps that follow are applied to a block of samples in
  registers (`store_block`).
- The inner axis is the batch (weight gradient): the block is a sum over the samples of the tile.
- There is no batch (a penalty's sum of squares).

A product of few columns, such as a last layer, fills only a part of a vector, and the rest of each multiplication would be
lost. There a vector has a block of lanes for each of several samples. Rows of the left operand are transposed, block by block,
into vectors that hold the same few columns of all these samples. Each column in turn is spread over its sample's block and
multiplied by a row of weights, which every block repeats. A product with a single column spreads nothing: the products of each
sample are added up across the lanes, for as many samples at a time as a vector has lanes.

Many small products, one for each part of each sample (the heads of attention), are a loop over the code of one product without
a batch. If the numbers in a row of the right side have gaps, as in a transposed matrix, the right side is first copied to rows
of whole vectors. This costs as much as one row of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from chains.backends.native.kernels.elementwise import Frame, horizontal, lower_map, step_through
from chains.backends.native.kernels.matmul_row import is_folded, lower_folded_row
from chains.backends.native.kernels.matmul_shared import call_rows_block, call_sums_block, shares_blocks
from chains.backends.native.kernels.products import (
    FusedProduct,
    ResultBlock,
    as_rows,
    is_dots,
    pack,
    packed_columns,
    store_block,
)
from chains.backends.native.kernels.samples import prefetch_lines, prefetch_row, reads_samples
from chains.backends.native.llvm.emit import Type, Value, integer, known_number, lanes_of, number, real_type
from chains.backends.native.llvm.loops import (
    ADDITIONS_IN_FLIGHT,
    Step,
    accumulate,
    accumulators_for,
    along_vectors,
    blocks,
    combined,
    multiply_add,
    panels,
    row_blocks,
)
from chains.backends.native.llvm.shuffles import interleaved, repeated, shuffled, spread, sums_of_lanes, transposed
from chains.lowering.axes import Axis
from chains.program.operations import BatchMatMul
from chains.program.view import Batch, Buffer, View

FIRST_LEVEL_CACHE_BYTES = 32 << 10  # bytes of the smallest first-level caches
SECOND_LEVEL_CACHE_BYTES = 256 << 10  # bytes of the smallest second-level caches
PART = 16  # length of a part of the inner axis, where weights exceed the second-level cache
STEPS_PER_PREFETCH = 6  # steps of the inner loop
MAX_UNROLLED_MULTIPLY_ADDS = 96  # multiply-adds in one straight run of code
SUMMED_BYTES = (
    256 << 10
)  # bytes of both operands of a sum over samples in parts: they stay in cache, and their pages in the TLB
MIN_SUMMED_ROWS = 64  # rows of such a part: with fewer, writing and reading the sums again costs too much


def lower_matmul(frame: Frame, product: FusedProduct) -> None:
    if product.sums_over_batch:
        lower_matmul_sums(frame, product)
        return
    separate = product.maps if product.shared else ()  # shared blocks apply no maps: these get loops over the tile
    _rows(frame, replace(product, maps=()) if separate else product)
    for each in separate:
        lower_map(frame, each)


def _block_shape(frame: Frame, out: View, vectors: int) -> tuple[int, int]:
    """The rows of a block of the result, and its vectors."""
    if frame.small_tiles:
        height, panel = frame.shapes.matmul_small_tiles.block(vectors)
        return min(frame.lanes, height), panel
    if frame.f.waits and known_number(frame.extent(out.shape[0])) == 1:
        return 1, -(-vectors // -(-vectors // ADDITIONS_IN_FLIGHT))
    return frame.shapes.matmul.block(vectors)


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
    if f.waits and is_folded(frame, product):
        lower_folded_row(frame, product)
        return
    lanes = frame.lanes if out.strides[1] == 1 and (product.b.strides[1] == 1 or product.padded) else 1
    height, panel = _block_shape(frame, out, -(-columns // lanes))
    heights = [] if narrow else [height, 2 * height // 3, height // 3, height // 6]
    if not narrow and inner * columns * out.dtype.itemsize > FIRST_LEVEL_CACHE_BYTES and not frame.small_tiles:
        heights.insert(1, 5 * height // 6)  # each block reads all weights again, so few blocks are better
    rows = frame.extent(out.shape[0])

    sizes = list(dict.fromkeys(max(1, each) for each in (*heights, 1)))

    def of_part(product: FusedProduct, part: _Part) -> None:
        def run_panel(column: Value, masks: list[Value | None]) -> None:
            def block(i: Value, height: int) -> None:
                _block(frame, product, ResultBlock(i, height, column, masks, lanes), part)

            row_blocks(f, begin, rows, sizes, block)

        panels(f, columns, lanes, panel, run_panel)

    if not frame.small_tiles or product.accumulate or inner * columns * out.dtype.itemsize <= SECOND_LEVEL_CACHE_BYTES:
        of_part(product, _Part(integer(0), inner))
        return
    rest = inner % PART or PART  # each part reads a few rows of the weights, one after another
    sums = replace(product, maps=())
    f.loop(integer(0), integer(inner - rest), PART, lambda k, _: of_part(sums, _Part(k, PART, split=True)))
    of_part(product, _Part(integer(inner - rest), rest, split=True))


class _Part(NamedTuple):
    """A part of the inner axis. If the axis is `split`, each part continues the sums of the part before."""

    begin: Value
    length: int
    split: bool = False


def _earlier(frame: Frame, out: View, block: ResultBlock, part: _Part) -> Sequence[Value]:
    """The sums of the parts before this one: zeros, or what they have stored."""
    f, lanes, masks, scalar = frame.f, block.lanes, block.masks, real_type(out.dtype)
    type = Type(scalar.name, lanes)
    rows = [frame.row(out, f.add(block.row, r), out.strides[0]) for r in range(block.height)]
    columns = [f.mul(f.add(block.column, c * lanes), out.strides[1]) for c in range(len(masks))]
    places = [(f.address(r, c, scalar), mask) for r in rows for c, mask in zip(columns, masks, strict=True)]
    zeros, first = block.zeros(scalar), f.compare("eq", part.begin, integer(0))
    return f.choice(first, lambda: zeros, lambda: [f.load(type, *place) for place in places])


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
        numbers = (f.load(scalar, f.address(a_row, f.mul(k, a.strides[1]), scalar)) for a_row in a_rows)
        return multiply_add(f, numbers, weights, sums)

    width = block.size
    # With few sums, additions would wait for one another, so each sum gets several accumulators.
    accumulators = min(inner, accumulators_for(width, f.waits))
    start = [number(type, 0.0)] * (width * accumulators)
    if part.split:
        start[:width] = _earlier(frame, out, block, part)
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
        body: Step = lambda k, carried: steps(f.add(part.begin, k), list(carried), per_step)  # noqa: E731
        sums = _inner_loop(frame, product, whole, per_step, body, start)
    sums = steps(f.add(part.begin, whole), list(sums), inner - whole)
    store_block(frame, product, block, combined(f, sums, width))


def _inner_loop(frame: Frame, product: FusedProduct, whole: int, step: int, body: Step, sums: list[Value]) -> list[Value]:
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

    def step(i: Value, _: list[Value]) -> None:
        result = horizontal(frame.f, dots(frame, product, i, 1)[0])
        store_block(frame, product, ResultBlock(i, 1, integer(0), [None], 1), [result])

    frame.f.loop(begin, frame.extent(product.out.shape[0]), 1, step)


def _dot_rows(frame: Frame, product: FusedProduct) -> None:
    """A vector of columns at a time, which stays in cache for all rows. Lanes run along the inner axis."""
    f, out, a, b = frame.f, product.out, product.a, product.b
    scalar, lanes = real_type(out.dtype), frame.lanes
    type = Type(scalar.name, lanes)
    columns, inner = int(out.shape[1]), int(a.shape[1])  # type: ignore[arg-type]

    def block(column: Value, width: int) -> None:
        b_columns = [f.address(frame.base(b), f.mul(f.add(column, c), b.strides[1]), scalar) for c in range(width)]

        def row(i: Value, _: list[Value]) -> None:
            a_row = frame.row(a, i, a.strides[0])

            def multiply(k: Value, sums: Sequence[Value], mask: Value | None) -> list[Value]:
                x = f.load(type, f.address(a_row, k, scalar), mask)
                return [f.fma(x, f.load(type, f.address(c, k, scalar), mask), s) for c, s in zip(b_columns, sums, strict=True)]

            zero = number(type, 0.0)
            sums = [*along_vectors(f, inner, lanes, multiply, [zero] * width), *[zero] * (lanes - width)]
            mask = f.lane_mask(lanes, width)
            store_block(frame, product, ResultBlock(i, 1, column, [mask], lanes), [sums_of_lanes(f, sums)])

        f.loop(integer(0), frame.extent(out.shape[0]), 1, row)

    blocks(f, columns, lanes, block)


def is_narrow(product: FusedProduct, lanes: int) -> bool:
    """Whether several rows fit in a vector and follow one another in memory: in the result and in all operands of its maps."""
    columns, inner = int(product.out.shape[1]), int(product.a.shape[1])  # type: ignore[arg-type]
    rows = [product.out, *(as_rows(view) for fused in product.maps for view in fused.views if view.batched)]
    together = all(view.strides[0] == columns for view in rows)
    if not together or product.a.strides[1] != 1 or 2 * sample_lanes(columns) > lanes:
        return False
    if columns == 1:
        return product.b.strides[0] == 1 and inner >= lanes
    return inner >= columns and (product.b.strides[1] == 1 or product.padded)


def lower_matmul_narrow(frame: Frame, product: FusedProduct) -> Value:
    """Compute all rows except the last few, which do not fill a vector. Returns the first row that is left."""
    f, lanes, out = frame.f, frame.lanes, product.out
    columns = int(out.shape[1])  # type: ignore[arg-type]
    samples = lanes // sample_lanes(columns)
    position: Value = integer(0)
    most = 1 if columns == 1 else max(1, frame.shapes.matmul_narrow.rows // samples)
    for vectors in dict.fromkeys((most, 1)):

        def step(row: Value, _: list[Value], vectors: int = vectors) -> None:
            sums = (
                [sums_of_lanes(f, dots(frame, product, row, lanes))]
                if columns == 1
                else _narrow_block(frame, product, row, vectors)
            )
            if (used := samples * columns) < lanes:
                block = sample_lanes(columns)
                packed = [block * (k // columns) + k % columns if k < used else 0 for k in range(lanes)]
                sums = [shuffled(f, vector, None, packed) for vector in sums]
            masks = [f.lane_mask(lanes, used)] * vectors
            store_block(frame, product, ResultBlock(row, 1, integer(0), masks, lanes), sums, rows=samples)

        rows = samples * vectors
        position, _ = f.loop(position, f.add(frame.extent(out.shape[0]), 1 - rows), rows, step)
    return position


def sample_lanes(columns: int) -> int:
    """The number of lanes for a sample."""
    return 1 << (columns - 1).bit_length()


def _narrow_block(frame: Frame, product: FusedProduct, row: Value, vectors: int) -> list[Value]:
    """`vectors` vectors of results, from `row` on."""
    f, lanes, a, b = frame.f, frame.lanes, product.a, product.b
    columns, inner = int(b.shape[1]), int(b.shape[0])  # type: ignore[arg-type]
    scalar = real_type(product.out.dtype)
    type, block = Type(scalar.name, lanes), sample_lanes(columns)
    samples = lanes // block
    a_rows = [frame.row(a, f.add(row, r), a.strides[0]) for r in range(vectors * samples)]
    accumulators = max(1, min(frame.shapes.matmul_narrow.vectors, inner) // vectors)

    def multiply(begin: Value, sums: list[Value], used: int = lanes) -> list[Value]:
        mask = f.lane_mask(lanes, used)
        rows = [f.load(type, f.address(each, begin, scalar), mask) for each in a_rows]
        tiles = [transposed(f, rows[v : v + samples], block) for v in range(0, len(rows), samples)]
        sums = list(sums)
        for k in range(used):
            pointer = f.address(frame.base(b), f.mul(f.add(begin, k), b.strides[0]), scalar)
            weights = f.load(Type(scalar.name, block), pointer, None if product.padded else f.lane_mask(block, columns))
            weights = repeated(f, weights, block, lanes)
            for v, tile in enumerate(tiles):
                at = k % accumulators * vectors + v
                sums[at] = f.fma(spread(f, tile[k // block], k % block, block), weights, sums[at])
        return sums

    whole = inner // lanes * lanes
    sums = [number(type, 0.0)] * (vectors * accumulators)
    if whole > lanes:
        sums = f.loop(integer(0), integer(whole), lanes, multiply, sums)[1]
    elif whole:
        sums = multiply(integer(0), sums)
    if inner > whole:
        sums = multiply(integer(whole), sums, inner - whole)
    return combined(f, sums, vectors)


def dots(frame: Frame, product: FusedProduct, row: Value, rows: int) -> Sequence[Value]:
    """A product with a single column: for each of some rows, from `row` on, a vector whose lanes add up to the result."""
    f, lanes, a, b = frame.f, frame.lanes, product.a, product.b
    inner = int(b.shape[0])  # type: ignore[arg-type]
    scalar = real_type(product.out.dtype)
    type = Type(scalar.name, lanes)
    a_rows = [frame.row(a, f.add(row, r), a.strides[0]) for r in range(rows)]

    def multiply(k: Value, sums: Sequence[Value], mask: Value | None) -> list[Value]:
        weights = f.load(type, f.address(frame.base(b), k, scalar), mask)
        pairs = zip(a_rows, sums, strict=True)
        return [f.fma(f.load(type, f.address(row, k, scalar), mask), weights, total) for row, total in pairs]

    return along_vectors(f, inner, lanes, multiply, [number(type, 0.0)] * rows)


def lower_matmul_sums(frame: Frame, product: FusedProduct) -> None:
    """Blocks of the result, each a sum over the samples of the tile.

    If samples have many rows, the rows are taken in parts, since every block of the result reads a few columns of all rows.
    """
    product = product.turned(frame.lanes)
    frame = replace(frame, first=frame.begins(product.accumulate, product.continued))
    f, summed = frame.f, product.a.shape[1]
    count = frame.extent(summed)
    length = SUMMED_BYTES // (sum(product.out.sample_shape) * product.out.dtype.itemsize)
    if product.maps or not isinstance(summed, Batch) or summed.per_sample == 1 or length < MIN_SUMMED_ROWS:
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
    height, panel = (frame.shapes.matmul_updates if product.maps else frame.shapes.matmul_sums).block(vectors)
    height = min(rows, height)

    def block(i: Value, size: int, column: Value, masks: list[Value | None]) -> None:
        _sum_block(frame, product, ResultBlock(i, size, column, masks, lanes), begin, count)
        if prefetch and size == height:
            prefetch_lines(frame)

    if frame.small_tiles and rows * columns * product.out.dtype.itemsize > frame.shapes.sums_by_rows:
        # The operands of a few samples stay in cache; the larger result is read in the order of its rows.
        blocks(f, rows, height, lambda i, size: panels(f, columns, lanes, panel, partial(block, i, size)))
    else:
        by_rows = partial(blocks, f, rows, height)
        panels(f, columns, lanes, panel, lambda column, masks: by_rows(lambda i, size: block(i, size, column, masks)))


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
        numbers = (f.load(scalar, f.address(a_column, integer(r * a.strides[0]), scalar)) for r in range(height))
        return multiply_add(f, numbers, vectors, sums)

    _prefetch_updated(frame, product, block)
    start = block.zeros(scalar)
    sums = accumulate(f, count, accumulators_for(len(start)), step, start)

    if product.maps:
        assert frame.whole is not None
        f.when(frame.whole, lambda: store_block(frame, product, block, sums), lambda: _add_up(frame, out, block, sums))
    else:
        _add_up(frame, out, block, sums)


def _add_up(frame: Frame, out: View, block: ResultBlock, sums: Sequence[Value]) -> None:
    """Add a block of sums to the result."""
    f, row, height, column, lanes = frame.f, block.row, block.height, block.column, block.lanes
    scalar = real_type(out.dtype)
    if out.shape[0] == height and out.strides == (1, height) and height & (height - 1) == 0:  # all rows of a transpose
        _add_interleaved(frame, out, block, sums)
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


def _add_interleaved(frame: Frame, out: View, block: ResultBlock, sums: Sequence[Value]) -> None:
    """The same for all rows of a transpose: the rows' sums of a column follow one another in memory."""
    f, height, lanes, masks = frame.f, block.height, block.lanes, block.masks
    scalar = real_type(out.dtype)
    for c, mask in enumerate(masks):
        first = f.address(frame.base(out), f.mul(f.add(block.column, c * lanes), height), scalar)
        left = height * lanes_of(mask, lanes)
        for k, total in enumerate(interleaved(f, sums[c :: len(masks)])[: -(-left // lanes)]):
            pointer = f.address(first, integer(k * lanes), scalar)
            _add(frame, total, pointer, f.lane_mask(lanes, left - k * lanes))


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


def lower_batch_matmul(frame: Frame, operation: BatchMatMul) -> None:
    """out = a @ b, or +=, for all matrices."""
    space = frame.workspace  # for the copy of a right side
    leading = operation.outs[0].shape[:-2]
    matrices = [_matrix(view) for view in operation.views]
    scalar = real_type(matrices[0].dtype)

    loops = [Axis(extent, tuple(view.strides[axis] for view in operation.views)) for axis, extent in enumerate(leading)]
    starts = [frame.base(view) for view in operation.views]
    step_through(frame, loops, starts, scalar, lambda starts: _product(frame, operation, matrices, [*starts, space]))


def workspace(operation: BatchMatMul, lanes: int, registers: int) -> int:
    """Elements that a thread needs for the copy of a right side."""
    return _copied(operation.ins[1], lanes).buffer.size if _is_packed(operation) else 0  # with the padding of its rows


def _is_packed(operation: BatchMatMul) -> bool:
    return operation.ins[1].strides[-1] != 1 < int(operation.ins[1].shape[-1])  # type: ignore[arg-type]


def _matrix(view: View) -> View:
    """One of the matrices of a view, as a separate buffer."""
    buffer = Buffer(view.buffer.name, "scratch", view.dtype, view.shape[-2:])
    return View(buffer, view.shape[-2:], view.strides[-2:])


def _copied(view: View, lanes: int) -> View:
    """The place for a copy of one of the matrices, with rows of whole vectors."""
    matrix = _matrix(view)
    columns = packed_columns(matrix, lanes)
    return View(Buffer("packed", "scratch", view.dtype, (matrix.shape[0], columns)), matrix.shape, (columns, 1))


def _product(frame: Frame, operation: BatchMatMul, matrices: Sequence[View], starts: Sequence[Value]) -> None:
    """One of the products, of matrices that start at these addresses."""
    out, a, b = matrices
    copied = _copied(operation.ins[1], frame.lanes)
    places = dict(zip((out.buffer, a.buffer, b.buffer, copied.buffer), starts, strict=True))
    inside = replace(frame, base=lambda view: places[view.buffer], rows=None)
    packed = _is_packed(operation)
    if packed:
        pack(inside, b, copied)
    lower_matmul(inside, FusedProduct(out, a, copied if packed else b, operation.accumulate, padded=packed))
