"""Convolutions of many channels as matrix products: the kernels times the patches of the images.

The patches, a row for each entry of a window and a column for each sample and position, are many times larger than the
images. So they are made for a few samples at a time, in scratch of bounded size. Nothing is added in an order that
could change: each element of an input's gradient collects what it took part in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from chains.backends.cupy.kernels.images import at, covering
from chains.backends.cupy.source.c_source import ctype, half_name, literal
from chains.backends.cupy.source.commands import (
    Command,
    Kernel,
    Launch,
    Matrix,
    Pointers,
    Product,
    Source,
    Tiled,
    blocks,
    each_element,
)
from chains.backends.cupy.source.reduction import Temporary
from chains.program.operations import Convolve, ConvolveInput, ConvolveWeight
from chains.program.view import Buffer, View, concrete

PATCHES_BYTES = 64 << 20  # at a time, or as many as one sample needs

AnyConvolution = Convolve | ConvolveInput | ConvolveWeight

# Entries of the kernels from which on a product pays: estimates, not measured on a GPU. The kernel for the gradient of kernels
# needs 30 instructions a multiplication (counted in machine code), a product less than one.
LEAST_PRODUCT_ELEMENTS: dict[type[AnyConvolution], int] = {Convolve: 1 << 12, ConvolveInput: 1 << 12, ConvolveWeight: 1 << 6}


def is_product(operation: AnyConvolution) -> bool:
    """Whether the convolution is done as a product."""
    w = parts(operation)[1]
    large = math.prod(concrete(w.shape, 1)) >= LEAST_PRODUCT_ELEMENTS[type(operation)]
    return operation.groups == 1 and w.contiguous and large and not half_name(w.dtype)


def parts(operation: AnyConvolution) -> tuple[View, View, View]:
    """The views of the images, the kernels and the result of the convolution, or of their gradients."""
    (out,), (first, second) = operation.outs, operation.ins
    if isinstance(operation, Convolve):
        return first, second, out
    if isinstance(operation, ConvolveInput):
        return out, second, first
    return first, out, second


@dataclass(frozen=True)
class Part:
    """Samples to do at a time."""

    start: int
    samples: int


class Lowering:
    """The kernels and products of one convolution."""

    def __init__(self, source: Source, operation: AnyConvolution, temporary: Temporary) -> None:
        self.source, self.operation = source, operation
        self.x, self.w, self.y = parts(operation)
        self.kind = ctype(self.x.dtype)
        (self.outputs, *entry), (_, _, *positions) = concrete(self.w.shape, 1), concrete(self.y.shape, 1)
        self.entries, self.positions = math.prod(entry), math.prod(positions)
        each = self.positions * self.x.dtype.itemsize
        self.most = max(1, PATCHES_BYTES // (self.entries * each))
        self.patches = temporary("patches", self.x.dtype, lambda batch: self.entries * self.positions * min(batch, self.most))
        self.rows = temporary("rows", self.x.dtype, lambda batch: self.outputs * self.positions * min(batch, self.most))

    def commands(self) -> list[Command]:
        recipe = {Convolve: self._forward, ConvolveInput: self._input, ConvolveWeight: self._weight}[type(self.operation)]()
        buffers = dict.fromkeys(buffer for view in self.operation.ins for buffer in (view.buffer,))
        written = dict.fromkeys([self.operation.outs[0].buffer, self.patches, self.rows])

        def make(batch: int) -> list[Command]:
            parts = [Part(start, min(self.most, batch - start)) for start in range(0, batch, self.most)]
            return [command(part) for part in parts for command in recipe]

        return [Tiled(make, tuple(buffers), tuple(written), self.operation.label)]

    # What is done for each part

    def _forward(self) -> list[Callable[[Part], Command]]:
        product = partial(
            self._product, self.rows, self._kernels(False), (self.patches, False), "outputs", "columns", "entries"
        )
        return [self._gather_patches(), product, self._move(self.rows, self.y, into_image=True)]

    def _input(self) -> list[Callable[[Part], Command]]:
        product = partial(self._product, self.patches, self._kernels(True), (self.rows, False), "entries", "columns", "outputs")
        return [self._move(self.rows, self.y, into_image=False), product, self._fold()]

    def _weight(self) -> list[Callable[[Part], Command]]:
        product = partial(self._product, self.w, (self.rows, False), (self.patches, True), "outputs", "entries", "columns")
        return [self._gather_patches(), self._move(self.rows, self.y, into_image=False), product]

    def _kernels(self, transposed: bool) -> tuple[View, bool]:
        return self.w, transposed

    def _product(
        self, out: Any, a: tuple[Any, bool], b: tuple[Any, bool], rows: str, columns: str, inner: str, part: Part
    ) -> Product:
        sizes = {"outputs": self.outputs, "entries": self.entries, "columns": part.samples * self.positions}
        leading = {id(self.w): self.entries, id(self.rows): sizes["columns"], id(self.patches): sizes["columns"]}
        left, right = (Matrix(_vector(place), leading[id(place)], turned) for place, turned in (a, b))
        size = (sizes[rows], sizes[columns], sizes[inner])
        adds = out is self.w and part.start > 0
        return Product(_vector(out), left, right, lambda batch: size, leading[id(out)], adds, label=self.operation.label)

    def _launch(
        self, hint: str, count: str, elements: int, pointers: Pointers, body: Sequence[str]
    ) -> Callable[[Part], Command]:
        """A launch for each part with a thread for each of `elements` numbers a sample."""
        lines = each_element(count, body)
        names = ("start", "samples")
        first = pointers.launch(self.source, hint, lines, lambda batch: (1, 1), extra=names, label=self.operation.label)
        return partial(_for_part, first.kernel, first, elements)

    def _gather_patches(self) -> Callable[[Part], Command]:
        """patches[k, s, position] = the pixel that entry k of the window sees there, 0 in the padding."""
        pointers, window, x = Pointers(), self.operation.window, self.x
        (rows, columns), (height, width) = window.size, (self.y.shape[2], self.y.shape[3])
        into, image = pointers(self.patches, write=True), pointers(x.buffer)
        body = [
            f"const Index w = i % {width}; const Index h = i / {width} % {height};",
            f"const Index n = i / {self.positions} % samples + start; const Index k = i / {self.positions} / samples;",
            f"const Index kw = k % {columns}; const Index kh = k / {columns} % {rows}; const Index c = k / {rows * columns};",
            f"const Index ih = h * {window.stride[0]} + kh * {window.dilation[0]} - {window.padding[0][0]};",
            f"const Index iw = w * {window.stride[1]} + kw * {window.dilation[1]} - {window.padding[1][0]};",
            f"{into}[i] = ih < 0 || ih >= {x.shape[2]} || iw < 0 || iw >= {x.shape[3]} ? {literal(0.0, self.kind)}",
            f"    : {image}[{at(x, 'n', 'c', 'ih', 'iw')}];",
        ]
        count = f"samples * {self.positions * self.entries}"
        return self._launch("patches", count, self.positions * self.entries, pointers, body)

    def _move(self, rows: Buffer, image: View, *, into_image: bool) -> Callable[[Part], Command]:
        """Between rows[channel, s, position] and the image[s, channel, position]."""
        pointers, (height, width) = Pointers(), (image.shape[2], image.shape[3])
        one, other = pointers(rows, write=not into_image), pointers(image.buffer, write=into_image)
        there = f"{other}[{at(image, 'n', 'c', 'h', 'w')}]"
        body = [
            f"const Index w = i % {width}; const Index h = i / {width} % {height};",
            f"const Index n = i / {self.positions} % samples + start; const Index c = i / {self.positions} / samples;",
            f"{there} = {one}[i];" if into_image else f"{one}[i] = {there};",
        ]
        count = f"samples * {self.positions * self.outputs}"
        return self._launch("move", count, self.positions * self.outputs, pointers, body)

    def _fold(self) -> Callable[[Part], Command]:
        """dx[s, c, h, w] = the sum of the patches' entries that were this pixel, in the order of the window."""
        pointers, x = Pointers(), self.x
        into, patches = pointers(x.buffer, write=True), pointers(self.patches)
        _, channels, height, width = concrete(x.shape, 1)
        rows, columns = self.operation.window.size
        entry = f"((c * {rows} + kh) * {columns} + kw) * samples + s"
        body = [
            f"const Index w = i % {width}; const Index h = i / {width} % {height};",
            f"const Index c = i / {width * height} % {channels}; const Index s = i / {width * height * channels};",
            f"{self.kind} total = {literal(0.0, self.kind)};",
            *covering(
                self.operation.window,
                self.y,
                [f"total += {patches}[({entry}) * {self.positions} + oh * {self.y.shape[3]} + ow];"],
            ),
            "const Index n = s + start;",
            f"{into}[{at(x, 'n', 'c', 'h', 'w')}] = total;",
        ]
        each = channels * height * width
        return self._launch("fold", f"samples * {each}", each, pointers, body)


def _for_part(kernel: Kernel, first: Launch, elements: int, part: Part) -> Launch:
    grid, numbers = (blocks(part.samples * elements), 1), (part.start, part.samples)
    return Launch(
        kernel,
        first.buffers,
        lambda batch: grid,
        numbers=lambda batch: numbers,
        reads=first.reads,
        writes=first.writes,
        label=first.label,
    )


def _vector(place: View | Buffer) -> View:
    return place if isinstance(place, View) else View(place, (), (), 0)
