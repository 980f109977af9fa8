"""Backends: each executes recorded programs in its own way."""

from __future__ import annotations

from collections.abc import Callable

from chains.backends.auto import AutoBackend
from chains.backends.base import Backend, Binding, Executable, Feed, UnsupportedOperationError
from chains.backends.numpy import NumpyBackend


def _native() -> Backend:
    try:
        from chains.backends.native import NativeBackend
    except ImportError as error:
        raise ValueError(f"`backend` (='native') needs llvmlite, which cannot be imported: {error}") from error
    return NativeBackend()


_BACKENDS: dict[str, Callable[[], Backend]] = {"auto": AutoBackend, "native": _native, "numpy": NumpyBackend}
_loaded: dict[str, Backend] = {}


def backend(name: str) -> Backend:
    """The backend of this name; "auto" is the fastest one for arrays in the computer's own memory.

    Raises ValueError, listing those there are, for an unknown name.
    """
    if not isinstance(name, str) or name not in _BACKENDS:
        raise ValueError(f"unknown `backend` (={name!r}): choose one of {', '.join(map(repr, _BACKENDS))}")
    if name not in _loaded:
        _loaded[name] = _BACKENDS[name]()
    return _loaded[name]


__all__ = ["Backend", "Binding", "Executable", "Feed", "UnsupportedOperationError", "backend"]
