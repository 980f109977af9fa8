"""What pullbacks are derived from: arrays that a layer is given, layers within layers, and values that are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from chains.program.operations import Operation
from chains.program.view import Batch, View, scratch_like


@dataclass(frozen=True)
class Part(Operation):
    """y = a layer within the layer that is recorded, for the operand x. It stands for the layer's operations."""

    node: Any
    operations: tuple[Operation, ...]

    def transpose(self, t: Any) -> None:
        (y,), (x,) = self.outs, self.ins
        d, x, y = t.take(y), t.value(x), t.value(y, after=True)
        if t.is_active(x):
            t.fill(x, lambda dx: self.node.pullback(t.ops, x, y, d, dx))
        else:
            self.node.pullback(t.ops, x, y, d, scratch_like(x, "dx", t.ops.dtype))


def without_parts(operations: Sequence[Operation]) -> list[Operation]:
    """The operations, with those of each part in its place."""
    return [
        each for operation in operations for each in (operation.operations if isinstance(operation, Part) else (operation,))
    ]


@dataclass(frozen=True)
class Place:
    """An array that a layer is given, and the array for its cotangent, or None if it needs none.

    `depth` is the number of loops around the layer. Parts of the array may advance in loops of the layer. `own` says whether
    nothing outside of the layer uses the cotangent.
    """

    view: View
    cotangent: View | None = None
    depth: int = 0
    own: bool = False

    def __hash__(self) -> int:
        return hash(self.view)

    def holds(self, view: View) -> bool:
        """Whether the view is a part of the array."""
        own = self.view
        if view is own:
            return True
        if view.buffer is not own.buffer or any(view.loop_stride(k) != own.loop_stride(k) for k in range(self.depth)):
            return False
        first = view.offset - own.offset
        return first >= 0 and first + sum((n - 1) * stride for n, stride in _sample_axes(view)) < max(prod(own.sample_shape), 1)

    def to(self, view: View, other: View) -> View:
        """The same part of another array of this shape."""
        strides = list(view.strides)
        if self.view.batched and self.view.strides[0] != other.strides[0]:
            strides = [
                other.strides[0] if isinstance(n, Batch) else stride for n, stride in zip(view.shape, strides, strict=True)
            ]
        offset = other.offset + view.offset - self.view.offset
        moved = View(other.buffer, view.shape, tuple(strides), offset, "", other.loop_strides)
        for depth in range(self.depth, len(view.loop_strides)):
            moved = moved.advancing(depth, view.loop_strides[depth])
        return moved


def _sample_axes(view: View) -> list[tuple[int, int]]:
    """The lengths and strides of the axes of one sample."""
    axes = zip(view.shape, view.strides, strict=True)
    return [(n.per_sample if isinstance(n, Batch) else n, stride) for n, stride in axes]


@dataclass(frozen=True)
class Read:
    """A value that the pullback reads: that of `view` before or after the operation at a position."""

    position: int
    view: View
    after: bool
