"""The backend "auto": for each program, the one that runs it fastest on this computer."""

from __future__ import annotations

import math
import warnings

import numpy as np

from chains.backends.base import Arrays, Backend, Binding, UnsupportedOperationError
from chains.backends.numpy import NumpyBackend
from chains.operations import MatMul
from chains.program import Program
from chains.view import concrete

# Weights of more elements than this go to BLAS, through NumPy: its products are blocked for every level of cache, and
# from here on that counts for more than fusing what surrounds them (docs/performance.md has the measurement).
LARGEST_WEIGHTS = 1 << 17


class AutoBackend(Backend):
    """Machine code for programs of small products, NumPy for large ones and for what cannot be compiled."""

    name = "auto"

    def __init__(self) -> None:
        self._numpy = NumpyBackend()
        self._native = _native()

    def choose(self, program: Program) -> Backend:
        if self._native is None or _largest_weights(program) > LARGEST_WEIGHTS:
            return self._numpy
        try:
            self._native.prepare(program)
        except UnsupportedOperationError:
            return self._numpy
        return self._native

    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> Binding:
        return self.choose(program).bind(program, batch, arrays, scratch)


def _native() -> Backend | None:
    try:
        from chains.backends.native import NativeBackend
    except ImportError as error:
        warnings.warn(f"chains runs on NumPy alone, several times slower: {error}; pip install llvmlite", stacklevel=4)
        return None
    return NativeBackend()


def _largest_weights(program: Program) -> int:
    """The number of elements of the largest operand without a batch axis of a product over samples."""
    products = [operation for operation in program.operations if isinstance(operation, MatMul)]
    views = [view for p in products if any(v.batched for v in p.views) for view in p.views if not view.batched]
    return max((math.prod(concrete(view.shape, 1)) for view in views), default=0)
