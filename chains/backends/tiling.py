"""The rule by which programs are cut for tiles of samples: operations on samples first, then what is done once.

Tiles of the batch may go through all of the first kind one after another, where none of them waits for the second or for a
sum over all samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from chains.operations import Operation
from chains.view import View


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
