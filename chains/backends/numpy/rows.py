"""Updates of table rows as NumPy calls: the rows of the ids are gathered, updated and written back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from chains.backends.numpy.formulas import CallSequence, sequence_calls
from chains.backends.numpy.memory import Memory
from chains.program.rows import UpdateRows

Call = Callable[[], Any]
FIRST = 1 << 10  # the number of the first of these temporary arrays, behind those of formulas

FormulaCalls = Callable[[Memory, CallSequence, Sequence[np.ndarray], Sequence[np.ndarray]], list[Call]]


def update_rows(memory: Memory, operation: UpdateRows, formula_calls: FormulaCalls) -> list[Call]:
    """The calls of an update; `formula_calls` makes the calls of its formula."""
    return _Update(memory, operation).calls(formula_calls)


class _Update:
    def __init__(self, memory: Memory, operation: UpdateRows) -> None:
        self.memory, self.operation = memory, operation
        self.tables = [memory.array(view) for view in operation.tables]
        self.index, self.gradient = memory.array(operation.index), memory.array(operation.gradient)
        self.inside = self._temporary(self.index.shape, self.index.dtype)  # `gather` clips too

    def _temporary(self, shape: tuple[int, ...], dtype: Any, number: int = 0) -> np.ndarray:
        return self.memory.temporary(shape, dtype, FIRST + number)

    def calls(self, formula_calls: FormulaCalls) -> list[Call]:
        calls: list[Call] = [partial(np.clip, self.index, 0, len(self.tables[0]) - 1, self.inside)]
        if self.operation.every:
            total = self._temporary(self.tables[0].shape, self.tables[0].dtype)
            calls += [partial(total.fill, 0), partial(np.add.at, total, self.inside, self.gradient)]
            if self.operation.padding is not None:
                calls.append(partial(total[self.operation.padding].fill, 0))
            operands = [self.memory.array(view) for view in self.operation.operands]
            return calls + formula_calls(self.memory, self._sequence(total, operands), self.tables, [total, *operands])
        rows = [self._temporary((*self.index.shape, *self.tables[0].shape[1:]), self.tables[0].dtype)]
        calls += self._sums(rows[0]) if self.operation.gradient.batched else [self._taken(self.gradient, self.inside, rows[0])]
        operands = []
        for view in self.operation.operands:
            operand = self.memory.array(view)
            if operand.ndim:
                rows.append(self._temporary(rows[0].shape, operand.dtype, len(rows)))
                calls.append(self._taken(operand, self.inside, rows[-1]))
            operands.append(rows[-1] if operand.ndim else operand)
        outs = []
        for view in self.operation.tables:
            if view in self.operation.operands:
                outs.append(operands[self.operation.operands.index(view)])
            else:
                rows.append(self._temporary(rows[0].shape, view.dtype, len(rows)))
                outs.append(rows[-1])
        calls += formula_calls(self.memory, self._sequence(rows[0], operands), outs, [rows[0], *operands])
        # Equal ids have equal rows, so it does not matter which is written last.
        return calls + [partial(table.__setitem__, self.inside, made) for table, made in zip(self.tables, outs, strict=True)]

    def _sums(self, out: np.ndarray) -> list[Call]:
        """For each entry of the index, the sum of the gradients of all entries with the same id."""
        marks = self.memory.array(self.operation.marks)
        same = self._temporary(self.index.shape, marks.dtype, 1)  # the position of one of the equal ids
        total = self._temporary(out.shape, out.dtype, FIRST)  # beside the rows
        calls: list[Call] = [
            partial(marks.__setitem__, self.inside, np.arange(len(self.index))),
            self._taken(marks, self.inside, same),
            partial(total.fill, 0),
            partial(np.add.at, total, same, self.gradient),
            self._taken(total, same, out),
        ]
        if self.operation.padding is not None:
            padded = self._temporary(self.index.shape, np.bool_)
            calls.append(partial(np.equal, self.inside, self.operation.padding, padded))
            calls.append(partial(np.copyto, out, 0, "same_kind", padded[:, np.newaxis]))
        return calls

    @staticmethod
    def _taken(table: np.ndarray, index: np.ndarray, out: np.ndarray) -> Call:
        return partial(np.take, table, index, 0, out, "clip")  # "clip": with "raise", NumPy buffers the result

    def _sequence(self, gradient: np.ndarray, operands: Sequence[np.ndarray]) -> CallSequence:
        """The sequence of the formula's calls. A result overwrites the operand that is the same table."""
        views, formula = self.operation.operands, self.operation.formula
        conflicts = [["apart", *("same" if view == out else "apart" for view in views)] for out in self.operation.tables]
        shapes = [array.shape for array in (gradient, *operands)]
        return sequence_calls(formula, self.memory.program.dtype, shapes, gradient.shape, conflicts, {}, {0})
