"""Products of few samples cut into parts, one for each thread of a team.

A batch that is one tile leaves nothing to divide but the products themselves. They are cut along the rows of their
weights: each thread keeps its rows in its own cache, from the product to the gradient and the optimiser's step. Where the
products sum along these rows, each thread has a sum of its own, and the first adds them up in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import groupby
from operator import add
from typing import Any

from chains.expr import trace
from chains.program.alias import conflict
from chains.program.operations import Map, MatMul, Operation
from chains.program.view import Buffer, View

WORTH = 1 << 13  # multiply-adds a sample
MOST_PARTS = 4
MOST_SAMPLES = 15
FIRST_SHARE = 0.95  # of an even share, for the first thread, which has other things to do

Owners = dict[int, int]  # the thread that does an operation, by its identity; others are the first one's


def split(operations: Sequence[Operation], parts: int, lanes: int) -> tuple[list[Operation], Owners]:
    """The operations with large products cut into so many parts at most, and whose they are.

    Only where the operations change a state: what is run once does not wait for a team.
    """
    result: list[Operation] = []
    owners: Owners = {}
    trains = any(view.buffer.role == "state" for operation in operations for view in operation.outs)
    for operation in operations:
        pieces = _cut(operation, parts, lanes) if trains and isinstance(operation, MatMul) else []
        owners |= {id(piece): thread for thread, piece in enumerate(pieces)}
        result += pieces or [operation]
        if pieces and pieces[1].outs[0].buffer is not operation.outs[0].buffer:
            result.append(_sum(pieces))
    return _put_off(result, owners), owners


def _put_off(operations: Sequence[Operation], owners: Owners) -> list[Operation]:
    """The operations in an order in which what the parts of a product do not need comes behind them: they are waited for."""
    result: list[Operation] = []
    pending: list[Operation] = []  # since the last part, which the first thread does
    for owned, group in groupby(operations, lambda operation: id(operation) in owners):
        if not owned:
            pending += group
            continue
        needed: list[Operation] = list(group)
        later: list[Operation] = []
        for operation in reversed(pending):
            chosen = needed if any(conflict(operation, other) for other in needed) else later
            chosen.insert(0, operation)
        result += needed
        pending = later
    return result + pending


def _cut(product: MatMul, parts: int, lanes: int) -> list[MatMul]:
    """The parts of a product, as many as are worth it."""
    (out,), (a, b) = product.outs, product.ins
    weights = b if out.batched else out
    if weights.batched or weights.ndim != 2 or weights.sample_size < WORTH:
        return []
    axis = 0 if weights.strides[0] >= weights.strides[1] else 1  # along which the rows of the weights lie
    length = int(weights.shape[axis])  # type: ignore[arg-type]
    counts = (count for count in range(parts, 1, -1) if _cuts(length, count, lanes)[1] >= 2 * lanes)
    if (count := next(counts, None)) is None:
        return []
    cuts = _cuts(length, count, lanes)

    def piece(thread: int) -> MatMul:
        start, stop = cuts[thread], cuts[thread + 1]
        if axis == 1:
            part = (out.slice(1, start, stop), a, b.slice(1, start, stop))
        elif out.batched:
            own = _beside(out, thread) if thread else out
            part = (own, a.slice(1, start, stop), b.slice(0, start, stop))
        else:
            part = (out.slice(0, start, stop), a.slice(0, start, stop), b)
        return replace(product, outs=part[:1], ins=part[1:], accumulate=product.accumulate and part[0].buffer is out.buffer)

    return [piece(thread) for thread in range(count)]


def _cuts(length: int, parts: int, lanes: int) -> list[int]:
    """The bounds of the parts of an axis, in whole vectors."""
    first = FIRST_SHARE * length / parts
    bounds = [first + (length - first) * k / (parts - 1) for k in range(parts - 1)]
    return [0, *(int(bound) // lanes * lanes for bound in bounds), length]


def _beside(out: View, thread: int) -> View:
    """A place of a thread's own for what it adds to `out`."""
    name = f"{out} of thread {thread}"
    return replace(out, buffer=Buffer(name, "scratch", out.dtype, out.buffer.shape), name=name)


def _sum(pieces: Sequence[MatMul]) -> Map:
    views = tuple(piece.outs[0] for piece in pieces)

    def total(*numbers: Any) -> Any:
        return reduce(add, numbers)

    return Map(views[:1], views, trace(total, len(views)), label=pieces[0].label)
