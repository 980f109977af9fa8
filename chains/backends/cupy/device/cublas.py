"""Matrix products by cuBLAS, and by cublasLt where something follows that it can do along with them.

Both libraries are called through ctypes, with descriptors made when a program is bound, so that a step allocates
nothing and can be captured in a graph. Their matrices are column-major: out.T = b.T @ a.T is asked for.

Values of enumerations are those of cublasLt.h and cublas_api.h of cuBLAS 12.9, and of library_types.h.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from typing import Any
from weakref import finalize

import numpy as np

from chains.backends.cupy.device.interface import Epilogue, Gemm
from chains.backends.cupy.device.libraries import loaded
from chains.backends.cupy.source.c_source import half_name

WORKSPACE_BYTES = 32 << 20  # what cuBLAS recommends for the largest GPUs

TYPES = {np.dtype(np.float32): 0, np.dtype(np.float64): 1}  # CUDA_R_32F, CUDA_R_64F
HALF_TYPES = {"float16": 2, "bfloat16": 14}  # CUDA_R_16F, CUDA_R_16BF
COMPUTE = {"float32": 68, "tf32": 77, "bf16": 75}  # CUBLAS_COMPUTE_32F, _32F_FAST_TF32, _32F_FAST_16BF
COMPUTE_DOUBLE = 70  # CUBLAS_COMPUTE_64F
DEFAULT_ALGORITHM = -1  # CUBLAS_GEMM_DEFAULT


def types(gemm: Gemm, precision: str) -> tuple[int, int, int]:
    """The types of the factors and of the result, and how is computed."""
    result = TYPES[gemm.dtype] if gemm.dtype in TYPES else HALF_TYPES[half_name(gemm.dtype)]
    if gemm.half:
        return HALF_TYPES[gemm.half], result, COMPUTE["float32"]
    return result, result, COMPUTE_DOUBLE if gemm.dtype == np.float64 else COMPUTE.get(precision, COMPUTE["float32"])


def scalars(gemm: Gemm) -> tuple[Any, Any]:
    """alpha and beta."""
    number = ctypes.c_double if gemm.dtype == np.float64 else ctypes.c_float
    return number(1.0), number(1.0 if gemm.accumulate else 0.0)


class Cublas:
    """Matrix products by cuBLAS, on the stream and with the workspace that each call names."""

    def __init__(self, precision: str, library: Any = None) -> None:
        self._library = library or loaded("cublas")
        self._precision = precision
        self._handle: ctypes.c_void_p | None = None
        self._stream: int | None = None
        self._lock = threading.Lock()  # a handle must not be used by two threads at once

    def call(self, gemm: Gemm) -> tuple[Any, ...]:
        """The arguments of cublasGemmEx."""
        rows, columns, inner = gemm.sizes
        out, a, b = (ctypes.c_void_p(address) for address in gemm.addresses)
        leading = [ctypes.c_int(length) for length in gemm.leading]
        factors, result, compute = types(gemm, self._precision)
        factor, kind = ctypes.c_int(factors), ctypes.c_int(result)
        one, beta = scalars(gemm)
        return (
            ctypes.c_int(gemm.transposed[1]), ctypes.c_int(gemm.transposed[0]),
            ctypes.c_int(columns), ctypes.c_int(rows), ctypes.c_int(inner), ctypes.byref(one),
            b, factor, leading[2], a, factor, leading[1], ctypes.byref(beta), out, kind, leading[0],
            ctypes.c_int(compute), ctypes.c_int(DEFAULT_ALGORITHM),
        )  # fmt: skip

    def start(self, call: tuple[Any, ...], stream: int, workspace: int, nbytes: int) -> None:
        """Start a product. Setting the stream forgets the workspace, which is therefore set anew.

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


# cublasLt

