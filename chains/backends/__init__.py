"""Backends: each executes recorded programs in its own way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import array_api_compat

from chains.backends.auto import AutoBackend
from chains.backends.base import Backend, Binding, FallbackWarning, Feed, Intake, Single, UnsupportedOperationError
from chains.backends.executable import Executable
from chains.backends.numpy.backend import NumpyBackend
from chains.backends.places import add_place, promise_place
from chains.messages import meant


def _native() -> Backend:
    try:
        from chains.backends.native import NativeBackend
    except ImportError as error:
        raise ValueError(f"`backend` (='native') needs llvmlite, which cannot be imported: {error}") from error
    return NativeBackend()


def _cupy(precision: str = "float32", convolutions: str = "auto") -> Backend:
    from chains.backends.cupy import CupyBackend
    from chains.backends.cupy.device.cuda import CudaDevice

    made = CupyBackend(CudaDevice(precision, convolutions))
    if (precision, convolutions) == ("float32", "auto"):  # the GPU's default backend, for networks that name none
        add_place(made.on_device.device, made.on_device)
    return made


_BACKENDS: dict[str, Callable[[], Backend]] = {
    "auto": AutoBackend,
    "native": _native,
    "numpy": NumpyBackend,
    "cupy": _cupy,
    "cupy-tf32": partial(_cupy, "tf32"),
    "cupy-bf16": partial(_cupy, "bf16"),
    "cupy-bf16-timed": partial(_cupy, "bf16", "timed"),
    "cupy-f16": partial(_cupy, "f16"),
    "cupy-f16-timed": partial(_cupy, "f16", "timed"),
    "cupy-bf16-activations": partial(_cupy, "bf16-activations"),
    "cupy-bf16-activations-timed": partial(_cupy, "bf16-activations", "timed"),
    **{
        f"{name}-{convolutions}": partial(_cupy, precision, convolutions)
        for name, precision in (("cupy", "float32"), ("cupy-tf32", "tf32"))
        for convolutions in ("timed", "products", "cudnn", "cudnn-timed", "cudnn-fastest")
    },
}
_loaded: dict[str, Backend] = {}


def backend(name: str) -> Backend:
    """The backend of this name; "auto" is the fastest one for arrays in host memory.

    Raises ValueError for an unknown name; the message lists the known ones.
    """
    if not isinstance(name, str) or name not in _BACKENDS:
        hint = meant(name, _BACKENDS) if isinstance(name, str) else ""
        raise ValueError(f"unknown `backend` (={name!r}): choose one of {', '.join(map(repr, _BACKENDS))}{hint}")
    if name not in _loaded:
        _loaded[name] = _BACKENDS[name]()
    return _loaded[name]


promise_place("cuda", array_api_compat.is_cupy_array, partial(backend, "cupy"))

__all__ = [
    "Backend",
    "Binding",
    "Executable",
    "FallbackWarning",
    "Feed",
    "Intake",
    "Single",
    "UnsupportedOperationError",
    "backend",
]
