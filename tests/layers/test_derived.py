"""Pullbacks derived from `forward`: equal to those written by hand, as short, and refused where there is no rule."""

from __future__ import annotations

import math
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import chains
from chains import expr, losses
from chains.layers import Cell, Layer, node
from chains.network import record
from chains.network.network import network_of
from chains.program.operations import Window
from chains.testing import check_gradients, run_program
from tests.harness import BACKENDS, LAYERS, LOSS_CASES, assert_close

# Layers whose `forward` has a loop, which has no rule; their parts are derived.
WITH_LOOPS = {"GRU", "LSTM", "ODE", "RNN", "Recurrent", "SDE", "Shooting", "SteadyState"}


def derives(layer: Layer) -> bool:
    return type(layer).__name__ not in WITH_LOOPS


@pytest.mark.few(90, always=lambda case, **_: case.name in ("Dense", "Attention", "Conv", "LayerNorm", "Residual-nested"))
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_derived_equals_hand_written(case, training, monkeypatch):
    net, problem = network_of(case.net()), case.problem(3)
    arrays = {"p": problem.p, "x": problem.x, "dy": problem.dy, "state": problem.state, "random": np.array([3, 0], np.uint64)}
    wanted = run_program(record.vjp(net, np.float64, training), "numpy", len(problem.x), arrays)
    monkeypatch.setattr(node, "derives", derives)
    program = record.vjp(net, np.float64, training)
    for fill in (0x00, 0xFF):
        found = run_program(program, "numpy", len(problem.x), arrays, fill)
        for name, value in wanted.items():
            assert_close(found[name], value, 1e-13, name)


SAME = {
    "Dense": (chains.Dense(6, 5, "tanh"), (6,)),
    "Dense-needs-input": (chains.Dense(6, 5, "gelu"), (6,)),
    "Conv": (chains.Conv(2, 3, (3, 3), "relu"), (2, 6, 6)),
}


@pytest.mark.parametrize("name", SAME)
def test_derived_has_no_more_operations_and_scratch_than_the_hand_written(name, monkeypatch):
    layer, shape = SAME[name]
    net = network_of(chains.Chain(layer, input_shape=shape))
    criterion = record.Criterion(chains.SquaredLoss(), net.declaration.output_shape)
    hand = record.gradient(net, criterion, np.float64, True, wanted=("g", "dx"))
    monkeypatch.setattr(node, "derives", derives)
    derived = record.gradient(net, criterion, np.float64, True, wanted=("g", "dx"))
    assert len(derived.operations) <= len(hand.operations)
    assert derived.scratch.bytes_per_sample <= 1.1 * hand.scratch.bytes_per_sample
    assert derived.scratch.fixed_bytes <= 1.1 * hand.scratch.fixed_bytes


class Plain(Layer):
    """A layer of a `forward` alone, with these parameters and scratch arrays."""

    def __init__(self, output, params, scratch, forward):
        self.output, self.params, self.scratch, self.recorded = output, params, scratch, forward

    def declare(self, d):
        for name, shape in self.params.items():
            d.param(name, shape, "normal")
        for name, shape in self.scratch.items():
            d.temporary(name, shape)
        d.output(self.output)

    def forward(self, ops, x, y, p, s):
        self.recorded(ops, x, y, p, s)


def highway(ops, x, y, p, s):
    ops.matmul(s.gate, x, p.w)
    ops.matmul(s.value, x, p.v)
    ops.map(y, lambda g, v, x: x + (v - x) / (1 + expr.exp(-g)), s.gate, s.value, x)


def low_rank(ops, x, y, p, s):
    ops.matmul(s.a, x, p.a)
    ops.matmul(y, s.a, p.b)
    ops.matmul(y, x, p.c, accumulate=True)


def maxout(ops, x, y, p, s):
    ops.matmul(s.z, x, p.w)
    ops.max(y.expand(2), s.z.split(1, 4))


def radial(ops, x, y, p, s):
    ops.map(s.d, lambda x, c: (x - c) ** 2, x.expand(1), p.centres)
    ops.sum(y.expand(2), s.d)
    ops.map(y, lambda r, w: expr.exp(-r * w * w), y, p.width)  # overwrites what its pullback reads


