"""What the tests of exported networks share: functions of object files called on NumPy's arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chains import Chain
from chains.exporting.export import interface_for
from chains.exporting.interface import Call, Interface
from tests.harness import Case

pytest.importorskip("llvmlite", reason="object files need llvmlite")

from chains.backends.native import NativeBackend
from chains.backends.native.llvm.jit import Code
from chains.backends.native.llvm.target import processor
from chains.backends.numpy.backend import NumpyBackend
from chains.exporting.objects import Objects
from chains.exporting.targets import targets_of

CTYPES = {"float32": ctypes.c_float, "float64": ctypes.c_double}


def by_numpy(call: Call, n: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a call as NumPy fills them, by name."""
    buffers = call.program.buffers
    given = {name: np.array(array, buffers[name].dtype) for name, array in arrays.items() if name in buffers}
    binding = NumpyBackend().bind(call.program, n, given)
    with np.errstate(all="ignore"):
        binding()
    return binding.arrays


def interface(net: Chain, dtype: str = "float32", *, p: Any = None, state: Any = None, **settings: Any) -> Interface:
    return interface_for(net, p, state, dtype=dtype, **settings)


class Functions:
    """The functions of an interface, in machine code or in a library, called with arrays by the names of their arguments."""

    def __init__(self, made: Interface, address: Callable[[str], int]) -> None:
        self.interface, self._address = made, address

    def number(self, end: str, *given: int) -> int:
        address = self._address(f"{self.interface.name}_{end}")
        return ctypes.CFUNCTYPE(ctypes.c_ssize_t, *[ctypes.c_ssize_t] * len(given))(address)(*given)

    def __call__(self, name: str, n: int, **arrays: np.ndarray) -> dict[str, np.ndarray]:
        """What the function fills and updates; what it returns as "value". Arrays that are written lie between fences."""
        call = next(each for each in self.interface.calls if each.name == name)
        given = {each.name: self._array(each, n, arrays) for each in call.arguments}
        result = None if call.value is None else CTYPES[call.value.dtype.name]
        if self.interface.workspace:
            length = self.number(f"{name}_work_bytes", n)
            assert length == self.interface.work_bytes[f"{name}_work_bytes"].of(n) <= self.number("work_bytes", n)
            work = np.full(length + 2 * 64, 0xA5, np.uint8)
            given["work"] = work, work[64 : 64 + length]
            given["work"][1][...] = 0xFF
        pointers = [inner.ctypes.data for _, inner in given.values()]
        function = ctypes.CFUNCTYPE(result, ctypes.c_ssize_t, *[ctypes.c_void_p] * len(pointers))
        value = function(self._address(f"{self.interface.name}_{name}"))(n, *pointers)
        for whole, inner in given.values():
            fences = (whole.size - inner.size * inner.itemsize) // 2
            assert (whole[:fences] == 0xA5).all()
            assert (whole[whole.size - fences :] == 0xA5).all()
        found = {each.name: given[each.name][1] for each in call.arguments if each.changed}
        return found if value is None else found | {"value": np.array(value, call.value.dtype)}

    @staticmethod
    def _array(argument, n, arrays):
        shape = (n, *argument.shape) if argument.batched else argument.shape
        size = int(np.prod(shape, dtype=int)) * argument.dtype.itemsize
        whole = np.full(size + 2 * 64, 0xA5, np.uint8)
        inner = whole[64 : 64 + size].view(argument.dtype).reshape(shape)
        inner[...] = np.nan if argument.role == "output" else arrays[argument.name]
        return whole, inner


def loaded(made: Interface, target: str = "native") -> Functions:
    """An object file for this computer, loaded."""
    objects = Objects(made, targets := targets_of(target))
    code = Code("exported", objects.code(targets), objects.symbols, processor(), cached=False)
    functions = Functions(objects.interface, code.address)
    functions.code = code
    return functions


def object_code(made: Interface, target: str) -> bytes:
    """An object file for one family of targets."""
    targets = targets_of(target)
    return Objects(made, targets).code(targets)


def data(case: Case, n: int, dtype: str) -> tuple[int, dict[str, np.ndarray]]:
    """Arrays for all arguments, and for how many samples they are."""
    problem = case.problem(n)
    names = ("x", "t", "dy", "p", "state")
    ids = problem.x.dtype.kind in "iu"  # of rows of a table
    arrays = {name: np.asarray(getattr(problem, name), None if name == "x" and ids else dtype) for name in names}
    return len(problem.x), arrays


def whole_calls(made: Interface) -> list[Call]:
    """The functions that take whole samples: all but those of one step of a sequence, which `test_streams` calls."""
    return [call for call in made.calls if not call.name.startswith("stream")]


def compare(functions: Functions, n: int, arrays: dict[str, np.ndarray]) -> None:
    """Raise AssertionError unless every function fills the bits that the native backend fills."""
    runner = NativeBackend(threads=1)
    for call in whole_calls(functions.interface):
        found = functions(call.name, n, **arrays)
        buffers = call.program.buffers
        given = {name: np.array(array, buffers[name].dtype) for name, array in arrays.items() if name in buffers}
        binding = runner.bind(call.program, n, given)
        binding()
        for name, array in found.items():
            wanted = binding.arrays.get(name)
            if wanted is not None:
                np.testing.assert_array_equal(array.reshape(wanted.shape), wanted, err_msg=f"{call.name}: {name}")
        assert set(found) & set(binding.arrays)
