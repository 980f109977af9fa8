"""Convolutions and pools for the NumPy backend.

A convolution is a product of two matrices: the kernels, a row for each output channel, and the patches of the images, a
column for each sample and window position. Patches are many times larger than the images. So they are made for a few
samples at a time, in a workspace that all operations of a program share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from chains.backends.numpy.memory import Memory
from chains.program.operations import Convolve, ConvolveInput, ConvolveWeight, Operation, Pool, PoolInput, Window
from chains.program.scratch import ALIGNMENT
from chains.program.view import View

Call = Callable[[], Any]
Shape = tuple[int, ...]
Convolution = Convolve | ConvolveInput | ConvolveWeight

# The most memory, unless one sample needs more, that all convolutions and pools of a program share.
WORKSPACE_BYTES = 1 << 20


class Workspace:
    """Temporary arrays of an operation, for as many samples at a time as fit into `WORKSPACE_BYTES`."""

    def __init__(self, operation: Operation, memory: Memory) -> None:
        self._memory = memory
        self._shapes = {name: (shape, np.dtype(dtype)) for name, (shape, dtype) in _wanted(operation).items()}
        sizes = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in self._shapes.items()}
        self.samples = min(memory.batch, max(1, WORKSPACE_BYTES // (sum(sizes.values()) or 1)))
        self._offsets, self.nbytes = {}, 0
        for name, size in sizes.items():
            self._offsets[name] = self.nbytes
            self.nbytes += -(-self.samples * size // ALIGNMENT) * ALIGNMENT

    def array(self, name: str, tile: slice, axis: int = 0) -> np.ndarray:
        """The array of this name for the samples of a tile, which lie along `axis`."""
        shape, dtype = self._shapes[name]
        shape = (*shape[:axis], tile.stop - tile.start, *shape[axis:])
        return np.ndarray(shape, dtype, self._memory.workspace, self._offsets[name])

    def by_tiles(self, calls: Callable[[slice], Iterator[Call]]) -> list[Call]:
        """The calls for the batch, tile by tile. With several tiles, the calls of each are made when it is due: otherwise a
        program bound to a large batch would itself be large.
        """
        batch, step = self._memory.batch, self.samples
        self._memory.workspace  # noqa: B018 - part of the scratch memory from now on
        if step == batch:
            return list(calls(slice(0, batch)))

        def run() -> None:
            for start in range(0, batch, step):
                for call in calls(slice(start, min(start + step, batch))):
                    call()

        return [run]


def _wanted(operation: Operation) -> dict[str, tuple[Shape, Any]]:
    """The temporary arrays of an operation by name: shape for one sample, and type."""
    if isinstance(operation, Convolution) and not _is_plain_product(operation):
        images, output = _images(operation)
        (channels, height, width), (outputs, *positions) = images.sample_shape, output.sample_shape
        window, dtype = operation.window, images.dtype
        padded = (channels, height + sum(window.padding[0]), width + sum(window.padding[1]))
        wanted = {"patches": ((channels, *window.size, *positions), dtype), "rows": ((outputs, *positions), dtype)}
        return wanted | ({"padded": (padded, dtype)} if window.padded else {})
    if isinstance(operation, PoolInput) and operation.kind == "max":
        shape, dtype = operation.ins[0].sample_shape, operation.ins[0].dtype
        return {"share": (shape, dtype), "open": (shape, np.bool_), "chosen": (shape, np.bool_)}
    if isinstance(operation, PoolInput) and not operation.count_padding:
        return {"share": (operation.ins[0].sample_shape, operation.ins[0].dtype)}
    return {}


def _images(operation: Convolution) -> tuple[View, View]:
    """The views of the convolved images and of the result, or of their gradients."""
    if isinstance(operation, ConvolveWeight):
        return operation.ins[0], operation.ins[1]
    x, y = operation.ins[0], operation.outs[0]
    return (x, y) if isinstance(operation, Convolve) else (y, x)


def _is_plain_product(operation: Operation) -> bool:
    """Whether the images equal their patches, in a memory order that BLAS takes."""
    if not isinstance(operation, (Convolve, ConvolveInput)):
        return False
    window = operation.window
    plain = window.size == window.stride == (1, 1) and not window.padded
    return plain and all(view.contiguous for view in operation.views)


# Convolutions


def convolve(memory: Memory, operation: Convolve) -> list[Call]:
    x, w, y = (memory.array(view) for view in (*operation.ins, *operation.outs))
    if _is_plain_product(operation):
        return [partial(np.matmul, _kernels(w, operation), _grouped(x, operation), _grouped(y, operation))]
    first: list[Call] = []
    kernels = _kernels(_packed(memory, w, first), operation)
    workspace = Workspace(operation, memory)

    def calls(tile: slice) -> Iterator[Call]:
        patches, rows = workspace.array("patches", tile, 3), workspace.array("rows", tile, 1)
        yield from _fill_patches(workspace, operation.window, x, patches, tile)
        yield partial(
            np.matmul, kernels, _columns(patches, kernels.shape[2], operation), _columns(rows, kernels.shape[1], operation)
        )
        yield partial(np.copyto, y[tile].swapaxes(0, 1), rows)

    return first + workspace.by_tiles(calls)


def convolve_input(memory: Memory, operation: ConvolveInput) -> list[Call]:
    dy, w, dx = (memory.array(view) for view in (*operation.ins, *operation.outs))
    if _is_plain_product(operation):
        transposed = _kernels(w, operation).swapaxes(1, 2)
        return [partial(np.matmul, transposed, _grouped(dy, operation), _grouped(dx, operation))]
    first: list[Call] = []
    transposed = _kernels(_packed(memory, w, first), operation).swapaxes(1, 2)
    workspace, window = Workspace(operation, memory), operation.window

    def calls(tile: slice) -> Iterator[Call]:
        patches, rows = workspace.array("patches", tile, 3), workspace.array("rows", tile, 1)
        images = workspace.array("padded", tile) if window.padded else dx[tile]
        windows = _windows(images, window, patches.shape[4:])
        yield partial(np.copyto, rows, dy[tile].swapaxes(0, 1))
        columns = _columns(patches, transposed.shape[1], operation)
        yield partial(np.matmul, transposed, _columns(rows, transposed.shape[2], operation), columns)
        yield partial(images.fill, 0.0)
        for row, column in np.ndindex(window.size):
            entry = windows[:, row, column]
            yield partial(np.add, entry, patches[:, row, column], entry)
        if window.padded:
            yield partial(np.copyto, dx[tile], _interior(images, window, dx.shape))

    return first + workspace.by_tiles(calls)


def convolve_weight(memory: Memory, operation: ConvolveWeight) -> list[Call]:
    x, dy, dw = (memory.array(view) for view in (*operation.ins, *operation.outs))
    total = dw if dw.flags.c_contiguous else memory.temporary(dw.shape, dw.dtype, 1)
    part = memory.temporary(dw.shape, dw.dtype)
    workspace = Workspace(operation, memory)

    def calls(tile: slice) -> Iterator[Call]:
        patches, rows = workspace.array("patches", tile, 3), workspace.array("rows", tile, 1)
        yield from _fill_patches(workspace, operation.window, x, patches, tile)
        yield partial(np.copyto, rows, dy[tile].swapaxes(0, 1))
        product = _kernels(part if tile.start else total, operation)
        columns = _columns(patches, product.shape[2], operation).swapaxes(1, 2)
        yield partial(np.matmul, _columns(rows, product.shape[1], operation), columns, product)
        if tile.start:
            yield partial(np.add, total, part, total)

    return workspace.by_tiles(calls) + ([] if total is dw else [partial(np.copyto, dw, total)])


def _kernels(w: np.ndarray, operation: Convolution) -> np.ndarray:
    """The kernels as (groups, outputs of a group, entries of a patch)."""
    return w.reshape(operation.groups, len(w) // operation.groups, -1)


def _grouped(images: np.ndarray, operation: Convolution) -> np.ndarray:
    """Images as (batch, groups, channels of a group, positions)."""
    batch, channels, height, width = images.shape
    return images.reshape(batch, operation.groups, channels // operation.groups, height * width)


def _columns(array: np.ndarray, rows: int, operation: Convolution) -> np.ndarray:
    """Patches or results as (groups, rows of a group, samples and positions)."""
    return array.reshape(operation.groups, rows, -1)


def _packed(memory: Memory, array: np.ndarray, calls: list[Call]) -> np.ndarray:
    if array.flags.c_contiguous:
        return array
    packed = memory.temporary(array.shape, array.dtype)
    calls.append(partial(np.copyto, packed, array))
    return packed


def _fill_patches(workspace: Workspace, window: Window, x: np.ndarray, patches: np.ndarray, tile: slice) -> Iterator[Call]:
    images = x[tile]
    if window.padded:
        images = workspace.array("padded", tile)
        if not tile.start:  # later tiles find the border still there
            yield partial(images.fill, 0.0)
        yield partial(np.copyto, _interior(images, window, x.shape), x[tile])
    yield partial(np.copyto, patches, _windows(images, window, patches.shape[4:]))


def _windows(images: np.ndarray, window: Window, positions: Shape) -> np.ndarray:
    """Padded images seen as patches: (channels, *entries, samples, *positions)."""
    (samples, channels), (along, across, *steps) = images.shape[:2], images.strides
    entries = tuple(step * window.dilation[k] for k, step in enumerate(steps))
    moves = tuple(step * window.stride[k] for k, step in enumerate(steps))
    shape, strides = (channels, *window.size, samples, *positions), (across, *entries, along, *moves)
    return np.lib.stride_tricks.as_strided(images, shape, strides)


def _interior(padded: np.ndarray, window: Window, shape: Shape) -> np.ndarray:
    """Padded images without their padding."""
    (top, _), (left, _) = window.padding
    return padded[:, :, top : top + shape[2], left : left + shape[3]]


# Pools


def pool(memory: Memory, operation: Pool) -> list[Call]:
    x, y = memory.array(operation.ins[0]), memory.array(operation.outs[0])
    window, largest = operation.window, operation.kind == "max"
    calls: list[Call] = [partial(y.fill, -np.inf if largest else 0.0)]
    for inside, outside in _entries(window, x.shape, y.shape):
        calls.append(partial(np.maximum if largest else np.add, y[outside], x[inside], out=y[outside]))
    if not largest:
        calls.append(partial(np.multiply, y, _inverse_counts(operation, x.shape, y), y))
    return calls


def pool_input(memory: Memory, operation: PoolInput) -> list[Call]:
    if operation.kind == "max":
        return _max_pool_input(memory, operation)
    dy, dx = memory.array(operation.ins[0]), memory.array(operation.outs[0])
    inverse = _inverse_counts(operation, dx.shape, dy)
    workspace = Workspace(operation, memory)

    def calls(tile: slice) -> Iterator[Call]:
        share = dy[tile]
        if not operation.count_padding:
            share = workspace.array("share", tile)
            yield partial(np.multiply, dy[tile], inverse, share)
        for inside, outside in _entries(operation.window, dx.shape, dy.shape):
            entry = dx[tile][inside]
            yield partial(np.add, entry, share[outside], entry)

    last = [partial(np.multiply, dx, inverse, dx)] if operation.count_padding else []
    return [partial(dx.fill, 0.0), *workspace.by_tiles(calls), *last]


def _max_pool_input(memory: Memory, operation: PoolInput) -> list[Call]:
    dy, x, y, dx = (memory.array(view) for view in (*operation.ins, *operation.outs))
    bits = np.dtype(f"i{dy.itemsize}")
    workspace = Workspace(operation, memory)

    def calls(tile: slice) -> Iterator[Call]:
        # `open` windows have not met their largest entry yet. The bits of a gradient are multiplied by 0 or 1, because NumPy is
        # ten times slower with `where=`, and a product of floats with 0 would make NaN of infinities.
        shares, opens, chosens = (workspace.array(name, tile) for name in ("share", "open", "chosen"))
        yield partial(opens.fill, True)
        for inside, outside in _entries(operation.window, dx.shape, dy.shape):
            entry, share, still_open, chosen = dx[tile][inside], shares[outside], opens[outside], chosens[outside]
            yield partial(np.equal, x[tile][inside], y[tile][outside], chosen)
            yield partial(np.logical_and, chosen, still_open, chosen)
            yield partial(np.logical_xor, still_open, chosen, still_open)
            yield partial(np.multiply, chosen, dy[tile][outside].view(bits), share.view(bits))
            yield partial(np.add, entry, share, entry)

    return [partial(dx.fill, 0.0), *workspace.by_tiles(calls)]


def _entries(window: Window, inputs: Shape, outputs: Shape) -> Iterator[tuple[Any, Any]]:
    """For each entry of the window, row by row: the part of the images that it covers, and the window positions there."""
    for entry in np.ndindex(window.size):
        inside, outside = [], []
        for k, (start, step) in enumerate(zip(entry, window.stride, strict=True)):
            start = start * window.dilation[k] - window.padding[k][0]
            first = max(0, -(start // step))
            last = min(outputs[2 + k] - 1, (inputs[2 + k] - 1 - start) // step)
            outside.append(slice(first, last + 1))
            inside.append(slice(start + first * step, start + last * step + 1, step))
            if last < first:
                break
        else:
            yield (..., *inside), (..., *outside)


def _inverse_counts(operation: Pool, inputs: Shape, y: np.ndarray) -> np.ndarray:
    """The factor of each window that makes its sum its mean."""
    if operation.count_padding:
        return np.asarray(1.0 / operation.window.area, y.dtype)
    counts = np.zeros(y.shape[2:], y.dtype)
    for _, outside in _entries(operation.window, inputs, y.shape):
        counts[outside] += 1.0
    return 1.0 / np.maximum(counts, 1.0)  # a window may hold nothing but padding
