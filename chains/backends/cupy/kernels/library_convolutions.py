"""Convolutions by the device's library, such as cuDNN, at batch sizes for which it has a plan.

A library takes arrays that begin at multiples of 16 bytes, which parameters in a flat vector rarely do. Others are copied to
scratch and back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chains.backends.cupy.device.cudnn import ALIGNMENT
from chains.backends.cupy.device.interface import Convolution, Convolutions
from chains.backends.cupy.kernels.convolutions import AnyConvolution, parts
from chains.backends.cupy.source.commands import Command, Tiled, untiled
from chains.backends.cupy.source.reduction import Temporary
from chains.program.alias import overlap
from chains.program.operations import Convolve, ConvolveInput, Copy, Operation
from chains.program.view import Buffer, View, concrete


@dataclass(frozen=True)
class Convolved(Command):
    """A convolution that the library does, on these views of x, w and y."""

    convolution: Convolution
    views: tuple[View, ...]
    workspace: Buffer
    label: str = ""


def lowered(
    operation: AnyConvolution, library: Convolutions, temporary: Temporary, otherwise: Callable[[Temporary], list[Command]]
) -> list[Command]:
    """The convolution by the library at batch sizes for which it has a plan; at others by the commands of `otherwise`."""
    views = parts(operation)
    result = 2 if isinstance(operation, Convolve) else 0 if isinstance(operation, ConvolveInput) else 1

    def at(batch: int) -> Convolution:
        first, second, third = (concrete(view.shape, batch) for view in views)
        x, w, y = (view.strides for view in views)
        return Convolution(result, views[0].dtype, (first, second, third), (x, w, y), operation.window)

    def unless(name: str, dtype: np.dtype[Any], elements: Callable[[int], int]) -> Buffer:
        return temporary(name, dtype, lambda batch: elements(batch) if library.workspace(at(batch)) is None else 0)

    workspace = temporary("workspace", np.dtype(np.uint8), lambda batch: library.workspace(at(batch)) or 0)
    others = otherwise(unless)

    def commands(batch: int) -> list[Command]:
        if library.workspace(at(batch)) is None:
            return list(untiled(others, batch))
        return [Convolved(at(batch), views, workspace, operation.label)]

    reads = dict.fromkeys([*(view.buffer for view in views), *(buffer for command in others for buffer in command.reads)])
    writes = dict.fromkeys([workspace, *(buffer for command in others for buffer in command.writes)])
    return [Tiled(commands, tuple(reads), tuple(writes), operation.label)]


def with_operands(operations: Sequence[Operation], scratch: Callable[[View], View]) -> list[Operation]:
    """The operations with copies before and after convolutions, for arrays that the library cannot take in place."""
    result: list[Operation] = []
    copied: dict[View, View] = {}  # the copies that are up to date
    for operation in operations:
        steps = [operation]
        if isinstance(operation, AnyConvolution):
            for view in operation.ins:
                if _is_misaligned(view) and view not in copied:
                    copied[view] = scratch(view)
                    result.append(Copy((copied[view],), (view,), label=operation.label))
            (y,) = operation.outs
            out = scratch(y) if _is_misaligned(y) else y
            steps = [replace(operation, outs=(out,), ins=tuple(copied.get(view, view) for view in operation.ins))]
            if out is not y:
                steps.append(Copy((y,), (out,), label=operation.label))
        result += steps
        written = [view for each in steps for view in each.writes]
        copied = {view: copy for view, copy in copied.items() if not any(overlap(view, out) for out in written)}
    return result


def _is_misaligned(view: View) -> bool:
    return view.offset * view.dtype.itemsize % ALIGNMENT != 0
