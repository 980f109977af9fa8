"""A program as LLVM assembly: for each segment a function for a tile of samples and one for what is done once.

All functions take a table of addresses: one for each of the caller's buffers and each scratch buffer that is no part
of a tile; and the tile's own scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from chains.backends.base import UnsupportedOperationError
from chains.backends.native.driver import Outline, Positions, merged, share, write_driver
from chains.backends.native.kernels import winograd
from chains.backends.native.kernels.convolve import lower_convolve, pack_kernels
from chains.backends.native.kernels.convolve_weight import lower_convolve_weight
from chains.backends.native.kernels.elementwise import (
    Frame,
    lower_copy,
    lower_fill,
    lower_map,
    lower_reduce,
    lower_shared_map,
)
from chains.backends.native.kernels.gather import lower_gather, lower_scatter_add
from chains.backends.native.kernels.gemm import lower_large
from chains.backends.native.kernels.images import lower_laned, lower_pool, lower_relayout
from chains.backends.native.kernels.matmul import lower_matmul
from chains.backends.native.kernels.packing import pack
from chains.backends.native.kernels.philox import lower_random
from chains.backends.native.kernels.prefetch import begin_fetching
from chains.backends.native.kernels.row_pointers import ROW_POINTERS, list_rows
from chains.backends.native.llvm.emit import I64, PTR, Function, Module, Type, Value, integer
from chains.backends.native.llvm.target import Processor
from chains.backends.native.plan.barriers import Work, meetings
from chains.backends.native.plan.layout import Relayout
from chains.backends.native.plan.schedule import Blueprint
from chains.backends.native.plan.segments import Step
from chains.program.operations import (
    Convolve,
    ConvolveInput,
    ConvolveWeight,
    Copy,
    Fill,
    Gather,
    Map,
    MatMul,
    Pool,
    Random,
    Reduce,
    ScatterAdd,
)
from chains.program.program import Program
from chains.program.view import Buffer, View

SUPPORTED = (MatMul, Map, Reduce, Copy, Fill, Random, Convolve, ConvolveInput, ConvolveWeight, Pool, Gather, ScatterAdd)


@dataclass(frozen=True)
class Compiled:
    """The assembly of a program and what a caller must know to run it."""

    text: str
    table: tuple[Buffer, ...]  # the buffers in the order of the table of addresses
    whole: frozenset[Buffer]  # batched scratch buffers that hold the whole batch
    laned: frozenset[Buffer]  # those laid out in lanes; where there are any, tiles have one size
    tile: int  # samples
    room: int  # samples, at most
    tile_bytes: int  # scratch of one tile
    sums: tuple[Buffer, ...]  # the buffers that hold sums over samples: each thread has its own
    packed: frozenset[Buffer]  # packed weights: each thread has its own
    picked: Buffer | None  # the input whose samples may be picked by number (`picked.py`)
    products: bool  # whether there are large products, in which threads share that have no tiles
    parts: int  # into how many parts products are split; where it is more than one, a tile is the whole batch
    late: frozenset[str]  # the inputs that other threads than the first one may still read when this is done with a step


class Compiler:
    """Writes the functions that a blueprint asks for."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint
        self.module = Module()

    def compiled(self) -> Compiled:
        blueprint = self.blueprint
        for number in range(len(blueprint.segments)):
            self._write_segment(number)
        positions = {buffer: (k, blueprint.own_position(buffer)) for k, buffer in enumerate(blueprint.table)}
        outlines = [self._outline(number, positions) for number in range(len(blueprint.segments))]
        late = frozenset(name for number in range(len(blueprint.segments)) for name in blueprint.late(number))
        write_driver(self.module, outlines, positions, blueprint.lanes, split=blueprint.parts > 1)
        return Compiled(
            self.module.text(),
            blueprint.table,
            frozenset(blueprint.whole),
            frozenset(blueprint.laned),
            blueprint.tile,
            blueprint.room,
            blueprint.tile_bytes,
            blueprint.sums,
            frozenset(view.buffer for _, view in blueprint.packed.values()),
            blueprint.picked,
            blueprint.has_products,
            blueprint.parts,
            late,
        )

    def _outline(self, number: int, positions: Positions) -> Outline:
        segment, finish = self.blueprint.segments[number], self.blueprint.finishes[number]
        runs = [(view.buffer, *run, o.name) for o in segment.sums for view in o.outs for run in view.runs]
        sums = merged(runs, positions)
        works = [Work(steps, length=length) for length, steps in segment.pieces]
        return Outline(
            sums=tuple(sums),
            product=segment.product is not None,
            lists=self.blueprint.lists(segment),
            packers=self.blueprint.packers(segment),
            parts=tuple(steps[0].owner or 0 for steps in segment.parts),
            early=bool(segment.early),
            pieces=tuple(length for length, _ in segment.pieces),
            meetings=self.blueprint.meetings[number] or meetings(works, sums),
            finished=finish.piece if finish else None,
        )

    # Functions

    def _write_segment(self, number: int) -> None:
        blueprint = self.blueprint
        segment, finish = blueprint.segments[number], blueprint.finishes[number]
        for thread in blueprint.packers(segment):
            steps = [step for step in segment.tiled if id(step) in blueprint.packed and (step.owner or 0) == thread]
            packed = [view for step in steps for view in blueprint.packed[id(step)]]
            self._write(f"prepare_{number}_{thread}", packed, partial(self._prepare, steps))
        if segment.early:
            self._write(f"early_{number}", self._views(segment.early), partial(self._steps, segment.early))
        if blueprint.lists(segment):
            self._write(f"list_{number}", [blueprint.rows], self._list, own=())
        for position, steps in enumerate(segment.parts):
            body = partial(self._steps, steps)
            self._write(f"tile_{number}_{position}", self._views(steps), body, "whole", own=blueprint.own[number])
        if segment.product:
            body = partial(self._product, segment.product)
            self._write(f"product_{number}", self._views([segment.product]), body, "thread", "threads")
        for position, (length, steps) in enumerate(segment.pieces):
            body = partial(self._share, length, steps) if length else partial(self._steps, steps)
            self._write(f"once_{number}_{position}", self._views(steps), body, "thread", "threads")
        if finish:
            steps = segment.pieces[finish.piece][1]
            self._write(f"rest_{number}", self._views(steps), partial(self._rest, finish.rest, steps))

    def _views(self, steps: Sequence[Step]) -> list[View]:
        """What these steps may touch."""
        views = []
        for step in steps:
            kernel = self.blueprint.kernels.get(id(step))
            finishing = [each for each in kernel.maps if each not in step.maps] if kernel else []
            views += [view for operation in (*step.operations, *finishing) for view in operation.views]
            if id(step) in self.blueprint.packed:
                views.append(self.blueprint.packed[id(step)][1])
        return views

    def _write(
        self,
        name: str,
        views: Sequence[View],
        body: Callable[[Frame], None],
        *more: str,
        own: Sequence[Buffer] | None = None,
    ) -> None:
        """A function that may touch these views, with `more` arguments; `own` are the sums that each thread has for itself
        in a tile, None in what is not one.
        """
        blueprint = self.blueprint
        numbers = [(I64, each) for each in ("start", "count", "first", *more)]
        f = Function(self.module, name, [(PTR, "table"), (PTR, "scratch"), *numbers])
        scratch, start, count, first = f.arguments[1:5]
        positions = {buffer: k for k, buffer in enumerate(blueprint.table)}
        positions |= {buffer: blueprint.own_position(buffer) for buffer in own or ()}
        bases: dict[Buffer, Value] = {}

        def begin(buffer: Buffer, element: Type) -> Value:
            offset = blueprint.offset(buffer)
            if offset is not None:
                return f.address(scratch, integer(offset), Type("i8"))
            pointer = self._word(f, positions[buffer])
            return f.address(pointer, f.mul(start, buffer.size), element) if buffer.batched else pointer

        def base(view: View) -> Value:
            # Written at the beginning of the function, so that every block may use it.
            buffer = view.buffer
            if buffer.dtype.itemsize not in (4, 8):
                raise UnsupportedOperationError(f"backend 'native' has no operation on {buffer.dtype} (`{view}`)")
            element = Type({4: "float", 8: "double"}[buffer.dtype.itemsize])
            if buffer not in bases:
                bases[buffer] = begin(buffer, element)
            return f.address(bases[buffer], integer(view.offset), element)

        frame = Frame(f, blueprint.lanes, blueprint.processor.registers, base, count, start, bool(blueprint.laned))
        if own is not None:
            frame.first, frame.whole = (f.compare("ne", flag, integer(0)) for flag in (first, f.arguments[-1]))
            frame.ahead = self._word(f, blueprint.ahead_position)
            if blueprint.picked:
                frame.rows = blueprint.picked, self._word(f, blueprint.rows_position)
        for view in views:
            base(view)
        body(frame)
        f.line("ret void")
        self.module.add(f)

    def _word(self, f: Function, position: int) -> Value:
        """An address in a function's table."""
        return f.load(PTR, f.address(f.arguments[0], integer(position), PTR))

    # Their bodies

    def _prepare(self, steps: Sequence[Step], frame: Frame) -> None:
        for step in steps:
            source, packed = self.blueprint.packed[id(step)]
            if winograd.suits(step.operation):
                winograd.pack_transformed(frame, step.operation, packed)
            elif isinstance(step.operation, (Convolve, ConvolveInput)):
                pack_kernels(frame, step.operation, packed)
            else:
                pack(frame, source, frame.base(packed), packed.strides[0])

    def _product(self, step: Step, frame: Frame) -> None:
        f = frame.f
        _, scratch, *_, thread, threads = f.arguments
        kernel = self.blueprint.kernels[id(step)]
        lower_large(frame, kernel, f.address(scratch, integer(self.blueprint.workspace_offset), Type("i8")), thread, threads)

    def _share(self, length: int, steps: Sequence[Step], frame: Frame) -> None:
        """A thread's part of maps of long vectors."""
        f = frame.f
        *_, thread, threads = f.arguments
        begin, end = share(f, length, self.blueprint.lanes, thread, threads)
        for step in steps:
            assert isinstance(step.operation, Map)
            lower_shared_map(frame, step.operation, begin, f.binary("sub", end, begin))

    def _rest(self, runs: Sequence[tuple[int, int]], steps: Sequence[Step], frame: Frame) -> None:
        """Maps of long vectors on the elements of these runs."""
        for begin, stop in runs:
            for step in steps:
                assert isinstance(step.operation, Map)
                lower_shared_map(frame, step.operation, integer(begin), integer(stop - begin))

    def _list(self, frame: Frame) -> None:
        """List the samples of a tile; threads that do parts of it see to what comes next, each its share of every sample."""
        f, words = frame.f, self._word(frame.f, self.blueprint.picked_position)
        list_rows(frame, self.blueprint.rows, words)
        if self.blueprint.parts > 1:
            rows, numbers = (ROW_POINTERS.address(f, words, name) for name in ("next_rows", "next_numbers"))
            picks = f.compare("ne", f.load(I64, words), integer(0))
            f.when(picks, lambda: begin_fetching(frame, f.load(I64, rows), f.load(PTR, numbers)))

    def _steps(self, steps: Sequence[Step], frame: Frame) -> None:
        for step in steps:
            operation = step.operation
            if isinstance(operation, MatMul):
                lower_matmul(frame, self.blueprint.kernels[id(step)])
            elif winograd.suits(operation):
                space = frame.f.address(frame.f.arguments[1], integer(self.blueprint.workspace_offset), Type("i8"))
                winograd.lower_winograd(frame, operation, self.blueprint.packed[id(step)][1], space, step.maps)
            elif isinstance(operation, (Convolve, ConvolveInput)):
                lower_convolve(frame, operation, self.blueprint.packed[id(step)][1], step.maps)
            elif isinstance(operation, ConvolveWeight):
                lower_convolve_weight(frame, operation)
            elif isinstance(operation, Pool):
                lower_pool(frame, operation)
            elif isinstance(operation, Relayout):
                lower_relayout(frame, operation, self.blueprint.offset(operation.outs[0].buffer) is not None)
            elif any(view.buffer in self.blueprint.laned for view in operation.views):
                lower_laned(frame, operation)
            elif isinstance(operation, Map):
                lower_map(frame, operation)
            elif isinstance(operation, Reduce):
                lower_reduce(frame, operation)
            elif isinstance(operation, Copy):
                lower_copy(frame, operation.outs[0], operation.ins[0])
            elif isinstance(operation, Fill):
                lower_fill(frame, operation.outs[0], operation.value)
            elif isinstance(operation, Gather):
                lower_gather(frame, operation)
            elif isinstance(operation, ScatterAdd):
                lower_scatter_add(frame, operation)
            elif isinstance(operation, Random):
                lower_random(frame, operation)


def compile_program(program: Program, processor: Processor, parts: int = 1) -> Compiled:
    """Write the assembly, with products split into so many parts if that is worth it.

    Raises UnsupportedOperationError, naming it, for an operation that cannot be compiled.
    """
    for operation in program.operations:
        if not isinstance(operation, SUPPORTED):
            raise UnsupportedOperationError(
                f"backend 'native' cannot run the operation `{operation.name}` of {operation.label}"
            )
    return Compiler(Blueprint(program, processor, parts)).compiled()
