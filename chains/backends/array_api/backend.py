"""The backend for array libraries of the array API standard: PyTorch, CuPy, JAX and others, on any of their devices.

It is slower than the other backends, and runs wherever an array library does. Each operation makes new arrays, which are
written into the views of its results.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import AbstractContextManager
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np

from chains.backends.array_api.library import Library, library
from chains.backends.array_api.lowerings import CALLS, VALUES, lower
from chains.backends.array_api.memory import FlatMemory, Memory, on_host
from chains.backends.base import Arrays, Backend, Binding, Feed, UnsupportedOperationError, caller_arrays
from chains.program.program import Program
from chains.support.memory import Array


class ArrayBackend(Backend):
    """Runs programs by an array library, on any device of it. Arrays on the host are copied there and back.

    Parameters
    ----------
    namespace : module or str
        The library: "torch", "cupy", "jax.numpy", "array_api_strict" or another that follows the array API standard.
    device : str, optional
        A device as the library names it, such as "cuda" or "mps" of PyTorch; by default the library's own.

    Raises
    ------
    TypeError, ValueError
        For a library or a device that cannot be used.
    """

    lowered = VALUES.keys() | CALLS.keys()

    def __init__(self, namespace: ModuleType | str, device: str | None = None) -> None:
        text = getattr(namespace, "__name__", namespace)
        if not isinstance(text, str):
            raise TypeError(f"`namespace` (={namespace!r}) must be an array library such as torch, or its name")
        if not isinstance(device, str | None):
            raise TypeError(f"`device` (={device!r}) must be a text such as 'cuda', or None")
        self.namespace = text.removeprefix("array_api_compat.")
        self.device = device
        self.name = self.namespace if device is None else f"{self.namespace}:{device}"
        self.same_bits = self.namespace != "cupy" and (device is None or "cpu" in device.lower())  # GPUs add rows in any order
        self.dtypes = (np.float32,) if self.library.narrow else (np.float32, np.float64)

    @cached_property
    def library(self) -> Library:
        """The functions of the library."""
        return library(self.namespace, self.device)

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayBackend, (self.namespace, self.device)

    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> HostArrayBinding:
        if program.dtype not in self.dtypes:
            raise UnsupportedOperationError(self.unsupported(program))
        return HostArrayBinding(self.library, program, batch, arrays, scratch)

    def about(self) -> dict[str, str]:
        return {self.name: f"available, {self.library.xp.__name__} {getattr(self.library.xp, '__version__', '')}".strip()}

    def running(self) -> AbstractContextManager[object]:
        return np.errstate(all="ignore")  # of libraries that compute by NumPy

    def feed(self, binding: Binding, sources: Arrays, order: np.ndarray) -> Feed:
        assert isinstance(binding, HostArrayBinding)
        return ArrayFeed(binding, sources, order)


class ArrayBinding(Binding):
    """A program bound to arrays of the library: `calls`, made in order."""

    def __init__(self, library: Library, program: Program, batch: int, arrays: Arrays, scratch: Array | None = None) -> None:
        self.program, self.batch, self.arrays = program, batch, dict(arrays)
        self.memory = (Memory if library.has_strides else FlatMemory)(library, program, batch, arrays, scratch)
        self.calls = [call for operation in program.operations for call in lower(self.memory, operation)]

    def run(self) -> None:
        for call in self.calls:
            call()


class HostArrayBinding(Binding):
    """A program bound to NumPy arrays, which are copied to the library's device before a run and back after it."""

    def __init__(self, library: Library, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None) -> None:
        self.program, self.batch, self.library = program, batch, library
        self.arrays = caller_arrays(program, batch, arrays)
        own = {
            name: array if on_host(program.buffers[name]) else library.from_host(array) for name, array in self.arrays.items()
        }
        there = library.from_host(scratch) if scratch is not None and library.has_strides else None
        self.inner = ArrayBinding(library, program, batch, own, there)
        self.roles = {name: program.buffers[name].role for name in own if not on_host(program.buffers[name])}

    def send(self, left_out: Collection[str] = ()) -> None:
        """Copy what the program reads to the device."""
        for name, role in self.roles.items():
            if role in ("input", "state") and name not in left_out:
                self.inner.memory.put(self.program.buffers[name], self.library.from_host(self.arrays[name]))

    def fetch(self) -> None:
        """Copy what the program wrote to the host."""
        for name, role in self.roles.items():
            if role in ("output", "state"):
                self.arrays[name][...] = self.result(name).reshape(self.arrays[name].shape)

    def result(self, name: str) -> np.ndarray:
        """The contents of a buffer."""
        return self.library.to_host(self.inner.memory.buffer(self.program.buffers[name]))

    def run(self) -> None:
        self.send()
        self.inner.run()
        self.fetch()

    def __call__(self) -> None:
        with np.errstate(all="ignore"):
            self.run()


class ArrayFeed(Feed):
    """Training steps on the device. Data sets are copied there once, the state before and after many steps."""

    def __init__(self, binding: HostArrayBinding, sources: Arrays, order: np.ndarray) -> None:
        self._binding, self._order = binding, order
        self._sources = {name: binding.library.from_host(array) for name, array in sources.items()}
        self._random = binding.arrays.get("random")

    def __call__(self, first: int, values: np.ndarray) -> int:
        binding, done = self._binding, 0
        binding.send(self._sources)
        while done < len(values) and (done == 0 or math.isfinite(values[done - 1])):
            if self._sources:
                self._take_batch(first + done)
            binding.inner.run()
            values[done] = binding.result("value").item()
            done += 1
            if self._random is not None:
                self._random[1] += 1
        binding.fetch()
        return done

    def _take_batch(self, step: int) -> None:
        binding, library = self._binding, self._binding.library
        numbers = library.from_host(self._order[step * binding.batch : (step + 1) * binding.batch])
        for name, source in self._sources.items():
            buffer = binding.program.buffers[name]
            binding.inner.memory.put(buffer, library.converted(library.xp.take(source, numbers, axis=0), buffer.dtype))