def experts(ops, x, y, p, s):
    ops.matmul(s.score, x, p.route)
    ops.max(s.row, s.score)
    ops.map(s.score, lambda z, m: expr.exp(z - m), s.score, s.row)
    ops.sum(s.row, s.score)
    ops.map(s.score, lambda e, t: e / t, s.score, s.row)
    ops.matmul(s.out, x, p.w)
    ops.map(s.out.split(1, 3), lambda o, g: expr.tanh(o) * g, s.out.split(1, 3), s.score.expand(2))
    ops.sum(y.expand(1), s.out.split(1, 3))


def squeeze(ops, x, y, p, s):
    ops.sum(s.mean.expand(2), x)
    ops.matmul(s.gate, s.mean, p.w)
    ops.map(y, lambda x, g: x / (1 + expr.exp(-g)), x, s.gate.expand(2))


def bilinear(ops, x, y, p, s):
    ops.matmul(s.left, x, p.u)
    ops.matmul(s.right, x, p.v)
    ops.map(y, lambda a, b, c: a * b + c, s.left, s.right, p.c)


def halves(ops, x, y, p, s):
    ops.map(y, lambda a, b: a * expr.tanh(b), x.slice(1, 0, 2), x.slice(1, 1, 3))  # parts that overlap


def distances(ops, x, y, p, s):
    ops.map(s.d, lambda x, c: (x - c) ** 2, x.expand(1), p.prototypes)
    ops.sum(s.total.expand(2), s.d)
    ops.map(y, lambda t: -expr.log1p(t), s.total)


def splines(ops, x, y, p, s):
    ops.map(s.basis, lambda x, k, w: w * expr.maximum(0, 1 - abs(x - k)) ** 2, x.expand(2), p.knots, p.w)
    ops.sum(y.expand(2), s.basis)


def correlation(ops, x, y, p, s):
    image, kernel = x.reshape(1, 4, 4), ops.scratch("kernel", (1, 1, 3, 3), batched=False)
    ops.convolve(s.z, image, p.w, Window((3, 3)))
    ops.convolve_weight(kernel, image, s.z, Window((3, 3)))  # a kernel made of the whole batch
    ops.convolve(y.reshape(1, 2, 2), image, kernel, Window((3, 3)))


NEW = {
    "highway": ((3,), Plain((3,), {"w": (3, 3), "v": (3, 3)}, {"gate": (3,), "value": (3,)}, highway)),
    "low rank": ((3,), Plain((2,), {"a": (3, 1), "b": (1, 2), "c": (3, 2)}, {"a": (1,)}, low_rank)),
    "maxout": ((3,), Plain((4,), {"w": (3, 8)}, {"z": (8,)}, maxout)),
    "radial": ((2,), Plain((3,), {"centres": (3, 2), "width": (3,)}, {"d": (3, 2)}, radial)),
    "experts": ((3,), Plain((2,), {"route": (3, 3), "w": (3, 6)}, {"score": (3,), "row": (1,), "out": (6,)}, experts)),
    "squeeze": ((2, 3), Plain((2, 3), {"w": (2, 2)}, {"mean": (2,), "gate": (2,)}, squeeze)),
    "bilinear": ((3,), Plain((2,), {"u": (3, 2), "v": (3, 2), "c": (2,)}, {"left": (2,), "right": (2,)}, bilinear)),
    "halves": ((3,), Plain((2,), {}, {}, halves)),
    "distances": ((2,), Plain((3,), {"prototypes": (3, 2)}, {"d": (3, 2), "total": (3,)}, distances)),
    "correlation": ((16,), Plain((4,), {"w": (1, 1, 3, 3)}, {"z": (1, 2, 2)}, correlation)),
    "splines": ((3,), Plain((3,), {"knots": (3, 4), "w": (3, 4)}, {"basis": (3, 4)}, splines)),
}


