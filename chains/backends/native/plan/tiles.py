"""The memory of a program: packed weights, the table of addresses, sums, and the scratch memory and size of a tile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from chains.backends.native.kernels import gemm
from chains.backends.native.kernels.samples import indexed_input
from chains.backends.native.operations import record_of
from chains.backends.native.plan.execution_plan import ExecutionPlan, PackedWeights, PlanStep, Segment, SumRun
from chains.program.loop import all_operations
from chains.program.operations import BatchMatMul, MatMul
from chains.program.scratch import Lifetime, ScratchPlan, plan_scratch
from chains.program.view import Batch, Buffer, Shape, View, c_strides

TILE_BYTES = 16 << 10  # scratch of a tile: half of a first-level cache
TILE_ROWS = 48  # tiles are multiples of this; the kernels' blocks of rows divide it. Tiles with images are one vector
MAX_TILE_SAMPLES = 1024
MIN_TILE_SAMPLES = 15  # with an eighth more, 16: what the lengths of buffers are multiples of


def pack_weights(plan: ExecutionPlan) -> ExecutionPlan:
    """Reserve packed copies of weights for steps on tiles whose kernels read packed weights."""

    def packed(step: PlanStep) -> PlanStep:
        packing = record_of(step.operation).packing
        found = packing.place(step.operation, plan.lanes, bool(plan.laned)) if packing else None
        return replace(step, packed=_copied(*found)) if found else step

    return plan.changed_on_tiles(packed)


def _copied(source: View, shape: Shape, used: Shape) -> PackedWeights:
    """Weights, and a new buffer of this shape for their copy, which fills the part `used`."""
    copy = View(Buffer(f"packed {source}", "scratch", source.dtype, shape), used, c_strides(shape))
    return PackedWeights(source, copy)


def list_buffers(plan: ExecutionPlan) -> ExecutionPlan:
    """List the buffers of the table of addresses: the caller's, scratch memory outside of tiles, and packed weights."""
    buffers = dict.fromkeys(plan.program.buffers.values())
    views = [view for step in plan.steps for view in step.operation.views]
    buffers |= dict.fromkeys(view.buffer for view in views if not is_of_tile(view.buffer, plan))
    packed = [step for segment in plan.segments for _, step in segment.packing]
    packed.sort(key=lambda step: not isinstance(step.operation, MatMul))
    buffers |= dict.fromkeys(step.packed.copy.buffer for step in packed if step.packed)
    return replace(plan, table=tuple(buffers))


def list_sums(plan: ExecutionPlan) -> ExecutionPlan:
    """List the sums that the threads must combine after the tiles of each segment."""

    def listed(segment: Segment) -> Segment:
        operations = [operation for step in segment.tiled_steps for operation in step.operations]
        totals = [total for operation in operations for total in operation.totals]
        runs = {SumRun(total.view.buffer, *run, total.over_batch) for total in totals for run in total.view.runs}
        return replace(segment, sums=tuple(_joined(runs, plan.positions)))

    return replace(plan, segments=tuple(map(listed, plan.segments)))


def _joined(runs: Iterable[SumRun], positions: Mapping[Buffer, int]) -> list[SumRun]:
    """The runs, where adjacent runs of one kind are merged."""
    result: list[SumRun] = []
    for run in sorted(runs, key=lambda run: (run.kind, positions[run.buffer], run.start)):
        last = result[-1] if result else None
        if last and last.buffer is run.buffer and last.kind == run.kind and last.stop >= run.start:
            result[-1] = last._replace(stop=max(run.stop, last.stop))
        else:
            result.append(run)
    return result


def is_of_tile(buffer: Buffer, plan: ExecutionPlan) -> bool:
    """Whether a buffer is in the scratch memory of a tile."""
    return buffer.role == "scratch" and buffer.batched and buffer not in plan.whole


def place_tile_scratch(plan: ExecutionPlan) -> ExecutionPlan:
    """Give every buffer of a tile its place, and choose the size of tiles: as many samples as fit."""
    used: dict[Buffer, tuple[int, int]] = {}
    for moment, step in moments(plan):
        for buffer in (view.buffer for view in step.views):
            if is_of_tile(buffer, plan):
                used[buffer] = (used.get(buffer, (moment, moment))[0], moment)
    scratch = plan_scratch(Lifetime(buffer, buffer.nbytes, True, first, last) for buffer, (first, last) in used.items())
    lanes, itemsize = plan.lanes, plan.program.dtype.itemsize
    unit = _unit(plan)
    fitting = TILE_BYTES // max(1, scratch.bytes_per_sample) // unit * unit
    tile = lanes if plan.laned else max(unit, min(MAX_TILE_SAMPLES, fitting))
    if plan.max_scratch_bytes is not None and not plan.laned:
        tile = min(tile, _fitting_tile(scratch, plan.max_scratch_bytes))
    plan = replace(plan, scratch=scratch, tile=tile, room=tile if plan.laned else tile * 9 // 8)
    operations = list(all_operations(operation for step in plan.steps for operation in step.operations))
    needs = ((operation, record_of(operation).workspace) for operation in operations)
    spaces = [workspace(operation, lanes, plan.processor.registers) for operation, workspace in needs if workspace]
    packs = any(step.fused_product for step in plan.products)
    spaces += [gemm.workspace(lanes, itemsize, plan.processor.registers)] if packs else []
    return replace(plan, tile_bytes=plan.workspace_offset + max(spaces, default=0) * itemsize)


def _fitting_tile(scratch: ScratchPlan[Buffer], max_bytes: int) -> int:
    """The most samples of a tile whose buffers take no more bytes, at least as many as buffers have room for anyway."""
    return next(
        (n for n in range(TILE_ROWS, MIN_TILE_SAMPLES, -1) if scratch.nbytes(n * 9 // 8) <= max_bytes), MIN_TILE_SAMPLES
    )


def _unit(plan: ExecutionPlan) -> int:
    """The number of samples that tiles are multiples of. It is small with attention, where a sample has many rows."""
    operations = [step.operation for step in plan.steps]
    if not any(isinstance(operation, BatchMatMul) for operation in operations):
        return TILE_ROWS
    extents = [view.shape[0] for operation in operations if isinstance(operation, MatMul) for view in operation.outs]
    rows = [extent.per_sample for extent in extents if isinstance(extent, Batch)]
    return -(-TILE_ROWS // min(rows, default=TILE_ROWS))


def moments(plan: ExecutionPlan) -> Iterator[tuple[int, PlanStep]]:
    """The steps on tiles, each with the number of its moment: threads may do steps of one moment at the same time."""
    moment = 0
    for segment in plan.segments:
        moment += 1
        for position, work in enumerate(segment.tiled):
            moment += plan.parts > 1 and segment.barriers[1 + position]
            for step in work.steps:
                yield moment, step
                moment += plan.parts == 1


def point_to_rows(plan: ExecutionPlan) -> ExecutionPlan:
    """Find the input whose large samples are read from the caller's data set without a copy."""
    if plan.laned or plan.straight:
        return plan
    tiled = [o for segment in plan.segments for step in segment.tiled_steps for o in step.operations]
    others = [operation for step in plan.products for operation in step.operations]
    return replace(plan, indexed=indexed_input(tiled, others))
