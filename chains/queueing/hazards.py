"""The earlier calls that must end before a call may begin, by the memory that they read and write."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

Extent = tuple[int, int]  # of memory: the first address, and that after the last one


class _Accessing(Protocol):
    accesses: list[Any]  # for `Hazards`, which fills and empties it


T = TypeVar("T", bound=_Accessing)


def extent(array: Any) -> Extent:
    """The memory that an array spans, including the gaps between strided numbers."""
    if type(array) is np.ndarray and array.flags.c_contiguous:
        start = array.ctypes.data
        return start, start + array.nbytes
    if isinstance(array, np.ndarray):
        return np.lib.array_utils.byte_bounds(array)
    start = array.data.ptr  # on a GPU
    return start, start + array.nbytes


class Entry(Generic[T]):
    """An extent that calls access: the last call that writes it, and those that read it since."""

    __slots__ = ("readers", "stretch", "writer")

    def __init__(self, stretch: _Stretch[T]) -> None:
        self.stretch = stretch
        self.writer: T | None = None
        self.readers: dict[T, None] = {}


class _Stretch(Generic[T]):
    """Extents that overlap each other, and the memory that they span together."""

    __slots__ = ("end", "entries", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.entries: dict[Extent, Entry[T]] = {}


class Hazards(Generic[T]):
    """The accesses of calls that have not ended, in the order in which they came.

    A call waits for earlier calls that write memory that it reads or writes, and for those that read memory that it writes.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []  # of the stretches, which do not overlap, ascending
        self._stretches: dict[int, _Stretch[T]] = {}

    def __len__(self) -> int:
        return sum(len(stretch.entries) for stretch in self._stretches.values())

    def add(self, call: T, reads: Iterable[Extent], writes: Iterable[Extent]) -> tuple[set[T], set[T]]:
        """Note the accesses of a call. Returns the calls that write memory that it reads, and those that access memory that it
        writes.
        """
        sources: set[T] = set()
        others: set[T] = set()
        reading, writing = ([each for each in extents if each[0] < each[1]] for extents in (reads, writes))
        for each in reading:
            for entry in self._overlapping(each):
                if entry.writer is not None:
                    sources.add(entry.writer)
        for each in writing:
            for entry in self._overlapping(each):
                others.update(entry.readers)
                if entry.writer is not None:
                    others.add(entry.writer)
        for each in writing:
            entry = self._entry(each)
            entry.writer, entry.readers = call, {}
            call.accesses.append((each, entry))
        self.read(call, reading)
        return sources - {call}, others - {call}

    def read(self, call: T, reads: Iterable[Extent]) -> None:
        """Note further memory that a call reads; no earlier call writes it."""
        for each in reads:
            if each[0] == each[1]:
                continue
            entry = self._entry(each)
            if entry.writer is not call:
                entry.readers[call] = None
                call.accesses.append((each, entry))

    def end(self, call: T) -> None:
        """Forget the accesses of a call."""
        for each, entry in call.accesses:
            entry.readers.pop(call, None)
            if entry.writer is call:
                entry.writer = None
            stretch = entry.stretch
            if entry.writer is None and not entry.readers and stretch.entries.get(each) is entry:
                del stretch.entries[each]
                if not stretch.entries:
                    del self._stretches[stretch.start]
                    del self._starts[bisect_left(self._starts, stretch.start)]
        call.accesses.clear()

    def _overlapping(self, extent: Extent) -> list[Entry[T]]:
        start, end = extent
        found = []
        for stretch in self._touched(extent):
            known = stretch.entries
            if len(known) == 1 and extent in known:
                return [known[extent]]
            found += [entry for (first, last), entry in known.items() if first < end and start < last]
        return found

    def _touched(self, extent: Extent) -> list[_Stretch[T]]:
        """The stretches that overlap an extent."""
        start, end = extent
        k = bisect_right(self._starts, start) - 1
        if k < 0 or self._stretches[self._starts[k]].end <= start:
            k += 1
        found = []
        while k < len(self._starts) and self._starts[k] < end:
            found.append(self._stretches[self._starts[k]])
            k += 1
        return found

    def _entry(self, extent: Extent) -> Entry[T]:
        """The entry of an extent, in a stretch that spans all that it overlaps."""
        touched = self._touched(extent)
        if len(touched) == 1 and touched[0].start <= extent[0] and extent[1] <= touched[0].end:
            whole = touched[0]
        else:
            whole = _Stretch(min([extent[0], *(s.start for s in touched)]), max([extent[1], *(s.end for s in touched)]))
            for each in touched:
                del self._stretches[each.start]
                del self._starts[bisect_left(self._starts, each.start)]
                for entry in each.entries.values():
                    entry.stretch = whole
                whole.entries |= each.entries
            self._stretches[whole.start] = whole
            self._starts.insert(bisect_left(self._starts, whole.start), whole.start)
        if extent not in whole.entries:
            whole.entries[extent] = Entry(whole)
        return whole.entries[extent]
