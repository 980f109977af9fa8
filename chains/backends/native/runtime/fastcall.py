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

from chains.backends.native.llvm.emit import I32, I64, PTR, Function, Module, Type, Value, integer, number
from chains.backends.native.llvm.jit import Code, machine_code
from chains.backends.native.llvm.target import processor
from chains.backends.native.runtime.epoch import SOURCES
from chains.backends.native.runtime.shared import runtime
from chains.program.view import concrete

if TYPE_CHECKING:
    from chains.backends.native.binding import NativeBinding

# Where things lie in a PyObject and in NumPy's PyArrayObject_fields (numpy/ndarraytypes.h) with 64-bit addresses, in bytes.
TYPE, DATA, DIMENSIONS, LENGTHS, DESCR, FLAGS = 8, 16, 24, 32, 56, 64
OTHER: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float64), "float64": np.dtype(np.float32)}
READABLE, WRITABLE = 0x101, 0x501  # NPY_ARRAY_C_CONTIGUOUS and _ALIGNED; _WRITEABLE beside them
NEW_ARRAY = 93  # the place of PyArray_New in NumPy's table of functions (numpy/__multiarray_api.h)
METH_FASTCALL = 0x80

# The 64-bit words that a function works from, and those of each of its arrays, which follow.
HEADER = (
    "run", "words", "ndarray", "none", "inputs", "arrays", "value", "is single",
    "zero", "new array", "new tuple", "set item", "new float", "incref", "decref",
)  # fmt: skip
ARRAY = (
    "descr", "dimensions", "lengths", "flags", "slots", "how many slots", "type number", "bytes", "elements", "own",
    "other descr", "other bytes", "convert",
)  # fmt: skip
ZERO = np.zeros(1, np.int64)
MOST_RESULTS = 3


def python_function(binding: NativeBinding, ins: Sequence[str], outs: Sequence[str]) -> Callable[..., Any] | None:
    """``function(*ins, *outs)`` runs the program of a binding on these arrays, and returns None where it declines them.

    For each of `outs` None may be passed, which makes a fresh array. The result is that of `outs`, or a tuple of several;
    where the program has a value, it comes first, as a float. None where such functions cannot be had.
    """
    program, place = binding.program, binding.arrays
    floats = all(str(program.buffers[name].dtype) in OTHER for name in (*ins, *outs))
    if (api := _api()) is None or not floats or len(outs) > MOST_RESULTS:
        return None
    words = [binding.run_address, binding.words_address, id(np.ndarray), id(None), len(ins), len(ins) + len(outs)]
    value = place.get("value")
    words += [0, 0] if value is None else [value.ctypes.data, int(value.itemsize == 4)]
    words += [ZERO.ctypes.data, *api]
    method = _method()
    keep: list[Any] = [binding, method]  # Python has but the address of the method
    for name in (*ins, *outs):
        buffer = program.buffers[name]
        lengths = np.array(concrete(buffer.shape, binding.batch), np.int64)
        slots = np.array(binding.slots(buffer), np.int64)
        keep += [lengths, slots]
        own, other = place[name], OTHER[str(buffer.dtype)]
        convert = runtime().address(f"gather_{SOURCES[str(other)]}_{SOURCES[str(buffer.dtype)]}")
        words_of = [id(buffer.dtype), lengths.size, lengths.ctypes.data, WRITABLE if name in outs else READABLE]
        words_of += [slots.ctypes.data, slots.size, buffer.dtype.num, own.nbytes, own.size, own.ctypes.data]
        words_of += [id(other), own.size * other.itemsize, convert]
        words += words_of
    owner = np.array(words, np.int64).view(_Words)
    owner.keep = keep
    return _new_function()(ctypes.byref(method), owner, None)


class _Words(np.ndarray):
    """The words of a function, which hold on to what they point to."""

    keep: list[Any]


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
    return _Method(b"run", _code().address("enter"), METH_FASTCALL, b"A program in machine code.")


