"""Checks that a plan means the same as its program. They must hold after every pass.

Each check looks at the plan alone, not at the pass that made it. Tests call `verify` after every pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np

from chains.backends.native.kernels import winograd
from chains.backends.native.operations import Relayout
from chains.backends.native.plan.execution_plan import ExecutionPlan, PlanStep, Segment, Work
from chains.backends.native.plan.fused_update import left_over
from chains.backends.native.plan.one_sample import KINDS
from chains.backends.native.plan.segments import MIN_TEAM_ELEMENTS
from chains.backends.native.plan.teams import works_in_turn
from chains.backends.native.plan.tiles import is_of_tile, moments
from chains.program.alias import conflict, overlap, same
from chains.program.loop import Loop
from chains.program.operations import Convolve, ConvolveInput, Map, MatMul, Operation
from chains.program.scratch import ALIGNMENT
from chains.program.view import Batch, Buffer, View

CALLERS = ("input", "state", "constant")  # the roles of buffers that have contents before the program runs
Problems = Iterator[str]


class PlanError(AssertionError):
    """A plan does not mean the same as its program."""


def verify(plan: ExecutionPlan) -> None:
    """Run all checks. Raises PlanError for the first problem, with the name of the check."""
    for check in CHECKS:
        for problem in check(plan):
            raise PlanError(f"{check.__name__.replace('_', ' ')}: {problem}")


# Events, in order


class Event(NamedTuple):
    """The reads, then the writes, of one run of an operation that comes from position `origin` of the program."""

    origin: int
    operation: Operation
    reads: tuple[View, ...]
    writes: tuple[View, ...]


def events(plan: ExecutionPlan, one_tile: bool) -> Iterator[Event]:
    """The events of a run on one thread. `one_tile`: one tile holds the whole batch."""
    if not plan.segments:
        for step in plan.steps:
            yield from _events(step)
    for segment in plan.segments:
        for step in segment.early:
            yield from _events(step)
        for step in segment.tiled_steps:
            for each in step.all:
                if each.packed:
                    yield Event(step.origins[0], each.operation, (each.packed.source,), (each.packed.copy,))
        for step in segment.tiled_steps:
            yield from _events(step, one_tile)
        if segment.product:
            yield from _events(segment.product)
        for position, work in enumerate(segment.once):
            update = segment.fused_update
            rest = left_over(update.rest, work.steps) if one_tile and update and update.work == position else work.steps
            for step in rest:
                yield from _events(step)


def _events(step: PlanStep, updates: bool = True) -> Iterator[Event]:
    operation, copied = step.operation, step.packed
    reads = tuple(copied.copy if copied and view is copied.source else view for view in operation.reads)
    if updates and step.alone:
        yield Event(step.origins[0], operation, reads, ())
        for map in step.alone:
            given = {view.buffer for view in operation.ins}
            reads = tuple(view for view in map.operation.reads if view.buffer not in given)
            yield Event(map.origins[0], map.operation, reads, map.operation.writes)
        return
    fused, update = step.fused, step.update if updates else ()
    yield Event(step.origins[0], operation, reads, () if update else operation.writes)
    for origin, each in zip(step.origins[1:], (*fused, *update), strict=len(update) == len(step.update)):
        reads = tuple(view for view in each.reads if not (update and view in operation.outs))  # results in registers
        yield Event(origin, each, reads, each.writes)


def _runs(plan: ExecutionPlan) -> list[bool]:
    """The ways to run a plan: the values of `one_tile` for `events`."""
    updates = any(segment.fused_update for segment in plan.segments)
    return [True] if plan.parts > 1 and plan.segments else [False, True] if updates else [False]


def _elements(memory: dict[Buffer, np.ndarray], view: View, plan: ExecutionPlan) -> np.ndarray:
    """The elements of a view in a buffer's memory of bytes, for one sample or, in lanes, for one vector of samples."""
    buffer = view.buffer
    samples = plan.lanes if buffer in plan.laned else 1
    if buffer not in memory:
        memory[buffer] = np.full(buffer.size * samples, buffer.role in CALLERS, np.uint8)
    if samples == 1 and view.contiguous:
        return memory[buffer][view.offset : view.offset + view.sample_size]
    shape = [extent.per_sample * samples if isinstance(extent, Batch) else extent for extent in view.shape]
    return np.lib.stride_tricks.as_strided(memory[buffer][view.offset :], shape, view.strides)