@pytest.mark.parametrize("name", NEW)
def test_new_layers_by_forward_alone(name):
    shape, layer = NEW[name]
    check_gradients(layer, shape, batch=2, backends=BACKENDS)


class Leaky(Cell):
    """A cell by `forward` alone, with a product that the pullback reads, in rows of two numbers."""

    def declare(self, d):
        d.carry("h", (4,))
        d.carry("mean", (4,))
        d.param("w", (*d.input, 4), "normal")
        d.param("v", (2, 2), "normal")
        d.temporary("z", (2, 2))
        d.temporary("a", (4,))

    def forward(self, ops, x, y, p, s):
        ops.matmul(s.a, x, p.w)
        ops.map(s.a, lambda a, h: expr.tanh(a + h), s.a, s.before.h)
        ops.copy(s.z, s.a.reshape(2, 2))
        own = ops.scratch("own", (2, 2))
        ops.matmul(own.rows, s.z.rows, p.v)
        ops.map(y, lambda a, b, m: a * b + m, own.reshape(4), s.a, s.before.mean)
        ops.map(s.after.mean, lambda m, a: 0.5 * m + a * a, s.before.mean, s.a)


class Scaled(Cell):
    """A cell with an array without samples that its pullback reads."""

    def declare(self, d):
        d.carry("h", d.input)
        d.param("w", d.input, "normal")

    def forward(self, ops, x, y, p, s):
        scale = ops.scratch("scale", x.sample_shape, batched=False)
        ops.map(scale, lambda w: expr.tanh(w * w), p.w)
        ops.map(y, lambda x, h, k: expr.tanh(x + k * h), x, s.before.h, scale)


class Rate(Layer):
    """A right-hand side by `forward` alone, with a layer within it."""

    def declare(self, d):
        d.child("inner", chains.Dense(2, 2, "gelu"), (2,))
        d.param("k", (2,), "ones")
        d.temporary("z", (2,))
        d.output((2,))

    def forward(self, ops, x, y, p, s):
        s.children[0].forward(ops, x, s.z)
        ops.map(y, lambda z, x, k: expr.sin(z) - (2.0 + k * k) * x, s.z, x, p.k)


AT_A_STEP = {
    "cell": ((5, 3), chains.Recurrent(Leaky(), return_sequences=True)),
    "cell, both directions": ((3, 3), chains.Recurrent(Leaky(), bidirectional=True, initial_state="parameter")),
    "cell, checkpoints": ((5, 3), chains.Recurrent(Leaky(), checkpoint_every=2)),
    "cell, array without samples": ((4, 3), chains.Recurrent(Scaled())),
    "ODE": ((2,), chains.ODE(Rate(), (0.0, 0.3, 0.5), steps=2)),
    "ODE, checkpoints": ((2,), chains.ODE(Rate(), (0.0, 0.3, 0.5), steps=3, checkpoint_every=2)),
    "ODE, adjoint": ((2,), chains.ODE(Rate(), (0.0, 0.3, 0.5), steps=8, adjoint=True)),
    "ODE, implicit": ((2,), chains.ODE(Rate(), (0.0, 0.3), "kvaerno3", steps=2)),
    "SDE": ((2,), chains.SDE(Rate(), Rate(), (0.0, 0.3), steps=2)),
    "steady": ((2,), chains.SteadyState(Rate(), 2, guess="input")),
}


@pytest.mark.parametrize("name", AT_A_STEP)
def test_the_step_of_a_loop_by_forward_alone(name):
    shape, layer = AT_A_STEP[name]
    check_in_a_direction(layer, shape, native=name in ("cell", "ODE"))


def check_in_a_direction(layer, shape, *, native):
    net = chains.Chain(layer, input_shape=shape, backend="numpy")
    rng, h = np.random.default_rng(1), 1e-5
    p, x = rng.normal(size=net.n_params), rng.normal(size=(2, *shape))
    dp, dx = rng.normal(size=p.shape), rng.normal(size=x.shape)
    up, down = (net(x + sign * dx, p + sign * dp) for sign in (h, -h))
    dy = rng.normal(size=up.shape)
    g, g_x = net.vjp(p, x, dy)
    assert math.isclose(np.sum(g * dp) + np.sum(g_x * dx), np.sum((up - down) * dy) / (2 * h), rel_tol=2e-7)
    if native:
        own = chains.Chain(layer, input_shape=shape, backend="native")
        for found, wanted in zip(own.vjp(p, x, dy), (g, g_x), strict=True):
            assert_close(found, wanted, 1e-12, str(layer))


