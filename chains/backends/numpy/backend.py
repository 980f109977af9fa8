"""The reference backend: a program as a list of NumPy calls that write into given arrays.

`NumpyBackend.bind` makes the arrays of all views. It turns each operation into calls with fixed arguments; a run is a loop
over these calls.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from weakref import WeakKeyDictionary

import numpy as np

from chains.backends.base import Arrays, Backend, Binding, aligned
from chains.backends.numpy.images import Workspace
from chains.backends.numpy.lowerings import LOWERINGS, Call, lower
from chains.backends.numpy.memory import NO_FUNCTIONS, Functions, Memory
from chains.program.loop import all_operations
from chains.program.program import Program


class NumpyBackend(Backend):
    """Runs programs with NumPy's ufuncs and matrix products, in one Python thread.

    A subclass can do some operations in another way: `functions` has a function for each of these classes of operations. It is
    called once when a program is bound, as ``function(memory, operation)``, and returns a list of calls without arguments that
    carry the operation out. ``memory.array(view)`` is the NumPy array of a view, always the same object: the calls read the
    arrays of ``operation.ins`` and fill those of ``operation.outs`` in place. NumPy does the other operations.
    """

    name = "numpy"
    lowered = LOWERINGS.keys()
    functions: Functions = NO_FUNCTIONS

    def __init__(self) -> None:
        self._scratch_bytes: WeakKeyDictionary[Program, dict[int, int]] = WeakKeyDictionary()

    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> NumpyBinding:
        known = self._scratch_bytes.setdefault(program, {})
        if scratch is None and batch in known:
            scratch = aligned(known[batch])
        binding = NumpyBinding(program, batch, arrays, scratch, self.functions)
        known[batch] = binding.scratch_bytes
        return binding

    def scratch_bytes(self, program: Program, batch: int) -> int:
        known = self._scratch_bytes.get(program, {})
        return known[batch] if batch in known else self.bind(program, batch, {}).scratch_bytes

    def running(self) -> AbstractContextManager[object]:
        return np.errstate(all="ignore")  # infinities and NaN are results here, as on every other backend


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
