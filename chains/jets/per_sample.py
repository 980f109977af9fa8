"""Pullbacks without their sums over the batch: they give the gradient of each sample instead of the sum.

An array that a pullback sums over the samples, such as the gradient of a weight, gets a row for each sample, and so do the
arrays computed from it. A product that sums over the samples becomes one for each sample. Loops stay loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chains.program.loop import Loop
from chains.program.operations import MatMul, Operation, Reduce
from chains.program.recorder import Recorder
from chains.program.view import Batch, Buffer, Shape, View

MAX_TERMS = 8  # positions of a sample that a product sums over by an operation each; of more it is a product of matrices


class PerSample:
    """Records operations sample by sample.

    `targets` are the arrays that replace buffers without samples: views of shape (batch, *buffer.shape).
    Raises NotImplementedError for operations without a rule.
    """

    def __init__(self, ops: Recorder, targets: dict[Buffer, View]) -> None:
        self.ops = ops
        self._own = dict(targets)

    def record(self, operations: Sequence[Operation]) -> None:
        """Record the operations, in order."""
        for operation in operations:
            with self.ops.label(operation.label):
                self._record(operation)

    def _record(self, operation: Operation) -> None:
        sums = operation.sums_over_batch
        if isinstance(operation, Loop):
            self._loop(operation)
        elif not sums and not any(view.buffer in self._own for view in operation.views):
            self.ops.operations.append(operation)
        elif isinstance(operation, MatMul) and sums:
            self._outer_products(operation)
        elif isinstance(operation, Reduce) and sums and operation.kind == "sum":
            self._sum(operation.outs[0], operation.ins[0])
        elif isinstance(operation, Reduce):
            self._reduce(operation)
        elif operation.elementwise:
            for out in operation.outs:
                if not out.batched:
                    self._twin(out)  # results of rows for each sample have such rows too
            axes = max(view.ndim - view.batched for view in operation.views)
            outs, ins = (tuple(self._lifted(view, axes) for view in views) for views in (operation.outs, operation.ins))
            self.ops.operations.append(replace(operation, outs=outs, ins=ins))
        else:
            raise NotImplementedError(f"there is no rule for a sample's part of {operation.name} ({operation.label})")

    def _loop(self, loop: Loop) -> None:
        """A loop of which each step is done sample by sample."""
        around, self.ops.operations = self.ops.operations, []
        self.record(loop.body)
        body, self.ops.operations = self.ops.operations, around
        self.record(loop.zeros)  # after the body, which decides the arrays that get a row for each sample
        self.ops.operations.append(loop.around(body))

    def _twin(self, view: View) -> View:
        """The view with a row for each sample."""
        buffer = view.buffer
        if buffer not in self._own:
            twin = Buffer(f"{buffer.name} of each sample", "scratch", buffer.dtype, (Batch(), *buffer.shape))
            self._own[buffer] = twin.whole
        whole = self._own[buffer]
        return replace(
            view,
            buffer=whole.buffer,
            shape=(Batch(), *view.shape),
            strides=(whole.strides[0], *view.strides),
            offset=whole.offset + view.offset,
            name=f"{view} of each sample",
        )

    def _lifted(self, view: View, axes: int) -> View:
        """The view as an operand, with axes of length 1 where other operands have `axes` axes in a sample."""
        if view.batched or (view.buffer not in self._own and view.buffer.role != "scratch"):
            return view
        twin = self._twin(view) if view.buffer in self._own else view
        while twin is not view and twin.ndim <= axes:
            twin = twin.expand(1)
        return twin

    def _sum(self, out: View, a: View) -> None:
        a, target = _samples(a), self._twin(out)
        if out.ndim == a.ndim:  # the batch is an axis of length 1
            target = replace(target, shape=(Batch(), *target.shape[2:]), strides=(target.strides[0], *target.strides[2:]))
        while target.ndim < a.ndim:
            target = target.expand(1)
        if target.shape == a.shape:
            self.ops.copy(target, a)
        else:
            self.ops.sum(target, a)

    def _reduce(self, operation: Reduce) -> None:
        """A sum or maximum over other axes than the batch, of an array that has a row for each sample now."""
        a, out = self._twin(operation.ins[0]), self._twin(operation.outs[0])
        while out.ndim < a.ndim:
            out = out.expand(1)
        self.ops.operations.append(replace(operation, outs=(out,), ins=(a,)))

    def _outer_products(self, operation: MatMul) -> None:
        (a, b), target = operation.ins, self._twin(operation.outs[0])
        a, b = _samples(a.T), _samples(b)  # (batch, [positions,] rows), (batch, [positions,] columns)
        positions = int(a.shape[1]) if a.ndim == 3 else 1  # type: ignore[arg-type]
        if positions > MAX_TERMS:
            a = replace(a, shape=(a.shape[0], *a.shape[:0:-1]), strides=(a.strides[0], *a.strides[:0:-1]), name=f"{a}.T")
            self.ops.matmul(target, a, b, accumulate=operation.accumulate)
            return
        for k in range(positions):
            left, right = ((view.index(1, k) if view.ndim == 3 else view) for view in (a, b))
            if k or operation.accumulate:
                self.ops.map(target, lambda total, a, b: total + a * b, target, left.expand(-1), right.expand(1))
            else:
                self.ops.map(target, lambda a, b: a * b, left.expand(-1), right.expand(1))


def _samples(view: View) -> View:
    """The view with a separate axis for the positions of a sample, if samples and positions share one axis."""
    extent = view.shape[0]
    assert isinstance(extent, Batch)
    if extent.per_sample == 1:
        return view
    shape: Shape = (Batch(), extent.per_sample, *view.shape[1:])
    return replace(view, shape=shape, strides=(view.strides[0] * extent.per_sample, *view.strides))
