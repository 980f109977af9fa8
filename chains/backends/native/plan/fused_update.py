"""Optimiser steps fused into products: blocks of the gradient update the weights while they are in registers.

An optimiser's step goes once through the whole gradient and all parameters, after the tiles. If one tile holds the batch,
the product that computes a weight gradient can update the weights block by block. The gradient is then neither stored nor
read again. Elements that no product computes, such as gradients of biases, are updated afterwards.

This is done for plain gradient descent, where results take the registers of operands. Optimisers with moments would need
several registers for each number of a block. But the gradient of one sample needs no block: it is a product of two numbers,
which the maps of any optimiser compute themselves (`fuse_update_of_one_sample`). Large products (`gemm.py`) see the whole
batch at any batch size, so their updates are always fused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from chains.backends.native.kernels.products import FusedProduct
from chains.backends.native.plan.execution_plan import ExecutionPlan, FusedUpdate, PlanStep, Segment, Work
from chains.backends.native.plan.segments import MIN_SHARED_ELEMENTS, divided, works_of
from chains.expr.formulas import Formula, Instruction
from chains.program.alias import conflict, overlap
from chains.program.operations import Map, MatMul, Operation, Reduce
from chains.program.view import Batch, View

MIN_ELEMENTS = 1024  # of a product that is worth an update; such products together should give half of the gradient

MOST_VECTORS = 8  # that an optimiser changes
MOST_PARTS = 16  # of a gradient of one sample that have separate code


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

    @property
    def changes_gradient(self) -> bool:
        return any(view.buffer is self.gradient.buffer for each in self.maps for view in each.outs)

    def of_one(self, step: PlanStep) -> tuple[PlanStep, ...]:
        """This update of the elements that a step sums up, by maps that compute the sum for one sample."""
        (out,), ins = step.operation.outs, step.operation.ins
        factors: tuple[View, ...] = (replace(ins[0], shape=out.shape, strides=ins[0].strides[1:]),)
        if isinstance(step.operation, MatMul):
            axes = (ins[0].strides[0], 0), (0, ins[1].strides[1])
            factors = tuple(replace(view, shape=out.shape, strides=each) for view, each in zip(ins, axes, strict=True))
        maps = self.on(step).update
        return tuple(
            PlanStep(_with_factors(each, out, factors), origins=whole.origins)
            for each, whole in zip(maps, self.steps, strict=True)
        )

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


def fuse_update_of_one_sample(plan: ExecutionPlan) -> ExecutionPlan:
    """Let maps compute the gradients of weights and update the weights in one go, for runs with one sample.

    The gradient is neither stored nor read, and the roots and divisions of an optimiser overlap with the products of the
    next layers.
    """
    if plan.parts > 1:  # threads share the products
        return plan
    return replace(plan, segments=tuple(_with_update_of_one(segment, plan) for segment in plan.segments))


def _with_update_of_one(segment: Segment, plan: ExecutionPlan) -> Segment:
    if segment.fused_update or plan.laned:
        return segment
    on_samples = [operation for step in segment.tiled_steps for operation in step.operations]
    update = _find(on_samples, segment.once, plan.steps, MOST_VECTORS, shortest=1)
    if update is None or update.changes_gradient:
        return segment
    steps = tuple(_of_one(position, segment, update) for position in range(len(segment.tiled_steps)))
    parts = [step.operation.outs[0] for step in steps if step.alone]
    rest = update.rest(parts)
    if rest is None or len(parts) > MOST_PARTS:
        return segment
    return replace(segment.with_tiled(steps), fused_update=FusedUpdate(update.work, rest, alone=True))


def _of_one(position: int, segment: Segment, update: _Update) -> PlanStep:
    """A step on a tile, with its maps for one sample, if no later step reads what these write."""
    step = segment.tiled_steps[position]
    if step.fused or not _sums_samples(step.operation) or not _gives_run(step, update.gradient, segment.tiled_steps):
        return step
    alone = update.of_one(step)
    written = [view for each in alone for view in each.operation.outs]
    read = [view for later in segment.tiled_steps[position + 1 :] for view in _reads(later)]
    return step if any(overlap(a, b) for a in written for b in read) else replace(step, alone=alone)


def _sums_samples(operation: Operation) -> bool:
    """Whether an operation adds up a vector for each sample, or a column times a row for each sample."""
    if not isinstance(operation, (MatMul, Reduce)) or any(view.loop_strides for view in operation.views):
        return False
    (out,), first = operation.outs, operation.ins[0]
    if isinstance(operation, MatMul):
        return first.shape[1] == Batch()
    return operation.kind == "sum" and first.shape == (Batch(), *out.shape)


def _with_update(segment: Segment, plan: ExecutionPlan) -> Segment:
    update = _find([o for step in segment.tiled_steps for o in step.operations], segment.once, plan.steps)
    if update is None:
        return segment
    steps = tuple(_updated(position, segment, update, plan.lanes) for position in range(len(segment.tiled_steps)))
    rest = update.rest([step.operation.outs[0] for step in steps if step.update])
    return segment if rest is None else replace(segment.with_tiled(steps), fused_update=FusedUpdate(update.work, rest))


def _find(
    on_samples: Sequence[Operation], once: Sequence[Work], steps: Sequence[PlanStep], vectors: int = 1,
    shortest: int = MIN_SHARED_ELEMENTS,
) -> _Update | None:  # fmt: skip
    """The first work that goes through the gradient and changes `vectors`, if it conflicts with no work before it."""
    before: list[Operation] = []
    for position, work in enumerate(once):
        maps = work.operations
        gradient = _gradient(on_samples, maps, steps, vectors) if work.length >= shortest else None
        if gradient is not None and not any(conflict(a, b) for a in before for b in maps):
            return _Update(position, work.steps, gradient)
        before += maps
    return None


def _gradient(
    on_samples: Sequence[Operation], maps: Sequence[Operation], steps: Sequence[PlanStep], vectors: int
) -> View | None:
    """The vector of sums that these maps read to change at most so many other vectors.

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
    return gradient if gradient.buffer.role == "scratch" and len(changed) <= vectors and alone and apart else None


