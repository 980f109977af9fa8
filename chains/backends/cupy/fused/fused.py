"""A program as one kernel: each block takes tiles of samples through all of it, with what lies between in shared memory.

What the blocks sum, each in memory of its own, a second kernel adds up and goes on with what is done once. A batch that is
small enough is one block's, which then does the whole step alone, and many steps on end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.fused.block import MEETING, THREADS, Block, Repetition, Unit, meetings, phase_lines, phases
from chains.backends.cupy.fused.block_operations import ready, take
from chains.backends.cupy.fused.block_products import Stored
from chains.backends.cupy.fused.layout import Layout
from chains.backends.cupy.fused.loops import has_loops
from chains.backends.cupy.fused.samples import DataSet, copies, tile_elements, tile_of_step, waited
from chains.backends.cupy.fused.sums import Sums, adding
from chains.backends.cupy.fused.tiling_policy import LEAST_BLOCK_SAMPLES, MEETINGS_PER_LAUNCH, Tiling, even, samples_each
from chains.backends.cupy.fused.updates import in_one_pass
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Command, Launch, Pointers, Source, indented
from chains.backends.tiling import whole_on_tiles
from chains.program.alias import meet
from chains.program.loop import Loop, all_operations
from chains.program.operations import MatMul, Operation, users
from chains.program.program import Program
from chains.program.scratch import Lifetime, plan_scratch
from chains.program.view import Buffer

MOST_ONE_BLOCK_ELEMENTS = 1 << 13  # of a vector that one block updates alone, where many blocks do the tiles


def fused_program(
    program: Program, tiling: Tiling, room: int, forced: bool = False, aligned: bool = True
) -> FusedProgram | None:
    """The program as one kernel for such batches, with `room` bytes of shared memory for a block; None where it is not to be.

    It is where the parameters that products read fit there beside a tile of some samples, or, where `forced`, wherever a
    tile of one fits; so for a program with loops, since the launches of all steps would take longer. The program must be one
    that `suits`.
    """
    least = 1 if forced or has_loops(program) else min(LEAST_BLOCK_SAMPLES, tiling.tile)
    while tiling.tile >= least:
        made = FusedProgram(program, tiling, room, aligned)
        if made.chip_bytes <= room and (forced or made.has_parameters):
            return made
        if tiling.tile == 1:
            return None
        tiling = Tiling(even(tiling.tile // 2), tiling.alone, single=False)
    return None


class FusedProgram(Compiled):
    """The commands of a program at the batch sizes that are shared out in the same way."""

    cluster = 1  # blocks that read each other's shared memory
    _if_first = ""  # what a statement begins with that one of the blocks is to do
    _last_barrier = MEETING  # after all steps

    def __init__(self, program: Program, tiling: Tiling, room: int, aligned: bool = True) -> None:
        self.tiling = tiling
        self._room = room
        super().__init__(program, epilogues=False, aligned=aligned)

    def blocks(self, batch: int) -> int:
        return -(-batch // self._each(batch))

    def _each(self, batch: int) -> int:
        """How many samples a block takes."""
        return batch if self.tiling.alone else samples_each(self.program, batch)

    @property
    def has_parameters(self) -> bool:
        """Whether all that products read lies in shared memory, but for what is a sample's."""
        views = [view for operation in self._products for view in operation.ins]
        return all(view.batched or view.buffer in self._near for view in views)

    def _prepared(self, operation: Operation) -> list[Operation]:
        if isinstance(operation, Loop):
            return [operation.around([each for inner in operation.body for each in self._prepared(inner)])]
        return ready(operation, self._like)

    def _lower(self, operations: Sequence[Operation], stored: Callable[[range], Stored]) -> list[Command]:
        layout = self._arranged(operations)
        self._parts = self._temporary("parts", self.program.dtype, lambda batch: self.blocks(batch) * self._sums.size)
        ticket = self._temporary("ticket", np.dtype(np.int32), lambda batch: 1)
        commands: list[Command] = [self._kernel(layout, ticket)]
        self.origins.append((commands[0], [*self._tiled, *self._once] if self.tiling.alone else self._tiled))
        if self.tiling.alone:
            return commands
        if self._sums.size:
            block = Block(1, (), {}) if self.is_short and self._once else None
            if block is not None:
                take(block, self._once, self._stored_by)
            commands.append(adding(self.source, self._sums, self._parts, ticket, self.blocks, block))
            self.origins.append((commands[1], self._once if block is not None else []))
        return commands if self.is_short else [*commands, *self._after()]

    @property
    def is_short(self) -> bool:
        """Whether a block can do alone what is done once, with the sums of many blocks."""
        sizes = [view.sample_size for operation in self._once for view in operation.views]
        return bool(self._sums.size) and max(sizes, default=0) <= MOST_ONE_BLOCK_ELEMENTS

    def _arranged(self, operations: Sequence[Operation]) -> Layout:
        """The layout of the kernel for these operations."""
        parts = whole_on_tiles(operations)
        assert parts is not None
        self._tiled, once = parts
        self._products = [each for each in all_operations(self._tiled) if isinstance(each, MatMul)]
        if self.tiling.single:
            self._tiled, once = in_one_pass([*self._tiled, *once]), []
        self._sums = Sums([operation for operation in self._tiled if operation.sums_over_batch])
        self._once = self._done_once(once)
        self._near: tuple[Buffer, ...] = ()
        self._near = self._chosen(self._layout({}))
        layout = self._layout({})
        self.chip_bytes, self._groups = layout.nbytes, layout.tiled
        return layout

    def _done_once(self, operations: Sequence[Operation]) -> Sequence[Operation]:
        """What is done once a step, as the kernel does it."""
        return operations

    def is_worth(self, launches: int, around: int, batch: int) -> bool:
        """Whether the program is done sooner so than by launches in which threads meet `around` times; without loops, it is."""
        if not any(isinstance(unit, Repetition) for group in self._groups for unit in group):
            return True
        tiles = -(-self._each(batch) // self.tiling.tile)
        return tiles * meetings(self._groups) <= MEETINGS_PER_LAUNCH * launches + around

    @property
    def goes_on(self) -> bool:
        """Whether each block goes on with what is done once."""
        return self.tiling.alone

    def _after(self) -> list[Command]:
        """What is done once, by kernels of its own."""
        operations = [each for operation in self._once for each in super(FusedProgram, self)._prepared(operation)]
        uses = users(operations)
        needed = lambda positions: lambda buffer: buffer.role != "scratch" or uses[buffer][-1] >= positions.stop  # noqa: E731
        return super()._lower(operations, needed)

    def _stored_by(self, operations: Sequence[Operation]) -> Stored:
        mine = {id(operation) for operation in operations}
        written = [view for operation in operations for view in operation.writes]
        read = [view for each in (*self._tiled, *self._once) if id(each) not in mine for view in each.reads]
        needed = {a.buffer for a in written if any(meet(a, b) for b in read)}
        return lambda buffer: buffer.role != "scratch" or buffer in needed

    # What lies in shared memory

    def _chosen(self, layout: Layout) -> tuple[Buffer, ...]:
        """The buffers to keep in shared memory beside those of the tile: the smallest first, as far as they fit."""
        near: list[Buffer] = []
        candidates = [buffer for buffer in layout.names if buffer not in layout.offsets and self._may_be_near(buffer)]
        for buffer in sorted(candidates, key=self._near_bytes):
            _, nbytes = self._placed([*layout.tiled, *layout.once], {*layout.offsets, *near, buffer}, layout.offsets)
            near += [buffer] if nbytes <= self._room else []
        return tuple(near)

    def _may_be_near(self, buffer: Buffer) -> bool:
        """Results are written where they belong, but for single numbers."""
        if buffer in self._sums.spans and not self.tiling.alone:
            return False
        return buffer.role == "input" if buffer.batched else buffer.role != "output" or buffer.size == 1

    def _near_bytes(self, buffer: Buffer) -> int:
        return buffer.nbytes * (self.tiling.tile if buffer.batched else 1)

    def _placed(
        self,
        groups: Sequence[Sequence[Unit]],
        chip: Collection[Buffer],
        passing: Collection[Buffer],
        ahead: Collection[Buffer] = (),
    ) -> tuple[Mapping[Buffer, int], int]:
        """Offsets in shared memory, and its size.

        What is of one tile, and `passing`, lies there as long as it is used, all else from the first to the last.
        """
        used: dict[Buffer, tuple[int, int]] = {}
        for number, group in enumerate(groups):
            for buffer in (buffer for unit in group for buffer in unit.buffers if buffer in chip):
                used[buffer] = (used.get(buffer, (number, number))[0], number)
        lives = []
        for buffer, life in used.items():
            life = life if self._is_brief(buffer, passing) and buffer not in ahead else (0, len(groups))
            tiles = 2 * tile_elements(buffer, self.tiling.tile) * buffer.dtype.itemsize
            lives.append(Lifetime(buffer, tiles if buffer in ahead else self._near_bytes(buffer), False, *life))
        placed = plan_scratch(lives)
        return placed.fixed, placed.fixed_bytes

    def _is_brief(self, buffer: Buffer, passing: Collection[Buffer]) -> bool:
        return buffer.batched or buffer in passing or (self.tiling.single and buffer.role == "scratch")

    def _layout(self, fetched: Mapping[Buffer, DataSet], ahead: Collection[Buffer] = ()) -> Layout:
        """The kernel's units; some inputs are `fetched` from data sets, and some of these `ahead`."""
        names: dict[Buffer, str] = {}
        tiled = Block(self.tiling.tile, self._near, names, whole=self.tiling.single)
        near = self._near if self.tiling.alone else ()  # or else as `adding` does it, to the bit
        once = Block(self.tiling.tile, near, names)
        for buffer in dict.fromkeys([*self._near, *fetched]):
            if buffer.batched:
                name = names.setdefault(buffer, f"b{len(names)}")
                if buffer not in ahead:
                    tiled.load(buffer, "sample", self._sample(buffer, name, fetched.get(buffer)))
        take(tiled, self._tiled, self._stored_by)
        if self.goes_on:
            take(once, self._once, self._stored_by)
        work = [*tiled.work, *once.work]
        first, second = phases(tiled.units), phases(once.units)
        chip = {*(buffer for buffer in names if buffer.role == "scratch" and buffer.batched), *work, *self._near}
        offsets, nbytes = self._placed([*first, *second], chip, work, ahead)
        return Layout(first, second, names, offsets, nbytes, fetched, ahead)

    # The kernels

    def _kernel(self, layout: Layout, ticket: Buffer) -> Launch:
        """The kernel for tiles of samples, which where one block does it goes on with what is done once."""
        far = Pointers()
        lines = [*self._start(layout, far), *self._step(layout, far), *self._back(layout, far, ())]
        if not self.tiling.alone and self._sums.size:  # for the second kernel
            lines.append(f"if (blockIdx.x == 0 && threadIdx.x == 0) {far.named(ticket, 'ticket', write=True)}[0] = 0;")
        return far.launch(
            self.source, "network", lines, lambda batch: (self.blocks(batch), 1), block=(THREADS, 1), extra=["each"],
            numbers=lambda batch: (self._each(batch),), label=self._label, shared=layout.nbytes, apart=False,
            ends_alone=self.tiling.alone,
        )  # fmt: skip

    def training(self, source: Source, sources: Mapping[str, np.dtype[Any]], own: Collection[str] | None = None) -> Launch:
        """The kernel, put into `source`, for many steps on end: `steps`, from number `from` of "order" on.

        `sources` are the types of the data sets to take samples from, which are the buffers "all NAME". The losses are
        written to "losses"; one that is not finite is the last. Where `own` is given, block i does so for number i of
        "members": the buffers of these names, and all that are written, have a row for each member. How many elements
        there are from one row to the next is a number for each of them, as `moved` lists them.
        """
        assert self.goes_on
        buffers, far = self.program.buffers, Pointers()
        order = far.named(outside("order", np.int64), "order")
        losses = far.named(outside("losses", np.float64), "losses", write=True)
        samples = {name: far.named(outside(f"all {name}", dtype), f"all_{name}") for name, dtype in sources.items()}
        fetched = {buffers[name]: DataSet(data, sources[name], order) for name, data in samples.items()}
        layout = self._layout(fetched, [buffer for buffer in fetched if self.tiling.single and buffer in self._near])
        layout = layout if layout.nbytes <= self._room else self._layout(fetched)
        counted = [buffers["random"]] if "random" in buffers else []
        value = layout.names[self._result(buffers["value"])]
        notes = [f"{self._if_first}{losses}[from + step] = {value}[0];"]
        notes += [f"{layout.names[buffer]}[1] += 1;" for buffer in counted]
        following, begun = (self._copies(layout, at) for at in ("step + 1", "0"))
        arrived = waited(layout.ahead)
        step = [
            *(["if (step + 1 < steps) {", *indented(following), "}"] if following else []),
            *self._step(layout, far),
            f"if (threadIdx.x == 0) {{ {' '.join(notes)} }}",
            f"const double loss = {value}[0];",
            *arrived,
            "__syncthreads();",
            "if (!(loss - loss == 0.0)) break;",
        ]
        lines = [
            *self._start(layout, far),
            *([*begun, *arrived, "__syncthreads();"] if begun else []),
            "for (Index step = 0; step < steps; ++step) {",
            *indented(step),
            "}",
            self._last_barrier,
            *self._back(layout, far, counted),
        ]
        extra = ["each", "from", "steps"]
        if own is not None:
            members = far.named(outside("members", np.int64), "members")
            rows = {far.buffers[buffer]: f"row_{far.buffers[buffer]}" for buffer in moved(far.buffers, far.written, own)}
            lines = [f"{name} += {members}[blockIdx.x] * (int64){row};" for name, row in rows.items()] + lines
            extra += rows.values()
        return far.launch(
            source, "training", lines, lambda batch: (self.blocks(batch), 1), block=(THREADS, 1), extra=extra,
            numbers=lambda batch: (self._each(batch),), label=self._label, shared=layout.nbytes, apart=False,
            together=not self.tiling.alone, cluster=self.cluster,
        )  # fmt: skip

    def _result(self, buffer: Buffer) -> Buffer:
        """Where a result of a step lies."""
        return buffer

    def _between(self, layout: Layout, far: Pointers) -> list[str]:
        """What is done after all tiles, before what is done once."""
        return []

    @property
    def _label(self) -> str:
        return ", ".join(dict.fromkeys(operation.label for operation in self._tiled))

    def _start(self, layout: Layout, far: Pointers) -> list[str]:
        """Where the buffers lie that are the same for every tile; what is read once for all of them."""
        lines = ["ON_CHIP;", "const Index all = batch;"]
        block = Block(self.tiling.tile, self._near, dict(layout.names))
        for buffer, name in layout.names.items():
            kind = ctype(buffer.dtype)
            if buffer in layout.offsets:
                tiles = "tiles_" if buffer in layout.ahead else ""
                lines.append(f"{kind}* const {tiles}{name} = ({kind}*)(chip + {layout.offsets[buffer]});")
                if buffer in self._near and not buffer.batched and buffer.role in ("input", "state", "constant"):
                    block.load(buffer, f"{self._outer(layout, far, buffer)}[{self._element(buffer)}]")
            elif not self.tiling.alone and buffer in self._sums.spans:
                parts, shift = far.named(self._parts, "parts", write=True), self._sums.shift(buffer)
                lines.append(f"{kind}* const {name} = {parts} + blockIdx.x * (Index){self._sums.size} + ({shift});")
            elif not buffer.batched:
                lines.append(f"{kind}* const {name} = {self._outer(layout, far, buffer)};")
        return [*lines, *phase_lines(phases(block.units))]

    def _step(self, layout: Layout, far: Pointers) -> list[str]:
        """All tiles of the block, and where it goes on what is done once."""
        tile = self.tiling.tile
        pointers = [tile_of_step(buffer, layout.names[buffer], tile) for buffer in layout.ahead]
        for buffer, name in layout.names.items():
            if buffer.batched and buffer.role != "scratch" and not (buffer in self._near and buffer in layout.fetched):
                outer = self._outer(layout, far, buffer)
                if buffer not in self._near:
                    pointers.append(f"{ctype(buffer.dtype)}* const {name} = {outer} + first * {buffer.size};")
        share = "blockIdx.x * each, stop = start + each < all ? start + each : all"
        return [
            f"const Index start = {'0, stop = all' if self.tiling.alone else share};",
            f"for (Index first = start; first < stop; first += {tile}) {{",
            f"    const Index batch = stop - first < {tile} ? stop - first : {tile};",
            f"    const int fresh = {'1' if self.tiling.single else 'first == start'};",
            *indented([*pointers, *phase_lines(layout.tiled)]),
            "}",
            *self._between(layout, far),
            *phase_lines(layout.once),
        ]

    def _back(self, layout: Layout, far: Pointers, counted: Collection[Buffer]) -> list[str]:
        """What was changed in shared memory goes back to where it came from."""
        lines = []
        for buffer in layout.names:
            name, place = layout.names[self._result(buffer)], self._result(buffer)
            changed = buffer in counted or (layout.writes(place) and buffer.role in ("state", "output"))
            if place in self._near and changed:
                outer, size = far.named(buffer, f"far_{name}", write=True), buffer.size
                loop = f"for (Index i = threadIdx.x; i < {size}; i += {THREADS})"
                lines.append(f"{loop} {self._if_own(place)}{outer}[{self._element(place)}] = {name}[i];")
        return lines

    def _if_own(self, buffer: Buffer) -> str:
        """What the statement begins with that writes element `i` of a buffer back: one block does."""
        return self._if_first

    # Where the elements of a buffer lie in the array outside

    def _element(self, buffer: Buffer) -> str:
        """The place of element `i` of a buffer without samples."""
        return "i"

    def _column(self, buffer: Buffer) -> tuple[int, str]:
        """The length of a sample, and the place in it of element `i` of a tile's samples."""
        return buffer.size, f"i % {buffer.size}"

    def _sample(self, buffer: Buffer, name: str, data: DataSet | None) -> list[str]:
        """Statements that find the element `i` of a tile's samples."""
        (width, column), kind = self._column(buffer), ctype(buffer.dtype)
        if data is not None:
            row, place = data.found(buffer, width, column)
            return [row, f"const {kind} sample = ({kind}){place};"]
        place = f"first * {width} + i" if width == buffer.size else f"(first + i / {buffer.size}) * {width} + {column}"
        return [f"const {kind} sample = far_{name}[{place}];"]

    def _copies(self, layout: Layout, step: str) -> list[str]:
        """Statements that begin to copy the samples of a step that come ahead."""
        tile, names, data = self.tiling.tile, layout.names, layout.fetched
        return [line for b in layout.ahead for line in copies(b, names[b], tile, data[b], *self._column(b), step)]

    def _outer(self, layout: Layout, far: Pointers, buffer: Buffer) -> str:
        """The parameter for a buffer that is not, or not only, in shared memory."""
        return far.named(buffer, f"far_{layout.names[buffer]}", write=buffer not in layout.offsets and layout.writes(buffer))


def moved(buffers: Iterable[Buffer], written: Collection[Buffer], own: Collection[str]) -> list[Buffer]:
    """Those of a kernel's buffers that have a row for each member."""
    return [buffer for buffer in buffers if buffer in written or buffer.name in own]


def outside(name: str, dtype: Any) -> Buffer:
    """An array beside those of the program."""
    return Buffer(name, "state", np.dtype(dtype), ())
