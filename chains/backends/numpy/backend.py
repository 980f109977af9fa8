"""The reference backend: a program as a list of NumPy calls that write into given arrays.

`NumpyBackend.bind` makes the arrays of all views. It turns each operation into calls with fixed arguments; a run is a loop
over these calls.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from chains.backends.base import Arrays, Backend, Binding, UnsupportedOperationError, aligned, cannot_run
from chains.backends.lowering import Call
from chains.backends.numpy.images import Workspace
from chains.backends.numpy.lowerings import LOWERINGS, lower
from chains.backends.numpy.memory import NO_FUNCTIONS, Functions, Memory
from chains.program import operations
from chains.program.loop import all_operations
from chains.program.operations import Operation
from chains.program.program import Program
from chains.support.messages import meant, shown


class NumpyBackend(Backend):
    """Runs programs with NumPy's ufuncs and matrix products, in one Python thread.

    A subclass can do some operations in another way: `functions` has a function for each of these classes of operations. It is
    called once when a program is bound, as ``function(memory, operation)``, and returns a list of calls without arguments that
    carry the operation out. ``memory.array(view)`` is the NumPy array of a view, always the same object: the calls read the
    arrays of ``operation.ins`` and fill those of ``operation.outs`` in place. NumPy does the other operations. A function that
    cannot carry an operation out raises UnsupportedOperationError or NotImplementedError.
    """

    name = "numpy"
    lowered = LOWERINGS.keys()
    functions: Functions = NO_FUNCTIONS

    def __init__(self) -> None:
        self._scratch_bytes: WeakKeyDictionary[Program, dict[int, int]] = WeakKeyDictionary()

    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> NumpyBinding:
        if (reason := self.unsupported(program)) is not None:
            raise UnsupportedOperationError(reason)
        known = self._scratch_bytes.setdefault(program, {})
        if scratch is None and batch in known:
            scratch = aligned(known[batch])
        binding = NumpyBinding(program, batch, arrays, scratch, _checked(self.name, self.functions))
        known[batch] = binding.scratch_bytes
        return binding

    def scratch_bytes(self, program: Program, batch: int) -> int:
        known = self._scratch_bytes.get(program, {})
        return known[batch] if batch in known else self.bind(program, batch, {}).scratch_bytes

    def running(self) -> AbstractContextManager[object]:
        return np.errstate(all="ignore")  # infinities and NaN are results here, as on every other backend


def _checked(backend: str, functions: Functions) -> Functions:
    """The functions, each with a check of what it returns. Raises TypeError for a key that is no class of operations."""
    for kind, function in functions.items():
        if not _is_operation(kind):
            names = [name for name, each in vars(operations).items() if _is_operation(each)]
            raise TypeError(
                f"`functions` of backend {backend!r} has the key {shown(kind)}, which must be a class of operations such as "
                f"chains.program.operations.MatMul{meant(kind, names) if isinstance(kind, str) else ''}"
            )
        if not callable(function):
            raise TypeError(f"`functions` of backend {backend!r} has {shown(function)} for {kind.__name__}, not a function")
    return {kind: partial(_calls, backend, function) for kind, function in functions.items()}


def _is_operation(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Operation)


def _calls(backend: str, function: Callable[[Memory, Any], Any], memory: Memory, operation: Operation) -> list[Call]:
    """The calls that a function returns for an operation. Raises TypeError for anything else."""
    try:
        calls = function(memory, operation)
    except UnsupportedOperationError:
        raise
    except NotImplementedError as error:
        raise UnsupportedOperationError(cannot_run(backend, operation, str(error))) from error
    if not isinstance(calls, (list, tuple)) or not all(map(callable, calls)):
        raise TypeError(
            f"the function of backend {backend!r} for the operation `{operation.name}` returned {shown(calls)}: "
            "it must return a list of functions without arguments, which do the operation"
        )
    return list(calls)


class NumpyBinding(Binding):
    """A program bound to arrays: `calls`, made in order.

    The temporary arrays of formulas are known once all calls are made. So without `scratch`, each has separate memory.
    """

    def __init__(
        self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None, functions: Functions = NO_FUNCTIONS
    ) -> None:
        self.program = program
        self.batch = batch
        self.memory = memory = Memory(program, batch, arrays, scratch, functions)
        self.arrays = memory.arrays
        memory.workspace_bytes = max((Workspace(each, memory).nbytes for each in all_operations(program.operations)), default=0)
        self.calls: list[Call] = []
        for operation in program.operations:
            self.calls += lower(memory, operation)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of scratch memory that the calls need."""
        return self.memory.scratch_bytes

    def run(self) -> None:
        for call in self.calls:
            call()

    def __call__(self) -> None:
        with np.errstate(all="ignore"):
            self.run()