class ByForward(losses.Loss):
    """A loss of the library whose gradient is derived."""

    def __init__(self, loss):
        self.loss = loss

    def forward(self, ops, y, t, w, value):
        self.loss.record(ops, y, t, w, value, ops.scratch("never read", y.sample_shape))


@pytest.mark.few(20)
@pytest.mark.parametrize("case", LOSS_CASES, ids=str)
def test_gradients_of_losses_are_derived(case):
    net, problem = case.net(), case.problem(4)
    own, derived = case.loss, ByForward(case.loss)
    derived.check_target, derived.weighs_targets = own.check_target, own.weighs_targets
    wanted, found = (net.value_and_grad(problem.p, problem.x, problem.t, each, weights=problem.w) for each in (own, derived))
    for a, b in zip(found, wanted, strict=True):
        assert_close(np.asarray(a), np.asarray(b), 1e-13, str(case))


TWENTY = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "tutorials" / "custom" / "twenty_layers.py"))["LAYERS"]


@pytest.mark.parametrize(("layer", "shape"), TWENTY, ids=[str(layer) for layer, _ in TWENTY])
def test_the_layers_of_the_tutorial(layer, shape):
    check_in_a_direction(layer, shape, native=False)  # the tutorial checks all directions


def test_the_tutorial_has_twenty_layers():
    assert len({str(layer) for layer, _ in TWENTY}) == 20


def plain_rnn(ops, x, y, p, s):
    ops.fill(s.h, 0.0)
    with ops.loop(x.shape[1]) as at:
        ops.matmul(s.a, at.now(x, 1), p.w)
        ops.matmul(s.a, s.h, p.v, accumulate=True)
        ops.map(s.h, lambda a, b: expr.tanh(a + b), s.a, p.b)
        ops.copy(at.now(y, 1), s.h)


def largest_carried(ops, x, y, p, s):
    """The largest entry of what a step changes."""
    ops.copy(s.h, p.b)
    with ops.loop(x.shape[1]) as at:
        ops.max(s.a, s.h)
        ops.map(s.h, lambda h, m, w: h * m + w, s.h, s.a, p.w)
        ops.map(at.now(y, 1), lambda h, x: h * x, s.h, at.now(x, 1))


def moving_average(ops, x, y, p, s):
    ops.fill(y, 0.0)
    with ops.loop(x.shape[1], backwards=True) as at:
        ops.map(y, lambda y, x, k: k * expr.sin(y) + x, y, at.now(x, 1), p.k)


def path(ops, x, y, p, s):
    """An explicit method for x' = sin(w x), each state after the one before it."""
    ops.copy(y.index(1, 0), x)
    with ops.loop(3) as at:
        now, later = at.now(y, 1), at.now(y, 1, ahead=1)
        ops.matmul(s.a, now, p.w)
        ops.map(later, lambda x, a: x + 0.1 * expr.sin(a), now, s.a)


def two_loops(ops, x, y, p, s):
    """A scan of rows, whose step is a scan of columns."""
    ops.fill(s.row, 0.0)
    with ops.loop(2) as outer:
        ops.fill(s.left, 1.0)
        with ops.loop(3) as inner:
            ops.map(s.left, lambda a, x, w: expr.tanh(a * x + w), s.left, inner.now(outer.now(x, 1), 1).expand(-1), p.w)
            ops.map(s.row, lambda r, a: r * a + a, s.row, s.left)
        ops.map(outer.now(y, 1).expand(-1), lambda r, a: r + a * a, s.row, s.left)


