"""Rows of tiles padded to whole vectors.

A row that ends within a vector is stored with a mask. The next row begins within the same vector, so the processor delays
its loads until the masked store nearby is done.
"""

from __future__ import annotations

from dataclasses import replace

from chains.backends.native.plan.execution_plan import ExecutionPlan, PlanStep
from chains.program.loop import all_operations
from chains.program.operations import Copy, Fill, Map, MatMul, Reduce
from chains.program.view import Batch, Buffer, View

MIN_SHARE = 0.5  # least part of a padded row that is in use: with less, the additional vectors cost more than they save


def pad_rows(plan: ExecutionPlan) -> ExecutionPlan:
    """Pad the rows of scratch buffers, if all operations on a buffer go row by row."""
    if plan.laned:
        return plan
    by_rows: dict[Buffer, bool] = {}
    for operation in all_operations(step.operation for step in plan.steps):
        known = isinstance(operation, (MatMul, Map, Reduce, Copy, Fill))
        for view in operation.views:
            by_rows[view.buffer] = by_rows.get(view.buffer, True) and known and _is_rows(view)
    padded: dict[Buffer, Buffer] = {}
    for buffer in (buffer for buffer, fits in by_rows.items() if fits and buffer.role == "scratch"):
        length = -(-buffer.size // plan.lanes) * plan.lanes
        if MIN_SHARE * length <= buffer.size < length and not _in_pairs(plan, buffer.size):
            padded[buffer] = Buffer(buffer.name, "scratch", buffer.dtype, (Batch(), length))

    def place(view: View) -> View:
        if view.buffer not in padded:
            return view
        buffer = padded[view.buffer]
        strides = [buffer.size if extent == Batch() else s for extent, s in zip(view.shape, view.strides, strict=True)]
        return replace(view, buffer=buffer, strides=tuple(strides), name=str(view))

    def placed(step: PlanStep) -> PlanStep:
        touched = any(view.buffer in padded for view in step.operation.views)
        return replace(step, operation=step.operation.on(place)) if touched else step

    return replace(plan, steps=tuple(map(placed, plan.steps)))


def _in_pairs(plan: ExecutionPlan, columns: int) -> bool:
    """Whether rows of half a vector stay as they are: where masks are dear, and every product of so many columns is narrow."""
    if plan.processor.registers >= 32 or columns == 1 or 2 * columns != plan.lanes:
        return False
    products = [step.operation for step in plan.steps if isinstance(step.operation, MatMul) and step.operation.outs[0].batched]
    inner = [product.ins[0].shape[1] for product in products if product.outs[0].shape[1] == columns]
    return bool(inner) and all(isinstance(extent, int) and extent >= columns for extent in inner)


def _is_rows(view: View) -> bool:
    """Whether a view is some columns of a matrix with one row per sample."""
    return view.buffer.shape == (Batch(), view.buffer.size) and view.ndim == 2 and view.shape.count(Batch()) == 1