def _all_steps(plan: ExecutionPlan) -> Iterator[PlanStep]:
    """The steps of all segments, and the steps inside loops."""
    return (each for segment in plan.segments for step in segment.steps for each in step.all)


# Checks


def views_lie_within_their_buffers(plan: ExecutionPlan) -> Problems:
    steps = [*plan.steps, *_all_steps(plan)]
    views = [view for step in steps for operation in step.operations for view in operation.views]
    views += [view for step in steps for view in step.packed or ()]
    products = [step.fused_product for step in steps if step.fused_product]
    views += [view for product in products for view in (product.out, product.a, product.b)]
    for view in dict.fromkeys(views):
        samples = plan.lanes if view.buffer in plan.laned else 1
        axes = list(zip(view.shape, view.strides, strict=True))
        rows = [(extent.per_sample * stride, stride) for extent, stride in axes if isinstance(extent, Batch)]
        wanted = 1 if samples > 1 else view.buffer.size
        if any((row if samples == 1 else stride) != wanted for row, stride in rows):
            yield f"`{view.text}` goes in strides {view.strides} through samples of {view.buffer.size} elements"
        lengths = [extent.per_sample * samples if isinstance(extent, Batch) else extent for extent in view.shape]
        last = view.offset + sum((length - 1) * stride for length, stride in zip(lengths, view.strides, strict=True))
        if view.offset < 0 or min(view.strides, default=0) < 0 or last >= view.buffer.size * samples:
            yield f"`{view.text}` reaches from {view.offset} to {last} in a buffer of {view.buffer.size * samples} elements"


def reads_follow_writes(plan: ExecutionPlan) -> Problems:
    for one_tile in _runs(plan):
        written: dict[Buffer, np.ndarray] = {}
        for event in events(plan, one_tile):
            if isinstance(event.operation, Relayout):  # copies what exists; the rest may be written later, in either layout
                out, source = (_elements(written, view, plan) for view in (*event.writes, *event.reads))
                out[...] = source[:1]
                continue
            for view in event.reads:
                if not _elements(written, view, plan).all():
                    yield f"`{event.operation}` reads `{view.text}` before all of it is written"
            for view in event.writes:
                _elements(written, view, plan)[...] = True


def order_of_conflicts_is_kept(plan: ExecutionPlan) -> Problems:
    for one_tile in _runs(plan):
        before: dict[Buffer, list[Event]] = {}
        for event in events(plan, one_tile):
            for buffer in dict.fromkeys(view.buffer for view in (*event.reads, *event.writes)):
                for other in before.setdefault(buffer, []):
                    if other.origin > event.origin and _in_conflict(other, event):
                        yield f"`{other.operation}` comes before `{event.operation}`, which the program has first"
                before[buffer].append(event)


def _in_conflict(a: Event, b: Event) -> bool:
    pairs = [(x, y) for x in a.writes for y in (*b.reads, *b.writes)] + [(x, y) for x in a.reads for y in b.writes]
    return any(overlap(x, y) for x, y in pairs)


