"""Networks that are monotone or convex: for whatever parameters, by samples of pairs."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import Adam, Chain, Dense, MSELoss, train
from chains.activations import activation
from chains.layers import Convex, Monotone

RNG = np.random.default_rng(0)
ROUNDING = 1e-12


def networks(layer, count=20):
    """The functions of a layer at many parameters, some of them far out."""
    net = Chain(layer)
    for seed in range(count):
        p = net.init(seed=seed, dtype=np.float64)
        p += RNG.normal(0.0, 0.2 * seed, p.shape)
        yield lambda x, p=p: net(x, p)


def scale(y):
    return np.maximum(1.0, np.abs(y))


@pytest.mark.parametrize("f", ["tanh", "sigmoid", "softsign", "relu", "softplus", "elu", "selu", "leaky_relu"])
def test_monotone_in_the_inputs_that_are_named(f):
    layer = Monotone(4, (5, 4, 2), increasing=[0, 3], decreasing=1, activation=f)
    x = RNG.normal(0.0, 3.0, (500, 4))
    steps = RNG.exponential(1.0, (500, 4)) * np.array([1.0, -1.0, 0.0, 1.0])
    other = x + RNG.normal(0.0, 3.0, (500, 4)) * np.array([0.0, 0.0, 1.0, 0.0])
    moved = 0
    for y in networks(layer):
        assert np.all(y(x + steps) - y(x) >= -ROUNDING * scale(y(x)))
        moved += np.any(y(other) > y(x)) and np.any(y(other) < y(x))
    assert moved > 15  # the third input is free


@pytest.mark.parametrize("f", ["softplus", "relu", "elu", "leaky_relu", "identity"])
def test_convex(f):
    x, z = RNG.normal(0.0, 3.0, (2, 500, 3))
    share = RNG.uniform(0.0, 1.0, (500, 1))
    for y in networks(Convex(3, (5, 4, 2), increasing=2, activation=f)):
        chord = share * y(x) + (1.0 - share) * y(z)
        assert np.all(y(share * x + (1.0 - share) * z) <= chord + ROUNDING * scale(chord))
        assert np.all(y(x + np.array([0.0, 0.0, 1.0])) - y(x) >= -ROUNDING * scale(y(x)))


def test_a_convex_network_is_not_monotone_unless_asked():
    x = np.linspace(-3.0, 3.0, 101)[:, None]
    slopes = [np.diff(y(x)[:, 0]) for y in networks(Convex(1, (8, 1)))]
    assert sum(s.min() < 0.0 < s.max() for s in slopes) > 2


def test_the_formula():
    x = RNG.normal(size=(6, 3))
    net = Chain(Monotone(3, (4, 5, 2), increasing=0, decreasing=2))
    p = net.init(seed=0, dtype=np.float64)
    v = list(net.values(p).items())
    assert [value.shape for _, value in v] == [(1, 4), (4,), (1, 4), (1, 4), (4, 5), (5,), (1, 5), (1, 5), (1, 5),
                                               (5, 2), (2,), (1, 2), (1, 2), (1, 2)]  # fmt: skip
    free1, b1, up1, down1, w2, b2, free2, up2, down2, w3, b3, free3, up3, down3 = (value for _, value in v)
    assert min(each.min() for each in (up1, up2, up3, w2, w3)) > 0.0 > max(each.max() for each in (down1, down2, down3))
    up, free, down = x[:, :1], x[:, 1:2], x[:, 2:]
    y = np.tanh(up @ up1 + free @ free1 + down @ down1 + b1)
    y = np.tanh(y @ w2 + b2 + up @ up2 + free @ free2 + down @ down2)
    np.testing.assert_allclose(net(x, p), y @ w3 + b3 + up @ up3 + free @ free3 + down @ down3, rtol=1e-12)


def test_dense_within_bounds():
    net = Chain(Dense(3, 2, weight_init=0.5, weight_bounds=(0.0, 1.0)))
    p = RNG.normal(0.0, 3.0, net.n_params)
    weight = net.values(p)["0.weight"]
    assert 0.0 < weight.min() < weight.max() < 1.0
    x = RNG.normal(size=(4, 3))
    np.testing.assert_allclose(net(x, p), x @ weight + net.values(p)["0.bias"], rtol=1e-12)


def test_curves_that_bend_both_ways_are_learned():
    x = np.linspace(-2.0, 2.0, 41)[:, None]
    t = np.tanh(4.0 * x - 4.0) + np.tanh(4.0 * x + 4.0)
    errors = {}
    for f in ("tanh", "softplus"):
        net = Chain(Monotone(1, (8, 8, 1), increasing=0, activation=f))
        p = net.init(seed=0, dtype=np.float64)
        train(net, p, x, t, MSELoss(), Adam(2e-2), epochs=1000, progress=False)
        errors[f] = net.loss(p, x, t, MSELoss())
    assert errors["tanh"] < 1e-2 < 0.1 < errors["softplus"]  # what increases and is convex cannot bend down


def test_custom_activations_are_looked_at():
    assert Convex(2, (3, 1), activation=activation("square above zero", lambda x: chains.expr.maximum(x, 0.0) ** 2))
    with pytest.raises(ValueError, match="must not decrease; its slope at -40 is -80"):
        Convex(2, (3, 1), activation=activation("square", lambda x: x * x))
    steep = activation("steep", lambda x: chains.expr.exp(100.0 * x))  # infinite from x = 7.1 on
    assert Convex(2, (3, 1), activation=steep).activation is steep
    with pytest.raises(ValueError, match="must not decrease; its slope at -40 is nan"):
        Monotone(2, (3, 1), activation=activation("root", chains.expr.sqrt))
    step = activation("step", lambda x: chains.expr.where(x > 0.5, 1.0, 0.0), derivative=lambda x: 0.0 * x)
    assert Monotone(2, (3, 1), activation=step)
    with pytest.raises(ValueError, match=r"must be convex.*; it jumps near 0\.5"):
        Convex(2, (3, 1), activation=step)
    down = activation("down", lambda x: chains.expr.where(x > 0.5, x - 1.0, x), derivative=lambda x: 1.0 + 0.0 * x)
    with pytest.raises(ValueError, match=r"must not decrease; it jumps down near 0\.5"):
        Monotone(2, (3, 1), activation=down)
    with pytest.raises(TypeError, match="must be an activation such as softplus, or its name"):
        Convex(2, (3, 1), activation=abs)
