"""Convolutions and pools by an array library, on patches: for each position of the window, the part of the image under it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from chains.backends.array_api.library import Array
from chains.backends.array_api.memory import Memory
from chains.program.operations import Convolve, ConvolveInput, ConvolveWeight, Operation, Pool, PoolInput, Window
from chains.program.view import View

Value = Callable[[], Array]


class Images:
    """Images and the positions of a window over them. Patches are (batch, channels, entries of the window, *positions)."""

    def __init__(self, memory: Memory, window: Window, images: View, positions: View, groups: int = 1) -> None:
        self.library, self.dtype, self.groups = memory.library, images.dtype, groups
        self.shape, self.positions = memory.shape(images), memory.shape(positions)[2:]
        height, width = self.shape[2:]
        down, across = (
            np.add.outer(np.arange(size) * dilation - padding[0], np.arange(count) * stride)
            for size, stride, padding, dilation, count in zip(
                window.size, window.stride, window.padding, window.dilation, self.positions, strict=True
            )
        )
        rows, columns = down[:, None, :, None], across[None, :, None, :]
        real = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        self.real = real.reshape(-1, *self.positions)  # (entries, *positions): what is no padding
        self._index = self.library.from_host(np.where(real, rows * width + columns, height * width).reshape(-1))

    def patches(self, images: Array, padding: float = 0.0) -> Array:
        xp, pixels = self.library.xp, self.shape[2] * self.shape[3]
        flat = xp.reshape(images, (self.shape[0] * self.shape[1], pixels))
        flat = xp.concat([flat, self.library.full((flat.shape[0], 1), self.dtype, padding)], axis=1)
        return xp.reshape(xp.take(flat, self._index, axis=1), (*self.shape[:2], *self.real.shape))

    def total(self, patches: Array) -> Array:
        """The images of which each entry is the sum over the patches that it is in."""
        xp, images = self.library.xp, self.shape[0] * self.shape[1]
        parts = xp.matrix_transpose(xp.reshape(patches, (images, self.real.size)))
        zeros = self.library.full((self.shape[2] * self.shape[3] + 1, images), self.dtype)
        return xp.reshape(xp.matrix_transpose(self.library.scattered(zeros, self._index, parts)[:-1, :]), self.shape)

    def columns(self, array: Array) -> Array:
        """Patches, or the images of a result, as matrices (batch, groups, rows, positions)."""
        return self.library.xp.reshape(array, (self.shape[0], self.groups, -1, self.positions[0] * self.positions[1]))


def _convolve(memory: Memory, operation: Convolve) -> Value:
    (x, w), (y,), xp = operation.ins, operation.outs, memory.library.xp
    if (own := memory.library.convolution("conv2d", operation.window, operation.groups)) is not None:
        return lambda: own(memory.read(x), memory.read(w))
    images, shape = Images(memory, operation.window, x, y, operation.groups), memory.shape(y)
    kernels = _kernels(memory, w, operation.groups)
    return lambda: xp.reshape(xp.matmul(kernels(), images.columns(images.patches(memory.read(x)))), shape)


def _convolve_input(memory: Memory, operation: ConvolveInput) -> Value:
    (dy, w), (dx,), xp = operation.ins, operation.outs, memory.library.xp
    if (own := memory.library.convolution("conv2d_input", operation.window, operation.groups)) is not None:
        return lambda: own(memory.shape(dx), memory.read(w), memory.read(dy))
    images, kernels = Images(memory, operation.window, dx, dy, operation.groups), _kernels(memory, w, operation.groups)
    return lambda: images.total(xp.matmul(xp.matrix_transpose(kernels()), images.columns(memory.read(dy))))


def _convolve_weight(memory: Memory, operation: ConvolveWeight) -> Value:
    (x, dy), xp, shape = operation.ins, memory.library.xp, memory.shape(operation.outs[0])
    if (own := memory.library.convolution("conv2d_weight", operation.window, operation.groups)) is not None:
        return lambda: own(memory.read(x), shape, memory.read(dy))
    images = Images(memory, operation.window, x, dy, operation.groups)

    def value() -> Array:
        patches = xp.matrix_transpose(images.columns(images.patches(memory.read(x))))
        return xp.reshape(xp.sum(xp.matmul(images.columns(memory.read(dy)), patches), axis=0), shape)

    return value


def _kernels(memory: Memory, w: View, groups: int) -> Value:
    """The kernels as (groups, outputs of a group, entries of a patch)."""
    shape = (groups, memory.shape(w)[0] // groups, -1)
    return lambda: memory.library.xp.reshape(memory.read(w), shape)


def _pool(memory: Memory, operation: Pool) -> Value:
    (x,), (y,), xp, window = operation.ins, operation.outs, memory.library.xp, operation.window
    if operation.kind == "max" and (own := memory.library.max_pool(window)) is not None:
        return lambda: own[0](memory.read(x))
    images = Images(memory, window, x, y)
    if operation.kind == "max":
        return lambda: xp.max(images.patches(memory.read(x), -np.inf), axis=2)
    inverse = _inverse_counts(images, operation)
    if (sums := memory.library.convolution("conv2d", window, images.shape[1])) is not None:
        ones = memory.library.full((images.shape[1], 1, *window.size), x.dtype, 1.0)
        return lambda: inverse * sums(memory.read(x), ones)
    return lambda: inverse * xp.sum(images.patches(memory.read(x)), axis=2)


def _pool_input(memory: Memory, operation: PoolInput) -> Value:
    (dy, *operands), library, window = operation.ins, memory.library, operation.window
    if operands and (own := library.max_pool(window)) is not None:
        return lambda: own[1](*map(memory.read, operation.ins))
    images, xp = Images(memory, window, operation.outs[0], dy), library.xp
    if not operands:
        inverse, entries = _inverse_counts(images, operation), (1, 1, len(images.real), 1, 1)
        if (spread := library.convolution("conv2d_input", window, images.shape[1])) is not None:
            ones = library.full((images.shape[1], 1, *window.size), dy.dtype, 1.0)
            return lambda: spread(images.shape, ones, memory.read(dy) * inverse)
        return lambda: images.total(xp.tile(xp.expand_dims(memory.read(dy) * inverse, axis=2), entries))
    (x, y), real, zero = operands, memory.library.from_host(images.real), memory.library.full((), dy.dtype)
    numbers = memory.library.from_host(np.arange(len(images.real)).reshape(-1, 1, 1))

    def value() -> Array:
        largest = xp.logical_and(images.patches(memory.read(x)) == xp.expand_dims(memory.read(y), axis=2), real)
        first = xp.argmax(memory.library.converted(largest, dy.dtype), axis=2, keepdims=True)
        chosen = xp.logical_and(largest, numbers == first)
        return images.total(xp.where(chosen, xp.expand_dims(memory.read(dy), axis=2), zero))

    return value


def _inverse_counts(images: Images, operation: Pool | PoolInput) -> Array:
    """The factor of each window that makes its sum its mean."""
    counts = np.sum(images.real | operation.count_padding, axis=0, dtype=np.float64)
    return images.library.from_host((1.0 / np.maximum(counts, 1.0)).astype(images.dtype))  # it may be all padding


VALUES: dict[type[Operation], Callable[..., Value]] = {
    Convolve: _convolve, ConvolveInput: _convolve_input, ConvolveWeight: _convolve_weight, Pool: _pool, PoolInput: _pool_input,
}  # fmt: skip
