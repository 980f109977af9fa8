"""What the blocks of a cluster tell each other: sums whose parts lie in the shared memory of all of them.

Every block adds up all parts, in the order of the blocks, so that all have the same bits. There is room for the parts of two
steps in turn: a block that is ahead writes those of the next step beside what others may still read, and all meet once a step.
"""

from __future__ import annotations

from dataclasses import dataclass

from chains.backends.cupy.fused.block import Block, Stored, Unit
from chains.backends.cupy.source.axes import Space, count, count_text
from chains.backends.cupy.source.c_source import ctype
from chains.backends.cupy.source.fusion import Run
from chains.program.operations import Operation
from chains.program.view import Batch, Buffer, View

CLUSTER_MEETING = "CLUSTER_BARRIER;"


@dataclass(frozen=True)
class SumOfBlocks(Operation):
    """out = the sum of the operand over all `blocks` of the cluster, each of which has one of its own."""

    blocks: int


def room_for_parts(out: View) -> View:
    """The part of a result (batch, columns) in a buffer for two steps, of which ``now0`` says which it is."""
    (columns,) = out.sample_shape
    buffer = Buffer(f"{out} of a block", "scratch", out.dtype, (Batch(), 2, columns))
    return View(buffer, out.shape, (2 * columns, 1), moves=(columns,))


def sum_of_blocks(block: Block, operation: SumOfBlocks, along: Run, stored: Stored) -> None:
    """A thread for each result, which reads from all blocks; `along` goes on with it, element by element."""
    (out,), (part,) = operation.outs, operation.ins
    views = [out, part, *along.outs, *along.ins]
    space, pointers, type_ = Space(out.shape, views), block.pointers(), ctype(out.dtype)
    before, ending = block.ending(operation, along, stored, pointers, space)
    read = f"((const {type_}*)of_block({pointers(part.buffer)}, b))[{space.index_of(part)}]"
    body = [
        *space.kept_lines,
        f"{type_} each[{operation.blocks}], total;",
        "#pragma unroll",
        f"for (int b = 0; b < {operation.blocks}; ++b) each[b] = {read};",
        "total = each[0];",
        "#pragma unroll",
        f"for (int b = 1; b < {operation.blocks}; ++b) total += each[b];",
        *ending,
    ]
    block.add(
        Unit(count_text(space.kept), count(space.kept, block.tile), body, before, meeting=CLUSTER_MEETING), pointers, views
    )
