"""Outlining: the code of steps that differ only in the addresses of their operands is written once, as a function of these.

Layers of one size have such steps, and so has an unrolled recurrence. Neither the code nor the time to compile it grows with
the number of these steps. If many products of a program differ, they share the code of their blocks, with sizes as arguments.
Operations on images, relayouts and random numbers are left out: their kernels are separate functions anyway, or rare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from chains.backends.native.kernels.outline import Likeness
from chains.backends.native.operations import record_of
from chains.backends.native.plan.execution_plan import ExecutionPlan, PlanStep
from chains.program.view import Buffer

MAX_PRODUCTS = 20  # products of different sizes whose code is written for each: a product compiles in about 60 ms
MIN_ALIKE = 3  # fewest steps that share code: a call takes some nanoseconds, compiling a product milliseconds


def share_blocks(plan: ExecutionPlan) -> ExecutionPlan:
    """Let the products of a program share the code of their blocks if too many of them differ."""
    steps = [each for segment in plan.segments for step in segment.tiled_steps for each in step.all]
    products = {_likeness(plan, step.fused_product, step.continued).key for step in steps if step.fused_product}
    if plan.laned or len(products) <= MAX_PRODUCTS:
        return plan

    def sharing(step: PlanStep) -> PlanStep:
        product = step.fused_product
        return replace(step, fused_product=replace(product, shared=True)) if product and not step.update else step

    return plan.changed_on_tiles(sharing)


def outline_alike(plan: ExecutionPlan) -> ExecutionPlan:
    """Mark the steps, and the copies of weights, that share code with enough others: set their likenesses."""

    def described(step: PlanStep) -> PlanStep:
        if not record_of(step.operation).shares_code:
            return step
        likeness = _likeness(plan, step.fused_product or step.operation, step.continued)
        packing = _likeness(plan, *step.packed) if step.packed else None
        return replace(step, likeness=likeness, packing_likeness=packing)

    marked = plan.changed(described)
    steps = [step for segment in marked.segments for outer in segment.steps for step in outer.all]
    found = [likeness for step in steps for likeness in (step.likeness, step.packing_likeness) if likeness]
    uses = Counter(likeness.key for likeness in found)

    def often(likeness: Likeness | None) -> Likeness | None:
        return likeness if likeness and uses[likeness.key] >= MIN_ALIKE else None

    def decided(step: PlanStep) -> PlanStep:
        return replace(step, likeness=often(step.likeness), packing_likeness=often(step.packing_likeness))

    return marked.changed(decided)


def _likeness(plan: ExecutionPlan, *parts: Any) -> Likeness:
    def known(buffer: Buffer) -> Hashable:
        return buffer in plan.laned, buffer is plan.indexed

    return Likeness(known, *parts)
