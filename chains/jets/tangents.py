"""Derivatives by all parameters in one forward pass: arrays that depend on the parameters get a last axis of lanes.

The operations are those of a series of order one along a single direction of the parameters (`chains.jets.jet`). Here each
array of that series gets a lane for each parameter, its last axis, which is contiguous. So maps, copies and sums work on whole
vectors of lanes, and the derivatives of the outputs are rows of the Jacobian matrix. Loops stay loops: the program is as long
as that of one direction.

The direction of a parameter is a unit vector. A product with such directions of a weight has one number that is not zero in
each lane, so it costs as much as the product itself. A map is split: what does not depend on the direction, such as the slope
of an activation, is computed once for all lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from chains.expr import Formula
from chains.expr.formulas import Replay
from chains.jets.directions import rest
from chains.program.loop import Loop, all_operations
from chains.program.operations import BatchMatMul, Copy, Fill, Gather, Map, MatMul, Operation, Reduce
from chains.program.recorder import Recorder
from chains.program.view import Batch, Buffer, Shape, View, scratch_like


class Tangents:
    """Records operations with a lane for each trained parameter.

    Parameters
    ----------
    ops : Recorder
        The recorder.
    direction : View
        The direction of the parameters in the operations: a vector like these, a whole buffer that is only read.
    trained : sequence of (int, int)
        The ranges (start, stop) of the parameters that have lanes, in order. Others are constants.

    Raises NotImplementedError for operations without a rule.
    """

    def __init__(self, ops: Recorder, direction: View, trained: Sequence[tuple[int, int]]) -> None:
        self.ops, self._seed, self._trained = ops, direction.buffer, tuple(trained)
        self.lanes = sum(stop - start for start, stop in self._trained)
        self._twins: dict[Buffer, Buffer] = {}
        self._first: list[Operation] = []  # copies of weights, before all others
        self._weights: dict[View, View] = {}

    def record(self, operations: Sequence[Operation]) -> None:
        """Record the operations, in order; one call takes all of them."""
        self._find_twins(operations)
        self._record_all(operations)
        self.ops.operations[:0] = self._first

    def lanes_of(self, view: View) -> View:
        """The view of an array that depends on the direction, with its lanes as the last axis."""
        return self._in_lanes(view, self._twins[view.buffer])

    def _in_lanes(self, view: View, buffer: Buffer) -> View:
        """The view with its lanes, in a buffer of the same shape with lanes."""
        count = self.lanes
        return View(
            buffer, (*view.shape, count), (*(stride * count for stride in view.strides), 1), view.offset * count,
            f"{view} in lanes", tuple(stride * count for stride in view.loop_strides),
        )  # fmt: skip

    # Which arrays have lanes

    def _find_twins(self, operations: Sequence[Operation]) -> None:
        """Give lanes to each array that an operation fills from the direction, or from another array with lanes."""
        found: set[Buffer] = set()
        known = -1
        while len(found) > known:
            known = len(found)
            for operation in all_operations(operations):
                for out in operation.outs:
                    if out.buffer not in found and self._depends(operation, out, found):
                        found.add(out.buffer)
        for buffer in found:
            self._twins[buffer] = Buffer(f"{buffer.name} in lanes", "scratch", buffer.dtype, (*buffer.shape, self.lanes))

    def _depends(self, operation: Operation, out: View, found: set[Buffer]) -> bool:
        varies = [view.buffer in found or view.buffer is self._seed for view in operation.ins]
        if isinstance(operation, Map):
            return _varying(operation.formula, varies)[operation.formula.outputs[operation.outs.index(out)]]
        return any(varies)

    # Operations

    def _record_all(self, operations: Sequence[Operation]) -> None:
        for operation in self._units_last(operations):
            with self.ops.label(operation.label):
                if isinstance(operation, Loop):
                    with self.ops.again(operation):
                        self._record_all(operation.body)
                else:
                    self._record(operation)

    def _record(self, operation: Operation) -> None:
        along = [view for view in operation.outs if view.buffer in self._twins]
        if not along:
            self.ops.operations.append(operation)
        elif operation.sums_over_batch:
            raise NotImplementedError(f"there is no rule for the tangents of {operation.name} over samples ({operation.label})")
        elif isinstance(operation, Map):
            self._map(operation)
        elif isinstance(operation, (Copy, Fill, Reduce)):
            ins = tuple(self._operand(view) for view in operation.ins)
            self.ops.operations.append(replace(operation, outs=(self.lanes_of(along[0]),), ins=ins))
        elif isinstance(operation, (MatMul, BatchMatMul)):
            self._product(operation)
        elif isinstance(operation, Gather) and self._has_lanes(operation.ins[0]) and not self._has_lanes(operation.ins[1]):
            self._gather(operation)
        else:
            self._lane_by_lane(operation)

    def _map(self, operation: Map) -> None:
        """One map of what is the same in all lanes, and another one of the lanes."""
        formula, first, outs = operation.formula, len(operation.formula.inputs), operation.outs
        varies = _varying(formula, [self._has_lanes(view) for view in operation.ins])
        common = [k for k, out in enumerate(outs) if out.buffer not in self._twins]
        along = [k for k in range(len(outs)) if k not in common]
        overwritten = {outs[k].buffer for k in common}
        instructions = dict(enumerate(formula.instructions, first))
        used = {formula.outputs[k] for k in along if not varies[formula.outputs[k]]}
        used |= {k for n, each in instructions.items() if varies[n] for k in each.operands if not varies[k]}
        kept = [
            k for k in sorted(used)
            if (operation.ins[k].buffer in overwritten if k < first else instructions[k].operation != "const")
        ]  # fmt: skip
        second, numbers = rest(formula, [formula.outputs[k] for k in along], kept)
        kept = [k for k in kept if k in numbers]
        places = {k: scratch_like(outs[0], "common to lanes") for k in kept}
        if common or places:
            part = replace(formula, outputs=(*(formula.outputs[k] for k in common), *kept))
            part, ins = part.only(range(len(part.outputs)))
            self.ops.map((*(outs[k] for k in common), *places.values()), Replay(part), *(operation.ins[k] for k in ins))
        operands = (self._operand(places[k] if k in places else operation.ins[k]) for k in numbers)
        self.ops.map(tuple(self.lanes_of(outs[k]) for k in along), Replay(second), *operands)

    def _gather(self, operation: Gather) -> None:
        """Rows of a table with the lanes of all their columns."""
        table, index = operation.ins
        out, rows = self.lanes_of(operation.outs[0]), self._operand(table)
        self.ops.gather(_last_merged(out), _last_merged(rows), index)

    def _lane_by_lane(self, operation: Operation) -> None:
        """The operation once for each lane, in a loop, on copies of its operands."""
        ops, views = self.ops, dict.fromkeys(view for view in operation.views if self._has_lanes(view))
        with ops.loop(self.lanes, closed=True) as at:
            own = {view: scratch_like(view, f"one lane of {view}") for view in views}
            one = {view: self._operand(view).index(-1, 0).advancing(at.depth, 1) for view in views}
            for view in views:
                if view not in operation.writes or operation.accumulates:
                    ops.copy(own[view], one[view])
            ops.operations.append(operation.on(lambda view: own.get(view, view)))
            for view in operation.outs:
                ops.copy(one[view], own[view])

    # Products

    def _product(self, operation: MatMul | BatchMatMul) -> None:
        (a, b), out = operation.ins, self.lanes_of(operation.outs[0])
        if b.buffer is self._seed and isinstance(operation, MatMul):
            self._units(operation, out)
        elif a.buffer is self._seed or (self._has_lanes(a) and self._has_lanes(b)):
            self._lane_by_lane(operation)
        elif self._has_lanes(a):
            self._rows_in_lanes(operation, out)
        else:
            right = self._operand(b)
            if right.strides[-2] != self.lanes:
                copy = scratch_like(right, f"{right}, in order")
                self.ops.copy(copy, right)
                right = copy
            if out.strides[-2] != self.lanes:
                self._lane_by_lane(operation)
            else:
                self.ops.matmul(_last_merged(out), a, _last_merged(right), accumulate=operation.accumulate)

    def _rows_in_lanes(self, operation: MatMul | BatchMatMul, out: View) -> None:
        """A product whose left rows have lanes: each of them is a matrix (inner, lanes), to the right of the weights."""
        a, b = self.lanes_of(operation.ins[0]), operation.ins[1]
        if isinstance(operation, MatMul):
            out, a = _samples(out), _samples(a)
            left = self._of_each_sample(b) if a.batched else b
            lead: Shape = left.shape[:-2]
            strides = left.strides[:-2]
            extra = a.shape[len(lead) : -2]
        else:
            left, lead, strides, extra = b, b.shape[:-2], b.strides[:-2], a.shape[-3:-2]
        turned = replace(
            left, shape=(*lead, *extra, left.shape[-1], left.shape[-2]),
            strides=(*strides, *(0 for _ in extra), left.strides[-1], left.strides[-2]), name=f"{b}.T",
        )  # fmt: skip
        self.ops.matmul(out, turned, a, accumulate=operation.accumulate)

    def _of_each_sample(self, weights: View) -> View:
        """A copy of weights for each sample, made once if they never change."""
        if weights.batched:
            raise NotImplementedError(f"there is no rule for the tangents of a product with {weights}, of all samples")
        if weights in self._weights:
            return self._weights[weights]
        copy = Buffer(f"{weights} of each sample", "scratch", weights.dtype, (Batch(), *weights.shape)).whole
        if weights.buffer.role in ("input", "constant") and not weights.loop_strides:
            self._weights[weights] = copy
            self._first.append(Copy((copy,), (weights,)))
        else:
            self.ops.copy(copy, weights)
        return copy

    def _units_last(self, operations: Sequence[Operation]) -> list[Operation]:
        """The operations with products of directions after others that add to the same result, which then needs no zeros."""
        ordered = list(operations)
        for k in range(len(ordered) - 1):
            units, other = ordered[k : k + 2]
            if not isinstance(units, MatMul) or not isinstance(other, MatMul) or units.outs != other.outs:
                continue
            if units.ins[1].buffer is self._seed and other.ins[1].buffer is not self._seed and other.accumulate:
                ordered[k : k + 2] = replace(other, accumulate=units.accumulate), replace(units, accumulate=True)
        return ordered

    def _units(self, operation: MatMul, out: View) -> None:
        """A product with the directions of a weight: the entry (i, j) of its lane adds row i of the left side to column j."""
        (a, b), ops = operation.ins, self.ops
        if not operation.accumulate:
            ops.fill(out, 0.0)
        lane = self._lane(b)
        if lane is None or b.loop_strides:
            raise NotImplementedError(f"there is no rule for the tangents of a product with {b}, of which a part is trained")
        if lane < 0:
            return
        rows, columns, one = out.strides
        diagonal = replace(
            out, shape=(out.shape[0], *b.shape), strides=(rows, b.strides[0] * one, columns + b.strides[1] * one),
            offset=out.offset + lane * one,
        )  # fmt: skip
        ops.map(diagonal, lambda total, x: total + x, diagonal, a.expand(-1))

    # Views

    def _has_lanes(self, view: View) -> bool:
        return view.buffer in self._twins or view.buffer is self._seed

    def _operand(self, view: View) -> View:
        """The view as an operand of lanes."""
        if view.buffer is self._seed:
            return self._unit_rows(view)
        if view.buffer in self._twins:
            return self.lanes_of(view)
        return view.expand(-1) if view.ndim else view

    def _lane(self, view: View) -> int | None:
        """The lane of the first parameter of a view of the direction; -1 if none has a lane, None if some have none."""
        places = view.within(np.arange(self._seed.size))
        first, last = (int(places.min()), int(places.max())) if places.size else (0, -1)
        lane = 0
        for start, stop in self._trained:
            if start <= first and last < stop:
                return lane + view.offset - start
            if first < stop and start <= last:
                return None
            lane += stop - start
        return -1

    def _unit_rows(self, view: View) -> View:
        """The directions of some parameters as numbers, (*view.shape, lanes)."""
        numbers = np.fromiter(chain.from_iterable(range(*each) for each in self._trained), int, self.lanes)
        if view.loop_strides:
            units = self.ops.constant("units of all parameters", np.arange(self._seed.size)[:, None] == numbers)
            return self._in_lanes(view, units.buffer)
        places = view.within(np.arange(self._seed.size))
        return self.ops.constant(f"units of {view}", places[..., None] == numbers)


def _varying(formula: Formula, inputs: Sequence[bool]) -> list[bool]:
    """Whether each number of a formula, an input or a result, depends on inputs that vary."""
    varies = list(inputs)
    for instruction in formula.instructions:
        varies.append(any(varies[k] for k in instruction.operands))
    return varies


def _last_merged(view: View) -> View:
    """The view with its last two axes merged."""
    *shape, columns, lanes = view.shape
    *strides, across, one = view.strides
    if across != int(lanes) * one:  # type: ignore[arg-type]
        raise NotImplementedError(f"there is no rule for the tangents of {view}, whose columns have gaps")
    return replace(view, shape=(*shape, int(columns) * int(lanes)), strides=(*strides, one))  # type: ignore[arg-type]


def _samples(view: View) -> View:
    """The view with a separate axis for the positions of a sample, if samples and positions share the first axis."""
    extent, stride = view.shape[0], view.strides[0]
    if not isinstance(extent, Batch) or extent.per_sample == 1:
        return view
    shape: Shape = (Batch(), extent.per_sample, *view.shape[1:])
    return replace(view, shape=shape, strides=(stride * extent.per_sample, *view.strides))