EPILOGUES = {
    "default": 1, "relu": 2, "bias": 4, "relu_bias": 6, "relu_aux": 130, "relu_aux_bias": 134,
    "drelu": 136, "drelu_bgrad": 152, "bgrada": 256, "bgradb": 512,
}  # fmt: skip
POINTER_MODE, TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, AUX_POINTER, AUX_LD = 2, 3, 4, 7, 8, 11, 12  # CUBLASLT_MATMUL_DESC_...
IN_DEVICE = 1  # CUBLASLT_POINTER_MODE_DEVICE
MAX_WORKSPACE_BYTES, REDUCTION_SCHEME_MASK = 1, 3  # CUBLASLT_MATMUL_PREF_...
MIN_ALIGNMENTS = (5, 6, 7, 8)  # CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, _B_, _C_, _D_
IN_WORKSPACE = 2  # CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
REFUSALS = (7, 8, 15)  # CUBLAS_STATUS_INVALID_VALUE, _ARCH_MISMATCH, _NOT_SUPPORTED
MOST_ALGORITHMS = 8  # asked for

ALIGNMENT = 16  # bytes, of vectors and masks: what a thread reads at most at a time
MASK_BITS = 128  # what the leading dimension of a mask is a multiple of


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = [("data", ctypes.c_uint64 * 8)]


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algo", Algorithm),
        ("workspace_size", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves_count", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@dataclass(eq=False)
class MatmulPlan:
    """A product that cublasLt does: its arguments from the descriptor to the algorithm, and the descriptors."""

    arguments: tuple[Any, ...]
    descriptors: tuple[Descriptor, ...]


class Descriptor:
    """Something that cublasLt made, destroyed when it is no longer referenced."""

    def __init__(self, library: Any, kind: str, *arguments: Any) -> None:
        self.library, self.kind = library, kind
        self.pointer = ctypes.c_void_p()
        check(f"cublasLt{kind}Create", getattr(library, f"cublasLt{kind}Create")(ctypes.byref(self.pointer), *arguments))
        finalize(self, getattr(library, f"cublasLt{kind}Destroy"), self.pointer)

    def set(self, attribute: int, value: Any) -> None:
        function = f"cublasLt{self.kind}SetAttribute"
        size = ctypes.c_size_t(ctypes.sizeof(value))
        check(function, getattr(self.library, function)(self.pointer, ctypes.c_int(attribute), ctypes.byref(value), size))


class CublasLt:
    """Products with epilogues by cublasLt, on the stream and with the workspace that each call names.

    The same input gives the same bits again: cuBLAS promises that for one stream with a workspace of its own
    (cuBLAS documentation, 2.1.4 "Results Reproducibility"), the algorithm for a shape is chosen once, and sums that are split
    are laid down in the workspace and added in a step of their own (`IN_WORKSPACE`).
    """

    def __init__(self, precision: str, library: Any = None, nbytes: int = WORKSPACE_BYTES) -> None:
        self._library = library or loaded("cublasLt")
        self._precision = precision
        self._nbytes = nbytes
        self._opened: ctypes.c_void_p | None = None

    def algorithms(self, gemm: Gemm, epilogue: Epilogue) -> list[Algorithm]:
        """The algorithms that cublasLt has for these shapes and alignments, those first that it takes for the fastest."""
        library, (out, a, b) = self._library, gemm.addresses
        description, layouts = self._description(gemm, epilogue), self._layouts(gemm)
        preference = Descriptor(library, "MatmulPreference")
        preference.set(MAX_WORKSPACE_BYTES, ctypes.c_uint64(self._nbytes))
        preference.set(REDUCTION_SCHEME_MASK, ctypes.c_uint32(IN_WORKSPACE))
        for attribute, address in zip(MIN_ALIGNMENTS, (b, a, out, out), strict=True):
            preference.set(attribute, ctypes.c_uint32(aligned(address)))
        left, right, result = (layout.pointer for layout in layouts)
        found, count = (Heuristic * MOST_ALGORITHMS)(), ctypes.c_int()
        status = library.cublasLtMatmulAlgoGetHeuristic(
            self._handle(), description.pointer, left, right, result, result, preference.pointer,
            ctypes.c_int(MOST_ALGORITHMS), found, ctypes.byref(count),
        )  # fmt: skip
        if status in REFUSALS:
            return []
        check("cublasLtMatmulAlgoGetHeuristic", status)
        return [each.algo for each in found[: count.value] if each.state == 0]

    def plan(self, gemm: Gemm, epilogue: Epilogue, algorithm: Algorithm) -> MatmulPlan:
        """The product with its epilogue by an algorithm."""
        out, a, b = gemm.addresses
        description, layouts = self._description(gemm, epilogue), self._layouts(gemm)
        alpha, beta = self._factors(gemm)
        left, right, result = (layout.pointer for layout in layouts)
        place = ctypes.c_void_p(out)
        arguments = (
            description.pointer, alpha, ctypes.c_void_p(b), left, ctypes.c_void_p(a), right,
            beta, place, result, place, result, ctypes.byref(algorithm),
        )  # fmt: skip
        return MatmulPlan(arguments, (description, *layouts))

    def start(self, plan: MatmulPlan, stream: int, workspace: int) -> None:
        last = (ctypes.c_void_p(workspace), ctypes.c_size_t(self._nbytes), ctypes.c_void_p(stream))
        check("cublasLtMatmul", self._library.cublasLtMatmul(self._handle(), *plan.arguments, *last))

    def _factors(self, gemm: Gemm) -> tuple[Any, ...]:
        """The addresses of alpha and beta."""
        if gemm.factors is None:
            return tuple(map(ctypes.byref, scalars(gemm)))
        return tuple(ctypes.c_void_p(gemm.factors + k * gemm.dtype.itemsize) for k in range(2))

    def _description(self, gemm: Gemm, epilogue: Epilogue) -> Descriptor:
        _, result, compute = types(gemm, self._precision)
        description = Descriptor(self._library, "MatmulDesc", ctypes.c_int(compute), ctypes.c_int(result))
        if gemm.factors is not None:
            description.set(POINTER_MODE, ctypes.c_int32(IN_DEVICE))
        description.set(TRANSA, ctypes.c_int32(gemm.transposed[1]))
        description.set(TRANSB, ctypes.c_int32(gemm.transposed[0]))
        description.set(EPILOGUE, ctypes.c_uint32(EPILOGUES[epilogue.kind]))
        if epilogue.vector is not None:
            description.set(BIAS_POINTER, ctypes.c_void_p(epilogue.vector))
        if epilogue.mask is not None:
            description.set(AUX_POINTER, ctypes.c_void_p(epilogue.mask))
            description.set(AUX_LD, ctypes.c_int64(epilogue.mask_leading))
        return description

    def _layouts(self, gemm: Gemm) -> tuple[Descriptor, Descriptor, Descriptor]:
        """Those of b, a and out as they lie in memory, read column by column."""
        rows, columns, inner = gemm.sizes
        factor, result, _ = types(gemm, self._precision)

        def layout(kind: int, height: int, width: int, leading: int, turned: bool) -> Descriptor:
            height, width = (width, height) if turned else (height, width)
            sizes = ctypes.c_uint64(height), ctypes.c_uint64(width), ctypes.c_int64(leading)
            return Descriptor(self._library, "MatrixLayout", ctypes.c_int(kind), *sizes)

        return (
            layout(factor, columns, inner, gemm.leading[2], gemm.transposed[1]),
            layout(factor, inner, rows, gemm.leading[1], gemm.transposed[0]),
            layout(result, columns, rows, gemm.leading[0], False),
        )

    def _handle(self) -> ctypes.c_void_p:
        if self._opened is None:
            handle = ctypes.c_void_p()
            check("cublasLtCreate", self._library.cublasLtCreate(ctypes.byref(handle)))
            self._opened = handle
        return self._opened


def aligned(address: int) -> int:
    """The largest power of two, up to 256, that divides an address."""
    return min(256, address & -address or 256)


class CublasError(RuntimeError):
    """A call of cuBLAS or cublasLt that failed with this status."""

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"{name} failed with the status {status} (see cublasStatus_t in cuBLAS's documentation)")
        self.status = status


def check(name: str, status: int) -> None:
    if status:
        raise CublasError(name, status)
