"""Buffers and views of buffers, which the operations of a program read and fill.

Shapes are like those of arrays, with `Batch(k)` for an axis of k entries for each sample: a view is made once and stands
for an array of any batch size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from chains.support.checks import whole
from chains.support.messages import shown


@dataclass(frozen=True)
class Batch:
    """The length of an axis that grows with the batch: `per_sample` entries for each sample."""

    per_sample: int = 1

    def __str__(self) -> str:
        return "B" if self.per_sample == 1 else f"{self.per_sample}B"


Extent = int | Batch
Shape = tuple[Extent, ...]


def concrete(shape: Shape, batch: int) -> tuple[int, ...]:
    """`shape` at a batch size."""
    return tuple(extent.per_sample * batch if isinstance(extent, Batch) else extent for extent in shape)


def shape_text(shape: Shape) -> str:
    return "(" + ", ".join(str(extent) for extent in shape) + ("," if len(shape) == 1 else "") + ")"


@dataclass(frozen=True, eq=False)
class Buffer:
    """A named piece of memory. `role` says who provides and reads it:

    "input" (the caller's, only read; `data` if it gives none), "output" (the caller's, filled), "state" (the caller's,
    updated), "constant" (`data`, part of the program) and "scratch" (private, planned by `chains.program.scratch`).
    """

    name: str
    role: str
    dtype: np.dtype[Any]
    shape: Shape
    data: np.ndarray | None = None

    @property
    def batched(self) -> bool:
        return any(isinstance(extent, Batch) for extent in self.shape)

    @property
    def size(self) -> int:
        """Elements, or elements per sample where batched."""
        return math.prod(extent.per_sample if isinstance(extent, Batch) else extent for extent in self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes, or bytes per sample where batched."""
        return self.size * self.dtype.itemsize

    @property
    def whole(self) -> View:
        """The view of all elements."""
        return View(self, self.shape, c_strides(self.shape))


