"""A program as LLVM assembly: for each segment a function for a tile of samples and one for what is done once.

All functions take a table of addresses: one for each of the caller's buffers and each scratch buffer that is no part
of a tile; and the tile's own scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from chains.backends.base import UnsupportedOperationError
from chains.backends.native import winograd
from chains.backends.native.correlate import lower_convolve, pack_kernels
from chains.backends.native.correlate_weight import lower_convolve_weight
from chains.backends.native.driver import Outline, share, write_driver
from chains.backends.native.elementwise import (
    Frame,
    lower_copy,
    lower_fill,
    lower_map,
    lower_reduce,
    lower_shared_map,
)
from chains.backends.native.emit import I64, PTR, Function, Module, Type, Value, integer
from chains.backends.native.finish import Finish, finish_of
from chains.backends.native.gemm import is_large, lower_large, workspace
from chains.backends.native.images import lower_laned, lower_pool, lower_relayout
from chains.backends.native.kernel import Kernel, kernel_of, needs_packing
from chains.backends.native.layout import Relayout, arrange
from chains.backends.native.lookup import lower_gather, lower_scatter_add
from chains.backends.native.matmul import lower_matmul
from chains.backends.native.packing import pack, packed_columns
from chains.backends.native.philox import lower_random
from chains.backends.native.picked import list_rows, picked_input
from chains.backends.native.segments import Segment, Step, crossing, segments_of
from chains.backends.native.target import Processor
from chains.operations import (
    Convolve,
    ConvolveInput,
    ConvolveWeight,
    Copy,
    Fill,
    Gather,
    Map,
    MatMul,
    Operation,
    Pool,
    Random,
    Reduce,
    ScatterAdd,
)
from chains.program import Program
from chains.scratch import Lifetime, Plan, plan
from chains.view import Buffer, Shape, View, c_strides

TILE_BYTES = 16 << 10  # scratch of a tile: half of a first-level cache
ROWS = 48  # tiles are multiples of this, which the kernels' blocks of rows divide; tiles with images are one vector of samples
SUPPORTED = (MatMul, Map, Reduce, Copy, Fill, Random, Convolve, ConvolveInput, ConvolveWeight, Pool, Gather, ScatterAdd)


@dataclass(frozen=True)
class Compiled:
    """The assembly of a program and what a caller must know to run it."""

    text: str
    table: tuple[Buffer, ...]  # the buffers in the order of the table of addresses
    whole: frozenset[Buffer]  # batched scratch buffers that hold the whole batch
    laned: frozenset[Buffer]  # those laid out in lanes; where there are any, tiles have one size
    tile: int  # samples
    tile_bytes: int  # scratch of one tile
    sums: tuple[Buffer, ...]  # the buffers that hold sums over samples: each thread has its own
    picked: Buffer | None  # the input whose samples may be picked by number (`picked.py`)
    products: bool  # whether there are large products, in which threads share that have no tiles


class Compiler:
    def __init__(self, program: Program, processor: Processor) -> None:
        for operation in program.operations:
            if not isinstance(operation, SUPPORTED):
                raise UnsupportedOperationError(
                    f"backend 'native' cannot run the operation `{operation.name}` of {operation.label}"
                )
        self.program = program
        self.processor = processor
        self.lanes = processor.lanes(program.dtype.itemsize)
        self.operations, self.laned = arrange(program.operations, self.lanes)
        self.segments = segments_of(self.operations, self.lanes, self._is_large)
        self.whole = crossing(self.segments)
        self.module = Module()
        self.packed: dict[int, tuple[View, View]] = {}  # weights and their packed copies, by step
        self.kernels = {
            id(step): self._kernel(step)
            for s in self.segments
            for step in (*s.early, *s.tiled, *s.once)
            if isinstance(step.operation, MatMul)
        }
        for segment in self.segments:
            for step in segment.tiled:
                if winograd.suits(step.operation):
                    self._pack(step, (winograd.packed_size(step.operation),))
                elif isinstance(step.operation, (Convolve, ConvolveInput)):
                    self._pack(step, step.operation.ins[1].shape)
        self.finishes = [finish_of(segment, self.operations, self._reads, self._in_rows) for segment in self.segments]
        for finish in filter(None, self.finishes):
            for key, maps in finish.maps.items():
                self.kernels[key] = replace(self.kernels[key], maps=maps, transient=True)
        self.tile_plan = self._plan()
        self.table = self._table()
        tiled = [o for segment in self.segments for step in segment.tiled for o in step.operations]
        others = [segment.product for segment in self.segments if segment.product]
        self.picked = None if self.laned else picked_input(tiled, others)
        per_sample = max(1, self.tile_plan.bytes_per_sample)
        self.tile = self.lanes if self.laned else max(ROWS, min(1024, TILE_BYTES // per_sample // ROWS * ROWS))

    def compiled(self) -> Compiled:
        outlines: list[Outline] = []
        self.own = [list(dict.fromkeys(view.buffer for o in s.sums for view in o.outs)) for s in self.segments]
        for number, segment in enumerate(self.segments):
            self._write(f"prepare_{number}", partial(self._prepare, segment))
            if segment.early:
                self._write(f"early_{number}", partial(self._steps, segment.early))
            for position, steps in enumerate(segment.parts):
                body = self._steps if position or not self._lists(segment) else self._first_steps
                self._write(f"tile_{number}_{position}", partial(body, steps), tiled=True)
            if segment.product:
                self._write(f"product_{number}", partial(self._product, segment.product))
            for position, (length, steps) in enumerate(segment.pieces):
                body = partial(self._share, length, steps) if length else partial(self._steps, steps)
                self._write(f"once_{number}_{position}", body)
            finish = self.finishes[number]
            if finish:
                self._write(f"rest_{number}", partial(self._rest, finish.rest, segment.pieces[finish.piece][1]))
            outlines.append(self._outline(segment, finish))
        positions = {buffer: (k, self.own_position(buffer)) for k, buffer in enumerate(self.table)}
        write_driver(self.module, outlines, positions, self.lanes)
        products = any(segment.product for segment in self.segments)
        spaces = [winograd.workspace(operation, self.lanes, self.processor.registers) for operation in self.operations]
        spaces += [workspace(self.lanes)] if products else []
        nbytes = self.tile_bytes + max(spaces, default=0) * self.program.dtype.itemsize
        return Compiled(
            self.module.text(),
            self.table,
            frozenset(self.whole),
            frozenset(self.laned),
            self.tile,
            nbytes,
            self.sums,
            self.picked,
            products,
        )

    def _outline(self, segment: Segment, finish: Finish | None) -> Outline:
        runs = [(o, view, run) for o in segment.sums for view in o.outs for run in view.runs]
        return Outline(
            sums=tuple((view.buffer, *run, o.name) for o, view, run in runs),
            product=segment.product is not None,
            parts=len(segment.parts),
            early=bool(segment.early),
            shared=tuple(length > 0 for length, _ in segment.pieces),
            finished=finish.piece if finish else None,
        )

    def _reads(self, step: Step) -> list[View]:
        """What a tiled step reads, not counting weights of which it has a packed copy."""
        weights = [step.operation.ins[1]] if id(step) in self.packed else []
        return [view for operation in step.operations for view in operation.ins if view not in weights]

    def _in_rows(self, step: Step) -> bool:
        return self.kernels[id(step)].turned(self.lanes).out.strides[1] == 1

    @property
    def tile_bytes(self) -> int:
        """Scratch of one tile; behind it, large products and convolutions have their workspace."""
        return self._rows_offset + (8 * self.tile if self.picked else 0)

    @property
    def _rows(self) -> View:
        """The samples that tiles list."""
        assert self.picked is not None
        return View(self.picked, self.picked.shape, c_strides(self.picked.shape))

    @property
    def _rows_offset(self) -> int:
        """Where in a tile's scratch the addresses of its samples are."""
        return self.tile_plan.nbytes(self.tile) if self.tile_plan.batched else 0

    def _is_large(self, operation: Operation) -> bool:
        return not self.laned and is_large(operation)

    @property
    def sums(self) -> tuple[Buffer, ...]:
        """The buffers that hold sums over samples."""
        return tuple(dict.fromkeys(buffer for buffers in self.own for buffer in buffers))

    def own_position(self, buffer: Buffer) -> int:
        """Where in a thread's table the address of its own block of sums is; -1 where it has none."""
        return len(self.table) + self.sums.index(buffer) if buffer in self.sums else -1

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

    def _pack(self, step: Step, shape: Shape, used: Shape | None = None) -> View:
        """The place of a packed copy of the step's weights, of which `used` is filled."""
        source = step.operation.ins[1]
        buffer = Buffer(f"packed {source}", "scratch", source.dtype, shape)
        view = View(buffer, used or shape, c_strides(shape))
        self.packed[id(step)] = (source, view)
        return view

    def _plan(self) -> Plan[Buffer]:
        """Offsets of the batched buffers within a tile's scratch; the products and their maps are one moment."""
        used: dict[Buffer, tuple[int, int]] = {}
        moment = 0
        for segment in self.segments:
            for step in segment.tiled:
                for operation in step.operations:
                    for view in operation.views:
                        if view.buffer.role == "scratch" and view.buffer.batched and view.buffer not in self.whole:
                            used[view.buffer] = (used.get(view.buffer, (moment, moment))[0], moment)
                moment += 1
        return plan(Lifetime(buffer, buffer.nbytes, True, first, last) for buffer, (first, last) in used.items())

    def _table(self) -> tuple[Buffer, ...]:
        buffers = dict.fromkeys(self.program.buffers.values())
        for operation in self.operations:
            buffers |= dict.fromkeys(view.buffer for view in operation.views if view.buffer not in self.tile_plan.batched)
        buffers |= dict.fromkeys(view.buffer for _, view in self.packed.values())
        return tuple(buffers)

    def _write(self, name: str, body: Callable[[Frame], None], tiled: bool = False) -> None:
        arguments = [(PTR, "table"), (PTR, "scratch"), (I64, "start"), (I64, "count"), (I64, "first")]
        kind, number, *_ = name.split("_")
        if kind in ("product", "once"):
            arguments += [(I64, "thread"), (I64, "threads")]
        if tiled:
            arguments += [(I64, "whole")]
        f = Function(self.module, name, arguments)
        table, scratch, start, count, first = f.arguments[:5]
        bases: dict[Buffer, Value] = {}
        positions = {buffer: k for k, buffer in enumerate(self.table)}
        if tiled:  # sums over samples go to the thread's own blocks, whose addresses follow those of all buffers
            positions |= {buffer: self.own_position(buffer) for buffer in self.own[int(number)]}

        def base(view: View) -> Value:
            # Written at the beginning of the function, so that every block may use it.
            buffer = view.buffer
            if buffer.dtype.itemsize not in (4, 8):
                raise UnsupportedOperationError(f"backend 'native' has no operation on {buffer.dtype} (`{view}`)")
            element = Type({4: "float", 8: "double"}[buffer.dtype.itemsize])
            if buffer not in bases:
                bases[buffer] = self._base(f, buffer, positions, element, table, scratch, start)
            return f.address(bases[buffer], integer(view.offset), element)

        begun, whole = (f.compare("ne", flag, integer(0)) if tiled else None for flag in (first, f.arguments[-1]))
        ahead = f.load(PTR, f.address(table, integer(len(self.table) + len(self.sums)), PTR)) if tiled else None
        rows = (self.picked, f.address(scratch, integer(self._rows_offset), Type("i8"))) if tiled and self.picked else None
        frame = Frame(f, self.lanes, self.processor.registers, base, count, start, bool(self.laned), begun, whole, rows, ahead)
        for view in self._views(name):
            base(view)
        body(frame)
        f.line("ret void")
        self.module.add(f)

    def _views(self, name: str) -> list[View]:
        """The views that the function of this name may touch."""
        kind, number, *piece = name.split("_")
        segment = self.segments[int(number)]
        if kind == "prepare":
            return [view for step in segment.tiled for view in self.packed.get(id(step), ())]
        if kind == "product":
            assert segment.product is not None
            return list(segment.product.views)
        if kind == "early":
            steps = segment.early
        elif kind == "tile":
            steps = segment.parts[int(piece[0])]
        else:
            finish = self.finishes[int(number)]
            steps = segment.pieces[finish.piece if kind == "rest" and finish else int(piece[0])][1]
        views = [self._rows] if kind == "tile" and piece == ["0"] and self._lists(segment) else []
        for step in steps:
            finishing = self.kernels[id(step)].maps if id(step) in self.kernels else ()
            views += [view for operation in (*step.operations, *finishing) for view in operation.views]
            if id(step) in self.packed:
                views.append(self.packed[id(step)][1])
        return views

    def _base(
        self,
        f: Function,
        buffer: Buffer,
        positions: dict[Buffer, int],
        element: Type,
        table: Value,
        scratch: Value,
        start: Value,
    ) -> Value:
        if buffer in self.tile_plan.batched:
            return f.address(scratch, integer(self.tile_plan.offset(buffer, self.tile)), Type("i8"))
        pointer = f.load(PTR, f.address(table, integer(positions[buffer]), PTR))
        return f.address(pointer, f.mul(start, buffer.size), element) if buffer.batched else pointer

    def _prepare(self, segment: Segment, frame: Frame) -> None:
        for step in segment.tiled:
            if id(step) in self.packed:
                source, packed = self.packed[id(step)]
                if winograd.suits(step.operation):
                    winograd.pack_transformed(frame, step.operation, packed)
                elif isinstance(step.operation, (Convolve, ConvolveInput)):
                    pack_kernels(frame, step.operation, packed)
                else:
                    pack(frame, source, frame.base(packed), packed.strides[0])

    def _product(self, operation: MatMul, frame: Frame) -> None:
        f = frame.f
        _, scratch, *_, thread, threads = f.arguments
        lower_large(frame, operation, f.address(scratch, integer(self.tile_bytes), Type("i8")), thread, threads)

    def _share(self, length: int, steps: Sequence[Step], frame: Frame) -> None:
        """A thread's part of maps of long vectors."""
        f = frame.f
        *_, thread, threads = f.arguments
        begin, end = share(f, length, self.lanes, thread, threads)
        for step in steps:
            assert isinstance(step.operation, Map)
            lower_shared_map(frame, step.operation, begin, f.binary("sub", end, begin))

    def _rest(self, runs: Sequence[tuple[int, int]], steps: Sequence[Step], frame: Frame) -> None:
        """Maps of long vectors on the elements of these runs."""
        for begin, stop in runs:
            for step in steps:
                assert isinstance(step.operation, Map)
                lower_shared_map(frame, step.operation, integer(begin), integer(stop - begin))

    def _lists(self, segment: Segment) -> bool:
        """Whether a segment reads samples by their addresses."""
        return any(view.buffer is self.picked for step in segment.tiled for o in step.operations for view in o.views)

    def _first_steps(self, steps: Sequence[Step], frame: Frame) -> None:
        """List the samples of a tile, then as `_steps`."""
        f = frame.f
        words = f.load(PTR, f.address(f.arguments[0], integer(len(self.table) + len(self.sums) + 1), PTR))
        list_rows(frame, self._rows, words)
        self._steps(steps, frame)

    def _steps(self, steps: Sequence[Step], frame: Frame) -> None:
        for step in steps:
            operation = step.operation
            if isinstance(operation, MatMul):
                lower_matmul(frame, self.kernels[id(step)])
            elif winograd.suits(operation):
                space = frame.f.address(frame.f.arguments[1], integer(self.tile_bytes), Type("i8"))
                winograd.lower_winograd(frame, operation, self.packed[id(step)][1], space, step.maps)
            elif isinstance(operation, (Convolve, ConvolveInput)):
                lower_convolve(frame, operation, self.packed[id(step)][1], step.maps)
            elif isinstance(operation, ConvolveWeight):
                lower_convolve_weight(frame, operation)
            elif isinstance(operation, Pool):
                lower_pool(frame, operation)
            elif isinstance(operation, Relayout):
                lower_relayout(frame, operation, operation.outs[0].buffer in self.tile_plan.batched)
            elif any(view.buffer in self.laned for view in operation.views):
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


def compile_program(program: Program, processor: Processor) -> Compiled:
    """Write the assembly. Raises UnsupportedOperationError, naming it, for an operation that cannot be compiled."""
    return Compiler(program, processor).compiled()
