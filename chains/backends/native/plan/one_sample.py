"""Loops that have separate code for one sample.

With one sample, each step of a loop waits for the one before: the numbers go through memory from one operation to the next,
which takes longer than the arithmetic. In the code for one sample they stay in registers (`Function.forwarded`).
"""

from __future__ import annotations

from dataclasses import replace

from chains.backends.native.plan.execution_plan import ExecutionPlan, PlanStep
from chains.program.loop import Loop
from chains.program.operations import Copy, Fill, Map, MatMul, Reduce

MOST_NUMBERS = 32  # of a sample, in an operand: a wide operation hides the way through memory
MOST_STEPS = 56  # of a loop's body, as its code is written twice
KINDS = (Copy, Fill, Loop, Map, MatMul, Reduce)  # whose kernels are written in place, by `load` and `store`


def write_loops_for_one_sample(plan: ExecutionPlan) -> ExecutionPlan:
    """Mark the loops of few small steps over samples."""
    if plan.laned:
        return plan
    segments = (each.with_tiled(replace(step, single=_is_small(step)) for step in each.tiled_steps) for each in plan.segments)
    return replace(plan, segments=tuple(segments))


def _is_small(step: PlanStep) -> bool:
    """Whether a step is a loop of few small steps."""
    inner = list(step.all)[1:]
    if not inner or len(inner) > MOST_STEPS or not all(isinstance(each.operation, KINDS) for each in inner):
        return False
    views = (view for each in inner if not each.body for view in each.operation.views)
    return all(view.sample_size <= MOST_NUMBERS for view in views if view.batched)
