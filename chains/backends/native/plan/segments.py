"""A program cut into segments: operations on samples, which may run tile by tile, then operations without samples.

Within a segment, operations on samples run before the others. The maps that follow a product are joined to it. A large
product has a segment for itself, which sees the whole batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from chains.backends.native.operations import record_of
from chains.backends.native.plan.execution_plan import ExecutionPlan, PlanStep, Segment, Work
from chains.lowering.tiling import Tiles, begun, only_continues
from chains.program.alias import conflict, overlap, same
from chains.program.loop import Loop
from chains.program.operations import Map, Operation, Pool, Total
from chains.program.view import Buffer

MAX_FUNCTION_STEPS = 16  # in one function: the time to compile a function grows faster than its length
MIN_SHARED_ELEMENTS = 1 << 14  # of vectors whose operations are worth calling other threads
MIN_TEAM_ELEMENTS = 1 << 8  # of vectors whose operations the threads of a team share


@dataclass
class _Draft(Tiles):
    """A segment under construction, with its steps."""

    tiled: list[PlanStep] = field(default_factory=list)
    product: PlanStep | None = None
    once: list[PlanStep] = field(default_factory=list)

    def add(self, step: PlanStep) -> None:
        """Add a step on samples."""
        self.tiled.append(_with_continued(step, self.sums))
        self.take(step.operation)

    def finished(self) -> Segment:
        steps = [*self.tiled, *([self.product] if self.product else [])]
        early, once = divided(self.once, [operation for step in steps for operation in step.operations])
        return Segment(early, _functions(self.tiled), self.product, works_of(once))


def cut_into_segments(plan: ExecutionPlan) -> ExecutionPlan:
    """Cut the program into as few segments as the order of its operations allows."""
    drafts = [_Draft()]
    for step in plan.steps:
        step = with_body(step, plan)
        draft, operation = drafts[-1], step.operation
        if not step.batched:
            draft.once.append(step)
            draft.done_once.append(operation)
            continue
        if plan.is_large(operation):
            drafts.append(_Draft(product=step))
            continue
        refused = draft.refuses(operation)
        last = draft.product or (draft.tiled[-1] if draft.tiled else None)
        fused = _fused(last, step, plan) if last and not refused else None
        if not fused:
            if refused or draft.product:
                drafts.append(_Draft())
            drafts[-1].add(step)
        elif draft.product:
            draft.product = fused
        else:
            draft.tiled[-1] = fused
            draft.read |= {view.buffer for view in operation.ins if not view.batched}
    segments = tuple(draft.finished() for draft in drafts)
    if plan.straight:  # a sample's numbers stay in registers within a function
        segments = tuple(replace(each, tiled=(Work(each.tiled_steps),)) for each in segments)
    return replace(plan, segments=segments, whole=_crossing(segments))


def with_body(step: PlanStep, plan: ExecutionPlan) -> PlanStep:
    """A loop with the steps of its body, where maps are joined to the product before them; any other step as it is."""
    body: list[PlanStep] = []
    for operation in step.operation.body if isinstance(step.operation, Loop) else ():
        inner = with_body(PlanStep(operation, origins=step.origins), plan)
        if body and (fused := _fused(body[-1], inner, plan)):
            body[-1] = fused
        else:
            body.append(inner)
    return replace(step, body=tuple(body)) if body else step


def _fused(product: PlanStep, step: PlanStep, plan: ExecutionPlan) -> PlanStep | None:
    """The product with a map or a pool that is applied to its results in registers; None if that is impossible."""
    candidate, operation = step.operation, product.operation
    if not isinstance(candidate, (Map, Pool)) or product.owner is not None or product.update:
        return None
    fuses = record_of(operation).fuses
    if not (fuses and fuses(operation, product.fused, candidate, plan.lanes, plan.processor.registers)):
        return None
    return replace(product, fused=(*product.fused, candidate), origins=(*product.origins, *step.origins))


def _with_continued(step: PlanStep, sums: Sequence[Total]) -> PlanStep:
    """The step, and each of its body, with whether it adds to one of these sums, or to one that the body has begun before."""
    known, body = list(sums), []
    for inner in step.body:
        body.append(_with_continued(inner, known))
        known += begun(known, inner.operation)
    return replace(step, body=tuple(body), continued=not body and only_continues(sums, step.operation))


def divided(done_once: Sequence[PlanStep], others: Sequence[Operation]) -> tuple[tuple[PlanStep, ...], tuple[PlanStep, ...]]:
    """The early steps done once, which do not depend on the earlier `others`, and the late steps, which run after these.

    Steps that threads share are never early. Nor are sums over processes, which all processes do in the program's order.
    """
    late, early, once = list(others), [], []
    for step in done_once:
        fixed = record_of(step.operation).in_order or _shared_length(step.operation) >= MIN_SHARED_ELEMENTS
        if fixed or any(conflict(each, step.operation) for each in late):
            late.append(step.operation)
            once.append(step)
        else:
            early.append(step)
    return tuple(early), tuple(once)


def leave_out_stores(plan: ExecutionPlan) -> ExecutionPlan:
    """Find the results of convolutions that nothing but the step itself reads: they stay in registers."""
    if not plan.laned:
        return plan
    uses = Counter(buffer for segment in plan.segments for step in segment.steps for buffer in _buffers(step))

    def transient(step: PlanStep) -> PlanStep:
        if not step.fused or not record_of(step.operation).of_images:
            return step
        written = [view.buffer for each in (step.operation, *step.fused) for view in each.outs]
        last = {view.buffer for view in step.fused[-1].outs}
        unread = {buffer for buffer in written if buffer.role == "scratch" and buffer not in last and uses[buffer] == 1}
        return replace(step, transient=frozenset(unread))

    return plan.changed_on_tiles(transient)


def _buffers(step: PlanStep) -> set[Buffer]:
    return {view.buffer for operation in step.operations for view in operation.views}


def works_of(once: Sequence[PlanStep]) -> tuple[Work, ...]:
    """The steps done once, in order, grouped into works. One thread does a work, or all share its vectors of one length."""
    works: list[Work] = []
    for step in once:
        length = _shared_length(step.operation)
        if works and works[-1].length == length and (not length or side_by_side(works[-1].steps, step)):
            works[-1] = replace(works[-1], steps=(*works[-1].steps, step))
        else:
            works.append(Work((step,), length=length))
    return tuple(works)


def _functions(tiled: Sequence[PlanStep]) -> tuple[Work, ...]:
    """Steps on a tile, grouped into functions: each has steps of one thread, and not too many."""
    groups = [(owner, tuple(steps)) for owner, steps in groupby(tiled, lambda step: step.owner)]
    return tuple(
        Work(steps[start : start + MAX_FUNCTION_STEPS], owner or 0)
        for owner, steps in groups
        for start in range(0, len(steps), MAX_FUNCTION_STEPS)
    )


def _shared_length(operation: Operation) -> int:
    """The length of the long vectors of a map; 0 for operations that are not worth sharing."""
    length = max(view.sample_size for view in operation.views)
    if not isinstance(operation, Map) or length < MIN_TEAM_ELEMENTS:
        return 0
    vectors = [view for view in operation.views if view.sample_size > 1]
    fits = all(view.sample_size == length and view.contiguous and view.dtype == vectors[0].dtype for view in vectors)
    aligned = all(same(out, view) or not overlap(out, view) for out in operation.outs for view in operation.ins)
    return length if fits and aligned else 0


def side_by_side(steps: Sequence[PlanStep], step: PlanStep) -> bool:
    """Whether element k of `step` depends only on elements k of `steps`."""
    before = [view for other in steps for view in other.operation.views]
    return all(same(a, b) or not overlap(a, b) for a in step.operation.views for b in before)


def _crossing(segments: Sequence[Segment]) -> frozenset[Buffer]:
    """The batched scratch buffers that must hold the whole batch: large products or several segments use them."""
    seen: dict[Buffer, int] = {}
    across: set[Buffer] = set()
    for number, segment in enumerate(segments):
        for step in (*segment.tiled_steps, *([segment.product] if segment.product else [])):
            for buffer in (view.buffer for operation in step.operations for view in operation.views):
                alone = step is not segment.product and seen.setdefault(buffer, number) == number
                if buffer.role == "scratch" and buffer.batched and not alone:
                    across.add(buffer)
    return frozenset(across)
