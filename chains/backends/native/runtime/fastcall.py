"""Python functions in machine code: a call checks its arrays, runs a program on them without copies, and makes the results.

In a small network, most of the time of a call is otherwise Python's bookkeeping. The functions use the calling convention
METH_FASTCALL and read arrays through NumPy's public C structures. Inputs of one other type are converted. A function
declines every other unexpected argument: it returns None, and slower code converts or refuses the argument. It keeps the
interpreter's lock, so that one binding serves all threads. If the interpreter or NumPy has another memory layout than
expected, these functions are not available.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from chains.backends.native.llvm.emit import I32, I64, PTR, Function, Module, Type, Value, integer, number
from chains.backends.native.llvm.jit import Code, machine_code
from chains.backends.native.llvm.struct import Struct
from chains.backends.native.llvm.target import processor
from chains.backends.native.runtime.epoch import SOURCES
from chains.backends.native.runtime.shared import gatherer

if TYPE_CHECKING:
    from chains.backends.native.binding import BoundCode

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
_NEW_FUNCTION = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)


def python_function(
    binding: BoundCode, ins: Mapping[str, np.dtype[Any]], outs: Sequence[str], *, single: bool = False
) -> Callable[..., Any] | None:
    """A function whose call ``function(*ins, *outs)`` runs the program of a binding on these arrays.

    Inputs may also be of the type in `ins`, or, where that is the program's own, of the other float type. A call returns None
    where it declines its arguments. Instead of an output, None may be passed; the call then makes a new
    array. The call returns the output, or a tuple of several. If the program has a value, and it is no output, it comes first,
    as a float. With `single`, the arrays of a batch of one have no batch axis. Returns None where such functions are not
    available.
    """
    buffers = [binding.program.buffers[name] for name in (*ins, *outs)]
    if (api := _api()) is None or any(buffer.dtype not in OTHER for buffer in buffers) or len(outs) > MAX_RESULTS:
        return None
    value, at = None if "value" in outs else binding.arrays.get("value"), binding.addresses
    call = CALL.pack(
        run=binding.run_address, words=binding.words_address, ndarray=id(np.ndarray), none=id(None),
        inputs=len(ins), arrays=len(buffers),
        value=0 if value is None else at["value"], is_single=value is not None and value.itemsize == 4,
        **api,
    )  # fmt: skip
    shapes = [binding.shape(buffer.name)[int(single and buffer.batched) :] for buffer in buffers]
    slots = [binding.slots(buffer.name) for buffer in buffers]
    lists = np.array([number for both in zip(shapes, slots, strict=True) for part in both for number in part], np.int64)
    next_list = lists.ctypes.data
    arrays = []
    for position, (buffer, shape, places) in enumerate(zip(buffers, shapes, slots, strict=True)):
        own, also = binding.arrays[buffer.name], ins.get(buffer.name, buffer.dtype)
        other = also if also in SOURCES and also != buffer.dtype else OTHER[buffer.dtype]
        words = ARRAY.pack(
            descr=id(buffer.dtype), type_number=buffer.dtype.num, dimensions=len(shape), lengths=next_list,
            flags=READABLE if position < len(ins) else WRITABLE,
            slots=next_list + 8 * len(shape), slot_count=len(places),
            own=at[buffer.name], nbytes=own.nbytes, elements=own.size,
            other_descr=id(other), other_nbytes=own.size * other.itemsize, convert=gatherer(other, buffer.dtype),
        )  # fmt: skip
        arrays.append(words)
        next_list += 8 * (len(shape) + len(places))
    owner = np.concatenate([call, *arrays]).view(_Words)
    method = _method()
    owner.keep, owner.method = [binding, lists], method
    return _NEW_FUNCTION(("PyCFunction_NewEx", ctypes.pythonapi))(ctypes.byref(method), owner, None)


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

    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


@cache
def _method() -> _Method:
    return _Method(b"run", enter_code().address("enter"), METH_FASTCALL, b"A program in machine code.")


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


# The machine code: it checks the objects passed, runs the program and makes the results.

MAX_RESULTS = 3
# The beginning of a PyObject and of NumPy's PyArrayObject_fields (numpy/ndarraytypes.h) with 64-bit addresses.
ARRAY_OBJECT = Struct(
    {"references": "i64", "type": "ptr"},
    {"data": "ptr", "dimensions": "i32", "lengths": "ptr", "strides": "ptr", "base": "ptr", "descr": "ptr", "flags": "i32"},
)
# The words of a function. An `ARRAY` for each of its arrays follows them.
CALL = Struct(
    {
        "run": "ptr",  # the program
        "words": "ptr",  # its argument
        "ndarray": "ptr",  # Python objects
        "none": "ptr",
        "inputs": "i64",  # number of inputs
        "arrays": "i64",  # number of inputs and outputs
        "value": "ptr",  # the program's value, or null
        "is_single": "i64",  # whether the value is a float32
        "zero": "ptr",  # the number of a row to convert
        "new_array": "ptr",  # functions of NumPy and Python
        "new_tuple": "ptr",
        "set_item": "ptr",
        "new_float": "ptr",
        "incref": "ptr",
        "decref": "ptr",
    }
)
ARRAY = Struct(
    {
        "descr": "ptr",  # the element type, a Python object
        "dimensions": "i64",
        "lengths": "ptr",  # of the dimensions
        "flags": "i64",  # flags that an array must have
        "slots": "ptr",  # where the program looks up the array's address
        "slot_count": "i64",
        "type_number": "i64",  # NumPy's
        "nbytes": "i64",
        "elements": "i64",
        "own": "ptr",  # the binding's own array, for converted elements
        "other_descr": "ptr",  # the element type that is converted
        "other_nbytes": "i64",
        "convert": "ptr",  # the function that converts
    }
)


@cache
def enter_code() -> Code:
    """The machine code of `enter`."""
    module = Module()
    module.add(_fits(module), "internal")
    module.add(_apart(module), "internal")
    module.add(_enter(module))
    return machine_code(module.text(), ["enter"], processor())


def _array(f: Function, words: Value, k: Value) -> Value:
    """The words of array `k`."""
    return f.address(words, ARRAY.element(f, k, CALL), I64)


def _object(f: Function, objects: Value, k: Value) -> Value:
    return f.load(PTR, f.address(objects, k, I64))


def _fits(module: Module) -> Function:
    """``fits(object, array, ndarray, other)``: 1 if the object is an array as described, or one of type `other`."""
    f = Function(module, "fits", [(PTR, "object"), (PTR, "array"), (PTR, "ndarray"), (PTR, "other")], "i64")
    thing, array, ndarray, other = f.arguments

    def layout() -> Value:
        flags = f.cast("zext", ARRAY_OBJECT.load(f, thing, "flags"), I64)
        wanted = ARRAY.load(f, array, "flags")
        dimensions = f.cast("sext", ARRAY_OBJECT.load(f, thing, "dimensions"), I64)
        rank = ARRAY.load(f, array, "dimensions")
        good = f.compare("eq", f.binary("and", flags, wanted), wanted)
        descr = ARRAY_OBJECT.load(f, thing, "descr")
        known = f.binary("or", f.compare("eq", descr, ARRAY.load(f, array, "descr")), f.compare("eq", descr, other))
        good = f.binary("and", good, known)
        return f.either(f.binary("and", good, f.compare("eq", dimensions, rank)), lambda: lengths(rank), lambda: integer(0))

    def lengths(rank: Value) -> Value:
        own, wanted = ARRAY_OBJECT.load(f, thing, "lengths"), ARRAY.load(f, array, "lengths")

        def same(k: Value, good: Value) -> Value:
            equal = f.compare("eq", f.load(I64, f.address(own, k, I64)), f.load(I64, f.address(wanted, k, I64)))
            return f.select(equal, good, integer(0))

        return f.fold(rank, integer(1), same)

    exact = f.compare("eq", ARRAY_OBJECT.load(f, thing, "type"), ndarray)
    f.returns(f.either(exact, layout, lambda: integer(0)))
    return f


def _apart(module: Module) -> Function:
    """``apart(words, objects, k)``: 1 if array k shares no memory with the arrays before it."""
    f = Function(module, "apart", [(PTR, "words"), (PTR, "objects"), (I64, "k")], "i64")
    words, objects, k = f.arguments

    def extent(k: Value) -> tuple[Value, Value]:
        thing, array = _object(f, objects, k), _array(f, words, k)
        other = f.compare("eq", ARRAY_OBJECT.load(f, thing, "descr"), ARRAY.load(f, array, "other_descr"))
        nbytes = f.select(other, ARRAY.load(f, array, "other_nbytes"), ARRAY.load(f, array, "nbytes"))
        start = f.load(I64, ARRAY_OBJECT.address(f, thing, "data"))
        return start, f.add(start, nbytes)

    start, stop = extent(k)
    none = CALL.load(f, words, "none")

    def disjoint(other: Value, good: Value) -> Value:
        def compare() -> Value:
            first, last = extent(other)
            overlap = f.binary("and", f.compare("ult", start, last), f.compare("ult", first, stop))
            return f.select(overlap, integer(0), good)

        given = f.compare("ne", _object(f, objects, other), none)
        return f.either(given, compare, lambda: good)

    f.returns(f.fold(k, integer(1), disjoint))
    return f


def _enter(module: Module) -> Function:
    """``enter(self, objects, count)``: the signature of METH_FASTCALL; `self` is the array of the words."""
    f = Function(module, "enter", [(PTR, "self"), (PTR, "objects"), (I64, "count")], "ptr")
    self, objects, count = f.arguments
    results = f.assign(PTR, f"alloca [{MAX_RESULTS} x ptr], align 8")
    words = ARRAY_OBJECT.load(f, self, "data")
    none, ndarray, inputs, arrays = CALL.loads(f, words, "none", "ndarray", "inputs", "arrays")

    def fits(k: Value, other: str) -> Value:
        array = _array(f, words, k)
        descr = ARRAY.load(f, array, other)
        return f.invoke("fits", I64, _object(f, objects, k), array, ndarray, descr)

    def all_fit() -> Value:
        def input(k: Value, good: Value) -> Value:
            return f.binary("and", good, fits(k, "other_descr"))

        def output(k: Value, good: Value) -> Value:
            def own() -> Value:
                fit = f.compare("eq", fits(k, "descr"), integer(1))
                return f.either(fit, lambda: f.invoke("apart", I64, words, objects, k), lambda: integer(0))

            given = f.compare("ne", _object(f, objects, k), none)
            return f.binary("and", good, f.either(given, own, lambda: integer(1)))

        read = f.compare("eq", f.fold(inputs, integer(1), input), integer(1))
        # Outputs are compared with inputs, so the inputs must be known to be arrays.
        return f.either(read, lambda: f.fold(arrays, integer(1), output, inputs), lambda: integer(0))

    good = f.either(f.compare("eq", count, arrays), all_fit, lambda: integer(0))

    def decline() -> Value:
        f.invoke(CALL.load(f, words, "incref"), None, none)
        return none

    answer = f.either(f.compare("eq", good, integer(1)), lambda: _Answer(f, words, objects, results).write(), decline)
    f.returns(answer)
    return f


def set_slots(f: Function, slots: Value, count: Value, data: Value) -> None:
    """Write an address to all places where a program looks for it."""
    f.each(count, lambda k: f.store(data, f.load(PTR, f.address(slots, k, I64))))


class _Answer:
    """Makes the outputs, runs the program on the arrays, and returns its results; null if memory runs out."""

    def __init__(self, f: Function, words: Value, objects: Value, results: Value) -> None:
        self.f, self.words, self.objects, self.results = f, words, objects, results
        self.none, self.null = self._word("none"), Value("null", PTR)
        self.inputs, arrays = self._word("inputs"), self._word("arrays")
        self.made = f.binary("sub", arrays, self.inputs)

    def write(self) -> Value:
        f = self.f
        complete = f.fold(self.made, integer(1), self._make)
        return f.either(f.compare("eq", complete, integer(1)), self._run, self._forget)

    def _word(self, name: str) -> Value:
        return CALL.load(self.f, self.words, name)

    def _output(self, k: Value) -> Value:
        """The number of an output among the arrays."""
        return self.f.binary("add", self.inputs, k)

    def _make(self, k: Value, good: Value) -> Value:
        """Make output k, unless it is given."""
        f = self.f
        array, given = _array(f, self.words, self._output(k)), _object(f, self.objects, self._output(k))

        def fresh() -> Value:
            rank = f.cast("trunc", ARRAY.load(f, array, "dimensions"), I32)
            kind = f.cast("trunc", ARRAY.load(f, array, "type_number"), I32)
            ndarray, lengths, null = self._word("ndarray"), ARRAY.load(f, array, "lengths"), self.null
            rest = (null, null, "i32 0", "i32 0", null)
            return f.invoke(self._word("new_array"), PTR, ndarray, rank, lengths, kind, *rest)

        def passed() -> Value:
            f.invoke(self._word("incref"), None, given)
            return given

        result = f.either(f.compare("eq", given, self.none), fresh, passed)
        f.store(result, f.address(self.results, k, I64))
        return f.select(f.compare("eq", result, self.null), integer(0), good)

    def _place(self, array: Value, data: Value) -> None:
        """Write the address of an array to all places where the program looks for it."""
        slots, count = ARRAY.loads(self.f, array, "slots", "slot_count")
        set_slots(self.f, slots, count, data)

    def _place_input(self, k: Value) -> None:
        f = self.f
        array, thing = _array(f, self.words, k), _object(f, self.objects, k)
        data = ARRAY_OBJECT.load(f, thing, "data")

        def converted() -> Value:
            own, elements, convert = ARRAY.loads(f, array, "own", "elements", "convert")
            f.invoke(convert, None, data, own, self._word("zero"), "i64 1", elements)
            return own

        other = f.compare("eq", ARRAY_OBJECT.load(f, thing, "descr"), ARRAY.load(f, array, "other_descr"))
        self._place(array, f.either(other, converted, lambda: data))

    def _place_output(self, k: Value) -> None:
        array = _array(self.f, self.words, self._output(k))
        self._place(array, ARRAY_OBJECT.load(self.f, _object(self.f, self.results, k), "data"))

    def _run(self) -> Value:
        f = self.f
        f.each(self.inputs, self._place_input)
        f.each(self.made, self._place_output)
        f.invoke(self._word("run"), None, self._word("words"))
        address = self._word("value")
        valued = f.compare("ne", address, self.null)
        alone = f.binary("and", f.compare("eq", self.made, integer(1)), f.compare("eq", address, self.null))
        return f.either(alone, lambda: _object(f, self.results, integer(0)), lambda: self._several(address, valued))

    def _several(self, address: Value, valued: Value) -> Value:
        """A tuple of the value, if there is one, and the outputs."""
        f = self.f
        first = f.cast("zext", valued, I64)
        value = f.either(valued, lambda: self._read(address), lambda: number(Type("double"), 0.0))
        answer = f.invoke(self._word("new_tuple"), PTR, f.binary("add", self.made, first))

        def fill() -> Value:
            def put(k: Value, thing: Value) -> None:
                f.invoke(self._word("set_item"), I32, answer, k, thing)

            f.when(valued, lambda: put(integer(0), f.invoke(self._word("new_float"), PTR, value)))
            f.each(self.made, lambda k: put(f.binary("add", k, first), _object(f, self.results, k)))
            return answer

        return f.either(f.compare("ne", answer, self.null), fill, self._forget)

    def _read(self, address: Value) -> Value:
        """The program's value as a double."""
        f = self.f
        single = f.compare("eq", self._word("is_single"), integer(1))
        return f.either(
            single,
            lambda: f.cast("fpext", f.load(Type("float"), address), Type("double")),
            lambda: f.load(Type("double"), address),
        )

    def _forget(self) -> Value:
        """Drop the outputs."""
        self.f.each(self.made, lambda k: self.f.invoke(self._word("decref"), None, _object(self.f, self.results, k)))
        return self.null