@cache
def _new_function() -> Any:
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return make


@cache
def _api() -> list[int] | None:
    """The addresses of the functions called, as `HEADER` orders them; None where arrays are not laid out as expected."""
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
    names = ("PyTuple_New", "PyTuple_SetItem", "PyFloat_FromDouble", "Py_IncRef", "Py_DecRef")
    return [table[NEW_ARRAY], *(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in names)]


def _as_expected(array: np.ndarray) -> bool:
    """Whether this array lies in memory as `PyArrayObject_fields` says."""
    at = id(array)
    wide, narrow = ctypes.c_int64.from_address, ctypes.c_int32.from_address
    return (
        wide(at + TYPE).value == id(np.ndarray)
        and wide(at + DATA).value == array.ctypes.data
        and narrow(at + DIMENSIONS).value == array.ndim
        and tuple((ctypes.c_int64 * array.ndim).from_address(wide(at + LENGTHS).value)) == array.shape
        and wide(at + DESCR).value == id(array.dtype)
        and narrow(at + FLAGS).value & WRITABLE == WRITABLE
    )


@cache
def _code() -> Code:
    module = Module()
    module.add(_fits(module), "internal")
    module.add(_apart(module), "internal")
    module.add(_enter(module))
    return machine_code(module.text(), ["enter"], processor())


def _field(f: Function, pointer: Value, offset: int, type: Type = PTR) -> Value:
    return f.load(type, f.assign(PTR, f"getelementptr i8, {pointer}, i64 {offset}"))


def _header(f: Function, words: Value, name: str, type: Type = PTR) -> Value:
    return _field(f, words, 8 * HEADER.index(name), type)


def _of_array(f: Function, array: Value, name: str, type: Type = I64) -> Value:
    return _field(f, array, 8 * ARRAY.index(name), type)


def _array(f: Function, words: Value, k: Value) -> Value:
    """The words of an array."""
    return f.address(words, f.add(f.mul(k, len(ARRAY)), len(HEADER)), I64)


def _object(f: Function, objects: Value, k: Value) -> Value:
    return f.load(PTR, f.address(objects, k, I64))


def _fits(module: Module) -> Function:
    """``fits(object, array, ndarray, other)``: 1 where the object is an array as described, if of the `other` type."""
    f = Function(module, "fits", [(PTR, "object"), (PTR, "array"), (PTR, "ndarray"), (PTR, "other")], "i64")
    thing, array, ndarray, other = f.arguments

    def layout() -> Value:
        flags = f.cast("zext", _field(f, thing, FLAGS, I32), I64)
        wanted = _of_array(f, array, "flags")
        dimensions = f.cast("sext", _field(f, thing, DIMENSIONS, I32), I64)
        rank = _of_array(f, array, "dimensions")
        good = f.compare("eq", f.binary("and", flags, wanted), wanted)
        descr = _field(f, thing, DESCR)
        known = f.binary("or", f.compare("eq", descr, _of_array(f, array, "descr", PTR)), f.compare("eq", descr, other))
        good = f.binary("and", good, known)
        return f.either(f.binary("and", good, f.compare("eq", dimensions, rank)), lambda: lengths(rank), lambda: integer(0))

    def lengths(rank: Value) -> Value:
        own, wanted = _field(f, thing, LENGTHS), _of_array(f, array, "lengths", PTR)

        def same(k: Value, carried: list[Value]) -> list[Value]:
            equal = f.compare("eq", f.load(I64, f.address(own, k, I64)), f.load(I64, f.address(wanted, k, I64)))
            return [f.select(equal, carried[0], integer(0))]

        return f.loop(integer(0), rank, 1, same, [integer(1)])[1][0]

    exact = f.compare("eq", _field(f, thing, TYPE), ndarray)
    f.line(f"ret {f.either(exact, layout, lambda: integer(0))}")
    return f


