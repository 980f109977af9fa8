"""The backend "auto": for each program, the one that runs it fastest on this computer."""

from __future__ import annotations

import warnings

import numpy as np

from chains.backends.base import Arrays, Backend, Binding
from chains.backends.numpy.backend import NumpyBackend
from chains.program.program import Program


class AutoBackend(Backend):
    """Machine code, and NumPy for what cannot be compiled."""

    name = "auto"
    lowered = NumpyBackend.lowered

    def __init__(self) -> None:
        self._numpy = NumpyBackend()
        self._native = _native()
        self.has_functions = self._native is not None

    def choose(self, program: Program) -> Backend:
        return self._numpy if self._native is None or self._native.unsupported(program) else self._native

    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> Binding:
        return self.choose(program).bind(program, batch, arrays, scratch)


def _native() -> Backend | None:
    try:
        from chains.backends.native import NativeBackend
    except ImportError as error:
        warnings.warn(f"chains runs on NumPy alone, several times slower: {error}; pip install llvmlite", stacklevel=4)
        return None
    return NativeBackend()