def _with_factors(operation: Map, sum: View, factors: Sequence[View]) -> Map:
    """The map with ``factor + 0`` or ``factor * factor + 0``, as sums begin, in place of the operand `sum`."""
    kept = [position for position, view in enumerate(operation.ins) if view != sum]
    if len(kept) == len(operation.ins):
        return operation
    formula, first, ins = operation.formula, len(operation.ins), len(kept) + len(factors)
    product = [Instruction("mul", (ins - 2, ins - 1))] * (len(factors) - 1)
    zero = ins + len(product)
    begin = [*product, Instruction("const", value=0.0), Instruction("add", (zero - 1, zero))]
    numbers = dict.fromkeys(range(first), zero + 1) | {position: new for new, position in enumerate(kept)}
    numbers |= {first + k: ins + len(begin) + k for k in range(len(formula.instructions))}
    moved = (replace(each, operands=tuple(numbers[k] for k in each.operands)) for each in formula.instructions)
    names = (*(formula.inputs[position] for position in kept), *"ab"[: len(factors)])
    changed = Formula(names, (*begin, *moved), tuple(numbers[k] for k in formula.outputs))
    return Map(operation.outs, (*(operation.ins[position] for position in kept), *factors), changed)


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
    return isinstance(step.operation, MatMul) and _gives_run(step, gradient, steps)


def _gives_run(step: PlanStep, gradient: View, steps: Sequence[PlanStep]) -> bool:
    """The same of any operation."""
    operation = step.operation
    if not operation.sums_over_batch or operation.accumulates:
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
        maps = [each for each in (*step.fused, *step.update) if isinstance(each, Map)]
        product = FusedProduct.of(step.operation, maps)
        product = replace(product, continued=step.continued, transient=bool(step.update))
        return replace(step, fused_product=replace(product, b=step.packed.copy, padded=True) if step.packed else product)

    return plan.changed(described)
