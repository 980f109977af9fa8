"""Layers such as a user might write, which do what the built-in ones happen not to do."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.layers import Declaration, Layer


class Double(Layer):
    """y = 2 x: the example of the documentation."""

    def declare(self, d: Declaration) -> None:
        d.output(d.input)

    def forward(self, ops: Any, x: Any, y: Any, p: Any, s: Any) -> None:
        ops.map(y, lambda x: 2 * x, x)

    def pullback(self, ops: Any, x: Any, y: Any, dy: Any, dx: Any, p: Any, g: Any, s: Any) -> None:
        ops.map(dx, lambda dy: 2 * dy, dy)


class Boost(Layer):
    """y = factor * x, with the factor as a constant of the program: two of these have constants of one name."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def declare(self, d: Declaration) -> None:
        d.output(d.input)

    def forward(self, ops: Any, x: Any, y: Any, p: Any, s: Any) -> None:
        ops.map(y, lambda x, k: x * k, x, ops.constant("factor", np.array(self.factor)))

    def pullback(self, ops: Any, x: Any, y: Any, dy: Any, dx: Any, p: Any, g: Any, s: Any) -> None:
        ops.map(dx, lambda dy, k: dy * k, dy, ops.constant("factor", np.array(self.factor)))


class DyUser(Layer):
    """y = x^2 / 2 + x; the pullback spoils its cotangent before it is done, as it may."""

    def declare(self, d: Declaration) -> None:
        d.output(d.input)

    def forward(self, ops: Any, x: Any, y: Any, p: Any, s: Any) -> None:
        ops.map(y, lambda x: 0.5 * x * x + x, x)

    def pullback(self, ops: Any, x: Any, y: Any, dy: Any, dx: Any, p: Any, g: Any, s: Any) -> None:
        ops.map(dy, lambda dy, x: dy * (x + 1.0), dy, x)
        ops.copy(dx, dy)
        ops.fill(dy, 99.0)


class Outer(Layer):
    """Every feature's value as often as there are features: y[i, j] = x[i], by a broadcasting copy."""

    def declare(self, d: Declaration) -> None:
        d.output((*d.input, *d.input))

    def forward(self, ops: Any, x: Any, y: Any, p: Any, s: Any) -> None:
        ops.copy(y, x.expand(-1))

    def pullback(self, ops: Any, x: Any, y: Any, dy: Any, dx: Any, p: Any, g: Any, s: Any) -> None:
        ops.sum(dx.expand(-1), dy)


class Repeat(Layer):
    """One number as often as wanted: y[j] = x[0], by a broadcasting copy of a whole buffer."""

    def __init__(self, times: int) -> None:
        self.times = times

    def declare(self, d: Declaration) -> None:
        d.output((self.times,))

    def forward(self, ops: Any, x: Any, y: Any, p: Any, s: Any) -> None:
        ops.copy(y, x)

    def pullback(self, ops: Any, x: Any, y: Any, dy: Any, dx: Any, p: Any, g: Any, s: Any) -> None:
        ops.sum(dx, dy)
