"""Many small matrix products: one for each part of each sample, such as the heads of attention.

The code of one product, which has no batch axis, is written once, in a loop over all products. If the numbers in a row of the
right side have gaps, as in a transposed matrix, the right side is first copied to rows of whole vectors. This costs as much as
one row of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.kernels.fusion import FusedProduct
from chains.backends.native.kernels.matmul import lower_matmul
from chains.backends.native.kernels.packing import pack, packed_columns
from chains.backends.native.llvm.emit import Value, integer, real_type
from chains.program.operations import BatchMatMul, Operation
from chains.program.view import Buffer, View


def lower_batch_matmul(frame: Frame, operation: BatchMatMul, space: Value) -> None:
    """out = a @ b, or +=, for all matrices; `space` takes the copy of a right side."""
    f, leading = frame.f, operation.outs[0].shape[:-2]
    matrices = [_matrix(view) for view in operation.views]
    scalar = real_type(matrices[0].dtype)

    def run(axis: int, starts: Sequence[Value]) -> None:
        if axis == len(leading):
            _product(frame, operation, matrices, [*starts, space])
            return

        def step(i: Value, _: list[Value]) -> None:
            strides = [view.strides[axis] for view in operation.views]
            run(axis + 1, [f.address(start, f.mul(i, stride), scalar) for start, stride in zip(starts, strides, strict=True)])

        f.loop(integer(0), frame.extent(leading[axis]), 1, step)

    run(0, [frame.base(view) for view in operation.views])


def workspace(operation: Operation, lanes: int) -> int:
    """Elements that a thread needs for the copy of a right side."""
    return _copied(operation.ins[1], lanes).buffer.size if _is_packed(operation) else 0  # with the padding of its rows


def _is_packed(operation: Operation) -> bool:
    return isinstance(operation, BatchMatMul) and operation.ins[1].strides[-1] != 1 < int(operation.ins[1].shape[-1])  # type: ignore[arg-type]


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
