"""What makes derived pullbacks shorter: what cancels is left out, and only that; memory and maps are shared."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import expr
from chains.layers import Layer, derived, node
from chains.network import record
from chains.network.network import network_of
from tests.harness import assert_close
from tests.layers.test_derived import Plain, check_in_a_direction, derives

# A layer, the shape of its samples, and by how many operations its derived pullback may be longer.
AS_SHORT = {
    "LayerNorm": (chains.LayerNorm(64), (64,), 2),
    "GroupNorm": (chains.GroupNorm(2, 4), (4, 6), 4),
    "Attention": (chains.Attention(16, 4), (12, 16), 1),
    "Softmax": (chains.Softmax(), (12,), 1),
}


@pytest.mark.parametrize("name", AS_SHORT)
def test_derived_is_as_short_as_hand_written(name, monkeypatch):
    layer, shape, more = AS_SHORT[name]
    net = network_of(chains.Chain(layer, input_shape=shape))
    criterion = record.Criterion(chains.SquaredLoss(), net.declaration.output_shape)
    hand = record.gradient(net, criterion, "float64", True, wanted=("g", "dx"))
    monkeypatch.setattr(node, "derives", derives)
    derived = record.gradient(net, criterion, "float64", True, wanted=("g", "dx"))
    assert len(derived.operations) <= len(hand.operations) + more
    assert derived.scratch.bytes_per_sample <= 1.1 * hand.scratch.bytes_per_sample


def pulled_back(layer, shape):
    """The text of the program of the pullback, and that of the forward pass in it."""
    return str(record.vjp(network_of(chains.Chain(layer, input_shape=shape)), "float64", True))


def softmax(ops, x, y, p, s):
    ops.max(s.row, x)
    ops.map(y, lambda x, m: expr.exp(2.0 * (x - m)), x, s.row)
    ops.sum(s.total, y)
    ops.map(y, lambda e, t: e / t, y, s.total)


def mean_of_all(ops, x, y, p, s):
    """The logarithm of the mean of exponentials, whose largest entry is taken out."""
    ops.max(s.row, x)
    ops.map(s.e, lambda x, m: expr.exp(x - m), x, s.row)
    ops.sum(s.total, s.e)
    ops.map(y, lambda x, t, m, w: w * (x - (expr.log(t) + m)), x, s.total, s.row, p.w)


def also_elsewhere(ops, x, y, p, s):
    softmax(ops, x, y, p, s)
    ops.map(y, lambda y, m: y * m, y, s.row)


def other_number(ops, x, y, p, s):
    """Not softmax: the number that is subtracted from the numerator's exponent is another."""
    ops.max(s.row, x)
    ops.map(s.e, lambda x, m: expr.exp(x - m), x, s.row)
    ops.sum(s.total, s.e)
    ops.map(y, lambda x, t, m: expr.exp(x - 0.5 * m) / t, x, s.total, s.row)


def one_more(ops, x, y, p, s):
    ops.max(s.row, x)
    ops.map(y, lambda x, m: expr.exp(x - m), x, s.row)
    ops.sum(s.total, y)
    ops.map(y, lambda e, t: e / (1.0 + t), y, s.total)


def over_columns(ops, x, y, p, s):
    """The sum goes over an axis along which the largest entries vary."""
    ops.max(s.row, x)
    ops.map(s.e, lambda x, m: expr.exp(x - m), x, s.row)
    ops.sum(s.column, s.e)
    ops.map(y, lambda e, t: e / t, s.e, s.column)


def part_of_it(ops, x, y, p, s):
    softmax(ops, x, s.e, p, s)
    ops.max(s.row, x)
    ops.map(s.e.slice(1, 0, 1), lambda e, m: e * m, s.e.slice(1, 0, 1), s.row.slice(1, 0, 1))
    ops.copy(y, s.e)


SHAPES = {"row": (2, 1), "total": (2, 1), "column": (1, 3), "e": (2, 3)}
MAXIMA = {
    "softmax": (softmax, True), "mean of all": (mean_of_all, True), "also elsewhere": (also_elsewhere, False),
    "other number": (other_number, False), "one more": (one_more, False), "over columns": (over_columns, False),
    "part of it": (part_of_it, False),
}  # fmt: skip


@pytest.mark.parametrize("name", MAXIMA)
def test_a_maximum_that_cancels_is_not_pulled_back(name):
    function, cancels = MAXIMA[name]
    layer = Plain((2, 3), {"w": (3,)}, SHAPES, function)
    check_in_a_direction(layer, (2, 3), native=name in ("softmax", "over columns"))
    assert ("chosen" in pulled_back(layer, (2, 3))) != cancels


def divided_by_sum(ops, x, y, s):
    ops.sum(s.total, s.e)
    ops.map(y, lambda x, v: x / (1.0 + v), x, s.total)


