"""The memory of a program at a batch size: the arrays of its views, and temporary arrays within one operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from chains.backends.base import Arrays, aligned, caller_arrays
from chains.backends.numpy.formulas import CallSequence
from chains.expr.formulas import Formula
from chains.program.operations import Operation
from chains.program.program import Program
from chains.program.scratch import ALIGNMENT
from chains.program.view import View, concrete
from chains.support.caching import lazy

Functions = Mapping[type[Operation], Callable[["Memory", Any], list[Callable[[], Any]]]]
NO_FUNCTIONS: Functions = MappingProxyType({})


class Memory:
    """The caller's arrays and scratch.

    Temporary arrays are a part of `scratch`, where it is given. `scratch_bytes`, how much of it is needed, grows with each of
    them. `workspace_bytes` must be set before the workspace is used.
    """

    def __init__(
        self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None, functions: Functions = NO_FUNCTIONS
    ) -> None:
        self.functions = functions  # for operations that are done in another way
        self.program = program
        self.batch = batch
        self.arrays = caller_arrays(program, batch, arrays)
        self.scratch_bytes = program.scratch.nbytes(batch)
        self.workspace_bytes = 0
        self._whole = scratch
        self._scratch = aligned(self.scratch_bytes) if scratch is None else scratch
        self._arrays: dict[View, np.ndarray] = {}
        self._temporaries: dict[tuple[Any, ...], np.ndarray] = {}
        self._squeezed: dict[int, np.ndarray] = {}
        self.sequences: dict[tuple[Any, ...], tuple[Formula, CallSequence]] = {}  # by the formula's id, hence kept with it
        self._last_use = {view.buffer: operation for operation in program.operations for view in operation.views}

    def array(self, view: View) -> np.ndarray:
        """The array of a view; always the same object, from which NumPy sees that an operation is in place."""
        if view not in self._arrays:
            self._arrays[view] = self._made(view)
        return self._arrays[view]

    def _made(self, view: View) -> np.ndarray:
        buffer, size = view.buffer, view.dtype.itemsize
        if buffer.role == "scratch":
            base, offset = self._scratch, self.program.scratch.offset(buffer, self.batch)
        else:
            base, offset = self.arrays[buffer.name], 0
        shape = concrete(view.shape, self.batch)
        strides = tuple(stride * size for stride in view.strides)
        return np.ndarray(shape, view.dtype, base, offset + view.offset * size, strides)

    def squeezed(self, array: np.ndarray, ndim: int) -> np.ndarray:
        """`array` without the first of `ndim` axes, whose length is 1; always the same object."""
        if array.ndim < ndim:
            return array
        return self._squeezed.setdefault(id(array), array.reshape(array.shape[1:]))

    def dies(self, view: View, operation: Operation) -> bool:
        """Whether `operation` is the last to use the view's buffer, and uses it once."""
        if view.buffer.role != "scratch" or self._last_use[view.buffer] is not operation:
            return False
        return sum(other.buffer is view.buffer for other in operation.views) == 1

    def temporary(self, shape: tuple[int, ...], dtype: Any, number: int = 0) -> np.ndarray:
        """A temporary array within one operation; different numbers give different arrays."""
        dtype = np.dtype(dtype)
        key = (shape, dtype, number)
        if key not in self._temporaries:
            start, nbytes = self.scratch_bytes, -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
            self.scratch_bytes += nbytes
            if self._whole is None:
                self._temporaries[key] = np.ndarray(shape, dtype, aligned(nbytes))
            else:
                self._temporaries[key] = np.ndarray(shape, dtype, self._whole, start)
        return self._temporaries[key]

    @lazy
    def workspace(self) -> np.ndarray:
        """Temporary bytes of convolutions and pools, as many as the largest needs."""
        return self.temporary((self.workspace_bytes,), np.uint8)
