"""From a plan to LLVM assembly: each work of a segment becomes a function.

All functions take a thread's table of addresses and the scratch memory of its tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from chains.backends.base import UnsupportedOperationError
from chains.backends.native.driver import share, write_driver
from chains.backends.native.kernels.elementwise import Frame, RowPointers, lower_shared_map
from chains.backends.native.kernels.gemm import lower_large
from chains.backends.native.kernels.outline import Outlines
from chains.backends.native.kernels.samples import begin_prefetch, list_rows
from chains.backends.native.kernels.steps import lower
from chains.backends.native.llvm.emit import (
    FALSE,
    I64,
    PTR,
    TRUE,
    Function,
    Module,
    Type,
    Value,
    flush_subnormals,
    integer,
    real_type,
    restore_subnormals,
)
from chains.backends.native.llvm.straight import Straight
from chains.backends.native.llvm.struct import ROW_POINTERS
from chains.backends.native.llvm.target import Processor
from chains.backends.native.memory_plan import Signature, Slot
from chains.backends.native.operations import record_of
from chains.backends.native.plan.execution_plan import ExecutionPlan, PlanStep, Segment, Work
from chains.backends.native.plan.passes import plan_of
from chains.backends.native.plan.teams import read_by_others
from chains.backends.native.support import unsupported
from chains.program.operations import Map
from chains.program.program import Program
from chains.program.view import Buffer, View


@dataclass(frozen=True)
class Compiled:
    """The assembly of a program, and the signature that a caller needs to run it."""

    text: str
    signature: Signature


class Compiler:
    """Writes the functions of a plan."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.module = Module(splits_masks=plan.processor.kind != "avx512")
        self.outlines = Outlines()

    def compiled(self, drive: Callable[[Module, ExecutionPlan], None] = write_driver) -> Compiled:
        """The assembly of all works, and of the functions of `drive`, which run the works."""
        plan = self.plan
        for number, segment in enumerate(plan.segments):
            self._write_segment(number, segment)
        drive(self.module, plan)
        return Compiled(self.module.text(), signature_of(plan))

    # Functions

    def _write_segment(self, number: int, segment: Segment) -> None:
        for thread in segment.packers:
            steps = [step for packer, step in segment.packing if packer == thread]
            packed = [view for step in steps for view in step.packed or ()]
            self._write(f"prepare_{number}_{thread}", packed, partial(self._prepare, steps))
        if segment.early:
            self._write(f"early_{number}", self._views(segment.early), partial(self._steps, segment.early))
        if self.plan.lists_rows(segment):
            self._write(f"list_{number}", [self.plan.rows], self._list, own=())
        for position, work in enumerate(segment.tiled):
            body = partial(self._steps, work.steps)
            self._write(f"tile_{number}_{position}", self._views(work.steps), body, "whole", own=segment.summed)
        if segment.product:
            body = partial(self._product, segment.product)
            self._write(f"product_{number}", self._views([segment.product]), body, "thread", "threads")
        for position, work in enumerate(segment.once):
            body = partial(self._share, work) if work.length else partial(self._steps, work.steps)
            self._write(f"once_{number}_{position}", self._views(work.steps), body, "thread", "threads")
        if segment.fused_update:
            position, rest, _ = segment.fused_update
            work = segment.once[position]
            self._write(f"rest_{number}", self._views(work.steps), partial(self._rest, rest, work.steps))

    def _views(self, steps: Sequence[PlanStep]) -> list[View]:
        """All views of these steps."""
        views: list[View] = []
        for step in (each for outer in steps for each in outer.all):
            views += step.views
            views += [view for each in step.alone for view in each.operation.views]
            views += [step.packed.copy] if step.packed else []
        return views

    def _write(
        self, name: str, views: Sequence[View], body: Callable[[Frame], None], *more: str, own: Sequence[Buffer] | None = None
    ) -> None:
        """Write a function on these views, with `more` arguments.

        For a tile, `own` lists the buffers of sums that each thread has for itself. For other functions it is None.
        """
        plan = self.plan
        numbers = [(I64, each) for each in ("start", "count", "first", *more)]
        if plan.straight:
            self._write_straight(name, numbers)
            return
        f = Function(self.module, name, [(PTR, "table"), (PTR, "scratch"), *numbers])
        scratch, start, count = f.arguments[1:4]
        positions = plan.positions | {buffer: plan.sum_positions[buffer] for buffer in own or ()}
        bases: dict[Buffer, Value] = {}

        def begin(buffer: Buffer, element: Type) -> Value:
            offset = plan.offset(buffer)
            if offset is not None:
                place = f.address(scratch, integer(offset), Type("i8"))
                if plan.has_single_loops:
                    f.region(place)
                return place
            pointer = self._word(f, positions[buffer])
            return f.address(pointer, f.mul(start, buffer.size), element) if buffer.batched else pointer

        def base(view: View) -> Value:
            # Bases are written at the beginning of the function, so that every block may use them.
            buffer = view.buffer
            element = Type({4: "float", 8: "double"}[buffer.dtype.itemsize])
            if buffer not in bases:
                bases[buffer] = begin(buffer, element)
            return f.address(bases[buffer], integer(view.offset), element)

        frame = frame_of(f, plan, base, count, start)
        if own is not None:
            self._begin_tile(frame)
        for view in views:
            base(view)
        control = flush_subnormals(f) if plan.flushes_subnormals else None
        body(frame)
        if control is not None:
            restore_subnormals(f, control)
        self.module.add(f)

    def _begin_tile(self, frame: Frame) -> None:
        """Add what a tile has: whether it is the first of its thread, or the whole batch, what to prefetch, and its rows."""
        f, plan = frame.f, self.plan
        frame.first, frame.whole = (f.compare("ne", f.arguments[k], integer(0)) for k in (4, -1))
        frame.prefetch = self._word(f, plan.prefetch_position)
        if plan.indexed:
            frame.rows = RowPointers(plan.indexed, self._word(f, plan.rows_position))

    def _write_straight(self, name: str, numbers: Sequence[tuple[Type, str]]) -> None:
        """Write the tile of a straight plan, a sample."""
        f = Straight(self.module, name, [(PTR, "table"), (PTR, "scratch"), *numbers])
        write_straight(f, self.plan, lambda buffer: self._word(f, self.plan.positions[buffer]))
        self.module.add(f)

    def _word(self, f: Function, position: int) -> Value:
        """An address in a function's table."""
        return f.load(PTR, f.address(f.arguments[0], integer(position), PTR))

    # Their bodies

    def _prepare(self, steps: Sequence[PlanStep], frame: Frame) -> None:
        for step in steps:
            packing = record_of(step.operation).packing
            assert packing
            if step.packing_likeness:
                self.outlines.call(frame, step.packing_likeness, "pack", partial(packing.pack.write, step=step))
            else:
                packing.pack.write(frame, step)

    def _product(self, step: PlanStep, frame: Frame) -> None:
        if not step.fused_product:
            lower(frame, step)
            return
        f = frame.f
        _, scratch, *_, thread, threads = f.arguments
        space = f.address(scratch, integer(self.plan.workspace_offset), Type("i8"))
        lower_large(frame, step.fused_product, space, thread, threads)

    def _share(self, work: Work, frame: Frame) -> None:
        """Write a thread's part of maps of long vectors."""
        f = frame.f
        *_, thread, threads = f.arguments
        begin, end = share(f, work.length, self.plan.lanes, thread, threads)
        for step in work.steps:
            assert isinstance(step.operation, Map)
            lower_shared_map(frame, step.operation, begin, f.binary("sub", end, begin))

    def _rest(self, runs: Sequence[tuple[int, int]], steps: Sequence[PlanStep], frame: Frame) -> None:
        """Write maps of long vectors for the elements of these runs."""
        for begin, stop in runs:
            for step in steps:
                assert isinstance(step.operation, Map)
                lower_shared_map(frame, step.operation, integer(begin), integer(stop - begin))

    def _list(self, frame: Frame) -> None:
        """List the rows of a tile. Where products are partitioned, each thread also prefetches a share of the next rows."""
        f, words = frame.f, self._word(frame.f, self.plan.row_pointers_position)
        list_rows(frame, self.plan.rows, words)
        if self.plan.parts > 1:
            rows, numbers = (ROW_POINTERS.address(f, words, name) for name in ("next_rows", "next_numbers"))
            by_pointers = f.compare("ne", f.load(I64, words), integer(0))
            f.when(by_pointers, lambda: begin_prefetch(frame, f.load(I64, rows), f.load(PTR, numbers)))

    def _steps(self, steps: Sequence[PlanStep], frame: Frame) -> None:
        frame = replace(frame, call_alike=self.outlines.call)
        for step in steps:
            if step.alone:
                one = frame.f.compare("eq", frame.count, integer(1))
                alone = frame.f.binary("and", one, frame.whole or FALSE)
                frame.f.when(alone, partial(self._alone, step, frame), partial(self._steps, [replace(step, alone=())], frame))
            elif step.single:
                one = frame.f.compare("eq", frame.count, integer(1))
                frame.f.when(one, partial(self._single, step, frame), partial(lower, frame, step))
            elif step.likeness:
                self.outlines.call(frame, step.likeness, step.operation.name, partial(lower, step=step))
            else:
                lower(frame, step)

    def _single(self, step: PlanStep, frame: Frame) -> None:
        """Write a step for one sample: its code finds in registers what it has stored just before."""
        one = replace(frame, count=integer(1), call_alike=None)
        frame.f.forwarded(lambda: lower(one, step))

    def _alone(self, step: PlanStep, frame: Frame) -> None:
        """Write the maps that take the place of a product where the batch is one sample."""
        rows = frame.rows

        def base(view: View) -> Value:
            if rows is not None and view.buffer is rows.buffer:
                return frame.row(view, integer(0), view.buffer.size)
            return frame.base(view)

        for each in step.alone:
            lower(replace(frame, base=base), each)