def variance(ops, x, y, p, s):
    ops.sum(s.total, x)
    ops.map(s.row, lambda t: t * (1.0 / 3.0), s.total)
    ops.map(s.e, lambda x, m: (x - m) * (x - m), x, s.row)
    divided_by_sum(ops, x, y, s)


def weighted(ops, x, y, p, s):
    """The squares have weights, which do not cancel."""
    ops.sum(s.row, x)
    ops.map(s.row, lambda t: t / 3.0, s.row)
    ops.map(s.e, lambda x, m, w: (x - m) * (x - m) * w, x, s.row, p.w)
    divided_by_sum(ops, x, y, s)


def half_of_it(ops, x, y, p, s):
    """What is subtracted is half of the mean."""
    ops.sum(s.row, x)
    ops.map(s.row, lambda t: t / 6.0, s.row)
    ops.map(s.e, lambda x, m: (x - m) * (x - m), x, s.row)
    divided_by_sum(ops, x, y, s)


def mean_of_others(ops, x, y, p, s):
    """The mean is that of squares, and the sum goes over x minus it."""
    ops.map(s.e, lambda x: x * x, x)
    ops.sum(s.row, s.e)
    ops.map(s.row, lambda t: t / 3.0, s.row)
    ops.map(s.e, lambda x, m: (x - m) * (x - m), x, s.row)
    divided_by_sum(ops, x, y, s)


def mean_of_before(ops, x, y, p, s):
    """The array changes after its mean is taken."""
    ops.map(s.e, lambda x: x * x, x)
    ops.sum(s.row, s.e)
    ops.map(s.row, lambda t: t / 3.0, s.row)
    ops.map(s.e, lambda e, w: e * w, s.e, p.w)
    ops.map(s.e, lambda e, m: (e - m) * (e - m), s.e, s.row)
    divided_by_sum(ops, x, y, s)


def mean_of_the_step_before(ops, x, y, p, s):
    """What is subtracted in a step is the mean that the step before it left."""
    ops.fill(s.row, 0.3)
    with ops.loop(2) as at:
        now, mean = at.now(x, 1), s.row.index(1, 0)
        ops.map(s.e.index(1, 0), lambda x, m: (x - m) * (x - m), now, mean)
        ops.sum(s.total.index(1, 0), s.e.index(1, 0))
        ops.map(at.now(y, 1), lambda x, v, w: w * x / (1.0 + v), now, s.total.index(1, 0), p.w)
        ops.sum(s.total.index(1, 1), now)
        ops.map(mean, lambda t: t / 3.0, s.total.index(1, 1))


@pytest.mark.parametrize("function", [variance, weighted, half_of_it, mean_of_others, mean_of_before, mean_of_the_step_before])
def test_a_sum_of_differences_from_the_mean_is_zero(function):
    layer = Plain((2, 3), {"w": (3,)}, SHAPES, function)
    check_in_a_direction(layer, (2, 3), native=function is variance)


def divided_tanh(ops, x, y, p, s):
    """The pullback of tanh reads its result twice: the quotient does not tell it as a factor."""
    ops.map(s.e, lambda x, w: expr.tanh(x * w), x, p.w)
    ops.sum(s.total, s.e)
    ops.map(s.e, lambda e, t: e / t, s.e, s.total)
    ops.map(y, lambda e: e * e, s.e)


def divided_exp(ops, x, y, p, s):
    ops.map(s.e, lambda x, w: expr.exp(x * w), x, p.w)
    ops.sum(s.total, s.e)
    ops.map(s.e, lambda e, t: e / t, s.e, s.total)
    ops.map(y, lambda e: e * e, s.e)


def divided_later(ops, x, y, p, s):
    """What is divided is no longer the exponential: more was added to it."""
    ops.map(s.e, lambda x, w: expr.exp(x * w), x, p.w)
    ops.matmul(s.e.rows, x.rows, p.m, accumulate=True)
    ops.map(s.row, lambda w: 2.0 + w * w, p.w.slice(0, 0, 1))
    ops.map(s.e, lambda e, t: e / t, s.e, s.row)
    ops.map(y, lambda e: e * e, s.e)


def larger_of_a_part(ops, x, y, p, s):
    """A map in the memory of an operand of which it reads a part too."""
    ops.sum(s.row, x)
    ops.map(s.e, lambda x, w: expr.exp(x * w), x, p.w)
    ops.map(s.e, lambda e, w, part: (e + w) * part, s.e, s.row, s.e.slice(2, 1, 2))
    ops.map(y, lambda e, x, w: expr.maximum(expr.maximum(w, x), abs(e)), s.e, x, p.w)


def overwritten_twice(ops, x, y, p, s):
    """The cotangent of the exponential goes where that of y was, but not to what y was before."""
    ops.map(s.e, lambda x, w: expr.exp(x * w), x, p.w)
    ops.sum(s.row, s.e)
    ops.map(y, lambda e, r: e / r, s.e, s.row)
    ops.map(y, lambda e: expr.sin(e), s.e)
    ops.map(y, lambda y, x: y * y * x, y, x)


