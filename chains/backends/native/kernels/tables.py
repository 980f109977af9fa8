"""Rows of a table by number: gathered, added to, or updated. A number outside the table stands for its first or last row.

In an update, each thread owns blocks of rows. It adds up the gradients of these rows and updates them. The mark of a row is the
position in the batch where the row's id comes first. Marks need no initial value: a mark is valid only if it leads to an equal
id before the present one (Briggs and Torczon, "An efficient representation for sparse sets", 1993).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chains.backends.native.kernels.elementwise import Frame, evaluate, lower_fill, nest
from chains.backends.native.llvm.emit import I64, Function, Type, Value, integer, number, real_type
from chains.backends.native.operations import INDICES
from chains.lowering.axes import Axis, loops_over
from chains.program.operations import Fill, Gather, ScatterAdd
from chains.program.rows import UpdateRows
from chains.program.view import View


def lower_gather(frame: Frame, operation: Gather) -> None:
    """out[i, ...] = table[index[i], ...]."""
    (out,), (table, index) = operation.outs, operation.ins
    f = frame.f
    target, source = _row(out, index.ndim), _row(table, 1)

    def copy(pointers: list[Value], values: dict[int, Value], type: Type, mask: Value | None) -> list[Value]:
        return [values[1] if 1 in values else f.load(type, pointers[1], mask)]

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
        f.when(begins, lambda: lower_fill(frame, Fill((out,), (), 0.0)))
    target, added = _row(out, 1), _row(source, index.ndim)

    def add(pointers: list[Value], values: dict[int, Value], type: Type, mask: Value | None) -> list[Value]:
        before, x = (values[k] if k in values else f.load(type, pointers[k], mask) for k in (1, 2))
        return [f.binary("fadd", before, x)]

    def put(at: Value, row: Value) -> None:
        nest(frame, loops_over(target.shape, (target, target, added)), [row, row, at], out.dtype, 1, add)

    _each_row(frame, out, index, source, put)


def _row(view: View, axes: int) -> View:
    """The view without its first `axes`."""
    return replace(view, shape=view.shape[axes:], strides=view.strides[axes:])


def _each_row(frame: Frame, table: View, index: View, rows: View, body: Callable[[Value, Value], None]) -> None:
    """Call `body` for each index, with the addresses of its entry of `rows` and of its row of the table."""
    f = frame.f
    whole, real = Type(INDICES[index.dtype]), real_type(table.dtype)

    def run(axis: int, number: Value, entry: Value) -> None:
        if axis < index.ndim:

            def step(i: Value, _: list[Value]) -> None:
                moved = f.address(number, f.mul(i, index.strides[axis]), whole)
                run(axis + 1, moved, f.address(entry, f.mul(i, rows.strides[axis]), real))

            f.loop(integer(0), frame.extent(index.shape[axis]), 1, step)
            return
        n = _row_number(f, number, index, table)
        body(entry, f.address(frame.base(table), f.mul(n, table.strides[0]), real))

    run(0, frame.base(index), frame.base(rows))


def _row_number(f: Function, pointer: Value, index: View, table: View) -> Value:
    """The number at an address, within the rows of the table."""
    whole, last = Type(INDICES[index.dtype]), integer(int(table.shape[0]) - 1)  # type: ignore[arg-type]
    n = f.load(whole, pointer)
    n = n if whole == I64 else f.cast("sext", n, I64)
    n = f.select(f.compare("slt", n, integer(0)), integer(0), n)
    return f.select(f.compare("sgt", n, last), last, n)


Formula = Callable[[list[Value], Type], list[Value]]

BLOCK = 16  # adjacent rows that belong to one thread


def lower_update_rows(frame: Frame, operation: UpdateRows) -> None:
    """This thread's share of an update."""
    _Update(frame, operation, *frame.f.arguments[-2:]).write()