def results_are_complete(plan: ExecutionPlan) -> Problems:
    """All results in the caller's buffers are written, and buffers changed in place are changed once."""
    for one_tile in _runs(plan):
        counts: dict[int, dict[Buffer, np.ndarray]] = {}
        for event in events(plan, one_tile):
            for view in event.writes:
                if view.buffer.role in ("state", "output"):
                    memory = counts.setdefault(event.origin, {})
                    memory.setdefault(view.buffer, np.zeros(view.buffer.size, np.uint8))
                    _elements(memory, view, plan)[...] += 1
        for origin, operation in enumerate(plan.program.operations):
            for view in operation.writes:
                if view.buffer.role in ("state", "output"):
                    memory = counts.get(origin, {})
                    memory.setdefault(view.buffer, np.zeros(view.buffer.size, np.uint8))
                    found = _elements(memory, view, plan)
                    if found.min() < 1:
                        yield f"`{operation}` is not done to all of `{view.text}`"
                    if isinstance(operation, Map) and view in operation.ins and found.max() > 1:
                        yield f"`{operation}` is done more than once to some of `{view.text}`"


def tiles_wait_for_nothing(plan: ExecutionPlan) -> Problems:
    """Steps on tiles are on samples. They need no sum over the batch, and no step done once in their segment."""
    for segment in plan.segments:
        tiled = [operation for step in segment.tiled_steps for operation in (step.operation, *step.fused)]
        for step in (*segment.early, *(step for work in segment.once for step in work.steps)):
            if step.batched:
                yield f"`{step.operation}` is on samples, but done once"
        for operation in tiled:
            if not any(view.batched for view in operation.views):
                yield f"`{operation}` is on no samples, but done on every tile"
        sums = [operation for operation in tiled if operation.sums_over_batch]
        for a in sums:
            for b in (operation for operation in tiled if operation is not a):
                if any(total.view.buffer is view.buffer for total in a.totals for view in b.ins):
                    yield f"`{b}` reads from the buffer in which `{a}` sums over all tiles"
        before: list[View] = []
        for step, total in (pair for each in segment.tiled_steps for pair in each.sums()):
            begun = any(overlap(total, other) for other in before)
            before.append(total)
            if begun != step.continued:
                what = "begins a sum that is begun before it" if begun else "adds to a sum that no step has begun"
                yield f"`{step.operation}` {what}"
        late = [*tiled, *(segment.product.operations if segment.product else ())]
        for early in (operation for step in segment.early for operation in step.operations):
            if any(conflict(early, operation) for operation in late):
                yield f"`{early}` is early, but not apart from the tiles"


def tiles_share_nothing(plan: ExecutionPlan) -> Problems:
    """Buffers that several segments or a large product use hold the whole batch."""
    users: dict[Buffer, int] = {}
    for number, segment in enumerate(plan.segments):
        products = segment.product.operations if segment.product else ()
        for operation in (*(o for step in segment.tiled_steps for o in step.operations), *products):
            for buffer in (view.buffer for view in operation.views if is_of_tile(view.buffer, plan)):
                if operation in products or users.setdefault(buffer, number) != number:
                    yield f"`{buffer.name}` is in a tile, but `{operation}` of segment {number} needs the whole batch"


def owners_are_threads(plan: ExecutionPlan) -> Problems:
    for step in (*plan.steps, *(step for segment in plan.segments for step in segment.steps)):
        if step.owner is not None and (plan.parts == 1 or not 0 <= step.owner < plan.parts):
            yield f"thread {step.owner} owns `{step.operation}`, of {plan.parts}"
    for segment in plan.segments:
        for work in segment.tiled:
            if any((step.owner or 0) != work.thread for step in work.steps):
                yield f"a function of thread {work.thread} has steps of others"


def packed_weights_fit(plan: ExecutionPlan) -> Problems:
    places: set[Buffer] = set()
    for step in _all_steps(plan):
        if not step.packed:
            continue
        source, copy = step.packed
        if copy.buffer in places:
            yield f"`{copy}` is packed twice"
        places.add(copy.buffer)
        transformed = isinstance(step.operation, (Convolve, ConvolveInput)) and winograd.suits(step.operation)
        size = winograd.packed_size(step.operation) if transformed else source.sample_size
        if source is not step.operation.ins[1] or source.batched or copy.sample_size != size or copy.dtype != source.dtype:
            yield f"`{copy.text}` is no copy of the weights of `{step.operation}`"
        rows = copy.strides[0] if isinstance(step.operation, MatMul) else 0
        if rows % plan.lanes or (rows and rows < int(source.shape[1])):  # type: ignore[arg-type]
            yield f"`{copy.text}` has rows of {rows}, which are no whole vectors of {plan.lanes}"


