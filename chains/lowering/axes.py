"""Loops over the elements of a shape: which axes there are, and the strides of each view along them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chains.program.view import Batch, Extent, View


@dataclass(frozen=True)
class Axis:
    """An axis to iterate over: its length, and the stride of each view along it, in elements."""

    extent: Extent
    strides: tuple[int, ...]


def axes_of(shape: Sequence[Extent], views: Sequence[View]) -> list[Axis]:
    """An axis for each axis of `shape`, to which the views are broadcast."""
    strides = [aligned_strides(view, len(shape)) for view in views]
    return [Axis(extent, tuple(own[k] for own in strides)) for k, extent in enumerate(shape)]


def aligned_strides(view: View, ndim: int) -> tuple[int, ...]:
    """The view's strides for each of `ndim` axes that it is broadcast to; 0 where it has one element."""
    own = (0 if extent == 1 else stride for extent, stride in zip(view.shape, view.strides, strict=True))
    return (0,) * (ndim - view.ndim) + tuple(own)


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """The axes without those of length 1. Neighbours that are contiguous in every view are one axis."""
    result: list[Axis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        before, extent = result[-1] if result else None, axis.extent
        if before is None or isinstance(extent, Batch) or before.strides != tuple(extent * stride for stride in axis.strides):
            result.append(axis)
        else:
            outer = before.extent
            result[-1] = Axis(Batch(outer.per_sample * extent) if isinstance(outer, Batch) else outer * extent, axis.strides)
    return result


def loops_over(shape: Sequence[Extent], views: Sequence[View]) -> list[Axis]:
    """The loops over an array of `shape`, to which the views are broadcast."""
    return merged(axes_of(shape, views))
