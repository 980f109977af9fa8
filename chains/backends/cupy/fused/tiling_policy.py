"""Which programs become one kernel over tiles of samples, and how a batch is shared out among blocks.

The bounds are estimates: a block does about 2^20 operations in the time that a second launch and the sums
of many blocks take.
"""

from __future__ import annotations

from dataclasses import dataclass

from chains.backends.cupy.fused.block_operations import supported
from chains.lowering.tiling import whole_on_tiles
from chains.program.program import Program

MAX_BLOCKS = 132  # at most: one for each multiprocessor of a large GPU
MIN_BLOCK_SAMPLES = 8  # samples for a block at least, if there are several blocks
MAX_ONE_BLOCK_OPERATIONS = 1 << 20  # operations up to which one block does the batch
MAX_TILE_SAMPLES = 256  # samples of a tile

# Each takes as long as the threads of a block from one barrier to the next, about 0.4 us.
BARRIERS_PER_LAUNCH = 3  # a launch in a graph
OPERATIONS_PER_BARRIER = 100_000  # operations of products that a block does
LIBRARY_OPERATIONS_PER_BARRIER = 200_000  # those that the library does for a block's share of the samples, on the whole GPU
SHARED_BYTES_PER_BARRIER = 80_000  # bytes that a block reads from its shared memory
GLOBAL_BYTES_PER_BARRIER = 20_000  # bytes that it reads from the second-level cache


@dataclass(frozen=True)
class Tiling:
    """The division of a batch: tiles of up to `tile` samples, one block `alone`, and then perhaps a `single` tile."""

    tile: int
    alone: bool
    single: bool


def suits(program: Program) -> bool:
    """Whether tiles of samples can go through the whole program, and their sums be added."""
    parts = whole_on_tiles(program.operations)
    if parts is None or not parts[0] or not all(map(supported, program.operations)):
        return False
    sums = [operation for operation in parts[0] if operation.sums_over_batch]
    if any(view.dtype != program.dtype for operation in sums for view in operation.outs):
        return False
    return all(operation.over_batch == "sum" and not operation.accumulates for operation in sums)


def samples_each(program: Program, batch: int) -> int:
    """The number of samples of a block: all of them for a single block."""
    outs = [view for operation in program.operations for view in operation.outs if view.batched]
    work = program.flops() + 4 * sum(view.sample_size for view in outs)
    if batch * work <= MAX_ONE_BLOCK_OPERATIONS:
        return batch
    return min(batch, max(MIN_BLOCK_SAMPLES, -(-batch // MAX_BLOCKS)))


def loop_samples(batch: int) -> int:
    """The number of samples that a block takes through a loop: as few as possible, since steps wait for each other."""
    return even(-(-batch // MAX_BLOCKS))


def tiling_of(program: Program, batch: int) -> Tiling:
    """A block's samples in as few tiles as possible, of equal size."""
    each = samples_each(program, batch)
    pieces = -(-each // MAX_TILE_SAMPLES)
    return Tiling(even(-(-each // pieces)), each == batch, each == batch and pieces == 1)


def even(samples: int) -> int:
    """The next number with at most three significant binary digits, so that many batch sizes share a kernel."""
    unit = 1 << max(0, samples.bit_length() - 3)
    return -(-samples // unit) * unit
