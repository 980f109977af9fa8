"""Rows of a table taken by number, or added to. A number outside the table stands for its first or last row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chains.backends.native.kernels.elementwise import Frame, loops_over, lower_fill, nest
from chains.backends.native.llvm.emit import I64, Type, Value, integer, real_type
from chains.backends.native.support import INDICES
from chains.program.operations import Gather, ScatterAdd
from chains.program.view import View


def lower_gather(frame: Frame, operation: Gather) -> None:
    """out[i, ...] = table[index[i], ...]."""
    (out,), (table, index) = operation.outs, operation.ins
    f = frame.f
    target, source = _row(out, index.ndim), _row(table, 1)

    def copy(pointers: list[Value], values: dict[int, Value], type: Type, mask: Value | None) -> None:
        f.store(values[1] if 1 in values else f.load(type, pointers[1], mask), pointers[0], mask)

    def take(at: Value, row: Value) -> None:
        nest(frame, loops_over(target.shape, (target, source)), [at, row], out.dtype, 1, copy)

    _each_row(frame, table, index, out, take)


def lower_scatter_add(frame: Frame, operation: ScatterAdd, continued: bool = False) -> None:
    """out[index[i], ...] += source[i, ...].

    The first thread adds to the contents of `out`. Every other thread begins with zeros, unless an earlier operation of the
    tile has begun the sums (`continued`).
    """
    (out,), (index, source) = operation.outs, operation.ins
    f = frame.f
    begins = frame.begins(True, continued)
    if begins is not None:
        f.when(begins, lambda: lower_fill(frame, out, 0.0))
    target, added = _row(out, 1), _row(source, index.ndim)

    def add(pointers: list[Value], values: dict[int, Value], type: Type, mask: Value | None) -> None:
        x = values[1] if 1 in values else f.load(type, pointers[1], mask)
        f.store(f.binary("fadd", f.load(type, pointers[0], mask), x), pointers[0], mask)

    def put(at: Value, row: Value) -> None:
        nest(frame, loops_over(target.shape, (target, added)), [row, at], out.dtype, 1, add)

    _each_row(frame, out, index, source, put)


def _row(view: View, axes: int) -> View:
    """The view without its first `axes`."""
    return replace(view, shape=view.shape[axes:], strides=view.strides[axes:])


def _each_row(frame: Frame, table: View, index: View, rows: View, body: Callable[[Value, Value], None]) -> None:
    """Call `body` for each index, with the addresses of its entry of `rows` and of its row of the table."""
    f = frame.f
    whole, real = Type(INDICES[index.dtype]), real_type(table.dtype)
    last = integer(int(table.shape[0]) - 1)  # type: ignore[arg-type]

    def run(axis: int, number: Value, entry: Value) -> None:
        if axis < index.ndim:

            def step(i: Value, _: list[Value]) -> None:
                moved = f.address(number, f.mul(i, index.strides[axis]), whole)
                run(axis + 1, moved, f.address(entry, f.mul(i, rows.strides[axis]), real))

            f.loop(integer(0), frame.extent(index.shape[axis]), 1, step)
            return
        n = f.load(whole, number)
        n = n if whole == I64 else f.cast("sext", n, I64)
        n = f.select(f.compare("slt", n, integer(0)), integer(0), n)
        n = f.select(f.compare("sgt", n, last), last, n)
        body(entry, f.address(frame.base(table), f.mul(n, table.strides[0]), real))

    run(0, frame.base(index), frame.base(rows))
