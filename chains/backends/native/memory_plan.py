"""The memory that a compiled program needs: the facts about it, and the layout for a batch size and a number of threads.

A signature refers to no buffer object of its program. So it is kept with the machine code and serves every equal program.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from itertools import pairwise

from chains.backends.native.runtime.thread_trial import ThreadTrial
from chains.support.threads import processors

# Below this many operations a second thread costs more than it saves (a hand-over takes about a microsecond). Each further
# thread makes every barrier longer by about an eighth of that time, since each thread reads the words of all others.
MIN_THREAD_OPERATIONS = 400_000
BARRIER_PART = 8
MAX_THREADS_PER_PROCESSOR = 4  # more only wait for each other
MIN_BLOCK_TILES = 128  # a thread with no more tiles adds the sums of its tiles one after another
ROW_BLOCK = 12  # rows that kernels process together
MIN_EVEN_SAMPLES = 8  # per thread: from here on, no share is more than `MAX_UNEVENNESS` times an even share
MAX_UNEVENNESS = 1.02
GAP_BYTES = 1024  # between places of several threads: a processor fetches the lines after those that a thread writes


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
    """The facts about a compiled program. A thread's table has the address of each slot, then those of the thread's `sums`."""

    table: tuple[Slot, ...]
    sums: tuple[int, ...]  # numbers of the slots with sums over samples: each thread has its own sums
    tile: int  # samples
    room: int  # samples that a tile has at most
    tile_bytes: int  # scratch of one tile
    indexed: str | None  # the input whose samples may be read by their numbers (`kernels/samples.py`)
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


class MemoryPlan:
    """The offsets of all scratch memory in one block, for a batch size.

    First come the slots outside of tiles. For the threads follow packed weights, tiles, lists of rows, their own sums and, if
    a thread has several blocks of tiles, sums of a block. No two threads write to one cache line or to neighbouring ones.
    `work` is the approximate number of operations per sample.
    """

    def __init__(self, signature: Signature, batch: int, threads: int, work: int) -> None:
        split = signature.parts > 1
        self.threads = signature.parts if split else suitable_threads(work * batch, threads)
        self.tile = signature.tile if split else _tile(signature, batch, self.threads)
        tiles = -(-batch // self.tile)
        self.sharing = min(self.threads, tiles)  # threads that have tiles
        if not (signature.products or split):
            self.threads = self.sharing
        self.layout = self.threads, self.sharing, self.tile
        self.thread_trial = ThreadTrial() if self.threads > 1 else None
        self.nbytes = 0
        scratch = {number: slot for number, slot in enumerate(signature.table) if not slot.given}
        samples = {True: tiles * signature.tile, False: batch}
        self.shared = {
            number: self._reserve(slot.nbytes * (samples[slot.laned] if slot.batched else 1))
            for number, slot in scratch.items()
            if not slot.packed
        }
        packed = {number: slot.nbytes for number, slot in scratch.items() if slot.packed}
        self.packed = [{number: self._reserve(size) for number, size in packed.items()} for _ in range(self.sharing)]
        self.tiles = [self._reserve(signature.tile_bytes) for _ in range(1 if split else self.threads)]
        self.rows = [self._reserve(8 * signature.room) for _ in range(self.threads if split else self.sharing)]
        sums = [signature.table[number].nbytes for number in signature.sums]
        self.sums = [[self._reserve(size) for size in sums] for _ in range(1, self.sharing)]
        most = -(-tiles // self.sharing)
        self.block = max(MIN_BLOCK_TILES, math.isqrt(most))
        blocks = sums and most > self.block
        self.block_sums = [[self._reserve(size) for size in sums] for _ in range(self.sharing)] if blocks else []

    def _reserve(self, nbytes: int) -> int:
        start, gap = self.nbytes, GAP_BYTES if self.threads > 1 else 0
        self.nbytes += -(-nbytes // 128) * 128 + gap
        return start


def suitable_threads(operations: int, most: int) -> int:
    """The number of threads, at most `most`, that take the least time for this many operations.

    For n threads the time is operations / n, and n times what a thread adds to the barriers; it is least at a square root.
    """
    by_barriers = math.isqrt(BARRIER_PART * operations // MIN_THREAD_OPERATIONS)
    return max(1, min(most, operations // MIN_THREAD_OPERATIONS, by_barriers, MAX_THREADS_PER_PROCESSOR * processors()))


def _tile(signature: Signature, batch: int, threads: int) -> int:
    """The samples of a tile: whole blocks of rows, unless one thread would then get much more than an even share."""
    if threads == 1 or signature.one_size:
        return signature.tile
    share = -(-batch // threads)
    tile = min(signature.tile, -(-share // ROW_BLOCK) * ROW_BLOCK)
    tiles = -(-batch // tile)
    bounds = [min(batch, tiles * thread // threads * tile) for thread in range(threads + 1)]
    most = max(end - begin for begin, end in pairwise(bounds))
    return tile if share < MIN_EVEN_SAMPLES or most <= MAX_UNEVENNESS * share else -(-share // -(-share // signature.room))
