"""Layers such as a user might write, which do what the built-in ones happen not to do."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains import Dense, LayerNorm, gelu
from chains.expr import exp, tanh
from chains.initializers import Uniform
from chains.layers import Cell, Declaration, Layer, Series


class Decay(Cell):
    """h' = x + h / 2, with a part that is trained: h' = x + w h / 2."""

    def declare(self, d: Declaration) -> None:
        d.carry("h", d.input)
        d.param("w", d.input, "ones")

    def forward(self, ops: Any, x: Any, y: Any, p: Any, s: Any) -> None:
        ops.map(y, lambda x, h, w: x + 0.5 * w * h, x, s.before.h, p.w)

    def pullback(self, ops: Any, x: Any, y: Any, dy: Any, dx: Any, p: Any, g: Any, s: Any) -> None:
        product = ops.scratch("product", x.sample_shape)
        ops.map((product, s.d_before.h), lambda dy, h, w: (0.5 * dy * h, 0.5 * dy * w), dy, s.before.h, p.w)
        ops.sum(g.w, product)
        ops.copy(dx, dy)


class Stacked(Cell):
    """A cell made of layers: h' = tanh of two `Dense` of the input, normalised, plus one of the state."""

    def declare(self, d: Declaration) -> None:
        inner = d.child("inner", Series(Dense(3, 4, gelu), LayerNorm(eps=0.5)), d.input)
        d.child("state", Dense(4, 4), inner)
        d.carry("h", inner)
        d.saved("a", inner)
        d.saved("b", inner)

    def forward(self, ops: Any, x: Any, y: Any, p: Any, s: Any) -> None:
        s.children[0].forward(ops, x, s.a)
        s.children[1].forward(ops, s.before.h, s.b)
        ops.map(y, lambda a, b: tanh(a + b), s.a, s.b)

    def pullback(self, ops: Any, x: Any, y: Any, dy: Any, dx: Any, p: Any, g: Any, s: Any) -> None:
        da, db = ops.scratch("da", dy.sample_shape), ops.scratch("db", dy.sample_shape)
        ops.map((da, db), lambda dy, y: (dy * (1 - y * y), dy * (1 - y * y)), dy, y)
        s.children[1].pullback(ops, s.before.h, s.b, db, s.d_before.h)
        s.children[0].pullback(ops, x, s.a, da, dx)


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


class Monotone(Layer):
    """y = tanh(x weight) gain: a matrix of positive weights, and a number between two others."""

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs

    def declare(self, d: Declaration) -> None:
        d.param("weight", (*d.input, self.outputs), Uniform(0.1, 1.0), bounds=(0, None))
        d.param("gain", (), 0.5, bounds=(-0.25, 2.0))
        d.param("limit", (self.outputs,), -1.0, bounds=(None, 3.0))
        d.saved("a", (self.outputs,))
        d.output((self.outputs,))

    def forward(self, ops: Any, x: Any, y: Any, p: Any, s: Any) -> None:
        ops.matmul(y, x, p.weight)
        ops.map(s.a, tanh, y)
        ops.map(y, lambda a, gain, limit: a * gain + limit, s.a, p.gain, p.limit)

    def pullback(self, ops: Any, x: Any, y: Any, dy: Any, dx: Any, p: Any, g: Any, s: Any) -> None:
        product = ops.scratch("product", dy.sample_shape)
        ops.map(product, lambda a, dy: a * dy, s.a, dy)
        ops.sum(g.gain, product)
        ops.sum(g.limit, dy)
        ops.map(product, lambda a, dy, gain: (1 - a * a) * dy * gain, s.a, dy, p.gain)
        ops.matmul(g.weight, x.T, product)
        ops.matmul(dx, product, p.weight.T)


# Layers by `forward` alone, whose pullbacks are derived.


class Experts(Layer):
    """A mixture of experts, with a softmax that works in place."""

    def declare(self, d: Declaration) -> None:
        d.param("route", (*d.input, 3), "lecun_normal")
        d.param("w", (*d.input, 3 * 2), "lecun_normal")
        for name, shape in (("share", (3,)), ("row", (1,)), ("each", (3, 2))):
            d.temporary(name, shape)
        d.output((2,))

    def forward(self, ops: Any, x: Any, y: Any, p: Any, s: Any) -> None:
        ops.matmul(s.share, x, p.route)
        ops.map(s.share, lambda z: exp(z), s.share)
        ops.sum(s.row, s.share)
        ops.map(s.share, lambda e, total: e / total, s.share, s.row)
        ops.matmul(s.each.reshape(6), x, p.w)
        ops.map(s.each, lambda z, share: tanh(z) * share, s.each, s.share.expand(-1))
        ops.sum(y.expand(1), s.each)


class Scan(Layer):
    """A recurrence as a loop within a layer."""

    def declare(self, d: Declaration) -> None:
        d.param("w", (d.input[1], 2), "lecun_normal")
        d.param("v", (2, 2), "lecun_normal")
        d.temporary("h", (2,))
        d.temporary("a", (2,))
        d.output((d.input[0], 2))

    def forward(self, ops: Any, x: Any, y: Any, p: Any, s: Any) -> None:
        ops.fill(s.h, 0.0)
        with ops.loop(x.sample_shape[0]) as at:
            ops.matmul(s.a, at.now(x, 1), p.w)
            ops.matmul(s.a, s.h, p.v, accumulate=True)
            ops.map(s.h, lambda a: tanh(0.5 * a), s.a)
            ops.copy(at.now(y, 1), s.h)


class Leaky(Cell):
    """A cell by `forward` alone, with a layer within it and two arrays that it carries."""

    def declare(self, d: Declaration) -> None:
        inner = d.child("inner", Dense(3, 2, gelu), d.input)
        d.carry("h", inner)
        d.carry("mean", inner)
        d.temporary("a", inner)

    def forward(self, ops: Any, x: Any, y: Any, p: Any, s: Any) -> None:
        s.children[0].forward(ops, x, s.a)
        ops.map(y, lambda a, h, m: tanh(a + h) + m, s.a, s.before.h, s.before.mean)
        ops.map(s.after.mean, lambda m, a: 0.5 * m + a * a, s.before.mean, s.a)
