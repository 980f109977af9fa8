"""NVIDIA's libraries, loaded where CuPy finds them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any


@cache
def loaded(name: str) -> ctypes.CDLL:
    """NVIDIA's library of this name, such as "cublas" or "cublasLt". Raises ValueError where it is missing."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        find: Callable[[str], Any] = load_nvidia_dynamic_lib
        return ctypes.CDLL(find(name).abs_path)
    except (ImportError, OSError, RuntimeError) as error:
        library = "cuBLAS" if name == "cublas" else name
        raise ValueError(
            f"`backend` (='cupy') needs the library {library}, which cannot be loaded: {error}; pip install 'cupy-cuda12x[ctk]'"
        ) from error


def load_for_cudnn() -> None:
    """Load the libraries that cuDNN asks for by name alone, so that it finds those of CuPy, wherever they are installed."""
    for name in ("cudart", "nvrtc", "cublasLt", "cublas"):
        with suppress(ValueError):  # one that CuPy lacks may still be where cuDNN looks
            loaded(name)
