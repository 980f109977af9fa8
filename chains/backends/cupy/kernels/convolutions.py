"""Convolutions of many channels as matrix products: the kernels times the patches of the images.

The patches, a row for each entry of a window and a column for each sample and position, are many times larger than the images.
So they are made for a few samples at a time, in scratch of bounded size. The order of additions is fixed: each element of an
input's gradient collects its contributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from chains.backends.cupy.kernels.images import at, covering, outside
from chains.backends.cupy.source.c_source import ctype, literal
from chains.backends.cupy.source.commands import (
    Command,
    Launch,
    Matrix,
    Pointers,
    Product,
    Source,
    Tiled,
    blocks,
    each_element,
    indented,
)
from chains.backends.cupy.source.maps import VECTOR_BYTES, Begins, Vector
from chains.backends.cupy.source.reduction import Temporary
from chains.program.operations import Convolve, ConvolveInput, ConvolveWeight
from chains.program.view import Buffer, View, concrete

PATCHES_BYTES = 64 << 20  # at a time, or as many as one sample needs
MAX_PIXELS = 8  # of a row of the image that a thread with several positions keeps in registers
MAX_UNROLLED = 32  # of a row of the image that are written out one by one
MAX_ROWS = 65_535  # of blocks in a grid

AnyConvolution = Convolve | ConvolveInput | ConvolveWeight

# The number of kernel entries above which a product pays. That of kernels' gradients is measured: LeNet-5, whose first layer
# has 150 entries, takes 5 % less time on an H200 without a product there. The others are estimates.
MIN_PRODUCT_ELEMENTS: dict[type[AnyConvolution], int] = {Convolve: 1 << 12, ConvolveInput: 1 << 12, ConvolveWeight: 1 << 8}


def is_product(operation: AnyConvolution) -> bool:
    """Whether the convolution is done as a product."""
    w = parts(operation)[1]
    large = math.prod(concrete(w.shape, 1)) >= MIN_PRODUCT_ELEMENTS[type(operation)]
    return operation.groups == 1 and w.contiguous and large


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

    def __init__(self, source: Source, operation: AnyConvolution, temporary: Temporary, begins: Begins) -> None:
        self.source, self.operation, self.begins = source, operation, begins
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

    # The commands for each part

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
        self, hint: str, channels: int, each: int, pointers: Pointers, body: Sequence[str]
    ) -> Callable[[Part], Command]:
        """A launch for each part: a row of blocks for each channel c, in which threads go through `each` groups i a sample."""
        lines = each_element(f"samples * {each}", body)
        whole = [f"for (Index c = blockIdx.y; c < {channels}; c += gridDim.y) {{", *indented(lines), "}"]
        names = ("start", "samples")
        first = pointers.launch(self.source, hint, whole, lambda batch: (1, 1), extra=names, label=self.operation.label)
        return partial(_for_part, first, each, min(channels, MAX_ROWS))

    def _gather_patches(self) -> Callable[[Part], Command]:
        """patches[k, s, position] = the pixel that entry k of the window sees there, 0 in the padding.

        A thread takes neighbouring positions of a row through all entries of the window in one channel: it reads their pixels
        in a row of the image once, and divides once for all of them.
        """
        pointers, window, x = Pointers(), self.operation.window, self.x
        (rows, columns), (height, width) = window.size, concrete(self.y.shape, 1)[2:]
        (down, right), (over, along), (top, left) = window.stride, window.dilation, (pair[0] for pair in window.padding)
        into, image = pointers(self.patches, write=True), pointers(x.buffer)
        lanes = self._lanes(width, View(self.patches, (), (), 0))
        seen = (lanes - 1) * right + window.span[1]
        if seen > MAX_PIXELS:
            lanes, seen = 1, window.span[1]
        place = f"{into}[((c * {rows} + kh) * {columns} + kw) * (samples * {self.positions}) + i * {lanes}]"
        vector = Vector(self.kind, lanes, x.dtype.itemsize)
        pixel = f"{image}[{at(x, 'n', 'c', 'ih', 'iw + j')}]"
        inside = [*outside(window, x, self.y, 0, "ih")], [*outside(window, x, self.y, 1, "iw + j")]
        if any(inside):
            pixel = f"{' || '.join([*inside[0], *inside[1]])} ? {literal(0.0, self.kind)} : {pixel}"
        unroll = ["#pragma unroll"] if seen <= MAX_UNROLLED else []
        body = [
            f"const Index w = (Count)i % {width // lanes} * {lanes}; const Index h = (Count)i / {width // lanes} % {height};",
            f"const Index n = (Count)i / {self.positions // lanes} + start; const Index iw = w * {right} - {left};",
            "#pragma unroll 1",  # registers hold one row of pixels, not those of all rows
            f"for (int kh = 0; kh < {rows}; ++kh) {{",
            f"    const Index ih = h * {down} + kh * {over} - {top};",
            f"    {self.kind} pixels[{seen}];",
            *indented([*unroll, f"for (int j = 0; j < {seen}; ++j) pixels[j] = {pixel};", *unroll]),
            f"    for (int kw = 0; kw < {columns}; ++kw) {{",
            f"        {vector.name} some;",
            f"        for (int u = 0; u < {lanes}; ++u) some.n[u] = pixels[u * {right} + kw * {along}];",
            f"        *({vector.name}*)&{place} = some;",
            "    }",
            "}",
        ]
        channels = concrete(x.shape, 1)[1]
        return self._launch("patches", channels, self.positions // lanes, pointers, [vector.definition, *body])

    def _move(self, rows: Buffer, image: View, *, into_image: bool) -> Callable[[Part], Command]:
        """Between rows[channel, s, position] and the image[s, channel, position]."""
        pointers, (height, width) = Pointers(), concrete(image.shape, 1)[2:]
        one, other = pointers(rows, write=not into_image), pointers(image.buffer, write=into_image)
        lanes = self._lanes(width, image, View(rows, (), (), 0))
        vector = Vector(self.kind, lanes, image.dtype.itemsize)
        there = f"*({vector.name}*)&{other}[{at(image, 'n', 'c', 'h', 'w')}]"
        here = f"*({vector.name}*)&{one}[c * (samples * {self.positions}) + i * {lanes}]"
        if image.strides[2] == width * image.strides[3]:  # positions are one row
            height, width = 1, width * height
        body = [
            vector.definition,
            f"const Index w = (Count)i % {width // lanes} * {lanes}; const Index h = (Count)i / {width // lanes} % {height};",
            f"const Index n = (Count)i / {self.positions // lanes} + start;",
            f"{there} = {here};" if into_image else f"{here} = {there};",
        ]
        return self._launch("move", self.outputs, self.positions // lanes, pointers, body)

    def _fold(self) -> Callable[[Part], Command]:
        """dx[s, c, h, w] = the sum of the patches' entries from this pixel, in the order of the window."""
        pointers, x = Pointers(), self.x
        into, patches = pointers(x.buffer, write=True), pointers(self.patches)
        _, channels, height, width = concrete(x.shape, 1)
        rows, columns = self.operation.window.size
        entry = f"((c * {rows} + kh) * {columns} + kw) * samples + s"
        body = [
            f"const Index w = (Count)i % {width}; const Index h = (Count)i / {width} % {height};",
            f"const Index s = (Count)i / {width * height};",
            f"{self.kind} total = {literal(0.0, self.kind)};",
            *covering(
                self.operation.window,
                self.y,
                [f"total += {patches}[({entry}) * {self.positions} + oh * {self.y.shape[3]} + ow];"],
            ),
            "const Index n = s + start;",
            f"{into}[{at(x, 'n', 'c', 'h', 'w')}] = total;",
        ]
        return self._launch("fold", channels, height * width, pointers, body)

    def _lanes(self, width: int, *views: View) -> int:
        """The number of neighbours along rows of this length in a vector of all views, which begins at a multiple of it."""
        count = VECTOR_BYTES // self.x.dtype.itemsize
        while count > 1 and not (width % count == 0 and all(_is_whole(view, count, self.begins) for view in views)):
            count //= 2
        return count


def _is_whole(view: View, count: int, begins: Begins) -> bool:
    *others, last = view.strides or (1,)
    return last == 1 and begins(view, count) and all(stride % count == 0 for stride in others)


def _for_part(first: Launch, each: int, rows: int, part: Part) -> Launch:
    grid, numbers = (blocks(part.samples * each), rows), (part.start, part.samples)
    return replace(first, grid=lambda batch: grid, numbers=lambda batch: numbers)


def _vector(place: View | Buffer) -> View:
    return place if isinstance(place, View) else View(place, (), (), 0)
