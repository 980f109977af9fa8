"""The declarations of an interface: a C header and a Fortran module.

They have its functions, the sizes of its vectors, and the position of each array in them. The first index of Fortran runs
fastest: x(n_in, batch) is C's x[batch][n_in].
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import numpy as np

from chains.exporting import names
from chains.exporting.interface import Argument, Call, Interface, comment
from chains.exporting.names import KINDS, PREFIX, fortran_lines
from chains.version import __version__

CTYPES = {"float32": "float", "float64": "double", "int32": "int32_t", "int64": "int64_t", "uint64": "uint64_t"}


def header_text(interface: Interface, built_for: str) -> str:
    """The header; `built_for` describes the target."""
    return "\n".join(_lines(interface, built_for)) + "\n"


def _lines(interface: Interface, built_for: str) -> Iterator[str]:
    name, guard = interface.name, f"{interface.name.upper()}_H"
    yield f"/* {interface.network}, {interface.dtype}"
    yield f"   Written by chains {__version__} for {built_for}."
    yield ""
    yield "   n is the number of samples, at least 1. Arrays are in C's order, the samples one after another. Arrays that are"
    yield "   written may not overlap any other. The functions allocate nothing, keep nothing and lock nothing: any number of"
    yield "   threads may call them simultaneously, on separate arrays. */"
    yield f"#ifndef {guard}\n#define {guard}\n"
    yield '#include <stddef.h>\n#include <stdint.h>\n\n#ifdef __cplusplus\nextern "C" {\n#endif\n'
    for end, count in interface.sizes.items():
        yield f"#define {name.upper()}_{end.upper()} {count}"
    yield from _offsets(interface)
    for call in interface.calls:
        yield from _prototype(interface, call)
    yield ""
    for end in interface.sizes:
        yield f"ptrdiff_t {name}_{end}(void);"
    yield ""
    if interface.workspace:
        yield "/* How many bytes `work` must have for n samples: in any of the functions, then in each of them."
        yield "   Each thread needs its own. */"
    else:
        yield "/* 0: the functions need no workspace. */"
    for end in interface.work_bytes:
        yield f"ptrdiff_t {name}_{end}(ptrdiff_t n);"
    yield f"\n/* What wrote the code, and for which processors. */\nconst char *{name}_version(void);\n"
    yield "#ifdef __cplusplus\n}\n#endif\n\n#endif"


def _offsets(interface: Interface) -> Iterator[str]:
    constants = iter(constant_names(interface))
    for vector, layout in (("p", interface.layout), ("state", interface.state_layout)):
        if len(layout):
            where = "which is part of the code" if vector in interface.baked else "in elements"
            yield f"\n/* Where each array begins in {vector}, {where}, and its shape. */"
        for entry, (name, own) in zip(layout, constants, strict=False):
            shape = ", ".join(map(str, entry.shape))
            bounds = "" if entry.bounds is None else f", stored for values {entry.bounds}: {entry.bounds.formula}"
            yield f"#define {name.upper()} {entry.start}  /* ({shape}){bounds}{own and f', of {own}'} */"


def constant_names(interface: Interface) -> list[tuple[str, str]]:
    """For the start of each array: the name of its constant, and its own name where that is not to be seen from it."""
    entries = [*interface.layout, *interface.state_layout]
    found = names.constants(interface.name, [entry.name for entry in entries], ["h", *interface.sizes])
    plain = [f"{interface.name}_{entry.name}".replace(".", "_").lower() for entry in entries]
    return [
        (name, "" if name == usual else comment(entry.name)) for name, usual, entry in zip(found, plain, entries, strict=True)
    ]


def _prototype(interface: Interface, call: Call) -> Iterator[str]:
    yield f"\n/* {call.about}"
    for argument in call.arguments:
        yield f"   {argument.name}: {shape_text(argument)}, {argument.about}{'; updated' if argument.updated else ''}"
    if interface.workspace:
        length = interface.bytes_for_one[call.name]
        yield f"   work: {interface.name}_{call.name}_work_bytes(n) bytes, {length:,} for one sample"
    elif call.name in interface.scratch:
        yield f"   Scratch memory: {interface.bytes_for_one[call.name]:,} bytes of the stack."
    yield f"*/\n{declaration(interface, call)};"


def declaration(interface: Interface, call: Call) -> str:
    """A function's head in C."""
    result = "void" if call.value is None else ctype(call.value.dtype)
    parts = [f"{'' if each.changed else 'const '}{ctype(each.dtype)} *{each.name}" for each in call.arguments]
    parts += ["void *work"] if interface.workspace else []
    return f"{result} {interface.name}_{call.name}({', '.join(['ptrdiff_t n', *parts])})"


