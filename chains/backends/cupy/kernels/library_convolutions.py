"""Convolutions of a program that the device's library does, cuDNN for example, at batch sizes for which it has a plan.

The library takes a bias behind a convolution along, and relu behind that:

    y = convolve(x, w);  y = y + b                    bias
    y = convolve(x, w);  y = max(y + b, 0)            relu_bias
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chains.backends.cupy.device.interface import Convolution, Convolutions
from chains.backends.cupy.kernels.convolutions import AnyConvolution, parts
from chains.backends.cupy.kernels.epilogues import FORWARD, equal
from chains.backends.cupy.source.c_source import computed
from chains.backends.cupy.source.commands import Command, Tiled, untiled
from chains.backends.cupy.source.reduction import Temporary
from chains.program.alias import same
from chains.program.operations import Convolve, ConvolveInput, Map, Operation
from chains.program.program import Program
from chains.program.view import Buffer, View, concrete

KINDS = ("bias", "relu_bias")  # of `epilogues.FORWARD`


@dataclass(frozen=True)
class FusedConvolve(Operation):
    """A convolution and the map `after` it, for the operands (x, w, bias); `kind` is one of `KINDS`."""

    convolution: Convolve
    after: Map
    kind: str

    @property
    def name(self) -> str:
        return f"convolve_{self.kind}"


@dataclass(frozen=True)
class Convolved(Command):
    """A convolution that the library does, on these views of x, w and y, and of the bias where one goes along.

    `plain` are commands that do the same, where the library has to try out what is faster.
    """

    convolution: Convolution
    views: tuple[View, ...]
    workspace: Buffer
    label: str = ""
    plain: tuple[Command, ...] = ()


def convolved(program: Program) -> set[str]:
    """The buffers that convolutions of a program work on, by name."""
    return {view.buffer.name for each in program.operations if isinstance(each, AnyConvolution) for view in each.views}


def with_biases(operations: Sequence[Operation], others: Sequence[Operation] = ()) -> list[Operation]:
    """The operations with convolutions and the maps behind them that a library takes along made one; not with the `others`."""
    result: list[Operation] = []
    left = {id(each) for each in others}
    for operation in operations:
        before = result[-1] if result else None
        behind = operation if isinstance(operation, Map) and id(operation) not in left else None
        fused = _with_bias(before, behind) if isinstance(before, Convolve) and behind is not None else None
        if fused is None:
            result.append(operation)
        else:
            result[-1] = fused
    return result


def _with_bias(convolution: Convolve, after: Map) -> FusedConvolve | None:
    """Both as one operation, where the map adds a vector with an entry for each channel, and does no more than relu to that."""
    (y,) = convolution.outs
    kind = next((kind for kind in KINDS if equal(FORWARD[kind], after.formula)), None)
    if kind is None or len(after.outs) != 1 or not same(after.outs[0], y) or not same(after.ins[0], y):
        return None
    out, bias = after.outs[0], after.ins[1]
    per_channel = (y.shape[1], *(1 for _ in out.shape[2:]))
    if (
        bias.shape != per_channel
        or bias.strides[0] != 1
        or bias.buffer is y.buffer
        or computed(bias.dtype) != computed(y.dtype)
    ):
        return None
    vector = View(bias.buffer, bias.shape[:1], (1,), bias.offset, bias.name, bias.moves)
    return FusedConvolve((y,), (*convolution.ins, vector), convolution, after, kind, label=after.label)


def lowered(
    operation: AnyConvolution, library: Convolutions, temporary: Temporary, otherwise: Callable[[Temporary], list[Command]]
) -> list[Command]:
    """The convolution by the library at batch sizes for which it has a plan, at others by the commands of `otherwise`."""
    views = parts(operation)
    result = 2 if isinstance(operation, Convolve) else 0 if isinstance(operation, ConvolveInput) else 1
    return _by_plan(lambda batch: _described(result, views, operation, batch), views, library, temporary, otherwise, False)


def lowered_with_bias(
    operation: FusedConvolve, library: Convolutions, temporary: Temporary, otherwise: Callable[[Temporary], list[Command]]
) -> list[Command]:
    """The convolution with what follows it by the library, or one after the other by the commands of `otherwise`."""
    convolution, bias = operation.convolution, operation.ins[2]
    views = (*operation.ins[:2], *operation.outs)

    def at(batch: int) -> Convolution:
        return replace(_described(2, views, convolution, batch), after=operation.kind)

    return _by_plan(at, (*views, bias), library, temporary, otherwise, library.tries)


def _described(result: int, views: Sequence[View], operation: AnyConvolution, batch: int) -> Convolution:
    """The convolution at a batch size, for the library."""
    first, second, third = (concrete(view.shape, batch) for view in views)
    x, w, y = (view.strides for view in views)
    return Convolution(result, views[0].dtype, (first, second, third), (x, w, y), operation.window)


def _by_plan(
    at: Callable[[int], Convolution],
    views: tuple[View, ...],
    library: Convolutions,
    temporary: Temporary,
    otherwise: Callable[[Temporary], list[Command]],
    both: bool,
) -> list[Command]:
    """The library's plan where there is one; `both` where it is to be compared with the other commands."""

    def unless(name: str, dtype: np.dtype[Any], elements: Callable[[int], int]) -> Buffer:
        needed = lambda batch: both or library.workspace(at(batch)) is None  # noqa: E731
        return temporary(name, dtype, lambda batch: elements(batch) if needed(batch) else 0)

    workspace = temporary("workspace", np.dtype(np.uint8), lambda batch: library.workspace(at(batch)) or 0)
    others = otherwise(unless)

    def commands(batch: int) -> list[Command]:
        plain = list(untiled(others, batch)) if both or library.workspace(at(batch)) is None else []
        if library.workspace(at(batch)) is None:
            return plain
        return [Convolved(at(batch), views, workspace, others[-1].label, tuple(plain))]

    reads = dict.fromkeys([*(view.buffer for view in views), *(buffer for command in others for buffer in command.reads)])
    writes = dict.fromkeys([workspace, *(buffer for command in others for buffer in command.writes)])
    return [Tiled(commands, tuple(reads), tuple(writes), others[-1].label)]
