"""What the native backend knows of each operation: its limits, its kernels, and what the passes of a plan ask. One record each.

An operation has no other place in this backend but the module of its kernel. Kernels are named here, and loaded when a program
is compiled: about thirty modules write assembly, and most processes find all their programs on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from chains.program import operations as ops
from chains.program.alias import across, overlap, reach
from chains.program.loop import Loop
from chains.program.rows import UpdateRows
from chains.program.view import Batch, View

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
INDICES = {np.dtype(np.int32): "i32", np.dtype(np.int64): "i64"}  # types of row numbers, with LLVM's names
KERNELS = "chains.backends.native.kernels"

Limit = Callable[[Any], str | None]  # why an operation is not supported, in a sentence; None if it is


# The operations of this backend's own plans


@dataclass(frozen=True)
class Relayout(ops.Operation):
    """out = the operand in the other layout: one is laned, the other is not. Both have the axes (samples, channels, rest)."""

    to_lanes: bool


class Solve(ops.Operation):
    """out, (samples, n, m), with ``matrix @ out = right``."""


# Records


@dataclass(frozen=True)
class Lazy:
    """A function of a module of kernels, which is loaded at the first call."""

    module: str
    name: str

    @cached_property
    def loaded(self) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(import_module(f"{KERNELS}.{self.module}"), self.name)
        return found

    def __call__(self, *arguments: Any) -> Any:
        return self.loaded(*arguments)


def _operation(step: Any) -> tuple[Any, ...]:
    return (step.operation,)


@dataclass(frozen=True)
class Kernel(Lazy):
    """The kernel of an operation. It takes a frame, and what `gives` finds in the `PlanStep`: by default, its operation."""

    gives: Callable[[Any], tuple[Any, ...]] = _operation

    def write(self, frame: Any, step: Any) -> None:
        """Write the code of a step."""
        self(frame, *self.gives(step))


class SamplesLast(Kernel):
    """A kernel for samples in rows, for samples in lanes: the samples of a tile become the last axis of its operands."""

    def write(self, frame: Any, step: Any) -> None:
        super().write(frame, replace(step, operation=_SAMPLES_LAST(frame, step.operation)))


_SAMPLES_LAST = Lazy("images", "samples_last")


class Packing(NamedTuple):
    """Weights that a kernel reads from a copy. `place(operation, lanes, small_tiles)` gives them, the shape of the copy and the
    part of it that they fill, or None; `pack` writes the copy.
    """

    place: Lazy
    pack: Kernel


@dataclass(frozen=True)
class Record:
    """What this backend knows of an operation.

    Parameters
    ----------
    limit : callable, optional
        Why one is not supported, in a sentence, or None. Operations of this backend's own plans have no limit.
    rows, lanes : Kernel, optional
        The kernels for samples in rows and for samples in lanes (`plan/layout.py`). With both, an operation keeps the layout of
        its operands. With `lanes` alone it is one of images: its operands are brought into lanes, and loops have none.
    by_rows : bool
        Whether the kernel goes row by row, so that rows of scratch memory may be padded to whole vectors.
    shares_code : bool
        Whether steps that differ only in the addresses of their operands share the code of one of them.
    whole_batch, in_order : bool
        Whether it sees the whole batch instead of tiles; whether all processes do such operations in the order of the program.
    fuses, workspace : Lazy, optional
        ``fuses(operation, fused, candidate, lanes, registers)``: whether one more map, or a pool, is applied to the results in
        registers; ``workspace(operation, lanes, registers)``: elements of memory that a thread needs for itself.
    packing : Packing, optional
        The weights that it reads from a copy.
    """

    limit: Limit | None
    rows: Kernel | None = None
    lanes: Kernel | None = None
    by_rows: bool = False
    shares_code: bool = False
    whole_batch: bool = False
    in_order: bool = False
    fuses: Lazy | None = None
    workspace: Lazy | None = None
    packing: Packing | None = None

    @property
    def of_images(self) -> bool:
        return self.rows is None

    @property
    def functions(self) -> Iterator[Lazy]:
        """All functions that the record names."""
        for each in (*vars(self).values(), *(self.packing or ())):
            if isinstance(each, Lazy):
                yield each


def record_of(operation: ops.Operation) -> Record:
    """The record of an operation that is supported, or of this backend's own."""
    return RECORDS[type(operation)]


