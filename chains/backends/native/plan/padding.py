"""Rows of tiles padded to whole vectors.

A row that ends within a vector is stored with a mask, and the processor makes loads wait for masked stores to places near
theirs: of the row that follows, where it begins within the same vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chains.program.operations import Map, MatMul, Operation, Reduce
from chains.program.view import Batch, Buffer, View

FILLED = 0.5  # of the padded row, at least: else it has more vectors than are worth it


def pad_rows(operations: Sequence[Operation], lanes: int) -> list[Operation]:
    """The operations on scratch buffers whose rows are padded, where all that is done to them goes row by row."""
    views: dict[Buffer, list[View]] = {}
    by_rows: dict[Buffer, bool] = {}
    for operation in operations:
        for view in operation.views:
            buffer = view.buffer
            views.setdefault(buffer, []).append(view)
            by_rows[buffer] = by_rows.get(buffer, True) and isinstance(operation, (MatMul, Map, Reduce)) and _is_rows(view)
    padded: dict[Buffer, Buffer] = {}
    for buffer in views:
        length = -(-buffer.size // lanes) * lanes
        if buffer.role == "scratch" and by_rows[buffer] and buffer.size < length <= buffer.size / FILLED:
            padded[buffer] = Buffer(buffer.name, "scratch", buffer.dtype, (Batch(), length))

    def place(view: View) -> View:
        if view.buffer not in padded:
            return view
        buffer = padded[view.buffer]
        strides = [buffer.size if extent == Batch() else s for extent, s in zip(view.shape, view.strides, strict=True)]
        return replace(view, buffer=buffer, strides=tuple(strides), name=str(view))

    return [replace(o, outs=tuple(map(place, o.outs)), ins=tuple(map(place, o.ins))) for o in operations]


def _is_rows(view: View) -> bool:
    """Whether a view is columns of a matrix with a row a sample."""
    return view.buffer.shape == (Batch(), view.buffer.size) and view.ndim == 2 and view.shape.count(Batch()) == 1
