"""Steps of an optimiser done to blocks of the gradient while these are in registers.

What is done once, behind the tiles, goes through the whole gradient and all parameters. Where one tile holds the batch,
it can do that to each block of a weight gradient as it has it: the gradient is then neither stored nor read again. What no
product gives, biases for example, is left for afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from chains.backends.native.segments import Segment, Step, conflict
from chains.backends.tiling import overlap
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
    segment: Segment, operations: Sequence[Operation], reads: Callable[[Step], list[View]], in_rows: Callable[[Step], bool]
) -> Finish | None:
    """What the products of a segment may do, among all operations of its program; None if nothing.

    `reads` tells what a step reads, and `in_rows` whether a product has its results in vectors along rows.
    """
    before: list[Operation] = []
    for piece, (length, steps) in enumerate(segment.pieces):
        maps = [step.operation for step in steps if isinstance(step.operation, Map)]
        gradient = _gradient(segment, maps, operations) if length else None
        if gradient is not None and not any(conflict(a, b) for a in before for b in maps):
            found = {id(step): _slices(maps, gradient, step) for step in _finished(segment, maps, gradient, reads, in_rows)}
            rest = tuple(_rest(segment, gradient, found))
            return Finish(piece, found, rest) if 2 * sum(stop - start for start, stop in rest) < length else None
        before += [step.operation for step in steps]
    return None


def _gradient(segment: Segment, maps: Sequence[Map], operations: Sequence[Operation]) -> View | None:
    """The vector of sums that these maps go through, if they alone want it, and nothing else that the samples change."""
    sums = segment.sums
    summed = {view.buffer for operation in sums for view in operation.outs}
    found = {view for operation in maps for view in operation.ins if view.buffer in summed}
    if len(found) != 1:
        return None
    (gradient,) = found
    users = [o for o in operations if any(view.buffer is gradient.buffer for view in o.views)]
    others = [view for operation in maps for view in operation.views if view.buffer is not gradient.buffer]
    written = [view for step in segment.tiled for o in step.operations for view in o.outs if not view.batched]
    alone = all(any(user is each for each in (*sums, *maps)) for user in users)
    if gradient.buffer.role != "scratch" or not alone or any(overlap(a, b) for a in others for b in written):
        return None
    return gradient


def _finished(
    segment: Segment,
    maps: Sequence[Map],
    gradient: View,
    reads: Callable[[Step], list[View]],
    in_rows: Callable[[Step], bool],
) -> Iterator[Step]:
    """The products behind which nobody reads what the maps would write."""
    for position, step in enumerate(segment.tiled):
        operation = step.operation
        out = operation.outs[0]
        if not (isinstance(operation, MatMul) and out.buffer is gradient.buffer and out.sample_size >= LEAST):
            continue
        inside = gradient.offset <= out.offset and out.offset + out.sample_size <= gradient.offset + gradient.sample_size
        if not (inside and out.contiguous and in_rows(step)):
            continue
        written = [view for each in _slices(maps, gradient, step) for view in each.outs]
        read = [view for later in segment.tiled[position:] for view in reads(later)]
        if not any(overlap(a, b) for a in written for b in read):
            yield step


def _slices(maps: Sequence[Map], gradient: View, step: Step) -> tuple[Map, ...]:
    """The maps on the elements of one product."""
    out = step.operation.outs[0]

    def slice(view: View) -> View:
        if view.sample_size == 1:
            return view
        return replace(view, shape=out.shape, strides=out.strides, offset=view.offset + out.offset - gradient.offset)

    return tuple(Map(tuple(map(slice, each.outs)), tuple(map(slice, each.ins)), each.formula) for each in maps)


def _rest(segment: Segment, gradient: View, found: dict[int, tuple[Map, ...]]) -> Iterator[tuple[int, int]]:
    """The runs of elements between those of the products."""
    begin = 0
    outs = (step.operation.outs[0] for step in segment.tiled if id(step) in found)
    for out in sorted(outs, key=lambda out: out.offset):
        stop = out.offset - gradient.offset
        if stop > begin:
            yield begin, stop
        begin = stop + out.sample_size
    if begin < gradient.sample_size:
        yield begin, gradient.sample_size
