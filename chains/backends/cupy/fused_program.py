"""A program as one kernel: each block takes tiles of samples through all of it, with intermediate results in shared memory.

If several blocks share the batch, each has a row of partial sums. A second kernel adds them up, in an order that depends on
sizes alone, and ordinary kernels do the rest of the step. One block does the whole step of a small batch, and many steps in one
launch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.fused.block import THREADS, Block, Repetition, Stored, Unit, barriers, phase_lines, phases
from chains.backends.cupy.fused.block_operations import ready, take
from chains.backends.cupy.fused.loops import has_loops
from chains.backends.cupy.fused.tiling_policy import (
    BARRIERS_PER_LAUNCH,
    MAX_BLOCKS,
    MIN_BLOCK_SAMPLES,
    Tiling,
    even,
    samples_each,
)
from chains.backends.cupy.fused.updates import in_one_pass
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Command, Launch, Pointers, Source, indented
from chains.lowering.tiling import whole_on_tiles
from chains.program.alias import overlap, reach
from chains.program.loop import Loop, all_operations
from chains.program.operations import MatMul, Operation, users
from chains.program.program import Program
from chains.program.scratch import Lifetime, plan_scratch
from chains.program.view import Buffer

MAX_RESIDENT = 2  # blocks of 512 threads that share a multiprocessor; three and four gained nothing more on an H200
SUMS_PER_BLOCK = 32  # sums that a block adds up, by as many threads each as fit


class Sums:
    """A row of memory for the sums of a block: for each buffer the part from the first to the last element that is summed."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        views = [view for operation in operations for view in operation.outs]
        self.spans: dict[Buffer, tuple[int, int]] = {}
        self._base: dict[Buffer, int] = {}
        self.size = 0
        for view in views:
            first, last = self.spans.get(view.buffer, reach(view))
            self.spans[view.buffer] = min(first, reach(view)[0]), max(last, reach(view)[1])
        for buffer, (first, last) in self.spans.items():
            self._base[buffer] = self.size
            self.size += last - first
        self._summed = [(view.buffer, *run) for view in views for run in view.runs]

    def shift(self, buffer: Buffer) -> int:
        """The distance from an element of the buffer to its place in a block's row."""
        return self._base[buffer] - self.spans[buffer][0]

    @property
    def runs(self) -> list[tuple[int, int, Buffer, int]]:
        """The sums: first and last place in a block's row of parts, the buffer, and the place there."""
        result: list[tuple[int, int, Buffer, int]] = []
        for buffer in self.spans:
            shift = self.shift(buffer)
            for start, stop in sorted((start, stop) for owner, start, stop in self._summed if owner is buffer):
                if result and result[-1][2] is buffer and result[-1][1] == start + shift:
                    result[-1] = (result[-1][0], stop + shift, buffer, result[-1][3])
                else:
                    result.append((start + shift, stop + shift, buffer, start))
        return result