def frame_of(f: Function, plan: ExecutionPlan, base: Callable[[View], Value], count: Value, start: Value) -> Frame:
    """What kernels need to know in a function on `count` samples from `start` on, with the addresses of views from `base`."""
    return Frame(
        f, plan.lanes, plan.processor.registers, base, count, start, bool(plan.laned),
        lambda buffer: plan.offset(buffer) is not None, plan.laned, plan.workspace_offset,
    )  # fmt: skip


def write_straight(f: Straight, plan: ExecutionPlan, place: Callable[[Buffer], Value]) -> None:
    """Write all steps of a straight plan into a function that finds buffers at these places, and has those of tiles itself."""
    bases: dict[Buffer, Value] = {}
    ((work,),) = (segment.tiled for segment in plan.segments)

    def base(view: View) -> Value:
        buffer, scalar = view.buffer, real_type(view.dtype)
        if buffer not in bases:
            bases[buffer] = place(buffer) if plan.offset(buffer) is None else f.local(buffer.size, scalar)
        return f.address(bases[buffer], integer(view.offset), scalar)

    frame = replace(frame_of(f, plan, base, integer(1), integer(0)), first=TRUE, whole=TRUE)
    for step in work.steps:
        lower(frame, step)


def signature_of(plan: ExecutionPlan) -> Signature:
    """The facts that a caller needs to run a program of this plan."""
    packed = {step.packed.copy.buffer for segment in plan.segments for _, step in segment.packing if step.packed}

    def slot(buffer: Buffer) -> Slot:
        kind = buffer in plan.laned, buffer in packed
        return Slot(buffer.name, buffer.role, buffer.nbytes, buffer.batched, *kind)

    return Signature(
        table=tuple(map(slot, plan.table)),
        sums=tuple(map(plan.table.index, plan.summed)),
        tile=plan.tile,
        room=plan.room,
        tile_bytes=plan.tile_bytes,
        indexed=None if plan.indexed is None else plan.indexed.name,
        products=any(plan.products),
        one_size=bool(plan.laned),
        parts=plan.parts,
        read_by_others=tuple(sorted(read_by_others(plan))),
    )


def compile_program(
    program: Program, processor: Processor, parts: int = 1, gathered: bool = False, straight: bool = False
) -> Compiled:  # fmt: skip
    """Write the assembly of a program: of the plan for `parts` threads, `gathered` or `straight` or not (`plan_of`).

    Raises UnsupportedOperationError, with the name of the operation, for an operation that cannot be compiled.
    """
    reason = unsupported(program)
    if reason is not None:
        raise UnsupportedOperationError(reason)
    return Compiler(plan_of(program, processor, parts, gathered=gathered, straight=straight)).compiled()
