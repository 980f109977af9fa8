"""How programs are split for tiles of samples: first the operations on samples, then the operations done once.

Each tile of the batch may go through all operations on samples by itself, if none of them waits for an operation done once
or for a sum over all samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from chains.program.alias import conflict, overlap
from chains.program.operations import Operation
from chains.program.view import View


def whole_on_tiles(operations: Sequence[Operation]) -> tuple[list[Operation], list[Operation]] | None:
    """The operations on samples and the operations done once; None where one on samples must wait for the whole batch."""
    tiled: list[Operation] = []
    once: list[Operation] = []
    for operation in operations:
        if not any(view.batched for view in operation.views):
            once.append(operation)
        elif must_wait([total.view for other in tiled for total in other.totals], once, operation):
            return None
        else:
            tiled.append(operation)
    return tiled, once


def must_wait(sums: Sequence[View], once: Sequence[Operation], operation: Operation) -> bool:
    """Whether an operation on samples must wait until `sums` over the whole batch or operations done `once` are finished."""
    return needs_results(sums, once, operation) or any(meets_sums(sums, total.view) for total in operation.totals)


def meets_sums(sums: Sequence[View], view: View) -> bool:
    """Whether a result over all samples lies in the memory of `sums` over the whole batch."""
    return any(overlap(view, other) for other in sums)


def needs_results(sums: Sequence[View], once: Sequence[Operation], operation: Operation) -> bool:
    """Whether an operation on samples reads `sums` over the whole batch, or must follow an operation done `once`."""
    read = [view for view in operation.ins if not view.batched]
    return any(overlap(a, b) for a in read for b in sums) or any(conflict(operation, other) for other in once)
