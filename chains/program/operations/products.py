"""Products of matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from chains.program.operations.base import Operation, check_views
from chains.program.view import Batch, View, concrete


@dataclass(frozen=True)
class _Product(Operation):
    """out = a @ b, or out += a @ b."""

    linear_in = (0, 1)

    accumulate: bool = False

    @property
    def accumulates(self) -> bool:
        return self.accumulate

    def check(self) -> None:
        check_views("matmul", *self.views)

    def transpose(self, t: Any) -> None:
        (out,), (a, b) = self.outs, self.ins
        d = t.take(out)
        for operand, left, right in ((b, a, None), (a, None, b)):
            if t.is_active(operand):
                target = t.cotangent(operand)
                first = d if left is None else _transposed(t.value(left))
                second = d if right is None else _transposed(t.value(right))
                begun = t.begun(target)
                if target.strides[-1] != 1 == target.strides[-2]:  # its columns are together in memory
                    target, first, second = _transposed(target), _transposed(second), _transposed(first)
                t.ops.matmul(target, first, second, accumulate=begun)
                t.mark(target)

    def flops(self, batch: int) -> int:
        (*leading, m, k), (*_, n) = (concrete(view.shape, batch) for view in self.ins)
        return 2 * math.prod(leading) * m * k * n

    def __str__(self) -> str:
        return f"{self._left} {'+=' if self.accumulate else '='} {self.ins[0]} @ {self.ins[1]}"


class MatMul(_Product):
    """out = a @ b, or out += a @ b. Matrices, possibly transposed views."""

    over_steps = True

    def check(self) -> None:
        super().check()
        out, a, b = self.views
        if not (out.ndim == a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] and out.shape == (a.shape[0], b.shape[1])):
            raise ValueError(f"matmul: {a.text} @ {b.text} does not fit {out.text}")


class BatchMatMul(_Product):
    """out = a @ b, or out += a @ b, for the matrices in the last two axes; the axes before these are the same for all."""

    @property
    def name(self) -> str:
        return "batch_matmul"

    def check(self) -> None:
        super().check()
        out, a, b = self.views
        fits = out.ndim == a.ndim == b.ndim and out.shape[:-2] == a.shape[:-2] == b.shape[:-2]
        (m, k), (inner, n) = a.shape[-2:], b.shape[-2:]
        if not fits or k != inner or out.shape[-2:] != (m, n) or any(isinstance(each, Batch) for each in (m, k, n)):
            raise ValueError(f"matmul: {a.text} @ {b.text} does not fit {out.text}")


def _transposed(view: View) -> View:
    return view.T if view.ndim == 2 else view.swap(-1, -2)
