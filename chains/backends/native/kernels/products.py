"""What matrix products share: the maps that are applied to their results in registers, and packed operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from chains.backends.native.kernels.elementwise import Frame, evaluate
from chains.backends.native.llvm.emit import Type, Value, integer, number, real_type
from chains.backends.native.llvm.loops import blocks
from chains.backends.native.llvm.shuffles import repeated, transposed
from chains.backends.native.llvm.vectormath import ELEMENTARY
from chains.program.alias import overlap
from chains.program.operations import Map, MatMul, Operation
from chains.program.view import Batch, Shape, View, concrete


@dataclass(frozen=True)
class FusedProduct:
    """A product ``out = a @ b`` with the maps that are applied to its elements before they are stored."""

    out: View
    a: View
    b: View
    accumulate: bool = False
    continued: bool = False  # whether an earlier operation of the tile has begun this sum over the samples
    maps: tuple[Map, ...] = ()  # on a sum over the samples: only if the tile is the whole batch
    transient: bool = False  # whether only the maps read the product itself
    padded: bool = False  # whether b's rows are padded to whole vectors (`pack`)
    shared: bool = False  # whether its blocks are functions that products of all sizes share (`matmul_shared.py`)

    @classmethod
    def of(cls, operation: Operation, maps: Sequence[Map] = ()) -> FusedProduct:
        """The product of an operation, with these maps on its results."""
        assert isinstance(operation, MatMul)
        (out,), (a, b) = operation.outs, operation.ins
        return cls(out, a, b, operation.accumulate, maps=tuple(maps))

    @property
    def sums_over_batch(self) -> bool:
        return isinstance(self.a.shape[1], Batch)

    def turned(self, lanes: int) -> FusedProduct:
        """This sum over the samples, or its transpose if that saves more than storing the result costs.

        The result is stored number by number, or interleaved if it has 2 or 4 columns that follow one another.
        """
        rows, columns = (int(extent) for extent in self.out.shape)  # type: ignore[arg-type]
        by_columns, by_rows = rows * -(-columns // lanes), columns * -(-rows // lanes)
        cost = 1 if columns in (2, 4) and self.out.strides == (columns, 1) else 2
        if self.a.strides[0] == 1 and (cost * by_rows < by_columns or self.b.strides[1] != 1):
            assert not self.maps  # the maps would have to be transposed too
            return replace(self, out=self.out.T, a=self.b.T, b=self.a.T)
        return self


def fusible(operation: MatMul, maps: Sequence[Map], candidate: Operation, lanes: int, registers: int) -> bool:
    """Whether `candidate`, after `maps`, can be applied to the product's elements in registers."""
    out = operation.outs[0]
    if not isinstance(candidate, Map):
        return False
    if not isinstance(out.shape[0], Batch) or out.strides[1] != 1 or _is_long(candidate):
        return False
    if {view.buffer for view in candidate.outs} & {view.buffer for view in operation.ins}:
        return False  # other blocks of the product still read the operands
    used = [out, *(view for fused in maps for view in fused.views), *candidate.views]
    if any(overlap(view, other) and not _same_rows(view, other) for view in candidate.outs for other in used):
        return False  # the maps on other blocks may still read the elements
    columns = int(out.shape[1])  # type: ignore[arg-type]
    known = [out, *(view for fused in maps for view in fused.outs)]
    broadcast = False
    for view in candidate.ins:
        if any(_same_rows(view, register) for register in known):
            continue
        if any(overlap(view, register) for register in known):
            return False
        if view.batched:
            if view.ndim < 2 or view.shape[-1] != columns or not _same_rows_shape(view, out) or view.strides[-1] != 1:
                return False
        elif not (
            view.sample_size == 1 or (view.shape[-1] == columns and view.sample_size == columns and view.strides[-1] == 1)
        ):
            return False
        else:
            broadcast = broadcast or view.sample_size > 1
    if not all(_same_rows_shape(view, out) and view.strides[-1] == 1 for view in candidate.outs):
        return False
    touches = any(_same_rows(view, register) for view in candidate.views for register in known)
    share = columns / (-(-columns // lanes) * lanes)
    return touches and (broadcast or share >= 0.5)


def _is_long(operation: Map) -> bool:
    """Whether a formula has elementary functions.

    Such a map gets a separate loop, which has the code of these functions once, not for each row of a block. That runs as fast
    and compiles faster.
    """
    return any(instruction.operation in ELEMENTARY for instruction in operation.formula.instructions)


def as_rows(view: View) -> View:
    return view.rows if view.ndim != 2 else view


def _same_rows_shape(view: View, out: View) -> bool:
    if not view.batched or view.ndim < 2 or not (view.contiguous or view.ndim == 2):
        return False
    return as_rows(view).shape == out.shape


def _same_rows(view: View, other: View) -> bool:
    """Whether two views, taken as matrices, have the same elements."""
    if view.buffer is not other.buffer or not view.batched or view.ndim < 2 or not (view.contiguous or view.ndim == 2):
        return False
    return as_rows(view) == as_rows(other)


def needs_packing(product: FusedProduct, lanes: int, small_tiles: bool) -> bool:
    """Whether b must be copied to rows of whole vectors before the product."""
    if not isinstance(product.out.shape[0], Batch) or product.b.batched or product.b.strides[1] == 1:
        return False
    return not (small_tiles and is_dots(product, lanes))


def is_dots(product: FusedProduct, lanes: int) -> bool:
    """Whether the results are sums of products of long contiguous runs."""
    contiguous = product.a.strides[1] == product.b.strides[0] == product.out.strides[1] == 1
    return contiguous and product.b.strides[1] != 1 and int(product.a.shape[1]) >= 16 * lanes  # type: ignore[arg-type]


def packed_columns(matrix: View, lanes: int) -> int:
    """The length of a packed row: whole vectors."""
    return -(-int(matrix.shape[1]) // lanes) * lanes  # type: ignore[arg-type]


def packed(operation: MatMul, lanes: int, small_tiles: bool) -> tuple[View, Shape, Shape] | None:
    """The weights that a product reads from a copy, the shape of the copy, and the part of it that they fill."""
    product = FusedProduct.of(operation)
    if not needs_packing(product, lanes, small_tiles):
        return None
    return product.b, (product.b.shape[0], packed_columns(product.b, lanes)), product.b.shape


def pack(frame: Frame, source: View, target: View) -> None:
    """Copy a matrix with gaps between the numbers of a row to rows of whole vectors, with zeros after the last column."""
    rows, used = concrete(source.shape, 1)
    columns = target.strides[0]
    if source.strides[0] != 1:
        _pack_by_number(frame, source, target)
        return
    f, lanes, to = frame.f, frame.lanes, frame.base(target)
    scalar = real_type(source.dtype)
    type = Type(scalar.name, lanes)

    def block(row: Value, column: Value, height: int, width: int) -> None:
        """Transpose `width` columns of `height` numbers, at most a vector of vectors."""
        vectors = []
        for j in range(lanes):
            pointer = f.address(frame.base(source), f.add(row, f.mul(f.add(column, j), source.strides[1])), scalar)
            vectors.append(f.load(type, pointer, f.lane_mask(lanes, height)) if j < width else number(type, 0.0))
        for i, vector in enumerate(transposed(f, vectors)[:height]):
            f.store(vector, f.address(to, f.add(f.mul(f.add(row, i), columns), column), scalar))

    def blocks_of_rows(column: Value, width: int) -> None:
        blocks(f, rows, lanes, lambda row, height: block(row, column, height, width))

    blocks(f, used, lanes, blocks_of_rows)


def _pack_by_number(frame: Frame, source: View, target: View) -> None:
    f = frame.f
    rows, used = concrete(source.shape, 1)
    columns, to = target.strides[0], frame.base(target)
    scalar = real_type(source.dtype)

    def row(i: Value, _: list[Value]) -> None:
        def column(j: Value, _: list[Value]) -> None:
            offset = f.binary("add", f.mul(i, source.strides[0]), f.mul(j, source.strides[1]))
            x = f.load(scalar, f.address(frame.base(source), offset, scalar))
            f.store(x, f.address(to, f.binary("add", f.mul(i, columns), j), scalar))

        def zero(j: Value, _: list[Value]) -> None:
            f.store(number(scalar, 0.0), f.address(to, f.binary("add", f.mul(i, columns), j), scalar))

        f.loop(integer(0), integer(used), 1, column)
        f.loop(integer(used), integer(columns), 1, zero)

    f.loop(integer(0), integer(rows), 1, row)


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


def _of_row(frame: Frame, view: View, block: ResultBlock, c: int, columns: int | None) -> Value:
    """Vector c of an operand that is equal in every row; of rows of so many `columns`, which follow one another, if given."""
    f, lanes, scalar = frame.f, block.lanes, real_type(view.dtype)
    type = Type(scalar.name, lanes)
    if view.sample_size == 1:
        return f.splat(f.load(scalar, frame.base(view)), lanes)
    if columns is None:
        return f.load(type, f.address(frame.base(view), f.add(block.column, c * lanes), scalar), block.masks[c])
    return repeated(f, f.load(type, frame.base(view), f.lane_mask(lanes, columns)), columns, lanes)


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
        assert view.sample_size in (1, columns), f"{view.text} with {out.text}"
        key = (id(view), c)
        if key not in shared:
            shared[key] = _of_row(frame, view, block, c, columns if rows is not None else None)
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
