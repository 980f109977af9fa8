"""Optimiser steps fused into products: blocks of the gradient update the weights while they are in registers.

An optimiser's step goes once through the whole gradient and all parameters, after the tiles. If one tile holds the batch,
the product that computes a weight gradient can update the weights block by block. The gradient is then neither stored nor
read again. Elements that no product computes, such as gradients of biases, are updated afterwards.

This is done for plain gradient descent, where results take the registers of operands. Optimisers with moments would need
several registers for each number of a block. Large products (`gemm.py`) see the whole batch at any batch size, so their
updates are always fused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from chains.backends.native.kernels.products import FusedProduct
from chains.backends.native.plan.execution_plan import ExecutionPlan, FusedUpdate, PlanStep, Segment, Work
from chains.backends.native.plan.segments import MIN_SHARED_ELEMENTS, divided, works_of
from chains.program.alias import conflict, overlap
from chains.program.operations import Map, MatMul, Operation
from chains.program.view import View

MIN_ELEMENTS = 1024  # of a product that is worth an update; such products together should give half of the gradient


@dataclass(frozen=True)
class _Update:
    """The work that goes through the whole gradient, with its position in `Segment.once`."""

    work: int
    steps: tuple[PlanStep, ...]  # all of them maps
    gradient: View

    @property
    def maps(self) -> list[Map]:
        return [step.operation for step in self.steps if isinstance(step.operation, Map)]

    def on(self, step: PlanStep) -> PlanStep:
        """The product, with this update of the elements that it computes."""
        out = step.operation.outs[0]

        def slice(view: View) -> View:
            if view.sample_size == 1:
                return view
            return replace(view, shape=out.shape, strides=out.strides, offset=view.offset + out.offset - self.gradient.offset)

        maps = tuple(Map(tuple(map(slice, each.outs)), tuple(map(slice, each.ins)), each.formula) for each in self.maps)
        return replace(step, update=maps, origins=(*step.origins, *(each.origins[0] for each in self.steps)))

    def rest(self, done: Sequence[View]) -> tuple[tuple[int, int], ...] | None:
        """The runs of gradient elements that are not in `done`; None if they are half of the gradient or more."""
        runs, begin = [], 0
        for out in sorted(done, key=lambda out: out.offset):
            stop = out.offset - self.gradient.offset
            runs += [(begin, stop)] if stop > begin else []
            begin = stop + out.sample_size
        size = self.gradient.sample_size
        runs += [(begin, size)] if begin < size else []
        return tuple(runs) if 2 * sum(stop - start for start, stop in runs) < size else None


def fuse_update_into_large_products(plan: ExecutionPlan) -> ExecutionPlan:
    """Fuse an optimiser's step into large products, and leave the rest of the step.

    If later steps read the weights that a product updates, the product moves after these steps, if the order allows.
    """
    steps = plan.steps
    if not any(isinstance(step.operation, MatMul) and plan.is_large(step.operation) for step in steps):
        return plan
    end = 1 + max(position for position, step in enumerate(steps) if step.batched)
    body = list(steps[:end])
    early, once = divided(steps[end:], [step.operation for step in body])
    works = list(works_of(once))
    update = _find([step.operation for step in body], works, steps)
    if update is None:
        return plan
    done = []
    for product in [step for step in body if _gives_part(step, update.gradient, body) and plan.is_large(step.operation)]:
        changed = update.on(product)
        if _postpone(body, product, changed):
            done.append(product.operation.outs[0])
    rest = update.rest(done)
    if rest is None:
        return plan
    works[update.work] = Work(left_over(rest, update.steps))
    return replace(plan, steps=(*early, *body, *(step for work in works for step in work.steps)))


def fuse_update_into_tiles(plan: ExecutionPlan) -> ExecutionPlan:
    """Fuse an optimiser's step into the products of tiles, for runs where one tile is the whole batch."""
    return replace(plan, segments=tuple(_with_update(segment, plan) for segment in plan.segments))


def _with_update(segment: Segment, plan: ExecutionPlan) -> Segment:
    update = _find([o for step in segment.tiled_steps for o in step.operations], segment.once, plan.steps)
    if update is None:
        return segment
    steps = tuple(_updated(position, segment, update, plan.lanes) for position in range(len(segment.tiled_steps)))
    rest = update.rest([step.operation.outs[0] for step in steps if step.update])
    return segment if rest is None else replace(segment.with_tiled(steps), fused_update=FusedUpdate(update.work, rest))


def _find(on_samples: Sequence[Operation], once: Sequence[Work], steps: Sequence[PlanStep]) -> _Update | None:
    """The first work that goes through the gradient, if it conflicts with no work before it."""
    before: list[Operation] = []
    for position, work in enumerate(once):
        maps = work.operations
        gradient = _gradient(on_samples, maps, steps) if work.length >= MIN_SHARED_ELEMENTS else None
        if gradient is not None and not any(conflict(a, b) for a in before for b in maps):
            return _Update(position, work.steps, gradient)
        before += maps
    return None


