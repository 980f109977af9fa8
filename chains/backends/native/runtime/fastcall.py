"""Functions of Python in machine code: a call checks its arrays, runs a program on them where they lie, and makes the results.

What a call of a small network costs is otherwise Python's own bookkeeping. Such a function is one of the kind METH_FASTCALL;
it reads arrays as NumPy's public C structures describe them. Inputs of the other float type are converted; whatever else
is not exactly an array as expected it declines, by returning None, and slower code converts or refuses it. It keeps the
interpreter's lock, so that one binding serves all threads. Where the interpreter or NumPy is not laid out as expected,
there are no such functions.
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

from chains.backends.native.runtime.fastcall_code import ARRAY, ARRAY_OBJECT, CALL, MOST_RESULTS, enter_code
from chains.backends.native.runtime.shared import gatherer
from chains.program.view import concrete

if TYPE_CHECKING:
    from chains.backends.native.binding import NativeBinding

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
OTHER: dict[np.dtype[Any], np.dtype[Any]] = {SINGLE: DOUBLE, DOUBLE: SINGLE}
READABLE, WRITABLE = 0x101, 0x501  # NPY_ARRAY_C_CONTIGUOUS and _ALIGNED; _WRITEABLE beside them
NEW_ARRAY = 93  # the place of PyArray_New in NumPy's table of functions (numpy/__multiarray_api.h)
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
    """``function(*ins, *outs)`` runs the program of a binding on these arrays, and returns None where it declines them.

    For each of `outs` None may be passed, which makes a fresh array. The result is that of `outs`, or a tuple of several;
    where the program has a value, it comes first, as a float. With `single`, a batch of one comes and goes without its axis.
    None where such functions cannot be had.
    """
    buffers = [binding.program.buffers[name] for name in (*ins, *outs)]
    if (api := _api()) is None or any(buffer.dtype not in OTHER for buffer in buffers) or len(outs) > MOST_RESULTS:
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
    """Have a function of these words decline all calls."""
    CALL.write(words, arrays=-1)


def move(words: _Words, to: _Words) -> None:
    """Have the function of one list of words do what that of another one does, which takes the same arrays."""
    to.data[:] = words.data  # which keeps the interpreter's lock, so that no call sees half of it
    to.keep = words.keep


class _Words(np.ndarray):
    """The words of a function, which hold on to what they point to."""

    keep: list[Any]
    method: _Method  # of which Python has but the address, for as long as there is the function


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
    """The addresses of the functions called, as `CALL` names them; None where arrays are not laid out as expected."""
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
    """Whether this array lies in memory as `PyArrayObject_fields` says."""
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
