"""Where the samples of a tile lie: each in one piece, or interleaved, a vector of samples for each element.

Dense layers want the first, so that the vectors run along a sample's features; images want the second, so that they run
along the samples and no width, stride or padding leaves a lane idle. Interleaved buffers are `laned`; their views
carry the strides to show it: 1 along the samples, a multiple of the lanes along everything else. Operations on
images make their operands laned, and elementwise operations follow the operand that they find. Where an operation wants
the other layout of a buffer, a `Relayout` makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chains.operations import (
    Convolve,
    ConvolveInput,
    ConvolveWeight,
    Copy,
    Fill,
    Map,
    MatMul,
    Operation,
    Pool,
    Reduce,
    ScatterAdd,
)
from chains.view import Batch, Buffer, View, c_strides

IMAGES = (Convolve, ConvolveInput, ConvolveWeight, Pool)
_FLEXIBLE = (Map, Reduce, Copy, Fill)


@dataclass(frozen=True)
class Relayout(Operation):
    """out = the operand, the one laned and the other not."""


def laned(view: View, lanes: int) -> View:
    """The same elements in a buffer that is laned."""
    strides = tuple(
        1 if isinstance(extent, Batch) else stride * lanes for extent, stride in zip(view.shape, view.strides, strict=True)
    )
    return replace(view, strides=strides, offset=view.offset * lanes)


def lanes_last(view: View, lanes: int) -> View:
    """A laned view as one of a fixed number of samples along the last axis; one without samples gets an axis of length 1."""
    if not view.batched:
        return view.expand(view.ndim)
    return replace(view, shape=(*view.shape[1:], lanes), strides=(*view.strides[1:], view.strides[0]))


def arrange(operations: Sequence[Operation], lanes: int) -> tuple[list[Operation], frozenset[Buffer]]:
    """The operations with their layouts made to fit, and the buffers that are laned."""
    return _Arrangement(operations, lanes).result()


class _Arrangement:
    def __init__(self, operations: Sequence[Operation], lanes: int) -> None:
        self.operations = operations
        self.lanes = lanes
        self.image_buffers = {v.buffer for o in operations if isinstance(o, IMAGES) for v in o.views if v.batched}
        self.laned: dict[Buffer, bool] = {}  # of the buffers written or read so far
        self.twins: dict[Buffer, Buffer] = {}  # the same contents in the other layout, as long as they are
        self.written: set[Buffer] = set()
        self.arranged: list[Operation] = []

    def result(self) -> tuple[list[Operation], frozenset[Buffer]]:
        if not self.image_buffers:
            return list(self.operations), frozenset()
        for operation in self.operations:
            self._arrange(operation)
        return self.arranged, frozenset(buffer for buffer, laned in self.laned.items() if laned)

    def _arrange(self, operation: Operation) -> None:
        if not any(view.batched for view in operation.views):
            self.arranged.append(operation)
            return
        wanted = self._wanted(operation)
        ins = tuple(self._operand(operation, view, wanted) for view in operation.ins)
        outs, copied_back = [], []
        reads_out = isinstance(operation, ScatterAdd) or (isinstance(operation, MatMul) and operation.accumulate)
        for view in operation.outs:
            if not view.batched:
                outs.append(view)
                continue
            buffer = view.buffer
            own = self.laned.setdefault(buffer, wanted and buffer.role == "scratch")
            partly = not (view.contiguous and view.sample_size == buffer.size)
            if own == wanted:
                outs.append(self._placed(view, buffer))
                self.twins.pop(buffer, None)
            else:
                fresh = buffer not in self.written or not (partly or reads_out)
                twin = self._new_twin(buffer) if fresh else self._twin(buffer)
                outs.append(self._placed(view, twin))
                copied_back.append((buffer, twin))
            self.written.add(buffer)
        self.arranged.append(replace(operation, outs=tuple(outs), ins=ins))
        for buffer, twin in copied_back:
            self._relayout(buffer, twin)
            self.twins[buffer] = twin

    def _wanted(self, operation: Operation) -> bool:
        """Whether the operation is to run on laned operands."""
        if isinstance(operation, IMAGES):
            return True
        whole = all(extent.per_sample == 1 for v in operation.views for extent in v.shape if isinstance(extent, Batch))
        if not isinstance(operation, _FLEXIBLE) or not whole:
            return False
        outs = [view.buffer for view in operation.outs if view.batched]
        known = [self.laned[buffer] for buffer in outs if buffer in self.laned]
        if known:
            return known[0]
        ins = [view.buffer for view in operation.ins if view.batched]
        return any(self.laned.get(buffer, False) for buffer in ins) or (not ins and bool(self.image_buffers.intersection(outs)))

    def _operand(self, operation: Operation, view: View, wanted: bool) -> View:
        if not view.batched:
            return view
        own = self.laned.setdefault(view.buffer, False)
        # A product reads single numbers of its first operand, from wherever they lie.
        by_number = isinstance(operation, MatMul) and view is operation.ins[0] and view.shape.count(Batch()) == 1
        if own == wanted or (own and by_number):
            return self._placed(view, view.buffer)
        return self._placed(view, self._twin(view.buffer))

    def _placed(self, view: View, buffer: Buffer) -> View:
        view = replace(view, buffer=buffer, name=view.name or str(view))
        return laned(view, self.lanes) if self.laned[buffer] else view

    def _twin(self, buffer: Buffer) -> Buffer:
        """The buffer's contents in the other layout."""
        if buffer not in self.twins:
            twin = self.twins[buffer] = self._new_twin(buffer)
            self._relayout(twin, buffer)
        return self.twins[buffer]

    def _new_twin(self, buffer: Buffer) -> Buffer:
        laned = not self.laned[buffer]
        twin = Buffer(f"{buffer.name} {'in lanes' if laned else 'in rows'}", "scratch", buffer.dtype, buffer.shape)
        self.laned[twin] = laned
        return twin

    def _relayout(self, out: Buffer, source: Buffer) -> None:
        views = [self._placed(View(b, (Batch(), b.size), c_strides((Batch(), b.size))), b) for b in (out, source)]
        self.arranged.append(Relayout((views[0],), (views[1],), label="layout"))
