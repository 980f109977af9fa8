"""What a caller must know to run a compiled program: where addresses go, how large tiles are, how much memory it needs.

It names no buffer of the program it was made of, so that it is kept with the machine code and serves every equal program.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Slot:
    """An entry in the table of addresses: one of the caller's buffers, or scratch memory that is no part of a tile."""

    name: str
    role: str
    nbytes: int  # of a sample where it is batched
    batched: bool
    laned: bool  # laid out in lanes: it holds whole tiles
    packed: bool  # packed weights: each thread has its own

    @property
    def given(self) -> bool:
        """Whether a caller provides it."""
        return self.role != "scratch"


@dataclass(frozen=True)
class Signature:
    """A thread's table holds the addresses of the slots, then those of its own block for each of the `sums`."""

    table: tuple[Slot, ...]
    sums: tuple[int, ...]  # the slots, by number, that hold sums over samples: each thread has its own
    tile: int  # samples
    room: int  # samples that a tile has at most
    tile_bytes: int  # scratch of one tile
    indexed: str | None  # the input whose samples may be read by their numbers (`kernels/row_pointers.py`)
    products: bool  # whether there are large products: threads without tiles share these
    one_size: bool  # whether all tiles have one size
    parts: int  # into which products are partitioned; with more than one, a tile is the whole batch
    read_by_others: tuple[str, ...]  # inputs that other threads may still read when the first one has finished a step

    def text(self) -> str:
        """One line, for `read`."""
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str | bytes) -> Signature:
        """The signature that gave this text."""
        found = json.loads(text)
        table = tuple(Slot(**slot) for slot in found["table"])
        return Signature(
            **found | {"table": table, "sums": tuple(found["sums"]), "read_by_others": tuple(found["read_by_others"])}
        )
