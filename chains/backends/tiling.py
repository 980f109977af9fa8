"""The rule by which programs are cut for tiles of samples: operations on samples first, then what is done once.

Tiles of the batch may go through all of the first kind one after another, where none of them waits for the second or for a
sum over all samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from chains.program.alias import meet
from chains.program.operations import Operation


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
    return any(meet(a, b) for a in mine for b in theirs)
