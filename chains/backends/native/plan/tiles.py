"""The memory of a program: the table of addresses, the scratch memory of a tile, and how many samples a tile has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chains.backends.native.kernels import winograd
from chains.backends.native.kernels.gemm import workspace
from chains.backends.native.kernels.row_pointers import picked_input
from chains.backends.native.plan.schedule import Schedule, Step
from chains.program.operations import MatMul
from chains.program.scratch import Lifetime, plan
from chains.program.view import Buffer

TILE_BYTES = 16 << 10  # scratch of a tile: half of a first-level cache
TILE_ROWS = 48  # tiles are multiples of this, which the kernels' blocks of rows divide; those with images are one vector
MOST_SAMPLES = 1024


def list_buffers(schedule: Schedule) -> Schedule:
    """Number the buffers of the table of addresses: the caller's, scratch memory that is no part of a tile, packed weights."""
    buffers = dict.fromkeys(schedule.program.buffers.values())
    views = [view for step in schedule.steps for view in step.operation.views]
    buffers |= dict.fromkeys(view.buffer for view in views if not is_of_tile(view.buffer, schedule))
    packed = [step for segment in schedule.segments for step in segment.tiled_steps if step.packed]
    packed.sort(key=lambda step: not isinstance(step.operation, MatMul))
    buffers |= dict.fromkeys(step.packed.copy.buffer for step in packed if step.packed)
    return replace(schedule, table=tuple(buffers))


def is_of_tile(buffer: Buffer, schedule: Schedule) -> bool:
    """Whether a buffer lies in the scratch memory of a tile."""
    return buffer.role == "scratch" and buffer.batched and buffer not in schedule.whole


def place_tile_scratch(schedule: Schedule) -> Schedule:
    """Give every buffer of a tile its place, and a tile as many samples as fit."""
    used: dict[Buffer, tuple[int, int]] = {}
    for moment, step in moments(schedule):
        for buffer in (view.buffer for operation in step.operations for view in operation.views):
            if is_of_tile(buffer, schedule):
                used[buffer] = (used.get(buffer, (moment, moment))[0], moment)
    scratch = plan(Lifetime(buffer, buffer.nbytes, True, first, last) for buffer, (first, last) in used.items())
    lanes, itemsize = schedule.lanes, schedule.program.dtype.itemsize
    fitting = TILE_BYTES // max(1, scratch.bytes_per_sample) // TILE_ROWS * TILE_ROWS
    tile = lanes if schedule.laned else max(TILE_ROWS, min(MOST_SAMPLES, fitting))
    schedule = replace(schedule, scratch=scratch, tile=tile, room=tile if schedule.laned else tile * 9 // 8)
    spaces = [winograd.workspace(step.operation, lanes, schedule.processor.registers) for step in schedule.steps]
    spaces += [workspace(lanes, itemsize, schedule.processor.registers)] if any(schedule.products) else []
    return replace(schedule, tile_bytes=schedule.workspace_offset + max(spaces, default=0) * itemsize)


def moments(schedule: Schedule) -> Iterator[tuple[int, Step]]:
    """The steps on tiles with numbers that grow where one is behind another: what threads do at the same time is one moment."""
    moment = 0
    for segment in schedule.segments:
        moment += 1
        for position, work in enumerate(segment.tiled):
            moment += schedule.parts > 1 and segment.barriers[1 + position]
            for step in work.steps:
                yield moment, step
                moment += schedule.parts == 1


def point_to_rows(schedule: Schedule) -> Schedule:
    """Find the input whose large samples are read where they lie in the caller's data set."""
    if schedule.laned:
        return schedule
    tiled = [o for segment in schedule.segments for step in segment.tiled_steps for o in step.operations]
    others = [operation for step in schedule.products for operation in step.operations]
    return replace(schedule, indexed=picked_input(tiled, others))
