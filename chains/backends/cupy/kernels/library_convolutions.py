"""Convolutions of a program that the device's library does, cuDNN for example, at batch sizes for which it has a plan.

A library takes arrays that begin at multiples of 16 bytes, which parameters in a flat vector rarely do. What begins elsewhere
goes through scratch: all parameters of a program by one launch, and all gradients by another, as late as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from chains.backends.cupy.device.cudnn import ALIGNMENT
from chains.backends.cupy.device.interface import Convolution, Convolutions
from chains.backends.cupy.kernels.convolutions import AnyConvolution, parts
from chains.backends.cupy.source.axes import Space, count, count_text
from chains.backends.cupy.source.commands import Command, Pointers, Source, Tiled, blocks, each_element, indented, untiled
from chains.backends.cupy.source.reduction import Temporary
from chains.program.alias import meet
from chains.program.operations import Convolve, ConvolveInput, Copy, Operation
from chains.program.program import Program
from chains.program.view import Buffer, View, c_strides, concrete


@dataclass(frozen=True)
class Convolved(Command):
    """A convolution that the library does, on these views of x, w and y."""

    convolution: Convolution
    views: tuple[View, ...]
    workspace: Buffer
    label: str = ""


def convolved(program: Program) -> set[str]:
    """The buffers that convolutions of a program work on, by name."""
    return {view.buffer.name for each in program.operations if isinstance(each, AnyConvolution) for view in each.views}


def lowered(
    operation: AnyConvolution, library: Convolutions, temporary: Temporary, otherwise: Callable[[Temporary], list[Command]]
) -> list[Command]:
    """The convolution by the library at batch sizes for which it has a plan, at others by the commands of `otherwise`."""
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


# Arrays that begin elsewhere


@dataclass(frozen=True)
class Copies(Operation):
    """Each of `outs` = the operand at its place, which no other of `outs` overlaps."""


def copies(source: Source, operation: Copies) -> list[Command]:
    """One launch, in which all threads do one copy after another: they are short."""
    pointers, body, spaces = Pointers(), [], []
    for out, a in zip(operation.outs, operation.ins, strict=True):
        space = Space(out.shape, [out, a])
        value = f"{pointers(a.buffer)}[{space.index_of(a)}]"
        line = f"{pointers(out.buffer, write=True)}[{space.index_of(out)}] = {value};"
        body += ["{", *indented(each_element(count_text(space.kept), [*space.kept_lines, line])), "}"]
        spaces.append(space)
    grid = lambda batch: (blocks(max(count(space.kept, batch) for space in spaces)), 1)  # noqa: E731
    return [pointers.launch(source, "copies", body, grid, label=operation.label)]


def with_operands(operations: Sequence[Operation]) -> list[Operation]:
    """The operations with copies before and after convolutions, of what the library cannot take where it is."""
    placing = _Placing()
    parameters = _parameters(operations)
    for operation in operations:
        placing.add(operation, parameters)
    placing.copy_results()
    return placing.operations


def _parameters(operations: Sequence[Operation]) -> list[View]:
    """What convolutions read of parameters and cannot take where it is."""
    found: dict[View, None] = {}
    written: list[View] = []
    for operation in operations:
        for view in operation.ins if isinstance(operation, AnyConvolution) else ():
            fixed = not view.batched and view.buffer.role != "scratch" and not any(meet(view, out) for out in written)
            if fixed and _is_misaligned(view):
                found[view] = None
        written += operation.writes
    return list(found)


@dataclass
class _Placing:
    operations: list[Operation] = field(default_factory=list)
    _copied: dict[View, View] | None = None  # the copies that are up to date
    _results: list[tuple[View, View]] = field(default_factory=list)  # copies of parameters' gradients, still to be made

    def add(self, operation: Operation, parameters: Sequence[View]) -> None:
        after: list[Operation] = []
        if isinstance(operation, AnyConvolution):
            if self._copied is None:
                self._copied = {view: _room(view) for view in parameters}
                self._copy([(place, view) for view, place in self._copied.items()], operation.label)
            operation, after = self._placed(operation, self._copied)
        if any(meet(to, view) for to, _ in self._results for view in operation.views):
            self.copy_results()
        for each in (operation, *after):
            self.operations.append(each)
            for view in [view for view in self._copied or {} if any(meet(view, out) for out in each.writes)]:
                del (self._copied or {})[view]

    def copy_results(self) -> None:
        """Copy the results that wait for it."""
        self._copy(self._results, self.operations[-1].label if self.operations else "")
        self._results = []

    def _copy(self, pairs: Sequence[tuple[View, View]], label: str) -> None:
        if pairs:
            self.operations.append(Copies(tuple(to for to, _ in pairs), tuple(view for _, view in pairs), label=label))

    def _placed(self, operation: AnyConvolution, copied: dict[View, View]) -> tuple[Operation, list[Operation]]:
        """The convolution on copies, and what copies a result of images."""
        for view in operation.ins:
            if _is_misaligned(view) and view not in copied:
                copied[view] = _room(view)
                self.operations.append(Copy((copied[view],), (view,), label=operation.label))
        (y,), after = operation.outs, list[Operation]()
        out = _room(y) if _is_misaligned(y) else y
        if out is not y and y.batched:
            after = [Copy((y,), (out,), label=operation.label)]
        elif out is not y:
            self._results.append((y, out))
        return replace(operation, outs=(out,), ins=tuple(copied.get(view, view) for view in operation.ins)), after


def _is_misaligned(view: View) -> bool:
    return view.offset * view.dtype.itemsize % ALIGNMENT != 0


def _room(view: View) -> View:
    """Scratch for a copy."""
    return View(Buffer(f"{view} staged", "scratch", view.dtype, view.shape), view.shape, c_strides(view.shape))
