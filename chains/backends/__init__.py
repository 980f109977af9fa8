"""Backends: each executes recorded programs in its own way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import array_api_compat

from chains.backends.auto import NOT_LOADED, AutoBackend
from chains.backends.base import Backend, Binding, FallbackWarning, NumpyOnlyWarning, UnsupportedOperationError
from chains.backends.cupy_settings import Cupy
from chains.backends.executable import Executable
from chains.backends.numpy.backend import NumpyBackend
from chains.support.memory import add_memory, promise_memory
from chains.support.messages import meant


def _native() -> Backend:
    try:
        from chains.backends.native import NativeBackend
    except NOT_LOADED as error:
        raise ValueError(f"`backend` (='native') needs llvmlite, which cannot be imported: {error}") from error
    return NativeBackend()


def _cupy(settings: Cupy = Cupy()) -> Backend:  # noqa: B008 - it never changes
    from chains.backends.cupy import CupyBackend
    from chains.backends.cupy.device.cuda import CudaDevice

    made = CupyBackend(CudaDevice(settings))
    if settings == Cupy():  # the GPU's backend for networks that name none
        add_memory(made.on_device.device, made.on_device)
    return made


_BACKENDS: dict[str, Callable[[], Backend]] = {"auto": AutoBackend, "native": _native, "numpy": NumpyBackend, "cupy": _cupy}
_loaded: dict[str | Cupy, Backend] = {}


def backend(chosen: str | Cupy) -> Backend:
    """The backend of this name, or of these settings; "auto" is the fastest one for arrays in host memory.

    Raises ValueError for an unknown name; the message lists the known ones.
    """
    if chosen == Cupy():
        chosen = "cupy"
    if isinstance(chosen, Cupy):
        make: Callable[[], Backend] = partial(_cupy, chosen)
    elif isinstance(chosen, str) and chosen in _BACKENDS:
        make = _BACKENDS[chosen]
    else:
        hint = meant(chosen, _BACKENDS) if isinstance(chosen, str) else ""
        if chosen is Cupy or str(chosen).startswith("cupy-"):
            hint = "; settings of the GPU backend are an object, such as backend=chains.backends.Cupy(precision='tf32')"
        raise ValueError(f"unknown `backend` (={chosen!r}): choose one of {', '.join(map(repr, _BACKENDS))}{hint}")
    if chosen not in _loaded:
        _loaded[chosen] = make()
    return _loaded[chosen]


promise_memory("cuda", array_api_compat.is_cupy_array, partial(backend, "cupy"))

__all__ = [
    "Backend",
    "Binding",
    "Cupy",
    "Executable",
    "FallbackWarning",
    "NumpyOnlyWarning",
    "UnsupportedOperationError",
    "backend",
]
