"""Backends: each executes recorded programs in its own way."""

from __future__ import annotations

from functools import partial

import array_api_compat

from chains.backends.array_api import ArrayBackend
from chains.backends.base import Backend, Binding, FallbackWarning, NumpyOnlyWarning, UnsupportedOperationError
from chains.backends.cupy_settings import Cupy
from chains.backends.executable import Executable
from chains.backends.numpy.backend import NumpyBackend
from chains.backends.registry import backend, named, register, registered
from chains.support.memory import promise_memory

promise_memory("cuda", array_api_compat.is_cupy_array, partial(backend, "cupy"))

__all__ = [
    "ArrayBackend", "Backend", "Binding", "Cupy", "Executable", "FallbackWarning", "NumpyBackend", "NumpyOnlyWarning",
    "UnsupportedOperationError", "backend", "named", "register", "registered",
]  # fmt: skip
