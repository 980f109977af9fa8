"""The plan of a program: which thread runs which step, in which order, and the place of every buffer in memory.

The compiler writes the assembly of a program from its plan. Passes (`passes.py`) make a plan: each takes a plan and returns
a new one, since plans are immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import islice
from typing import NamedTuple

from chains.backends.native.kernels.gemm import is_very_large
from chains.backends.native.kernels.outline import Likeness
from chains.backends.native.kernels.products import FusedProduct
from chains.backends.native.llvm.target import Processor
from chains.backends.native.operations import record_of
from chains.lowering.tiling import is_large
from chains.program.loop import Loop
from chains.program.operations import Map, Operation, Pool
from chains.program.program import Program
from chains.program.scratch import ScratchPlan
from chains.program.view import Buffer, View, c_strides


class PackedWeights(NamedTuple):
    """Weights, and the place of a copy that has the order in which a kernel reads them."""

    source: View
    copy: View


@dataclass(frozen=True)
class PlanStep:
    """An operation, with maps that are applied to its results while these are in registers.

    `fused` are maps, and perhaps a pool, that follow the operation in the program. Buffers that are `transient` are only in
    registers. `update` is an optimiser's step on its results; in a tile it is done only if the tile holds the whole batch.
    `alone` are maps that take the place of a product, and of its share of an optimiser's step, where the batch is one sample.
    `origins` are the positions of the operation and of all these maps in the program. `owner` is the thread that does a part
    of a product. `packed` are weights to copy before the tiles. `fused_product` describes a product with its maps. A step is
    `continued` if it adds to a sum over the samples that an earlier step of its tile has begun. Steps of equal `likeness`
    share code; `packing_likeness` says the same of the code that copies a step's weights. `body` are the steps of a loop. A
    `single` loop also has code for a tile of one sample.
    """

    operation: Operation
    fused: tuple[Map | Pool, ...] = ()
    transient: frozenset[Buffer] = frozenset()
    update: tuple[Map, ...] = ()
    alone: tuple[PlanStep, ...] = ()
    origins: tuple[int, ...] = ()
    owner: int | None = None
    continued: bool = False
    packed: PackedWeights | None = None
    fused_product: FusedProduct | None = None
    likeness: Likeness | None = None
    packing_likeness: Likeness | None = None
    body: tuple[PlanStep, ...] = ()
    single: bool = False

    @property
    def all(self) -> Iterator[PlanStep]:
        """The step and all steps of its body."""
        yield self
        for step in self.body:
            yield from step.all

    def sums(self, *around: Loop) -> Iterator[tuple[PlanStep, View]]:
        """The steps that sum over the samples, each with its result, over all steps of the loops `around` it."""
        if isinstance(self.operation, Loop):
            for step in self.body:
                yield from step.sums(*around, self.operation)
        else:
            for view, *_ in self.operation.totals:
                yield self, reduce(lambda view, loop: view.over(loop.depth, loop.steps), reversed(around), view)

    def changed(self, change: Callable[[PlanStep], PlanStep]) -> PlanStep:
        """The step, with the change applied to it and to every step of its body."""
        return change(replace(self, body=tuple(step.changed(change) for step in self.body)) if self.body else self)

    @property
    def operations(self) -> tuple[Operation, ...]:
        return (self.operation, *self.fused, *self.update)

    @property
    def views(self) -> tuple[View, ...]:
        """The views of the operations, without those that are only in registers."""
        views = (view for operation in self.operations for view in operation.views)
        return tuple(view for view in views if view.buffer not in self.transient)

    @property
    def batched(self) -> bool:
        """Whether the operation works on samples."""
        return self.operation.batched


@dataclass(frozen=True)
class Work:
    """The steps of one function.

    One `thread` does them. If they go through vectors of one `length`, all threads do a part of every vector.
    """

    steps: tuple[PlanStep, ...]
    thread: int = 0
    length: int = 0  # elements; 0 where one thread does the steps

    @property
    def operations(self) -> list[Operation]:
        return [operation for step in self.steps for operation in step.operations]


class SumRun(NamedTuple):
    """Entries start..stop of a buffer, which threads add up, or compare (kind "max")."""

    buffer: Buffer
    start: int
    stop: int
    kind: str


class FusedUpdate(NamedTuple):
    """A work of `Segment.once` that products of a tile do, except for a `rest`, if the tile holds the whole batch."""

    work: int  # position of the work
    rest: tuple[tuple[int, int], ...]  # runs (begin, end) of elements that no product updates
    alone: bool = False  # whether products do it only if the batch is one sample


@dataclass(frozen=True)
class Segment:
    """Three groups of steps in order: `early`, then `tiled` or a large `product`, then `once`.

    `early` runs once and needs no samples. `tiled` runs on tiles of samples; `product` sees the whole batch. `once` may need
    sums over the samples. `sums` lists the sums that the threads combine after the tiles. `barriers` says for each work of
    `once` whether a barrier is before it; where products are partitioned, it has an entry for `early`, for each work of
    `tiled` and for each work of `once`.
    """

    early: tuple[PlanStep, ...] = ()
    tiled: tuple[Work, ...] = ()
    product: PlanStep | None = None
    once: tuple[Work, ...] = ()
    fused_update: FusedUpdate | None = None
    sums: tuple[SumRun, ...] = ()
    barriers: tuple[bool, ...] = ()

    @cached_property
    def tiled_steps(self) -> tuple[PlanStep, ...]:
        return tuple(step for work in self.tiled for step in work.steps)

    @cached_property
    def steps(self) -> tuple[PlanStep, ...]:
        """All steps, in order."""
        product = (self.product,) if self.product else ()
        return (*self.early, *self.tiled_steps, *product, *(step for work in self.once for step in work.steps))

    @cached_property
    def summed(self) -> tuple[Buffer, ...]:
        """The buffers of sums over the samples of tiles. Each thread has its own copy."""
        totals = (total for step in self.tiled_steps for operation in step.operations for total in operation.totals)
        return tuple(dict.fromkeys(total.view.buffer for total in totals))

    @property
    def packing(self) -> tuple[tuple[int, PlanStep], ...]:
        """The steps whose weights are packed before the tiles, each with the thread that packs them."""
        return tuple((outer.owner or 0, step) for outer in self.tiled_steps for step in outer.all if step.packed)

    @property
    def packers(self) -> tuple[int, ...]:
        """The threads that have weights to pack."""
        return tuple(sorted({thread for thread, _ in self.packing}))

    def changed(self, change: Callable[[PlanStep], PlanStep]) -> Segment:
        """The segment with every step changed."""

        def all_of(works: Sequence[Work]) -> tuple[Work, ...]:
            return tuple(replace(work, steps=tuple(step.changed(change) for step in work.steps)) for work in works)

        product = change(self.product) if self.product else None
        early = tuple(step.changed(change) for step in self.early)
        return replace(self, early=early, tiled=all_of(self.tiled), product=product, once=all_of(self.once))

    def with_tiled(self, steps: Iterable[PlanStep]) -> Segment:
        """The segment with these steps on tiles."""
        rest = iter(steps)
        tiled = tuple(replace(work, steps=tuple(islice(rest, len(work.steps)))) for work in self.tiled)
        return replace(self, tiled=tiled)


@dataclass(frozen=True)
class ExecutionPlan:
    """A program arranged for a processor.

    `steps` are the rewritten operations, one per step, in an order in which they may run; `segments` are made of these
    steps. `parts` is the number of threads among which products are partitioned; with more than one, a tile is the whole
    batch. In a `gathered` plan of a network of images, products of very many weights see the whole batch. A `straight` plan
    is for one sample (`llvm/straight.py`). A thread's table of addresses holds, in order: the buffers of `table`, the thread's
    own sums, its `PREFETCH`, the `ROW_POINTERS`, and its list of rows.
    """

    program: Program
    processor: Processor
    parts: int = 1
    gathered: bool = False
    max_scratch_bytes: int | None = None  # of the buffers of a tile, where small tiles can keep it
    straight: bool = False  # for a batch of one sample, in straight code
    steps: tuple[PlanStep, ...] = ()
    laned: frozenset[Buffer] = frozenset()  # the buffers laid out in lanes: if there are any, all tiles have one size
    segments: tuple[Segment, ...] = ()
    whole: frozenset[Buffer] = frozenset()  # batched scratch buffers that hold the whole batch
    table: tuple[Buffer, ...] = ()
    indexed: Buffer | None = None  # the input whose samples may be read by their numbers
    scratch: ScratchPlan[Buffer] | None = None  # the places of the buffers of a tile
    tile: int = 0  # samples
    room: int = 0  # samples that a tile has at most
    tile_bytes: int = 0  # scratch memory of a tile: its buffers, then workspace

    @classmethod
    def of(
        cls, program: Program, processor: Processor, parts: int = 1, gathered: bool = False,
        max_scratch_bytes: int | None = None, straight: bool = False,
    ) -> ExecutionPlan:  # fmt: skip
        """The plan of a program before the first pass."""
        steps = tuple(PlanStep(operation, origins=(position,)) for position, operation in enumerate(program.operations))
        return cls(program, processor, parts, gathered, max_scratch_bytes, straight, steps)

    @property
    def lanes(self) -> int:
        """Numbers in a vector."""
        return self.processor.lanes(self.program.dtype.itemsize)

    def is_large(self, operation: Operation) -> bool:
        """Whether an operation sees the whole batch: a large product, or an update of rows."""
        if record_of(operation).whole_batch:
            return True
        return is_very_large(operation) if self.gathered else not self.laned and is_large(operation)

    @cached_property
    def flushes_subnormals(self) -> bool:
        """Whether subnormal numbers count as zeros: in loops, where gradients vanish, on processors that they slow down."""
        loops = any(isinstance(operation, Loop) for operation in self.program.operations)
        return loops and self.processor.is_x86

    # Steps of the segments

    @cached_property
    def has_single_loops(self) -> bool:
        """Whether some loops have separate code for one sample."""
        return any(step.single for segment in self.segments for step in segment.tiled_steps)

    @property
    def products(self) -> Iterator[PlanStep]:
        """The large products."""
        return (segment.product for segment in self.segments if segment.product)

    def changed(self, change: Callable[[PlanStep], PlanStep]) -> ExecutionPlan:
        """The plan with every step of its segments changed."""
        return replace(self, segments=tuple(segment.changed(change) for segment in self.segments))

    def changed_on_tiles(self, change: Callable[[PlanStep], PlanStep]) -> ExecutionPlan:
        """The plan with every step on tiles changed."""
        segments = (each.with_tiled(step.changed(change) for step in each.tiled_steps) for each in self.segments)
        return replace(self, segments=tuple(segments))

    # The table of addresses

    @cached_property
    def summed(self) -> tuple[Buffer, ...]:
        """The buffers of sums over samples."""
        return tuple(dict.fromkeys(buffer for segment in self.segments for buffer in segment.summed))

    @cached_property
    def positions(self) -> dict[Buffer, int]:
        """The position of each buffer's address in the table."""
        return {buffer: position for position, buffer in enumerate(self.table)}

    @cached_property
    def sum_positions(self) -> dict[Buffer, int]:
        """The position of the address of a thread's own sums, for each buffer of sums."""
        return {buffer: len(self.table) + position for position, buffer in enumerate(self.summed)}

    @property
    def prefetch_position(self) -> int:
        return len(self.table) + len(self.summed)

    @property
    def row_pointers_position(self) -> int:
        return self.prefetch_position + 1

    @property
    def rows_position(self) -> int:
        return self.prefetch_position + 2

    # The scratch memory of a tile

    def offset(self, buffer: Buffer) -> int | None:
        """The offset of a buffer in a tile's memory, in bytes; None if it is not in tiles."""
        assert self.scratch is not None
        return self.scratch.offset(buffer, self.room) if buffer in self.scratch.batched else None

    @property
    def workspace_offset(self) -> int:
        """The offset of the workspace of kernels, in bytes."""
        assert self.scratch is not None
        return self.scratch.nbytes(self.room) if self.scratch.batched else 0

    # Samples read by their numbers

    @property
    def rows(self) -> View:
        """The samples that tiles list."""
        assert self.indexed is not None
        return View(self.indexed, self.indexed.shape, c_strides(self.indexed.shape))

    def lists_rows(self, segment: Segment) -> bool:
        """Whether a segment reads samples by their addresses."""
        if self.indexed is None:
            return False
        return any(view.buffer is self.indexed for step in segment.tiled_steps for o in step.operations for view in o.views)
