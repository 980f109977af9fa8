"""The facts that a caller needs to run a compiled program: places of addresses, sizes of tiles, amounts of memory.

A signature refers to no buffer object of its program. So it is kept with the machine code and serves every equal program.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Slot:
    """An entry in the table of addresses: one of the caller's buffers, or scratch memory outside of tiles."""

    name: str
    role: str
    nbytes: int  # bytes; per sample if batched
    batched: bool
    laned: bool  # laid out in lanes, in whole tiles
    packed: bool  # packed weights: each thread has its own

    @property
    def given(self) -> bool:
        """Whether a caller provides the memory."""
        return self.role != "scratch"


@dataclass(frozen=True)
class Signature:
    """The facts about a compiled program. A thread's table has the address of each slot, then that of its own `sums`."""

    table: tuple[Slot, ...]
    sums: tuple[int, ...]  # numbers of the slots with sums over samples: each thread has its own sums
    tile: int  # samples
    room: int  # samples that a tile has at most
    tile_bytes: int  # scratch of one tile
    indexed: str | None  # the input whose samples may be read by their numbers (`kernels/row_pointers.py`)
    products: bool  # whether there are large products: threads without tiles do a part too
    one_size: bool  # whether all tiles have one size
    parts: int  # parts of each partitioned product; with more than one, a tile is the whole batch
    read_by_others: tuple[str, ...]  # inputs that other threads may still read when the first one has finished a step

    def text(self) -> str:
        """The signature as one line, for `read`."""
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str | bytes) -> Signature:
        """The signature with this `text`."""
        found = json.loads(text)
        table = tuple(Slot(**slot) for slot in found["table"])
        return Signature(
            **found | {"table": table, "sums": tuple(found["sums"]), "read_by_others": tuple(found["read_by_others"])}
        )
