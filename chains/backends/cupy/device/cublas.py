"""NVIDIA's libraries, loaded from the same places as CuPy's; and matrix products by cuBLAS.

cuBLAS is called through ctypes, so that a step allocates nothing and can be captured in a graph. Its matrices are column-major:
out.T = b.T @ a.T is computed. Values of enumerations are those of cublas_api.h of cuBLAS 12.9, and of library_types.h.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from chains.backends.cupy.device.interface import Gemm
from chains.backends.cupy.device.packages import extra


@cache
def loaded(name: str) -> ctypes.CDLL:
    """NVIDIA's library of this name, such as "cublas" or "cublasLt". Raises ValueError if it is missing."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        find: Callable[[str], Any] = load_nvidia_dynamic_lib
        return ctypes.CDLL(find(name).abs_path)
    except (ImportError, OSError, RuntimeError) as error:
        library = "cuBLAS" if name == "cublas" else name
        raise ValueError(
            f"`backend` (='cupy') needs the library {library}, which cannot be loaded: {error}; {extra('cuda')}"
        ) from error


def load_for_cudnn() -> None:
    """Load the libraries that cuDNN opens by name only, so that it finds those of CuPy in any place."""
    for name in ("cudart", "nvrtc", "cublasLt", "cublas"):
        with suppress(ValueError):  # cuDNN may still find one that CuPy lacks
            loaded(name)


WORKSPACE_BYTES = 32 << 20  # cuBLAS's recommendation for the largest GPUs

TYPES = {np.dtype(np.float32): 0, np.dtype(np.float64): 1}  # CUDA_R_32F, CUDA_R_64F
COMPUTE = {"float32": 68, "tf32": 77}  # CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32
COMPUTE_DOUBLE = 70  # CUBLAS_COMPUTE_64F
DEFAULT_ALGORITHM = -1  # CUBLAS_GEMM_DEFAULT


class Cublas:
    """Matrix products by cuBLAS, on the stream and with the workspace that each call names."""

    def __init__(self, precision: str, library: Any = None) -> None:
        self._library = library or loaded("cublas")
        self._precision = precision
        self._handle: ctypes.c_void_p | None = None
        self._stream: int | None = None
        self._lock = threading.Lock()  # two threads must not use a handle simultaneously

    def call(self, gemm: Gemm) -> tuple[Any, ...]:
        """The arguments of cublasGemmEx."""
        rows, columns, inner = gemm.sizes
        out, a, b = (ctypes.c_void_p(address) for address in gemm.addresses)
        leading = [ctypes.c_int(length) for length in gemm.leading]
        double = gemm.dtype == np.float64
        kind, number = ctypes.c_int(TYPES[gemm.dtype]), ctypes.c_double if double else ctypes.c_float
        one, beta = number(1.0), number(1.0 if gemm.accumulate else 0.0)
        compute = COMPUTE_DOUBLE if double else COMPUTE[self._precision]
        return (
            ctypes.c_int(gemm.transposed[1]), ctypes.c_int(gemm.transposed[0]),
            ctypes.c_int(columns), ctypes.c_int(rows), ctypes.c_int(inner), ctypes.byref(one),
            b, kind, leading[2], a, kind, leading[1], ctypes.byref(beta), out, kind, leading[0],
            ctypes.c_int(compute), ctypes.c_int(DEFAULT_ALGORITHM),
        )  # fmt: skip

    def start(self, call: tuple[Any, ...], stream: int, workspace: int, nbytes: int) -> None:
        """Start a product. Setting the stream drops the workspace, so it is set again.

        The handle, which takes memory, is made by the first product: no thread has to make one while it captures a graph.
        """
        library = self._library
        with self._lock:
            if self._handle is None:
                handle = ctypes.c_void_p()
                check("cublasCreate", library.cublasCreate_v2(ctypes.byref(handle)))
                self._handle = handle
            if self._stream != stream:
                self._stream = None
                check("cublasSetStream", library.cublasSetStream_v2(self._handle, ctypes.c_void_p(stream)))
                check(
                    "cublasSetWorkspace",
                    library.cublasSetWorkspace_v2(self._handle, ctypes.c_void_p(workspace), ctypes.c_size_t(nbytes)),
                )
                self._stream = stream
            check("cublasGemmEx", library.cublasGemmEx(self._handle, *call))


def check(name: str, status: int) -> None:
    """Raise RuntimeError for a call that failed."""
    if status:
        raise RuntimeError(f"{name} failed with the status {status} (see cublasStatus_t in cuBLAS's documentation)")
