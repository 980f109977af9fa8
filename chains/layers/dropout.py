"""Dropout."""

from __future__ import annotations

from typing import Any

from chains.expr import where
from chains.layers.base import Declaration, Layer
from chains.program import Recorder
from chains.view import View


class Dropout(Layer):
    """While training, zeroes each element with probability `rate` and divides the others by ``1 - rate``.

    Otherwise it passes its input on. Which elements are dropped depends only on the seed and the number of
    the step (see `chains.operations.Random`), so that every backend drops the same ones. Source: Srivastava et al. 2014, in the
    "inverted" form that PyTorch has. Raises ValueError unless 0 <= rate < 1.
    """

    def __init__(self, rate: float = 0.5) -> None:
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"`rate` (={rate}) must be at least 0 and below 1")
        self.rate = rate

    def declare(self, d: Declaration) -> None:
        d.output(d.input)
        d.saved("factor", d.input)  # 0 where dropped, 1 / (1 - rate) elsewhere

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        if not ops.training or self.rate == 0.0:
            ops.copy(y, x)
            return
        rate = self.rate
        ops.random(s.factor)
        ops.map(s.factor, lambda u: where(u < rate, 0.0, 1.0 / (1.0 - rate)), s.factor)
        ops.map(y, lambda x, factor: x * factor, x, s.factor)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        if not ops.training or self.rate == 0.0:
            ops.copy(dx, dy)
        else:
            ops.map(dx, lambda dy, factor: dy * factor, dy, s.factor)

    def __repr__(self) -> str:
        return f"Dropout({self.rate:g})"
