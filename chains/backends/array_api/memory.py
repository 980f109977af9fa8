"""The arrays of a program's views in an array library.

Where the library has strided views, a view is one, and results are written into it. Elsewhere each buffer is a flat array: a
view is read by a slice or by `take`, and written by making the buffer's array anew, with functions of the standard alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chains.backends.array_api.library import Array, Library
from chains.backends.base import Arrays
from chains.program.program import Program
from chains.program.view import Buffer, View, concrete


class Memory:
    """The buffers of a program at a batch size, as flat arrays; views as strided arrays. Seeds stay on the host."""

    def __init__(self, library: Library, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None) -> None:
        self.library, self.program, self.batch = library, program, batch
        flat = {buffer: arrays[name].reshape(-1) for name, buffer in program.buffers.items() if name in arrays}
        self._flat = {buffer: each if on_host(buffer) else library.from_host(each) for buffer, each in flat.items()}
        self._views: dict[View, Any] = {}
        self._planned = {view.buffer for each in program.operations for view in each.views if view.buffer.role == "scratch"}
        self._scratch = library.from_host(scratch) if scratch is not None and library.strided else None

    def shape(self, view: View) -> tuple[int, ...]:
        """The shape of a view at the batch size."""
        return concrete(view.shape, self.batch)

    def buffer(self, buffer: Buffer) -> Array:
        """The flat array of a buffer."""
        if buffer not in self._flat:
            self._flat[buffer] = self._made(buffer)
        return self._flat[buffer]

    def host(self, view: View) -> np.ndarray:
        """The contents of a view as a NumPy array."""
        if on_host(view.buffer):
            return self.buffer(view.buffer).reshape(self.shape(view))
        return self.library.to_host(self.read(view))

    def put(self, buffer: Buffer, value: Array) -> None:
        """Fill a whole buffer with an array of its size."""
        self.write(buffer.whole, self.library.xp.reshape(value, self.shape(buffer.whole)))

    def read(self, view: View) -> Array:
        """The contents of a view. They may change with the next `write`."""
        if view not in self._views:
            assert self.library.strided is not None
            self._views[view] = self.library.strided(self.buffer(view.buffer), self.shape(view), view.strides, view.offset)
        return self._views[view]

    def write(self, view: View, value: Array) -> None:
        """Fill a view with a value, broadcast to its shape and converted to its type."""
        self.read(view)[...] = value

    def _made(self, buffer: Buffer) -> Array:
        """Uninitialised: a part of the scratch memory, unless the buffer is of an operation that is done in parts."""
        shape, library = self.shape(buffer.whole.flat), self.library
        if buffer not in self._planned or not library.strided:
            return library.full(shape, buffer.dtype)
        if self._scratch is None:
            self._scratch = library.full((self.program.scratch.nbytes(self.batch),), np.dtype(np.uint8))
        start = self.program.scratch.offset(buffer, self.batch)
        return self._scratch[start : start + shape[0] * buffer.dtype.itemsize].view(library.dtype(buffer.dtype))


class FlatMemory(Memory):
    """Views are copies of parts of the flat arrays, which never change themselves."""

    def read(self, view: View) -> Array:
        xp, flat, shape = self.library.xp, self.buffer(view.buffer), self.shape(view)
        if view.contiguous:
            return xp.reshape(flat[view.offset : view.offset + math.prod(shape)], shape)
        return xp.reshape(xp.take(flat, self._places(view)[0], axis=0), shape)

    def write(self, view: View, value: Array) -> None:
        xp, flat = self.library.xp, self.buffer(view.buffer)
        value = xp.reshape(self.library.converted(xp.broadcast_to(value, self.shape(view)), view.dtype), (-1,))
        if value.shape[0] == flat.shape[0] and view.contiguous:
            self._flat[view.buffer] = value
        elif view.contiguous:
            self._flat[view.buffer] = xp.concat([flat[: view.offset], value, flat[view.offset + value.shape[0] :]])
        elif value.shape[0]:
            _, changed, source = self._places(view)
            self._flat[view.buffer] = xp.where(changed, xp.take(value, source, axis=0), flat)

    def _places(self, view: View) -> tuple[Array, Array, Array]:
        """The elements of a view in its buffer, whether each element of the buffer is one, and its number in the view."""
        if view not in self._views:
            size, strides = self.buffer(view.buffer).shape[0], [8 * stride for stride in view.strides]
            numbers = np.arange(size, dtype=np.int64)[view.offset :]
            places = np.lib.stride_tricks.as_strided(numbers, self.shape(view), strides).reshape(-1)
            changed, source = np.zeros(size, bool), np.zeros(size, np.int64)
            changed[places], source[places] = True, np.arange(len(places))
            self._views[view] = tuple(map(self.library.from_host, (places, changed, source)))
        return self._views[view]


def on_host(buffer: Buffer) -> bool:
    """Whether a buffer stays on the host, where random numbers are drawn: numbers without sign, which are seeds."""
    return buffer.dtype.kind == "u"
