"""The inverse of a small matrix of each sample, as operations: Gauss-Jordan elimination with partial pivoting.

Rows stay in their places. Step k chooses, among the rows that were no pivots yet, that with the largest entry in column k,
and removes the column from all others. In the end each row has a single one, whose column says which row of the inverse is
beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.expr import where
from chains.program.recorder import Recorder
from chains.program.view import View


def record_inverse(ops: Recorder, out: View, matrix: View) -> None:
    """Record ``out = inverse of matrix``, both (batch, n, n). A matrix that is singular gives numbers that are not finite."""
    n = matrix.sample_shape[-1]
    both, marks = ops.scratch("matrix beside identity", (n, 2 * n)), ops.scratch("pivots", (n, n))
    column, size, rank, free = (ops.scratch(name, (n,)) for name in ("column", "size", "rank", "free"))
    largest, chosen = ops.scratch("largest", (1,)), ops.scratch("chosen", (1,))
    row, pivot = ops.scratch("row of the pivot", (2 * n,)), ops.scratch("pivot", (1,))
    numbers = ops.constant("numbers of rows", np.arange(n, dtype=np.float64))
    ops.copy(both.slice(-1, 0, n), matrix)
    ops.copy(both.slice(-1, n, 2 * n), ops.constant("identity", np.eye(n)))
    ops.fill(free, 1.0)
    with ops.loop(n, closed=True) as at:
        mark = at.now(marks, 1)
        ops.map((column, size), lambda a, free: (a, where(free > 0.5, abs(a), -1.0)), at.now(both, 2), free)
        ops.max(largest, size)
        ops.map(rank, lambda size, largest, number: where(size == largest, number, -1.0), size, largest, numbers)
        ops.max(chosen, rank)
        ops.map((mark, free), _marked, numbers, chosen, free)
        ops.matmul(row.expand(1), mark.expand(1), both)
        ops.matmul(pivot.expand(1), mark.expand(1), column.expand(2))
        ops.map(both, _eliminated, both, mark.expand(2), column.expand(2), row.expand(1), pivot.expand(1))
    ops.matmul(out, marks, both.slice(-1, n, 2 * n))


def _marked(number: Any, chosen: Any, free: Any) -> tuple[Any, Any]:
    """Whether a row is the pivot, and whether it is left for later ones."""
    return where(number == chosen, 1.0, 0.0), where(number == chosen, 0.0, free)


def _eliminated(a: Any, mark: Any, column: Any, row: Any, pivot: Any) -> Any:
    """An entry of the pivot's row, divided by the pivot, or of another row, without the column."""
    scaled = row / pivot
    return where(mark > 0.5, scaled, a - column * scaled)
