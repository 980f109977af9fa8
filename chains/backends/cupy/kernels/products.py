"""Matrix products for cuBLAS: in place, on views that have to be prepared at most where neither axis is dense."""

from __future__ import annotations

from collections.abc import Callable

from chains.backends.cupy.source.commands import Matrix, Product
from chains.expr import trace
from chains.program.operations import Copy, Map, MatMul, Operation
from chains.program.view import Extent, View, concrete

ADD = trace(lambda a, b: a + b)


def prepared(operation: MatMul, scratch: Callable[[View], View]) -> list[Operation]:
    """The product with copies, through scratch, of what cuBLAS cannot take as it is."""
    (out,), (a, b) = operation.outs, operation.ins
    before: list[Operation] = []
    if matrix(a) is None:
        before.append(Copy((scratch(a),), (a,), label=operation.label))
        a = before[-1].outs[0]
    if matrix(b) is None:
        before.append(Copy((scratch(b),), (b,), label=operation.label))
        b = before[-1].outs[0]
    if matrix(out) is not None and out.buffer not in (a.buffer, b.buffer):
        return [*before, MatMul((out,), (a, b), operation.accumulate, label=operation.label)]
    place = scratch(out)
    last = (
        Map((out,), (out, place), ADD, label=operation.label)
        if operation.accumulate
        else Copy((out,), (place,), label=operation.label)
    )
    return [*before, MatMul((place,), (a, b), label=operation.label), last]


def product(operation: MatMul) -> Product:
    """The step for a product of views that cuBLAS can take."""
    (out,), (a, b) = operation.outs, operation.ins
    if (into := matrix(out)) is None:
        raise AssertionError(f"{operation} was not prepared")
    if into.transposed:  # out.T = b.T @ a.T
        out, a, b = out.T, b.T, a.T
    left, right = matrix(a), matrix(b)
    assert left is not None
    assert right is not None

    def sizes(batch: int) -> tuple[int, int, int]:
        (rows, columns), (_, inner) = concrete(out.shape, batch), concrete(a.shape, batch)
        return rows, columns, inner

    return Product(out, left, right, sizes, into.leading, operation.accumulate, label=operation.label)


def matrix(view: View) -> Matrix | None:
    """How cuBLAS reads the view, None where it cannot."""
    (rows, columns), (down, right) = view.shape, view.strides
    if (right == 1 or columns == 1) and _fits(down, columns, rows):
        return Matrix(view, max(down, _length(columns)), False)
    if (down == 1 or rows == 1) and _fits(right, rows, columns):
        return Matrix(view, max(right, _length(rows)), True)
    return None


def _fits(step: int, length: Extent, times: Extent) -> bool:
    """Whether rows of this length, so many of them, do not overlap when `step` elements apart."""
    return times == 1 or (isinstance(length, int) and step >= length)


def _length(extent: Extent) -> int:
    return extent if isinstance(extent, int) else 1
