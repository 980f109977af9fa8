"""The work of a team: threads that run many training steps together.

If a batch is one tile, the threads can share only the products. A product is cut along the rows of its weights: each thread
keeps its rows in its own cache, from the product to the gradient and the optimiser's step. If a product sums along these
rows, each thread has a separate sum, and the first thread adds the sums up in order.

Calling workers for each part of a step would take longer than a barrier. So all threads go through the whole step: each does
its part of shared work, the first thread does the rest, and a barrier is only where one thread needs the results of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import groupby
from operator import add
from typing import Any

from chains.backends.native.plan.execution_plan import ExecutionPlan, PlanStep, Segment, SumRun, Work
from chains.backends.native.plan.fused_update import left_over
from chains.backends.native.plan.segments import MIN_TEAM_ELEMENTS, side_by_side
from chains.expr import trace
from chains.program.alias import conflict
from chains.program.operations import Map, MatMul
from chains.program.view import Buffer, View

MIN_WEIGHT_ELEMENTS = 1 << 13  # of a partitioned product; also its multiply-adds per sample
FIRST_SHARE = 0.95  # of an even share, for the first thread: it has other work too


def partition_rows(plan: ExecutionPlan) -> ExecutionPlan:
    """Cut products into parts, at most one for each of `plan.parts` threads; each thread owns its part.

    Only programs that change a state are partitioned: a single run does not wait for a team.
    """
    operations = [step.operation for step in plan.steps]
    trains = any(view.buffer.role == "state" for operation in operations for view in operation.outs)
    large = any(map(plan.is_large, operations))
    steps: list[PlanStep] = []
    found = 1
    for step in plan.steps:
        parts = _parts(step, plan) if plan.parts > 1 and trains and not (plan.laned or large) else []
        found = max(found, len(parts))
        steps += parts or [step]
        if parts and parts[1].operation.outs[0].buffer is not step.operation.outs[0].buffer:
            steps.append(_sum(parts))
    return replace(plan, steps=_postponed(steps), parts=found)


def _postponed(steps: Sequence[PlanStep]) -> tuple[PlanStep, ...]:
    """The steps in a new order: steps that the parts of a product do not need come after them, since other threads wait."""
    result: list[PlanStep] = []
    pending: list[PlanStep] = []  # steps of the first thread since the last part
    for owned, group in groupby(steps, lambda step: step.owner is not None):
        if not owned:
            pending += group
            continue
        needed: list[PlanStep] = list(group)
        later: list[PlanStep] = []
        for step in reversed(pending):
            chosen = needed if any(conflict(step.operation, other.operation) for other in needed) else later
            chosen.insert(0, step)
        result += needed
        pending = later
    return (*result, *pending)


def _parts(step: PlanStep, plan: ExecutionPlan) -> list[PlanStep]:
    """The parts of a product, as many as are worth it; none for other operations."""
    product = step.operation
    if not isinstance(product, MatMul):
        return []
    (out,), (a, b) = product.outs, product.ins
    weights = b if out.batched else out
    if weights.batched or weights.ndim != 2 or weights.sample_size < MIN_WEIGHT_ELEMENTS:
        return []
    axis = 0 if weights.strides[0] >= weights.strides[1] else 1  # the axis that numbers the rows of the weights
    length, lanes = int(weights.shape[axis]), plan.lanes  # type: ignore[arg-type]
    counts = (count for count in range(plan.parts, 1, -1) if _bounds(length, count, lanes)[1] >= 2 * lanes)
    if (count := next(counts, None)) is None:
        return []
    bounds = _bounds(length, count, lanes)

    def part(thread: int) -> MatMul:
        start, stop = bounds[thread], bounds[thread + 1]
        if axis == 1:
            views = (out.slice(1, start, stop), a, b.slice(1, start, stop))
        elif out.batched:
            own = _own_sum(out, thread) if thread else out
            views = (own, a.slice(1, start, stop), b.slice(0, start, stop))
        else:
            views = (out.slice(0, start, stop), a.slice(0, start, stop), b)
        return replace(product, outs=views[:1], ins=views[1:], accumulate=product.accumulate and views[0].buffer is out.buffer)

    return [replace(step, operation=part(thread), owner=thread) for thread in range(count)]


def _bounds(length: int, parts: int, lanes: int) -> list[int]:
    """The bounds of the parts of an axis, in whole vectors."""
    first = FIRST_SHARE * length / parts
    bounds = [first + (length - first) * k / (parts - 1) for k in range(parts - 1)]
    return [0, *(int(bound) // lanes * lanes for bound in bounds), length]


def _own_sum(out: View, thread: int) -> View:
    """A separate sum for a thread instead of `out`."""
    name = f"{out} of thread {thread}"
    return replace(out, buffer=Buffer(name, "scratch", out.dtype, out.buffer.shape), name=name)


def _sum(parts: Sequence[PlanStep]) -> PlanStep:
    """The step of the first thread that adds up the sums of all threads."""
    views = tuple(part.operation.outs[0] for part in parts)

    def total(*numbers: Any) -> Any:
        return reduce(add, numbers)

    operation = Map(views[:1], views, trace(total, len(views)), label=parts[0].operation.label)
    return PlanStep(operation, origins=parts[0].origins)


def place_barriers(plan: ExecutionPlan) -> ExecutionPlan:
    """Decide before which works the threads of a team synchronise."""
    partitioned = plan.parts > 1
    return replace(
        plan,
        segments=tuple(
            replace(each, barriers=barriers(works_in_turn(each)) if partitioned else barriers(each.once, each.sums))
            for each in plan.segments
        ),
    )


def works_in_turn(segment: Segment) -> tuple[Work, ...]:
    """The works of a segment in order, where products are partitioned: `early`, then `tiled`, then `once`."""
    once = list(segment.once)
    if segment.fused_update:
        position, rest, _ = segment.fused_update
        once[position] = Work(left_over(rest, once[position].steps))
    return (Work(segment.early), *segment.tiled, *once)


def barriers(works: Sequence[Work], sums: Iterable[SumRun] = ()) -> tuple[bool, ...]:
    """For each of these works, done in order, whether a barrier must be before it.

    Each barrier comes as early as possible: directly after the last work whose results a later work needs. Before the works,
    each thread has added up its part of the long runs of `sums`, and the first thread the short runs.
    """
    runs = list(sums)
    begin = 0  # the first work after the last barrier
    placed = [False] * len(works)
    for position, work in enumerate(works):
        waits = [each + 1 for each in range(begin, position) if _depends(works[each], work)]
        if not waits and not any(placed) and not _adds_own(runs, work):
            waits = [0]
        if waits:
            begin = waits[-1]
            placed[begin] = True
    return tuple(placed)


def read_by_others(plan: ExecutionPlan) -> frozenset[str]:
    """The inputs that threads other than the first read after the last barrier of a segment."""
    if plan.parts == 1:
        return frozenset()
    names: set[str] = set()
    for segment in plan.segments:
        last = max((position for position, barrier in enumerate(segment.barriers) if barrier), default=0)
        others = [work for work in works_in_turn(segment)[last:] if work.thread or work.length]
        read = [view.buffer for work in others for operation in work.operations for view in operation.ins]
        names |= {buffer.name for buffer in read if buffer.role == "input"}
    return frozenset(names)


def _adds_own(runs: Sequence[SumRun], work: Work) -> bool:
    """Whether each thread needs only sums that it has added up itself."""
    views = [view for operation in work.operations for view in operation.views]
    for buffer, start, stop, _ in runs:
        touched = [view for view in views if view.buffer is buffer]
        if stop - start < MIN_TEAM_ELEMENTS:
            own = not work.length and work.thread == 0
        else:
            own = work.length > 0 and all((v.offset, v.sample_size) == (start, stop - start) for v in touched)
        if touched and not own:
            return False
    return True


def _depends(a: Work, b: Work) -> bool:
    """Whether work `b` of one thread needs what another thread does in the earlier work `a`."""
    if not a.length and not b.length and a.thread == b.thread:
        return False
    if a.length and a.length == b.length and all(side_by_side(a.steps, step) for step in b.steps):
        return False
    return any(conflict(x, y) for x in a.operations for y in b.operations)
