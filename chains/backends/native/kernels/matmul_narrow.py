"""Products of few columns, such as last layers: the results of several samples in one vector.

A row of such a product fills only a part of a vector, and the rest of each multiplication would be lost. Here a vector has a
block of lanes for each of several samples. Rows of the left operand are transposed, block by block, into vectors that hold
the same few columns of all these samples. Each column in turn is spread over its sample's block and multiplied by a row of
weights, which every block repeats. A product with a single column spreads nothing: the products of each sample are added up
across the lanes, for as many samples at once as a vector has lanes.
"""

from __future__ import annotations

from functools import partial

from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.kernels.epilogue import ResultBlock, store_block
from chains.backends.native.kernels.fusion import FusedProduct, as_rows
from chains.backends.native.llvm.accumulators import combined
from chains.backends.native.llvm.emit import Type, Value, integer, number, real_type
from chains.backends.native.llvm.shuffles import repeated, shuffled, spread, sums_of_lanes, transposed


def is_narrow(product: FusedProduct, lanes: int) -> bool:
    """Whether several rows fit in a vector and follow one another in memory: in the result and in all operands of its maps."""
    columns, inner = int(product.out.shape[1]), int(product.a.shape[1])  # type: ignore[arg-type]
    rows = [product.out, *(as_rows(view) for fused in product.maps for view in fused.views if view.batched)]
    together = all(view.strides[0] == columns for view in rows)
    if not together or product.a.strides[1] != 1 or 2 * _block(columns) > lanes:
        return False
    if columns == 1:
        return product.b.strides[0] == 1 and inner >= lanes
    return inner >= columns and (product.b.strides[1] == 1 or product.padded)


def lower_matmul_narrow(frame: Frame, product: FusedProduct) -> Value:
    """Compute all rows except the last few, which do not fill a vector. Returns the first row that is left."""
    f, lanes, out = frame.f, frame.lanes, product.out
    columns = int(out.shape[1])  # type: ignore[arg-type]
    samples = lanes // _block(columns)
    position: Value = integer(0)
    most = 1 if columns == 1 else max(1, frame.shapes.matmul_narrow.rows // samples)
    for vectors in dict.fromkeys((most, 1)):

        def step(row: Value, _: list[Value], vectors: int = vectors) -> None:
            sums = (
                [sums_of_lanes(f, dots(frame, product, row, lanes))] if columns == 1 else _blocks(frame, product, row, vectors)
            )
            if (used := samples * columns) < lanes:
                block = _block(columns)
                packed = [block * (k // columns) + k % columns if k < used else 0 for k in range(lanes)]
                sums = [shuffled(f, vector, None, packed) for vector in sums]
            masks = [f.lane_mask(lanes, used)] * vectors
            store_block(frame, product, ResultBlock(row, 1, integer(0), masks, lanes), sums, rows=samples)

        rows = samples * vectors
        position, _ = f.loop(position, f.add(frame.extent(out.shape[0]), 1 - rows), rows, step)
    return position


def _block(columns: int) -> int:
    """The number of lanes for a sample."""
    return 1 << (columns - 1).bit_length()


def _blocks(frame: Frame, product: FusedProduct, row: Value, vectors: int) -> list[Value]:
    """`vectors` vectors of results, from `row` on."""
    f, lanes, a, b = frame.f, frame.lanes, product.a, product.b
    columns, inner = int(b.shape[1]), int(b.shape[0])  # type: ignore[arg-type]
    scalar = real_type(product.out.dtype)
    type, block = Type(scalar.name, lanes), _block(columns)
    samples = lanes // block
    a_rows = [frame.row(a, f.add(row, r), a.strides[0]) for r in range(vectors * samples)]
    accumulators = max(1, min(frame.shapes.matmul_narrow.sums, inner) // vectors)

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
    return combined(sums, vectors, partial(f.binary, "fadd"))


def dots(frame: Frame, product: FusedProduct, row: Value, rows: int) -> list[Value]:
    """A product with a single column: for each of some rows, from `row` on, a vector whose lanes add up to the result."""
    f, lanes, a, b = frame.f, frame.lanes, product.a, product.b
    inner = int(b.shape[0])  # type: ignore[arg-type]
    scalar = real_type(product.out.dtype)
    type = Type(scalar.name, lanes)
    a_rows = [frame.row(a, f.add(row, r), a.strides[0]) for r in range(rows)]

    def multiply(begin: Value, sums: list[Value], used: int = lanes) -> list[Value]:
        mask = f.lane_mask(lanes, used)
        weights = f.load(type, f.address(frame.base(b), begin, scalar), mask)
        return [
            f.fma(f.load(type, f.address(each, begin, scalar), mask), weights, total)
            for each, total in zip(a_rows, sums, strict=True)
        ]

    whole = inner // lanes * lanes
    sums = f.loop(integer(0), integer(whole), lanes, multiply, [number(type, 0.0)] * rows)[1]
    if inner > whole:
        sums = multiply(integer(whole), sums, inner - whole)
    return sums
