"""Many steps of a small batch in one launch by a cluster of blocks, each with its own slice of a wide first layer.

A cluster's blocks run at the same time on neighbouring multiprocessors, and read each other's shared memory. A step is

    inputs and weights    each block its own columns of the samples and rows of the weights (`slices`): a part of the product
    all blocks wait       by the hardware's barrier for clusters
    sums of all parts     each block all of them, in the same order (`exchange`)
    all else              each block for itself, with the same numbers, so with the same results; weights by their rows

In the end each block writes back its own rows, and the first one all that is not divided.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from weakref import WeakKeyDictionary

from chains.backends.cupy.fused.exchange import SumOfBlocks
from chains.backends.cupy.fused.fused import FusedProgram
from chains.backends.cupy.fused.layout import Layout
from chains.backends.cupy.fused.slices import Slices, UndividableError
from chains.backends.cupy.fused.tiling_policy import LEAST_CLUSTER_PRODUCTS, Tiling
from chains.backends.cupy.source.commands import Command, Pointers
from chains.program.operations import Operation
from chains.program.view import Buffer


class ClusterProgram(FusedProgram):
    """A program on a whole batch by a cluster of blocks."""

    _if_first = "if (blockIdx.x == 0) "
    _last_barrier = "CLUSTER_BARRIER;"  # a block's memory must be there until the others have read it

    def __init__(self, slices: Slices, tiling: Tiling, room: int) -> None:
        self._slices = slices
        self.cluster = slices.blocks
        super().__init__(slices.program, tiling, room)

    def blocks(self, batch: int) -> int:
        return self.cluster

    @property
    def divided_products(self) -> int:
        """Multiplications a sample that the blocks share, in one direction."""
        return sum(self._slices.whole[b].size * part.size // 2 for part in self._told for b in self._slices.cuts if b.batched)

    @property
    def possible(self) -> bool:
        """Whether all that steps change, and all that is divided, fits into a block's shared memory."""
        layout = self._whole
        near = all(b in layout.offsets for b in layout.names if layout.writes(b) or b in self._slices.cuts)
        return near and self.chip_bytes <= self._room

    def _lower(self, operations: Sequence[Operation], stored: object) -> list[Command]:
        self._whole = self._arranged(operations)
        return []

    def _arranged(self, operations: Sequence[Operation]) -> Layout:
        self._told = {operation.ins[0].buffer for operation in operations if isinstance(operation, SumOfBlocks)}
        return super()._arranged(operations)

    def _is_brief(self, buffer: Buffer, passing: Collection[Buffer]) -> bool:
        """Other blocks read parts when this one may already be further on."""
        return buffer not in self._told and super()._is_brief(buffer, passing)

    def _step(self, layout: Layout, far: Pointers) -> list[str]:
        return ["const Index now0 = step & 1;", *super()._step(layout, far)]  # by which parts advance

    # Where a block's own elements lie in the arrays outside

    def _column(self, buffer: Buffer) -> tuple[int, str]:
        if buffer not in self._slices.cuts:
            return super()._column(buffer)
        return self._slices.whole[buffer].size, f"((Index)blockIdx.x * {buffer.size} + i % {buffer.size})"

    def _element(self, buffer: Buffer) -> str:
        jumps = [
            f"(i < {first} ? 0 : i < {last} ? (Index)blockIdx.x * {last - first} : {skipped})"
            for first, last, skipped in self._own_runs(buffer)
        ]
        return " + ".join([super()._element(buffer), *jumps])

    def _if_own(self, buffer: Buffer) -> str:
        own = [f"(i >= {first} && i < {last})" for first, last, _ in self._own_runs(buffer)]
        return f"if ({' || '.join(['blockIdx.x == 0', *own])}) "

    def _own_runs(self, buffer: Buffer) -> list[tuple[int, int, int]]:
        """For each part that is divided, from where to where the block's own elements lie, and how many are others'."""
        runs, before = [], 0
        for cut in self._slices.cuts.get(buffer, ()):
            own = cut.size // self.cluster
            runs.append((cut.start - before, cut.start - before + own, cut.size - own))
            before += cut.size - own
        return runs


_made: WeakKeyDictionary[FusedProgram, ClusterProgram | None] = WeakKeyDictionary()


def in_cluster(compiled: FusedProgram, batch: int, room: int, blocks: int) -> ClusterProgram | None:
    """The program that does many steps by a cluster of up to so many blocks, each with `room` bytes; None where none does."""
    if not compiled.tiling.single or blocks < 2:
        return None
    if compiled not in _made:
        _made[compiled] = _cluster_program(compiled, room, blocks)
    made = _made[compiled]
    return made if made is not None and batch * made.divided_products >= LEAST_CLUSTER_PRODUCTS else None


def _cluster_program(compiled: FusedProgram, room: int, blocks: int) -> ClusterProgram | None:
    for count in (each for each in (blocks, blocks // 2) if each > 1):
        try:
            made = ClusterProgram(Slices(compiled.program, count), compiled.tiling, room)
        except UndividableError:
            continue
        if made.possible:
            return made
    return None