def rows_of_steps(ops, x, y, p, s):
    """Weights for each step, and a product of rows of two numbers."""
    with ops.loop(3) as at:
        ops.map(s.z.reshape(4), lambda x, w: x * expr.exp(w), at.now(x, 1), at.now(p.w, 0))
        ops.matmul(s.q.rows, s.z.rows, p.v)
        ops.map(at.now(y, 1), lambda q, x: q * q + x, s.q.reshape(4), at.now(x, 1))


def ahead(ops, x, y, p, s):
    """Differences of neighbours, added up in a scratch array with an entry for each step."""
    ops.fill(s.total, 0.0)
    with ops.loop(3) as at:
        ops.map(at.now(s.d, 1), lambda a, b: (b - a) * a, at.now(x, 1), at.now(x, 1, ahead=1))
        ops.map(s.total, lambda t, d: t * d + d, s.total, at.now(s.d, 1))
    ops.map(y, lambda t, d: t * d, s.total, s.d.index(1, 2))


def in_and_out(ops, x, y, p, s):
    """Weights for each step that are used after the loop too."""
    ops.fill(s.h, 0.1)
    with ops.loop(2) as at:
        ops.map(s.h, lambda h, x, w: expr.tanh(h * w + x), s.h, at.now(x, 1), at.now(p.w, 0))
    ops.map(y, lambda h, w: h * w * w, s.h.expand(1), p.w)


def within(ops, x, y, p, s):
    """Weights for each step of a loop that another one repeats."""
    ops.fill(s.h, 0.1)
    with ops.loop(3):
        with ops.loop(2, backwards=True) as at:
            ops.map(s.h, lambda h, x, w: expr.tanh(h * w + x), s.h, at.now(x, 1), at.now(p.w, 0))
        with ops.loop(1) as at:
            ops.map(s.h, lambda h, w: h * w, s.h, at.now(p.w, 0))
    ops.copy(y, s.h)


WITH_A_LOOP = {
    "largest carried": ((2, 3), Plain((2, 3), {"w": (3,), "b": (3,)}, {"h": (3,), "a": (1,)}, largest_carried)),
    "recurrence": ((4, 2), Plain((4, 3), {"w": (2, 3), "v": (3, 3), "b": (3,)}, {"h": (3,), "a": (3,)}, plain_rnn)),
    "within": ((3, 2), Plain((2,), {"w": (3, 2)}, {"h": (2,)}, within)),
    "in and out": ((3, 2), Plain((3, 2), {"w": (3, 2)}, {"h": (2,)}, in_and_out)),
    "averages": ((4, 2), Plain((2,), {"k": (2,)}, {}, moving_average)),
    "path": ((2,), Plain((4, 2), {"w": (2, 2)}, {"a": (2,)}, path)),
    "two loops": ((2, 3), Plain((2,), {"w": (1,)}, {"row": (1,), "left": (1,)}, two_loops)),
    "rows": ((3, 4), Plain((3, 4), {"w": (3, 4), "v": (2, 2)}, {"z": (2, 2), "q": (2, 2)}, rows_of_steps)),
    "ahead": ((4, 2), Plain((2,), {}, {"d": (3, 2), "total": (2,)}, ahead)),
}


@pytest.mark.parametrize("name", WITH_A_LOOP)
def test_layers_with_a_loop_by_forward_alone(name):
    shape, layer = WITH_A_LOOP[name]
    check_in_a_direction(layer, shape, native=name in ("recurrence", "in and out"))


def in_part(ops, x, y, p, s):
    """Parts of an array whose earlier contents the pullback reads."""
    ops.map(s.h, lambda x, w: x * w, x, p.w)
    ops.map(y, lambda h: h * h, s.h)
    ops.map(s.h.slice(1, 0, 1), lambda a, b: a * b, s.h.slice(1, 0, 1), s.h.slice(1, 1, 2))
    ops.matmul(s.h, y, p.v, accumulate=True)
    ops.map(y, lambda y, h: y * h, y, s.h)


def in_a_loop(ops, x, y, p, s):
    """A loop that begins with contents which the pullback reads."""
    ops.map(s.h, lambda x, w: expr.tanh(x * w), x, p.w)
    with ops.loop(2):
        ops.map(s.h, lambda h, w: expr.sin(h * w) + h, s.h, p.w)
    ops.matmul(y, s.h, p.v)
    ops.fill(s.h, 1.0)


