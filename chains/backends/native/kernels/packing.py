"""Packing: weights are copied to rows of whole vectors, and transposed in registers, once per run."""

from __future__ import annotations

from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.llvm.emit import Type, Value, integer, number, real_type
from chains.backends.native.llvm.shuffles import transposed
from chains.program.view import View, concrete


def packed_columns(matrix: View, lanes: int) -> int:
    """The length of a packed row: whole vectors."""
    return -(-int(matrix.shape[1]) // lanes) * lanes  # type: ignore[arg-type]


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
        whole = rows // lanes * lanes
        if whole:
            f.loop(integer(0), integer(whole), lanes, lambda row, _: block(row, column, lanes, width))
        if rows > whole:
            block(integer(whole), column, rows - whole, width)

    whole = used // lanes * lanes
    if whole:
        f.loop(integer(0), integer(whole), lanes, lambda column, _: blocks_of_rows(column, lanes))
    if used > whole:
        blocks_of_rows(integer(whole), used - whole)


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
