"""Straight code, for one sample: every length is known, and results wait for one another longer than the processor computes.

Loops are written out, and branches taken when the code is written. A vector that was stored is not loaded again, so that
intermediate results stay in registers where no number of them is read alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from chains.backends.native.llvm.emit import (
    FALSE,
    PTR,
    TRUE,
    Function,
    LoopBody,
    Module,
    Type,
    Value,
    all_lanes,
    integer,
    known_number,
    lanes_of,
)

VECTOR_BYTES = 64  # of the longest vectors


class _Place(NamedTuple):
    """A number of bytes after the start of an array."""

    array: str
    offset: int


class _Stored(NamedTuple):
    """A vector in memory, in the lanes of a mask."""

    value: Value
    mask: Value | None

    @property
    def nbytes(self) -> int:
        return self.value.type.size * lanes_of(self.mask, self.value.type.lanes)


class Straight(Function):
    """A function of straight code. It may have memory on the stack (`local`); the caller's arrays may overlap.

    Memory on the stack has room for whole vectors: processors wait long for a number of a vector that was stored by a mask.
    """

    waits = folds = True

    def __init__(self, module: Module, name: str, arguments: Sequence[tuple[Type, str]]) -> None:
        super().__init__(module, name, arguments)
        self._places: dict[str, _Place] = {}  # of pointers, by their text
        self._stored: dict[_Place, _Stored] = {}
        self._locals: dict[str, int] = {}  # the bytes of each
        self._loaded: set[str] = set()  # arrays

    def local(self, count: int, scalar: Type) -> Value:
        """The address of memory on the stack, which no other pointer reaches. It is left out if it is never loaded."""
        pointer = Value(f"%local{len(self._locals)}", PTR)
        nbytes = self._locals[pointer.text] = count * scalar.size
        self._lines.insert(0, f"  {pointer.text} = alloca [{nbytes + VECTOR_BYTES} x i8], align {VECTOR_BYTES}")
        return pointer

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return super().select(condition, a, b) if condition not in (TRUE, FALSE) else a if condition == TRUE else b

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.binary("fmul", a, b) if c.text.endswith("0x0000000000000000)") else super().fma(a, b, c)

    def loop(
        self, start: Value, stop: Value, step: int | Value, body: LoopBody, carried: Sequence[Value] = ()
    ) -> tuple[Value, list[Value]]:
        assert isinstance(step, int)
        i, end, values = _known(start), _known(stop), list(carried)
        while i < end:
            values = list(body(integer(i), values) or ())
            i += step
        return integer(i), values

    def begin(self, label: str, known: Mapping[str, Value] | None = None) -> None:
        super().begin(label, known)
        self._stored.clear()  # these values may be unknown in another block

    # Memory

    def address(self, base: Value, index: Value, type: Type) -> Value:
        pointer, place = super().address(base, index, type), self._place(base)
        self._places[pointer.text] = place._replace(offset=place.offset + _known(index) * type.size)
        return pointer

    def _place(self, pointer: Value) -> _Place:
        return self._places.get(pointer.text) or _Place(pointer.text, 0)

    def load(self, type: Type, pointer: Value, mask: Value | None = None, *, aligned: bool = False) -> Value:
        place, mask = self._place(pointer), None if mask == all_lanes(type.lanes) else mask
        found = self._stored.get(place)
        if found is not None and found.value.type == type and found.mask == mask:
            return found.value if mask is None else self.select(mask, found.value, Value("zeroinitializer", type))
        self._loaded.add(place.array)
        return super().load(type, pointer, mask, aligned=aligned)

    def store(self, value: Value, pointer: Value, mask: Value | None = None, *, aligned: bool = False) -> None:
        place, mask = self._place(pointer), None if mask == all_lanes(value.type.lanes) else mask
        stored = _Stored(value, mask)
        ends = place.offset + stored.nbytes == self._locals.get(place.array)
        super().store(value, pointer, None if ends else mask, aligned=aligned)
        self._stored = {at: each for at, each in self._stored.items() if not self._meet(place, stored, at, each)}
        self._stored[place] = stored

    def _meet(self, a: _Place, first: _Stored, b: _Place, second: _Stored) -> bool:
        """Whether two vectors may have places in common."""
        if a.array != b.array:
            return a.array not in self._locals and b.array not in self._locals
        return a.offset < b.offset + second.nbytes and b.offset < a.offset + first.nbytes

    def text(self, linkage: str = "") -> str:
        unread = self._locals.keys() - self._loaded
        pointers = {*unread, *(pointer for pointer, place in self._places.items() if place.array in unread)}
        whole, self._lines = self._lines, [line for line in self._lines if not _makes_or_fills(line, pointers)]
        text, self._lines = super().text(linkage), whole
        return text


def _known(value: Value) -> int:
    """The number that a value is."""
    found = known_number(value)
    assert found is not None, f"{value} is not known in straight code"
    return found


def _makes_or_fills(line: str, pointers: set[str]) -> bool:
    """Whether a line makes one of these pointers, or stores there."""
    words = line.replace(",", " ").replace(")", " ").split()
    if words[0] == "store" or words[:2] == ["call", "void"]:
        return any(after in pointers for word, after in pairwise(words) if word == "ptr")
    return words[1:2] == ["="] and words[0] in pointers