def products_are_described_as_they_are(plan: ExecutionPlan) -> Problems:
    steps = list(_all_steps(plan))
    for step in steps if any(step.fused_product for step in steps) else ():
        operation, product = step.operation, step.fused_product
        if not isinstance(operation, MatMul) or not product:
            if product or isinstance(operation, MatMul):
                yield f"`{operation}` has {'a' if product else 'no'} description as a product"
            continue
        weights = step.packed.copy if step.packed else operation.ins[1]
        found = product.out, product.a, product.b, product.maps
        flags = product.accumulate, product.continued, product.transient, product.padded
        wanted = operation.outs[0], operation.ins[0], weights, (*step.fused, *step.update)
        if found != wanted or flags != (operation.accumulate, step.continued, bool(step.update), bool(step.packed)):
            yield f"`{operation}` is described as {product}"


def loops_have_their_steps(plan: ExecutionPlan) -> Problems:
    """The steps of a loop are its operations, in order."""
    for step in _all_steps(plan):
        body = step.operation.body if isinstance(step.operation, Loop) else ()
        if [operation for inner in step.body for operation in inner.operations] != list(body):
            yield f"`{step.operation}` of {step.operation.label} has the steps {[str(inner.operation) for inner in step.body]}"


def only_loops_have_code_for_one_sample(plan: ExecutionPlan) -> Problems:
    """And only those whose kernels store by the frame's function, which knows what it has stored."""
    for step in _all_steps(plan):
        inner = [each.operation for each in step.all][1:]
        if step.single and not (inner and all(isinstance(operation, KINDS) for operation in inner)):
            yield f"`{step.operation}` of {step.operation.label} has code for one sample"


def sums_are_listed(plan: ExecutionPlan) -> Problems:
    listed_yet = plan.scratch is not None or any(segment.sums for segment in plan.segments)
    for segment in plan.segments if listed_yet else ():
        for operation in (operation for step in segment.tiled_steps for operation in step.operations):
            for view, kind, _ in operation.totals:
                runs = [run for run in segment.sums if (run.buffer, run.kind) == (view.buffer, kind)]
                if not all(any(run.start <= start and stop <= run.stop for run in runs) for start, stop in view.runs):
                    yield f"no sum over threads is listed for `{operation}`"


def barriers_keep_threads_apart(plan: ExecutionPlan) -> Problems:
    """Between two barriers, no thread needs results of another."""
    for segment in plan.segments if any(segment.barriers for segment in plan.segments) else ():
        partitioned = plan.parts > 1
        works = works_in_turn(segment) if partitioned else segment.once
        if len(segment.barriers) != len(works):
            yield f"there are {len(works)} works, but barriers for {len(segment.barriers)}"
            return
        intervals = [0]
        for barrier in segment.barriers:
            intervals.append(intervals[-1] + barrier)
        for (i, a), (j, b) in combinations(zip(intervals[1:], works, strict=True), 2):
            if i == j and not _independent(a, b):
                yield f"no barrier is between `{a.steps[0].operation}` and `{b.steps[0].operation}`"
        for interval, work in zip(intervals[1:], works, strict=True):
            if not partitioned and not interval:
                yield from (f"`{o}` reads sums before all are added" for o in work.operations if not _added(segment, work))


def _independent(a: Work, b: Work) -> bool:
    if not a.length and not b.length and a.thread == b.thread:
        return True
    views = [[view for operation in work.operations for view in operation.views] for work in (a, b)]
    if a.length and a.length == b.length and all(same(x, y) or not overlap(x, y) for x in views[0] for y in views[1]):
        return True
    return not any(conflict(x, y) for x in a.operations for y in b.operations)


