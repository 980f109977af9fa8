"""Matrix products by cuBLAS, in place, on views that are copied only if neither axis is dense; and many small products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chains.backends.cupy.source.axes import Space, count, count_text
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Command, Matrix, Pointers, Product, Source, blocks, each_element
from chains.expr import trace
from chains.program.operations import BatchMatMul, Copy, Map, MatMul, Operation
from chains.program.view import Extent, View, concrete

ADD = trace(lambda a, b: a + b)


def prepared(operation: MatMul, scratch: Callable[[View], View]) -> list[Operation]:
    """The product, with copies to scratch of views that cuBLAS cannot take directly."""
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
    """The view as a matrix of cuBLAS; None if that is impossible."""
    (rows, columns), (down, right) = view.shape, view.strides
    if (right == 1 or columns == 1) and _fits(down, columns, rows):
        return Matrix(view, max(down, _length(columns)), False)
    if (down == 1 or rows == 1) and _fits(right, rows, columns):
        return Matrix(view, max(right, _length(rows)), True)
    return None


def _fits(step: int, length: Extent, times: Extent) -> bool:
    """Whether `times` rows of this length, `step` elements apart, do not overlap."""
    return times == 1 or (isinstance(length, int) and step >= length)


def _length(extent: Extent) -> int:
    return extent if isinstance(extent, int) else 1


def batch_matmul(source: Source, operation: BatchMatMul) -> list[Command]:
    """A thread adds up one element of a result. Neighbouring threads read neighbouring numbers of a row of b."""
    (out,), (a, b) = operation.outs, operation.ins
    row = replace(a, shape=(*a.shape[:-1], 1), strides=(*a.strides[:-1], 0))
    column = replace(b, shape=(*b.shape[:-2], 1, b.shape[-1]), strides=(*b.strides[:-2], 0, b.strides[-1]))
    space, pointers = Space(out.shape, [out, row, column]), Pointers()
    into, left, right = pointers(out.buffer, write=True), pointers(a.buffer), pointers(b.buffer)
    if operation.accumulate:
        pointers(out.buffer)
    body = [
        *space.kept_lines,
        f"const Index at = {space.index_of(row)}, beside = {space.index_of(column)};",
        f"{ctype(out.dtype)} total = 0;",
        f"for (Index k = 0; k < {a.shape[-1]}; ++k)",
        f"    total += {left}[at + k * {a.strides[-1]}] * {right}[beside + k * {b.strides[-2]}];",
        f"{into}[{space.index_of(out)}] {'+=' if operation.accumulate else '='} total;",
    ]
    grid = lambda batch: (blocks(count(space.kept, batch)), 1)  # noqa: E731
    return [pointers.launch(source, "batch_matmul", each_element(count_text(space.kept), body), grid, label=operation.label)]
