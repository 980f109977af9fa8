"""The width of a plan's vectors, where whole registers would stay half empty.

Some processors work on a vector of 64 bytes as two halves, one after the other, so that a half costs half as much. Rows of
eight numbers then need vectors of eight. Where 64 bytes are one piece of work, half a vector saves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from chains.backends.native.kernels.matmul import sample_lanes
from chains.backends.native.llvm.vectormath import ELEMENTARY
from chains.backends.native.operations import Solve, record_of
from chains.backends.native.plan.execution_plan import ExecutionPlan
from chains.backends.native.plan.layout import padded_length
from chains.program.loop import Loop, all_operations
from chains.program.operations import BatchMatMul, Map, MatMul, Operation
from chains.program.view import View, concrete

FUNCTION_COST = 20  # of a tanh, an exponential or another elementary function, in products and additions
MAX_COST = 0.8  # of halves, as a share of the cost of whole vectors: up to there they were faster wherever measured


def choose_width(plan: ExecutionPlan) -> ExecutionPlan:
    """Use halves of the vectors, where the processor splits them and rows waste many of their numbers."""
    if not plan.processor.splits_vectors:
        return plan
    operations = [step.operation for step in plan.steps]
    if any(_needs_width(operation) for operation in all_operations(operations)):
        return plan
    itemsize, half = plan.program.dtype.itemsize, replace(plan.processor, width=plan.processor.width // 2)
    cost = _cost(operations, half.lanes(itemsize))
    return replace(plan, processor=half) if 0 < cost <= MAX_COST * _cost(operations, plan.lanes) else plan


def _needs_width(operation: Operation) -> bool:
    """Whether vectors are filled whatever the rows' length: by samples, or by blocks of large matrices."""
    return record_of(operation).of_images or isinstance(operation, (Solve, BatchMatMul))


def _cost(operations: Iterable[Operation], lanes: int) -> int:
    """Numbers computed for a sample by vectors of `lanes` numbers, those in idle lanes included."""
    return sum(_cost_of(operation, lanes) for operation in operations)


def _cost_of(operation: Operation, lanes: int) -> int:
    if isinstance(operation, Loop):
        return operation.steps * _cost(operation.body, lanes)
    if not any(view.batched for view in operation.views):
        return 0
    out = operation.outs[0]
    if isinstance(operation, MatMul):
        rows, inner = (concrete((extent,), 1)[0] for extent in operation.ins[0].shape)
        return 2 * rows * inner * _taken(out, inner, lanes)
    if isinstance(operation, Map) and out.batched:
        functions = sum(instruction.operation in ELEMENTARY for instruction in operation.formula.instructions)
        size = max(1, out.sample_size)
        # Vectors hold several whole rows where these fit; else a padded row takes vectors of its own.
        return (FUNCTION_COST * functions + 1) * (size if lanes % size == 0 else padded_length(size, lanes) or size)
    return 0


def _taken(out: View, inner: int, lanes: int) -> int:
    """The lanes that a row of a product's result takes; narrow products have several rows in a vector (`is_narrow`)."""
    columns, padded = concrete(out.shape, 1)[1], out.buffer.role == "scratch" and padded_length(out.buffer.size, lanes)
    if out.batched and not padded and inner >= columns and 2 * sample_lanes(columns) <= lanes:
        return sample_lanes(columns)
    return -(-columns // lanes) * lanes
