"""Simplification: drop copies of memory to itself, and operations whose results are never read.

So the code of layers is simple. `Flatten` copies, and the copy disappears. Every layer fills the gradient of its input, but
that is computed only if the caller asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from chains.program.hoist import hoisted
from chains.program.loop import Loop
from chains.program.operations import Copy, Map, Operation, users
from chains.program.reorder import relu_after_max_pool
from chains.program.step_arrays import accumulated, contracted
from chains.program.view import Buffer, View


def live(operations: Sequence[Operation], read: Iterable[Buffer] = ()) -> list[Operation]:
    """The operations whose results reach the caller or are in `read`; each without its unread results."""
    kept: list[Operation] = []
    read = set(read)
    for operation in reversed(operations):
        needed = [k for k, out in enumerate(operation.outs) if out.buffer.role != "scratch" or out.buffer in read]
        if not needed:
            continue
        if isinstance(operation, Loop):
            operation = _live_loop(operation, read)
        if isinstance(operation, Map):
            formula, inputs = operation.formula.only(needed)
            outs = tuple(operation.outs[k] for k in needed)
            operation = replace(operation, outs=outs, ins=tuple(operation.ins[k] for k in inputs), formula=formula)
        read.update(view.buffer for view in operation.reads)
        kept.append(operation)
    return kept[::-1]


def _live_loop(loop: Loop, read: Iterable[Buffer]) -> Loop:
    """The loop without results that neither a later step nor an operation after the loop reads."""
    wanted, known = {*read, *(view.buffer for view in loop.condition)}, -1
    body: list[Operation] = []
    while len(wanted) > known:
        known = len(wanted)
        body = live(loop.body, wanted)
        wanted.update(view.buffer for operation in body for view in operation.reads)
    return loop.around(body)


def without_copies(operations: Sequence[Operation]) -> list[Operation]:
    """The operations without scratch buffers that are only copies: the original buffers take their place."""
    kept: dict[int, Operation] = dict(enumerate(operations))
    touching = users(operations)
    for position in range(len(operations)):
        operation = kept[position]
        if isinstance(operation, Copy) and _can_share(kept, touching, position):
            copied, original = operation.outs[0].buffer, operation.ins[0].buffer
            del kept[position]
            positions = {*touching[original], *touching.pop(copied)} - {position}
            touching[original] = sorted(positions)
            kept.update({k: _redirected(kept[k], copied, original) for k in touching[original]})
    return [kept[position] for position in sorted(kept)]


def _can_share(operations: Mapping[int, Operation], touching: Mapping[Buffer, list[int]], position: int) -> bool:
    """Whether the copy at `position` may be dropped, and its two buffers become one."""
    (out,), (original,) = operations[position].outs, operations[position].ins
    if out.buffer.role != "scratch" or out.dtype != original.dtype or out.batched != original.batched:
        return False
    if not (out.is_whole and original.is_whole and out.sample_size == original.sample_size):
        return False
    if touching[out.buffer][0] < position:
        return False
    touched = touching[original.buffer][-1] > position
    after = {k for buffer in (out.buffer, original.buffer) for k in touching[buffer] if k > position}
    written = any(view.buffer in (out.buffer, original.buffer) for k in after for view in operations[k].outs)
    return not written or (not touched and original.buffer.role == "scratch")


def _redirected(operation: Operation, old: Buffer, new: Buffer) -> Operation:
    """The operation with all views of `old` turned into views of `new`."""

    def moved(view: View) -> View:
        return replace(view, buffer=new) if view.buffer is old else view

    return operation.on(moved)


# In the order in which they are applied. `[each.__name__ for each in PASSES]` names them.
PASSES: tuple[Callable[[Sequence[Operation]], list[Operation]], ...] = (
    live,
    hoisted,
    accumulated,
    contracted,
    relu_after_max_pool,
    without_copies,
)


def simplified(operations: Sequence[Operation]) -> list[Operation]:
    """Fewer operations with the same results, after all passes."""
    found = list(operations)
    for each in PASSES:
        found = each(found)
    return found
