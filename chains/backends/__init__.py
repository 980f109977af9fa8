"""Backends: each executes recorded programs in its own way."""

from __future__ import annotations

from collections.abc import Callable

from chains.backends.base import Backend, Binding, Executable, UnsupportedOperationError
from chains.backends.numpy import NumpyBackend

_BACKENDS: dict[str, Callable[[], Backend]] = {"numpy": NumpyBackend}
_loaded: dict[str, Backend] = {}


def backend(name: str) -> Backend:
    """The backend of this name; "auto" is the fastest one for arrays in the computer's own memory.

    Raises ValueError, listing those there are, for an unknown name.
    """
    if name == "auto":
        name = "numpy"
    if name not in _BACKENDS:
        raise ValueError(f"unknown `backend` (={name!r}): choose 'auto' or one of {', '.join(map(repr, _BACKENDS))}")
    if name not in _loaded:
        _loaded[name] = _BACKENDS[name]()
    return _loaded[name]


__all__ = ["Backend", "Binding", "Executable", "UnsupportedOperationError", "backend"]
