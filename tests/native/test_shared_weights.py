"""Weights that several products of a program share: their gradients are sums over the samples that accumulate."""

from __future__ import annotations

import numpy as np
import pytest

from chains import SGD, Adam, Chain, Dense, SquaredLoss, expr
from chains.backends.numpy.backend import NumpyBackend
from chains.layers import Layer
from chains.network import record
from chains.network.network import network_of
from chains.testing import check_gradients

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native.compiler import compile_program
from chains.backends.native.llvm.target import processor
from chains.lowering.tiling import is_large
from tests.native.support import (
    Fenced,
    Maps,
    assert_equal_results,
    every_instruction_set,
    floats,
    gradient_program,
    native,
    random_arrays,
    run_fenced,
    run_on,
)
from tests.native.team import assert_same_bits, fed, problem, program_of, states

pytestmark = pytest.mark.few(3)


class Recurrence(Layer):
    """h_t = tanh(x_t W + h_{t-1} U + b) over the steps of a sequence, unrolled; the output is the last h.

    The gradients of W and U are sums over the steps: the last step's fill them, the others' are added.
    """

    def __init__(self, units):
        self.units = units

    def declare(self, d):
        steps, features = d.input
        d.param("weight", (features, self.units), "glorot_uniform")
        d.param("recurrent", (self.units, self.units), "glorot_uniform")
        d.param("bias", (self.units,), 0.1)
        d.saved("h", (steps, self.units))
        d.temporary("dz", (steps, self.units))
        d.temporary("dh", (self.units,))
        d.output((self.units,))

    def forward(self, ops, x, y, p, s):
        for t in range(x.shape[1]):
            h = s.h.index(1, t)
            ops.matmul(h, x.index(1, t), p.weight)
            if t > 0:
                ops.matmul(h, s.h.index(1, t - 1), p.recurrent, accumulate=True)
            ops.map(h, lambda z, b: expr.tanh(z + b), h, p.bias)
        ops.copy(y, h)

    def pullback(self, ops, x, y, dy, dx, p, g, s):
        last = x.shape[1] - 1
        ops.copy(s.dh, dy)
        for t in range(last, -1, -1):
            h, dz = s.h.index(1, t), s.dz.index(1, t)
            ops.map(dz, lambda dh, h: dh * (1 - h * h), s.dh, h)
            ops.matmul(g.weight, x.index(1, t).T, dz, accumulate=t < last)
            ops.matmul(dx.index(1, t), dz, p.weight.T)
            if t > 0:
                ops.matmul(g.recurrent, s.h.index(1, t - 1).T, dz, accumulate=t < last)
                ops.matmul(s.dh, dz, p.recurrent.T)
        ops.sum(g.bias, s.dz)


STEPS = 7
BATCHES = (1, 5, 100, 1000)


def recurrent(features=3, units=5, steps=STEPS):
    return Chain(Recurrence(units), Dense(units, 2), input_shape=(steps, features))


def training_step(net, optimizer, kind):
    objective = record.Criterion(SquaredLoss(), net.output_shape)
    return record.training_step(network_of(net), objective, optimizer, np.dtype(kind))


def assert_equals_numpy(program, kind, batches=BATCHES, threads=(1, 2, 3), simd=None, factor=1.0, runs=1):
    """The same results as NumPy's for all batches and threads, and the same bits every time."""
    for batch in batches:
        arrays = random_arrays(program, batch)
        if "p" in arrays:
            arrays["p"] *= 0.2  # so that training goes down
        wanted = run_on(NumpyBackend(), program, batch, arrays, runs=runs)
        for count in threads:
            what, fences = f"batch {batch}, {count} threads", Fenced()
            actual = run_fenced(native(count, simd), program, batch, arrays, fences, runs=runs)
            fences.check(what)
            assert_equal_results(actual, wanted, kind, what, factor=factor)
            again = run_on(native(count, simd), program, batch, arrays, runs=runs)
            assert all(again[name].tobytes() == array.tobytes() for name, array in actual.items()), what


