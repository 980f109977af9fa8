"""Stochastic differential equations: paths, moments, orders of convergence, and which random numbers are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from chains import SDE, SGD, Chain, Dense, Dropout, Equations, MSELoss, SquaredLoss, tanh, train
from tests.harness import BACKENDS


def growth(drift=1.5, noise=0.8):
    """``dy = drift * y dt + noise * y dW``."""
    return Equations(lambda y: drift * y, ("y",)), Equations(lambda y: noise * y, ("y",))


def normals(steps, samples, n=1, seed=0, backend="auto"):
    """The normal numbers of the steps, (samples, steps, n): increments of a path without drift, of unit diffusion."""
    names = ("a", "b")[:n]
    nothing = Equations({1: lambda a: 0.0 * a, 2: lambda a, b: (0.0 * a, 0.0 * b)}[n], names)
    one = Equations({1: lambda a: 1.0 + 0.0 * a, 2: lambda a, b: (1.0 + 0.0 * a, 1.0 + 0.0 * b)}[n], names)
    net = Chain(SDE(nothing, one, np.arange(steps + 1.0)), backend=backend)
    return np.diff(net(np.zeros((samples, n)), np.zeros(0), mode="train", seed=seed), axis=1)


def by_hand(method, drift, diffusion, y, z, times):
    """The states after all steps, one after the other."""
    states = [y]
    for k, length in enumerate(np.diff(times)):
        t, root = times[k], np.sqrt(length)
        f, g, noise = drift(y, t), diffusion(y, t), root * z[:, k]
        if method == "euler":
            y = y + f * length + g * noise
        elif method == "heun":
            ahead = y + f * length + g * noise
            last = times[k + 1]
            y = y + 0.5 * (f + drift(ahead, last)) * length + 0.5 * (g + diffusion(ahead, last)) * noise
        else:
            ahead = diffusion(y + f * length + g * root, t)
            y = y + f * length + g * noise + (ahead - g) * (noise**2 - length) / (2.0 * root)
        states.append(y)
    return np.stack(states, axis=1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", ["euler", "milstein", "heun"])
def test_paths_are_those_of_the_formulas(method, backend):
    rng = np.random.default_rng(0)
    drift, diffusion = (Chain(Dense(4, 5, tanh), Dense(5, 2), backend="numpy") for _ in range(2))
    times = np.array([0.0, 0.5, 2.0])
    net = Chain(SDE(drift, diffusion, times, method, 3, given=1, time=True), backend=backend)
    p = net.init(seed=1, dtype=np.float64)
    of = dict(zip(("drift", "diffusion"), (p[: drift.n_params], p[drift.n_params :]), strict=True))
    x = rng.normal(size=(7, 3))
    z = normals(6, 7, 2, seed=4, backend=backend)

    def at(layer, q):
        return lambda y, t: layer(np.column_stack([y, x[:, 2], np.full(7, t)]), q)

    fine = np.concatenate([np.linspace(0.0, 0.5, 4), np.linspace(0.5, 2.0, 4)[1:]])
    states = by_hand(method, at(drift, of["drift"]), at(diffusion, of["diffusion"]), x[:, :2], z, fine)
    np.testing.assert_allclose(net(x, p, mode="train", seed=4), states[:, ::3], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("method", "order"), [("euler", 0.5), ("milstein", 1.0), ("heun", 1.0)])
def test_strong_orders(method, order):
    """The error at the end against the solution for the same path of the noise, with 16 and 256 steps."""
    errors = []
    for steps in (16, 256):
        net = Chain(SDE(*growth(), (0.0, 1.0), method, steps))
        y = net(np.ones((4000, 1)), np.zeros(0))[:, 1, 0]
        w = normals(steps, 4000)[:, :, 0].sum(axis=1) / np.sqrt(steps)
        correction = 0.0 if method == "heun" else 0.5 * 0.8**2  # of Itô's integral
        errors.append(abs(y - np.exp(1.5 - correction + 0.8 * w)).mean())
    assert np.log(errors[0] / errors[1]) / np.log(16.0) == pytest.approx(order, abs=0.15)


def test_moments_of_a_process_that_returns_to_its_mean():
    back, noise = Equations(lambda y: 2.0 * (1.0 - y), ("y",)), Equations(lambda y: 0.5 + 0.0 * y, ("y",))
    y = Chain(SDE(back, noise, (0.0, 0.5, 3.0), steps=100))(np.zeros((20_000, 1)), np.zeros(0))[:, :, 0]
    for k, t in ((1, 0.5), (2, 3.0)):
        variance = 0.25 / 4.0 * (1.0 - np.exp(-4.0 * t))
        assert y[:, k].mean() == pytest.approx(1.0 - np.exp(-2.0 * t), abs=5.0 * np.sqrt(variance / 20_000) + 0.01)
        assert y[:, k].var() == pytest.approx(variance, rel=0.06)


def test_normal_numbers_are_normal():
    stats = pytest.importorskip("scipy.stats")
    z = normals(51, 400)
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(z[:, :, 0].T) - np.eye(51)).max() < 0.25  # 5 standard deviations


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_path_depends_on_seed_and_sample_alone(backend):
    net = Chain(SDE(*growth(), (0.0, 1.0), steps=8), backend=backend)
    x, p = np.ones((70, 1)), np.zeros(0)
    y = net(x, p, mode="train", seed=3)
    np.testing.assert_array_equal(net(x[:5], p, mode="train", seed=3), y[:5])
    assert len(np.unique(y[:, 1])) == 70
    assert (net(x, p, mode="train", seed=4)[:, 1] != y[:, 1]).all()
    numpy = Chain(SDE(*growth(), (0.0, 1.0), steps=8), backend="numpy")
    np.testing.assert_allclose(y, numpy(x, p, mode="train", seed=3), rtol=1e-12)
    np.testing.assert_array_equal(net(x, p, seed=3), net(x, p, mode="train", seed=0))  # evaluated, paths are those of seed 0


@pytest.mark.parametrize(("intervals", "steps", "every"), [(2, 5, 3), (5, 1, 2)])
def test_checkpoints_change_nothing(intervals, steps, every):
    drift, diffusion = (Chain(Dense(2, 3, tanh), Dense(3, 2)) for _ in range(2))
    x, t = np.ones((4, 2)), np.zeros((4, intervals + 1, 2))
    found = []
    for kept in (None, every):
        net = Chain(SDE(drift, diffusion, range(intervals + 1), "milstein", steps, checkpoint_every=kept))
        found.append(net.objective(x, t, SquaredLoss(), seed=2, mode="train")(net.init(seed=0)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-9, atol=1e-14)


def test_training_draws_other_paths_at_each_step_and_fits_the_mean():
    drift = Equations(lambda y, k: -k * y, ("y",), parameters={"k": 0.2})
    noise = Equations(lambda y: 0.1 + 0.0 * y, ("y",))
    net = Chain(SDE(drift, noise, (0.0, 1.0), steps=10))
    x = np.ones((64, 1))
    t = np.broadcast_to(np.exp(-0.7 * np.array([0.0, 1.0]))[:, None], (64, 2, 1))
    p = net.init(dtype=np.float64)
    history = train(net, p, x, t, MSELoss(), SGD(2.0), epochs=60, batch_size=64, seed=0, progress=False)
    assert len(set(history.loss[-5:])) == 5  # the noise stays
    assert p[0] == pytest.approx(0.7, abs=0.1)


def test_networks_that_do_not_fit():
    with pytest.raises(ValueError, match=r"`diffusion` .* gives \(1,\) for a state of shape \(2,\)"):
        Chain(SDE(Dense(2, 2), Dense(2, 1), (0.0, 1.0)))
    with pytest.raises(ValueError, match="Dropout"):
        Chain(SDE(Chain(Dense(2, 2), Dropout(0.5)), Dense(2, 2), (0.0, 1.0)))
    with pytest.raises(ValueError, match="a sample must be a state"):
        Chain(SDE(Dense(2, 2), Dense(2, 2), (0.0, 1.0), given=2))
    assert repr(SDE(Dense(1, 1), Dense(1, 1), range(9), "heun", 2, time=True)) == (
        "SDE(Dense(1, 1), Dense(1, 1), (0, 1, ..., 8), method='heun', steps=2, time=True)"
    )