def adding(source: Source, sums: Sums, parts: Buffer, blocks: Callable[[int], int]) -> Launch:
    """The kernel that adds up `parts`, the sums of each of the `blocks`: several threads for each sum, then a tree."""
    pointers, kind, depth = Pointers(), ctype(parts.dtype), THREADS // SUMS_PER_BLOCK
    into = {buffer: pointers(buffer, write=True) for buffer in sums.spans}
    mine = pointers.named(parts, "parts")
    lines = [
        f"const Index o = blockIdx.x * (Index){SUMS_PER_BLOCK} + threadIdx.x % {SUMS_PER_BLOCK};",
        f"const Index deep = threadIdx.x / {SUMS_PER_BLOCK};",
        f"SHARED {kind} shared[{THREADS}];",
        f"{kind} total = 0;",
        f"if (o < {sums.size}) for (Index r = deep; r < blocks; r += {depth}) total += {mine}[r * {sums.size} + o];",
        "shared[threadIdx.x] = total;",
    ]
    step = depth // 2
    while step:
        add = f"shared[threadIdx.x] += shared[threadIdx.x + {step * SUMS_PER_BLOCK}];"
        lines += ["__syncthreads();", f"if (deep < {step}) {add}"]
        step //= 2
    lines += ["if (deep == 0) {", "    total = shared[threadIdx.x];"]
    for start, stop, buffer, place in sums.runs:
        lines.append(f"    if (o >= {start} && o < {stop}) {into[buffer]}[o - {start} + {place}] = total;")
    lines.append("}")
    return pointers.launch(
        source, "sums", lines, lambda batch: (-(-sums.size // SUMS_PER_BLOCK), 1), block=(THREADS, 1), extra=["blocks"],
        numbers=lambda batch: (blocks(batch),), label="sums", apart=False,
    )  # fmt: skip


@dataclass(frozen=True)
class DataSet:
    """A data set from which steps take samples by the numbers in `order`: the kernel's names for both."""

    name: str
    order: str


@dataclass(frozen=True)
class Layout:
    """The units of a kernel in groups between barriers, and the places of buffers in shared memory."""

    tiled: list[list[Unit]]
    once: list[list[Unit]]
    names: Mapping[Buffer, str]
    offsets: Mapping[Buffer, int]
    nbytes: int
    fetched: Mapping[Buffer, DataSet]  # inputs that come from data sets

    @property
    def units(self) -> list[Unit]:
        return [unit for group in (*self.tiled, *self.once) for unit in group]

    def writes(self, buffer: Buffer) -> bool:
        return any(view.buffer is buffer for unit in self.units for view in unit.writes)


def fused_program(
    program: Program, tiling: Tiling, room: int, forced: bool = False, aligned: bool = True
) -> FusedProgram | None:
    """The program as one kernel for such batches, with `room` bytes of shared memory for a block; None if it should not be.

    It is if the parameters that products read fit there together with a tile of a few samples. If `forced`, or for a program
    with loops, whose steps would take many launches, a tile of one sample is enough. The program must be one that `suits`.
    """
    least = 1 if forced or has_loops(program) else min(MIN_BLOCK_SAMPLES, tiling.tile)
    while tiling.tile >= least:
        made = FusedProgram(program, tiling, room, aligned)
        if made.shared_bytes <= room and (forced or made.has_parameters):
            return made
        if tiling.tile == 1:
            return None
        tiling = Tiling(even(tiling.tile // 2), tiling.alone, single=False)
    return None


class FusedProgram(Compiled):
    """The commands of a program at batch sizes with the same division."""

    def __init__(self, program: Program, tiling: Tiling, room: int, aligned: bool = True) -> None:
        self.tiling = tiling
        self._room = room
        super().__init__(program, aligned=aligned)

    def blocks(self, batch: int) -> int:
        return -(-batch // self._each(batch))

    def _each(self, batch: int) -> int:
        """How many samples a block takes."""
        return batch if self.tiling.alone else samples_each(self.program, batch)

    @property
    def has_parameters(self) -> bool:
        """Whether all arrays without samples that products read are in shared memory."""
        views = [view for operation in self._products for view in operation.ins]
        return all(view.batched or view.buffer in self._shared for view in views)

    def _prepared(self, operation: Operation) -> list[Operation]:
        if isinstance(operation, Loop):
            return [operation.around([each for inner in operation.body for each in self._prepared(inner)])]
        return ready(operation, self._like)

    def _lower(self, operations: Sequence[Operation], stored: Callable[[range], Stored]) -> list[Command]:
        layout = self._arranged(operations)
        self._parts = self._temporary("parts", self.program.dtype, lambda batch: self.blocks(batch) * self._sums.size)
        kernel = self._kernel(layout)
        if self.tiling.alone:
            self.origins.append((kernel, [*self._tiled, *self._once]))
            return [kernel]
        self.origins.append((kernel, self._tiled))
        if not self._sums.size:
            return [kernel, *self._after()]
        sums = adding(self.source, self._sums, self._parts, self.blocks)
        self.origins.append((sums, []))
        return [kernel, sums, *self._after()]

    def _arranged(self, operations: Sequence[Operation]) -> Layout:
        """The layout of the kernel for these operations."""
        parts = whole_on_tiles(operations)
        assert parts is not None
        self._tiled, once = parts
        self._products = [each for each in all_operations(self._tiled) if isinstance(each, MatMul)]
        if self.tiling.single:
            self._tiled, once = in_one_pass([*self._tiled, *once]), []
        self._sums = Sums([operation for operation in self._tiled if operation.sums_over_batch])
        self._once = once
        self._shared: tuple[Buffer, ...] = ()
        self._shared = self._chosen(self._layout({}))
        layout = self._layout({})
        self.shared_bytes, self._groups = layout.nbytes, layout.tiled
        return layout

    def is_worth(self, launches: int, around: int, batch: int) -> bool:
        """Whether this takes less time than launches with `around` barriers in them. Without loops, it does."""
        if not any(isinstance(unit, Repetition) for group in self._groups for unit in group):
            return True
        tiles = -(-self._each(batch) // self.tiling.tile)
        return tiles * barriers(self._groups) <= BARRIERS_PER_LAUNCH * launches + around

    def _after(self) -> list[Command]:
        """The operations that are done once a step, as ordinary commands."""
        operations = [each for operation in self._once for each in super(FusedProgram, self)._prepared(operation)]
        uses = users(operations)
        needed = lambda positions: lambda buffer: buffer.role != "scratch" or uses[buffer][-1] >= positions.stop  # noqa: E731
        return super()._lower(operations, needed)

    def _stored_by(self, operations: Sequence[Operation]) -> Stored:
        mine = {id(operation) for operation in operations}
        written = [view for operation in operations for view in operation.writes]
        read = [view for each in (*self._tiled, *self._once) if id(each) not in mine for view in each.reads]
        needed = {a.buffer for a in written if any(overlap(a, b) for b in read)}
        return lambda buffer: buffer.role != "scratch" or buffer in needed

    # The contents of shared memory

    def _chosen(self, layout: Layout) -> tuple[Buffer, ...]:
        """The buffers to keep in shared memory in addition to those of the tile: the smallest first, while there is room."""
        shared: list[Buffer] = []
        candidates = [buffer for buffer in layout.names if buffer not in layout.offsets and self._may_be_shared(buffer)]
        for buffer in sorted(candidates, key=self._bytes_of):
            _, nbytes = self._placed([*layout.tiled, *layout.once], {*layout.offsets, *shared, buffer}, layout.offsets)
            shared += [buffer] if nbytes <= self._room else []
        return tuple(shared)

    def _may_be_shared(self, buffer: Buffer) -> bool:
        """Results are written to their buffers, except single numbers."""
        if buffer in self._sums.spans and not self.tiling.alone:
            return False
        return buffer.role == "input" if buffer.batched else buffer.role != "output" or buffer.size == 1

    def _bytes_of(self, buffer: Buffer) -> int:
        return buffer.nbytes * (self.tiling.tile if buffer.batched else 1)

    def _placed(
        self, groups: Sequence[Sequence[Unit]], chip: Collection[Buffer], passing: Collection[Buffer]
    ) -> tuple[Mapping[Buffer, int], int]:
        """Offsets in shared memory, and its size.

        Buffers of one tile, and those in `passing`, have a place as long as they are used, all others throughout.
        """
        used: dict[Buffer, tuple[int, int]] = {}
        for number, group in enumerate(groups):
            for buffer in (buffer for unit in group for buffer in unit.buffers if buffer in chip):
                used[buffer] = (used.get(buffer, (number, number))[0], number)
        lives = []
        for buffer, life in used.items():
            passes = buffer.batched or buffer in passing or (self.tiling.single and buffer.role == "scratch")
            lives.append(Lifetime(buffer, self._bytes_of(buffer), False, *(life if passes else (0, len(groups)))))
        placed = plan_scratch(lives)
        return placed.fixed, placed.fixed_bytes

    def _layout(self, fetched: Mapping[Buffer, DataSet]) -> Layout:
        """The kernel's units; some inputs are `fetched` from data sets."""
        names: dict[Buffer, str] = {}
        tiled = Block(self.tiling.tile, self._shared, names, whole=self.tiling.single)
        once = Block(self.tiling.tile, self._shared, names)
        for buffer in dict.fromkeys([*self._shared, *fetched]):
            if buffer.batched:
                name = names.setdefault(buffer, f"b{len(names)}")
                tiled.load(buffer, "sample", self._sample(buffer, name, fetched.get(buffer)))
        take(tiled, self._tiled, self._stored_by)
        if self.tiling.alone:
            take(once, self._once, self._stored_by)
        work = [*tiled.work, *once.work]
        first, second = phases(tiled.units), phases(once.units)
        chip = {*(buffer for buffer in names if buffer.role == "scratch" and buffer.batched), *work, *self._shared}
        offsets, nbytes = self._placed([*first, *second], chip, work)
        return Layout(first, second, names, offsets, nbytes, fetched)

    # The kernels

    def _kernel(self, layout: Layout) -> Launch:
        """The kernel for tiles of samples; one block alone also does the operations that are done once."""
        pointers = Pointers()
        lines = [*self._start(layout, pointers), *self._step(layout, pointers), *self._back(layout, pointers, ())]
        return pointers.launch(
            self.source, "network", lines, lambda batch: (self.blocks(batch), 1), block=(THREADS, 1), extra=["each"],
            numbers=lambda batch: (self._each(batch),), label=self._label, shared=layout.nbytes, apart=False,
        )  # fmt: skip

    def training(
        self, source: Source, sources: Mapping[str, np.dtype[Any]], own: Collection[str] | None = None, members: int = 1
    ) -> Launch:
        """The kernel, put into `source`, for many steps: `steps` of them, from number `from` of "order" on.

        `sources` are the types of the data sets to take samples from, which are the buffers "all NAME". The losses are
        written to "losses"; one that is not finite is the last. Where `own` is given, block i does so for number i of
        "members": the buffers of these names, and all that are written, have a row for each member. How many elements
        there are from one row to the next is a number for each of them, as `moved` lists them. Several blocks share a
        multiprocessor if there are more `members`.
        """
        assert self.tiling.alone
        buffers, pointers = self.program.buffers, Pointers()
        order = pointers.named(outside("order", np.int64), "order")
        losses = pointers.named(outside("losses", np.float64), "losses", write=True)
        samples = {name: pointers.named(outside(f"all {name}", dtype), f"all_{name}") for name, dtype in sources.items()}
        fetched = {buffers[name]: DataSet(data, order) for name, data in samples.items()}
        layout = self._layout(fetched)
        counted = [buffers["random"]] if "random" in buffers else []
        value = layout.names[buffers["value"]]
        notes = [f"{losses}[from + step] = {value}[0];"]
        notes += [f"{layout.names[buffer]}[1] += 1;" for buffer in counted]
        step = [
            *self._step(layout, pointers),
            f"if (threadIdx.x == 0) {{ {' '.join(notes)} }}",
            f"const double loss = {value}[0];",
            "__syncthreads();",
            "if (!(loss - loss == 0.0)) break;",
        ]
        lines = [
            *self._start(layout, pointers),
            "for (Index step = 0; step < steps; ++step) {",
            *indented(step),
            "}",
            "__syncthreads();",
            *self._back(layout, pointers, counted),
        ]
        extra = ["each", "from", "steps"]
        if own is not None:
            number = pointers.named(outside("members", np.int64), "members")
            names = [pointers.buffers[buffer] for buffer in moved(pointers.buffers, pointers.written, own)]
            lines = [f"{name} += {number}[blockIdx.x] * (int64)row_{name};" for name in names] + lines
            extra += [f"row_{name}" for name in names]
        return pointers.launch(
            source, "training", lines, lambda batch: (self.blocks(batch), 1), block=(THREADS, 1), extra=extra,
            numbers=lambda batch: (self._each(batch),), label=self._label, shared=layout.nbytes, apart=False,
            resident=max(1, min(MAX_RESIDENT, members // MAX_BLOCKS)),
        )  # fmt: skip

    @property
    def _label(self) -> str:
        return ", ".join(dict.fromkeys(operation.label for operation in self._tiled))

    def _start(self, layout: Layout, pointers: Pointers) -> list[str]:
        """Pointers to the buffers that are the same for every tile, and the loads of those in shared memory."""
        lines = ["SHARED_MEMORY;", "const Index all = batch;"]
        block = Block(self.tiling.tile, self._shared, dict(layout.names))
        for buffer, name in layout.names.items():
            kind = ctype(buffer.dtype)
            if buffer in layout.offsets:
                lines.append(f"{kind}* const {name} = ({kind}*)(shared_memory + {layout.offsets[buffer]});")
                if buffer in self._shared and not buffer.batched and buffer.role in ("input", "state", "constant"):
                    block.load(buffer, f"{self._outer(layout, pointers, buffer)}[i]")
            elif not self.tiling.alone and buffer in self._sums.spans:
                parts, shift = pointers.named(self._parts, "parts", write=True), self._sums.shift(buffer)
                lines.append(f"{kind}* const {name} = {parts} + blockIdx.x * (Index){self._sums.size} + ({shift});")
            elif not buffer.batched:
                lines.append(f"{kind}* const {name} = {self._outer(layout, pointers, buffer)};")
        return [*lines, *phase_lines(phases(block.units))]

    def _step(self, layout: Layout, pointers: Pointers) -> list[str]:
        """All tiles of the block; if one block does all, also the operations that are done once a step."""
        tile = self.tiling.tile
        tiles = []
        for buffer, name in layout.names.items():
            if buffer.batched and buffer.role != "scratch" and not (buffer in self._shared and buffer in layout.fetched):
                outer = self._outer(layout, pointers, buffer)
                if buffer not in self._shared:
                    tiles.append(f"{ctype(buffer.dtype)}* const {name} = {outer} + first * {buffer.size};")
        share = "blockIdx.x * each, stop = start + each < all ? start + each : all"
        return [
            f"const Index start = {'0, stop = all' if self.tiling.alone else share};",
            f"for (Index first = start; first < stop; first += {tile}) {{",
            f"    const Index batch = stop - first < {tile} ? stop - first : {tile};",
            f"    const int fresh = {'1' if self.tiling.single else 'first == start'};",
            *indented([*tiles, *phase_lines(layout.tiled)]),
            "}",
            *phase_lines(layout.once),
        ]

    def _back(self, layout: Layout, pointers: Pointers, counted: Collection[Buffer]) -> list[str]:
        """Copies of the buffers that were changed in shared memory, back to global memory."""
        lines = []
        for buffer, name in layout.names.items():
            changed = buffer in counted or (layout.writes(buffer) and buffer.role in ("state", "output"))
            if buffer in self._shared and changed:
                outer = pointers.named(buffer, f"global_{name}", write=True)
                lines.append(f"for (Index i = threadIdx.x; i < {buffer.size}; i += {THREADS}) {outer}[i] = {name}[i];")
        return lines

    def _sample(self, buffer: Buffer, name: str, data: DataSet | None) -> list[str]:
        """Statements that find the element `i` of a tile's samples."""
        kind = ctype(buffer.dtype)
        if data is not None:
            row = f"const int64 row = {data.order}[(from + step) * (int64)all + first + i / {buffer.size}];"
            return [row, f"const {kind} sample = ({kind}){data.name}[row * {buffer.size} + i % {buffer.size}];"]
        return [f"const {kind} sample = global_{name}[first * {buffer.size} + i];"]

    def _outer(self, layout: Layout, pointers: Pointers, buffer: Buffer) -> str:
        """The parameter for a buffer that is not, or not only, in shared memory."""
        return pointers.named(
            buffer, f"global_{layout.names[buffer]}", write=buffer not in layout.offsets and layout.writes(buffer)
        )


def moved(buffers: Iterable[Buffer], written: Collection[Buffer], own: Collection[str]) -> list[Buffer]:
    """Those of a kernel's buffers that have a row for each member."""
    return [buffer for buffer in buffers if buffer in written or buffer.name in own]


def outside(name: str, dtype: Any) -> Buffer:
    """An array that is not one of the program's."""
    return Buffer(name, "state", np.dtype(dtype), ())
