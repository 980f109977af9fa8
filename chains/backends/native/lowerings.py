"""Lowerings: the kernel that writes each operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from chains.backends.native.kernels import winograd
from chains.backends.native.kernels.convolve import lower_convolve, lower_convolve_weight
from chains.backends.native.kernels.elementwise import (
    Frame,
    lower_all_reduce,
    lower_copy,
    lower_fill,
    lower_map,
    lower_random,
    lower_reduce,
)
from chains.backends.native.kernels.images import Relayout, lower_laned, lower_pool, lower_relayout
from chains.backends.native.kernels.matmul import lower_batch_matmul, lower_matmul
from chains.backends.native.kernels.outline import FALSE, lower_loop
from chains.backends.native.kernels.solve import Solve, lower_solve
from chains.backends.native.kernels.tables import lower_gather, lower_scatter_add, lower_update_rows
from chains.backends.native.llvm.emit import Type, Value, integer
from chains.backends.native.plan.execution_plan import ExecutionPlan, PlanStep
from chains.program import operations as ops
from chains.program.loop import Loop
from chains.program.operations import AllReduce
from chains.program.rows import UpdateRows
from chains.program.view import View

Lowering = Callable[[Frame, Any, ExecutionPlan], None]  # of a `PlanStep`, whose operation has the type of the lowering


def lower(frame: Frame, step: PlanStep, plan: ExecutionPlan) -> None:
    """Write the code of a step."""
    for total in step.operation.totals if not isinstance(step.operation, Loop) else ():
        frame = _of_sum(frame, total.view)
    LOWERINGS[type(step.operation)](frame, step, plan)


def _of_sum(frame: Frame, view: View) -> Frame:
    """The frame for a sum over samples. In loops it begins with the first step of each in which its place stays."""
    f, first = frame.f, frame.first
    for depth, number in enumerate(frame.steps):
        if first is not None and not view.loop_stride(depth):
            first = f.binary("and", first, f.compare("eq", number, integer(0)))
    return replace(frame, first=first)


def _loop(frame: Frame, step: Any, plan: ExecutionPlan) -> None:
    for (view,) in (zeros.outs for zeros in step.operation.zeros):
        begins, fill = _of_sum(frame, view).first, partial(lower_fill, frame, view, 0.0)
        frame.f.when(begins, fill) if begins is not None else fill()
    if step.operation.from_zero and frame.first is not None:
        frame = replace(frame, first=FALSE)

    def write(frame: Frame) -> None:
        for each in step.body:
            if each.likeness and frame.call_alike:
                own = frame
                for total in each.operation.totals:
                    own = _of_sum(own, total.view)
                code = partial(lower, step=each, plan=plan)
                frame.call_alike(replace(own, steps=()), each.likeness, each.operation.name, code)
            else:
                lower(frame, each, plan)

    lower_loop(frame, step.operation, write)


def _workspace(frame: Frame, plan: ExecutionPlan) -> Value:
    """The address of the kernels' workspace, which follows the buffers of a tile."""
    return frame.f.address(frame.f.arguments[1], integer(plan.workspace_offset), Type("i8"))


def _convolve(frame: Frame, step: Any, plan: ExecutionPlan) -> None:
    packed = step.packed.copy
    if winograd.suits(step.operation):
        winograd.lower_winograd(frame, step.operation, packed, _workspace(frame, plan), step.fused)
    else:
        lower_convolve(frame, step.operation, packed, step.fused)


def _convolve_weight(frame: Frame, step: Any, plan: ExecutionPlan) -> None:
    if winograd.suits_weight(step.operation, frame.lanes):
        winograd.lower_winograd_weight(frame, step.operation, _workspace(frame, plan))
    else:
        lower_convolve_weight(frame, step.operation)


def _relayout(frame: Frame, step: Any, plan: ExecutionPlan) -> None:
    lower_relayout(frame, step.operation, plan.offset(step.operation.outs[0].buffer) is not None)


def _of_operation(lowering: Callable[[Frame, Any], None]) -> Lowering:
    """The lowering by a kernel that needs only the operation."""
    return lambda frame, step, plan: lowering(frame, step.operation)


def _in_either_layout(lowering: Callable[[Frame, Any], None]) -> Lowering:
    """The lowering by a kernel that needs only the operation, for samples in rows; samples in lanes go to `lower_laned`."""

    def write(frame: Frame, step: Any, plan: ExecutionPlan) -> None:
        laned = any(view.buffer in plan.laned for view in step.operation.views)
        (lower_laned if laned else lowering)(frame, step.operation)

    return write


LOWERINGS: dict[type[ops.Operation], Lowering] = {
    ops.MatMul: lambda frame, step, plan: lower_matmul(frame, step.fused_product),
    ops.BatchMatMul: lambda frame, step, plan: lower_batch_matmul(frame, step.operation, _workspace(frame, plan)),
    ops.Map: _in_either_layout(lower_map),
    ops.Reduce: _in_either_layout(lower_reduce),
    ops.Copy: _in_either_layout(lambda frame, copy: lower_copy(frame, copy.outs[0], copy.ins[0])),
    ops.Fill: _in_either_layout(lambda frame, fill: lower_fill(frame, fill.outs[0], fill.value)),
    ops.Convolve: _convolve,
    ops.ConvolveInput: _convolve,
    ops.ConvolveWeight: _convolve_weight,
    ops.Pool: _of_operation(lower_pool),
    ops.PoolInput: _of_operation(lower_pool),
    ops.Gather: _of_operation(lower_gather),
    ops.ScatterAdd: lambda frame, step, plan: lower_scatter_add(frame, step.operation, step.continued),
    UpdateRows: lambda frame, step, plan: lower_update_rows(frame, step.operation, *frame.f.arguments[-2:]),
    ops.Random: _of_operation(lower_random),
    AllReduce: _of_operation(lower_all_reduce),
    Relayout: _relayout,
    Solve: lambda frame, step, plan: lower_solve(frame, step.operation, _workspace(frame, plan)),
    Loop: _loop,
}
