"""The rule by which programs are cut for tiles of samples: operations on samples first, then what is done once.

Tiles of the batch may go through all of the first kind one after another, where none of them waits for the second or for a
sum over all samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from chains.program.alias import conflict, meet
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
    return needs_results(sums, once, operation) or meets_sums(sums, operation)


def meets_sums(sums: Sequence[Operation], operation: Operation) -> bool:
    """Whether an operation writes where `sums` over the whole batch are."""
    mine = [view for view in operation.outs if not view.batched]
    return any(meet(a, b) for other in sums for a in mine for b in other.outs)


def needs_results(sums: Sequence[Operation], once: Sequence[Operation], operation: Operation) -> bool:
    """Whether an operation on samples reads `sums` over the whole batch, or must come behind what is done `once`."""
    read = [view for view in operation.ins if not view.batched]
    written = [view for other in sums for view in other.outs]
    return any(meet(a, b) for a in read for b in written) or any(conflict(operation, other) for other in once)
