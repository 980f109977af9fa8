"""The limits of the lowerings: the operations that the native backend supports. Lowerings themselves need not check them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from chains.backends.base import cannot_run
from chains.program import operations as ops
from chains.program.alias import across, overlap, reach
from chains.program.loop import Loop
from chains.program.operations import AllReduce
from chains.program.program import Program
from chains.program.rows import UpdateRows
from chains.program.view import Batch, View

MIN_GATHERED_WEIGHTS = 1 << 20  # of a product that is worth a separate plan
MIN_GATHERED_SAMPLES = 32  # fewer are a few tiles
MAX_GATHERED_BYTES = 256 << 20  # of what has to be kept for the whole batch
IMAGES = (ops.Convolve, ops.ConvolveInput, ops.ConvolveWeight, ops.Pool)
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
INDICES = {np.dtype(np.int32): "i32", np.dtype(np.int64): "i64"}  # types of row numbers, with LLVM's names
T = TypeVar("T")


def per_program(compute: Callable[[Program], T]) -> Callable[[Program], T]:
    """The function, whose result is kept with the program: networks of one structure share programs."""
    results: WeakKeyDictionary[Program, T] = WeakKeyDictionary()

    @wraps(compute)
    def kept(program: Program) -> T:
        if program not in results:
            results[program] = compute(program)
        return results[program]

    return kept


@per_program
def unsupported(program: Program) -> str | None:
    """The reason why a program is not supported, in a sentence; None if it is supported."""
    reasons = ((operation, _why(operation)) for operation in program.operations)
    return next((cannot_run("native", operation, why) for operation, why in reasons if why is not None), None)


def gathers(program: Program, batch: int | None) -> bool:
    """Whether products of very many weights, in a network of images, see the whole batch: each tile would read all weights.

    The intermediates of the operations on images are then kept for all samples, so the batch must not be too large.
    """
    return batch is not None and MIN_GATHERED_SAMPLES <= batch <= _max_gathered(program)


@per_program
def _max_gathered(program: Program) -> int:
    """The most samples whose intermediates are kept for such products; 0 for programs without them, or without images."""
    products = [operation for operation in program.operations if isinstance(operation, ops.MatMul)]
    largest = max((v.sample_size for product in products for v in product.views if not v.batched), default=0)
    if largest < MIN_GATHERED_WEIGHTS or not any(isinstance(each, IMAGES) for each in program.operations):
        return 0
    buffers = {view.buffer for operation in program.operations for view in operation.views if view.batched}
    return MAX_GATHERED_BYTES // sum(buffer.nbytes for buffer in buffers)


def _why(operation: ops.Operation) -> str | None:
    """The reason why an operation is not supported; None if it is supported, empty if none of its kind is."""
    limit = LIMITS.get(type(operation))
    return "" if limit is None else limit(operation)


def _loop(operation: Loop) -> str | None:
    """A loop over samples runs tile by tile, so each step must be on samples, and on one sample at a time."""
    for each in operation.body:
        if isinstance(each, IMAGES):
            return f"`{each.name}` is in a loop"
        if operation.batched and not each.batched:
            return f"`{each}` is on no samples, in a loop over these"
        fixed = [view for view in each.ins if isinstance(each, ops.MatMul) and not view.batched]
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


def _one_type(operation: ops.Operation) -> str | None:
    kinds = dict.fromkeys(view.dtype for view in operation.views)
    if len(kinds) == 1 and next(iter(kinds)) in FLOATS:
        return None
    return f"operands must be of one type, float32 or float64, not {' and '.join(map(str, kinds))}"


def _floats(operation: ops.Operation) -> str | None:
    return None if all(view.dtype in FLOATS for view in operation.views) else _one_type(operation)


def _matmul(operation: ops.Operation) -> str | None:
    in_columns = isinstance(operation.outs[0].shape[1], Batch)
    return "samples must be in rows, not in columns" if in_columns else _one_type(operation)


def _map(operation: ops.Operation) -> str | None:
    if all(view.ndim == 0 for view in operation.views):  # computed in double precision
        return _floats(operation)
    for out in operation.outs:
        if any(across(view, out) for view in operation.ins):
            return f"`{out}` cannot be written across an operand"
    return _one_type(operation)


def _copy(operation: ops.Operation) -> str | None:
    (out,), (a,) = operation.outs, operation.ins
    if out.dtype == a.dtype:
        return None if out.dtype.itemsize in (4, 8) else f"there is no code for {out.dtype}"
    if out.ndim == a.ndim == 0:
        return _floats(operation)
    return f"{a.dtype} cannot be converted to {out.dtype} in a copy"


def _result(operation: ops.Operation) -> str | None:
    (out,) = operation.outs
    return None if out.dtype in FLOATS else f"there is no code for {out.dtype}"


def _random(operation: ops.Operation) -> str | None:
    (out,) = operation.outs
    return _result(operation) or (None if out.contiguous else f"`{out}` has gaps")


def _rows(table: View, index: View, rows: View) -> str | None:
    if index.dtype not in INDICES:
        return f"`{index}` must hold int32 or int64, not {index.dtype}"
    if table.dtype != rows.dtype or table.dtype not in FLOATS:
        return f"`{table}` and `{rows}` must be of one type, float32 or float64, not {table.dtype} and {rows.dtype}"
    return f"the table `{table}` has samples" if table.batched else "a table without rows" if table.shape[0] == 0 else None


# For each supported kind of operation, a function that returns why one is not supported, or None.
LIMITS: dict[type[ops.Operation], Callable[[Any], str | None]] = {
    ops.MatMul: _matmul,
    ops.BatchMatMul: _one_type,
    ops.Map: _map,
    ops.Reduce: _one_type,
    ops.Convolve: _one_type,
    ops.ConvolveInput: _one_type,
    ops.ConvolveWeight: _one_type,
    ops.Pool: _one_type,
    ops.PoolInput: _one_type,
    ops.Gather: lambda gather: _rows(*gather.ins, *gather.outs),
    ops.ScatterAdd: lambda scatter: _rows(*scatter.outs, *scatter.ins),
    UpdateRows: lambda update: _rows(update.tables[0], update.index, update.tables[0]),
    ops.Random: _random,
    AllReduce: _result,
    ops.Copy: _copy,
    ops.Fill: _one_type,
    Loop: _loop,
}
