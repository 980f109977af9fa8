"""Steps of an optimiser done to blocks of the gradient while these are in registers.

What is done once, behind the tiles, goes through the whole gradient and all parameters. Where one tile holds the batch,
it can do that to each block of a weight gradient as it has it: the gradient is then neither stored nor read again. What no
product gives, biases for example, is left for afterwards. So it is with plain steps down the gradient: what they write
takes the registers of what they read, while those that keep moments would need several for each number of a block.

Large products (`gemm.py`) see the whole batch anyway, and do so at any size of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from chains.backends.native.plan.segments import SHARED, Segment, Step, divide
from chains.program.alias import conflict, meet
from chains.program.operations import Map, MatMul, Operation
from chains.program.view import View

LEAST = 1024  # elements of a product worth it; together they should be half of the gradient


@dataclass(frozen=True)
class Finish:
    """What products do to their results where a tile is the whole batch."""

    piece: int  # the one of the segment's that they do, as far as they reach
    maps: dict[int, tuple[Map, ...]]  # on the elements of a product, by the identity of its step
    rest: tuple[tuple[int, int], ...]  # the elements that are left to do


def finish_of(
    segment: Segment, operations: Sequence[Operation], reads: Callable[[Step], list[View]], as_it_is: Callable[[Step], bool]
) -> Finish | None:
    """What the products of a segment may do, among all operations of its program; None if nothing.

    `reads` tells what a step reads, and `as_it_is` whether a product is computed as it is, not as its transpose.
    """
    found = _step_down(segment, operations)
    if found is None:
        return None
    piece, maps, gradient = found
    done = {id(step): maps for step, maps in _finished(segment, maps, gradient, reads) if as_it_is(step)}
    rest = _rest(gradient, [step.operation.outs[0] for step in segment.tiled if id(step) in done])
    return None if rest is None else Finish(piece, done, rest)


def finished_products(
    operations: Sequence[Operation], large: Callable[[Operation], bool]
) -> tuple[list[Operation], dict[int, tuple[Map, ...]]]:
    """The operations without what large products may do, among those that go through the gradient, and that, by the identity
    of a product. A product whose weights are still to be read goes behind what reads them, if it may.
    """
    unchanged: tuple[list[Operation], dict[int, tuple[Map, ...]]] = list(operations), {}
    if not any(map(large, operations)):
        return unchanged
    end = 1 + max(k for k, operation in enumerate(operations) if any(view.batched for view in operation.views))
    whole = Segment(tiled=list(map(Step, operations[:end])), once=list(map(Step, operations[end:])))
    divide(whole)
    found = _step_down(whole, operations)
    if found is None:
        return unchanged
    piece, maps, gradient = found
    body, finishing = list(operations[:end]), {}
    for product in [o for o in body if _gives_part(o, gradient) and large(o)]:
        slices = _slices(maps, gradient, product.outs[0])
        if _postponed(body, product, slices):
            finishing[id(product)] = slices
    rest = _rest(gradient, [o.outs[0] for o in body if id(o) in finishing])
    if rest is None:
        return unchanged
    early = [step.operation for step in whole.early]
    pieces = [[step.operation for step in steps] for _, steps in whole.pieces]
    pieces[piece] = list(left_over(rest, maps))
    return [*early, *body, *chain.from_iterable(pieces)], finishing


def _step_down(segment: Segment, operations: Sequence[Operation]) -> tuple[int, list[Map], View] | None:
    """The piece of what a segment does once that goes through the gradient, its maps, and the gradient."""
    before: list[Operation] = []
    for piece, (length, steps) in enumerate(segment.pieces):
        maps = [step.operation for step in steps if isinstance(step.operation, Map)]
        gradient = _gradient(segment, maps, operations) if length >= SHARED else None
        if gradient is not None and not any(conflict(a, b) for a in before for b in maps):
            return piece, maps, gradient
        before += [step.operation for step in steps]
    return None


def _postponed(operations: list[Operation], product: Operation, maps: Sequence[Map]) -> bool:
    """Move a product behind the last operation that uses what the maps would write; whether that may be."""
    begin = next(k for k, operation in enumerate(operations) if operation is product)
    changed = [view for each in maps for view in each.outs]
    end = begin
    for k, operation in enumerate(operations[begin + 1 :], begin + 1):
        used = any(meet(a, b) for a in changed for b in operation.views if not b.batched)
        if used or (isinstance(operation, Map) and end == k - 1 > begin):  # maps stay with the product that they follow
            end = k
    if any(conflict(product, operation) for operation in operations[begin + 1 : end + 1]):
        return False
    operations.insert(end, operations.pop(begin))
    return True


def _gives_part(operation: Operation, gradient: View) -> bool:
    """Whether this is a product over the samples that gives a run of the gradient."""
    if not (isinstance(operation, MatMul) and operation.sums_over_batch):
        return False
    (out,) = operation.outs
    inside = gradient.offset <= out.offset and out.offset + out.sample_size <= gradient.offset + gradient.sample_size
    return out.buffer is gradient.buffer and out.contiguous and inside


def _gradient(segment: Segment, maps: Sequence[Map], operations: Sequence[Operation]) -> View | None:
    """The vector of sums that these maps go through to change one other, if nobody else wants it, and the samples change
    nothing else that they read."""
    sums = segment.sums
    summed = {view.buffer for operation in sums for view in operation.outs}
    found = {view for operation in maps for view in operation.ins if view.buffer in summed}
    if len(found) != 1:
        return None
    (gradient,) = found
    users = [o for o in operations if any(view.buffer is gradient.buffer for view in o.views)]
    others = [view for operation in maps for view in operation.views if view.buffer is not gradient.buffer]
    changed = {view for operation in maps for view in operation.outs if view.buffer is not gradient.buffer}
    tiled = [view for step in segment.tiled for o in step.operations for view in o.outs if not view.batched]
    alone = all(any(user is each for each in (*sums, *maps)) for user in users)
    apart = not any(meet(a, b) for a in others for b in tiled)
    return gradient if gradient.buffer.role == "scratch" and len(changed) == 1 and alone and apart else None


def _finished(
    segment: Segment, maps: Sequence[Map], gradient: View, reads: Callable[[Step], list[View]]
) -> Iterator[tuple[Step, tuple[Map, ...]]]:
    """The products behind which nobody reads what the maps would write, with the maps on their elements."""
    for position, step in enumerate(segment.tiled):
        if _gives_part(step.operation, gradient) and step.operation.outs[0].sample_size >= LEAST:
            slices = _slices(maps, gradient, step.operation.outs[0])
            read = [view for later in segment.tiled[position:] for view in reads(later)]
            if not any(meet(a, b) for each in slices for a in each.outs for b in read):
                yield step, slices


def left_over(rest: Sequence[tuple[int, int]], maps: Sequence[Map]) -> list[Map]:
    """The maps on these runs of elements."""

    def slice(view: View, begin: int, stop: int) -> View:
        long = view.sample_size > 1
        return replace(view, shape=(stop - begin,), strides=(1,), offset=view.offset + begin) if long else view

    def part(views: Sequence[View], run: tuple[int, int]) -> tuple[View, ...]:
        return tuple(slice(view, *run) for view in views)

    return [Map(part(each.outs, run), part(each.ins, run), each.formula) for run in rest for each in maps]


def _slices(maps: Sequence[Map], gradient: View, out: View) -> tuple[Map, ...]:
    """The maps on the elements of one product."""

    def slice(view: View) -> View:
        if view.sample_size == 1:
            return view
        return replace(view, shape=out.shape, strides=out.strides, offset=view.offset + out.offset - gradient.offset)

    return tuple(Map(tuple(map(slice, each.outs)), tuple(map(slice, each.ins)), each.formula) for each in maps)


def _rest(gradient: View, done: Sequence[View]) -> tuple[tuple[int, int], ...] | None:
    """The runs of elements of the gradient between those that are done; None where they are half of it or more."""
    runs, begin = [], 0
    for out in sorted(done, key=lambda out: out.offset):
        stop = out.offset - gradient.offset
        runs += [(begin, stop)] if stop > begin else []
        begin = stop + out.sample_size
    runs += [(begin, gradient.sample_size)] if begin < gradient.sample_size else []
    return tuple(runs) if 2 * sum(stop - start for start, stop in runs) < gradient.sample_size else None