def ctype(dtype: np.dtype) -> str:
    """C's name of a type."""
    return CTYPES[dtype.name]


def shape_text(argument: Argument) -> str:
    """The printed shape of an argument."""
    shape = [*(["n"] if argument.batched else []), *map(str, argument.shape)]
    return f"({', '.join(shape)})" if shape else "one number"


TYPES = {
    "float32": "real(c_float)",
    "float64": "real(c_double)",
    "int32": "integer(c_int32_t)",
    "int64": "integer(c_int64_t)",
    "uint64": "integer(c_int64_t)",  # Fortran has no unsigned types
}
INTENTS = {"input": "in", "output": "out", "state": "inout"}


def fortran_text(interface: Interface) -> str:
    """The module, which has the name of the network."""
    return "\n".join(_module_lines(interface)) + "\n"


def _module_lines(interface: Interface) -> Iterator[str]:
    name = interface.name
    yield from (f"! {line}" for line in textwrap.wrap(f"{interface.network}, {interface.dtype}.", 120))
    yield f"! Written by chains {__version__}. The C header says what the functions do."
    yield f"module {name}"
    yield f"  use, intrinsic :: iso_c_binding, only: {', '.join(KINDS)}"
    yield f"  implicit none\n  private :: {', '.join(KINDS)}\n"
    yield "  ! The lengths of the vectors, and where each array begins in them, counted from 1."
    for end, count in interface.sizes.items():
        yield f"  integer, parameter :: {name}_size_of_{end[2:]} = {count}"
    for entry, (constant, own) in zip([*interface.layout, *interface.state_layout], constant_names(interface), strict=True):
        shape = f"({', '.join(map(str, reversed(entry.shape)))}){own and f', of {own}'}"
        yield from fortran_lines(f"  integer, parameter :: {PREFIX}{constant} = {entry.start + 1}", shape)
    yield "\n  interface"
    for call in interface.calls:
        yield from _procedure(interface, call)
    for end in interface.sizes:
        yield from _number(f"{name}_{end}", "")
    for end in interface.work_bytes:
        yield from _number(f"{name}_{end}", "n")
    yield f"  end interface\nend module {name}"


def _procedure(interface: Interface, call: Call) -> Iterator[str]:
    symbol = f"{interface.name}_{call.name}"
    arguments = ["n", *(argument.name for argument in call.arguments), *(["work"] if interface.workspace else [])]
    kind = "subroutine" if call.value is None else "function"
    result = "" if call.value is None else " result(value)"
    yield from fortran_lines(f'    {kind} {symbol}({", ".join(arguments)}) bind(c, name="{symbol}"){result}')
    yield f"      import :: {', '.join(KINDS)}"
    yield "      integer(c_intptr_t), value :: n"
    for argument in call.arguments:
        yield f"      {TYPES[argument.dtype.name]}, intent({INTENTS[argument.role]}) :: {argument.name}{_bounds(argument)}"
    if interface.workspace:
        yield "      integer(c_int8_t), intent(inout) :: work(*)"
    if call.value is not None:
        yield f"      {TYPES[call.value.dtype.name]} :: value"
    yield f"    end {kind} {symbol}\n"


def _bounds(argument: Argument) -> str:
    extents = [*map(str, reversed(argument.shape)), *(["*"] if argument.batched else [])]
    return f"({', '.join(extents)})" if extents else ""


def _number(symbol: str, argument: str) -> Iterator[str]:
    yield from fortran_lines(f'    pure function {symbol}({argument}) bind(c, name="{symbol}") result(value)')
    yield "      import :: c_intptr_t"
    if argument:
        yield f"      integer(c_intptr_t), value :: {argument}"
    yield f"      integer(c_intptr_t) :: value\n    end function {symbol}\n"
