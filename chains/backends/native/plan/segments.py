"""A program cut into segments: operations on samples, which may run tile by tile, then operations on none.

Within a segment the first kind runs before the second. Products take along the maps that follow on their results. A
large product is a segment of its own, which sees the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from chains.backends.native.kernels.convolve import fusible_image_map
from chains.backends.native.kernels.fusion import fusible
from chains.backends.tiling import must_wait
from chains.program.alias import conflict, meet, same
from chains.program.operations import Convolve, ConvolveInput, Map, MatMul, Operation
from chains.program.view import Buffer

STEPS = 16  # of a function, at most
SHARED = 1 << 14  # elements of vectors from which on threads are called to share an operation
TOGETHER = 1 << 8  # ... from which on threads that are together anyway share it (`team.py`)


@dataclass
class Step:
    """An operation and the maps fused to it; and the thread that does it where it is one thread's part (`split.py`)."""

    operation: Operation
    maps: list[Map] = field(default_factory=list)
    owner: int | None = None

    @property
    def operations(self) -> list[Operation]:
        return [self.operation, *self.maps]


@dataclass
class Segment:
    """Steps to run once that need nothing of the samples; steps to run on tiles of samples, or a large product; then steps
    to run once that may need their sums.
    """

    early: list[Step] = field(default_factory=list)
    tiled: list[Step] = field(default_factory=list)
    product: Step | None = None
    once: list[Step] = field(default_factory=list)

    @property
    def parts(self) -> list[list[Step]]:
        """The tiled steps in functions of their own: those of one thread, and no more than `STEPS` of them, because what a
        function takes to compile grows faster than its length.
        """
        groups = [list(steps) for _, steps in groupby(self.tiled, lambda step: step.owner)]
        return [steps[start : start + STEPS] for steps in groups for start in range(0, len(steps), STEPS)]

    @property
    def pieces(self) -> list[tuple[int, list[Step]]]:
        """What is done once, in order: steps of one thread (0), and those on vectors of a length, which all may share."""
        pieces: list[tuple[int, list[Step]]] = []
        for step in self.once:
            length = _shared_length(step.operation)
            if pieces and pieces[-1][0] == length and (not length or side_by_side(pieces[-1][1], step)):
                pieces[-1][1].append(step)
            else:
                pieces.append((length, [step]))
        return pieces

    @property
    def sums(self) -> list[Operation]:
        """The tiled operations whose results are sums over the samples."""
        return [operation for step in self.tiled for operation in step.operations if operation.sums_over_batch]

    @property
    def done_once(self) -> list[Operation]:
        """The operations that are run once."""
        return [operation for step in self.once for operation in step.operations]


def segments_of(
    operations: Sequence[Operation],
    lanes: int,
    large: Callable[[Operation], bool],
    owners: Mapping[int, int],
    finishing: Mapping[int, Sequence[Map]],
) -> list[Segment]:
    """Cut the operations into as few segments as their order allows; `large` tells which products stand alone, `owners` the
    threads that do some of the operations and `finishing` what such products do to their results, both by their identity.
    """
    segments = [Segment()]
    for operation in operations:
        segment = segments[-1]
        if not any(view.batched for view in operation.views):
            segment.once.append(Step(operation))
        elif large(operation):
            segments.append(Segment(product=Step(operation, list(finishing.get(id(operation), ())))))
        elif must_wait(segment.sums, segment.done_once, operation):
            segments.append(Segment(tiled=[Step(operation, owner=owners.get(id(operation)))]))
        elif segment.product:
            if not _fuse([segment.product], operation, lanes):
                segments.append(Segment(tiled=[Step(operation)]))
        elif not _fuse(segment.tiled, operation, lanes):
            segment.tiled.append(Step(operation, owner=owners.get(id(operation))))
    for segment in segments:
        divide(segment)
    return segments


def divide(segment: Segment) -> None:
    """Put what is done once, and does not depend on the samples, before them; but not what threads share."""
    late = [operation for step in segment.tiled for operation in step.operations]
    late += segment.product.operations if segment.product else []
    steps, segment.once = segment.once, []
    for step in steps:
        if _shared_length(step.operation) >= SHARED or any(conflict(operation, step.operation) for operation in late):
            late.append(step.operation)
            segment.once.append(step)
        else:
            segment.early.append(step)


def _fuse(steps: list[Step], operation: Operation, lanes: int) -> bool:
    if not steps or not isinstance(operation, Map) or steps[-1].owner is not None:
        return False
    product, maps = steps[-1].operation, steps[-1].maps
    if isinstance(product, MatMul):
        fits = fusible(product, maps, operation, lanes)
    else:
        fits = isinstance(product, (Convolve, ConvolveInput)) and fusible_image_map(product, maps, operation)
    if fits:
        maps.append(operation)
    return fits


def _shared_length(operation: Operation) -> int:
    """The length of the long vectors that a map is made of; 0 for operations that are not worth sharing."""
    length = max(view.sample_size for view in operation.views)
    if not isinstance(operation, Map) or length < TOGETHER:
        return 0
    vectors = [view for view in operation.views if view.sample_size > 1]
    fits = all(view.sample_size == length and view.contiguous and view.dtype == vectors[0].dtype for view in vectors)
    aligned = all(same(out, view) or not meet(out, view) for out in operation.outs for view in operation.ins)
    return length if fits and aligned else 0


def side_by_side(steps: Sequence[Step], step: Step) -> bool:
    """Whether element k of `step` depends on no other element of `steps` than k."""
    before = [view for other in steps for view in other.operation.views]
    return all(same(a, b) or not meet(a, b) for a in step.operation.views for b in before)


def crossing(segments: Sequence[Segment]) -> set[Buffer]:
    """The batched scratch buffers that more than one segment uses, or a large product, and which therefore must hold the
    whole batch."""
    seen: dict[Buffer, int] = {}
    across: set[Buffer] = set()
    for number, segment in enumerate(segments):
        for step in (*segment.tiled, segment.product) if segment.product else segment.tiled:
            for buffer in (view.buffer for operation in step.operations for view in operation.views):
                alone = step is not segment.product and seen.setdefault(buffer, number) == number
                if buffer.role == "scratch" and buffer.batched and not alone:
                    across.add(buffer)
    return across
