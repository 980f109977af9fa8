"""relu moved behind max pooling: where it happens, where it must not, and that no bit of any result changes."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import Activation, AvgPool, Chain, Conv, Dense, Flatten, Layer, MaxPool, Residual, SquaredLoss, relu
from chains.program.operations import Map, Pool, PoolInput
from chains.program.program import Program
from chains.program.simplify import live, without_copies
from tests.harness import assert_same_bits, record_all, run_program

pytestmark = pytest.mark.few(10)

POOLS = [
    MaxPool(2),
    MaxPool(3, stride=1),
    MaxPool(3, stride=2, padding=1),
    MaxPool((1, 2), stride=(2, 1)),
    MaxPool((2, 3), stride=1, padding=1),
]
every_pool = pytest.mark.parametrize("pool", POOLS, ids=str)


def both(layers, shape, dtype=np.float64, *, pullback=True):
    """The network, its program as it is made, and as it was recorded: without anything moved."""
    net = Chain(*layers, input_shape=shape)
    ops = record_all(net, dtype, pullback=pullback)
    return net, ops.finish(), Program(ops.name, ops.dtype, tuple(without_copies(live(ops.operations))))


def order(program):
    """The operations that the move is about: relu (of any length), its pullback and the two of max pooling."""
    return [name for name in map(order_of, program.operations) if name]


def order_of(operation):
    if isinstance(operation, Map):
        return {"max": "relu", "where": "slope"}.get(operation.formula.instructions[-1].operation)
    return operation.name if isinstance(operation, Pool) else None


MOVED = ["max_pool", "relu", "slope", "max_pool_input"]
KEPT = ["relu", "max_pool", "max_pool_input", "slope"]


def outputs(program, name, batch, net, x, dy):
    p = np.random.default_rng(3).normal(size=net.n_params)
    arrays = {"p": np.round(4 * p) / 4, "x": x, "dy": dy}
    return run_program(program, name, batch, {key: arrays[key] for key in arrays if key in program.buffers})


def images(kind, shape, rng):
    """Images with ties, without a positive entry, of zeros alone, with infinities or NaN; a zero is positive."""
    x = rng.normal(size=shape)
    if kind == "ties":
        x = np.round(x) + 0.0
    elif kind == "negative":
        x = -abs(x)
    elif kind == "zeros":
        x = np.zeros(shape)
    elif kind == "none above zero":
        x = np.minimum(np.round(x), 0.0) + 0.0
    elif kind == "not finite":
        x[rng.random(shape) < 0.1] = np.nan
        x[rng.random(shape) < 0.1] = np.inf
        x[rng.random(shape) < 0.1] = -np.inf
    return x


KINDS = ["random", "ties", "negative", "zeros", "none above zero", "not finite"]


@pytest.mark.parametrize("kind", KINDS)
@every_pool
def test_not_a_bit_changes_behind_an_activation(pool, kind, dtype, backend_name):
    rng = np.random.default_rng(0)
    net, made, recorded = both((Activation(relu), pool), (3, 7, 6), dtype=dtype)
    x, dy = images(kind, (4, 3, 7, 6), rng), rng.normal(size=(4, *net.output_shape))
    assert order(made) == MOVED
    assert order(recorded) == KEPT
    results = [outputs(program, backend_name, 4, net, x, dy) for program in (made, recorded)]
    assert_same_bits(*results)
    assert kind not in ("random", "ties") or np.any(results[0]["dx"])


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("kind", KINDS[:-1])
@every_pool
def test_not_a_bit_changes_behind_a_convolution(pool, kind, bias, dtype, backend_name):
    rng = np.random.default_rng(1)
    layers = (Conv(2, 3, 2, relu, padding=1, bias=bias), pool, Conv(3, 2, 2, relu), MaxPool(2), Flatten())
    net, made, recorded = both(layers, (2, 8, 9), dtype=dtype)
    x, dy = images(kind, (3, 2, 8, 9), rng), rng.normal(size=(3, *net.output_shape))
    assert order(made) == ["max_pool", "relu"] * 2 + ["slope", "max_pool_input"] * 2
    assert_same_bits(*(outputs(program, backend_name, 3, net, x, dy) for program in (made, recorded)))


def test_a_negative_zero_stays_equal(backend_name):
    net, made, recorded = both((Activation(relu), MaxPool(2)), (1, 2, 4))
    x, dy = np.array([[[[-0.0, -1.0, 0.0, -0.0], [-2.0, -0.0, -0.0, 3.0]]]]), np.ones((1, 1, 1, 2))
    a, b = (outputs(program, backend_name, 1, net, x, dy) for program in (made, recorded))
    np.testing.assert_array_equal(a["y"], b["y"])
    np.testing.assert_array_equal(a["dx"], b["dx"])
    np.testing.assert_array_equal(a["dx"][0, 0], [[0, 0, 0, 0], [0, 0, 0, 1]])


def test_cotangents_that_are_not_finite_stop_where_relu_is_flat(backend_name):
    net, made, recorded = both((Activation(relu), MaxPool(2)), (1, 2, 4))
    x, dy = np.array([[[[-1.0, -1.0, 1.0, 2.0]] * 2]]), np.array([[[[np.nan, np.inf]]]])
    a, b = (outputs(program, backend_name, 1, net, x, dy) for program in (made, recorded))
    assert_same_bits(a, b)
    np.testing.assert_array_equal(a["dx"][0, 0], [[0, 0, 0, np.inf], [0, 0, 0, 0]])


def test_signals_too(backend_name):
    rng = np.random.default_rng(2)
    net, made, recorded = both((Conv(2, 3, (3,), relu), MaxPool((2,))), (2, 9))
    assert order(made) == MOVED
    x, dy = np.round(rng.normal(size=(3, 2, 9))), rng.normal(size=(3, *net.output_shape))
    assert_same_bits(*(outputs(program, backend_name, 3, net, x, dy) for program in (made, recorded)))


def test_a_forward_pass_alone(backend_name):
    net, made, recorded = both((Conv(1, 2, 2, relu), MaxPool(2), MaxPool(2)), (1, 9, 9), pullback=False)
    assert order(made) == ["max_pool", "max_pool", "relu"]
    assert order(recorded) == ["relu", "max_pool", "max_pool"]
    x = np.random.default_rng(0).normal(size=(2, 1, 9, 9))
    assert_same_bits(*(outputs(program, backend_name, 2, net, x, None) for program in (made, recorded)))


def test_a_training_step_is_moved_and_a_frozen_layer_needs_no_pullback():
    net = Chain(Conv(1, 2, 2, relu), MaxPool(2), Flatten(), Dense(8, 2), input_shape=(1, 5, 5))
    assert order(net.program(SquaredLoss(), chains.Adam())) == MOVED
    assert order(net.with_frozen("0.*").program(SquaredLoss(), chains.Adam())) == ["max_pool", "relu"]


class ReadTwice(Layer):
    """A max pool that also reads its input otherwise."""

    def declare(self, d):
        d.output((d.input[0], 2))

    def forward(self, ops, x, y, p, s):
        pooled = ops.scratch("pooled", (y.sample_shape[0], 1, 1))
        window = chains.MaxPool(x.sample_shape[1:]).window
        ops.pool("max", pooled, x, window)
        ops.copy(y.slice(2, 0, 1), pooled.reshape(y.sample_shape[0], 1))
        ops.sum(y.slice(2, 1, 2), x.reshape(x.sample_shape[0], x.sample_size // x.sample_shape[0]))

    def pullback(self, ops, x, y, dy, dx, p, g, s):
        ops.map(dx, lambda x: 0.0 * x, x)


@pytest.mark.parametrize(
    ("layers", "wanted"),
    [
        ((Activation(relu), AvgPool(2)), ["relu", "mean_pool", "mean_pool_input", "slope"]),
        ((Activation("leaky_relu"), MaxPool(2)), ["slope", "max_pool", "max_pool_input"]),
        ((Residual(Activation(relu)), MaxPool(2)), ["relu", "max_pool", "max_pool_input", "slope"]),
        ((Activation(relu), Residual(Activation("sin")), MaxPool(2)), ["relu", "max_pool", "max_pool_input", "slope"]),
        ((Activation(relu), chains.Parallel(MaxPool(2), MaxPool(2))), None),
        ((Activation(relu), ReadTwice()), None),
        ((Activation(relu),), ["relu", "slope"]),
    ],
    ids=str,
)
def test_what_stays_where_it_is(layers, wanted, backend_name):
    net, made, recorded = both(layers, (2, 4, 4))
    assert order(made) == order(recorded)
    assert wanted is None or order(made) == wanted
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(2, 2, 4, 4)), rng.normal(size=(2, *net.output_shape))
    assert_same_bits(*(outputs(program, backend_name, 2, net, x, dy) for program in (made, recorded)))


def test_a_moved_relu_reads_and_fills_what_it_should():
    _, made, _ = both((Conv(1, 1, 1, relu), MaxPool(2)), (1, 4, 4))
    pool, after, masked, pulled = (operation for operation in made.operations if order_of(operation))
    assert after.ins == after.outs == pool.outs
    assert isinstance(pulled, PoolInput)
    assert masked.ins[1] == pulled.ins[2] == pool.outs[0]
    assert pulled.ins[:2] == (masked.outs[0], pool.ins[0])
