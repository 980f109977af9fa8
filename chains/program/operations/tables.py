"""Rows of a table, by their numbers."""

from __future__ import annotations

from typing import Any

from chains.program.operations.base import Operation
from chains.program.view import View


class Gather(Operation):
    """out[i, ...] = table[index[i], ...] for the operands (table, index); an index out of range means the nearest row."""

    linear_in = (0,)

    def check(self) -> None:
        super().check()
        _check_rows(self.name, *self.ins, *self.outs)

    def transpose(self, t: Any) -> None:
        table, index = self.ins
        d, target = t.take(self.outs[0]), t.cotangent(table)
        t.complete(target)
        t.ops.scatter_add(target, t.value(index), d)


class ScatterAdd(Operation):
    """out[index[i], ...] += source[i, ...] for the operands (index, source), with indices out of range as in `Gather`."""

    linear_in = (1,)

    @property
    def accumulates(self) -> bool:
        return True

    def check(self) -> None:
        super().check()
        _check_rows(self.name, *self.outs, *self.ins)

    def transpose(self, t: Any) -> None:
        index, source = self.ins
        if t.is_active(source):
            d = t.take(self.outs[0])
            t.fill(source, lambda target: t.ops.gather(target, d, t.value(index)))


def _check_rows(name: str, table: View, index: View, rows: View) -> None:
    if index.dtype.kind not in "iu" or not table.ndim or rows.shape != (*index.shape, *table.shape[1:]):
        raise ValueError(f"{name}: rows {rows.text} do not fit the table {table.text} and {index.dtype} numbers {index.text}")
