"""Row pointers: large samples are read from the caller's data set in place, without a gather.

If only products read an input, a tile begins with a list of its samples' addresses, and products read the rows through this
list. The rows are in the input itself or, in a loop over batches, in the data set.
"""

from __future__ import annotations

from collections.abc import Iterable

from chains.backends.native.kernels.elementwise import Frame
from chains.backends.native.kernels.prefetch import reads_samples
from chains.backends.native.llvm.emit import I64, PTR, Type, Value, integer
from chains.backends.native.llvm.words import ROW_POINTERS
from chains.program.operations import MatMul, Operation
from chains.program.view import Batch, Buffer, View


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
        f.loop(integer(0), frame.count, 1, lambda i, _: put(i, first, i))

    def by_number() -> None:
        numbers = f.address(ROW_POINTERS.load(f, words, "numbers"), frame.start, I64)
        data = ROW_POINTERS.load(f, words, "data")
        f.loop(integer(0), frame.count, 1, lambda i, _: put(i, data, f.load(I64, f.address(numbers, i, I64))))

    f.when(f.compare("eq", f.load(I64, words), integer(0)), in_order, by_number)
