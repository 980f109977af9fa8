"""From a program to its plan: the passes, in order."""

from __future__ import annotations

from collections.abc import Callable

from chains.backends.native.llvm.target import Processor
from chains.backends.native.plan.barriers import list_sums, place_barriers
from chains.backends.native.plan.execution_plan import ExecutionPlan
from chains.backends.native.plan.fused_update import fuse_update_into_large_products, fuse_update_into_tiles
from chains.backends.native.plan.layout import arrange_layout
from chains.backends.native.plan.outlining import outline_alike, share_blocks
from chains.backends.native.plan.padding import pad_rows
from chains.backends.native.plan.row_partition import partition_rows
from chains.backends.native.plan.segments import cut_into_segments
from chains.backends.native.plan.tiles import list_buffers, place_tile_scratch, point_to_rows
from chains.backends.native.plan.weights import describe_products, pack_weights
from chains.program.program import Program

Pass = Callable[[ExecutionPlan], ExecutionPlan]

PASSES: tuple[Pass, ...] = (
    arrange_layout,
    pad_rows,
    fuse_update_into_large_products,
    partition_rows,
    cut_into_segments,
    pack_weights,
    fuse_update_into_tiles,
    describe_products,
    list_buffers,
    list_sums,
    place_barriers,
    place_tile_scratch,
    point_to_rows,
    share_blocks,
    outline_alike,
)


def name_of(function: Pass) -> str:
    """The name of a pass, for people."""
    return function.__name__.replace("_", " ")


def plan_of(
    program: Program,
    processor: Processor,
    parts: int = 1,
    watch: Callable[[str, ExecutionPlan], None] | None = None,
    gathered: bool = False,
) -> ExecutionPlan:
    """The plan of a program, with products partitioned among `parts` threads if that is worth it.

    In a `gathered` one, products of very many weights behind images see the whole batch.
    `watch` is called with the name of each pass and the plan after it. Raises UnsupportedOperationError for a product that no
    kernel can do.
    """
    plan = ExecutionPlan.of(program, processor, parts, gathered)
    for function in PASSES:
        plan = function(plan)
        if watch:
            watch(name_of(function), plan)
    return plan