def test_gradients_of_an_unrolled_recurrence_are_right():
    check_gradients(Chain(Recurrence(3), input_shape=(STEPS, 2)), batch=3)


@pytest.mark.few(1)
@every_instruction_set
@floats
def test_an_unrolled_recurrence_equals_numpy(kind, simd, eager):
    for features, units in ((3, 5), (17, 16)):
        assert_equals_numpy(gradient_program(recurrent(features, units), kind), kind, simd=simd)


@every_instruction_set
@floats
@pytest.mark.parametrize("optimizer", [SGD(0.1), Adam(0.01)], ids=["SGD", "Adam"])
def test_training_steps_of_an_unrolled_recurrence_equal_numpy(optimizer, kind, simd, eager):
    assert_equals_numpy(training_step(recurrent(), optimizer, kind), kind, simd=simd, factor=20.0, runs=3)


def in_one_segment(program):
    """Whether the whole program goes through the tiles at once, with nothing kept for the whole batch."""
    return "@work_1(" not in compile_program(program, processor()).text


def test_an_unrolled_recurrence_is_one_segment():
    assert in_one_segment(gradient_program(recurrent(), "float32"))
    assert in_one_segment(training_step(recurrent(), Adam(0.01), "float32"))


# Single sums


SHAPES = [(5, 4), (16, 16), (3, 40), (40, 3), (1, 33), (33, 1)]


def sums(kind, record, *shapes):
    """A program on samples x and y with as many columns as g has rows and columns; g is a state."""
    (rows, columns), *_ = shapes
    m = Maps(kind)
    g = m.output("g", rows, columns, batched=False, role="state")
    record(m.ops, g, m.input("x", rows), m.input("y", columns))
    return m.program()


@floats
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_sum_adds_to_what_was_there(shape, kind, eager):
    """Once, whatever the number of threads and tiles, and again in every run."""

    def record(ops, g, x, y):
        ops.matmul(g, x.T, y, accumulate=True)

    assert_equals_numpy(sums(kind, record, shape), kind, runs=2, factor=4.0)


@floats
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_three_products_into_the_same_weights(shape, kind, eager):
    def record(ops, g, x, y):
        for k in range(3):
            ops.matmul(g, x.T, y, accumulate=k > 0)

    program = sums(kind, record, shape)
    assert in_one_segment(program)
    assert_equals_numpy(program, kind, factor=4.0)


@pytest.mark.parametrize("whole_first", [True, False])
@pytest.mark.parametrize("accumulate", [True, False])
def test_sums_into_parts_of_the_same_weights(accumulate, whole_first, eager):
    """What nobody has begun yet is added to what was there; what meets other sums in part waits for these."""

    def record(ops, g, x, y):
        part = g.slice(0, 2, 5).slice(1, 1, 4)
        if whole_first:
            ops.matmul(g, x.T, y, accumulate=accumulate)
            ops.matmul(part, x.slice(1, 2, 5).T, y.slice(1, 1, 4), accumulate=True)
        else:
            ops.matmul(part, x.slice(1, 2, 5).T, y.slice(1, 1, 4), accumulate=accumulate)
            ops.matmul(g, x.T, y, accumulate=True)
        ops.matmul(g.slice(0, 4, 5), x.slice(1, 0, 1).T, y, accumulate=True)

    program = sums("float32", record, (6, 5))
    assert in_one_segment(program) == whole_first
    assert_equals_numpy(program, "float32", runs=2, factor=4.0)


@pytest.mark.parametrize("rows", [3, 40])
def test_sums_into_transposed_weights(rows, eager):
    def record(ops, g, x, y):
        ops.matmul(g, x.T, y)
        ops.matmul(g.T, y.T, x, accumulate=True)

    program = sums("float32", record, (rows, 16))
    assert in_one_segment(program)
    assert_equals_numpy(program, "float32", factor=4.0)


def test_a_sum_onto_what_is_filled_or_changed_before(eager):
    def record(ops, g, x, y):
        ops.fill(g, 0.5)
        ops.matmul(g, x.T, y, accumulate=True)
        ops.map(g, lambda g: 2.0 * g, g)
        ops.matmul(g, x.T, y, accumulate=True)

    assert_equals_numpy(sums("float32", record, (6, 5)), "float32", factor=8.0)


