"""Softmax and its logarithm as layers, over the last axis of a sample."""

from __future__ import annotations

from typing import Any

from chains.expr import exp, log
from chains.layers.base import Declaration, Layer
from chains.program.recorder import Recorder
from chains.program.view import View


def log_sum_exp(ops: Recorder, x: View) -> View:
    """Record the logarithm of the sum of exp(x) over the last axis, kept with length 1; no exponential overflows."""
    largest, total = (ops.scratch(name, (*x.sample_shape[:-1], 1)) for name in ("largest", "total"))
    shifted = ops.scratch("shifted", x.sample_shape)
    ops.max(largest, x)
    ops.map(shifted, lambda x, largest: exp(x - largest), x, largest)
    ops.sum(total, shifted)
    ops.map(total, lambda total, largest: log(total) + largest, total, largest)
    return total


class Softmax(Layer):
    """``y = exp(x) / sum(exp(x))``, over the last axis. Train classifiers without it: `CrossEntropyLoss` takes logits."""

    def declare(self, d: Declaration) -> None:
        if not d.input:
            raise ValueError(f"{self!r} needs samples with at least one axis, not scalars")
        d.output(d.input)
        d.temporary("row", (*d.input[:-1], 1))
        d.temporary("product", d.input)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.max(s.row, x)
        ops.map(y, lambda x, largest: exp(x - largest), x, s.row)
        ops.sum(s.row, y)
        ops.map(y, lambda e, total: e / total, y, s.row)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        ops.map(s.product, lambda dy, y: dy * y, dy, y)
        ops.sum(s.row, s.product)
        ops.map(dx, lambda dy, y, total: y * (dy - total), dy, y, s.row)


class LogSoftmax(Softmax):
    """``y = x - log(sum(exp(x)))``, the logarithm of softmax over the last axis. No exponential overflows."""

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.map(y, lambda x, total: x - total, x, log_sum_exp(ops, x))

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        ops.sum(s.row, dy)
        ops.map(dx, lambda dy, y, total: dy - exp(y) * total, dy, y, s.row)