OVERWRITING = {"in part": in_part, "in a loop": in_a_loop}


@pytest.mark.parametrize("name", OVERWRITING)
def test_overwritten_contents_are_kept(name):
    layer = Plain((3,), {"w": (3,), "v": (3, 3)}, {"h": (3,)}, OVERWRITING[name])
    check_gradients(layer, (3,), batch=2, backends=BACKENDS)
    check_in_a_direction(chains.ODE(layer, (0.0, 0.3), steps=1), (3,), native=False)


class Twice(Layer):
    """A layer at two places."""

    def __init__(self, layer):
        self.layer = layer

    def declare(self, d):
        d.output(d.child("part", self.layer, d.input))
        d.temporary("h", d.input)

    def forward(self, ops, x, y, p, s):
        (part,) = s.children
        part.forward(ops, x, s.h)
        part.forward(ops, s.h, y)


class TwiceInACell(Cell):
    def declare(self, d):
        d.carry("h", d.input)
        d.child("part", Twice(chains.Dense(3, 3, "gelu")), d.input)
        d.temporary("z", d.input)

    def forward(self, ops, x, y, p, s):
        ops.map(s.z, lambda x, h: expr.tanh(x + h), x, s.before.h)
        s.children[0].forward(ops, s.z, y)


AT_TWO_PLACES = {
    "dense": chains.Dense(3, 3, "gelu"),
    "normalised": chains.LayerNorm(),
    "network": chains.Chain(chains.Dense(3, 3, "tanh"), chains.BatchNorm(3)),
    "derived": Twice(NEW["highway"][1]),
}


@pytest.mark.parametrize("name", AT_TWO_PLACES)
def test_a_layer_at_two_places(name):
    check_gradients(Twice(AT_TWO_PLACES[name]), (3,), batch=2, backends=["numpy"])


@pytest.mark.parametrize("every", [None, 2])
def test_a_layer_at_two_places_of_a_step(every):
    check_in_a_direction(chains.Recurrent(TwiceInACell(), checkpoint_every=every), (3, 3), native=False)
    check_in_a_direction(chains.ODE(Twice(chains.Dense(3, 3, "gelu")), (0.0, 0.3), steps=2), (3,), native=False)


class OverPart(Layer):
    """A layer whose part's result is overwritten in part."""

    def declare(self, d):
        d.child("part", chains.Dense(3, 3, "tanh"), d.input)
        d.temporary("h", d.input)
        d.output(d.input)

    def forward(self, ops, x, y, p, s):
        s.children[0].forward(ops, x, s.h)
        ops.map(y, lambda h: h * h, s.h)
        ops.map(s.h, lambda h: h * h, s.h)


class Between(Layer):
    def declare(self, d):
        d.saved("before", d.input)
        d.shared("after", d.input)
        d.output(d.input)

    def forward(self, ops, x, y, p, s):
        ops.map(s.before, lambda x: x * x, x)
        ops.sum(s.after, s.before)
        ops.map(y, lambda a, b: a * b, s.after, s.before)


def test_names_of_scratch_arrays_that_cells_have():
    check_gradients(Between(), (3,), batch=2, backends=["numpy"])


@pytest.mark.parametrize("name", ["children", "before", "d_after"])
def test_names_with_another_meaning_are_refused(name):
    class Named(Scaled):
        def declare(self, d):
            super().declare(d)
            d.temporary(name, (3,))

    with pytest.raises(ValueError, match=f"a scratch array '{name}', but `s.{name}` has another meaning in a cell"):
        chains.Chain(chains.Recurrent(Named()), input_shape=(2, 3)).init()


def pooled(ops, x, y, p, s):
    image = x.reshape(1, 1, 3)
    ops.pool("max", s.h.reshape(1, 1, 3), image, Window((1, 1)))
    ops.pool_input("max", y.reshape(1, 1, 3), s.h.reshape(1, 1, 3), image, s.h.reshape(1, 1, 3), Window((1, 1)))


