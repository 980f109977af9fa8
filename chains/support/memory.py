"""Memories of arrays: the host's or a GPU's. The memory of the parameter vector decides where computations run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any  # an array of the library of this memory, with the attributes of NumPy's


class Memory(ABC):
    """A memory, and functions that make arrays in it."""

    name: str

    @abstractmethod
    def owns(self, array: Any) -> bool:
        """Whether this is an array in this memory."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """A C-ordered array, uninitialised. Raises MemoryError, with the requested size, if there is no room."""

    @abstractmethod
    def contiguous(self, array: Any, dtype: Any = None) -> Array:
        """The array, from any memory, as an array here in C order and of this type; itself if it already is."""

    @abstractmethod
    def assign(self, target: Any, source: Any) -> None:
        """Copy an array to another of the same size, converted to its type. One of the two is in this memory."""

    @abstractmethod
    def address(self, array: Array) -> int:
        """The address of the first element of an array."""

    def array(self, source: Any) -> Array:
        """A copy in this memory."""
        result = self.empty(source.shape, source.dtype)
        self.assign(result, source)
        return result


class Host(Memory):
    """Host memory: NumPy arrays."""

    name = "cpu"

    def owns(self, array: Any) -> bool:
        return isinstance(array, np.ndarray)

    empty = staticmethod(np.empty)  # type: ignore[assignment]

    def contiguous(self, array: Any, dtype: Any = None) -> Array:
        return np.ascontiguousarray(array, dtype).reshape(array.shape)

    def assign(self, target: Any, source: Any) -> None:
        target[...] = source.reshape(target.shape)

    def address(self, array: Array) -> int:
        return int(array.ctypes.data)


HOST = Host()
Backend = Any  # runs programs on the arrays of a memory; backends are above this room
_OTHERS: list[tuple[Memory, Backend]] = []  # memories other than the host's, each with the backend for its arrays
_PROMISED: dict[str, tuple[Callable[[Any], bool], Callable[[], object]]] = {}  # by name, until first needed


def add_memory(memory: Memory, backend: Backend) -> None:
    """Register a memory: its arrays are accepted from now on, and `backend` runs programs on them."""
    _OTHERS.append((memory, backend))


def promise_memory(name: str, owns: Callable[[Any], bool], make: Callable[[], object]) -> None:
    """Register a memory that is added later: `make` adds it when its name, or an array that it `owns`, is first seen."""
    _PROMISED[name] = owns, make


def _known(array: Any) -> tuple[Memory, Backend] | None:
    for memory, backend in _OTHERS:
        if memory.owns(array):
            return memory, backend
    for owns, make in _PROMISED.values():
        if owns(array):
            make()
            return next(known for known in _OTHERS if known[0].owns(array))
    return None


def memory_named(name: str) -> Memory:
    """The memory of this name. Raises ValueError for an unknown one, and if there is no GPU."""
    if isinstance(name, str) and name in _PROMISED:
        try:
            _PROMISED[name][1]()
        except ValueError as error:
            raise ValueError(str(error).replace("`backend` (='cupy')", f"`device` (={name!r})")) from error
    for memory in (HOST, *(memory for memory, _ in _OTHERS)):
        if memory.name == name:
            return memory
    raise ValueError(f"`device` (={name!r}) must be 'cpu' or 'cuda'")


def is_elsewhere(array: Any) -> bool:
    """Whether this is an array in the memory of a GPU."""
    return type(array) is not np.ndarray and _known(array) is not None


def memory_of(array: Any) -> Memory:
    """The memory of an array. Everything but arrays on a GPU counts as being on the host."""
    known = None if type(array) is np.ndarray else _known(array)
    return HOST if known is None else known[0]


def on_host(array: Any) -> np.ndarray:
    """The array, or its contents, as a NumPy array."""
    if not is_elsewhere(array):
        return np.asarray(array)
    result = np.empty(array.shape, array.dtype)
    memory_of(array).assign(result, array)
    return result


def backend_of(array: Any, backend: Backend) -> Backend:
    """The backend for arrays in the memory of this one: `backend` on the host; on a GPU `backend.on_device`, or the GPU's
    backend.
    """
    known = None if type(array) is np.ndarray else _known(array)
    if known is None:
        return backend
    own: Backend | None = getattr(backend, "on_device", None)
    return known[1] if own is None else own