def _added(segment: Segment, work: Work) -> bool:
    """Whether each thread reads only sums that it has added itself: its part of long runs; the first thread, short runs."""
    for run in segment.sums:
        for view in (view for operation in work.operations for view in operation.views if view.buffer is run.buffer):
            long = run.stop - run.start >= MIN_TEAM_ELEMENTS
            whole = (view.offset, view.offset + view.sample_size) == (run.start, run.stop)
            if not (work.length and whole if long else not work.length):
                return False
    return True


def tables_hold_all_buffers(plan: ExecutionPlan) -> Problems:
    if not plan.table:
        return
    steps = list(_all_steps(plan))
    used = [view.buffer for step in steps for operation in step.operations for view in operation.views]
    used += [step.packed.copy.buffer for step in steps if step.packed]
    for buffer in dict.fromkeys((*plan.program.buffers.values(), *used, *plan.summed)):
        if (buffer in plan.positions) == is_of_tile(buffer, plan) and buffer.role == "scratch":
            yield f"`{buffer.name}` has no place, or two"
        if buffer.role != "scratch" and buffer not in plan.positions:
            yield f"`{buffer.name}` is the caller's, but not in the table"
    if len(set(plan.table)) != len(plan.table):
        yield "a buffer is in the table twice"
    if plan.indexed is not None and plan.indexed not in plan.positions:
        yield f"`{plan.indexed.name}` is read by rows, but not in the table"


def tile_scratch_is_apart(plan: ExecutionPlan) -> Problems:
    """Buffers of a tile that are in use at the same time share no byte."""
    if plan.scratch is None:
        return
    samples = plan.room
    lives: dict[Buffer, list[int]] = {}
    for moment, step in moments(plan):
        for view in step.views:
            if is_of_tile(view.buffer, plan):
                lives.setdefault(view.buffer, []).append(moment)
    places = {}
    for buffer in lives:
        offset = plan.offset(buffer)
        if offset is None or offset % ALIGNMENT:
            yield f"`{buffer.name}` has the place {offset} in its tile"
            return
        places[buffer] = range(offset, offset + buffer.nbytes * samples)
        if places[buffer].stop > plan.workspace_offset or plan.workspace_offset > plan.tile_bytes:
            yield f"`{buffer.name}` ends at {places[buffer].stop}, after the end of its tile's scratch memory"
    ordered = sorted(places, key=lambda buffer: places[buffer].start)
    for a, b in combinations(ordered, 2):
        together = lives[a][0] <= lives[b][-1] and lives[b][0] <= lives[a][-1]
        if together and places[b].start < places[a].stop:
            yield f"`{a.name}` and `{b.name}` are in use at one time and share bytes {places[b].start} to {places[a].stop}"
    if not 0 < plan.tile <= plan.room:
        yield f"a tile has {plan.tile} samples, at most {plan.room}"


def what_is_not_stored_is_not_read(plan: ExecutionPlan) -> Problems:
    """No other step has a buffer that a step keeps in registers, and the step writes all of it before it reads it."""
    steps = list(_all_steps(plan))
    for step in steps:
        for buffer in step.transient:
            if any(view.buffer is buffer for other in steps if other is not step for view in other.views):
                yield f"`{buffer.name}` is not stored, but used by other steps than `{step.operation}`"
            if buffer.role != "scratch" or any(view.buffer is buffer for view in step.operation.ins):
                yield f"`{step.operation}` reads `{buffer.name}`, or its caller does, but it is not stored"


CHECKS: tuple[Callable[[ExecutionPlan], Problems], ...] = (
    views_lie_within_their_buffers,
    tiles_wait_for_nothing,
    tiles_share_nothing,
    reads_follow_writes,
    order_of_conflicts_is_kept,
    results_are_complete,
    owners_are_threads,
    packed_weights_fit,
    products_are_described_as_they_are,
    loops_have_their_steps,
    only_loops_have_code_for_one_sample,
    sums_are_listed,
    barriers_keep_threads_apart,
    tables_hold_all_buffers,
    tile_scratch_is_apart,
    what_is_not_stored_is_not_read,
)
