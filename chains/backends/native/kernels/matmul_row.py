"""The product of a single row and a matrix of few columns, whose rows fill vectors together.

Each vector of the matrix has several rows. It is multiplied by the same numbers of the row, each repeated for all columns. The
sums of all vectors are then folded: the upper half of the lanes is added to the lower half, until one row is left.
"""

from __future__ import annotations

from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.kernels.products import FusedProduct, ResultBlock, store_block
from chains.backends.native.llvm.emit import Type, Value, integer, known_number, number, real_type
from chains.backends.native.llvm.loops import accumulators_for, combined
from chains.backends.native.llvm.shuffles import shuffled


def is_folded(frame: Frame, product: FusedProduct) -> bool:
    """Whether a product has one row, and its matrix whole vectors of whole rows."""
    lanes, b = frame.lanes, product.b
    inner, columns = (int(extent) for extent in b.shape)  # type: ignore[arg-type]
    one = known_number(frame.extent(product.out.shape[0])) == 1
    fits = 1 < columns < lanes and lanes % columns == 0 and inner % lanes == 0
    follow = b.strides == (columns, 1) and product.a.strides[1] == product.out.strides[1] == 1
    return one and fits and follow and not b.batched and not product.padded


def lower_folded_row(frame: Frame, product: FusedProduct) -> None:
    """Write it."""
    f, lanes, a, b = frame.f, frame.lanes, product.a, product.b
    inner, columns = (int(extent) for extent in b.shape)  # type: ignore[arg-type]
    scalar = real_type(product.out.dtype)
    type, rows = Type(scalar.name, lanes), lanes // columns
    row = frame.row(a, integer(0), a.strides[0])
    count = min(inner // rows, accumulators_for(1, f.waits))
    sums = [number(type, 0.0)] * count
    for k in range(0, inner, rows):
        numbers = f.load(type, f.address(row, integer(k // lanes * lanes), scalar))
        repeated = shuffled(f, numbers, None, [k % lanes + lane // columns for lane in range(lanes)])
        weights = f.load(type, f.address(frame.base(b), integer(k * columns), scalar))
        sums[k // rows % count] = f.fma(repeated, weights, sums[k // rows % count])
    (total,) = combined(f, sums, 1)
    while total.type.lanes > columns:
        total = _folded(frame, total)
    store_block(frame, product, ResultBlock(integer(0), 1, integer(0), [None], columns), [total])


def _folded(frame: Frame, total: Value) -> Value:
    """Half of the lanes, with the other half added."""
    half = total.type.lanes // 2
    low, high = (shuffled(frame.f, total, None, range(k, k + half)) for k in (0, half))
    return frame.f.binary("fadd", low, high)
