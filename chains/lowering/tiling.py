"""How programs are split for tiles of samples: first the operations on samples, then the operations done once.

Tiles of the batch are independent in operations on samples, if none of these waits for an operation done once
or for a sum over all samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from chains.program.alias import conflict, overlap
from chains.program.operations import MatMul, Operation, Total
from chains.program.view import Batch, Buffer, View, concrete

MIN_LARGE_ELEMENTS = 1 << 17  # fewest elements of the operand without samples in a large product


def whole_on_tiles(operations: Sequence[Operation]) -> tuple[list[Operation], list[Operation]] | None:
    """The operations on samples and the operations done once; None if one on samples must wait for the whole batch."""
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
    """Whether a result over all samples overlaps `sums` over the whole batch."""
    return any(overlap(view, other) for other in sums)


def needs_results(sums: Sequence[View], once: Sequence[Operation], operation: Operation) -> bool:
    """Whether an operation on samples reads `sums` over the whole batch, or must follow an operation done `once`."""
    read = [view for view in operation.ins if not view.batched]
    return any(overlap(a, b) for a in read for b in sums) or any(conflict(operation, other) for other in once)


def is_large(operation: Operation) -> bool:
    """Whether the operation is a product over samples with many weights, which should see the whole batch."""
    if not isinstance(operation, MatMul) or not operation.batched:
        return False
    weights = next((view for view in operation.views if not view.batched), None)
    if weights is None or any(isinstance(e, Batch) and e.per_sample != 1 for v in operation.views for e in v.shape):
        return False
    rows, columns = concrete(weights.shape, 1)
    return rows * columns >= MIN_LARGE_ELEMENTS and operation.outs[0].strides[1] == 1 and 1 in operation.ins[1].strides


@dataclass
class Tiles:
    """The operations of a segment under construction: the sums that tiles begin, operations done once, and the buffers without
    samples that tiles read or sum into.
    """

    sums: list[Total] = field(default_factory=list)
    done_once: list[Operation] = field(default_factory=list)
    read: set[Buffer] = field(default_factory=set)
    summed: set[Buffer] = field(default_factory=set)

    def take(self, operation: Operation) -> None:
        """Add an operation on samples."""
        self.read |= _unbatched(operation.ins)
        self.summed |= {total.view.buffer for total in operation.totals}
        self.sums += begun(self.sums, operation)

    def refuses(self, operation: Operation) -> bool:
        """Whether an operation on samples cannot go through the tiles together with these operations."""
        views = [total.view for total in self.sums]
        needs = needs_results(views, self.done_once, operation)
        joins = all(continues(self.sums, total) or not meets_sums(views, total.view) for total in operation.totals)
        return needs or not joins or self._mixes(operation)

    def _mixes(self, operation: Operation) -> bool:
        """Whether tiles would sum into a buffer and read another part of it: threads have separate sums of a whole buffer."""
        mixed = operation.sums_over_batch and _unbatched(operation.outs) & self.read
        return bool(mixed or _unbatched(operation.ins) & self.summed)


def _unbatched(views: Iterable[View]) -> set[Buffer]:
    """The buffers of the views without samples."""
    return {view.buffer for view in views if not view.batched}


def begun(sums: Sequence[Total], operation: Operation) -> list[Total]:
    """The sums that an operation begins, and does not add to."""
    found: list[Total] = []
    for total in operation.totals:
        found += [] if continues([*sums, *found], total) else [total]
    return found


def continues(sums: Sequence[Total], total: Total) -> bool:
    """Whether a sum over the samples is added to one of these. Its operation runs after that of the other in each tile."""
    if not total.accumulates or total.over_batch != "sum":
        return False
    found = [other for other in sums if overlap(total.view, other.view)]
    return all(other.over_batch == "sum" for other in found) and any(_covers(other.view, total.view) for other in found)


def only_continues(sums: Sequence[Total], operation: Operation) -> bool:
    """Whether all sums over the samples that an operation computes are added to some of these."""
    return bool(operation.totals) and all(continues(sums, total) for total in operation.totals)


def _covers(a: View, b: View) -> bool:
    """Whether view `a` has all elements of view `b`; both without samples."""
    within = all(any(start <= first and last <= stop for start, stop in a.runs) for first, last in b.runs)
    return a == b or (a.loop_strides == b.loop_strides and within)
