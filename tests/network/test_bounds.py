"""Parameters with bounds: what is stored for them, what layers, files and people see, what is refused."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

import chains
from chains import ODE, Adam, Chain, Dense, Equations, MSELoss, SquaredLoss, train
from chains.exporting.header import header_text
from chains.exporting.interface import Request, interface_of
from chains.layers import Layer
from chains.network.network import network_of
from chains.params import Bounds, bounds_of
from tests.own import Monotone

KINDS = [Bounds(0.0, None), Bounds(-2.0, None), Bounds(None, 3.0), Bounds(-1.0, 5.0), Bounds(0.0, 1e6)]
RATES = partial(Equations, lambda x, k, d: (k - d) * x, ("x",), parameters={"k": 3e7, "d": 0.25})
BOUNDS = {"k": (0, None), "d": (0.1, 2)}


@pytest.mark.parametrize("bounds", KINDS, ids=str)
def test_values_stay_within_and_come_back(bounds):
    stored = np.linspace(-20.0, 20.0, 81)
    value, slope = bounds.value_and_slope(stored)
    assert np.all(value > (-np.inf if bounds.low is None else bounds.low))
    assert np.all(value < (np.inf if bounds.high is None else bounds.high))
    near = np.abs(stored) <= 10.0  # further out an interval's ends round
    np.testing.assert_allclose(bounds.stored(value)[near], stored[near], rtol=0.0, atol=1e-10)
    h = 1e-5
    difference = (bounds.value_and_slope(stored + h)[0] - bounds.value_and_slope(stored - h)[0]) / (2 * h)
    np.testing.assert_allclose(slope, difference, rtol=1e-8, atol=1e-9 * np.abs(value).max())


def test_small_values_keep_their_digits():
    for bounds in (Bounds(0.0, None), Bounds(0.0, 1e6)):
        values = np.array([1e-12, 3e-5, 1.0, 7e5])
        np.testing.assert_allclose(bounds.value(bounds.stored(values)), values, rtol=1e-14)


def test_an_interval_does_not_overflow():
    with np.errstate(all="raise"):
        assert Bounds(-1.0, 5.0).value(np.array([-700.0, 0.0, 700.0])).tolist() == [-1.0, 2.0, 5.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_network_has_values_and_what_is_stored(dtype):
    net = Chain(RATES(bounds=BOUNDS))
    p = net.init(dtype=dtype)
    assert net.values(p)["0.k"] == pytest.approx(3e7, rel=1e-5)
    assert net.values(p)["0.d"] == pytest.approx(0.25)
    assert net.views(p)["0.k"] == pytest.approx(np.log(3e7))
    assert net.values(p)["0.k"].dtype == dtype
    assert not np.shares_memory(net.values(p)["0.k"], p)
    assert net(np.ones((1, 1), dtype), p)[0, 0] == pytest.approx(3e7 - 0.25, rel=1e-5)
    assert "0.k is above 0: 3e+07, stored as 17.2167\n0.d is between 0.1 and 2: 0.25, stored as -2.45674" in net.summary(p)
    assert net.summary().endswith("0.k is above 0\n0.d is between 0.1 and 2")
    matrix = Chain(Monotone(2), input_shape=(3,))
    assert re.search(r"0.weight is above 0: 0\.\d+ to 0\.\d+, stored as -", matrix.summary(matrix.init(dtype=dtype)))


def test_without_bounds_nothing_is_recorded():
    net = Chain(RATES())
    assert [str(operation) for operation in net.program(MSELoss()).operations] == [
        str(operation) for operation in Chain(RATES(bounds={"k": (None, np.inf)})).program(MSELoss()).operations
    ]
    assert str(net.program(MSELoss())).count("exp") == 0


def test_training_stays_within():
    net = Chain(RATES(bounds={"k": (0, None), "d": (0.0, 1.0)}, parameters={"k": 0.5, "d": 0.5}))
    p, x = net.init(dtype=np.float64), np.ones((4, 1))
    train(net, p, x, -3.0 * x, MSELoss(), Adam(0.5), epochs=200, batch_size=None, progress=False)
    values = net.values(p)
    assert 0.0 < values["0.k"] < 1e-3
    assert 0.999 < values["0.d"] < 1.0


def test_frozen_parameters_keep_their_value():
    net = Chain(RATES(bounds=BOUNDS)).with_frozen("0.k")
    p, x = net.init(dtype=np.float64), np.ones((2, 1))
    assert net.value_and_grad(p, x, x, MSELoss())[1][0] == 0.0
    assert net.value_and_grad(p, x, x, MSELoss())[1][1] != 0.0


@pytest.mark.parametrize("backend", ["numpy", "native"])
def test_second_derivatives_and_samples(backend):
    net = Chain(Dense(3, 2), Monotone(2), backend=backend)
    rng = np.random.default_rng(0)
    p, v = rng.normal(size=(2, net.n_params))
    x, t, loss, h = rng.normal(size=(5, 3)), rng.normal(size=(5, 2)), SquaredLoss(), 1e-6
    above, below = (net.value_and_grad(p + sign * h * v, x, t, loss)[1] for sign in (1.0, -1.0))
    np.testing.assert_allclose(net.hvp(p, x, t, loss, v), (above - below) / (2 * h), rtol=1e-6, atol=1e-8)
    gradient = net.value_and_grad(p, x, t, loss)[1]
    np.testing.assert_allclose(net.sample_gradients(p, x, t, loss).mean(0), gradient, rtol=1e-10, atol=1e-12)
    outputs = [(net(x, p + h * e) - net(x, p - h * e)) / (2 * h) for e in np.eye(len(p))]
    np.testing.assert_allclose(net.jacobian(p, x), np.stack(outputs, -1), rtol=1e-6, atol=1e-8)
    rows = np.stack([p, p + v, p - v])
    values, gradients = net.value_and_grad(rows, x, t, loss)
    for row, value, gradient in zip(rows, values, gradients, strict=True):
        one = net.value_and_grad(row, x, t, loss)
        assert value == pytest.approx(one[0], rel=1e-12)
        np.testing.assert_allclose(gradient, one[1], rtol=1e-10, atol=1e-12)


def test_a_file_holds_the_bounds_and_the_networks(tmp_path):
    rhs = Equations(
        lambda hare, lynx, hunt, birth: (birth * hare - hunt, hunt - lynx), ("hare", "lynx"),
        networks={"hunt": (Chain(Dense(2, 3), Dense(3, 1)), ("lynx", "hare"))},
        parameters={"birth": 0.5}, bounds={"birth": (0.0, None)},
    )  # fmt: skip
    net = Chain(ODE(rhs, [0.0, 1.0], steps=3))
    p = net.init(seed=1, dtype=np.float64)
    chains.save(tmp_path / "m.safetensors", net, p)
    other, q, _ = chains.load(tmp_path / "m.safetensors")
    assert repr(other) == repr(net)
    assert network_of(other).structure() == network_of(net).structure()
    assert other.summary(q) == net.summary(p)
    np.testing.assert_array_equal(other(np.ones((1, 2)), q), net(np.ones((1, 2)), p))
    np.testing.assert_array_equal(other.init(seed=1, dtype=np.float64), p)
    assert network_of(net).structure() != network_of(Chain(RATES(bounds=BOUNDS))).structure()


def test_a_header_says_what_is_stored():
    made = interface_of(Request(Chain(RATES(bounds=BOUNDS)), np.dtype(np.float64)), "model", {})
    text = header_text(made, "tests")
    assert "MODEL_0_K 0  /* (), stored for values above 0: log(v - 0) */" in text
    assert "MODEL_0_D 1  /* (), stored for values between 0.1 and 2: log((v - 0.10000000000000001) / (2 - v)) */" in text


class Rate(Layer):
    def __init__(self, init, bounds):
        self.init, self.bounds = init, bounds

    def declare(self, d):
        d.param("rate", (2,), self.init, bounds=self.bounds)
        d.output(d.input)

    def forward(self, ops, x, y, p, s):
        ops.map(y, lambda x, rate: x * rate, x, p.rate)

    def pullback(self, ops, x, y, dy, dx, p, g, s):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: RATES(bounds={"k": (0, 1)}), ValueError, "`parameters['k']` must be between 0 and 1, got 3e+07"),
        (lambda: RATES(bounds={"d": (0.25, None)}), ValueError, "`parameters['d']` must be above 0.25, got 0.25"),
        (lambda: RATES(bounds={"dd": (0, 1)}), ValueError, "`bounds` has `dd`, but there are only k, d; did you mean `d`?"),
        (lambda: RATES(bounds=(0, 1)), TypeError, "`bounds` (=(0, 1)) must be pairs by name"),
        (lambda: RATES(bounds={"d": 0}), TypeError, "`bounds` (=0) of `d` must be (low, high), with None where"),
        (lambda: RATES(bounds={"d": (1, 0)}), ValueError, "`bounds` (=(1, 0)) of `d` must be (low, high)"),
        (lambda: RATES(bounds={"d": (0, np.nan)}), ValueError, "`low` below `high`"),
        (lambda: RATES(bounds={"d": (np.inf, None)}), ValueError, "`low` below `high`"),
        (lambda: RATES(bounds={"d": (-1e308, 1e308)}), ValueError, "`low` below `high`"),
        (lambda: Bounds(0.0, None).stored(np.inf), ValueError, "`value` must be above 0, got inf"),
        (lambda: Bounds(0.0, None).stored("a"), TypeError, "`value` must be numbers above 0, got 'a'"),
        (lambda: RATES(bounds={"d": ("0", None)}), TypeError, "`bounds` (=('0', None)) of `d`"),
        (
            lambda: Chain(Rate([0.5, -1.0], (0, None)), input_shape=(2,)),
            ValueError,
            "`init` of the parameter `rate` in Rate.declare must be above 0, got -1",
        ),
        (
            lambda: Chain(Rate(0.5, (1, 0)), input_shape=(2,)),
            ValueError,
            "`bounds` (=(1, 0)) of the parameter `rate` in Rate.declare must be (low, high)",
        ),
        (
            lambda: Chain(Rate("normal", (10, None)), input_shape=(2,)).init(),
            ValueError,
            "what the initializer of `0.rate` returns must be above 10, got -0.744019",
        ),
    ],
)
def test_what_is_refused(make, kind, words):
    with pytest.raises(kind, match=re.escape(words)):
        make()


def test_no_bounds_at_all():
    assert bounds_of(None) is bounds_of((None, None)) is bounds_of((-np.inf, np.inf)) is None
    assert bounds_of([0, np.inf]) == Bounds(0.0, None)
