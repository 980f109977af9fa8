"""Convolutions and pools by an array library: a product, or a comparison, for each entry of the window.

Images are padded first. Then the part of them that an entry of the window covers, at all its positions, is a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from chains.backends.array_api.library import Array
from chains.backends.array_api.memory import Memory
from chains.program.operations import Convolve, ConvolveInput, ConvolveWeight, Operation, Pool, PoolInput, Window
from chains.program.view import View

Value = Callable[[], Array]


class Images:
    """Images and the positions of a window over them. `real` has the padded image's entries that are no padding."""

    def __init__(self, memory: Memory, window: Window, images: View, positions: View, groups: int = 1) -> None:
        self.memory, self.dtype, self.groups = memory, images.dtype, groups
        self.shape, self.positions = memory.shape(images), memory.shape(positions)
        self.interior: tuple[Any, ...] = (
            ...,
            *(slice(window.padding[k][0], window.padding[k][0] + self.shape[2 + k]) for k in range(2)),
        )
        self.padded = (*self.shape[:2], *(self.shape[2 + k] + sum(window.padding[k]) for k in range(2)))
        self.real = np.zeros(self.padded[2:], bool)
        self.real[self.interior] = True
        self.entries: list[tuple[Any, ...]] = [
            (..., *self._covered(window, entry)) for entry in np.ndindex(window.size)
        ]  # row by row

    def _covered(self, window: Window, entry: tuple[int, ...]) -> tuple[slice, ...]:
        starts = [place * window.dilation[k] for k, place in enumerate(entry)]
        stops = [start + (self.positions[2 + k] - 1) * window.stride[k] + 1 for k, start in enumerate(starts)]
        return tuple(map(slice, starts, stops, window.stride))

    def read(self, view: View) -> Array:
        """The images, padded by zeros."""
        images = self.memory.read(view)
        return images if self.real.all() else self.memory.library.added(self._zeros(), self.interior, images)

    def total(self, parts: Iterable[Array]) -> Array:
        """Images, without padding, in which each entry of the window has added its part at the positions."""
        images = self._zeros()
        for at, part in zip(self.entries, parts, strict=True):
            images = self.memory.library.added(images, at, part)
        return images[self.interior]

    def _zeros(self) -> Array:
        return self.memory.library.full(self.padded, self.dtype)

    def columns(self, images: Array) -> Array:
        """Images as (batch, groups, channels of a group, positions)."""
        batch, channels, *_ = images.shape
        return self.memory.library.xp.reshape(images, (batch, self.groups, channels // self.groups, -1))

    def kernels(self, w: View) -> list[Array]:
        """For each entry of the window, the kernels as (groups, outputs of a group, channels of a group)."""
        outputs, channels, *_ = self.memory.shape(w)
        shape = (self.groups, outputs // self.groups, channels, len(self.entries))
        kernels = self.memory.library.xp.reshape(self.memory.read(w), shape)
        return [kernels[..., number] for number in range(len(self.entries))]


def _convolve(memory: Memory, operation: Convolve) -> Value:
    (x, w), xp = operation.ins, memory.library.xp
    images = Images(memory, operation.window, x, operation.outs[0], operation.groups)
    own = memory.library.convolution("conv2d", operation.window, operation.groups)

    def value() -> Array:
        padded = images.read(x)
        if own is not None:
            return own(padded, memory.read(w))
        columns = (images.columns(padded[at]) for at in images.entries)
        return xp.reshape(reduce(add, map(xp.matmul, images.kernels(w), columns)), images.positions)

    return value


def _convolve_input(memory: Memory, operation: ConvolveInput) -> Value:
    (dy, w), xp = operation.ins, memory.library.xp
    images = Images(memory, operation.window, operation.outs[0], dy, operation.groups)
    shape = (*images.shape[:2], *images.positions[2:])
    own = memory.library.convolution("conv2d_input", operation.window, operation.groups)

    def value() -> Array:
        if own is not None:
            return own(images.padded, memory.read(w), memory.read(dy))[images.interior]
        cotangent = images.columns(memory.read(dy))
        parts = (xp.matmul(xp.matrix_transpose(kernels), cotangent) for kernels in images.kernels(w))
        return images.total(xp.reshape(part, shape) for part in parts)

    return value


def _convolve_weight(memory: Memory, operation: ConvolveWeight) -> Value:
    (x, dy), xp, shape = operation.ins, memory.library.xp, memory.shape(operation.outs[0])
    images = Images(memory, operation.window, x, dy, operation.groups)
    own = memory.library.convolution("conv2d_weight", operation.window, operation.groups)

    def value() -> Array:
        if own is not None:
            return own(images.read(x), shape, memory.read(dy))
        padded, cotangent = images.read(x), images.columns(memory.read(dy))
        columns = (xp.matrix_transpose(images.columns(padded[at])) for at in images.entries)
        parts = [xp.reshape(xp.sum(xp.matmul(cotangent, each), axis=0), shape[:2]) for each in columns]
        return xp.reshape(xp.stack(parts, axis=-1), shape)

    return value


def _pool(memory: Memory, operation: Pool) -> Value:
    (x,), library = operation.ins, memory.library
    images = Images(memory, operation.window, x, operation.outs[0])
    if operation.kind == "mean":
        inverse = _inverse_counts(images, operation)
        return lambda: inverse * reduce(add, (images.read(x)[at] for at in images.entries))
    real, lowest = library.from_host(images.real), library.full((), x.dtype, -np.inf)

    def value() -> Array:
        padded = library.xp.where(real, images.read(x), lowest)
        return reduce(library.xp.maximum, (padded[at] for at in images.entries))

    return value


def _pool_input(memory: Memory, operation: PoolInput) -> Value:
    dy, *operands = operation.ins
    images = Images(memory, operation.window, operation.outs[0], dy)
    if operands:
        return lambda: images.total(_shares(images, *operation.ins))
    inverse = _inverse_counts(images, operation)
    return lambda: images.total(memory.read(dy) * inverse for _ in images.entries)


def _shares(images: Images, dy: View, x: View, y: View) -> Iterator[Array]:
    """For each entry of the window, the gradient at the positions where it is the first largest one."""
    memory, xp = images.memory, images.memory.library.xp
    cotangent, zero = memory.read(dy), memory.library.full((), dy.dtype)
    padded, largest, real = images.read(x), memory.read(y), memory.library.from_host(images.real)
    found = memory.library.full(images.positions, np.dtype(bool), False)
    for at in images.entries:
        chosen = xp.logical_and(xp.logical_and(padded[at] == largest, real[at]), xp.logical_not(found))
        found = xp.logical_or(found, chosen)
        yield xp.where(chosen, cotangent, zero)


def _inverse_counts(images: Images, operation: Pool) -> Array:
    """The factor of each window that makes its sum its mean."""
    counts = np.sum([images.real[at] | operation.count_padding for at in images.entries], axis=0, dtype=np.float64)
    return images.memory.library.from_host((1.0 / np.maximum(counts, 1.0)).astype(images.dtype))  # it may be all padding


VALUES: dict[type[Operation], Callable[..., Value]] = {
    Convolve: _convolve, ConvolveInput: _convolve_input, ConvolveWeight: _convolve_weight, Pool: _pool, PoolInput: _pool_input,
}  # fmt: skip
