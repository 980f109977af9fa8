"""Barriers: the places where the threads of a team must meet.

A team runs many training steps together. Calling workers for each part of a step would take longer than a barrier. So all
threads go through the whole step: each does its part of shared work, the first thread does the rest, and they meet only where
one thread needs the results of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from chains.backends.native.plan.execution_plan import ExecutionPlan, Segment, SumRun, Work
from chains.backends.native.plan.fused_update import left_over
from chains.backends.native.plan.segments import MIN_TEAM_ELEMENTS, side_by_side
from chains.program.alias import conflict
from chains.program.view import Buffer


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


def place_barriers(plan: ExecutionPlan) -> ExecutionPlan:
    """Decide where the threads of a team meet: before which works."""
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
        position, rest = segment.fused_update
        once[position] = Work(left_over(rest, once[position].steps))
    return (Work(segment.early), *segment.tiled, *once)


def barriers(works: Sequence[Work], sums: Iterable[SumRun] = ()) -> tuple[bool, ...]:
    """For each of these works, done in order, whether all threads must meet before it.

    Each barrier comes as early as possible: directly after the last work whose results a later work needs. Before the works,
    each thread has added up its part of the long runs of `sums`, and the first thread the short runs.
    """
    runs = list(sums)
    met = 0  # the first work after the last barrier
    meet = [False] * len(works)
    for position, work in enumerate(works):
        waits = [each + 1 for each in range(met, position) if _depends(works[each], work)]
        if not waits and not any(meet) and not _adds_alike(runs, work):
            waits = [0]
        if waits:
            met = waits[-1]
            meet[met] = True
    return tuple(meet)


def read_by_others(plan: ExecutionPlan) -> frozenset[str]:
    """The inputs that threads other than the first read after the last barrier of a segment."""
    if plan.parts == 1:
        return frozenset()
    names: set[str] = set()
    for segment in plan.segments:
        last = max((position for position, meet in enumerate(segment.barriers) if meet), default=0)
        others = [work for work in works_in_turn(segment)[last:] if work.thread or work.length]
        read = [view.buffer for work in others for operation in work.operations for view in operation.ins]
        names |= {buffer.name for buffer in read if buffer.role == "input"}
    return frozenset(names)


def _adds_alike(runs: Sequence[SumRun], work: Work) -> bool:
    """Whether each thread needs only sums that it has added up itself."""
    views = [view for operation in work.operations for view in operation.views]
    for buffer, start, stop, _ in runs:
        touched = [view for view in views if view.buffer is buffer]
        if stop - start < MIN_TEAM_ELEMENTS:
            alike = not work.length and work.thread == 0
        else:
            alike = work.length > 0 and all((v.offset, v.sample_size) == (start, stop - start) for v in touched)
        if touched and not alike:
            return False
    return True


def _depends(a: Work, b: Work) -> bool:
    """Whether work `b` of one thread needs what another thread does in the earlier work `a`."""
    if not a.length and not b.length and a.thread == b.thread:
        return False
    if a.length and a.length == b.length and all(side_by_side(a.steps, step) for step in b.steps):
        return False
    return any(conflict(x, y) for x in a.operations for y in b.operations)
