"""From a program to its plan: the passes, in order, and the result of each as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher

from chains.backends.native.llvm.target import Processor
from chains.backends.native.plan.execution_plan import ExecutionPlan, PlanStep, Segment, Work
from chains.backends.native.plan.fused_update import (
    describe_products,
    fuse_update_into_large_products,
    fuse_update_into_tiles,
    fuse_update_of_one_sample,
)
from chains.backends.native.plan.layout import arrange_layout, pad_rows, solve_in_lanes
from chains.backends.native.plan.one_sample import write_loops_for_one_sample
from chains.backends.native.plan.outlining import outline_alike, share_blocks
from chains.backends.native.plan.segments import cut_into_segments, leave_out_stores
from chains.backends.native.plan.teams import partition_rows, place_barriers
from chains.backends.native.plan.tiles import list_buffers, list_sums, pack_weights, place_tile_scratch, point_to_rows
from chains.backends.native.plan.width import choose_width
from chains.program.program import Program
from chains.program.view import Buffer, View, shape_text

Pass = Callable[[ExecutionPlan], ExecutionPlan]
Watch = Callable[[str, ExecutionPlan], None]

PASSES: tuple[Pass, ...] = (
    solve_in_lanes,
    choose_width,
    arrange_layout,
    pad_rows,
    fuse_update_into_large_products,
    partition_rows,
    cut_into_segments,
    leave_out_stores,
    pack_weights,
    fuse_update_into_tiles,
    fuse_update_of_one_sample,
    describe_products,
    list_buffers,
    list_sums,
    place_barriers,
    place_tile_scratch,
    point_to_rows,
    share_blocks,
    outline_alike,
    write_loops_for_one_sample,
)


def name_of(function: Pass) -> str:
    """The name of a pass, for people."""
    return function.__name__.replace("_", " ")


def plan_of(
    program: Program, processor: Processor, parts: int = 1, watch: Watch | None = None, gathered: bool = False,
    max_scratch_bytes: int | None = None, straight: bool = False,
) -> ExecutionPlan:  # fmt: skip
    """The plan of a program, with products partitioned among `parts` threads if that is worth it, `gathered` or not.

    Tiles are smaller where their buffers would take more than `max_scratch_bytes`. A `straight` plan is for one sample
    (`is_straight`). `watch` is called with the name of each pass and the plan after it. Raises UnsupportedOperationError for a
    product that no kernel can do.
    """
    plan = ExecutionPlan.of(program, processor, parts, gathered, max_scratch_bytes, straight)
    for function in PASSES:
        plan = function(plan)
        if watch:
            watch(name_of(function), plan)
    return plan


def passes_text(program: Program, processor: Processor, parts: int = 1, gathered: bool = False) -> str:
    """The plan after every pass, under the name of the pass. New lines are marked with +, removed lines with -."""
    texts = [str(program)]
    last = ExecutionPlan.of(program, processor, parts, gathered)
    before = lines_of(last)

    def watch(name: str, plan: ExecutionPlan) -> None:
        nonlocal before
        after = lines_of(plan)
        texts.append("\n".join([f"== {name} ==", *marked(before, after)] if after != before else [f"== {name} == no change"]))
        before = after

    texts.append("\n".join(["== the program ==", *before]))
    plan_of(program, processor, parts, watch, gathered)
    return "\n\n".join(texts)


def marked(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """The lines of two texts: common lines, lines of the first alone (-) and lines of the second alone (+)."""
    for _, begin, end, start, stop in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        common = before[begin:end] == after[start:stop]
        yield from () if common else (f"- {line}" for line in before[begin:end])
        yield from (f"{' ' if common else '+'} {line}" for line in after[start:stop])


def lines_of(plan: ExecutionPlan) -> list[str]:
    """The lines of a plan: its steps or segments, then the buffers that they use."""
    processor, parts = plan.processor, plan.parts
    lines = [f"for {processor.kind}: {plan.lanes} numbers in a vector, {processor.registers} registers"]
    lines += [f"products in parts for up to {parts} threads"] if parts > 1 else []
    if plan.tile:
        lines.append(f"{plan.tile} samples in a tile, at most {plan.room}; {plan.tile_bytes:,} bytes of scratch memory")
    if not plan.segments:
        for step in plan.steps:
            first, *more = _step(step)
            lines += [first if step.owner is None else f"{first} (thread {step.owner})", *more]
    for number, segment in enumerate(plan.segments):
        lines += [f"segment {number}", *(f"  {line}" for line in _segment(segment, plan))]
    lines.append("buffers")
    return [*lines, *(f"  {_buffer(buffer, plan)}" for buffer in _buffers(plan))]


def _segment(segment: Segment, plan: ExecutionPlan) -> Iterator[str]:
    barriers = iter(segment.barriers)

    def work(what: str, each: Work, barrier: bool) -> Iterator[str]:
        yield from ("barrier",) if barrier else ()
        yield what
        yield from (f"  {line}" for step in each.steps for line in _step(step))

    partitioned = plan.parts > 1
    barrier = partitioned and next(barriers, False)
    if segment.early:
        yield from work("early", Work(segment.early), barrier)
    if plan.lists_rows(segment):
        yield f"list the rows of {plan.rows}"
    for position, each in enumerate(segment.tiled):
        thread = f" of thread {each.thread}" if partitioned else ""
        yield from work(f"tile, function {position}{thread}", each, partitioned and next(barriers, False))
    if segment.product:
        yield from work("on the whole batch, shared among threads", Work((segment.product,)), False)
    for run in segment.sums:
        yield f"add up what threads have: {run.kind} of {run.buffer.name}[{run.start}:{run.stop}]"
    for position, each in enumerate(segment.once):
        shared = f"vectors of {each.length:,} shared among threads" if each.length else "on one thread"
        yield from work(f"once, {shared}", each, next(barriers, False))
        if segment.fused_update and segment.fused_update.work == position:
            rest = ", ".join(f"{begin}:{end}" for begin, end in segment.fused_update.rest)
            where = "the batch is one sample" if segment.fused_update.alone else "a tile holds the batch"
            yield f"  (where {where}, only elements {rest or 'none'}: products do the others)"


def _step(step: PlanStep) -> Iterator[str]:
    yield f"{step.origins[0]:4}  {step.operation}"
    yield from (f"      then {each}" for each in step.fused)
    yield from (f"      update {each}" for each in step.update)
    yield from (f"      for one sample {each.operation}" for each in step.alone)
    if step.packed:
        yield f"      reads {step.packed.copy.text}, in rows of {step.packed.copy.strides[0]}"
    if step.transient:
        yield f"      does not store {', '.join(sorted(buffer.name for buffer in step.transient))}"
    if product := step.fused_product:
        stored = ", not stored" if product.transient else ""
        yield f"      product {_place(product.out)} from {_place(product.a)} and {_place(product.b)}{stored}"
    if step.continued:
        yield "      adds to a sum that this tile has begun"
    for inner in step.body:
        yield from (f"  {line}" for line in _step(inner))
    if step.single:
        yield "      written once more for one sample"
    if step.likeness:
        yield "      written once for all such steps"


def _place(view: View) -> str:
    return f"{view.buffer.name}[{view.offset}] strides {view.strides}"


def _buffers(plan: ExecutionPlan) -> list[Buffer]:
    """The buffers of the program in the order of their first use, then packed weights."""
    used = [view.buffer for step in plan.steps for view in step.operation.views]
    steps = (step for segment in plan.segments for step in segment.tiled_steps)
    packed = [step.packed.copy.buffer for outer in steps for step in outer.all if step.packed]
    return list(dict.fromkeys((*plan.program.buffers.values(), *used, *packed)))


def _buffer(buffer: Buffer, plan: ExecutionPlan) -> str:
    text = f"{buffer.name}{shape_text(buffer.shape)} {buffer.dtype} {buffer.role}"
    text += ", in lanes" if buffer in plan.laned else ""
    if buffer in plan.positions:
        text += f", address {plan.positions[buffer]}"
        text += f", own sums at address {plan.sum_positions[buffer]}" if buffer in plan.sum_positions else ""
    elif plan.scratch and buffer in plan.scratch.batched:
        text += f", byte {plan.offset(buffer):,} of a tile"
    return text + (", read by row pointers" if buffer is plan.indexed else "")
