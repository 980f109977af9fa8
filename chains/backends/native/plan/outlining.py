"""Which steps are alike, so that their code is written once, as a function that takes the addresses of their operands.

Layers of one size have such steps, and so has an unrolled recurrence: neither the code nor the time to compile it grows with
their number. Images, layouts and random numbers are not looked at: their kernels are functions of their own anyway, or rare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace

from chains.backends.native.kernels.outline import Likeness
from chains.backends.native.plan.execution_plan import ExecutionPlan, PlanStep
from chains.program.operations import Copy, Fill, Gather, Map, MatMul, Reduce, ScatterAdd
from chains.program.view import Buffer

OUTLINED = (MatMul, Map, Reduce, Copy, Fill, Gather, ScatterAdd)
LEAST_ALIKE = 3  # steps whose code is written once: a call takes some nanoseconds, compiling a product milliseconds


def outline_alike(plan: ExecutionPlan) -> ExecutionPlan:
    """Say of each step, and of each copy of weights, what it has in common with others that are alike, if there are enough."""

    def known(buffer: Buffer) -> Hashable:
        return buffer in plan.laned, buffer is plan.indexed

    def described(step: PlanStep) -> PlanStep:
        if not isinstance(step.operation, OUTLINED):
            return step
        likeness = Likeness(known, step.fused_product or step.operation, step.continued)
        packing = Likeness(known, *step.packed) if step.packed else None
        return replace(step, likeness=likeness, packing_likeness=packing)

    marked = plan.changed(described)
    steps = [step for segment in marked.segments for step in segment.steps]
    found = [likeness for step in steps for likeness in (step.likeness, step.packing_likeness) if likeness]
    uses = Counter(likeness.key for likeness in found)

    def often(likeness: Likeness | None) -> Likeness | None:
        return likeness if likeness and uses[likeness.key] >= LEAST_ALIKE else None

    def decided(step: PlanStep) -> PlanStep:
        return replace(step, likeness=often(step.likeness), packing_likeness=often(step.packing_likeness))

    return marked.changed(decided)
