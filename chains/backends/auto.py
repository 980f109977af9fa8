"""The backend "auto": it gives each program to the backend that runs it fastest on this computer."""

from __future__ import annotations

import warnings

import numpy as np

from chains.backends.base import Arrays, Backend, Binding, FallbackWarning, NumpyOnlyWarning, SymmetricMatrix
from chains.backends.numpy.backend import NumpyBackend
from chains.program.program import Program
from chains.support.callers import levels_outside

NOT_LOADED = (ImportError, OSError, MemoryError)  # what an import raises of a library that is missing or cannot be loaded


class AutoBackend(Backend):
    """Machine code for programs that can be compiled, NumPy for the others."""

    name = "auto"
    lowered = NumpyBackend.lowered

    def __init__(self) -> None:
        self._numpy: Backend = NumpyBackend()
        self._native, self._missing = _native()
        self.has_functions = self._native is not None

    def choose(self, program: Program) -> Backend:
        """The native backend if it supports the program, else NumPy; then a FallbackWarning says why."""
        if self._native is None:  # which was reported before
            return self._numpy
        if (reason := self._native.unsupported(program)) is None:
            return self._native
        text = f"NumPy runs the program '{program.name}', several times slower than machine code: {reason}"
        warnings.warn(text, FallbackWarning, stacklevel=levels_outside())
        return self._numpy

    def fallback(self, program: Program) -> str | None:
        return self._missing if self._native is None else self._native.unsupported(program)

    def listing(self, program: Program, *, passes: bool = False, batch: int | None = None) -> str:
        """The listing of the backend that runs the program; if that is NumPy, the reason comes first."""
        reason = self.fallback(program)
        if reason is None and self._native is not None:
            return self._native.listing(program, passes=passes, batch=batch)
        return f"on NumPy: {reason}\n\n{self._numpy.listing(program, passes=passes, batch=batch)}"

    def symmetric_matrix(self, matrix: np.ndarray) -> SymmetricMatrix | None:
        return None if self._native is None else self._native.symmetric_matrix(matrix)

    def matrix_shape(self, n: int) -> tuple[int, int] | None:
        return None if self._native is None else self._native.matrix_shape(n)

    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> Binding:
        return self.choose(program).bind(program, batch, arrays, scratch)


def _native() -> tuple[Backend | None, str | None]:
    """The native backend, or why there is none."""
    try:
        from chains.backends.native import NativeBackend
    except NOT_LOADED as error:
        advice = "; pip install llvmlite" if isinstance(error, ImportError) else ""
        text = f"chains runs on NumPy alone, several times slower, since llvmlite cannot be imported: {error}{advice}"
        warnings.warn(text, NumpyOnlyWarning, stacklevel=levels_outside())
        return None, f"backend 'native' needs llvmlite, which cannot be imported: {error}"
    return NativeBackend(), None
