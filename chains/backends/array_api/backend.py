"""The backend for array libraries of the array API standard: PyTorch, CuPy, JAX and others, on any of their devices.

It is slower than the other backends, and runs wherever an array library does. Each operation makes new arrays, which are
written into the views of its results.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import numpy as np

from chains.backends.array_api.library import Array, Library, library
from chains.backends.array_api.lowerings import CALLS, VALUES, lower
from chains.backends.array_api.memory import FlatMemory, Memory, on_host
from chains.backends.base import Arrays, Backend, Binding, Feed, UnsupportedOperationError, caller_arrays
from chains.program.program import Program
from chains.program.view import Buffer


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
        self.library = library(self.namespace, device)
        self.dtypes = (np.float32,) if self.library.narrow else (np.float32, np.float64)

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayBackend, (self.namespace, self.device)

    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> ArrayBinding:
        if (reason := self.unsupported(program)) is not None:
            raise UnsupportedOperationError(reason)
        return ArrayBinding(self.library, program, batch, arrays, scratch)

    def about(self) -> dict[str, str]:
        return {self.name: f"available, {self.library.xp.__name__} {getattr(self.library.xp, '__version__', '')}".strip()}

    def running(self) -> AbstractContextManager[object]:
        return np.errstate(all="ignore")  # of libraries that compute by NumPy

    def feed(self, binding: Binding, sources: Arrays, order: np.ndarray) -> Feed:
        assert isinstance(binding, ArrayBinding)
        return ArrayFeed(binding, sources, order)


class ArrayBinding(Binding):
    """A program bound to NumPy arrays, which are copied to the library's device before a run and back after it."""

    def __init__(self, library: Library, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None) -> None:
        self.program, self.batch, self.library = program, batch, library
        self.arrays = caller_arrays(program, batch, arrays)
        self.memory = (Memory if library.strided else FlatMemory)(library, program, batch, self.arrays, scratch)
        self.calls = [call for operation in program.operations for call in lower(self.memory, operation)]
        self.copied = [buffer for buffer in program.buffers.values() if buffer.name in self.arrays and not on_host(buffer)]

    def send(self, left_out: Collection[str] = ()) -> None:
        """Copy what the program reads to the device."""
        for buffer in self.copied:
            if buffer.role in ("input", "state") and buffer.name not in left_out:
                self.memory.put(buffer, self.library.from_host(self.arrays[buffer.name]))

    def compute(self) -> None:
        """Run on what is on the device."""
        for call in self.calls:
            call()

    def fetch(self) -> None:
        """Copy what the program wrote to the host."""
        for buffer in self.copied:
            if buffer.role in ("output", "state"):
                array = self.arrays[buffer.name]
                array[...] = self.library.to_host(self.memory.buffer(buffer)).reshape(array.shape)

    def run(self) -> None:
        self.send()
        self.compute()
        self.fetch()

    def __call__(self) -> None:
        with np.errstate(all="ignore"):
            self.run()


class ArrayFeed(Feed):
    """Training steps on the device. Data sets are copied there before the first step, the state before and after many steps."""

    def __init__(self, binding: ArrayBinding, sources: Arrays, order: np.ndarray) -> None:
        self._binding, self._order, self._random = binding, order, binding.arrays.get("random")
        self._value = binding.program.buffers["value"]
        self._host = {binding.program.buffers[name]: source for name, source in sources.items()}
        self._sources: dict[Buffer, Array] = {}

    def forget(self) -> None:
        self._sources = {}

    def __call__(self, first: int, values: np.ndarray) -> int:
        binding, memory, library, done = self._binding, self._binding.memory, self._binding.library, 0
        self._sources = self._sources or {buffer: library.from_host(source) for buffer, source in self._host.items()}
        binding.send([buffer.name for buffer in self._sources])
        while done < len(values) and (done == 0 or math.isfinite(values[done - 1])):
            start = (first + done) * binding.batch
            numbers = library.from_host(self._order[start : start + binding.batch])
            for buffer, source in self._sources.items():
                memory.put(buffer, library.converted(library.xp.take(source, numbers, axis=0), buffer.dtype))
            binding.compute()
            values[done] = library.to_host(memory.buffer(self._value)).item()
            done += 1
            if self._random is not None:
                self._random[1] += 1
        binding.fetch()
        return done