def _apart(module: Module) -> Function:
    """``apart(words, objects, k)``: 1 where array k shares no memory with any before it."""
    f = Function(module, "apart", [(PTR, "words"), (PTR, "objects"), (I64, "k")], "i64")
    words, objects, k = f.arguments

    def extent(k: Value) -> tuple[Value, Value]:
        thing, array = _object(f, objects, k), _array(f, words, k)
        other = f.compare("eq", _field(f, thing, DESCR), _of_array(f, array, "other descr", PTR))
        nbytes = f.select(other, _of_array(f, array, "other bytes"), _of_array(f, array, "bytes"))
        start = _field(f, thing, DATA, I64)
        return start, f.add(start, nbytes)

    start, stop = extent(k)
    none = _header(f, words, "none")

    def disjoint(other: Value, carried: list[Value]) -> list[Value]:
        def compare() -> Value:
            first, last = extent(other)
            overlap = f.binary("and", f.compare("ult", start, last), f.compare("ult", first, stop))
            return f.select(overlap, integer(0), carried[0])

        given = f.compare("ne", _object(f, objects, other), none)
        return [f.either(given, compare, lambda: carried[0])]

    f.line(f"ret {f.loop(integer(0), k, 1, disjoint, [integer(1)])[1][0]}")
    return f


def _enter(module: Module) -> Function:
    """``enter(self, objects, count)``: METH_FASTCALL's signature; `self` is an array of the words."""
    f = Function(module, "enter", [(PTR, "self"), (PTR, "objects"), (I64, "count")], "ptr")
    self, objects, count = f.arguments
    results = f.assign(PTR, f"alloca [{MOST_RESULTS} x ptr], align 8")
    words = _field(f, self, DATA)
    none, ndarray = _header(f, words, "none"), _header(f, words, "ndarray")
    inputs, arrays = _header(f, words, "inputs", I64), _header(f, words, "arrays", I64)

    def fits(k: Value, other: str) -> Value:
        array = _array(f, words, k)
        descr = _of_array(f, array, other, PTR)
        return f.assign(I64, f"call i64 @fits({_object(f, objects, k)}, {array}, {ndarray}, {descr})")

    def all_fit() -> Value:
        def input(k: Value, carried: list[Value]) -> list[Value]:
            return [f.binary("and", carried[0], fits(k, "other descr"))]

        def output(k: Value, carried: list[Value]) -> list[Value]:
            def own() -> Value:
                return f.either(
                    f.compare("eq", fits(k, "descr"), integer(1)),
                    lambda: f.assign(I64, f"call i64 @apart({words}, {objects}, {k})"),
                    lambda: integer(0),
                )

            given = f.compare("ne", _object(f, objects, k), none)
            return [f.binary("and", carried[0], f.either(given, own, lambda: integer(1)))]

        read = f.loop(integer(0), inputs, 1, input, [integer(1)])[1][0]
        # Outputs are compared with inputs, which must be arrays for that.
        return f.either(
            f.compare("eq", read, integer(1)),
            lambda: f.loop(inputs, arrays, 1, output, [integer(1)])[1][0],
            lambda: integer(0),
        )

    good = f.either(f.compare("eq", count, arrays), all_fit, lambda: integer(0))

    def decline() -> Value:
        f.line(f"call void {_header(f, words, 'incref').text}({none})")
        return none

    answer = f.either(f.compare("eq", good, integer(1)), lambda: _answer(f, words, objects, results), decline)
    f.line(f"ret {answer}")
    return f


