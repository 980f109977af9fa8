"""The lists of words that compiled programs share with their callers."""

from __future__ import annotations

from chains.backends.native.llvm.struct import Struct

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
