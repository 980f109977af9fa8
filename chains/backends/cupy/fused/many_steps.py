"""Which kernel does many steps in one launch: that of one block, of a cluster, or of blocks that wait for each other."""

from __future__ import annotations

from chains.backends.cupy.fused.cluster import in_cluster
from chains.backends.cupy.fused.fused import FusedProgram
from chains.backends.cupy.fused.grid import on_grid


def for_many_steps(compiled: object, batch: int, room: int, together: int, cluster: int = 1) -> FusedProgram | None:
    """The program that does many steps in one launch; None where each step is to be a graph.

    Blocks have `room` bytes of shared memory. No more than `together` of them run at the same time, and no more than `cluster`
    read each other's shared memory.
    """
    if not isinstance(compiled, FusedProgram):
        return None
    if compiled.tiling.alone:
        return in_cluster(compiled, batch, room, cluster) or compiled
    if compiled.blocks(batch) > together or not compiled.is_short:
        return None
    return on_grid(compiled, room)
