"""Activations and cotangents stored in 16 bits, for the backends "cupy-f16" and "cupy-bf16-activations".

What products and convolutions of samples read and write is rounded to nearest when it is stored, and what pools and elementwise
operations compute between these. Everything is computed and added in float32. Parameters, their gradients and the optimiser's
moments stay float32: parameters are copied to 16 bits once a step. So do random numbers, losses, and what is summed or
compared within a sample, as for softmax and normalisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chains.backends.cupy.kernels.convolutions import AnyConvolution
from chains.backends.cupy.kernels.operands import copied
from chains.backends.cupy.source.c_source import BFLOAT16, FLOAT16
from chains.program.alias import meet
from chains.program.operations import Copy, MatMul, Operation, Pool, Reduce
from chains.program.view import Buffer, View, c_strides

TYPES = {"f16": FLOAT16, "bf16-activations": BFLOAT16}  # by precision of a device


def with_half_activations(operations: Sequence[Operation], dtype: np.dtype[Any], convolved: bool) -> list[Operation]:
    """The operations on buffers of this type, where they may be.

    `convolved`: whether a library does convolutions; otherwise what these read and write stays float32.
    """
    chosen = _chosen(operations, convolved)
    changed = {buffer: replace(buffer, dtype=dtype) for buffer in chosen}
    halved = [each.on(lambda view: replace(view, buffer=changed.get(view.buffer, view.buffer))) for each in operations]
    return _Factors(halved, dtype).operations if chosen else list(operations)


def _chosen(operations: Sequence[Operation], convolved: bool) -> set[Buffer]:
    """The buffers that are rounded."""
    able: dict[Buffer, bool] = {}
    for operation in operations:
        for view in operation.views:
            able[view.buffer] = able.get(view.buffer, _is_activation(view.buffer)) and _takes(operation, view, convolved)
    possible = {buffer for buffer, is_able in able.items() if is_able}
    products = [each for each in operations if isinstance(each, (MatMul, *AnyConvolution.__args__))]
    chosen = {view.buffer for each in products for view in each.views} & possible
    summed = {view.buffer for each in operations if isinstance(each, Reduce) for view in each.ins}
    between = possible - summed - _from_data(operations, chosen)
    made = _reached(operations, chosen, between, forward=True)
    return chosen | made & _reached(operations, chosen, between, forward=False)


def _from_data(operations: Sequence[Operation], chosen: set[Buffer]) -> set[Buffer]:
    """What elementwise operations compute from the caller's samples: losses, and cotangents that are still to be scaled."""
    found: set[Buffer] = set()
    for operation in operations:
        buffers = [view.buffer for view in operation.ins if view.batched]
        if operation.elementwise and any(each.role != "scratch" or each in found - chosen for each in buffers):
            found |= {view.buffer for view in operation.outs}
    return found


def _is_activation(buffer: Buffer) -> bool:
    return buffer.role == "scratch" and buffer.batched and buffer.dtype == np.float32


def _takes(operation: Operation, view: View, convolved: bool) -> bool:
    """Whether the operation can work on this view in 16 bits."""
    if isinstance(operation, Reduce):
        return operation.kind == "sum" and view in operation.ins and not operation.outs[0].batched
    if isinstance(operation, MatMul):
        return not (operation.accumulate and view in operation.outs)
    return operation.elementwise or isinstance(operation, Pool) or (convolved and isinstance(operation, AnyConvolution))


def _reached(operations: Sequence[Operation], start: set[Buffer], between: set[Buffer], *, forward: bool) -> set[Buffer]:
    """What pools and elementwise operations compute from these buffers; backwards, what these are computed from."""
    found = set(start)
    steps = [each for each in operations if each.elementwise or isinstance(each, Pool)]
    while True:
        size = len(found)
        for each in steps if forward else reversed(steps):
            read, written = ({view.buffer for view in views} for views in (each.ins, each.outs))
            before, after = (read, written) if forward else (written, read)
            if before & found:
                found |= after & between
        if len(found) == size:
            return found


class _Factors:
    """The operations with both factors of a product in 16 bits, where one is, or the result."""

    def __init__(self, operations: Sequence[Operation], dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._kept: dict[View, View] = {}  # the copies that are up to date
        self._kept = dict(self._parameters(operations))
        label = operations[0].label if operations else ""
        self.operations: list[Operation] = copied([(place, view) for view, place in self._kept.items()], label)
        for operation in operations:
            if isinstance(operation, MatMul) and self._rounded(operation):
                operation = replace(operation, ins=tuple(self._factor(view, operation.label) for view in operation.ins))
            self.operations.append(operation)
            self._kept = {v: place for v, place in self._kept.items() if not any(meet(v, out) for out in operation.writes)}

    def _rounded(self, product: MatMul) -> bool:
        return any(view.dtype == self._dtype for view in product.views)

    def _parameters(self, operations: Sequence[Operation]) -> list[tuple[View, View]]:
        """Factors without samples that nothing has written to before they are read, with places for them."""
        found: dict[View, View] = {}
        written: list[View] = []
        for operation in operations:
            for view in operation.ins if isinstance(operation, MatMul) and self._rounded(operation) else ():
                own = _upright(view)
                if not view.batched and view.dtype != self._dtype and not any(meet(view, out) for out in written):
                    found.setdefault(own, self._room(own))
            written += operation.writes
        return list(found.items())

    def _factor(self, view: View, label: str) -> View:
        if view.dtype == self._dtype:
            return view
        own = _upright(view)
        if own not in self._kept:
            self._kept[own] = self._room(own)
            self.operations.append(Copy((self._kept[own],), (own,), label=label))
        return self._kept[own] if own == view else self._kept[own].T

    def _room(self, view: View) -> View:
        buffer = Buffer(f"{view} in 16 bits", "scratch", self._dtype, view.shape)
        return View(buffer, view.shape, c_strides(view.shape))


def _upright(view: View) -> View:
    """The matrix, or its transpose where that is how it lies."""
    return view.T if view.strides[0] < view.strides[1] else view
