"""Prefetching: the samples of the next step are loaded into the cache while this step is computed.

Scattered rows of a large data set come from memory. A processor can have only a limited number of loads under way, and stalls
when they are late. So the products that read this step's samples, in the forward pass and in the gradient, regularly prefetch
a few lines of the next samples. This spreads the loads over the step.
"""

from __future__ import annotations

from functools import partial

from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.llvm.emit import I64, Function, Type, Value, integer
from chains.backends.native.llvm.words import CACHE_LINE_BYTES, PREFETCH
from chains.program.view import View

LINES_AT_ONCE = 5  # cache lines per prefetch
MIN_SAMPLE_BYTES = 512  # of a sample: for smaller ones the processor's own prefetching is enough


def reads_samples(view: View) -> bool:
    """Whether a view is the caller's samples, and these are large."""
    return view.buffer.role == "input" and view.batched and view.buffer.nbytes >= MIN_SAMPLE_BYTES


def begin_prefetch(frame: Frame, rows: Value, numbers: Value) -> None:
    """Set the samples to prefetch."""
    f, words = frame.f, frame.prefetch
    assert words is not None
    PREFETCH.store(f, words, "left", integer(0))
    PREFETCH.store(f, words, "rows", rows)
    PREFETCH.store(f, words, "numbers", numbers)


def prefetch_lines(frame: Frame) -> None:
    """Prefetch the next few lines, if any are left."""
    f, words = frame.f, frame.prefetch
    if words is None:
        return
    load, store = partial(PREFETCH.load, f, words), partial(PREFETCH.store, f, words)
    left, rows = load("left"), load("rows")
    fresh = f.compare("sle", left, integer(0))

    def begin_row() -> Value:
        numbers = load("numbers")
        store("numbers", f.address(numbers, integer(1), I64))
        store("rows", f.add(rows, -1))
        offset = f.binary("mul", f.load(I64, numbers), load("nbytes"))
        return f.address(load("data"), offset, Type("i8"))

    def fetch() -> None:
        address = f.either(fresh, begin_row, lambda: load("next"))
        for k in range(LINES_AT_ONCE):
            line = f.address(address, integer(k * CACHE_LINE_BYTES), Type("i8"))
            f.call("llvm.prefetch.p0", None, line, "i32 0", "i32 3", "i32 1")  # for reading, into the nearest cache
        store("next", f.address(address, integer(LINES_AT_ONCE * CACHE_LINE_BYTES), Type("i8")))
        store("left", f.add(f.select(fresh, load("lines"), left), -LINES_AT_ONCE))

    more = f.binary("or", f.compare("sgt", left, integer(0)), f.compare("sgt", rows, integer(0)))
    f.when(more, fetch)


def prefetch_row(f: Function, first: Value, nbytes: int) -> None:
    """Prefetch the lines of a few bytes from `first` on, which may begin within a line, to write them."""
    for offset in (*range(0, nbytes, CACHE_LINE_BYTES), nbytes - 1):
        line = f.address(first, integer(offset), Type("i8"))
        f.call("llvm.prefetch.p0", None, line, "i32 1", "i32 3", "i32 1")


def prefetch_run(f: Function, first: Value, nbytes: Value, to_write: bool) -> None:
    """Prefetch `nbytes` bytes from `first` on, to read or to write them: then other processors give up their copies."""

    def line(offset: Value, _: list[Value]) -> None:
        f.call("llvm.prefetch.p0", None, f.address(first, offset, Type("i8")), f"i32 {to_write:d}", "i32 3", "i32 1")

    f.loop(integer(0), nbytes, CACHE_LINE_BYTES, line)
