"""Images in scratch memory with their channels beside each other, as kernels on tensor cores want them.

A view says how far it is from one channel to the next, so that another layout is other strides, and no operation knows of it.
What only convolutions, pools, elementwise operations, sums and random numbers touch, sample by sample, changes its
layout; what somebody reads as a row of numbers keeps it, and the operation before writes it so. Elementwise operations
and sums get their axes in the order of memory, so that threads beside each other touch numbers beside each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from chains.backends.cupy.kernels.convolutions import AnyConvolution
from chains.backends.cupy.kernels.library_convolutions import FusedConvolve
from chains.program.operations import Convolve, Map, Operation, Pool, Random, Reduce
from chains.program.view import Batch, Buffer, Shape, View, c_strides, concrete

CONVOLUTIONS = (*AnyConvolution.__args__, FusedConvolve)


def with_channels_last(operations: Sequence[Operation]) -> list[Operation]:
    """The operations with all images that convolutions work on, and those computed from them, in this layout where possible."""
    layouts: dict[Buffer, _Layout | None] = {}
    for operation in operations:
        for view in operation.views:
            if view.buffer not in layouts:
                layouts[view.buffer] = _layout(view.buffer)
            layout = layouts[view.buffer]
            if layout is not None and (not _takes(operation) or layout.changed(view) is None):
                layouts[view.buffer] = None
    possible = {buffer: layout for buffer, layout in layouts.items() if layout is not None}
    chosen = {view.buffer for each in operations if isinstance(each, CONVOLUTIONS) for view in each.views} & possible.keys()
    while more := {buffer for each in operations for buffer in _beside(each, chosen)} & possible.keys() - chosen:
        chosen |= more
    change = {buffer: possible[buffer] for buffer in chosen}
    return [_laid_out(operation, change) if change else operation for operation in operations]


def last_strides(shape: Shape) -> tuple[int, ...]:
    """Strides of an array of images or kernels with the channels, its second axis, innermost."""
    first, channels, *positions = shape
    outer, *inner, step = c_strides((first, *positions, channels))
    return (outer, step, *inner)


def is_last(view: View) -> bool:
    """Whether an array of images or kernels lies that way; so does one of a single channel or position."""
    pairs = zip(view.shape, view.strides, last_strides(view.shape), strict=True)
    return all(extent == 1 or stride == wanted for extent, stride, wanted in pairs)


def permuted(view: View, order: Sequence[int]) -> View:
    """The view with its axes in this order; missing ones, before the first, have length 1."""
    missing = len(order) - view.ndim
    shape, strides = (1,) * missing + view.shape, (0,) * missing + view.strides
    return replace(view, shape=tuple(shape[k] for k in order), strides=tuple(strides[k] for k in order))


def in_memory_order(view: View) -> list[int]:
    """The axes of a view from the longest step to the shortest."""
    return sorted(range(view.ndim), key=lambda axis: -view.strides[axis])


@dataclass(frozen=True)
class _Layout:
    """A buffer of images: how many channels and positions each has."""

    channels: int
    positions: int

    def changed(self, view: View) -> View | None:
        """The view on the same elements in the other layout, None where there is none."""
        strides, ends = [], {"channel": view.offset // self.positions, "position": view.offset % self.positions}
        for extent, stride in zip(view.shape, view.strides, strict=True):
            if isinstance(extent, Batch):
                if extent.per_sample != 1 or stride != self.channels * self.positions:
                    return None
                strides.append(stride)
                continue
            along = "position" if stride < self.positions else "channel"
            if along == "channel" and stride % self.positions:
                return None
            step = stride if along == "position" else stride // self.positions
            ends[along] += (extent - 1) * step
            strides.append(step * self.channels if along == "position" else step)
        if view.moves or ends["channel"] >= self.channels or ends["position"] >= self.positions:
            return None
        channel, position = divmod(view.offset, self.positions)
        return replace(view, strides=tuple(strides), offset=position * self.channels + channel)


def _layout(buffer: Buffer) -> _Layout | None:
    """The layout of a buffer of images in scratch memory, None for other buffers."""
    if buffer.role != "scratch" or len(buffer.shape) < 3 or buffer.shape[0] != Batch():
        return None
    channels = concrete(buffer.shape, 1)[1]
    layout = _Layout(channels, buffer.size // channels if channels else 0)
    return layout if min(layout.channels, layout.positions) > 1 else None


def _takes(operation: Operation) -> bool:
    """Whether operations of this kind work in any layout."""
    return operation.elementwise or isinstance(operation, (*CONVOLUTIONS, Pool, Random, Reduce))


def _beside(operation: Operation, chosen: set[Buffer]) -> Iterable[Buffer]:
    """The buffers of an operation that works on one of those chosen."""
    buffers = [view.buffer for view in operation.views]
    return buffers if any(buffer in chosen for buffer in buffers) else []


def _laid_out(operation: Operation, layouts: dict[Buffer, _Layout]) -> Operation:
    """The operation on images in their new layouts."""

    def changed(view: View) -> View:
        layout = layouts.get(view.buffer)
        found = view if layout is None else layout.changed(view)
        assert found is not None
        return found

    if isinstance(operation, FusedConvolve):
        convolution, after = operation.convolution.on(changed), _laid_out(operation.after, layouts)
        assert isinstance(convolution, Convolve)
        assert isinstance(after, Map)
        operation = replace(operation, convolution=convolution, after=after)
    operation = operation.on(changed)
    if operation.elementwise or isinstance(operation, Reduce):
        views = operation.views if operation.elementwise else operation.ins
        main = next((view for view in views if view.buffer in layouts and view.shape == views[0].shape), None)
        if main is not None:
            order = in_memory_order(main)
            operation = operation.on(lambda view: permuted(view, order))
    return operation