def shared_sine(ops, x, y, p, s):
    """Terms of one sine: the map that sums for the weights would compute it again."""
    ops.map(y, lambda x, w: expr.sin(x * w), x, p.w)


def squares_of_rows(ops, x, y, p, s):
    """The cotangent of squares is that of a sum in every entry, and is read by two terms."""
    ops.map(s.e, lambda x, w: x * x * w, x, p.w)
    ops.sum(s.row, s.e)
    ops.map(y, lambda e, r, x: e * r + x, s.e, s.row, x)


def sums_of_sums(ops, x, y, p, s):
    """The cotangent of the sums has one number for many entries, and is added up for the row."""
    ops.max(s.row, x)
    ops.map(s.e, lambda x, r: x + r, x, s.row)
    ops.sum(s.total, s.e)
    ops.map(y, lambda t, x, w: t * x - w, s.total, x, p.w)


def in_place(ops, x, y, p, s):
    """y is overwritten: the cotangent of the scratch array may not move to its memory."""
    ops.map(s.e, lambda x, w: x * w, x, p.w)
    ops.map(y, lambda e: expr.sin(e), s.e)
    ops.map(s.e, lambda e, y: e * y, s.e, y)
    ops.map(y, lambda e, y: expr.cos(e) * y, s.e, y)


SHARED = [
    divided_tanh, divided_exp, divided_later, larger_of_a_part, overwritten_twice, shared_sine, squares_of_rows, sums_of_sums,
    in_place,
]  # fmt: skip


@pytest.mark.parametrize("function", SHARED)
def test_shared_memory_and_maps(function):
    layer = Plain((2, 3), {"w": (3,), "m": (3, 3)}, SHAPES, function)
    check_in_a_direction(layer, (2, 3), native=True)


def test_what_a_division_overwrites_is_not_kept():
    """exp(x) is the quotient times the total; tanh of a number, whose square is read too, is kept."""
    assert "before" not in pulled_back(Plain((2, 3), {"w": (3,)}, SHAPES, divided_exp), (2, 3)).split("buffers")[0]
    assert "before" in pulled_back(Plain((2, 3), {"w": (3,)}, SHAPES, divided_tanh), (2, 3)).split("buffers")[0]


@pytest.mark.parametrize("layer", [chains.Attention(4, 2), chains.LayerNorm(4)], ids=str)
def test_the_pullback_is_recorded_once(layer, monkeypatch):
    """It is known afterwards which contents it reads, without another time."""
    seen, kind = [], type(layer)
    monkeypatch.setattr(node, "derives", lambda each: isinstance(each, kind))
    own = derived.LoopTransposer
    monkeypatch.setattr(derived, "LoopTransposer", lambda *given: seen.append(own(*given)) or seen[-1])
    record.vjp(network_of(chains.Chain(layer, input_shape=(3, 4))), "float64", True)
    assert len(seen) == 1


def divided_by_zero(ops, x, y, p, s):
    """The quotient is not used where the divisor is zero, what was divided is."""
    ops.map(s.e, lambda x: expr.sin(x), x)
    ops.map(y, lambda e, w: e * w, s.e, p.w)
    ops.map(s.column, lambda x: expr.maximum(x, 0.0), x.slice(1, 0, 1))
    ops.map(s.e, lambda e, m: e / m, s.e, s.column)
    ops.map(y, lambda e, y, m: expr.where(m > 0.0, e, y), s.e, y, s.column)


def test_a_factor_is_no_quotient_times_zero():
    net = chains.Chain(Plain((2, 3), {"w": (3,)}, SHAPES, divided_by_zero), input_shape=(2, 3), backend="numpy")
    x = np.array([[[1.0, -1.0, 2.0], [0.5, 0.3, -2.0]]])
    g, _ = net.vjp(np.ones(3), x, np.ones(x.shape))
    assert_close(g, np.where(x[0, 0] > 0.0, 0.0, np.sin(x[0])).sum(0), 1e-15, "gradient")


class Turned(Layer):
    """A layer whose pullback by hand reads a cotangent as it is, and with axes swapped."""

    def declare(self, d):
        d.output(d.input)

    def forward(self, ops, x, y, p, s):
        ops.map(y, lambda a, b: a + 2.0 * b, x, x.swap(-1, -2))

    def pullback(self, ops, x, y, dy, dx, p, g, s):
        ops.map(dx, lambda a, b: a + 2.0 * b, dy, dy.swap(-1, -2))


class SineOfTurned(Layer):
    def declare(self, d):
        d.child("turned", Turned(), d.input)
        d.temporary("z", d.input)
        d.output(d.input)

    def forward(self, ops, x, y, p, s):
        s.children[0].forward(ops, x, s.z)
        ops.map(y, lambda z: expr.sin(z), s.z)


def test_a_map_that_reads_an_array_in_two_ways_does_not_compute_it():
    check_in_a_direction(SineOfTurned(), (3, 3), native=True)