@dataclass(frozen=True, init=False)
class View:
    """A strided part of a buffer; strides and offset are in elements. The length of the batch axis, if any, is a `Batch`.

    In loops, shape and offset are those of the first step. `loop_strides` has an entry for each loop, the outermost
    first: the number of elements by which the view advances with each step.
    """

    buffer: Buffer
    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0
    name: str = field(default="", compare=False)  # for people; by default the buffer's name
    loop_strides: tuple[int, ...] = ()  # without zeros at the end

    def __init__(
        self, buffer: Buffer, shape: Shape, strides: tuple[int, ...], offset: int = 0, name: str = "",
        loop_strides: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        vars(self).update(  # at once: recording makes thousands of views
            buffer=buffer, shape=shape, strides=strides, offset=offset, name=name, loop_strides=loop_strides
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.buffer, self.offset, self.strides, self.loop_strides))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({"loop_strides" if name == "moves" else name: value for name, value in state.items()})

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.buffer.dtype

    @property
    def batched(self) -> bool:
        for extent in self.shape:  # noqa: SIM110 - as often as this is called, it counts
            if isinstance(extent, Batch):
                return True
        return False

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample: every axis but a leading `Batch()`."""
        return self.shape[1:] if self.batched else self.shape  # type: ignore[return-value]

    @property
    def sample_size(self) -> int:
        """Elements, or elements per sample where batched."""
        return math.prod(extent.per_sample if isinstance(extent, Batch) else extent for extent in self.shape)

    @property
    def contiguous(self) -> bool:
        """Whether the elements are in C order without gaps."""
        return self.strides == c_strides(self.shape)

    @property
    def is_whole(self) -> bool:
        """Whether the view shows all elements of its buffer in order."""
        return self.contiguous and self.sample_size == self.buffer.size

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The view's elements as contiguous runs (start, stop) of the buffer; for views without samples."""
        runs, length = [self.offset], 1
        for extent, stride in sorted(zip(self.sample_shape, self.strides, strict=True), key=lambda axis: axis[1]):
            if stride == length and len(runs) == 1:
                length *= extent
            elif extent != 1:
                runs = [start + k * stride for start in runs for k in range(extent)]
        return [(start, start + length) for start in runs]

    @property
    def T(self) -> View:
        """The axes in reverse order."""
        return replace(self, shape=self.shape[::-1], strides=self.strides[::-1], name=f"{self}.T")

    @property
    def rows(self) -> View:
        """The view as a matrix, with all axes but the last merged: a row per sample (and position)."""
        if self.ndim == 2:
            return self
        size = math.prod(self.sample_shape[:-1])
        return self._reshaped((Batch(size) if self.batched else size, self.shape[-1]))

    @property
    def flat(self) -> View:
        """All axes merged into one."""
        return self._reshaped((Batch(self.sample_size) if self.batched else self.sample_size,))

    def reshape(self, *sample_shape: int) -> View:
        """The same elements with another sample shape; the batch axis stays in front.

        Parameters
        ----------
        *sample_shape : int
            The lengths of the new axes.
        """
        if not self.batched or self.contiguous:
            return self._reshaped((Batch(), *sample_shape) if self.batched else sample_shape)
        sample = replace(self, shape=self.shape[1:], strides=self.strides[1:])._reshaped(sample_shape)  # gaps follow it
        return replace(sample, shape=(self.shape[0], *sample.shape), strides=(self.strides[0], *sample.strides))

    def split(self, axis: int, parts: int) -> View:
        """The view with an axis split into two: the parts, and the entries of each.

        Parameters
        ----------
        axis : int
            Counted with the batch, but not the batch itself.
        parts : int
            The number of parts. Raises ValueError unless the axis divides evenly.
        """
        axis = self._axis(axis)
        extent = self.shape[axis]
        if isinstance(extent, Batch) or parts < 1 or extent % parts:
            raise ValueError(f"cannot split axis {axis} of a view of shape {shape_text(self.shape)} into {parts} equal parts")
        length, stride = extent // parts, self.strides[axis]
        shape = (*self.shape[:axis], parts, length, *self.shape[axis + 1 :])
        return replace(self, shape=shape, strides=(*self.strides[:axis], length * stride, stride, *self.strides[axis + 1 :]))

    def swap(self, first: int, second: int) -> View:
        """The view with two axes exchanged.

        Parameters
        ----------
        first, second : int
            The axes, counted with the batch; neither is the batch itself.
        """
        first, second = self._axis(first), self._axis(second)
        if any(isinstance(self.shape[axis], Batch) for axis in (first, second)):
            text = f"axes {first} and {second} of a view of shape {shape_text(self.shape)}"
            raise ValueError(f"cannot exchange {text}: one is the batch")
        order = list(range(self.ndim))
        order[first], order[second] = second, first
        return replace(self, shape=tuple(self.shape[k] for k in order), strides=tuple(self.strides[k] for k in order))

    def expand(self, axis: int) -> View:
        """The view with a new axis of length 1.

        Parameters
        ----------
        axis : int
            The position of the axis in the result; negative ones count from the end.
        """
        axis = axis if axis >= 0 else axis + self.ndim + 1
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(axis, 1)
        strides.insert(axis, 0)
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def named(self, name: str) -> View:
        """The same view under another name.

        Parameters
        ----------
        name : str
            For people.
        """
        return replace(self, name=name)

    def slice(self, axis: int, start: int, stop: int) -> View:
        """A part of one axis.

        Parameters
        ----------
        axis : int
            Counted with the batch, but not the batch itself.
        start, stop : int
            The first entry, and the entry after the last one.
        """
        axis = self._axis(axis)
        extent = self.shape[axis]
        if isinstance(extent, Batch) or not 0 <= start <= stop <= extent:
            raise ValueError(f"cannot take {start}:{stop} of axis {axis} of a view of shape {shape_text(self.shape)}")
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        return replace(self, shape=shape, offset=self.offset + start * self.strides[axis])

    def index(self, axis: int, k: int) -> View:
        """One entry of an axis, without that axis.

        Parameters
        ----------
        axis, k : int
            The axis, counted with the batch but not the batch itself, and the entry. As in NumPy, negative ones count from
            the end.

        Raises
        ------
        TypeError, ValueError
            For an axis or an entry that does not exist.
        """
        axis = self._axis(axis)
        extent = self.shape[axis]
        if isinstance(extent, Batch):
            raise ValueError(f"index: `axis` (={axis}) of a view of shape {shape_text(self.shape)} is the batch")
        entry = whole(k, -extent)
        if entry is None or entry >= extent:
            kind = TypeError if whole(k, -math.inf) is None else ValueError
            wanted = f"must be a whole number from {-extent} to {extent - 1}" if extent else "names an entry of an empty axis"
            raise kind(f"index: `k` (={shown(k)}) on axis {axis} of a view of shape {shape_text(self.shape)} {wanted}")
        shape, strides = list(self.shape), list(self.strides)
        del shape[axis]
        offset = self.offset + entry % extent * strides.pop(axis)
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)

    def advancing(self, depth: int, by: int) -> View:
        """The view, advancing `by` elements with each step of the loop at this depth; 0 for a view that stays."""
        strides = [*self.loop_strides, *(0 for _ in range(len(self.loop_strides), depth + 1))]
        strides[depth] = by
        while strides and strides[-1] == 0:
            strides.pop()
        return replace(self, loop_strides=tuple(strides))

    def loop_stride(self, depth: int) -> int:
        """The number of elements by which the view advances with each step of the loop at this depth."""
        return self.loop_strides[depth] if depth < len(self.loop_strides) else 0

    def at(self, depth: int, step: int) -> View:
        """The view at one step of the loop at this depth."""
        stride = self.loop_stride(depth)
        return replace(self.advancing(depth, 0), offset=self.offset + step * stride) if stride else self

    def over(self, depth: int, steps: int) -> View:
        """The view over all `steps` of the loop at this depth, as a new axis after the batch, in memory order."""
        stride = self.loop_stride(depth)
        if not stride:
            return self
        position = int(self.ndim > 0 and isinstance(self.shape[0], Batch))
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(position, steps)
        strides.insert(position, abs(stride))
        offset = self.offset + min(0, stride) * (steps - 1)
        return replace(self.advancing(depth, 0), shape=tuple(shape), strides=tuple(strides), offset=offset)

    def within(self, memory: np.ndarray) -> np.ndarray:
        """The view's elements for one sample at the first step, in an array with an entry for each element of the buffer."""
        lengths = [n.per_sample if isinstance(n, Batch) else n for n in self.shape]
        if 0 in lengths:  # NumPy takes no strides past the end, where an empty part may begin
            return np.empty(lengths, memory.dtype)
        size = memory.itemsize
        return np.ndarray(lengths, memory.dtype, memory, self.offset * size, [stride * size for stride in self.strides])

    def _axis(self, axis: int) -> int:
        """The number of an axis counted from the front; a negative one counts from the end."""
        if not -self.ndim <= axis < self.ndim:
            raise ValueError(f"there is no axis {axis} of a view of shape {shape_text(self.shape)}")
        return axis % self.ndim

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **rest: Any) -> Any:
        self._refuse()

    def _refuse(self, *_: Any) -> Any:
        raise TypeError(
            f"`{self}` is no array but stands for one while a program is recorded: write ops.map(y, lambda x: 2 * x + 1, x) "
            "for arithmetic and functions, ops.matmul(y, x, w), ops.sum(y, x) or ops.copy(y, x) for others, and "
            "x.slice(axis, start, stop) or x.index(axis, k) for a part"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _refuse
    __matmul__ = __rmatmul__ = __neg__ = __abs__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __getitem__ = __setitem__ = __float__ = __len__ = _refuse

    def _reshaped(self, shape: Shape) -> View:
        target = View(self.buffer, shape, c_strides(shape), self.offset, self.name, self.loop_strides)
        if not self.contiguous or target.sample_size != self.sample_size:
            hint = "" if self.contiguous else ": its elements are not together in memory; copy it to a scratch array first"
            raise ValueError(f"a view of shape {shape_text(self.shape)} cannot be reshaped to {shape_text(shape)}{hint}")
        return target

    def __repr__(self) -> str:
        return f"<View {self.text} of {self.buffer.role} {self.buffer.name!r}, {self.dtype}>"

    def __str__(self) -> str:
        if self.name:
            return self.name
        return self.buffer.name if self.is_whole else f"{self.buffer.name}[{self.offset}:]"

    @property
    def text(self) -> str:
        """The name with the shape."""
        return f"{self}{shape_text(self.shape)}"


def scratch_like(view: View, name: str, dtype: np.dtype[Any] | None = None) -> View:
    """A new scratch buffer of the shape of a view."""
    return Buffer(name, "scratch", dtype or view.dtype, view.shape).whole


def c_strides(shape: Shape) -> tuple[int, ...]:
    """Strides of a C-ordered array, in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent.per_sample if isinstance(extent, Batch) else extent
    return tuple(reversed(strides))