class _Update:
    def __init__(self, frame: Frame, operation: UpdateRows, thread: Value, threads: Value) -> None:
        self.frame, self.f, self.operation = frame, frame.f, operation
        self.thread, self.threads = thread, threads
        self.dtype = operation.gradient.dtype
        self.real = real_type(self.dtype)
        self.rows, self.width = operation.tables[0].sample_shape
        self.count = frame.extent(operation.index.shape[0])
        self.marks = frame.base(operation.marks)

    def write(self) -> None:
        f = self.f
        f.each(self.count, lambda i: self._if_mine(i, self._collect))
        if not self.operation.every:
            f.each(self.count, lambda i: self._if_mine(i, self._update_first))
            return

        def block(k: Value, _: list[Value]) -> None:
            begin = f.mul(k, BLOCK)
            f.loop(begin, f.least(f.add(begin, BLOCK), integer(self.rows)), 1, lambda row, _: self._update_any(row))

        f.loop(self.thread, integer(-(-self.rows // BLOCK)), self.threads, block)

    def _if_mine(self, i: Value, body: Callable[[Value, Value], None]) -> None:
        """Call `body` with a position in the batch and its row, if the row belongs to this thread."""
        f, small = self.f, Type("i32")
        row = self._row(i)
        block = f.cast("trunc", f.binary("lshr", row, integer(BLOCK.bit_length() - 1)), small)
        owner = f.binary("urem", block, f.cast("trunc", self.threads, small))
        f.when(f.compare("eq", owner, f.cast("trunc", self.thread, small)), lambda: body(i, row))

    def _row(self, i: Value) -> Value:
        """The row of the table for the id at a position in the batch."""
        f, index = self.f, self.operation.index
        pointer = f.address(self.frame.base(index), f.mul(i, index.strides[0]), Type(INDICES[index.dtype]))
        return _row_number(f, pointer, index, self.operation.tables[0])

    def _mark(self, row: Value) -> Value:
        return self.f.address(self.marks, row, I64)

    def _found(self, row: Value, before: Value) -> tuple[Value, Value]:
        """The position that a row's mark gives, and whether it is before `before` and has this row's id."""
        f = self.f
        mark = f.load(I64, self._mark(row))
        inside = f.compare("ult", mark, before)
        place = f.select(inside, mark, integer(0))
        return place, f.binary("and", inside, f.compare("eq", self._row(place), row))

    def _gradient(self, place: Value) -> Value:
        """The address of the gradient at a position in the batch, or in a row of a table."""
        gradient = self.operation.gradient
        return self.f.address(self.frame.base(gradient), self.f.mul(place, gradient.strides[0]), self.real)

    def _collect(self, i: Value, row: Value) -> None:
        """Mark the first position of an id, and add the gradients at later positions to its gradient."""
        f, padding = self.f, self.operation.padding
        place, found = self._found(row, i)

        def add() -> None:
            first, other = self._gradient(place), self._gradient(i)
            self._map([first, first, other], 1, [True] * 3, lambda ins, type: [f.binary("fadd", *ins)])

        def clear() -> None:
            self._map([self._gradient(i)], 1, [True], lambda ins, type: [number(type, 0.0)])

        def begin() -> None:
            f.store(i, self._mark(row))
            if self.operation.gradient.batched and padding is not None:
                f.when(f.compare("eq", row, integer(padding)), clear)

        def follow() -> None:
            if self.operation.gradient.batched and padding is not None:
                f.when(f.compare("ne", row, integer(padding)), add)
            elif self.operation.gradient.batched:
                add()

        f.when(found, follow, begin)

    def _update_first(self, i: Value, row: Value) -> None:
        first = self.f.compare("eq", self.f.load(I64, self._mark(row)), i)
        place = i if self.operation.gradient.batched else row
        self.f.when(first, lambda: self._update(row, self._gradient(place)))

    def _update_any(self, row: Value) -> None:
        place, found = self._found(row, self.count)
        zeros = self.f.module.zeros(self.width, self.real)
        self._update(row, self.f.select(found, self._gradient(place), zeros))

    def _update(self, row: Value, gradient: Value) -> None:
        operation, f = self.operation, self.f

        def address(view: View) -> Value:
            base = self.frame.base(view)
            return f.address(base, f.mul(row, view.strides[0]), self.real) if view.ndim else base

        outs, operands = operation.tables, operation.operands
        pointers = [*map(address, outs), gradient, *map(address, operands)]
        varies = [True] * (len(outs) + 1) + [bool(view.ndim) for view in operands]
        self._map(pointers, len(outs), varies, lambda ins, type: evaluate(f, operation.formula, ins, type))

    def _map(self, pointers: list[Value], n_outs: int, varies: list[bool], formula: Formula) -> None:
        """Fill rows with a formula of other rows and of scalars, which are constant along a row."""
        f = self.f

        def body(pointers: list[Value], fixed: dict[int, Value], type: Type, mask: Value | None) -> list[Value]:
            return formula(
                [fixed[k] if k in fixed else f.load(type, pointers[k], mask) for k in range(n_outs, len(pointers))], type
            )

        nest(self.frame, [Axis(self.width, tuple(int(each) for each in varies))], pointers, self.dtype, n_outs, body)
