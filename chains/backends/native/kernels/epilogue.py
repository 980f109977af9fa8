"""The end of a product's block: the maps that follow are applied in registers, then the results are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chains.backends.native.kernels.elementwise import Frame, evaluate
from chains.backends.native.kernels.fusion import FusedProduct, as_rows
from chains.backends.native.llvm.emit import Type, Value, number, real_type
from chains.backends.native.llvm.shuffles import repeated
from chains.program.view import View


@dataclass(frozen=True)
class ResultBlock:
    """The results in registers: `height` rows from `row` on, and of each a vector for each mask, from `column` on."""

    row: Value
    height: int
    column: Value
    masks: Sequence[Value | None]
    lanes: int

    @property
    def size(self) -> int:
        """How many vectors there are."""
        return self.height * len(self.masks)

    def places(self) -> Iterator[tuple[int, int, Value | None]]:
        """Row, vector and mask of each vector of results, in their order."""
        return ((r, c, mask) for r in range(self.height) for c, mask in enumerate(self.masks))

    def zeros(self, scalar: Type) -> list[Value]:
        return [number(Type(scalar.name, self.lanes), 0.0)] * self.size


def store_block(
    frame: Frame, product: FusedProduct, block: ResultBlock, results: Sequence[Value], rows: int | None = None
) -> None:
    """Apply the maps to a block of results and store their results.

    A vector holds a part of a row or, with `rows`, this number of whole rows as they follow one another in memory. All loads
    come before all stores, because the processor delays loads after masked stores to nearby places.
    """
    f, out, lanes = frame.f, product.out, block.lanes
    row, column, masks = block.row, block.column, block.masks
    scalar = real_type(out.dtype)
    type = Type(scalar.name, lanes)
    columns = int(out.shape[1])  # type: ignore[arg-type]
    step = lanes if rows is None else rows * columns
    shared: dict[tuple[int, int], Value] = {}  # operands that are equal in every row, by identity and vector

    def element(view: View, r: int, c: int) -> Value:
        offset = f.add(f.mul(f.add(row, r), view.strides[0]), f.mul(f.add(column, c * step), view.strides[1]))
        return f.address(frame.base(view), offset, scalar)

    def operand(view: View, r: int, c: int, values: dict[View, Value]) -> Value:
        if view.batched or view.shape == out.shape:
            matrix = as_rows(view)
            return values[matrix] if matrix in values else f.load(type, element(matrix, r, c), masks[c])
        assert view.sample_size in (1, columns), f"{view.text} beside {out.text}"
        key = (id(view), c)
        if key not in shared:
            if view.sample_size == 1:
                shared[key] = f.splat(f.load(scalar, frame.base(view)), lanes)
            elif rows is None:
                pointer = f.address(frame.base(view), f.add(column, c * lanes), scalar)
                shared[key] = f.load(type, pointer, masks[c])
            else:
                shared[key] = repeated(f, f.load(type, frame.base(view), f.lane_mask(lanes, columns)), columns, lanes)
        return shared[key]

    stores: list[tuple[Value, Value, Value | None]] = []
    for (r, c, mask), result in zip(block.places(), results, strict=True):
        if product.accumulate:
            result = f.binary("fadd", result, f.load(type, element(out, r, c), mask))
        values: dict[View, Value] = {out: result}
        for fused in product.maps:
            ins = [operand(view, r, c, values) for view in fused.ins]
            for view, value in zip(fused.outs, evaluate(f, fused.formula, ins, type), strict=True):
                values[as_rows(view)] = value
        for view, value in values.items():
            if view != out or not product.transient:
                stores.append((value, element(view, r, c), mask))
    for value, pointer, mask in stores:
        f.store(value, pointer, mask)
