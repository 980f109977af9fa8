"""The rule by which programs are cut for tiles of samples: operations on samples first, then what is done once.

Tiles of the batch may go through all of the first kind one after another, where none of them waits for the second or for a
sum over all samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from chains.program.operations import Operation
from chains.program.view import Batch, View


def whole_on_tiles(operations: Sequence[Operation]) -> tuple[list[Operation], list[Operation]] | None:
    """The operations on samples and those done once; None where one on samples must wait for the whole batch."""
    tiled: list[Operation] = []
    once: list[Operation] = []
    for operation in operations:
        if not any(view.batched for view in operation.views):
            once.append(operation)
        elif must_wait([other for other in tiled if other.sums_over_batch], once, operation):
            return None
        else:
            tiled.append(operation)
    return tiled, once


def must_wait(sums: Sequence[Operation], once: Sequence[Operation], operation: Operation) -> bool:
    """Whether an operation on samples needs `sums` over the whole batch, or what is done `once`, to be finished before it."""
    summed = {view.buffer for other in sums for view in other.outs}
    written = {view.buffer for other in once for view in other.outs}
    read = {view.buffer for other in once for view in other.ins}
    touched = {view.buffer for view in operation.views}
    if touched & written or {view.buffer for view in operation.outs} & read:
        return True
    if {view.buffer for view in operation.ins} & summed:
        return True
    mine = [view for view in operation.outs if not view.batched]
    theirs = [view for other in sums for view in other.outs]
    return any(overlap(a, b) for a in mine for b in theirs)


def overlap(a: View, b: View) -> bool:
    """Whether two views without samples may share elements."""
    if a.buffer is not b.buffer:
        return False
    first, second = reach(a), reach(b)
    return first[0] < second[1] and second[0] < first[1]


def reach(view: View) -> tuple[int, int]:
    """The first element of a view without samples, and that after the last."""
    assert not view.batched
    last = sum((extent - 1) * stride for extent, stride in zip(view.sample_shape, view.strides, strict=True))
    return view.offset, view.offset + last + 1


def conflict(a: Operation, b: Operation) -> bool:
    """Whether the order of two operations matters."""
    pairs = [(x, y) for x in a.outs for y in b.views] + [(x, y) for x in b.outs for y in a.views]
    return any(_touch(x, y) for x, y in pairs)


def _touch(a: View, b: View) -> bool:
    """Whether two views may share elements."""
    if a.buffer is not b.buffer or not a.batched or not b.batched:
        return overlap(a, b)
    first, second = _columns(a), _columns(b)
    return first[0] != second[0] or (first[1] < second[2] and second[1] < first[2])


def _columns(view: View) -> tuple[int, int, int]:
    """The length of a row of the buffer that a view with samples lies in, and the first and behind the last column of it."""
    axes = list(zip(view.shape, view.strides, strict=True))
    rows = [(extent, stride) for extent, stride in axes if isinstance(extent, Batch)]
    size = view.buffer.size
    length = rows[0][1] if len(rows) == 1 and rows[0][0].per_sample * rows[0][1] == size else size
    last = view.offset + sum((extent - 1) * stride for extent, stride in axes if not isinstance(extent, Batch))
    return (length, view.offset, last + 1) if last < length else (size, 0, size)