def _answer(f: Function, words: Value, objects: Value, results: Value) -> Value:
    """Make the outputs, run the program on the arrays, and return its results; null where memory is out."""
    none, null = _header(f, words, "none"), Value("null", PTR)
    inputs, arrays = _header(f, words, "inputs", I64), _header(f, words, "arrays", I64)
    made = f.binary("sub", arrays, inputs)

    def make(k: Value, carried: list[Value]) -> list[Value]:
        array, given = _array(f, words, f.binary("add", inputs, k)), _object(f, objects, f.binary("add", inputs, k))

        def fresh() -> Value:
            rank = f.cast("trunc", _of_array(f, array, "dimensions"), I32)
            kind = f.cast("trunc", _of_array(f, array, "type number"), I32)
            operands = f"{_header(f, words, 'ndarray')}, {rank}, {_of_array(f, array, 'lengths', PTR)}, {kind}"
            new = _header(f, words, "new array").text
            return f.assign(PTR, f"call ptr {new}({operands}, ptr null, ptr null, i32 0, i32 0, ptr null)")

        def passed() -> Value:
            f.line(f"call void {_header(f, words, 'incref').text}({given})")
            return given

        result = f.either(f.compare("eq", given, none), fresh, passed)
        f.store(result, f.address(results, k, I64))
        return [f.select(f.compare("eq", result, null), integer(0), carried[0])]

    def place(array: Value, data: Value) -> None:
        slots = _of_array(f, array, "slots", PTR)

        def store(k: Value, _: list[Value]) -> None:
            f.store(data, f.load(PTR, f.address(slots, k, I64)))

        f.loop(integer(0), _of_array(f, array, "how many slots"), 1, store)

    def place_input(k: Value, _: list[Value]) -> None:
        array, thing = _array(f, words, k), _object(f, objects, k)
        data = _field(f, thing, DATA)

        def converted() -> Value:
            own = _of_array(f, array, "own", PTR)
            operands = f"{data}, {own}, {_header(f, words, 'zero')}, i64 1, {_of_array(f, array, 'elements')}"
            f.line(f"call void {_of_array(f, array, 'convert', PTR).text}({operands})")
            return own

        other = f.compare("eq", _field(f, thing, DESCR), _of_array(f, array, "other descr", PTR))
        place(array, f.either(other, converted, lambda: data))

    def place_output(k: Value, _: list[Value]) -> None:
        place(_array(f, words, f.binary("add", inputs, k)), _field(f, _object(f, results, k), DATA))

    def run() -> Value:
        f.loop(integer(0), inputs, 1, place_input)
        f.loop(integer(0), made, 1, place_output)
        f.line(f"call void {_header(f, words, 'run').text}({_header(f, words, 'words')})")
        address = _header(f, words, "value")
        valued = f.compare("ne", address, null)
        alone = f.binary("and", f.compare("eq", made, integer(1)), f.compare("eq", address, null))
        return f.either(alone, lambda: _object(f, results, integer(0)), lambda: several(address, valued))

    def several(address: Value, valued: Value) -> Value:
        first = f.cast("zext", valued, I64)
        value = f.either(valued, lambda: read(address), lambda: number(Type("double"), 0.0))
        answer = f.assign(PTR, f"call ptr {_header(f, words, 'new tuple').text}(i64 {f.binary('add', made, first).text})")

        def fill() -> Value:
            def put(k: Value, thing: Value) -> None:
                f.assign(I32, f"call i32 {_header(f, words, 'set item').text}({answer}, {k}, {thing})")

            def put_value() -> None:
                put(integer(0), f.assign(PTR, f"call ptr {_header(f, words, 'new float').text}({value})"))

            f.when(valued, put_value)
            f.loop(integer(0), made, 1, lambda k, _: put(f.binary("add", k, first), _object(f, results, k)))
            return answer

        return f.either(f.compare("ne", answer, null), fill, forget)

    def read(address: Value) -> Value:
        single = f.compare("eq", _header(f, words, "is single", I64), integer(1))
        return f.either(
            single,
            lambda: f.cast("fpext", f.load(Type("float"), address), Type("double")),
            lambda: f.load(Type("double"), address),
        )

    def forget() -> Value:
        def drop(k: Value, _: list[Value]) -> None:
            f.line(f"call void {_header(f, words, 'decref').text}({_object(f, results, k)})")

        f.loop(integer(0), made, 1, drop)
        return null

    complete = f.loop(integer(0), made, 1, make, [integer(1)])[1][0]
    return f.either(f.compare("eq", complete, integer(1)), run, forget)
