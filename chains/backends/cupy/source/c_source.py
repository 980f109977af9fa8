"""Types and numbers in CUDA C.

The text of kernels is valid C and C++. So tests compile the same kernels with an ordinary C compiler and run them on the
processor.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chains.lowering.c_language import Dialect

_PRELUDE = """\
#ifndef KERNEL
#define KERNEL_OF(threads, resident) extern "C" __global__ void __launch_bounds__(threads, resident)
#define KERNEL extern "C" __global__ void __launch_bounds__(256)
#define DEVICE static __device__ __forceinline__
#define SHARED __shared__
#define SHARED_MEMORY extern __shared__ __align__(16) unsigned char shared_memory[]
#define ALIGNED(bytes) __align__(bytes)
#endif
typedef long long int64;
typedef unsigned long long uint64;
typedef {index} Index;
typedef unsigned {index} Count;

"""

_TYPES = {
    "float32": "float", "float64": "double", "int8": "signed char", "int16": "short", "int32": "int", "int64": "int64",
    "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int", "uint64": "uint64",
    "bool": "unsigned char",
}  # fmt: skip


def ctype(dtype: np.dtype[Any]) -> str:
    """The C type of a NumPy type. Raises KeyError for one that kernels cannot read."""
    return _TYPES[dtype.name]


def readable(dtype: np.dtype[Any]) -> bool:
    """Whether kernels can read numbers of this type."""
    return dtype.isnative and dtype.name in _TYPES


def _special(value: float, kind: str) -> str:
    bits = "0x7ff8000000000000" if math.isnan(value) else "0x7ff0000000000000"
    return f"{'-' if value < 0 else ''}({kind})__longlong_as_double({bits}ll)"


CUDA = Dialect(
    _special, lambda value, kind: f"({kind}){value!r}", lambda size, kind: f"(-({kind}){size!r})", {"float": "f", "double": "d"}
)
literal = CUDA.literal


def prelude(index: str) -> str:
    """The definitions before all kernels. `index` is the C type of indices."""
    return f"{_PRELUDE.format(index=index)}{CUDA.helpers('DEVICE')}"
