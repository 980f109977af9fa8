"""The layout of the samples in a tile: one sample after another, or interleaved, a vector of samples for each element.

Dense layers read the first layout: vectors run along the features of a sample. Operations on images read the second: vectors
run along the samples, so that no width, stride or padding leaves a lane idle. Interleaved buffers are `laned`. The strides of
their views show it: 1 along the samples, a multiple of the lanes along every other axis. Operations on images make their
operands laned; elementwise operations keep the layout of their operands. If an operation reads the other layout of a buffer,
a `Relayout` makes that layout.

Channels whose length in bytes is a multiple of a page would all fall into the same few sets of the caches. So one vector is
left free after each channel, unless an operation reads the image as a flat array.

Rows of tiles are padded to whole vectors. A row that ends within a vector is stored with a mask. If the next row began within
the same vector, the processor would delay its loads until the masked store nearby is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from chains.backends.native.kernels.solve import solve_of
from chains.backends.native.operations import Relayout, record_of
from chains.backends.native.plan.execution_plan import ExecutionPlan, PlanStep
from chains.program.loop import Loop, all_operations
from chains.program.operations import MatMul, Operation
from chains.program.view import Batch, Buffer, View, c_strides

PAGE_BYTES = 4096


def solve_in_lanes(plan: ExecutionPlan) -> ExecutionPlan:
    """Solve small linear systems by a kernel, instead of the operations of the loops that record them."""

    def solved(operation: Operation) -> Operation:
        if not isinstance(operation, Loop):
            return operation
        return solve_of(operation) or operation.around([solved(each) for each in operation.body])

    return replace(plan, steps=tuple(replace(step, operation=solved(step.operation)) for step in plan.steps))


def arrange_layout(plan: ExecutionPlan) -> ExecutionPlan:
    """Lay out the operands of image operations in lanes, with a `Relayout` where an operation reads the other layout."""
    operations = [step.operation for step in plan.steps]
    if not any(record_of(operation).of_images for operation in operations):
        return plan
    arrangement = _Arrangement(operations, plan.lanes, plan.is_large)
    steps: list[PlanStep] = []
    for step in plan.steps:
        arrangement.add(step.operation)
        steps += [PlanStep(operation, origins=step.origins) for operation in arrangement.operations[len(steps) :]]
    return replace(plan, steps=tuple(steps), laned=frozenset(arrangement.laned.values()))


class _Arrangement:
    """The operations under rewriting. A buffer of the program may have its contents in rows, in lanes, or both."""

    def __init__(self, operations: Sequence[Operation], lanes: int, is_large: Callable[[Operation], bool]) -> None:
        self.lanes = lanes
        self._is_large = is_large
        self.operations: list[Operation] = []
        self.laned: dict[Buffer, Buffer] = {}  # the laned form of each buffer
        self._views: dict[Buffer, list[View]] = {}
        for operation in operations:
            for view in operation.views:
                self._views.setdefault(view.buffer, []).append(view)
        self._images = {v.buffer for o in operations if record_of(o).of_images for v in o.views if v.batched}
        self._last = {view.buffer: operation for operation in operations for view in operation.outs}  # the last that writes it
        self._valid: dict[Buffer, set[bool]] = {}  # the layouts (laned or not) that hold the present contents

    def add(self, operation: Operation) -> None:
        if not any(view.batched for view in operation.views):
            self.operations.append(operation)
            return
        wanted = self._wanted(operation)
        ins = tuple(self._operand(operation, view, wanted) for view in operation.ins)
        for view in operation.outs:
            if view.batched and (operation.accumulates or not _is_whole(view)):
                if view.buffer.role == "state":  # with what the caller has there
                    self._valid.setdefault(view.buffer, {False})
                if view.buffer in self._valid:
                    self._provide(view.buffer, wanted)
        outs = tuple(self._placed(view, wanted) for view in operation.outs)
        repeated = isinstance(operation, Loop)  # a loop keeps its views
        self.operations.append(operation if repeated else replace(operation, outs=outs, ins=ins))
        for buffer in dict.fromkeys(view.buffer for view in operation.outs if view.batched):
            self._valid[buffer] = {wanted}
            if buffer.role != "scratch" and self._last[buffer] is operation:
                self._provide(buffer, False)

    def _wanted(self, operation: Operation) -> bool:
        """Whether the operation is to run on laned operands."""
        record = record_of(operation)
        if record.of_images:
            return True
        samples = [extent for view in operation.views for extent in view.shape if isinstance(extent, Batch)]
        if not record.lanes or any(extent.per_sample != 1 for extent in samples):
            return False
        outs, ins = ([view for view in views if view.batched] for views in (operation.outs, operation.ins))
        found = [*ins, *(view for view in outs if not _is_whole(view))]
        if any(True in self._valid.get(view.buffer, ()) for view in found):
            return True
        return not ins and any(view.buffer in self._images for view in outs)

    def _operand(self, operation: Operation, view: View, wanted: bool) -> View:
        if not view.batched:
            return view
        valid = self._valid.setdefault(view.buffer, {False})
        # A product reads single numbers of its first operand, from wherever they lie; a large one packs rows.
        by_number = isinstance(operation, MatMul) and view is operation.ins[0] and view.shape.count(Batch()) == 1
        by_number = by_number and not self._is_large(operation)
        if by_number and valid == {True} and not self._has_room(view.buffer):
            wanted = True
        self._provide(view.buffer, wanted)
        return self._placed(view, wanted)

    def _provide(self, buffer: Buffer, laned: bool) -> None:
        """Make sure that the buffer's contents exist in this layout."""
        valid = self._valid[buffer]
        if laned in valid:
            return
        channels = self._channels(buffer) if self._has_room(buffer) else 1
        shape = (Batch(), channels, buffer.size // channels)
        whole = View(buffer, shape, c_strides(shape))
        out, source = self._placed(whole, laned), self._placed(whole, not laned)
        self.operations.append(Relayout((out,), (source,), laned, label="layout"))
        valid.add(laned)

    def _placed(self, view: View, laned: bool) -> View:
        """The view on its buffer in this layout."""
        if not (laned and view.batched):
            return view
        strides, offset = list(view.strides), view.offset
        if self._has_room(view.buffer):
            channel = view.buffer.size // self._channels(view.buffer)
            strides[1] += strides[1] // channel
            offset += offset // channel
        strides = [
            1 if isinstance(extent, Batch) else stride * self.lanes for extent, stride in zip(view.shape, strides, strict=True)
        ]
        place = self._place(view.buffer)
        return replace(view, buffer=place, strides=tuple(strides), offset=offset * self.lanes, name=view.name or str(view))

    def _place(self, buffer: Buffer) -> Buffer:
        if buffer not in self.laned:
            channels = self._channels(buffer)
            room = int(self._has_room(buffer))
            shape = (Batch(), channels, buffer.size // channels + room)
            self.laned[buffer] = Buffer(f"{buffer.name} in lanes", "scratch", buffer.dtype, shape)
        return self.laned[buffer]

    def _channels(self, buffer: Buffer) -> int:
        return int(buffer.shape[1]) if len(buffer.shape) == 4 else 1  # type: ignore[arg-type]

    def _has_room(self, buffer: Buffer) -> bool:
        """Whether a vector is left free after each channel."""
        if len(buffer.shape) != 4:
            return False
        channel = buffer.size // self._channels(buffer)
        if channel == 1 or channel * self.lanes * buffer.dtype.itemsize % PAGE_BYTES:
            return False
        return all(view.ndim == 4 and view.strides[1] == channel for view in self._views[buffer])


def _is_whole(view: View) -> bool:
    return view.contiguous and view.sample_size == view.buffer.size


MIN_SHARE = 0.5  # least part of a padded row that is in use: with less, the additional vectors cost more than they save


def pad_rows(plan: ExecutionPlan) -> ExecutionPlan:
    """Pad the rows of scratch buffers, if all operations on a buffer go row by row."""
    if plan.laned:
        return plan
    by_rows: dict[Buffer, bool] = {}
    for operation in all_operations(step.operation for step in plan.steps):
        known = record_of(operation).by_rows
        for view in operation.views:
            by_rows[view.buffer] = by_rows.get(view.buffer, True) and known and _is_rows(view)
    padded: dict[Buffer, Buffer] = {}
    for buffer in (buffer for buffer, fits in by_rows.items() if fits and buffer.role == "scratch"):
        length = padded_length(buffer.size, plan.lanes)
        if length and not _in_pairs(plan, buffer.size):
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


def padded_length(size: int, lanes: int) -> int | None:
    """The length of rows of `size` numbers as whole vectors; None if they are that already, or too much would be idle."""
    length = -(-size // lanes) * lanes
    return length if MIN_SHARE * length <= size < length else None


def _in_pairs(plan: ExecutionPlan, columns: int) -> bool:
    """Whether rows of half a vector stay unpadded: masks are expensive, and every product of this many columns is narrow."""
    if plan.processor.registers >= 32 or columns == 1 or 2 * columns != plan.lanes:
        return False
    products = [step.operation for step in plan.steps if isinstance(step.operation, MatMul) and step.operation.outs[0].batched]
    inner = [product.ins[0].shape[1] for product in products if product.outs[0].shape[1] == columns]
    return bool(inner) and all(isinstance(extent, int) and extent >= columns for extent in inner)


def _is_rows(view: View) -> bool:
    """Whether a view is some columns of a matrix with one row per sample."""
    return view.buffer.shape == (Batch(), view.buffer.size) and view.ndim == 2 and view.shape.count(Batch()) == 1
