"""What convolutions of a library read and write, put where the library can take it.

A library wants arrays to begin at multiples of 16 bytes, which parameters in a flat vector rarely do, and kernels in the
layout and the type of the images. What lies otherwise goes through scratch: all parameters of a program by one launch, and
all gradients of parameters by another, as late as they may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from chains.backends.cupy.device.cudnn import ALIGNMENT
from chains.backends.cupy.kernels.channels_last import CONVOLUTIONS, in_memory_order, is_last, last_strides, permuted
from chains.backends.cupy.kernels.library_convolutions import FusedConvolve
from chains.backends.cupy.source.axes import Space, count, count_text
from chains.backends.cupy.source.c_source import converted, ctype
from chains.backends.cupy.source.commands import Command, Pointers, Source, blocks, each_element
from chains.program.alias import meet
from chains.program.operations import Copy, Operation
from chains.program.view import Buffer, View, c_strides

Wanted = tuple[View, "np.dtype[Any]"]  # what is read, and the type it is to have


@dataclass(frozen=True)
class Copies(Operation):
    """Each of `outs` = the operand at its place, which no other of `outs` overlaps."""


def copied(pairs: Sequence[tuple[View, View]], label: str) -> list[Operation]:
    """The operations that copy, for each pair, the second view to the first."""
    if len(pairs) < 2:
        return [Copy((to,), (view,), label=label) for to, view in pairs]
    return [Copies(tuple(to for to, _ in pairs), tuple(view for _, view in pairs), label=label)]


def copies(source: Source, operation: Copies) -> list[Command]:
    """One launch, in which all threads do one copy after another: they are short."""
    pointers, body, spaces = Pointers(), [], []
    for out, a in zip(operation.outs, operation.ins, strict=True):
        space = Space(out.shape, [out, a])
        value = converted(f"{pointers(a.buffer)}[{space.index_of(a)}]", ctype(a.dtype), ctype(out.dtype))
        line = f"{pointers(out.buffer, write=True)}[{space.index_of(out)}] = {value};"
        body += ["{", *(f"    {each}" for each in each_element(count_text(space.kept), [*space.kept_lines, line])), "}"]
        spaces.append(space)
    grid = lambda batch: (blocks(max(count(space.kept, batch) for space in spaces)), 1)  # noqa: E731
    return [pointers.launch(source, "copies", body, grid, label=operation.label)]


def with_operands(operations: Sequence[Operation], last: bool) -> list[Operation]:
    """The operations with copies before and after convolutions, of what the library cannot take where it is.

    `last`: whether images and kernels are to have their channels innermost.
    """
    placing = _Placing(operations, last)
    for operation in operations:
        placing.add(operation)
    placing.finish()
    return placing.operations


@dataclass
class _Placing:
    given: Sequence[Operation]
    last: bool
    operations: list[Operation] = field(default_factory=list)
    _kept: dict[Wanted, View] | None = None  # the copies that are up to date
    _results: list[tuple[View, View]] = field(default_factory=list)  # copies of parameters' gradients, still to be made

    def add(self, operation: Operation) -> None:
        images: list[Operation] = []
        if isinstance(operation, CONVOLUTIONS):
            operation, images = self._placed(operation)
        if any(meet(to, view) for to, _ in self._results for view in operation.views):
            self.finish()
        for each in (operation, *images):
            self.operations.append(each)
            kept = self._kept or {}
            for key in [key for key in kept if any(meet(key[0], out) for out in each.writes)]:
                del kept[key]

    def finish(self) -> None:
        """Copy the results that wait for it."""
        self.operations += copied(self._results, self.operations[-1].label if self.operations else "")
        self._results = []

    def _placed(self, operation: Operation) -> tuple[Operation, list[Operation]]:
        """The convolution on copies, and what copies a result of images."""
        if self._kept is None:
            self._kept = dict(self._parameters())
            self.operations += copied([(place, view) for (view, _), place in self._kept.items()], operation.label)
        (y,), dtype = operation.outs, _type_of(operation)
        if isinstance(operation, FusedConvolve) and self._moved(y, dtype):
            return self._placed_both(operation)
        ins = tuple(self._at(view, dtype) for view in operation.ins)
        out = self._room(y, dtype) if self._moved(y, dtype) else y
        after: list[Operation] = []
        if out is not y and not y.batched:
            self._results.append((y, out))
        elif out is not y:
            after = [_image_copy(y, out, operation.label)]
        operation = replace(operation, outs=(out,), ins=ins)
        if isinstance(operation, FusedConvolve):
            plain = replace(operation.convolution, outs=(out,), ins=ins[:2])
            operation = replace(operation, convolution=plain)
        return operation, after

    def _placed_both(self, operation: FusedConvolve) -> tuple[Operation, list[Operation]]:
        """One after the other: the copy of the convolution's result can be part of the map's kernel."""
        convolution, after = self._placed(operation.convolution)
        return convolution, [*after, operation.after]

    def _parameters(self) -> list[tuple[Wanted, View]]:
        """What convolutions read of parameters and cannot take where it is, with places in scratch."""
        found: dict[Wanted, View] = {}
        written: list[View] = []
        for operation in self.given:
            for view in operation.ins if isinstance(operation, CONVOLUTIONS) else ():
                fixed = not view.batched and view.buffer.role != "scratch" and not any(meet(view, out) for out in written)
                dtype = _type_of(operation)
                if fixed and self._moved(view, dtype):
                    found.setdefault((view, dtype), self._room(view, dtype))
            written += operation.writes
        return list(found.items())

    def _at(self, view: View, dtype: np.dtype[Any]) -> View:
        """The view, or an up-to-date copy of it."""
        assert self._kept is not None
        if not self._moved(view, dtype):
            return _canonical(view) if self.last else view
        if (view, dtype) not in self._kept:
            place = self._kept[view, dtype] = self._room(view, dtype)
            self.operations.append(_image_copy(place, view, ""))
        return self._kept[view, dtype]

    def _moved(self, view: View, dtype: np.dtype[Any]) -> bool:
        """Whether the library cannot take the view where it is, for an operation on this type."""
        laid_otherwise = self.last and view.ndim == 4 and not is_last(view)
        return laid_otherwise or view.dtype != dtype or view.offset * view.dtype.itemsize % ALIGNMENT != 0

    def _room(self, view: View, dtype: np.dtype[Any]) -> View:
        """Scratch for a copy."""
        buffer = Buffer(f"{view} staged", "scratch", dtype, view.shape)
        return View(buffer, view.shape, last_strides(view.shape) if self.last and view.ndim == 4 else c_strides(view.shape))


def _type_of(operation: Operation) -> np.dtype[Any]:
    """The type of a convolution's images: that of 16 bits where one has it."""
    return min((view.dtype for view in operation.views), key=lambda dtype: dtype.itemsize)


def _canonical(view: View) -> View:
    """The same elements; axes of length 1 have the strides that a library expects of the layout."""
    return replace(view, strides=last_strides(view.shape)) if view.ndim == 4 else view


def _image_copy(to: View, view: View, label: str) -> Copy:
    """A copy that goes through the array as it is written."""
    order = in_memory_order(to)
    return Copy((permuted(to, order),), (permuted(view, order),), label=label)
