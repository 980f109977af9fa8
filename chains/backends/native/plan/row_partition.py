"""Products of few samples partitioned among the threads of a team.

If a batch is one tile, the threads can share only the products. A product is cut along the rows of its weights: each thread
keeps its rows in its own cache, from the product to the gradient and the optimiser's step. If a product sums along these
rows, each thread has a separate sum, and the first thread adds the sums up in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import groupby
from operator import add
from typing import Any

from chains.backends.native.plan.execution_plan import ExecutionPlan, PlanStep
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
    """A separate sum for a thread, in place of `out`."""
    name = f"{out} of thread {thread}"
    return replace(out, buffer=Buffer(name, "scratch", out.dtype, out.buffer.shape), name=name)


def _sum(parts: Sequence[PlanStep]) -> PlanStep:
    """The step of the first thread that adds up the sums of all threads."""
    views = tuple(part.operation.outs[0] for part in parts)

    def total(*numbers: Any) -> Any:
        return reduce(add, numbers)

    operation = Map(views[:1], views, trace(total, len(views)), label=parts[0].operation.label)
    return PlanStep(operation, origins=parts[0].origins)
