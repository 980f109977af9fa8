"""Python functions in machine code: a call checks its arrays, runs a program on them without copies, and makes the results.

In a small network, most of the time of a call is otherwise Python's bookkeeping. The functions use the calling convention
METH_FASTCALL and read arrays through NumPy's public C structures. Inputs of the other float type are converted. A function
declines every other unexpected argument: it returns None, and slower code converts or refuses the argument. It keeps the
interpreter's lock, so that one binding serves all threads. If the interpreter or NumPy has another memory layout than
expected, these functions are not available.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from chains.backends.native.runtime.fastcall_code import ARRAY, ARRAY_OBJECT, CALL, MAX_RESULTS, enter_code
from chains.backends.native.runtime.shared import gatherer
from chains.program.view import concrete

if TYPE_CHECKING:
    from chains.backends.native.binding import NativeBinding

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
OTHER: dict[np.dtype[Any], np.dtype[Any]] = {SINGLE: DOUBLE, DOUBLE: SINGLE}
READABLE, WRITABLE = 0x101, 0x501  # NPY_ARRAY_C_CONTIGUOUS and _ALIGNED; also _WRITEABLE
NEW_ARRAY = 93  # the index of PyArray_New in NumPy's table of functions (numpy/__multiarray_api.h)
METH_FASTCALL = 0x80
PYTHON_API = {
    "new_tuple": "PyTuple_New",
    "set_item": "PyTuple_SetItem",
    "new_float": "PyFloat_FromDouble",
    "incref": "Py_IncRef",
    "decref": "Py_DecRef",
}
ZERO = np.zeros(1, np.int64)


def python_function(
    binding: NativeBinding, ins: Sequence[str], outs: Sequence[str], *, single: bool = False
) -> Callable[..., Any] | None:
    """A function whose call ``function(*ins, *outs)`` runs the program of a binding on these arrays.

    A call returns None where it declines its arguments. Instead of an output, None may be passed; the call then makes a new
    array. The call returns the output, or a tuple of several. If the program has a value, it comes first, as a float. With
    `single`, the arrays of a batch of one have no batch axis. Returns None where such functions are not available.
    """
    buffers = [binding.program.buffers[name] for name in (*ins, *outs)]
    if (api := _api()) is None or any(buffer.dtype not in OTHER for buffer in buffers) or len(outs) > MAX_RESULTS:
        return None
    value, at = binding.arrays.get("value"), binding.addresses
    call = CALL.pack(
        run=binding.run_address,
        words=binding.words_address,
        ndarray=id(np.ndarray),
        none=id(None),
        inputs=len(ins),
        arrays=len(buffers),
        value=0 if value is None else at["value"],
        is_single=value is not None and value.itemsize == 4,
        **api,
    )
    shapes = [concrete(buffer.shape[int(single and buffer.batched) :], binding.batch) for buffer in buffers]
    slots = [binding.slots(buffer.name) for buffer in buffers]
    lists = np.array([number for both in zip(shapes, slots, strict=True) for part in both for number in part], np.int64)
    next_list = lists.ctypes.data
    arrays = []
    for position, (buffer, shape, places) in enumerate(zip(buffers, shapes, slots, strict=True)):
        own, other = binding.arrays[buffer.name], OTHER[buffer.dtype]
        arrays.append(
            ARRAY.pack(
                descr=id(buffer.dtype),
                dimensions=len(shape),
                lengths=next_list,
                flags=READABLE if position < len(ins) else WRITABLE,
                slots=next_list + 8 * len(shape),
                slot_count=len(places),
                type_number=buffer.dtype.num,
                nbytes=own.nbytes,
                elements=own.size,
                own=at[buffer.name],
                other_descr=id(other),
                other_nbytes=own.size * other.itemsize,
                convert=gatherer(other, buffer.dtype),
            )
        )
        next_list += 8 * (len(shape) + len(places))
    owner = np.concatenate([call, *arrays]).view(_Words)
    method = _method()
    owner.keep, owner.method = [binding, lists], method
    return _new_function()(ctypes.byref(method), owner, None)


def decline_all(words: _Words) -> None:
    """Make the function with these words decline all calls."""
    CALL.write(words, arrays=-1)


def move(words: _Words, to: _Words) -> None:
    """Copy the words of one function to another function that takes the same arrays, which then does the same."""
    to.data[:] = words.data  # the copy keeps the interpreter's lock, so that no call sees half of it
    to.keep = words.keep


class _Words(np.ndarray):
    """The words of a function. They keep alive what they point to."""

    keep: list[Any]
    method: _Method  # Python holds only its address, as long as the function exists


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@cache
def _method() -> _Method:
    return _Method(b"run", enter_code().address("enter"), METH_FASTCALL, b"A program in machine code.")


@cache
def _new_function() -> Any:
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return make


@cache
def _api() -> dict[str, int] | None:
    """The addresses of the called functions, by their names in `CALL`; None if arrays have an unexpected memory layout."""
    if (
        sys.implementation.name != "cpython"
        or sysconfig.get_config_var("Py_GIL_DISABLED")
        or ctypes.sizeof(ctypes.c_void_p) != 8
    ):
        return None
    try:
        table_of_numpy = import_module("numpy._core._multiarray_umath")._ARRAY_API
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        table = ctypes.cast(address(table_of_numpy, None), ctypes.POINTER(ctypes.c_void_p))
    except (ImportError, AttributeError, ValueError):
        return None
    if not _as_expected(np.empty((2, 3), np.float32)):
        return None
    functions = {name: getattr(ctypes.pythonapi, function) for name, function in PYTHON_API.items()}
    addresses = {name: ctypes.cast(function, ctypes.c_void_p).value or 0 for name, function in functions.items()}
    return {"zero": ZERO.ctypes.data, "new_array": table[NEW_ARRAY], **addresses}


def _as_expected(array: np.ndarray) -> bool:
    """Whether this array has the memory layout of `PyArrayObject_fields`."""
    at = {name: id(array) + 8 * position for name, position in ARRAY_OBJECT.positions.items()}
    wide, narrow = ctypes.c_int64.from_address, ctypes.c_int32.from_address
    return (
        wide(at["type"]).value == id(np.ndarray)
        and wide(at["data"]).value == array.ctypes.data
        and narrow(at["dimensions"]).value == array.ndim
        and tuple((ctypes.c_int64 * array.ndim).from_address(wide(at["lengths"]).value)) == array.shape
        and wide(at["descr"]).value == id(array.dtype)
        and narrow(at["flags"]).value & WRITABLE == WRITABLE
    )
