"""Updates of table rows: a step of an optimiser on an embedding, whose gradient has only a few rows, those of its ids.

The gradient of an embedding is, for each id, a sum of rows of a cotangent. A dense step would fill a vector as long as the
table with zeros, add the rows, and read the whole vector. `row_gradients` finds such gradients among the recorded operations;
`update_of_rows` merges one with the maps of an optimiser into one operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from chains.expr import Formula, trace, where
from chains.expr.formulas import Instruction
from chains.program.alias import overlap
from chains.program.operations import Fill, Map, Operation, ScatterAdd
from chains.program.view import View, scratch_like

_CHOICE = trace(lambda count, new, old: where(count > 0.0, new, old))


@dataclass(frozen=True)
class UpdateRows(Operation):
    """tables[r] = formula(gradient[r], operands[r]) for the rows r in the index or, with `every`, for all rows.

    `ins` are the index, the gradient and the operands. Each operand is a table or a scalar. The gradient is a table too, or it
    has a row for each entry of the index: rows of equal entries are added up, rows of `padding` count as zeros. `outs` are
    the tables; marks, a whole number for each row of a table, with any initial values; and a gradient with a row for each
    entry, which is overwritten. An index out of range means the nearest row.
    """

    formula: Formula
    every: bool = False
    padding: int | None = None

    @property
    def over_batch(self) -> str | None:
        return "whole"

    @property
    def name(self) -> str:
        return "update_rows"

    @property
    def reads(self) -> tuple[View, ...]:
        return self.ins if self.every else self.ins + self.tables  # rows without an id keep their contents

    @property
    def tables(self) -> tuple[View, ...]:
        return self.outs[: len(self.formula.outputs)]

    @property
    def marks(self) -> View:
        return self.outs[len(self.formula.outputs)]

    @property
    def index(self) -> View:
        return self.ins[0]

    @property
    def gradient(self) -> View:
        return self.ins[1]

    @property
    def operands(self) -> tuple[View, ...]:
        return self.ins[2:]

    def in_parts(self) -> list[Operation]:
        """The same update as several other operations on all rows."""
        table = self.tables[0]
        gradient, parts = self.gradient, list[Operation]()
        if gradient.batched:
            gradient = scratch_like(table, "gradient of rows")
            parts += [Fill((gradient,), (), 0.0), ScatterAdd((gradient,), (self.index, self.gradient))]
            if self.padding is not None:
                parts.append(Fill((gradient.slice(0, self.padding, self.padding + 1),), (), 0.0))
        ins = (gradient, *self.operands)
        if self.every:
            parts.append(Map(self.tables, ins, self.formula))
        else:
            ones, counts = scratch_like(self.index, "ones", table.dtype), scratch_like(table.slice(1, 0, 1), "counts")
            added = ScatterAdd((counts.reshape(int(table.shape[0])),), (self.index, ones))  # type: ignore[arg-type]
            parts += [Fill((ones,), (), 1.0), Fill((counts,), (), 0.0), added]
            new = tuple(scratch_like(each, f"new {each}") for each in self.tables)
            parts.append(Map(new, ins, self.formula))
            parts += [Map((old,), (counts, made, old), _CHOICE) for made, old in zip(new, self.tables, strict=True)]
        return [replace(part, label=self.label) for part in parts]

    def __str__(self) -> str:
        rows = "all rows" if self.every else f"the rows {self.index}"
        names = [f"sums of {self.gradient}" if self.gradient.batched else str(self.gradient), *map(str, self.operands)]
        return f"{', '.join(view.text for view in self.tables)} = {self.formula.text(names)} for {rows}"


@dataclass(frozen=True)
class RowGradient:
    """A part of a gradient to which rows of `source` are added by an index.

    `operations` are the operations on that part. `alone`: whether index, source and padding alone determine that part.
    """

    table: View
    index: View
    source: View
    padding: int | None
    operations: tuple[Operation, ...]
    alone: bool

    @property
    def start(self) -> int:
        return self.table.offset

    @property
    def stop(self) -> int:
        return self.table.offset + self.table.sample_size


def row_gradients(operations: Sequence[Operation], g: View) -> list[RowGradient]:
    """The parts of the flat gradient `g` that are rows added by an index, in the order of `g`."""
    found = []
    for position, operation in enumerate(operations):
        if not isinstance(operation, ScatterAdd) or operation.outs[0].buffer is not g.buffer:
            continue
        (table,), (index, source) = operation.outs, operation.ins
        plain = all(view.contiguous and not view.loop_strides for view in (table, index, source))
        if not plain or table.ndim != 2 or not index.batched:
            continue
        touching = [each for each in operations if any(overlap(table, view) for view in each.views)]
        after = operations[position + 1 :]
        kept = not any(overlap(a, b) for each in after for a in each.writes for b in (index, source))
        padding = _padding(touching[2], table) if len(touching) == 3 else None
        begun = isinstance(touching[0], Fill) and touching[0].outs[0] == table and touching[0].value == 0.0
        alone = kept and begun and touching[1] is operation and len(touching) == (2 if padding is None else 3)
        found.append(RowGradient(table, index.flat, source.rows, padding, tuple(touching), alone))
    return sorted(found, key=lambda each: each.start)


def _padding(operation: Operation, table: View) -> int | None:
    """The one row of the table that an operation fills with zeros; None if it does anything else."""
    (out,) = operation.outs[:1]
    width = int(table.shape[1])  # type: ignore[arg-type]
    row, rest = divmod(out.offset - table.offset, width)
    whole = isinstance(operation, Fill) and operation.value == 0.0 and out.contiguous and out.sample_size == width
    return row if whole and not rest else None


def update_of_rows(maps: Sequence[Operation], gradient: View, rows: RowGradient, *, every: bool) -> UpdateRows | None:
    """These maps of long vectors, one of them the `gradient` of the table, as an update of rows; None if impossible."""
    composed = _composed(maps, gradient)
    if composed is None:
        return None
    outs, ins, formula = composed
    count, width = rows.table.sample_shape

    def as_table(view: View) -> View:
        return view.reshape(count, width) if view.ndim else view

    source = rows.source if rows.alone else as_table(gradient)
    marks = scratch_like(rows.table.index(1, 0), "marks", np.dtype(np.int64))
    changed = (*map(as_table, outs), marks, *((source,) if source.batched else ()))
    operands = tuple(as_table(view) for view in ins[1:])
    label = maps[0].label
    return UpdateRows(changed, (rows.index, source, *operands), formula, every, rows.padding, label=label)


def _composed(maps: Sequence[Operation], gradient: View) -> tuple[list[View], list[View], Formula] | None:
    """A sequence of maps as one formula: the results, the operands (the gradient first), and the formula."""
    ins, written = [gradient], dict[View, None]()
    for each in maps:
        if not isinstance(each, Map) or any(view.ndim and view.shape != gradient.shape for view in each.views):
            return None
        if any(not view.contiguous or not view.ndim for view in each.outs):
            return None
        ins += [view for view in dict.fromkeys(each.ins) if view not in written and view not in ins]
        written |= dict.fromkeys(each.outs)
    numbers = {view: number for number, view in enumerate(ins)}
    instructions: list[Instruction] = []
    for each in maps:
        assert isinstance(each, Map)
        results = [numbers[view] for view in each.ins]
        for instruction in each.formula.instructions:
            results.append(len(ins) + len(instructions))
            operands = tuple(results[operand] for operand in instruction.operands)
            instructions.append(replace(instruction, operands=operands))
        numbers |= {out: results[number] for out, number in zip(each.outs, each.formula.outputs, strict=True)}
    outs = [view for view in written if view != gradient]
    names = tuple(f"x{position}" for position in range(len(ins)))
    return outs, ins, Formula(names, tuple(instructions), tuple(numbers[view] for view in outs))
