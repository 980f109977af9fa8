"""A program cut into segments: operations on samples, which may run tile by tile, then operations without samples.

Within a segment, operations on samples run before the others. The maps that follow a product are joined to it. A large
product has a segment for itself, which sees the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from chains.backends.native.kernels.convolve import fusible_image_map
from chains.backends.native.kernels.products import fusible
from chains.backends.native.plan.execution_plan import ExecutionPlan, PlanStep, Segment, Work
from chains.backends.tiling import meets_sums, needs_results
from chains.program.alias import conflict, overlap, same
from chains.program.loop import Loop
from chains.program.operations import AllReduce, Convolve, ConvolveInput, Map, MatMul, Operation, Total
from chains.program.view import Buffer, View

MAX_FUNCTION_STEPS = 16  # in one function: the time to compile a function grows faster than its length
MIN_SHARED_ELEMENTS = 1 << 14  # of vectors whose operations are worth calling other threads
MIN_TEAM_ELEMENTS = 1 << 8  # of vectors whose operations the threads of a team share


@dataclass
class _Draft:
    """A segment under construction, with the lists that `needs_results` takes, and the buffers that tiles read or sum into."""

    tiled: list[PlanStep] = field(default_factory=list)
    product: PlanStep | None = None
    once: list[PlanStep] = field(default_factory=list)
    sums: list[Total] = field(default_factory=list)
    done_once: list[Operation] = field(default_factory=list)
    read: set[Buffer] = field(default_factory=set)
    summed: set[Buffer] = field(default_factory=set)

    def take(self, step: PlanStep) -> None:
        """Add a step on samples."""
        step = _with_continued(step, self.sums)
        self.tiled.append(step)
        self.read |= _buffers(step.operation.ins)
        self.summed |= {total.view.buffer for total in step.operation.totals}
        self.sums += _begun(self.sums, step.operation)

    def refuses(self, operation: Operation) -> bool:
        """Whether an operation on samples cannot go through the tiles together with these steps."""
        views = [total.view for total in self.sums]
        if needs_results(views, self.done_once, operation):
            return True
        joins = all(_continues(self.sums, total) or not meets_sums(views, total.view) for total in operation.totals)
        # Tiles cannot sum into a buffer and read another part of it: a thread has only its own sums of that buffer.
        mixed = operation.sums_over_batch and _buffers(operation.outs) & self.read
        return bool(not joins or mixed or _buffers(operation.ins) & self.summed)

    def finished(self) -> Segment:
        steps = [*self.tiled, *([self.product] if self.product else [])]
        early, once = divided(self.once, [operation for step in steps for operation in step.operations])
        return Segment(early, _functions(self.tiled), self.product, works_of(once))


def cut_into_segments(plan: ExecutionPlan) -> ExecutionPlan:
    """Cut the program into as few segments as the order of its operations allows."""
    drafts = [_Draft()]
    for step in plan.steps:
        step = with_body(step, plan.lanes)
        draft, operation = drafts[-1], step.operation
        if not step.batched:
            draft.once.append(step)
            draft.done_once.append(operation)
        elif plan.is_large(operation):
            drafts.append(_Draft(product=step))
        elif draft.refuses(operation):
            drafts.append(_Draft())
            drafts[-1].take(step)
        elif draft.product:
            if fused := _fused(draft.product, step, plan.lanes):
                draft.product = fused
            else:
                drafts.append(_Draft())
                drafts[-1].take(step)
        elif draft.tiled and (fused := _fused(draft.tiled[-1], step, plan.lanes)):
            draft.tiled[-1] = fused
            draft.read |= _buffers(operation.ins)
        else:
            draft.take(step)
    segments = tuple(draft.finished() for draft in drafts)
    return replace(plan, segments=segments, whole=_crossing(segments))


def with_body(step: PlanStep, lanes: int) -> PlanStep:
    """A loop with the steps of its body, where maps are joined to the product before them; any other step as it is."""
    body: list[PlanStep] = []
    for operation in step.operation.body if isinstance(step.operation, Loop) else ():
        inner = with_body(PlanStep(operation, origins=step.origins), lanes)
        if body and (fused := _fused(body[-1], inner, lanes)):
            body[-1] = fused
        else:
            body.append(inner)
    return replace(step, body=tuple(body)) if body else step


def _fused(product: PlanStep, step: PlanStep, lanes: int) -> PlanStep | None:
    """The product with a map that is applied to its results in registers; None if that is impossible."""
    candidate, operation = step.operation, product.operation
    if not isinstance(candidate, Map) or product.owner is not None or product.update:
        return None
    if isinstance(operation, MatMul):
        fits = fusible(operation, product.fused, candidate, lanes)
    else:
        fits = isinstance(operation, (Convolve, ConvolveInput)) and fusible_image_map(operation, product.fused, candidate)
    if not fits:
        return None
    return replace(product, fused=(*product.fused, candidate), origins=(*product.origins, *step.origins))


def _buffers(views: Iterable[View]) -> set[Buffer]:
    """The buffers of the views without samples."""
    return {view.buffer for view in views if not view.batched}


def _with_continued(step: PlanStep, sums: Sequence[Total]) -> PlanStep:
    """The step, and each of its body, with whether it adds to one of these sums, or to one that the body has begun before."""
    begun, body = list(sums), []
    for inner in step.body:
        body.append(_with_continued(inner, begun))
        begun += _begun(begun, inner.operation)
    totals = step.operation.totals
    continued = not body and bool(totals) and all(_continues(sums, total) for total in totals)
    return replace(step, body=tuple(body), continued=continued)


def _begun(sums: Sequence[Total], operation: Operation) -> list[Total]:
    """The sums that an operation begins, and does not add to."""
    found: list[Total] = []
    for total in operation.totals:
        found += [] if _continues([*sums, *found], total) else [total]
    return found


def _continues(sums: Sequence[Total], total: Total) -> bool:
    """Whether a sum over the samples is added to one of these. Its operation runs after that of the other in each tile."""
    if not total.accumulates or total.over_batch != "sum":
        return False
    met = [other for other in sums if overlap(total.view, other.view)]
    return all(other.over_batch == "sum" for other in met) and any(_covers(other.view, total.view) for other in met)


def _covers(a: View, b: View) -> bool:
    """Whether view `a` has all elements of view `b`; both without samples."""
    within = all(any(start <= first and last <= stop for start, stop in a.runs) for first, last in b.runs)
    return a == b or (a.loop_strides == b.loop_strides and within)


def divided(done_once: Sequence[PlanStep], others: Sequence[Operation]) -> tuple[tuple[PlanStep, ...], tuple[PlanStep, ...]]:
    """The early steps done once, which do not depend on the earlier `others`, and the late steps, which run after these.

    Steps that threads share are never early. Nor are sums over processes, which all processes do in the program's order.
    """
    late, early, once = list(others), [], []
    for step in done_once:
        fixed = isinstance(step.operation, AllReduce) or _shared_length(step.operation) >= MIN_SHARED_ELEMENTS
        if fixed or any(conflict(each, step.operation) for each in late):
            late.append(step.operation)
            once.append(step)
        else:
            early.append(step)
    return tuple(early), tuple(once)


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
