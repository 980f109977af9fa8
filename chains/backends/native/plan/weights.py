"""Products with the maps fused into them, and packed weights: copies in the order in which a kernel reads them."""

from __future__ import annotations

from dataclasses import replace

from chains.backends.native.kernels import winograd
from chains.backends.native.kernels.fusion import FusedProduct, needs_packing
from chains.backends.native.kernels.packing import packed_columns
from chains.backends.native.plan.execution_plan import ExecutionPlan, PackedWeights, PlanStep
from chains.program.operations import Convolve, ConvolveInput, MatMul
from chains.program.view import Buffer, Shape, View, c_strides


def pack_weights(plan: ExecutionPlan) -> ExecutionPlan:
    """Reserve packed copies of weights for steps on tiles whose kernels read packed weights."""

    def packed(step: PlanStep) -> PlanStep:
        operation = step.operation
        if isinstance(operation, MatMul):
            product = FusedProduct.of(operation)
            if needs_packing(product, plan.lanes, bool(plan.laned)):
                rows: Shape = (product.b.shape[0], packed_columns(product.b, plan.lanes))
                return replace(step, packed=_copied(product.b, rows, product.b.shape))
        elif winograd.suits(operation):
            size = (winograd.packed_size(operation),)
            return replace(step, packed=_copied(operation.ins[1], size, size))
        elif isinstance(operation, (Convolve, ConvolveInput)):
            weights = operation.ins[1]
            return replace(step, packed=_copied(weights, weights.shape, weights.shape))
        return step

    return replace(
        plan,
        segments=tuple(each.with_tiled(tuple(step.changed(packed) for step in each.tiled_steps)) for each in plan.segments),
    )


def _copied(source: View, shape: Shape, used: Shape) -> PackedWeights:
    """Weights, and a new buffer of this shape for their copy, which fills the part `used`."""
    copy = View(Buffer(f"packed {source}", "scratch", source.dtype, shape), used, c_strides(shape))
    return PackedWeights(source, copy)


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