def load_kernels() -> None:
    """Load the modules of all kernels."""
    for record in RECORDS.values():
        for function in record.functions:
            import_module(f"{KERNELS}.{function.module}")


def refusal(operation: ops.Operation) -> str | None:
    """The reason why an operation is not supported; None if it is supported, empty if none of its kind is."""
    record = RECORDS.get(type(operation))
    return "" if record is None or record.limit is None else record.limit(operation)


# Limits: kernels need not check them


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


def _loop(operation: Loop) -> str | None:
    """A loop over samples runs tile by tile, so each step must be on samples, and on one sample at a time."""
    for each in operation.body:
        record = RECORDS.get(type(each))
        if record and record.of_images:
            return f"`{each.name}` is in a loop"
        if operation.batched and not each.batched:
            return f"`{each}` is on no samples, in a loop over these"
        fixed = [view for view in each.ins if isinstance(each, ops.MatMul) and not view.batched]
        if any(view.loop_strides for view in fixed) and operation.batched:
            return f"`{each}` has weights that advance"
        why = refusal(each)
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


# The table


def _elementwise(limit: Limit, kernel: str, lanes: Kernel | None = None) -> Record:
    lanes = lanes or SamplesLast("elementwise", kernel)
    return Record(limit, Kernel("elementwise", kernel), lanes, by_rows=True, shares_code=True)


def _convolution() -> Record:
    return Record(
        _one_type,
        lanes=Kernel("convolutions", "lower_convolution", lambda s: (s.operation, s.packed.copy, s.fused, s.transient)),
        fuses=Lazy("convolutions", "fusible"),
        workspace=Lazy("winograd", "workspace"),
        packing=Packing(
            Lazy("convolutions", "packed"),
            Kernel("convolutions", "pack", lambda s: (s.operation, s.packed.copy, s.fused)),
        ),
    )


_POOL = Record(_one_type, lanes=Kernel("images", "lower_pool"))
RECORDS: dict[type[ops.Operation], Record] = {
    ops.MatMul: Record(
        _matmul,
        rows=Kernel("matmul", "lower_matmul", lambda step: (step.fused_product,)),
        by_rows=True,
        shares_code=True,
        fuses=Lazy("products", "fusible"),
        packing=Packing(Lazy("products", "packed"), Kernel("products", "pack", lambda step: step.packed or ())),
    ),
    ops.BatchMatMul: Record(_one_type, rows=Kernel("matmul", "lower_batch_matmul"), workspace=Lazy("matmul", "workspace")),
    ops.Map: _elementwise(_map, "lower_map"),
    ops.Reduce: _elementwise(_one_type, "lower_reduce", lanes=Kernel("images", "lower_laned_reduce")),
    ops.Copy: _elementwise(_copy, "lower_copy"),
    ops.Fill: _elementwise(_one_type, "lower_fill"),
    ops.Convolve: _convolution(),
    ops.ConvolveInput: _convolution(),
    ops.ConvolveWeight: Record(
        _one_type, lanes=Kernel("convolutions", "lower_weight"), workspace=Lazy("winograd", "weight_workspace")
    ),
    ops.Pool: _POOL,
    ops.PoolInput: _POOL,
    ops.Gather: Record(lambda gather: _rows(*gather.ins, *gather.outs), Kernel("tables", "lower_gather"), shares_code=True),
    ops.ScatterAdd: Record(
        lambda scatter: _rows(*scatter.outs, *scatter.ins),
        Kernel("tables", "lower_scatter_add", lambda step: (step.operation, step.continued)),
        shares_code=True,
    ),
    UpdateRows: Record(
        lambda update: _rows(update.tables[0], update.index, update.tables[0]),
        Kernel("tables", "lower_update_rows"),
        whole_batch=True,
    ),
    ops.Random: Record(_random, Kernel("elementwise", "lower_random")),
    ops.AllReduce: Record(_result, Kernel("elementwise", "lower_all_reduce"), in_order=True),
    Loop: Record(_loop, Kernel("steps", "lower_steps_of_loop", lambda step: (step,))),
    Relayout: Record(None, Kernel("images", "lower_relayout")),
    Solve: Record(None, Kernel("solve", "lower_solve"), workspace=Lazy("solve", "workspace")),
}
LOWERED = frozenset(kind for kind, record in RECORDS.items() if record.limit)  # the operations of programs
