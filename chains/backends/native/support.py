"""The limits of the lowerings: the operations that the native backend supports. Lowerings themselves need not check them."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import numpy as np

from chains.backends.base import cannot_run
from chains.program.alias import across, overlap, reach
from chains.program.all_reduce import AllReduce
from chains.program.loop import Loop
from chains.program.operations import (
    BatchMatMul,
    Convolve,
    ConvolveInput,
    ConvolveWeight,
    Copy,
    Fill,
    Gather,
    Map,
    MatMul,
    Operation,
    Pool,
    PoolInput,
    Random,
    Reduce,
    ScatterAdd,
)
from chains.program.program import Program
from chains.program.rows import UpdateRows
from chains.program.view import Batch, View

MIN_GATHERED_WEIGHTS = 1 << 20  # of a product that is worth a plan of its own
MIN_GATHERED_SAMPLES = 32  # fewer are a few tiles
MAX_GATHERED_BYTES = 256 << 20  # of what has to be kept for the whole batch
IMAGES = (Convolve, ConvolveInput, ConvolveWeight, Pool)
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
INDICES = {np.dtype(np.int32): "i32", np.dtype(np.int64): "i64"}  # types of row numbers, with LLVM's names


_reasons: WeakKeyDictionary[Program, str | None] = WeakKeyDictionary()  # kept, since networks of one structure share programs
_most_gathered: WeakKeyDictionary[Program, int] = WeakKeyDictionary()


def unsupported(program: Program) -> str | None:
    """The reason why a program is not supported, in a sentence; None if it is supported."""
    if program not in _reasons:
        _reasons[program] = _reason(program)
    return _reasons[program]


def gathers(program: Program, batch: int | None) -> bool:
    """Whether products of very many weights behind images see the whole batch: each tile would go through all weights.

    What the operations on images need for their gradients is then kept for all samples, so the batch must not be too large.
    """
    if batch is None or batch < MIN_GATHERED_SAMPLES:
        return False
    if program not in _most_gathered:
        _most_gathered[program] = _most_samples(program)
    return batch <= _most_gathered[program]


def _most_samples(program: Program) -> int:
    """The most samples whose intermediates are kept for such products; 0 for programs without them, or without images."""
    products = [operation for operation in program.operations if isinstance(operation, MatMul)]
    largest = max((v.sample_size for product in products for v in product.views if not v.batched), default=0)
    if largest < MIN_GATHERED_WEIGHTS or not any(isinstance(each, IMAGES) for each in program.operations):
        return 0
    buffers = {view.buffer for operation in program.operations for view in operation.views if view.batched}
    return MAX_GATHERED_BYTES // sum(buffer.nbytes for buffer in buffers)


def _reason(program: Program) -> str | None:
    for operation in program.operations:
        why = _why(operation)
        if why is not None:
            return cannot_run("native", operation, why)
    return None


def _why(operation: Operation) -> str | None:
    """The reason why an operation is not supported; None if it is supported, empty if none of its kind is."""
    limit = LIMITS.get(type(operation))
    return "" if limit is None else limit(operation)


def _loop(operation: Operation) -> str | None:
    """A loop over samples runs tile by tile, so each step must be on samples, and on one sample at a time."""
    assert isinstance(operation, Loop)
    for each in operation.body:
        if isinstance(each, IMAGES):
            return f"`{each.name}` is in a loop"
        if operation.batched and not each.batched:
            return f"`{each}` is on no samples, in a loop over these"
        fixed = [view for view in each.ins if isinstance(each, MatMul) and not view.batched]
        if any(view.loop_strides for view in fixed) and operation.batched:
            return f"`{each}` has weights that advance"
        why = _why(each)
        if why is not None:
            return f"`{each.name}` in a loop: {why}" if why else f"`{each.name}` in a loop"
    return _sums_in_loop(operation)


def _sums_in_loop(loop: Loop) -> str | None:
    """A tile adds its part to sums over samples, which no step of the loop may read, and of which each has its own place."""
    known: list[View] = []
    read = [view.buffer for each in loop.body for view in each.ins]
    for each in loop.body:
        for view, kind, accumulates in each.totals:
            begun = any(overlap(view, other) for other in known)
            if view.buffer in read:
                return f"`{view}`, which is over all samples, is read in a loop"
            if kind != "sum" or (begun and not (accumulates and view in known)):
                return f"`{each}` is over all samples, in a loop"
            start, stop = reach(view.over(loop.depth, 1))
            if not accumulates and loop.steps > 1 and abs(view.loop_stride(loop.depth)) < stop - start:
                return f"`{view}`, which is over all samples, is computed anew in a loop"
            known.append(view)
    return None


def _one_type(operation: Operation) -> str | None:
    kinds = dict.fromkeys(view.dtype for view in operation.views)
    if len(kinds) == 1 and next(iter(kinds)) in FLOATS:
        return None
    return f"operands must be of one type, float32 or float64, not {' and '.join(map(str, kinds))}"


def _floats(operation: Operation) -> str | None:
    return None if all(view.dtype in FLOATS for view in operation.views) else _one_type(operation)


def _matmul(operation: Operation) -> str | None:
    in_columns = isinstance(operation.outs[0].shape[1], Batch)
    return "samples must lie in rows, not in columns" if in_columns else _one_type(operation)


def _map(operation: Operation) -> str | None:
    if all(view.ndim == 0 for view in operation.views):  # computed in double precision
        return _floats(operation)
    for out in operation.outs:
        if any(across(view, out) for view in operation.ins):
            return f"`{out}` cannot be written across an operand"
    return _one_type(operation)


def _copy(operation: Operation) -> str | None:
    (out,), (a,) = operation.outs, operation.ins
    if out.dtype == a.dtype:
        return None if out.dtype.itemsize in (4, 8) else f"there is no code for {out.dtype}"
    if out.ndim == a.ndim == 0:
        return _floats(operation)
    return f"{a.dtype} cannot be converted to {out.dtype} in a copy"


def _random(operation: Operation) -> str | None:
    (out,) = operation.outs
    if out.dtype not in FLOATS:
        return f"there is no code for {out.dtype}"
    return None if out.contiguous else f"`{out}` has gaps"


def _all_reduce(operation: Operation) -> str | None:
    (out,) = operation.outs
    return None if out.dtype in FLOATS else f"there is no code for {out.dtype}"


def _rows(table: View, index: View, rows: View) -> str | None:
    if index.dtype not in INDICES:
        return f"`{index}` must hold int32 or int64, not {index.dtype}"
    if table.dtype != rows.dtype or table.dtype not in FLOATS:
        return f"`{table}` and `{rows}` must be of one type, float32 or float64, not {table.dtype} and {rows.dtype}"
    return f"the table `{table}` has samples" if table.batched else "a table without rows" if table.shape[0] == 0 else None


def _gather(operation: Operation) -> str | None:
    return _rows(*operation.ins, *operation.outs)


def _scatter_add(operation: Operation) -> str | None:
    return _rows(*operation.outs, *operation.ins)


def _update_rows(operation: Operation) -> str | None:
    assert isinstance(operation, UpdateRows)
    table = operation.tables[0]
    return _rows(table, operation.index, table)


# For each supported kind of operation, a function that returns why one is not supported, or None.
LIMITS: dict[type[Operation], Callable[[Operation], str | None]] = {
    MatMul: _matmul,
    BatchMatMul: _one_type,
    Map: _map,
    Reduce: _one_type,
    Convolve: _one_type,
    ConvolveInput: _one_type,
    ConvolveWeight: _one_type,
    Pool: _one_type,
    PoolInput: _one_type,
    Gather: _gather,
    ScatterAdd: _scatter_add,
    UpdateRows: _update_rows,
    Random: _random,
    AllReduce: _all_reduce,
    Copy: _copy,
    Fill: _one_type,
    Loop: _loop,
}
