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

from chains.backends.native.segments import SHARED, Segment, Step, shared_length
from chains.backends.tiling import conflict, overlap
from chains.operations import Map, MatMul, Operation
from chains.view import View

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
    before: list[Operation] = []
    tiled = [operation for step in segment.tiled for operation in step.operations]
    for piece, (length, steps) in enumerate(segment.pieces):
        maps = [step.operation for step in steps if isinstance(step.operation, Map)]
        gradient = _gradient(tiled, maps, operations) if length >= SHARED else None
        if gradient is not None and not any(conflict(a, b) for a in before for b in maps):
            done = {id(step): maps for step, maps in _finished(segment, maps, gradient, reads) if as_it_is(step)}
            rest = tuple(_rest(gradient, [step.operation.outs[0] for step in segment.tiled if id(step) in done]))
            return Finish(piece, done, rest) if 2 * sum(stop - start for start, stop in rest) < length else None
        before += [step.operation for step in steps]
    return None


def finished_products(
    operations: Sequence[Operation], large: Callable[[Operation], bool]
) -> tuple[list[Operation], dict[int, tuple[Map, ...]]]:
    """The operations without what large products may do, among those that go through the gradient, and that, by the identity
    of a product. A product whose weights are still to be read goes behind what reads them, if it may.
    """
    if not any(map(large, operations)):
        return list(operations), {}
    end = 1 + max(k for k, operation in enumerate(operations) if any(view.batched for view in operation.views))
    body, tail = list(operations[:end]), operations[end:]
    early: list[Operation] = []
    late: list[Operation] = []
    for operation in tail:
        independent = not any(conflict(operation, other) for other in (*body, *late))
        (early if independent and shared_length(operation) < SHARED else late).append(operation)
    before: list[Operation] = []
    pieces = Segment(once=[Step(operation) for operation in late]).pieces
    for piece, (length, steps) in enumerate(pieces):
        maps = [step.operation for step in steps if isinstance(step.operation, Map)]
        gradient = _gradient(body, maps, operations) if length >= SHARED else None
        if gradient is not None and not any(conflict(a, b) for a in before for b in maps):
            finishing = {}
            for product in [o for o in body if _gives_part(o, gradient) and large(o)]:
                slices = _slices(maps, gradient, product.outs[0])
                if _postponed(body, product, slices):
                    finishing[id(product)] = slices
            rest = list(_rest(gradient, [o.outs[0] for o in body if id(o) in finishing]))
            if 2 * sum(stop - start for start, stop in rest) < length:
                after = [step.operation for _, steps in pieces[piece + 1 :] for step in steps]
                return [*early, *body, *before, *left_over(rest, maps), *after], finishing
        before += [step.operation for step in steps]
    return list(operations), {}


def _postponed(operations: list[Operation], product: Operation, maps: Sequence[Map]) -> bool:
    """Move a product behind the last operation that uses what the maps would write; whether that may be."""
    begin = next(k for k, operation in enumerate(operations) if operation is product)
    changed = [view for each in maps for view in each.outs]
    end = begin
    for k, operation in enumerate(operations[begin + 1 :], begin + 1):
        used = any(overlap(a, b) for a in changed for b in operation.views if not b.batched)
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


def _gradient(tiled: Sequence[Operation], maps: Sequence[Map], operations: Sequence[Operation]) -> View | None:
    """The vector of sums that these maps go through to change one other, if nobody else wants it, and the samples change
    nothing else that they read."""
    sums = [operation for operation in tiled if operation.sums_over_batch]
    summed = {view.buffer for operation in sums for view in operation.outs}
    found = {view for operation in maps for view in operation.ins if view.buffer in summed}
    if len(found) != 1:
        return None
    (gradient,) = found
    users = [o for o in operations if any(view.buffer is gradient.buffer for view in o.views)]
    others = [view for operation in maps for view in operation.views if view.buffer is not gradient.buffer]
    changed = {view for operation in maps for view in operation.outs if view.buffer is not gradient.buffer}
    written = [view for operation in tiled for view in operation.outs if not view.batched]
    alone = all(any(user is each for each in (*sums, *maps)) for user in users)
    apart = not any(overlap(a, b) for a in others for b in written)
    return gradient if gradient.buffer.role == "scratch" and len(changed) == 1 and alone and apart else None


def _finished(
    segment: Segment, maps: Sequence[Map], gradient: View, reads: Callable[[Step], list[View]]
) -> Iterator[tuple[Step, tuple[Map, ...]]]:
    """The products behind which nobody reads what the maps would write, with the maps on their elements."""
    for position, step in enumerate(segment.tiled):
        if _gives_part(step.operation, gradient) and step.operation.outs[0].sample_size >= LEAST:
            slices = _slices(maps, gradient, step.operation.outs[0])
            read = [view for later in segment.tiled[position:] for view in reads(later)]
            if not any(overlap(a, b) for each in slices for a in each.outs for b in read):
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


def _rest(gradient: View, done: Sequence[View]) -> Iterator[tuple[int, int]]:
    """The runs of elements of the gradient between those that are done."""
    begin = 0
    for out in sorted(done, key=lambda out: out.offset):
        stop = out.offset - gradient.offset
        if stop > begin:
            yield begin, stop
        begin = stop + out.sample_size
    if begin < gradient.sample_size:
        yield begin, gradient.sample_size
