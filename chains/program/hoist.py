"""Hoisting: products and sums that need not run step by step are moved out of loops, and done for all steps together.

A recurrent cell multiplies its input by weights at every step, and sums the gradients of its weights over the steps. Neither
depends on the state. So the first becomes one product of (time x batch) rows before the loop, the second one product after it.
For this, a scratch array that only the loop uses, such as the results of the product, gets an entry for each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chains.program.alias import conflict, overlap
from chains.program.loop import Loop, fills_first, slot
from chains.program.operations import MatMul, Operation, Reduce
from chains.program.view import Batch, Buffer, View


def hoisted(operations: Sequence[Operation], outside: frozenset[Buffer] = frozenset()) -> list[Operation]:
    """Operations with the same results, with products and sums moved out of loops where possible.

    `outside` are buffers that other operations use too.
    """
    result = list(operations)
    position = 0
    while position < len(result):
        loop = result[position]
        if isinstance(loop, Loop):
            others = [view.buffer for other in result if other is not loop for view in other.views]
            around = outside.union(others, (view.buffer for view in loop.condition))
            inner = loop.around(hoisted(loop.body, around))
            split = _Split(inner, around, result[position + 1 :])
            before, rest, after = ([], [inner], []) if loop.closed else split.parts()
            dropped = {id(total) for total in split.totals}
            later = [operation for operation in result[position + 1 :] if id(operation) not in dropped]
            result[position:] = [*before, *rest, *after, *later]
            position += len(before) + len(rest) + len(after)
        else:
            position += 1
    return result


class _Split:
    """A loop, and the operations of its body that are moved out."""

    def __init__(self, loop: Loop, around: frozenset[Buffer], later: Sequence[Operation]) -> None:
        self.loop = loop
        self.depth, self.steps = loop.depth, loop.steps
        self.body = loop.body
        self.later = later
        self.totals: list[Reduce] = []  # sums over the steps, replaced by products after the loop
        moves = [view.loop_stride(self.depth) for operation in loop.body for view in operation.views]
        self._backwards = min(moves, default=0) < 0
        self._views: dict[Buffer, list[View]] = {}
        for operation in loop.body:
            for view in operation.views:
                self._views.setdefault(view.buffer, []).append(view)
        written = {view.buffer for operation in loop.body for view in operation.writes}
        inside = (buffer for buffer in written if buffer.role == "scratch" and buffer not in around)
        self._private = {buffer: self._expanded(buffer) for buffer in inside if self._is_fresh(buffer)}
        self._sums: dict[Buffer, Reduce] = {}  # by buffer with an entry for each step: the sum of these

    def parts(self) -> tuple[list[Operation], list[Operation], list[Operation]]:
        """The operations before the loop, the loop with the rest, and the operations after it."""
        before = self._before()
        after = self._after(before)
        if not before and not after:
            return [], [self.loop], []
        moved = [self.body[k] for k in (*before, *after)]
        used = {view.buffer for operation in moved for view in operation.views}
        entries = {buffer: place for buffer, place in self._private.items() if buffer in used}
        rest = [operation.on(lambda view: self._entry(view, entries)) for k, operation in enumerate(self.body)
                if k not in before and k not in after]  # fmt: skip
        first, last = ([self._for_all_steps(self.body[k], entries) for k in sorted(some)] for some in (before, after))
        self.totals = [self._sums[buffer] for buffer in self._sums if buffer in used]
        return first, [self.loop.around(rest)] if rest else [], last

    # What may move

    def _before(self) -> set[int]:
        """The positions of products that do not depend on the loop, and of the operations that they need."""
        free: set[int] = set()
        for k, operation in enumerate(self.body):
            others = [other for j, other in enumerate(self.body) if j not in free and j != k]
            earlier = [other for j, other in enumerate(self.body[:k]) if j not in free]
            written = {view.buffer for other in others for view in other.writes}
            touched = {view.buffer for other in earlier for view in other.views}
            results = {view.buffer for view in operation.writes}
            if not self._moves(operation) or results & touched or not all(map(self._has_slot, operation.writes)):
                continue
            reads = [view for view in operation.reads if view.buffer not in results]
            if not any(view.buffer in written for view in reads):
                free.add(k)
        chosen = {k for k in free if isinstance(self.body[k], MatMul) and not self.body[k].sums_over_batch}
        for k in sorted(free, reverse=True):
            if any(j > k and conflict(self.body[k], self.body[j]) for j in chosen):
                chosen.add(k)
        return chosen

    def _after(self, before: set[int]) -> set[int]:
        """The positions of products and sums whose results the loop does not need, and of the operations that use them."""
        stay = set(before)
        while True:
            free: set[int] = set()
            for k in reversed(range(len(self.body))):
                operation = self.body[k]
                kept = [j for j in range(len(self.body)) if j not in free and j != k and j not in before]
                reads = [view for view in operation.reads if view not in operation.writes]
                settled = all(self._is_settled(view, k, kept) for view in reads)
                if k not in stay and self._moves(operation) and settled:
                    free |= {k} if all(self._is_left(view, k, kept) for view in operation.writes) else set()
            chosen = {k for k in free if isinstance(self.body[k], MatMul) or self.body[k].sums_over_batch}
            for k in sorted(free):
                if any(j < k and conflict(self.body[j], self.body[k]) for j in chosen):
                    chosen.add(k)
            self._sums = {}
            lost = {k for k in chosen if self.body[k].sums_over_batch and not self._finds_total(k, chosen)}
            if not lost:
                return chosen
            stay |= lost

    def _moves(self, operation: Operation) -> bool:
        """Whether one operation can do the work of all steps."""
        if not operation.over_steps:
            return False
        signs = {view.loop_stride(self.depth) > 0 for view in operation.views if view.loop_stride(self.depth)}
        private = any(view.buffer in self._private for view in operation.views)
        if len(signs | ({not self._backwards} if private else set())) > 1:
            return False
        if isinstance(operation, MatMul):
            samples = [view for view in operation.views if view.batched]
            fixed = [view for view in operation.ins if not view.batched]
            return all(map(self._has_rows, samples)) and not any(map(self._varies, fixed))
        if operation.sums_over_batch:
            (out,), (summed, *_) = operation.outs, operation.ins
            return isinstance(operation, Reduce) and operation.kind == "sum" and out.ndim < summed.ndim and self._varies(summed)
        return operation.outs[0].batched and not any(self._varies(view) for view in operation.views if not view.batched)

    def _varies(self, view: View) -> bool:
        return bool(view.loop_stride(self.depth)) or view.buffer in self._private

    def _has_rows(self, view: View) -> bool:
        """Whether the samples of all steps form the rows, or the columns, of one matrix."""
        tall = view if isinstance(view.shape[0], Batch) else view.T
        if tall.shape[0] != Batch() or not self._varies(view):
            return False
        return view.buffer in self._private or tall.strides[0] == self.steps * abs(view.loop_stride(self.depth))

    def _has_slot(self, view: View) -> bool:
        """Whether each step has a part of the buffer that no other step touches."""
        if view.buffer in self._private:
            return True
        slots = {slot(other, self.depth) for other in self._views[view.buffer]}
        return None not in slots and len(slots) == 1

    def _is_settled(self, view: View, k: int, kept: Sequence[int]) -> bool:
        """Whether the elements that operation k reads here still have the same values after the loop."""
        for j in kept:
            for other in self.body[j].writes:
                if other.buffer is not view.buffer:
                    continue
                if view.buffer in self._private:
                    if j > k and overlap(view, other):
                        return False
                    continue
                own, made = slot(view, self.depth), slot(other, self.depth)
                if own is None or made is None or own[0] != made[0]:
                    return False
                ahead = (own[1] - made[1]) * (1 if own[0] > 0 else -1)
                if ahead > 0 or (ahead == 0 and j > k and overlap(view, other)):
                    return False
        return True

    def _is_left(self, view: View, k: int, kept: Sequence[int]) -> bool:
        """Whether nothing else in the loop needs the elements that operation k writes here."""
        if not self._varies(view):
            return False
        touching = [j for j in kept if any(other.buffer is view.buffer for other in self.body[j].views)]
        return self._has_slot(view) and not any(j > k for j in touching)

    def _finds_total(self, k: int, chosen: set[int]) -> bool:
        """Whether the sum over the samples at each step is used only in one sum over the steps, which is then noted."""
        (out,) = self.body[k].outs
        buffer = out.buffer
        writers = [j for j, other in enumerate(self.body) if any(view.buffer is buffer for view in other.views)]
        readers = [other for other in self.later if any(view.buffer is buffer for view in other.views)]
        if not out.loop_stride(self.depth) or len(readers) != 1:
            return False
        (total,) = readers
        if not isinstance(total, Reduce) or total.kind != "sum" or not set(writers) <= chosen:
            return False
        (target,), (source,) = total.outs, total.ins
        whole = source.is_whole and source.shape[1:] == target.shape
        between = self.later[: next(position for position, each in enumerate(self.later) if each is total)]
        if not whole or not target.contiguous or any(conflict(total, other) for other in between):
            return False
        sums = [self.body[j] for j in writers]
        fresh = [each for each in sums if not each.accumulates]
        apart = not any(overlap(a.outs[0], b.outs[0]) for n, a in enumerate(fresh) for b in fresh[:n])
        covered = sum(each.outs[0].sample_size for each in fresh) == target.sample_size
        if not apart or not covered or not all(each.over_batch == "sum" for each in sums):
            return False
        self._sums[buffer] = total
        return True

    # One operation for all steps

    def _is_fresh(self, buffer: Buffer) -> bool:
        """Whether each step fills a buffer before it reads it, and all steps use the same part.

        A view whose first axis has several rows of each sample has no form with an entry for each step.
        """
        merged = (extent for view in self._views[buffer] for extent in view.shape if isinstance(extent, Batch))
        if any(view.loop_strides for view in self._views[buffer]) or any(extent != Batch() for extent in merged):
            return False
        return fills_first(self.body, buffer)

    def _expanded(self, buffer: Buffer) -> View:
        """A new buffer with an entry for each step: the view of the first step's entry."""
        batch, sample = buffer.shape[: int(buffer.batched)], buffer.shape[int(buffer.batched) :]
        shape = (*batch, self.steps, *sample)
        made = Buffer(buffer.name, "scratch", buffer.dtype, shape).whole
        first = self.steps - 1 if self._backwards else 0
        move = -buffer.size if self._backwards else buffer.size
        return made.index(len(batch), first).advancing(self.depth, move)

    def _entry(self, view: View, entries: dict[Buffer, View]) -> View:
        """The view, moved from a buffer that all steps shared to the step's entry."""
        entry = entries.get(view.buffer)
        if entry is None:
            return view
        strides = [
            stride * self.steps if isinstance(extent, Batch) else stride
            for extent, stride in zip(view.shape, view.strides, strict=True)
        ]
        offset, name = entry.offset + view.offset, view.name or view.buffer.name
        placed = replace(view, buffer=entry.buffer, strides=tuple(strides), offset=offset, name=name)
        return placed.advancing(self.depth, entry.loop_stride(self.depth))  # and with loops within this one, as before

    def _for_all_steps(self, operation: Operation, entries: dict[Buffer, View]) -> Operation:
        """An operation for all steps."""

        def whole(view: View) -> View:
            view = self._entry(view, entries)
            name = view.name.partition("[")[0]
            if view.buffer in self._sums:
                (target,) = self._sums[view.buffer].outs
                size = target.sample_size
                slot = view.offset // size * size
                return replace(target, shape=view.shape, strides=view.strides, offset=target.offset + view.offset - slot)
            if not view.loop_stride(self.depth):
                return view.expand(1) if view.batched and not isinstance(operation, MatMul) else view
            rows = self._rows if isinstance(operation, MatMul) else lambda each: each.over(self.depth, self.steps)
            return rows(view).named(name)

        return operation.on(whole)

    def _rows(self, view: View) -> View:
        """The matrix with the samples of all steps in its rows or columns, for a matrix with the samples of one step."""
        if not isinstance(view.shape[0], Batch):
            return self._rows(view.T).T
        extents, strides = (Batch(self.steps), view.shape[1]), (abs(view.loop_stride(self.depth)), view.strides[1])
        return replace(view.over(self.depth, self.steps), shape=extents, strides=strides)