def leaving_out(ops, x, y, p, s):
    ops.copy(y, x)
    with ops.loop(3, skip_where_zero=lambda _: x):
        ops.map(y, lambda y: 2 * y, y)


def whole_in_a_loop(ops, x, y, p, s):
    ops.copy(y, x)
    with ops.loop(3) as at:
        ops.sum(s.h.slice(1, 0, 1), y)
        ops.copy(at.now(y, 1).expand(-1), s.h.slice(1, 0, 1))


def drawn_in_a_loop(ops, x, y, p, s):
    with ops.loop(3) as at:
        ops.random(at.now(y, 1))


def unread(ops, x, y, p, s):
    ops.matmul(y, x, p.w, accumulate=True)


def scratch_unread(ops, x, y, p, s):
    ops.map(y, lambda x, h: x + h, x, s.h)


def half(ops, x, y, p, s):
    ops.copy(s.h, x)


def on_the_input(ops, x, y, p, s):
    ops.map(y, lambda x: x * x, x)
    ops.fill(p.w, 0.0)


def assigned(ops, x, y, p, s):
    s.h = x


class Within(Layer):
    def declare(self, d):
        d.child("inner", chains.Dense(2, 2), (2,))
        d.output(d.input)

    def forward(self, ops, x, y, p, s):
        with ops.loop(3) as at:
            s.children[0].forward(ops, at.now(x, 1), at.now(y, 1))


def named(ops, x, y, p, s):
    ops.record("sum")


class Centred(Cell):
    def declare(self, d):
        d.carry("h", d.input)

    def forward(self, ops, x, y, p, s):
        mean = ops.scratch("mean", x.sample_shape, batched=False)
        ops.sum(mean, s.before.h)
        ops.map(y, lambda x, m: x * m * m, x, mean)


WRONG = [
    (ValueError, "`map` overwrites `0.h`, or a part of it, which the derived pullback reads", (3,), OverPart()),
    (NotImplementedError, "of `max_pool_input`: write the layer's pullback, or `PoolInput.transpose`", (3,), pooled),
    (AttributeError, "declares no scratch arrays of that name, but h", (3,), lambda ops, x, y, p, s: s.k),
    (AttributeError, "declares no parameters\n", (3,), Plain((3,), {}, {}, lambda ops, x, y, p, s: p.w)),
    (TypeError, "ops.record takes an Operation of chains.program.operations, got 'sum'", (3,), named),
    (NotImplementedError, "no rule for the pullback of a `loop` that leaves steps out", (3,), leaving_out),
    (NotImplementedError, "a `loop` that writes to `y` in a part for each step and uses it as a whole", (3,), whole_in_a_loop),
    (ValueError, "every step of a loop would draw the same numbers", (3,), drawn_in_a_loop),
    (ValueError, "reads `y`, or a part of it, before it is filled", (3,), unread),
    (ValueError, "reads `0.h`, or a part of it, before it is filled", (3,), scratch_unread),
    (ValueError, "Plain.forward does not fill `y`", (3,), half),
    (ValueError, "`p.0.w` belongs to the inputs and may only be read", (3,), on_the_input),
    (AttributeError, "`s.h = ...` fills no array", (3,), assigned),
    (NotImplementedError, "a layer in a `loop`, here Dense: make the step a Cell for Recurrent", (3, 2), Within()),
    (ValueError, "is an array of the whole batch, made by `sum`", (3, 2), chains.Recurrent(Centred())),
]


@pytest.mark.parametrize(("error", "text", "shape", "layer"), WRONG, ids=range(len(WRONG)))
def test_wrong_uses_are_refused_with_a_sentence(error, text, shape, layer):
    layer = layer if isinstance(layer, Layer) else Plain((3,), {"w": (3, 3)}, {"h": (3,)}, layer)
    net = chains.Chain(layer, input_shape=shape, backend="numpy")
    with pytest.raises(error, match=re.escape(text)):
        net.vjp(net.init(dtype=np.float64), np.ones((2, *shape)), np.ones((2, *net.output_shape)))


