"""Lists of 64-bit words that Python fills and machine code reads. Each list is declared once, as a `Struct`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chains.backends.native.llvm.emit import I64, Function, Type, Value, integer

PADDED_WORDS = 16  # two cache lines: processors fetch lines in pairs


class Struct:
    """The names of a list's words, in order, each with the LLVM type of its contents.

    Words may come in several groups. If the groups are `padded`, each fills whole pairs of cache lines: threads that write to
    one group do not disturb threads that read another. `address`, `load` and `store` write machine code.
    """

    def __init__(self, *groups: Mapping[str, str], padded: bool = False) -> None:
        self.types: dict[str, Type] = {}
        self.positions: dict[str, int] = {}  # in words
        self.size = 0  # words
        for group in groups:
            for name, type in group.items():
                self.types[name] = Type(type)
                self.positions[name] = self.size
                self.size += 1
            if padded:
                self.size = -(-self.size // PADDED_WORDS) * PADDED_WORDS

    # In Python

    def pack(self, **values: int) -> np.ndarray:
        """A new list with these values; all other words are zero."""
        words = [0] * self.size
        for name, value in values.items():
            words[self.positions[name]] = value
        return np.array(words, np.int64)

    def write(self, words: np.ndarray, /, **values: int | np.ndarray) -> None:
        """Change some words of a list, or of each list in an array of lists."""
        by_word = words.T
        for name, value in values.items():
            by_word[self.positions[name]] = value

    # In machine code

    def address(self, f: Function, words: Value, name: str, start: Value | None = None) -> Value:
        """The address of a word of the list at `words`, or of the list `start` words after it."""
        return f.address(words, f.add(start or integer(0), self.positions[name]), I64)

    def load(self, f: Function, words: Value, name: str, start: Value | None = None) -> Value:
        return f.load(self.types[name], self.address(f, words, name, start))

    def loads(self, f: Function, words: Value, *names: str) -> list[Value]:
        """These words of the list at `words`, or all."""
        return [self.load(f, words, name) for name in names or self.positions]

    def store(self, f: Function, words: Value, **values: Value) -> None:
        for name, value in values.items():
            f.store(value, self.address(f, words, name))

    def element(self, f: Function, number: Value, before: Struct) -> Value:
        """The number of words before list `number` of this kind, where such lists follow a list of kind `before`."""
        return f.add(f.mul(number, self.size), before.size)


CACHE_LINE_BYTES = 64  # bytes of a cache line

ARGUMENTS = Struct(
    {
        "batch": "i64",  # samples of the batch
        "tile": "i64",  # samples of a tile
        "threads": "i64",
        "sharing": "i64",  # threads that have tiles
        "block": "i64",  # tiles of a block, whose sums a thread adds up first
        "pool": "ptr",
        "parallel": "ptr",  # functions of the pool
        "barrier": "ptr",
        "run": "ptr",  # functions of the program
        "member": "ptr",
        "team": "i64",  # 1 if there is a team; -n if the team is awaited for n more steps
        "gathers": "i64",  # whether a barrier precedes the gathering of the next samples, since threads may still read the last
    }
)
# The addresses of a thread's table of buffers and of its scratch memory. For blocks of tiles, a second list per thread follows.
THREAD = Struct({"table": "ptr", "scratch": "ptr"})
PREFETCH = Struct(
    {
        "left": "i64",  # lines left in the present row
        "next": "ptr",  # the next of these lines
        "rows": "i64",  # rows after the present row
        "numbers": "ptr",  # the numbers of these rows
        "data": "ptr",  # row 0, or a thread's share of it
        "nbytes": "i64",  # bytes of a row
        "lines": "i64",  # lines of a row, or of the thread's share
    },
    padded=True,
)
ROW_POINTERS = Struct(
    {
        "numbers": "ptr",  # numbers of the samples to read from the data set; null to read the input in order
        "data": "ptr",  # the data set
        "next_rows": "i64",  # how many samples the next step takes
        "next_numbers": "ptr",  # the numbers of these samples
    }
)