def test_a_second_product_replaces_the_first(eager):
    def record(ops, g, x, y):
        ops.matmul(g, x.T, y)
        ops.matmul(g, x.T, x.slice(1, 0, 5))

    assert_equals_numpy(sums("float32", record, (6, 5)), "float32")


def test_a_product_after_a_maximum_waits(eager):
    def record(ops, g, x, y):
        ops.max(g.reshape(30).slice(0, 3, 8).reshape(1, 5), y)
        ops.matmul(g, x.T, y, accumulate=True)

    assert_equals_numpy(sums("float32", record, (6, 5)), "float32", factor=4.0)


def test_a_sum_then_a_product_into_the_same_row(eager):
    def record(ops, g, x, y):
        ops.sum(g, y)
        ops.matmul(g, x.T, y, accumulate=True)

    assert_equals_numpy(sums("float32", record, (1, 7)), "float32", factor=4.0)


@pytest.mark.parametrize("filled", [True, False])
def test_rows_of_a_table_that_two_layers_share(filled, eager):
    m = Maps("float32")
    table = m.output("table", 9, 4, batched=False, role="state")
    if filled:
        m.ops.fill(table, 0.0)
    for name in ("a", "b"):
        m.ops.scatter_add(table, m.input(f"{name} index", dtype=np.int64), m.input(name, 4))
    program = m.program()
    for batch in BATCHES:
        arrays = random_arrays(program, batch)
        for name in ("a index", "b index"):
            arrays[name] = np.random.default_rng(batch).integers(-1, 11, batch)
        wanted = run_on(NumpyBackend(), program, batch, arrays, runs=2)
        for threads in (1, 3):
            actual = run_on(native(threads), program, batch, arrays, runs=2)
            assert_equal_results(actual, wanted, "float32", f"batch {batch}, {threads} threads", factor=4.0)


# Beside what is done to products


@pytest.mark.few(1)
@floats
def test_large_products_that_share_weights(kind, eager):
    net = Chain(Recurrence(370), input_shape=(3, 380))
    program = gradient_program(net, kind)
    assert any(is_large(operation) and operation.accumulate for operation in program.operations)
    assert_equals_numpy(program, kind, batches=(1, 13, 60), threads=(1, 2), factor=20.0)
    assert_equals_numpy(training_step(net, SGD(0.1), kind), kind, batches=(13,), threads=(1, 2), factor=20.0, runs=2)


@pytest.mark.few(1)
@floats
@pytest.mark.parametrize("optimizer", [SGD(0.1), SGD(0.1, momentum=0.9)], ids=["SGD", "momentum"])
def test_shared_weights_go_down_the_gradient_when_it_is_whole(optimizer, kind, eager):
    """Products of other weights may take the step with the gradient in registers; those of shared weights may not."""
    net = Chain(Recurrence(32), Dense(32, 500), Dense(500, 3), input_shape=(3, 40))
    assert_equals_numpy(training_step(net, optimizer, kind), kind, batches=(1, 40, 100), threads=(1, 2), factor=20.0, runs=3)


@pytest.mark.few(1)
@floats
@pytest.mark.parametrize("threads", [2, 3])
def test_shared_weights_whose_rows_are_divided_among_threads(threads, kind, many):
    net = Chain(Recurrence(96), Dense(96, 10), input_shape=(4, 90))
    program = program_of(net, SGD(0.01), kind)
    for batch in (1, 3, 15):
        sources, order = problem(net, batch, kind)
        arrays = states(program, batch)
        runner = native(threads)
        assert runner.compile(program, batch).signature.parts >= 2
        alone = fed(runner, program, batch, arrays, sources, order)
        assert_same_bits(fed(runner, program, batch, arrays, sources, order, together=True), alone, f"batch {batch}")
        assert_equal_results(alone, fed(NumpyBackend(), program, batch, arrays, sources, order), kind, factor=100)