def test_a_loss_without_forward_and_record_is_refused():
    net = chains.Chain(chains.Dense(2, 2), backend="numpy")
    with pytest.raises(NotImplementedError, match="Loss has no method `forward`"):
        net.value_and_grad(net.init(), np.ones((1, 2)), np.ones((1, 2)), losses.Loss())


class Cubed(chains.Dense):
    """It inherits a pullback, which is that of another forward."""

    def forward(self, ops, x, y, p, s):
        super().forward(ops, x, y, p, s)
        ops.map(y, lambda y: y * y * y, y)


def test_a_pullback_of_another_forward_is_not_used():
    check_in_a_direction(Cubed(3, 2), (3,), native=False)


class Fading(Cell):
    """A cell whose output the next step does not read: its cotangent is zero from the last step but one."""

    def declare(self, d):
        d.carry("h", d.input)
        d.carry("m", d.input)
        d.param("w", d.input, "normal")

    def forward(self, ops, x, y, p, s):
        ops.map(y, lambda x, m, w: expr.tanh(w * expr.sin(x + m)), x, s.before.m, p.w)
        ops.map(s.after.m, lambda m, y: 0.5 * m + y, s.before.m, y)


@pytest.mark.parametrize("cell", [Fading(), Leaky()], ids=["fading", "leaky"])
def test_second_derivatives_of_a_cell(cell):
    net = chains.Chain(chains.Recurrent(cell), input_shape=(3, 3), backend="numpy")
    rng, loss, h = np.random.default_rng(0), chains.SquaredLoss(), 1e-5
    p, v, x = rng.normal(size=net.n_params), rng.normal(size=net.n_params), rng.normal(size=(2, 3, 3))
    t = np.zeros((2, *net.output_shape))
    up, down = (net.value_and_grad(p + sign * v, x, t, loss, mode="eval")[1] for sign in (h, -h))
    assert_close(net.hvp(p, x, t, loss, v), (up - down) / (2 * h), 1e-7, "the product")


class Unused(chains.Chain):
    """A network that does not use its layers."""

    def forward(self, ops, x, y, p, s):
        ops.map(y, lambda x: 2.0 * x, x)


def test_gradients_of_layers_without_use_are_zero():
    net = Unused(chains.Dense(3, 3), backend="numpy")
    g = np.full(net.n_params, np.nan)
    net.value_and_grad(np.ones(net.n_params), np.ones((2, 3)), np.ones((2, 3)), chains.SquaredLoss(), out=g)
    np.testing.assert_array_equal(g, 0.0)


def test_second_derivatives_of_a_derived_layer():
    net = chains.Chain(NEW["bilinear"][1], input_shape=(3,), backend="numpy")
    rng = np.random.default_rng(0)
    p, x, t, v = rng.normal(size=net.n_params), rng.normal(size=(4, 3)), rng.normal(size=(4, 2)), rng.normal(size=net.n_params)
    found, h = net.hvp(p, x, t, chains.SquaredLoss(), v), 1e-5
    up, down = (net.value_and_grad(p + sign * h * v, x, t, chains.SquaredLoss())[1] for sign in (1, -1))
    assert math.isclose(float(np.max(np.abs((up - down) / (2 * h) - found))), 0.0, abs_tol=1e-7)


def test_a_recurrence_of_a_formula_is_derived_quickly():
    """Its terms share those before them: a walk through all paths would take 1.6 ** 60 steps."""

    def recurrence(x):
        older, last = x, 0.5 * x * x
        for _ in range(60):
            older, last = last, 0.4 * last * x + 0.3 * older
        return last

    def record(ops, x, y, p, s):
        ops.map(y, recurrence, x)

    net = chains.Chain(Plain((3,), {}, {}, record), input_shape=(3,), backend="numpy")
    x, step = np.array([[0.9, 1.1, -0.7]]), 1e-6
    _, dx = net.vjp(np.empty(0), x, np.ones((1, 3)))
    np.testing.assert_allclose(dx, (recurrence(x + step) - recurrence(x - step)) / (2.0 * step), rtol=1e-6)
