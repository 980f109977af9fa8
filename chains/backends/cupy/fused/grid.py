"""Many steps in one launch by many blocks, which wait for each other: no launch between a step and the next.

Each block has parameters, states and all else that steps change in its own shared memory. A step is

    tiles of samples        each block its own: their sums go to its row of "parts"
    all blocks wait
    sums of all rows        each block some columns, into one more row
    all blocks wait
    what is done once       each block for itself, with the same numbers, so with the same results

Sums are added in the order of `sums.adding`: the results have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from chains.backends.cupy.fused.block import THREADS
from chains.backends.cupy.fused.block_products import Stored
from chains.backends.cupy.fused.fused import FusedProgram, outside
from chains.backends.cupy.fused.layout import Layout
from chains.backends.cupy.fused.sums import SUMS_PER_BLOCK, adding_bytes, adding_lines
from chains.backends.cupy.fused.tiling_policy import Tiling
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.commands import Command, Pointers, indented
from chains.program.operations import Operation
from chains.program.program import Program
from chains.program.view import Buffer, View

# "arrived" counts the blocks that came to any barrier: all of them have come to this one at `goal`. Both may overflow.
GOAL = "unsigned goal = 0;"
BARRIER = """\
__syncthreads();
goal += gridDim.x;
if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1);
    while ((int)(*(volatile unsigned*)arrived - goal) < 0) WAIT_FOR_OTHERS;
    __threadfence();
}
__syncthreads();""".splitlines()


class GridProgram(FusedProgram):
    """A program whose blocks go on with what is done once, each on its own copies of what steps change."""

    goes_on = True
    _if_first = "if (blockIdx.x == 0) "

    def __init__(self, program: Program, tiling: Tiling, room: int) -> None:
        self._totals: dict[Buffer, Buffer] = {}
        super().__init__(program, tiling, room - adding_bytes(program.dtype))

    def part_elements(self, batch: int) -> int:
        """The elements of "parts": a row for each block, and one for the sums."""
        return (self.blocks(batch) + 1) * self._sums.size

    @property
    def possible(self) -> bool:
        """Whether all that steps change fits into a block's shared memory."""
        names, offsets = self._whole.names, self._whole.offsets
        own = all(buffer.batched or buffer in offsets or buffer in self._totals for buffer in names)
        told = all(total in names for buffer, total in self._totals.items() if buffer.role != "scratch")
        return bool(self._sums.size) and own and told and self.chip_bytes <= self._room

    def _lower(self, operations: Sequence[Operation], stored: object) -> list[Command]:
        self._whole = self._arranged(operations)
        self._parts = outside("parts", self.program.dtype)
        return []

    def _done_once(self, operations: Sequence[Operation]) -> list[Operation]:
        """They read the sums from the block's own copies."""
        self._totals = {buffer: replace(buffer, name=f"{buffer} summed", role="scratch") for buffer in self._sums.spans}
        return [operation.on(self._own) for operation in operations]

    def _own(self, view: View) -> View:
        return replace(view, buffer=self._result(view.buffer))

    def _stored_by(self, operations: Sequence[Operation]) -> Stored:
        """Also copies of results, which are told at the end of a step."""
        stored = super()._stored_by(operations)
        told = {total for buffer, total in self._totals.items() if buffer.role != "scratch"}
        return lambda buffer: buffer in told or stored(buffer)

    def _result(self, buffer: Buffer) -> Buffer:
        return self._totals.get(buffer, buffer)

    def _start(self, layout: Layout, far: Pointers) -> list[str]:
        return [GOAL, *super()._start(layout, far)]

    def _between(self, layout: Layout, far: Pointers) -> list[str]:
        far.named(outside("arrived", np.int32), "arrived", write=True)
        size, columns = self._sums.size, SUMS_PER_BLOCK
        parts = far.named(self._parts, "parts", write=True)
        adding = [
            f"const Index o = chunk * {columns} + threadIdx.x % {columns}, deep = threadIdx.x / {columns}, blocks = gridDim.x;",
            *adding_lines(ctype(self._parts.dtype), size, parts),
            f"if (deep == 0 && o < {size}) {parts}[blocks * {size} + o] = total;",
            "__syncthreads();",
        ]
        taking = []
        for start, stop, buffer, place in self._sums.runs:
            if self._totals[buffer] in layout.names:
                total = f"{parts}[gridDim.x * (Index){size} + {start} + i]"
                loop = f"for (Index i = threadIdx.x; i < {stop - start}; i += {THREADS})"
                taking.append(f"{loop} {layout.names[self._totals[buffer]]}[i + {place}] = {total};")
        return [
            *BARRIER,
            f"for (Index chunk = blockIdx.x; chunk < {-(-size // columns)}; chunk += gridDim.x) {{",
            *indented(adding),
            "}",
            *BARRIER,
            *taking,
            "__syncthreads();",
        ]


_made: WeakKeyDictionary[FusedProgram, GridProgram] = WeakKeyDictionary()


def on_grid(compiled: FusedProgram, room: int) -> GridProgram | None:
    """The program by blocks with `room` bytes of shared memory each, that wait for each other; None where they have no room."""
    if compiled not in _made:
        _made[compiled] = GridProgram(compiled.program, compiled.tiling, room)
    return _made[compiled] if _made[compiled].possible else None
