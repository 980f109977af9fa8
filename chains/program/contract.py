"""Contraction of arrays with an entry for each step of a loop: if only that step needs its entry, all steps share one.

The arrays that a layer keeps for its pullback have an entry for each step. If no pullback reads them, all steps can use the
same memory, which then stays in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from chains.program.loop import Loop
from chains.program.operations import Operation
from chains.program.view import Batch, Buffer, View


def contracted(operations: Sequence[Operation], outside: frozenset[Buffer] = frozenset()) -> list[Operation]:
    """Operations with the same results and smaller arrays. `outside` are buffers that other operations use too."""
    result: list[Operation] = []
    for operation in operations:
        if isinstance(operation, Loop):
            others = (view.buffer for other in operations if other is not operation for view in other.views)
            operation = _contracted(operation, outside.union(others))
        result.append(operation)
    return result


def _contracted(loop: Loop, around: frozenset[Buffer]) -> Loop:
    around = around.union(view.buffer for view in loop.condition)
    loop = loop.around(contracted(loop.body, around))
    nested = {view.buffer for operation in loop.body if isinstance(operation, Loop) for view in operation.views}
    written = dict.fromkeys(view.buffer for operation in loop.body for view in operation.writes)
    smaller: dict[Buffer, tuple[Buffer, int]] = {}
    for buffer in written:
        if buffer.role == "scratch" and buffer not in around and buffer not in nested:
            first = _first_entry(loop, buffer)
            if first is not None:
                batch = buffer.shape[: int(buffer.batched)]
                entry = Buffer(buffer.name, "scratch", buffer.dtype, (*batch, *buffer.shape[len(batch) + 1 :]))
                smaller[buffer] = entry, first * entry.size
    fresh = {buffer: place for buffer, place in smaller.items() if _is_fresh(loop, buffer, place)}
    return loop.around([operation.on(lambda view: _moved(view, fresh)) for operation in loop.body]) if fresh else loop


def _first_entry(loop: Loop, buffer: Buffer) -> int | None:
    """The time entry that all views of a buffer show at the first step; None unless each step has an entry to itself."""
    sample = buffer.shape[int(buffer.batched) :]
    size = buffer.size // sample[0] if sample and isinstance(sample[0], int) and sample[0] else 0
    entries = set()
    for view in (view for operation in loop.body for view in operation.views if view.buffer is buffer):
        if not size or abs(view.loop_stride(loop.depth)) != size or view.advancing(loop.depth, 0).loop_strides:
            return None
        axes = list(zip(view.shape, view.strides, strict=True))
        width = 1 + sum((n - 1) * stride for n, stride in axes if isinstance(n, int))
        whole = all((n, stride) == (Batch(), buffer.size) for n, stride in axes if isinstance(n, Batch))
        entry, inside = divmod(view.offset, size)
        if not whole or inside + width > size:
            return None
        entries.add((entry, view.loop_stride(loop.depth)))
    return entries.pop()[0] if len(entries) == 1 else None


def _moved(view: View, places: dict[Buffer, tuple[Buffer, int]]) -> View:
    """The view, moved to the entry that all steps share."""
    if view.buffer not in places:
        return view
    buffer, first = places[view.buffer]
    strides = [buffer.size if isinstance(n, Batch) else stride for n, stride in zip(view.shape, view.strides, strict=True)]
    return replace(view, buffer=buffer, strides=tuple(strides), offset=view.offset - first, loop_strides=(), name=view.name)


def _is_fresh(loop: Loop, buffer: Buffer, place: tuple[Buffer, int]) -> bool:
    """Whether each step fills the parts of the buffer before it reads them."""
    filled = np.zeros(place[0].size, bool)
    for operation in loop.body:
        for view in operation.reads:
            if view.buffer is buffer and not _moved(view, {buffer: place}).within(filled).all():
                return False
        for view in operation.writes:
            if view.buffer is buffer:
                _moved(view, {buffer: place}).within(filled)[...] = True
    return True
