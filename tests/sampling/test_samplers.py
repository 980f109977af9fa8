"""Optimisers that draw from a posterior: their formulas, and a posterior that is known."""

from __future__ import annotations

import numpy as np
import pytest

from chains import SGD, SGLD, SWAG, Adam, Chain, Dense, L2Penalty, SquaredLoss, Updater, tanh, train
from chains.callbacks import Callback
from chains.network.network import network_of
from tests import harness
from tests.bad_input.support import assert_refused

RNG = np.random.default_rng(0)
X, T = RNG.normal(size=(20, 3)), RNG.normal(size=(20, 2))


class Way(Callback):
    """The parameters after each epoch."""

    def __init__(self):
        self.p = []

    def on_epoch_end(self, state):
        self.p.append(state.p.copy())


def uniform(seed, step, draw, size):
    """The numbers of `ops.random`, by NumPy's own generator."""
    words = np.random.Philox(key=[seed, 0], counter=[0, draw, step, 0]).random_raw(-(-size // 2))
    return (words.view(np.uint32)[:size] >> 8) * 2.0**-24


@pytest.mark.parametrize("frozen", [(), ("0.bias",)])
@pytest.mark.parametrize("backend_name", [*harness.BACKENDS, "emulated"])
def test_sgld_is_the_papers_formula(backend_name, frozen):
    net = Chain(Dense(3, 4, tanh), Dense(4, 2), backend=backend_name).with_frozen(*frozen)
    p = net.init(dtype=np.float64)
    wanted, way = p.copy(), Way()
    rate, temperature = 0.05, 0.3
    train(net, p, X, T, SquaredLoss(), SGLD(rate, temperature), epochs=3, seed=7, callbacks=[way])
    for step in range(3):
        g = net.value_and_grad(wanted, X, T, SquaredLoss())[1]
        for run, (start, stop) in enumerate(network_of(net).trainable):
            u, v = (uniform(7, step, 2 * run + k, stop - start) for k in range(2))
            z = np.sqrt(-2 * np.log(1 - u)) * np.cos(2 * np.pi * v)
            wanted[start:stop] -= rate * g[start:stop] - np.sqrt(2 * rate * temperature) * z
        np.testing.assert_allclose(way.p[step], wanted, rtol=1e-11, atol=1e-12)


def test_sgld_without_temperature_is_descent(backend_name):
    net = Chain(Dense(3, 4, tanh), Dense(4, 2), backend=backend_name)
    p, q = net.init(dtype=np.float64), net.init(dtype=np.float64)
    train(net, p, X, T, SquaredLoss(), SGLD(0.05, 0.0), epochs=5)
    train(net, q, X, T, SquaredLoss(), SGD(0.05), epochs=5)
    np.testing.assert_allclose(p, q, rtol=1e-12)


def test_sgld_draws_from_a_known_posterior():
    """Of a linear network: normal, with a mean and a covariance that can be written down. An ensemble draws from it at once."""
    variance, prior, members = 0.25, 4.0, 400
    net = Chain(Dense(2, 1), backend="native")
    x = RNG.normal(size=(30, 2))
    a = np.column_stack([x, np.ones(30)])
    t = a @ [1.0, -0.5, 0.3] + 0.5 * RNG.normal(size=30)
    precision = a.T @ a / variance + np.eye(3) / prior
    covariance = np.linalg.inv(precision)
    mean = covariance @ a.T @ t / variance
    temperature = variance / 30
    P = net.init_many(members, dtype=np.float64)
    sampler = SGLD(0.02, temperature)
    train(net, P, x, t, SquaredLoss(), sampler, penalty=L2Penalty(temperature / (2 * prior)), epochs=1500)
    order = np.concatenate([np.arange(e.start, e.stop) for e in (net.layout["0.weight"], net.layout["0.bias"])])
    drawn = P[:, order]
    error = np.sqrt(np.diag(covariance) / members)
    assert (np.abs(drawn.mean(0) - mean) < 4 * error).all()
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=0.3 * np.diag(covariance).max())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_swag_keeps_the_moments_of_its_way(momentum, backend_name):
    net = Chain(Dense(3, 4, tanh), Dense(4, 2), backend=backend_name)
    p, q, way = net.init(dtype=np.float64), net.init(dtype=np.float64), Way()
    optimizer = SWAG(0.05, momentum, start=4, every=3)
    history = train(net, p, X, T, SquaredLoss(), optimizer, epochs=30, callbacks=[way])
    train(net, q, X, T, SquaredLoss(), SGD(0.05, momentum), epochs=30)
    np.testing.assert_allclose(p, q, rtol=1e-12)
    counted = np.array(way.p)[4::3]
    mean, variance = optimizer.moments(history.optimizer_state)
    np.testing.assert_allclose(mean, counted.mean(0), rtol=1e-10)
    np.testing.assert_allclose(variance, counted.var(0), rtol=1e-9, atol=1e-15)
    drawn = optimizer.draw(history.optimizer_state, 4000, seed=3)
    assert drawn.shape == (4000, net.n_params)
    np.testing.assert_allclose(drawn.std(0), np.sqrt(variance), rtol=0.1)
    assert (np.abs(drawn.mean(0) - mean) <= 5 * np.sqrt(variance / 4000)).all()
    assert np.array_equal(drawn, optimizer.draw(history.optimizer_state, 4000, seed=3))


def test_swag_draws_frozen_parameters_as_they_are(backend_name):
    net = Chain(Dense(3, 4, tanh), Dense(4, 2), backend=backend_name).with_frozen("0.bias", "1.weight")
    P, optimizer = net.init_many(2, seed=1) + np.float32(0.5), SWAG(0.05, momentum=0.9)
    history = train(net, P, X, T, SquaredLoss(), optimizer, epochs=9)
    drawn = optimizer.draw(history.optimizer_state, 5).reshape(2, 5, net.n_params)
    for name in net.frozen:
        part = slice(net.layout[name].start, net.layout[name].stop)
        assert np.array_equal(drawn[:, :, part], np.repeat(P[:, None, part], 5, axis=1))
    p = P[0].copy()
    other = train(net, p, X, T, SquaredLoss(), optimizer, epochs=9).optimizer_state
    assert np.array_equal(optimizer.draw(other, 2)[:, 12:16], np.tile(p[12:16], (2, 1)))


def test_swag_of_an_ensemble():
    net = Chain(Dense(3, 4, tanh), Dense(4, 2))
    P, optimizer = net.init_many(3), SWAG(0.05)
    history = train(net, P, X, T, SquaredLoss(), optimizer, epochs=9)
    assert optimizer.draw(history.optimizer_state, 5).shape == (15, net.n_params)
    mean, _ = optimizer.moments(history.optimizer_state)
    assert np.array_equal(mean[1], optimizer.moments(history[1].optimizer_state)[0])


def test_bad_input():
    net = Chain(Dense(3, 2))
    state = train(net, net.init(), X, T, SquaredLoss(), SWAG(0.1, start=3), epochs=4).optimizer_state
    other = train(net, net.init(), X, T, SquaredLoss(), Adam()).optimizer_state
    refused = [
        (lambda: SGLD(0.1, -1.0), ["temperature", "-1"]),
        (lambda: SGLD(0.1, sparse="lazy"), ["sparse", "SGLD"]),
        (lambda: SWAG(0.1, sparse="lazy"), ["sparse", "SWAG"]),
        (lambda: SWAG(0.1, start=-1), ["start", "-1"]),
        (lambda: SWAG(0.1, every=0), ["every", "0"]),
        (lambda: SWAG(0.1, start=2.5), ["start", "2.5"]),
        (lambda: Updater(SGLD(0.1), net.init()), ["optimizer", "train"]),
        (lambda: SWAG(0.1, start=3).moments(state), ["state", "4 steps"]),
        (lambda: SWAG(0.1, 0.9).moments(other), ["state", "3 vectors"]),
        (lambda: SWAG(0.1).moments(3), ["state", "3"]),
        (lambda: SWAG(0.1).draw(state, 0), ["draws", "0"]),
    ]
    for call, words in refused:
        assert_refused(call, *words)
