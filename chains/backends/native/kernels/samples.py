"""Large samples: read from the caller's data set in place, and loaded into the cache a step ahead.

If only products read an input, a tile begins with a list of its samples' addresses (row pointers), and products read the rows
through this list, without a gather. The rows are in the input itself or, in a loop over batches, in the data set.

Prefetching loads the samples of the next step into the cache while this step is computed. Scattered rows of a large data set
come from memory. A processor can have only a limited number of loads under way, and stalls when they are late. So the products
that read this step's samples, in the forward pass and in the gradient, regularly prefetch a few lines of the next samples. This
spreads the loads over the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.llvm.emit import I64, PTR, Function, Type, Value, integer
from chains.backends.native.llvm.struct import CACHE_LINE_BYTES, PREFETCH, ROW_POINTERS
from chains.program.operations import MatMul, Operation
from chains.program.view import Batch, Buffer, View

LINES_AT_ONCE = 5  # cache lines per prefetch
MIN_SAMPLE_BYTES = 512  # bytes of a sample: for smaller ones the processor's own prefetching is enough


def reads_samples(view: View) -> bool:
    """Whether a view is the caller's samples, and these are large."""
    return view.buffer.role == "input" and view.batched and view.buffer.nbytes >= MIN_SAMPLE_BYTES


def begin_prefetch(frame: Frame, rows: Value, numbers: Value) -> None:
    """Set the samples to prefetch."""
    assert frame.prefetch is not None
    PREFETCH.store(frame.f, frame.prefetch, left=integer(0), rows=rows, numbers=numbers)


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
        store(numbers=f.address(numbers, integer(1), I64), rows=f.add(rows, -1))
        offset = f.binary("mul", f.load(I64, numbers), load("nbytes"))
        return f.address(load("data"), offset, Type("i8"))

    def fetch() -> None:
        address = f.either(fresh, begin_row, lambda: load("next"))
        for k in range(LINES_AT_ONCE):
            f.prefetch(f.address(address, integer(k * CACHE_LINE_BYTES), Type("i8")))
        store(next=f.address(address, integer(LINES_AT_ONCE * CACHE_LINE_BYTES), Type("i8")))
        store(left=f.add(f.select(fresh, load("lines"), left), -LINES_AT_ONCE))

    more = f.binary("or", f.compare("sgt", left, integer(0)), f.compare("sgt", rows, integer(0)))
    f.when(more, fetch)


def prefetch_row(f: Function, first: Value, nbytes: int) -> None:
    """Prefetch the lines of a few bytes from `first` on, which may begin within a line, to write them."""
    for offset in (*range(0, nbytes, CACHE_LINE_BYTES), nbytes - 1):
        f.prefetch(f.address(first, integer(offset), Type("i8")), to_write=True)


def prefetch_run(f: Function, first: Value, nbytes: Value, to_write: bool) -> None:
    """Prefetch `nbytes` bytes from `first` on, to read or to write them: then other processors give up their copies."""

    def line(offset: Value, _: list[Value]) -> None:
        f.prefetch(f.address(first, offset, Type("i8")), to_write)

    f.loop(integer(0), nbytes, CACHE_LINE_BYTES, line)


def indexed_input(tiled: Iterable[Operation], others: Iterable[Operation]) -> Buffer | None:
    """The input whose samples every tile lists; None if there is none."""
    products: dict[Buffer, bool] = {}
    for operation in tiled:
        for view in operation.views:
            if reads_samples(view):
                fits = isinstance(operation, MatMul) and has_rows(view)
                products[view.buffer] = products.get(view.buffer, True) and fits
    touched = {view.buffer for operation in others for view in operation.views}
    found = [buffer for buffer, fits in products.items() if fits and buffer not in touched]
    return max(found, key=lambda buffer: buffer.nbytes, default=None)


def has_rows(view: View) -> bool:
    """Whether a matrix has one sample in each row, or in each column."""
    return view.ndim == 2 and any(
        extent == Batch() and stride == view.buffer.size for extent, stride in zip(view.shape, view.strides, strict=True)
    )


def list_rows(frame: Frame, samples: View, words: Value) -> None:
    """Write the addresses of a tile's samples."""
    f = frame.f
    assert frame.rows is not None
    list, byte, nbytes = frame.rows.pointers, Type("i8"), samples.buffer.nbytes

    def put(i: Value, data: Value, number: Value) -> None:
        f.store(f.address(data, f.mul(number, nbytes), byte), f.address(list, i, PTR))

    def in_order() -> None:
        first = frame.base(samples)
        f.each(frame.count, lambda i: put(i, first, i))

    def by_number() -> None:
        numbers = f.address(ROW_POINTERS.load(f, words, "numbers"), frame.start, I64)
        data = ROW_POINTERS.load(f, words, "data")
        f.each(frame.count, lambda i: put(i, data, f.load(I64, f.address(numbers, i, I64))))

    f.when(f.compare("eq", f.load(I64, words), integer(0)), in_order, by_number)