def _gradient(on_samples: Sequence[Operation], maps: Sequence[Operation], steps: Sequence[PlanStep]) -> View | None:
    """The vector of sums that these maps read to change one other vector.

    None if another operation uses the sums, or if operations on samples write any other operand of the maps.
    """
    sums = [operation for operation in on_samples if operation.over_batch == "sum"]
    summed = {total.view.buffer for operation in sums for total in operation.totals}
    found = {view for operation in maps for view in operation.ins if view.buffer in summed}
    if len(found) != 1:
        return None
    (gradient,) = found

    def users(operations: Sequence[Operation]) -> int:
        return sum(any(view.buffer is gradient.buffer for view in each.views) for each in operations)

    others = [view for operation in maps for view in operation.views if view.buffer is not gradient.buffer]
    changed = {view for operation in maps for view in operation.outs if view.buffer is not gradient.buffer}
    written = [view for operation in on_samples for view in operation.outs if not view.batched]
    alone = users([step.operation for step in steps]) == users([*sums, *maps])
    apart = not any(overlap(a, b) for a in others for b in written)
    return gradient if gradient.buffer.role == "scratch" and len(changed) == 1 and alone and apart else None


def _postpone(body: list[PlanStep], product: PlanStep, changed: PlanStep) -> bool:
    """Replace a product by one with an update, after the last step that uses what the update writes.

    Returns whether the product may move there.
    """
    begin = next(position for position, step in enumerate(body) if step is product)
    written = [view for each in changed.update for view in each.outs]
    end = begin
    for position, step in enumerate(body[begin + 1 :], begin + 1):
        used = any(overlap(a, b) for a in written for b in step.operation.views if not b.batched)
        follows = isinstance(step.operation, Map) and end == position - 1 > begin
        if used or follows:  # maps stay with the product that they follow
            end = position
    if any(conflict(product.operation, step.operation) for step in body[begin + 1 : end + 1]):
        return False
    body.pop(begin)
    body.insert(end, changed)
    return True


def _gives_part(step: PlanStep, gradient: View, steps: Sequence[PlanStep]) -> bool:
    """Whether a product over the samples gives a run of the gradient that no other step of `steps` writes."""
    operation = step.operation
    if not (isinstance(operation, MatMul) and operation.sums_over_batch and not operation.accumulate):
        return False
    (out,) = operation.outs
    if any(overlap(out, view) for other in steps if other is not step for view in other.operation.outs):
        return False
    inside = gradient.offset <= out.offset and out.offset + out.sample_size <= gradient.offset + gradient.sample_size
    return out.buffer is gradient.buffer and out.contiguous and inside


def _updated(position: int, segment: Segment, update: _Update, lanes: int) -> PlanStep:
    """A step on a tile, with the update if it is a product and no later step reads what the update writes."""
    step = segment.tiled_steps[position]
    large = step.operation.outs[0].sample_size >= MIN_ELEMENTS
    if not large or not _gives_part(step, update.gradient, segment.tiled_steps):
        return step
    changed = update.on(step)
    written = [view for each in changed.update for view in each.outs]
    read = [view for later in segment.tiled_steps[position:] for view in _reads(later)]
    product = FusedProduct.of(step.operation)
    turned = product.turned(lanes) is not product  # its transpose is computed
    return step if turned or any(overlap(a, b) for a in written for b in read) else changed


def _reads(step: PlanStep) -> list[View]:
    """The views that a step reads, without weights that it reads from a packed copy."""
    own = [view for view in step.operation.ins if not step.packed or view is not step.operation.ins[1]]
    return own + [view for fused in step.fused for view in fused.ins]


def left_over(rest: Sequence[tuple[int, int]], steps: Sequence[PlanStep]) -> tuple[PlanStep, ...]:
    """Steps through long vectors, limited to these runs of elements."""

    def part(begin: int, stop: int, view: View) -> View:
        return replace(view, shape=(stop - begin,), strides=(1,), offset=view.offset + begin) if view.sample_size > 1 else view

    return tuple(replace(step, operation=step.operation.on(partial(part, *run))) for run in rest for step in steps)


def describe_products(plan: ExecutionPlan) -> ExecutionPlan:
    """Describe each product: its operands, packed or not, and the maps on its results.

    Raises UnsupportedOperationError for a product that no kernel can do.
    """

    def described(step: PlanStep) -> PlanStep:
        if not isinstance(step.operation, MatMul):
            return step
        product = FusedProduct.of(step.operation, (*step.fused, *step.update))
        product = replace(product, continued=step.continued, transient=bool(step.update))
        return replace(step, fused_product=replace(product, b=step.packed.copy, padded=True) if step.packed else product)

    return plan.changed(described)
