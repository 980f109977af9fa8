"""Derivatives along several directions in one pass: each array that depends on the direction has a row for each of them.

The operations are those of one direction, as `chains.jets.jet` or a pullback records them. A product of such an array with
weights becomes one product of all rows. A map is split: what does not depend on the direction, such as the slope of an
activation, is computed once for all rows. Rows that are the same for all samples, such as the axes of the inputs, are stored
once. Other operations are done row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from chains.expr import Formula
from chains.expr.formulas import Instruction, Replay
from chains.program.loop import Loop
from chains.program.operations import Map, MatMul, Operation, Reduce
from chains.program.recorder import Recorder
from chains.program.view import Batch, Buffer, View

MAX_OPERATIONS = 20_000  # the most operations of a program that does some of them row by row


class Directions:
    """Records operations for all directions.

    `rows` are arrays that replace buffers of samples: views of shape (directions, *sample) that all samples share. With
    `samples`, all operations have samples, as in a loop over these.
    Raises NotImplementedError for operations that have no rule.
    """

    def __init__(self, ops: Recorder, rows: Mapping[Buffer, View], *, samples: bool = False) -> None:
        self.ops, self._samples = ops, samples
        self._rows = dict(rows)
        (self.count,) = {int(view.shape[0]) for view in rows.values()}  # type: ignore[arg-type]
        self._axes = {view.buffer for view in rows.values() if _is_identity(view)}
        self._written: set[Buffer] = set()  # arrays that are the same for all directions

    def record(self, operations: Sequence[Operation]) -> None:
        """Record the operations, in order."""
        for operation in operations:
            with self.ops.label(operation.label):
                if isinstance(operation, Loop):
                    self.record(operation.written_out)
                else:
                    self._record(operation)

    def rows_of(self, view: View) -> View:
        """The rows of a whole buffer of samples: (batch, directions, *sample), or (directions, *sample) for all samples."""
        return self._rows[view.buffer] if view.buffer in self._rows else view.reshape(1, *view.sample_shape)

    def _record(self, operation: Operation) -> None:
        kept = [view for view in operation.outs if view.buffer in self._rows and not _replaces(operation, view)]
        if not kept and not any(view.buffer in self._rows for view in operation.ins):
            for view in operation.outs:
                self._rows.pop(view.buffer, None)
                self._written.add(view.buffer)
            self.ops.operations.append(operation)
        elif operation.sums_over_batch or not all(view.batched for view in operation.outs):
            raise NotImplementedError(f"there is no rule for {operation.name} along several directions ({operation.label})")
        elif isinstance(operation, MatMul) and self._product(operation):
            pass
        elif isinstance(operation, Map):
            self._map(operation)
        elif operation.elementwise or isinstance(operation, Reduce):
            ins = tuple(map(self._operand, operation.ins))
            if isinstance(operation, Reduce):
                ins = tuple(map(self._of_samples, ins))
            outs = tuple(self._result(operation, view, any(each.batched for each in ins)) for view in operation.outs)
            self.ops.operations.append(replace(operation, outs=outs, ins=ins))
        else:
            self._row_by_row(operation)

    # Products

    def _product(self, operation: MatMul) -> bool:
        """All rows in one product, if they can be; the first rows of the identity times weights are rows of these."""
        (a, b), (out,) = operation.ins, operation.outs
        rows = self._rows.get(a.buffer)
        if rows is None or b.batched or b.buffer in self._rows:
            return False
        whole = a.is_whole and out.ndim == rows.ndim == 2 and _replaces(operation, out)
        if whole and rows.buffer in self._axes and b.buffer.role == "input":
            self._rows[out.buffer] = b.slice(0, 0, self.count)
            return True
        left = _merged(self._of_samples(self._operand(a)))
        if left is None:
            return False
        result = _merged(self._result(operation, out, left.batched))
        if result is None or result.batched != left.batched:
            return False
        self.ops.operations.append(replace(operation, outs=(result,), ins=(left, b)))
        return True

    # Maps

    def _map(self, operation: Map) -> None:
        """One map of what is common to the directions, another one of what is not."""
        formula, first = operation.formula, len(operation.formula.inputs)
        varies = [view.buffer in self._rows for view in operation.ins]
        for instruction in formula.instructions:
            varies.append(any(varies[k] for k in instruction.operands))
        common = [
            k for k, out in enumerate(operation.outs)
            if not varies[formula.outputs[k]] and (out.buffer not in self._rows or _replaces(operation, out))
        ]  # fmt: skip
        along = [k for k in range(len(operation.outs)) if k not in common]
        overwritten = {operation.outs[k].buffer for k in common}
        # The second map reads results of the first one. It reads inputs itself unless the first map overwrites them.
        results = range(first, first + len(formula.instructions))
        used = {k for n in results if varies[n] for k in formula.instructions[n - first].operands if not varies[k]}
        used |= {formula.outputs[k] for k in along if not varies[formula.outputs[k]]}
        kept = sorted(
            k
            for k in used
            if (operation.ins[k].buffer in overwritten if k < first else formula.instructions[k - first].operation != "const")
        )
        places = {k: self._place(operation, formula, k) for k in kept}
        operands = {k: self._operand(view) for k, view in enumerate(operation.ins)} if along else {}
        operands |= {k: self._operand(view) for k, view in places.items()}
        for shape in dict.fromkeys(view.shape for view in places.values()):
            if common and shape == operation.outs[common[0]].shape:
                continue
            self._part(operation, formula, {k: view for k, view in places.items() if view.shape == shape}, [])
        if common:
            shape = operation.outs[common[0]].shape
            self._part(operation, formula, {k: view for k, view in places.items() if view.shape == shape}, common)
        if along:
            second, ins = rest(formula, [formula.outputs[k] for k in along], kept)
            taken = tuple(operands[k] for k in ins)
            batched = any(view.batched for view in taken)
            outs = tuple(self._result(operation, operation.outs[k], batched) for k in along)
            self._append_map(outs, taken, second)

    def _part(self, operation: Map, formula: Formula, places: Mapping[int, View], common: Sequence[int]) -> None:
        """Record a map of these results and outputs."""
        part = replace(formula, outputs=(*(formula.outputs[k] for k in common), *places))
        part, ins = part.only(range(len(part.outputs)))
        outs = (*(operation.outs[k] for k in common), *places.values())
        for k in common:
            self._rows.pop(operation.outs[k].buffer, None)
            self._written.add(operation.outs[k].buffer)
        self._append_map(outs, tuple(operation.ins[k] for k in ins), part)

    def _append_map(self, outs: tuple[View, ...], ins: tuple[View, ...], formula: Formula) -> None:
        self.ops.map(outs, Replay(formula), *ins)

    def _place(self, operation: Map, formula: Formula, number: int) -> View:
        """Memory for a result of the formula, which has samples if its operands have."""
        _, ins = replace(formula, outputs=(number,)).only([0])
        views = [operation.ins[k] for k in ins]
        out = operation.outs[0]
        batched = any(view.batched for view in views)
        shape = out.shape if batched else max((view.shape for view in views), key=len)
        if not batched and any(view.shape != shape for view in views):
            shape = out.sample_shape
        return Buffer("common to directions", "scratch", self.ops.dtype, shape).whole

    # Others

    def _row_by_row(self, operation: Operation) -> None:
        """The operation once for each direction, on copies of its operands."""
        if len(self.ops.operations) > MAX_OPERATIONS:
            raise NotImplementedError(
                f"{operation.name} ({operation.label}) has to be done for each of {self.count} directions, "
                f"which would make a program of more than {MAX_OPERATIONS} operations"
            )
        kept = [view.buffer for view in operation.outs if not _replaces(operation, view)]
        varied = [view.buffer for view in operation.ins if view.buffer in self._rows]
        before = {buffer: self._rows.get(buffer) for buffer in (*varied, *kept)}
        results = {view.buffer: self._target(operation, view, batched=True) for view in operation.outs}
        for number in range(self.count):
            copies = {buffer: replace(buffer.whole, buffer=_like(buffer)) for buffer in (*before, *results)}
            for buffer, copy in copies.items():
                rows = results[buffer] if buffer in kept else before.get(buffer)
                if rows is not None:
                    self.ops.copy(copy, rows.index(1 if rows.batched else 0, number))

            def moved(view: View, copies: Mapping[Buffer, View] = copies) -> View:
                return replace(view, buffer=copies[view.buffer].buffer) if view.buffer in copies else view

            self.ops.operations.append(operation.on(moved))
            for buffer, target in results.items():
                self.ops.copy(target.index(1, number), copies[buffer])

    # Views

    def _operand(self, view: View) -> View:
        """The view as an operand along all directions."""
        if view.buffer in self._rows:
            return self._of_rows(view, self._rows[view.buffer])
        return _samples(view).expand(1) if view.batched else view

    def _of_samples(self, view: View) -> View:
        """The rows of an operand, copied for each sample if all operations must have samples."""
        if view.batched or not self._samples:
            return view
        rows = Buffer("rows of each sample", "scratch", view.dtype, (Batch(), *view.shape)).whole
        self.ops.copy(rows, view)
        return rows

    def _result(self, operation: Operation, view: View, batched: bool) -> View:
        """The view that an operation on rows fills."""
        return self._of_rows(view, self._target(operation, view, batched))

    def _target(self, operation: Operation, view: View, batched: bool) -> View:
        """The rows of the buffer of a view that an operation writes. Entries that it does not overwrite keep their values."""
        buffer = view.buffer
        before = self._rows.get(buffer)
        keeps = not _replaces(operation, view)
        if keeps and before is not None and before.buffer.role == "scratch" and (before.batched or not batched):
            return before
        batched = batched or self._samples or (keeps and (before is None or before.batched))
        shape = (*((Batch(),) if batched else ()), self.count, *buffer.shape[1:])
        if operation.elementwise and before is not None and before.buffer.role == "scratch" and before.shape == shape:
            return before
        rows = Buffer(f"{buffer.name} along directions", "scratch", buffer.dtype, shape).whole
        if keeps and before is not None:
            self.ops.copy(rows, before)
        elif keeps and buffer in self._written:
            self.ops.copy(rows, buffer.whole.expand(1))
        self._rows[buffer] = rows
        return rows

    def _of_rows(self, view: View, rows: View) -> View:
        """The part of the rows that a view of the buffer shows, with the axis of directions after the batch."""
        if view.is_whole and view.shape == view.buffer.shape:
            return rows
        if not rows.contiguous:
            whole = self.ops.scratch("rows", rows.sample_shape, batched=rows.batched)
            self.ops.copy(whole, rows)
            rows = self._rows[view.buffer] = whole
        sample = _samples(view)
        axis = int(rows.batched)
        shape = (*rows.shape[: axis + 1], *sample.shape[1:])
        strides = (*rows.strides[: axis + 1], *sample.strides[1:])
        return replace(sample, buffer=rows.buffer, shape=shape, strides=strides, offset=rows.offset + view.offset)


def _replaces(operation: Operation, view: View) -> bool:
    """Whether an operation overwrites the whole buffer of one of its outs."""
    return view.is_whole and not operation.accumulates


def _merged(view: View) -> View | None:
    """Rows as a matrix, with a row for each sample, direction and position; None if that is impossible."""
    if view.ndim == 2:
        return view
    if view.contiguous:
        return view.rows
    if view.batched and view.ndim == 3 and view.strides[0] == int(view.shape[1]) * view.strides[1]:  # type: ignore[arg-type]
        return replace(view, shape=(Batch(int(view.shape[1])), view.shape[2]), strides=view.strides[1:])  # type: ignore[arg-type]
    return None


def _is_identity(view: View) -> bool:
    data = view.buffer.data
    return data is not None and data.ndim == 2 and len(data) <= len(data[0]) and np.array_equal(data, np.eye(*data.shape))


def _like(buffer: Buffer) -> Buffer:
    return Buffer(f"{buffer.name} along one direction", "scratch", buffer.dtype, buffer.shape)


def _samples(view: View) -> View:
    """The view with a separate axis for the positions of a sample, if samples and positions share one axis."""
    extent = view.shape[0]
    if not isinstance(extent, Batch):
        raise NotImplementedError(f"`{view}` has its samples along another axis than the first")
    if extent.per_sample == 1:
        return view
    stride = view.strides[0]
    shape = (Batch(), extent.per_sample, *view.shape[1:])
    return replace(view, shape=shape, strides=(stride * extent.per_sample, *view.strides))


def rest(formula: Formula, outputs: Sequence[int], known: Sequence[int]) -> tuple[Formula, list[int]]:
    """The formula of these results where those that are `known` are inputs, and the numbers of its inputs."""
    first = len(formula.inputs)
    needed = set(outputs)
    for number in range(first + len(formula.instructions) - 1, first - 1, -1):
        if number in needed and number not in known:
            needed.update(formula.instructions[number - first].operands)
    inputs = [number for number in sorted(needed) if number < first or number in known]
    steps = [number for number in sorted(needed) if number >= first and number not in known]
    renumbered = {number: new for new, number in enumerate((*inputs, *steps))}
    instructions = tuple(
        Instruction(each.operation, tuple(renumbered[k] for k in each.operands), each.value)
        for each in (formula.instructions[number - first] for number in steps)
    )
    names = tuple(f"x{k}" for k in range(len(inputs)))
    return Formula(names, instructions, tuple(renumbered[number] for number in outputs)), inputs
