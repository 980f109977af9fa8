"""The lists of words that compiled programs share with what calls them."""

from __future__ import annotations

from chains.backends.native.llvm.struct import Struct

CACHE_LINE_BYTES = 64  # bytes of a cache line

ARGUMENTS = Struct(
    {
        "batch": "i64",  # samples
        "tile": "i64",  # samples
        "threads": "i64",
        "sharing": "i64",  # threads that have tiles
        "block": "i64",  # tiles of a thread that are summed up together
        "pool": "ptr",
        "parallel": "ptr",  # functions of the pool
        "meet": "ptr",
        "run": "ptr",  # functions of the program
        "member": "ptr",
        "team": "i64",  # 1 where there is a team; below zero where it is awaited for so many more steps
        "gathers": "i64",  # whether samples are gathered that the threads of a team may still read
    }
)
# Addresses of a thread's table of buffers and of its scratch memory; then, thread by thread, of the table for further blocks.
THREAD = Struct({"table": "ptr", "scratch": "ptr"})
PREFETCH = Struct(
    {
        "left": "i64",  # lines of the present row
        "next": "ptr",  # the next one of these
        "rows": "i64",  # rows behind the present one
        "numbers": "ptr",  # theirs
        "data": "ptr",  # row 0, or a thread's share of it
        "nbytes": "i64",  # of a row
        "lines": "i64",  # of a row, or of the thread's share
    },
    padded=True,
)
ROW_POINTERS = Struct(
    {
        "numbers": "ptr",  # of the samples to take from the data set; null to take those of the input in order
        "data": "ptr",  # the data set
        "next_rows": "i64",  # how many samples the next step takes
        "next_numbers": "ptr",  # theirs
    }
)
