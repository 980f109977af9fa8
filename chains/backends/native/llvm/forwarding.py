"""Numbers that a block of code has stored and still has in registers: a load of them becomes a move between lanes.

A processor hands a number from a store to a load in about ten cycles, from a masked store in twenty. Where each step of a
program waits for the one before, as with one sample, this is half of the time. LLVM does not see through masks.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Place(NamedTuple):
    """An address: bytes after a base, which is the beginning of a region of memory, or some unknown place in it.

    Regions have numbers of one size, and do not overlap. Two bases of one region may be the same address.
    """

    region: Hashable
    base: str
    offset: int

    def after(self, nbytes: int) -> Place:
        return self._replace(offset=self.offset + nbytes)

    def somewhere(self, base: str) -> Place:
        """An unknown place of the region, which is named `base`."""
        return self._replace(base=base, offset=0)


@dataclass
class Stored:
    """The numbers of each region whose places are known, all after one base: by the offset, the vector and the lane.

    Vectors and types are those of `emit.py`, which imports this module.
    """

    bases: dict[Hashable, str] = field(default_factory=dict)
    numbers: dict[Hashable, dict[int, tuple[Any, int]]] = field(default_factory=dict)
    products: set[str] = field(default_factory=set)  # the results of multiplications

    def clear(self) -> None:
        """Forget all numbers, where other code may have run."""
        self.bases.clear()
        self.numbers.clear()

    def store(self, place: Place, value: Any, used: int | None) -> None:
        """Note a store of the first `used` lanes of a value; of unknown lanes, if None."""
        region, size = place.region, value.type.size
        if used is None or self.bases.get(region) != place.base:
            self.numbers[region] = {}
        self.bases[region] = place.base
        self.numbers[region].update((place.offset + k * size, (value, k)) for k in range(used or 0))

    def find(self, place: Place, type: Any, used: int) -> tuple[Any, list[int]] | None:
        """The vector that has the first `used` numbers at a place, and their lanes; None if no vector has them all."""
        if self.bases.get(place.region) != place.base:
            return None
        numbers = self.numbers[place.region]
        found = [numbers.get(place.offset + k * type.size) for k in range(used)]
        vector = found[0][0] if found[0] else None
        if vector is None or vector.type.name != type.name or any(each is None or each[0] is not vector for each in found):
            return None
        return vector, [lane for _, lane in filter(None, found)]
