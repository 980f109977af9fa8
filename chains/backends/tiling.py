"""How programs are split for tiles of samples: first the operations on samples, then the operations done once.

Each tile of the batch may go through all operations on samples by itself, if none of them waits for an operation done once
or for a sum over all samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from chains.program.alias import conflict, meet
from chains.program.operations import Operation


def whole_on_tiles(operations: Sequence[Operation]) -> tuple[list[Operation], list[Operation]] | None:
    """The operations on samples and the operations done once; None where one on samples must wait for the whole batch."""
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
    """Whether an operation on samples must wait until `sums` over the whole batch or operations done `once` are finished."""
    return needs_results(sums, once, operation) or meets_sums(sums, operation)


def meets_sums(sums: Sequence[Operation], operation: Operation) -> bool:
    """Whether an operation writes to the memory of `sums` over the whole batch."""
    mine = [view for view in operation.outs if not view.batched]
    return any(meet(a, b) for other in sums for a in mine for b in other.outs)


def needs_results(sums: Sequence[Operation], once: Sequence[Operation], operation: Operation) -> bool:
    """Whether an operation on samples reads `sums` over the whole batch, or must follow an operation done `once`."""
    read = [view for view in operation.ins if not view.batched]
    written = [view for other in sums for view in other.outs]
    return any(meet(a, b) for a in read for b in written) or any(conflict(operation, other) for other in once)
