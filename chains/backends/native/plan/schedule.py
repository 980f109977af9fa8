"""What is decided about a program before its assembly is written: its segments and kernels, and where everything lies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chains.backends.base import UnsupportedOperationError
from chains.backends.native.kernels import winograd
from chains.backends.native.kernels.fusion import Kernel, kernel_of, needs_packing
from chains.backends.native.kernels.gemm import is_large, workspace
from chains.backends.native.kernels.packing import packed_columns
from chains.backends.native.kernels.row_pointers import picked_input
from chains.backends.native.llvm.target import Processor
from chains.backends.native.plan.barriers import Work, meetings
from chains.backends.native.plan.fused_update import finish_of, finished_products, left_over
from chains.backends.native.plan.layout import arrange
from chains.backends.native.plan.padding import pad_rows
from chains.backends.native.plan.row_partition import Owners, split
from chains.backends.native.plan.segments import Segment, Step, crossing, segments_of
from chains.program.operations import Convolve, ConvolveInput, Map, MatMul, Operation
from chains.program.program import Program
from chains.program.scratch import Lifetime, Plan, plan
from chains.program.view import Buffer, Shape, View, c_strides

TILE_BYTES = 16 << 10  # scratch of a tile: half of a first-level cache
ROWS = 48  # tiles are multiples of this, which the kernels' blocks of rows divide; tiles with images are one vector of samples


class Blueprint:
    """The decisions.

    `laned` are the buffers laid out in lanes, `whole` the batched scratch buffers that hold the whole batch. `packed` are
    the weights and their packed copies and `kernels` what products do, both by the identity of a step. `finishes` tells
    for each segment which products do an optimiser's step, `own` what sums over samples each thread has for itself. `table`
    are the buffers in the order of the table of addresses, `picked` is the input whose samples may be picked by number,
    `tile` how many samples a tile has and `room` how many it has at most. Where products are split into `parts`, a tile is
    the whole batch; `meetings` then tells for each segment before what the threads meet: what comes early, parts and pieces.
    """

    def __init__(self, program: Program, processor: Processor, parts: int = 1) -> None:
        self.program = program
        self.processor = processor
        self.lanes = processor.lanes(program.dtype.itemsize)
        finishing: dict[int, tuple[Map, ...]] = {}
        self.operations, self.laned = arrange(program.operations, self.lanes)
        if not self.laned:
            self.operations = pad_rows(self.operations, self.lanes)
            self.operations, finishing = finished_products(self.operations, is_large)
        owners: Owners = {}
        if parts > 1 and not any(self._is_large(operation) for operation in self.operations) and not self.laned:
            self.operations, owners = split(self.operations, parts, self.lanes)
        self.parts = 1 + max(owners.values(), default=0)
        self.segments = segments_of(self.operations, self.lanes, self._is_large, owners, finishing)
        self.whole = crossing(self.segments)
        self.packed: dict[int, tuple[View, View]] = {}
        self.kernels = {id(step): self._kernel(step) for step in self._steps() if isinstance(step.operation, MatMul)}
        for step in self._products():
            kernel = kernel_of(step.operation, step.maps)
            self.kernels[id(step)] = replace(kernel, transient=id(step.operation) in finishing)
        self._pack_convolutions()
        self.finishes = [finish_of(segment, self.operations, self._reads, self._as_it_is) for segment in self.segments]
        for finish in filter(None, self.finishes):
            for key, maps in finish.maps.items():
                self.kernels[key] = replace(self.kernels[key], maps=maps, transient=True)
        self.own = [tuple(dict.fromkeys(view.buffer for o in s.sums for view in o.outs)) for s in self.segments]
        self.meetings = [meetings(self._works(k)) if owners else () for k in range(len(self.segments))]
        self._tile_plan = self._plan()
        self.table = self._table()
        others = [operation for step in self._products() for operation in step.operations]
        self.picked = None if self.laned else picked_input(self._tiled(), others)
        per_sample = max(1, self._tile_plan.bytes_per_sample)
        self.tile = self.lanes if self.laned else max(ROWS, min(1024, TILE_BYTES // per_sample // ROWS * ROWS))
        self.room = self.tile if self.laned else self.tile * 9 // 8

    # Sums

    @property
    def sums(self) -> tuple[Buffer, ...]:
        """The buffers that hold sums over samples."""
        return tuple(dict.fromkeys(buffer for buffers in self.own for buffer in buffers))

    def own_position(self, buffer: Buffer) -> int:
        """Where in a thread's table the address of its own block of sums is; -1 where it has none."""
        return len(self.table) + self.sums.index(buffer) if buffer in self.sums else -1

    # A thread's table: the addresses of `table`, of its own sums, of what to fetch ahead (`ahead.py`), of what is picked and
    # of the list of a tile's samples (`picked.py`).

    @property
    def ahead_position(self) -> int:
        return len(self.table) + len(self.sums)

    @property
    def picked_position(self) -> int:
        return self.ahead_position + 1

    @property
    def rows_position(self) -> int:
        return self.ahead_position + 2

    # The scratch memory of a tile: buffers, then workspace.

    def offset(self, buffer: Buffer) -> int | None:
        """Where a buffer begins; None if it is no part of tiles."""
        return self._tile_plan.offset(buffer, self.room) if buffer in self._tile_plan.batched else None

    @property
    def workspace_offset(self) -> int:
        return self._tile_plan.nbytes(self.room) if self._tile_plan.batched else 0

    @property
    def tile_bytes(self) -> int:
        spaces = [winograd.workspace(operation, self.lanes, self.processor.registers) for operation in self.operations]
        spaces += [workspace(self.lanes, self.program.dtype.itemsize, self.processor.registers)] if self.has_products else []
        return self.workspace_offset + max(spaces, default=0) * self.program.dtype.itemsize

    # Samples picked by number

    @property
    def rows(self) -> View:
        """The samples that tiles list."""
        assert self.picked is not None
        return View(self.picked, self.picked.shape, c_strides(self.picked.shape))

    def lists(self, segment: Segment) -> bool:
        """Whether a segment reads samples by their addresses."""
        return any(view.buffer is self.picked for step in segment.tiled for o in step.operations for view in o.views)

    # What there is

    def packers(self, segment: Segment) -> tuple[int, ...]:
        """The threads that have weights to pack."""
        return tuple(sorted({step.owner or 0 for step in segment.tiled if id(step) in self.packed}))

    @property
    def has_products(self) -> bool:
        """Whether there are large products."""
        return any(self._products())

    def _products(self) -> Iterator[Step]:
        return (segment.product for segment in self.segments if segment.product)

    def _steps(self) -> Iterator[Step]:
        return (step for s in self.segments for step in (*s.early, *s.tiled, *s.once))

    def _tiled(self) -> Iterator[Operation]:
        return (operation for s in self.segments for step in s.tiled for operation in step.operations)

    # Decisions

    def _is_large(self, operation: Operation) -> bool:
        return not self.laned and is_large(operation)

    def _kernel(self, step: Step) -> Kernel:
        operation = step.operation
        assert isinstance(operation, MatMul)
        kernel = kernel_of(operation, step.maps)
        if kernel.accumulate and kernel.sums_over_batch:
            raise UnsupportedOperationError(
                f"backend 'native' cannot add a sum over samples to `{kernel.out}` ({operation.label})"
            )
        if needs_packing(kernel, self.lanes, bool(self.laned)):
            columns = packed_columns(kernel.b, self.lanes)
            rows = int(kernel.b.shape[0])  # type: ignore[arg-type]
            kernel = replace(kernel, b=self._pack(step, (rows, columns), kernel.b.shape), padded=True)
        return kernel

    def _pack_convolutions(self) -> None:
        for step in (step for segment in self.segments for step in segment.tiled):
            if winograd.suits(step.operation):
                self._pack(step, (winograd.packed_size(step.operation),))
            elif isinstance(step.operation, (Convolve, ConvolveInput)):
                self._pack(step, step.operation.ins[1].shape)

    def _pack(self, step: Step, shape: Shape, used: Shape | None = None) -> View:
        """The place of a packed copy of the step's weights, of which `used` is filled."""
        source = step.operation.ins[1]
        buffer = Buffer(f"packed {source}", "scratch", source.dtype, shape)
        view = View(buffer, used or shape, c_strides(shape))
        self.packed[id(step)] = (source, view)
        return view

    def _reads(self, step: Step) -> list[View]:
        """What a tiled step reads, not counting weights of which it has a packed copy."""
        operation = step.operation
        own = [view for view in operation.ins if id(step) not in self.packed or view is not operation.ins[1]]
        return own + [view for fused in step.maps for view in fused.ins]

    def _as_it_is(self, step: Step) -> bool:
        kernel = self.kernels[id(step)]
        return kernel.turned(self.lanes) is kernel

    def _plan(self) -> Plan[Buffer]:
        """Offsets of the batched buffers within a tile's scratch; the products and their maps are one moment, and so is
        what threads do at the same time.
        """
        used: dict[Buffer, tuple[int, int]] = {}
        for moment, step in self._moments():
            for operation in step.operations:
                for view in operation.views:
                    if view.buffer.role == "scratch" and view.buffer.batched and view.buffer not in self.whole:
                        used[view.buffer] = (used.get(view.buffer, (moment, moment))[0], moment)
        return plan(Lifetime(buffer, buffer.nbytes, True, first, last) for buffer, (first, last) in used.items())

    def _moments(self) -> Iterator[tuple[int, Step]]:
        """The tiled steps with numbers that grow where one is behind another."""
        moment = 0
        for segment, meets in zip(self.segments, self.meetings, strict=True):
            moment += 1
            for position, steps in enumerate(segment.parts):
                moment += bool(meets) and meets[1 + position]
                for step in steps:
                    yield moment, step
                    moment += not meets

    def _works(self, number: int) -> list[Work]:
        """What threads do in a segment, where products are split: what comes early, its parts, then its pieces."""
        segment, finish = self.segments[number], self.finishes[number]
        works = [Work(segment.early)]
        for steps in segment.parts:
            finishing = [each for step in steps if id(step) in self.kernels for each in self.kernels[id(step)].maps]
            works.append(Work(steps, finishing, steps[0].owner or 0))
        for position, (length, steps) in enumerate(segment.pieces):
            if finish and finish.piece == position:
                maps = [step.operation for step in steps if isinstance(step.operation, Map)]
                works.append(Work((), left_over(finish.rest, maps)))
            else:
                works.append(Work(steps, length=length))
        return works

    def late(self, number: int) -> set[str]:
        """The inputs that other threads than the first one read in a segment behind the last meeting."""
        meets = self.meetings[number]
        last = max((position for position, meet in enumerate(meets) if meet), default=0)
        works = [work for work in self._works(number)[last:] if work.thread or work.length] if meets else []
        return {view.buffer.name for work in works for o in work.operations for view in o.ins if view.buffer.role == "input"}

    def _table(self) -> tuple[Buffer, ...]:
        buffers = dict.fromkeys(self.program.buffers.values())
        for operation in self.operations:
            buffers |= dict.fromkeys(view.buffer for view in operation.views if view.buffer not in self._tile_plan.batched)
        buffers |= dict.fromkeys(view.buffer for _, view in self.packed.values())
        return tuple(buffers)
