"""What each product has to do, and which weights are packed: copied in the order in which their kernel reads them."""

from __future__ import annotations

from dataclasses import replace

from chains.backends.native.kernels import winograd
from chains.backends.native.kernels.fusion import kernel_of, needs_packing
from chains.backends.native.kernels.packing import packed_columns
from chains.backends.native.plan.execution_plan import ExecutionPlan, PackedWeights, PlanStep
from chains.program.operations import Convolve, ConvolveInput, MatMul
from chains.program.view import Buffer, Shape, View, c_strides


def pack_weights(plan: ExecutionPlan) -> ExecutionPlan:
    """Reserve packed copies for the steps on tiles whose kernels want them."""

    def packed(step: PlanStep) -> PlanStep:
        operation = step.operation
        if isinstance(operation, MatMul):
            kernel = kernel_of(operation, ())
            if needs_packing(kernel, plan.lanes, bool(plan.laned)):
                rows: Shape = (kernel.b.shape[0], packed_columns(kernel.b, plan.lanes))
                return replace(step, packed=_copied(kernel.b, rows, kernel.b.shape))
        elif winograd.suits(operation):
            size = (winograd.packed_size(operation),)
            return replace(step, packed=_copied(operation.ins[1], size, size))
        elif isinstance(operation, (Convolve, ConvolveInput)):
            weights = operation.ins[1]
            return replace(step, packed=_copied(weights, weights.shape, weights.shape))
        return step

    return replace(plan, segments=tuple(each.with_tiled(tuple(map(packed, each.tiled_steps))) for each in plan.segments))


def _copied(source: View, shape: Shape, used: Shape) -> PackedWeights:
    """Weights and a place of this shape for their copy, of which `used` is filled."""
    copy = View(Buffer(f"packed {source}", "scratch", source.dtype, shape), used, c_strides(shape))
    return PackedWeights(source, copy)


def choose_kernels(plan: ExecutionPlan) -> ExecutionPlan:
    """Say what each product has to do.

    Raises UnsupportedOperationError for one that no kernel can do.
    """

    def chosen(step: PlanStep) -> PlanStep:
        if not isinstance(step.operation, MatMul):
            return step
        kernel = kernel_of(step.operation, (*step.fused, *step.update))
        kernel = replace(kernel, continued=step.continued, transient=bool(step.update))
        return replace(step, kernel=replace(kernel, b=step.packed.copy, padded=True) if step.packed else kernel)

    return plan.changed(chosen)
