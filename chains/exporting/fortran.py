"""A Fortran module with the functions of an interface. Its first index runs fastest: x(n_in, batch) is C's x[batch][n_in]."""

from __future__ import annotations

from collections.abc import Iterator

from chains.exporting.header import constant_name
from chains.exporting.interface import Argument, Call, Interface
from chains.version import __version__

KINDS = {
    "float32": "real(c_float)",
    "float64": "real(c_double)",
    "int32": "integer(c_int32_t)",
    "int64": "integer(c_int64_t)",
    "uint64": "integer(c_int64_t)",  # Fortran has no unsigned ones
}
INTENTS = {"input": "in", "output": "out", "state": "inout"}


def fortran_text(interface: Interface) -> str:
    """The module, which has the name of the network."""
    return "\n".join(_lines(interface)) + "\n"


def _lines(interface: Interface) -> Iterator[str]:
    name = interface.name
    yield f"! {interface.network[:100]}, {interface.dtype}."
    yield f"! Written by chains {__version__}. The C header says what the functions do."
    yield f"module {name}"
    yield "  use, intrinsic :: iso_c_binding, only: c_float, c_double, c_int8_t, c_int32_t, c_int64_t, c_intptr_t"
    yield "  implicit none\n  private :: c_float, c_double, c_int8_t, c_int32_t, c_int64_t, c_intptr_t\n"
    yield "  ! The lengths of the vectors, and where each array begins in them, counted from 1."
    for end, count in interface.sizes.items():
        yield f"  integer, parameter :: {name}_size_of_{end[2:]} = {count}"
    for layout in (interface.layout, interface.state_layout):
        for entry in layout:
            shape = ", ".join(map(str, reversed(entry.shape)))
            yield f"  integer, parameter :: at_{constant_name(interface, entry)} = {entry.start + 1}  ! ({shape})"
    yield "\n  interface"
    for call in interface.calls:
        yield from _procedure(interface, call)
    for end in interface.sizes:
        yield from _number(f"{name}_{end}", "")
    yield from _number(f"{name}_work_bytes", "n")
    yield f"  end interface\nend module {name}"


def _procedure(interface: Interface, call: Call) -> Iterator[str]:
    symbol = f"{interface.name}_{call.name}"
    names = ["n", *(argument.name for argument in call.arguments), *(["work"] if interface.workspace else [])]
    kind = "subroutine" if call.value is None else "function"
    result = "" if call.value is None else " result(value)"
    yield f'    {kind} {symbol}({", ".join(names)}) bind(c, name="{symbol}"){result}'
    yield "      import :: c_float, c_double, c_int8_t, c_int32_t, c_int64_t, c_intptr_t"
    yield "      integer(c_intptr_t), value :: n"
    for argument in call.arguments:
        yield f"      {KINDS[argument.dtype.name]}, intent({INTENTS[argument.role]}) :: {argument.name}{_bounds(argument)}"
    if interface.workspace:
        yield "      integer(c_int8_t), intent(inout) :: work(*)"
    if call.value is not None:
        yield f"      {KINDS[call.value.dtype.name]} :: value"
    yield f"    end {kind} {symbol}\n"


def _bounds(argument: Argument) -> str:
    extents = [*map(str, reversed(argument.shape)), *(["*"] if argument.batched else [])]
    return f"({', '.join(extents)})" if extents else ""


def _number(symbol: str, argument: str) -> Iterator[str]:
    yield f'    pure function {symbol}({argument}) bind(c, name="{symbol}") result(value)'
    yield "      import :: c_intptr_t"
    if argument:
        yield f"      integer(c_intptr_t), value :: {argument}"
    yield f"      integer(c_intptr_t) :: value\n    end function {symbol}\n"
