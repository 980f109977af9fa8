"""What a backend is: it binds a program to arrays and runs it. It knows operations, and no layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from threading import Lock

import numpy as np

from chains.program import Program

Arrays = Mapping[str, np.ndarray]

# Arrays up to this size are copied in and out of a program that stays bound to arrays of its own; the program
# is bound anew to larger ones, which takes some 0.1 ms.
COPIED_BYTES = 1 << 20
KEPT_BINDINGS = 8  # of one program, for as many batch sizes or threads


class UnsupportedOperationError(NotImplementedError):
    """A backend met an operation that it cannot run; the message names both."""


class Binding(ABC):
    """A program bound to arrays and scratch memory at one batch size: calling `run` executes it."""

    arrays: dict[str, np.ndarray]  # the caller's buffers by name, those it did not provide made by the binding

    @abstractmethod
    def run(self) -> None:
        """Execute the program once; within the backend's `running()` context."""


class Backend(ABC):
    """A way to execute programs."""

    name: str

    @abstractmethod
    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> Binding:
        """Bind a program to the caller's arrays, each C-contiguous, of its buffer's type and number of elements.

        Arrays not given are made, uninitialised. `scratch` is memory to use, at least ``program.scratch.nbytes(batch)``
        bytes. Raises UnsupportedOperationError, naming it, for an operation the backend lacks.
        """

    def running(self) -> AbstractContextManager[object]:
        """A context that every `Binding.run` must be inside; entered once around many runs."""
        return nullcontext()


class Executable:
    """A program that can be called with arrays, from any number of threads: bindings are kept and used again."""

    def __init__(self, backend: Backend, program: Program) -> None:
        self.backend = backend
        self.program = program
        self._idle: OrderedDict[int, list[Binding]] = OrderedDict()  # by batch size, the last used one last
        self._lock = Lock()

    def __call__(self, batch: int, arrays: Arrays) -> None:
        """Run the program on `arrays`, one for each of the caller's buffers that the program uses."""
        if any(array.nbytes > COPIED_BYTES for array in arrays.values()):
            large = {name: a for name, a in arrays.items() if a.nbytes > COPIED_BYTES and self._fits(name, a)}
            self._run(self.backend.bind(self.program, batch, large), arrays)
            return
        binding = self._take(batch)
        try:
            self._run(binding, arrays)
        finally:
            self._give(batch, binding)

    def _fits(self, name: str, array: np.ndarray) -> bool:
        buffer = self.program.buffers.get(name)
        return buffer is not None and array.flags.c_contiguous and array.dtype == buffer.dtype

    def _run(self, binding: Binding, arrays: Arrays) -> None:
        own, buffers = binding.arrays, self.program.buffers
        for name, array in arrays.items():
            if name in own and own[name] is not array and buffers[name].role != "output":
                own[name][...] = array
        with self.backend.running():
            binding.run()
        for name, array in arrays.items():
            if name in own and own[name] is not array and buffers[name].role != "input":
                array[...] = own[name]

    def _take(self, batch: int) -> Binding:
        with self._lock:
            idle = self._idle.get(batch)
            if idle:
                return idle.pop()
        return self.backend.bind(self.program, batch, {})

    def _give(self, batch: int, binding: Binding) -> None:
        with self._lock:
            self._idle.setdefault(batch, []).append(binding)
            self._idle.move_to_end(batch)
            while sum(map(len, self._idle.values())) > KEPT_BINDINGS:
                oldest = next(iter(self._idle))
                if self._idle[oldest]:
                    self._idle[oldest].pop(0)
                if not self._idle[oldest]:
                    del self._idle[oldest]
