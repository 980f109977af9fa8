"""Convolutions of a program that the device's library does, cuDNN for example, at batch sizes for which it has a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chains.backends.cupy.device.cudnn import ALIGNMENT
from chains.backends.cupy.device.interface import Convolution, Convolutions
from chains.backends.cupy.kernels.convolutions import AnyConvolution, parts
from chains.backends.cupy.source.commands import Command, Tiled, untiled
from chains.backends.cupy.source.reduction import Temporary
from chains.program.operations import Convolve, ConvolveInput, Copy, Operation
from chains.program.program import Program
from chains.program.view import Buffer, View, concrete


@dataclass(frozen=True)
class Convolved(Command):
    """A convolution that cuDNN does, on these views of x, w and y."""

    convolution: Convolution
    views: tuple[View, View, View]
    workspace: Buffer
    label: str = ""


def convolved(program: Program) -> set[str]:
    """The buffers that convolutions of a program work on, by name."""
    return {view.buffer.name for each in program.operations if isinstance(each, AnyConvolution) for view in each.views}


def prepared(operation: AnyConvolution, scratch: Callable[[View], View]) -> list[Operation]:
    """The convolution with copies, through scratch, of what begins where the library cannot take it: parameters, mostly."""

    def place(view: View) -> View:
        return scratch(view) if view.offset * view.dtype.itemsize % ALIGNMENT else view

    ins, (out,) = tuple(map(place, operation.ins)), operation.outs
    moved = replace(operation, outs=(place(out),), ins=ins)
    pairs = zip(ins, operation.ins, strict=True)
    before = [Copy((to,), (view,), label=operation.label) for to, view in pairs if to is not view]
    after = [Copy((out,), moved.outs, label=operation.label)] if moved.outs[0] is not out else []
    return [*before, moved, *after]


def lowered(
    operation: AnyConvolution, library: Convolutions, temporary: Temporary, otherwise: Callable[[Temporary], list[Command]]
) -> list[Command]:
    """The convolution by the library at batch sizes for which it has a plan, at others by the commands of `otherwise`."""
    views = parts(operation)
    result = 2 if isinstance(operation, Convolve) else 0 if isinstance(operation, ConvolveInput) else 1
    x, w, y = (view.strides for view in views)

    def at(batch: int) -> Convolution:
        first, second, third = (concrete(view.shape, batch) for view in views)
        return Convolution(result, views[0].dtype, (first, second, third), (x, w, y), operation.window)

    def unless(name: str, dtype: np.dtype[Any], elements: Callable[[int], int]) -> Buffer:
        return temporary(name, dtype, lambda batch: elements(batch) if library.workspace(at(batch)) is None else 0)

    workspace = temporary("workspace", np.dtype(np.uint8), lambda batch: library.workspace(at(batch)) or 0)
    others = otherwise(unless)

    def commands(batch: int) -> list[Command]:
        if library.workspace(at(batch)) is None:
            return list(untiled(others, batch))
        return [Convolved(at(batch), views, workspace, operation.label)]

    reads = dict.fromkeys(buffer for command in others for buffer in command.reads)
    writes = dict.fromkeys([workspace, *(buffer for command in others for buffer in command.writes)])
    return [Tiled(commands, tuple(reads), tuple(writes), operation.label)]
