"""cuBLAS as its documentation has it, in NumPy: column-major matrices in the computer's memory.

Whatever the documentation forbids fails an assertion.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

TYPES = {0: np.float32, 1: np.float64}  # CUDA_R_32F, CUDA_R_64F
COMPUTE = {0: (68, 77), 1: (70,)}  # by type


def memory(address: int, span: int) -> Any:
    return (ctypes.c_char * max(1, span)).from_address(address)


def matrix(address: int, kind: int, rows: int, columns: int, leading: int) -> np.ndarray:
    """A column-major matrix in memory."""
    assert leading >= max(1, rows), "cuBLAS would refuse this leading dimension"
    dtype = np.dtype(TYPES[kind])
    span = ((columns - 1) * leading + rows) * dtype.itemsize
    return np.ndarray((rows, columns), dtype, memory(address, span), 0, (dtype.itemsize, leading * dtype.itemsize))


class FakeCublas:
    """cublasGemmEx."""

    def cublasGemmEx(self, handle, ta, tb, m, n, k, alpha, a, ka, lda, b, kb, ldb, beta, c, kc, ldc, compute, algorithm):
        assert ka.value == kb.value == kc.value
        assert compute.value in COMPUTE[kc.value]
        left = matrix(a.value, ka.value, *((k.value, m.value) if ta.value else (m.value, k.value)), lda.value)
        right = matrix(b.value, kb.value, *((n.value, k.value) if tb.value else (k.value, n.value)), ldb.value)
        out = matrix(c.value, kc.value, m.value, n.value, ldc.value)
        factors = (left.T if ta.value else left, right.T if tb.value else right)
        product = alpha._obj.value * (factors[1].T @ factors[0].T).T
        out[...] = product + (beta._obj.value * out if beta._obj.value else 0)
        return 0
