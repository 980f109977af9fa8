"""Arrays with an entry for each step of a loop: less memory with the same results.

`accumulated`: a layer with checkpoints (`chains.layers.segments`) has the gradient of a weight from each segment, in an array
with an entry for each. If these are products, the first one fills the gradient itself, and those in the loop over the other
segments add to it. If all are in the loop, they add to zeros.

`contracted`: the arrays that a layer keeps for its pullback have an entry for each step. If no other step needs an entry, for
example without a pullback, all steps share one, which then stays in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from chains.program.alias import overlap, reach
from chains.program.loop import Loop, fills_first
from chains.program.operations import MatMul, Operation, Reduce
from chains.program.view import Batch, Buffer, View


def accumulated(operations: Sequence[Operation]) -> list[Operation]:
    """Operations with the same results, without arrays of the products of segments."""
    result = list(operations)
    for total in [operation for operation in operations if isinstance(operation, Reduce)]:
        segments = _Segments(total.outs[0], total.ins[0])
        if segments.add_up_to(total, result):
            result = [operation for operation in result if operation is not total]
            from_zero = not any(isinstance(operation, MatMul) and segments.is_used_by(operation) for operation in result)
            result = [segments.redirected(operation, from_zero) for operation in result]
    return result


class _Segments(NamedTuple):
    """An array that has an entry for each segment, and the target that these add up to."""

    target: View
    each: View

    def add_up_to(self, total: Reduce, operations: Sequence[Operation]) -> bool:
        """Whether products in one loop fill all entries, or all but one, filled before, of which `total` is the sum."""
        users = [position for position, operation in enumerate(operations) if self.is_used_by(operation)]
        if not self._is_sum(total) or len(users) < 2 or operations[users[-1]] is not total:
            return False
        *first, loop = [operations[position] for position in users[:-1]]
        if not isinstance(loop, Loop) or self._is_touched(operations[users[0] : users[-1]]):
            return False
        if loop.from_zero if first else not loop.closed or loop.added:
            return False
        later = list(self._inside(loop))
        begun, added = (
            [self._part(operation) for operation in some] for some in (first, [operation for operation, _ in later])
        )
        if None in (*begun, *added) or (first and any(part not in begun for part in added)):
            return False
        parts = [part for part in dict.fromkeys(begun or added) if part is not None]
        return self._fill_entries(first, later) and self._fill_target(parts)

    def _is_sum(self, total: Reduce) -> bool:
        """Whether the operation sums whole entries of a scratch array to the target."""
        target, each = self
        whole = each.is_whole and each.shape[1:] == target.shape
        return total.kind == "sum" and not total.batched and each.buffer.role == "scratch" and whole and target.contiguous

    def _is_touched(self, between: Sequence[Operation]) -> bool:
        """Whether the operations read or write the target."""
        return any(overlap(self.target, view) for other in between for view in other.views)

    def _fill_entries(self, first: Sequence[Operation], later: Sequence[tuple[Operation, Any]]) -> bool:
        """Whether the operations of the loop, and at most one before it, fill each entry once."""
        target, each = self
        filled = {operation.outs[0].offset // target.sample_size for operation in first}
        in_loop = [self._entries(operation.outs[0], loops) for operation, loops in later]
        once = all(len(set(found)) == len(found) for found in in_loop)
        others = {entry for found in in_loop for entry in found}
        return once and len(filled) == bool(first) and not filled & others and len(filled | others) == each.shape[0]

    def _fill_target(self, parts: Sequence[View]) -> bool:
        """Whether the parts fill the target, and none of it twice."""
        apart = not any(overlap(a, b) for number, a in enumerate(parts) for b in parts[:number])
        return apart and sum(part.sample_size for part in parts) == self.target.sample_size

    def _inside(self, *loops: Loop) -> Iterator[tuple[Operation, tuple[Loop, ...]]]:
        """The operations in the innermost of these loops, and in those inside it, that use the array; each with its loops."""
        for operation in loops[-1].body if self.is_used_by(loops[-1]) else ():
            if isinstance(operation, Loop):
                yield from self._inside(*loops, operation)
            elif self.is_used_by(operation):
                yield operation, loops

    def _entries(self, out: View, loops: Sequence[Loop]) -> list[int]:
        """The entries that an operation in loops fills, step by step."""
        offsets = [out.offset]
        for loop in loops:
            offsets = [offset + step * out.loop_stride(loop.depth) for offset in offsets for step in range(loop.steps)]
        return [offset // self.target.sample_size for offset in offsets]

    def is_used_by(self, operation: Operation) -> bool:
        return any(view.buffer is self.each.buffer for view in operation.views)

    def _part(self, operation: Operation) -> View | None:
        """The part of the target that a product gives for one segment; None for other operations."""
        if (
            not isinstance(operation, MatMul)
            or operation.accumulate
            or any(v.buffer is self.each.buffer for v in operation.ins)
        ):
            return None
        (out,), size = operation.outs, self.target.sample_size
        start, stop = reach(replace(out, loop_strides=()))
        if start // size != (stop - 1) // size or any(move % size for move in out.loop_strides):
            return None
        return replace(self.target, shape=out.shape, strides=out.strides, offset=self.target.offset + start % size)

    def redirected(self, operation: Operation, from_zero: bool) -> Operation:
        """The operation, with its results for a segment in the target; a loop may begin with zeros there."""
        if not self.is_used_by(operation):
            return operation
        if isinstance(operation, Loop):
            return operation.around([self.redirected(inner, False) for inner in operation.body], from_zero=from_zero)
        part = self._part(operation)
        assert isinstance(operation, MatMul)
        assert part is not None
        return replace(operation, outs=(part,), accumulate=bool(operation.outs[0].loop_strides))


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
    if not smaller:
        return loop
    contracted_body = [operation.on(lambda view: _moved(view, smaller)) for operation in loop.body]
    fresh = {buffer: place for buffer, place in smaller.items() if fills_first(contracted_body, place[0])}
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
