"""Loops: an operation that does the operations of its body once for each step, with views that advance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chains.program.operations import Fill, Operation, Total
from chains.program.view import Batch, Buffer, View


@dataclass(frozen=True)
class Loop(Operation):
    """The operations of `body`, in order, repeated `steps` times.

    Their views advance with the steps (`View.loop_strides`). Later steps can read the results of earlier ones. A loop inside
    another has the next `depth`. `outs` are all views that the body writes. `ins` are the views that it may read as they were
    before the loop, `added` the sums over samples that it adds to. Operations that depend on no step are moved out of the loop
    (`chains.program.hoist`), unless it is `closed`.

    A step may be left out if all elements of `skip_where_zero`, which it reads first, are 0 for all samples that a backend
    takes together. Such a step must not change anything that is read later, so a backend may also run it. If steps may be left
    out, and in any loop `from_zero`, sums over samples begin with zeros before the first step, and so do arrays without samples
    that have an entry for each step.

    `solves` are the views (out, matrix, right) of a loop whose only result is the `out` with ``matrix @ out = right``. A
    backend may find it in another way.
    """

    steps: int
    body: tuple[Operation, ...]
    depth: int = 0
    closed: bool = False
    added: tuple[View, ...] = ()
    skip_where_zero: View | None = None
    from_zero: bool = False
    solves: tuple[View, View, View] | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({"skip_where_zero" if name == "only" else name: value for name, value in state.items()})

    @classmethod
    def of(
        cls, steps: int, body: Sequence[Operation], depth: int = 0, label: str = "", *, closed: bool = False,
        skip_where_zero: View | None = None, from_zero: bool = False, solves: tuple[View, View, View] | None = None,
    ) -> Loop:  # fmt: skip
        """The loop over these operations, with its effects."""
        outs = dict.fromkeys(view.over(depth, steps) for operation in body for view in operation.writes)
        every, made = Filled(), Filled()
        every.add(view for operation in body for view in operation.writes)
        ins: dict[View, None] = {} if skip_where_zero is None else {skip_where_zero.over(depth, steps): None}
        added: dict[View, None] = {}
        for operation in body:
            sums = {total.view for total in operation.totals}
            for view in operation.reads:
                if from_zero and view in sums and view not in operation.ins:
                    continue
                if not made.covers(view):
                    before = replace(view, offset=view.offset + view.loop_stride(depth))  # the place at the previous step
                    found = added if view in sums and view not in operation.ins else ins
                    found[view.at(depth, 0) if every.covers(before) else view.over(depth, steps)] = None
            made.add(operation.writes)
        return cls(
            tuple(outs), tuple(ins), added=tuple(added), steps=steps, body=tuple(body), depth=depth, closed=closed,
            skip_where_zero=skip_where_zero, from_zero=from_zero, solves=solves, label=label,
        )  # fmt: skip

    @property
    def over_batch(self) -> str | None:
        return next((operation.over_batch for operation in self.body if operation.over_batch), None)

    @property
    def totals(self) -> tuple[Total, ...]:
        totals = [
            total._replace(view=total.view.over(self.depth, self.steps), accumulates=total.accumulates and not self.from_zero)
            for operation in self.body for total in operation.totals
        ]  # fmt: skip
        return tuple(totals)

    @property
    def zeros(self) -> tuple[Fill, ...]:
        """The operations before the first step: the fills of sums that begin with zeros, and of their entries for each step."""
        if not self.from_zero:
            return ()
        entries = [
            view for operation in self.body for view in operation.writes if not view.batched and view.loop_stride(self.depth)
        ]
        views = [*(total.view for total in self.totals), *(view.over(self.depth, self.steps) for view in entries)]
        return tuple(Fill((view,), (), 0.0, label=self.label) for view in dict.fromkeys(views))

    @property
    def advances(self) -> bool:
        """Whether some view of the body advances with the steps."""
        views = [view for operation in all_operations(self.body) for view in operation.views]
        return any(view.loop_stride(self.depth) for view in (*views, *self.condition))

    @property
    def condition(self) -> tuple[View, ...]:
        """`skip_where_zero`, if there is one."""
        return () if self.skip_where_zero is None else (self.skip_where_zero,)

    @property
    def reads(self) -> tuple[View, ...]:
        return self.ins + self.added

    def on(self, change: Callable[[View], View]) -> Operation:
        return self._conditional(change).around([operation.on(change) for operation in self.body])

    def around(self, body: Sequence[Operation], *, from_zero: bool = False) -> Loop:
        """The same loop with another body."""
        from_zero = from_zero or self.from_zero
        loop = Loop.of(
            self.steps, body, self.depth, self.label, closed=self.closed, skip_where_zero=self.skip_where_zero,
            from_zero=from_zero, solves=self.solves,
        )  # fmt: skip
        return replace(loop, held=True) if self.held else loop

    def _conditional(self, change: Callable[[View], View]) -> Loop:
        """The loop with its condition, and what it solves, changed."""
        skip = None if self.skip_where_zero is None else change(self.skip_where_zero)
        solves = None if self.solves is None else (change(self.solves[0]), change(self.solves[1]), change(self.solves[2]))
        return replace(self, skip_where_zero=skip, solves=solves)

    def at(self, step: int) -> list[Operation]:
        """The operations of one step."""
        return [_moved(operation, lambda view: view.at(self.depth, step)) for operation in self.body]

    @property
    def written_out(self) -> list[Operation]:
        """The operations of all steps, in order."""
        return [*self.zeros, *(operation for step in range(self.steps) for operation in self.at(step))]

    def flops(self, batch: int) -> int:
        return self.steps * sum(operation.flops(batch) for operation in self.body)

    def __str__(self) -> str:
        return f"{self.steps} times{''.join(f', where {view} is not 0' for view in self.condition)}:"


def _moved(operation: Operation, change: Callable[[View], View]) -> Operation:
    """The operation with all its views changed; the effects of loops are changed too, and need not be found again."""
    if not isinstance(operation, Loop):
        return operation.on(change)
    outs, ins, added = (tuple(map(change, views)) for views in (operation.outs, operation.ins, operation.added))
    body = tuple(_moved(each, change) for each in operation.body)
    return replace(operation._conditional(change), outs=outs, ins=ins, added=added, body=body)


def all_operations(operations: Iterable[Operation]) -> Iterable[Operation]:
    """The operations, with each loop replaced by its body."""
    for operation in operations:
        if isinstance(operation, Loop):
            yield from all_operations(operation.body)
        else:
            yield operation


@dataclass(frozen=True)
class Steps:
    """The steps of a loop along a time axis, from its end if `backwards`. The outermost loop has depth 0."""

    steps: int
    depth: int
    backwards: bool = False

    def now(self, view: View, axis: int, ahead: int = 0) -> View:
        """The entry of an axis for the current step, or the entry `ahead` places after it; without the axis.

        Raises ValueError if the axis is the batch, or has too few entries.
        """
        stride = self._stride(view, axis, self.steps + ahead)
        first = self.steps - 1 if self.backwards else 0
        mark = f"{'-' if self.backwards else ''}{'tuvw'[self.depth % 4]}" + (f"+{ahead}" if ahead else "")
        entry = view.index(axis, first + ahead).named(f"{view}[{mark}]")
        return entry.advancing(self.depth, -stride if self.backwards else stride)

    def part(self, view: View, axis: int, length: int) -> View:
        """The entries of an axis for the current step, if each step has `length` consecutive ones."""
        stride = length * self._stride(view, axis, length * self.steps)
        first = length * (self.steps - 1) if self.backwards else 0
        entries = view.slice(axis, first, first + length).named(f"{view}[{'-' if self.backwards else ''}{length}t:]")
        return entries.advancing(self.depth, -stride if self.backwards else stride)

    def _stride(self, view: View, axis: int, wanted: int) -> int:
        """The stride of an axis. Raises ValueError unless it has enough entries."""
        axis = axis % view.ndim if -view.ndim <= axis < view.ndim else axis
        extent = view.shape[axis] if axis < view.ndim else None
        if not isinstance(extent, int) or extent < wanted:
            raise ValueError(f"loop: axis {axis} of {view.text} has no {wanted} entries for {self.steps} steps")
        return view.strides[axis]


class Filled:
    """The elements that were filled, for one sample, by buffer and advance."""

    def __init__(self) -> None:
        self._filled: dict[tuple[Buffer, tuple[int, ...]], np.ndarray] = {}

    def add(self, views: Iterable[View]) -> None:
        for view in views:
            filled = self._filled.setdefault((view.buffer, view.loop_strides), np.zeros(view.buffer.size, bool))
            view.within(filled)[...] = True

    def covers(self, view: View) -> bool:
        """Whether all of a view is filled."""
        filled = self._filled.get((view.buffer, view.loop_strides))
        lengths = [n.per_sample if isinstance(n, Batch) else n for n in view.shape]
        last = view.offset + sum((n - 1) * stride for n, stride in zip(lengths, view.strides, strict=True))
        return filled is not None and view.offset >= 0 and last < len(filled) and bool(view.within(filled).all())


def fills_first(body: Iterable[Operation], buffer: Buffer) -> bool:
    """Whether each step of a loop fills the elements of a buffer before it reads them."""
    filled = Filled()
    for operation in body:
        if not all(filled.covers(view) for view in operation.reads if view.buffer is buffer):
            return False
        filled.add(view for view in operation.writes if view.buffer is buffer)
    return True


def slot(view: View, depth: int) -> tuple[int, int] | None:
    """The advance of a view in the loop at a depth, and its entry at the first step; None if steps share elements."""
    move = view.loop_stride(depth)
    if not move:
        return None
    width = 1
    for extent, stride in zip(view.shape, view.strides, strict=True):
        if isinstance(extent, Batch):
            if stride % abs(move):
                return None
        else:
            width += (extent - 1) * stride
    first, inside = divmod(view.offset, abs(move))
    return (move, first) if inside + width <= abs(move) else None
