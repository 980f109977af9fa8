"""Hamiltonian Monte Carlo: trajectories are Hamilton's equations, and draws are those of posteriors that are known."""

from __future__ import annotations

import numpy as np
import pytest

from chains import (
    GRU,
    HMC,
    BatchNorm,
    Chain,
    CrossEntropyLoss,
    Dense,
    Dropout,
    Embedding,
    L2Penalty,
    MSELoss,
    SquaredLoss,
    num_threads,
    sample,
    tanh,
)
from chains.sampling import trajectories as module
from chains.sampling.draws import Draws
from chains.sampling.sample import Variances, windows
from chains.sampling.trajectories import Posterior, Trajectories
from tests import harness
from tests.bad_input.support import assert_refused

RNG = np.random.default_rng(0)
X, T = RNG.normal(size=(20, 3)), RNG.normal(size=(20, 2))
PENALTY = L2Penalty(0.01)
NAMES = [*harness.BACKENDS, "emulated", "one-kernel"]


def curve(name="auto", *frozen):
    return Chain(Dense(3, 4, tanh), Dense(4, 2), backend=name).with_frozen(*frozen)


def posterior(net, temperature=0.3, **given):
    data = {"loss": SquaredLoss(), "penalty": PENALTY, "x": X, "t": T, "weights": None, "lengths": None}
    return Posterior(net, temperature=temperature, **(data | given))


def nothing():
    pass


@pytest.mark.few(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("leapfrog_steps", [1, 2, 7])
def test_a_trajectory_is_the_leapfrog(name, leapfrog_steps, monkeypatch):
    monkeypatch.setattr(module, "PIECE", 1)  # a look for Ctrl-C after each step
    net, temperature, time = curve(name, "1.bias"), 0.3, 0.05
    p = net.init_many(3, dtype=np.float64)
    inverse_mass = RNG.uniform(0.5, 2.0, net.n_params)
    moved = Trajectories(posterior(net), p.copy(), True)
    momenta = RNG.normal(size=p.shape) * moved.moves
    found = momenta.copy()
    begin, end = moved(found, inverse_mass, time, leapfrog_steps, nothing)
    for chain in range(3):
        q, m = p[chain].copy(), momenta[chain].copy()
        value, g = net.value_and_grad(q, X, T, SquaredLoss(), penalty=PENALTY)
        np.testing.assert_allclose(begin[chain], value / temperature, rtol=1e-12)
        for _ in range(leapfrog_steps):
            m -= time / 2 * g * moved.moves / temperature
            q += time * inverse_mass * m
            value, g = net.value_and_grad(q, X, T, SquaredLoss(), penalty=PENALTY)
            m -= time / 2 * g * moved.moves / temperature
        np.testing.assert_allclose(end[chain], value / temperature, rtol=1e-12)
        np.testing.assert_allclose(moved.p[chain], q, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(found[chain], m, rtol=1e-10, atol=1e-13)
    back = -found
    moved(back, inverse_mass, time, leapfrog_steps, nothing)  # Hamilton's equations are reversible
    np.testing.assert_allclose(moved.p, p, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", harness.BACKENDS)
def test_draws_are_those_of_a_known_posterior(name):
    """Of a linear network: normal, with a mean and a covariance that can be written down."""
    noise, prior, draws = 0.25, 4.0, 1500 if name == "native" else 30
    net, temperature = Chain(Dense(3, 2), backend=name), 0.25 / len(X)
    start = net.init_many(20, dtype=np.float64)
    before = start.copy()
    found = sample(net, start, X, T, SquaredLoss(), HMC(temperature, leapfrog_steps=12), draws=draws, warmup=120, seed=1,
                   penalty=L2Penalty(temperature / (2 * prior)))  # fmt: skip
    assert np.array_equal(start, before)
    a = np.hstack([X, np.ones((len(X), 1))])
    precision = a.T @ a / noise + np.eye(4) / prior
    mean, variance = np.linalg.solve(precision, a.T @ T / noise), np.linalg.inv(precision).diagonal()
    rows = found.ensemble()
    assert rows.shape == (20 * draws, net.n_params)
    spread = np.repeat(np.sqrt(variance), 2)
    share = np.sqrt(3 / len(rows))  # of a standard deviation: draws that follow each other are alike
    np.testing.assert_allclose(rows.mean(0), mean.ravel(), atol=5 * share * spread.max())
    np.testing.assert_allclose(rows.std(0) / spread, 1.0, atol=5 * share)
    np.testing.assert_allclose(np.sqrt(found.inverse_mass) / spread, 1.0, atol=0.2)  # what warming up found
    assert 0.7 < found.accepted.mean() < 0.95
    assert not found.diverged.any()
    one = net.value_and_grad(found.p[3, 7], X, T, SquaredLoss(), penalty=L2Penalty(temperature / (2 * prior)))[0] / temperature
    np.testing.assert_allclose(found.energy[3, 7], one, rtol=1e-12)


def test_the_same_seed_gives_the_same_draws(backend_name):
    net = curve(backend_name)
    start = net.init_many(3)
    given = start, X, T, SquaredLoss(), HMC(0.1, leapfrog_steps=5)
    found = [sample(net, *given, draws=6, warmup=40, seed=seed, thin=thin) for seed, thin in ((2, 1), (2, 1), (3, 1), (2, 3))]
    assert np.array_equal(found[0].p, found[1].p)
    assert np.array_equal(found[0].energy, found[1].energy)
    assert not np.array_equal(found[0].p, found[2].p)
    assert np.array_equal(found[0].p[:, 2], found[3].p[:, 0])
    assert found[0].p.dtype == np.float32
    assert np.isfinite(found[0].energy).all()


def test_threads_change_nothing():
    net, found = curve("native"), []
    for threads in (1, 3):
        with num_threads(threads):
            found.append(sample(net, net.init_many(5), X, T, SquaredLoss(), HMC(0.1, 5, 0.1), draws=10, warmup=5))
    assert np.array_equal(found[0].p, found[1].p)


def test_frozen_parameters_stay(backend_name):
    net = curve(backend_name, "0.weight")
    p = net.init_many(2)
    found = sample(net, p, X, T, SquaredLoss(), HMC(0.1, 5), draws=5, warmup=60)
    same = (found.p == p[:, None]).all(axis=(0, 1))
    views = net.views(same.astype(np.float32))
    assert views["0.weight"].all()
    assert not views["0.bias"].any()
    assert not views["1.weight"].any()


def test_one_chain_and_chains_with_separate_data(backend_name):
    """A vector is one chain. Chains may have data of their own."""
    net = curve(backend_name)
    p, x, t = net.init_many(2, dtype=np.float64), RNG.normal(size=(2, 20, 3)), RNG.normal(size=(2, 20, 2))
    method = HMC(0.1, leapfrog_steps=4, step_size=0.05)
    assert sample(net, p[0], X, T, SquaredLoss(), method, draws=3, warmup=0).p.shape == (1, 3, net.n_params)
    found = sample(net, p, x, t, SquaredLoss(), method, draws=3, warmup=0, weights=np.ones((2, 20)))
    for chain in range(2):
        value = net.value_and_grad(found.p[chain, 2], x[chain], t[chain], SquaredLoss())[0]
        np.testing.assert_allclose(found.energy[chain, 2], value / 0.1, rtol=1e-12)


def test_sequences_with_lengths(backend_name):
    net = Chain(Embedding(9, 3), GRU(3, 2), input_shape=(4,), backend=backend_name)
    ids, lengths = RNG.integers(0, 9, (12, 4)), RNG.integers(1, 5, 12)
    found = sample(net, net.init_many(2), ids, T[:12], MSELoss(), HMC(0.1, 4), draws=4, warmup=30, lengths=lengths)
    value = net.value_and_grad(found.p[1, 3], ids, T[:12], MSELoss(), lengths=lengths)[0]
    np.testing.assert_allclose(found.energy[1, 3], value / 0.1, rtol=1e-5)


def test_trajectories_that_go_astray_are_counted_and_left():
    net = Chain(Dense(3, 8), Dense(8, 2))
    found = sample(net, net.init_many(3), X, T, SquaredLoss(), HMC(1e-4, leapfrog_steps=50, step_size=10.0), draws=4, warmup=0)
    assert found.diverged.tolist() == [4, 4, 4]
    assert (found.accepted == 0).all()
    assert np.array_equal(found.p[:, 3], net.init_many(3))
    assert "12 diverged" in repr(found)


def test_interrupted(monkeypatch):
    """What was drawn before stays."""
    call, count = Trajectories.__call__, []

    def interrupted(self, *given):
        count.append(None)
        if len(count) == 9:
            raise KeyboardInterrupt
        return call(self, *given)

    net = curve()
    monkeypatch.setattr(Trajectories, "__call__", interrupted)
    found = sample(net, net.init_many(2), X, T, SquaredLoss(), HMC(0.1, 4, 0.1), draws=20, warmup=2)
    assert found.p.shape == (2, 5, net.n_params)
    assert found.energy.shape == (2, 5)
    assert found.stopped == "interrupted after 5 of 20 draws"
    assert found.stopped in repr(found)


def test_draws_show_themselves():
    net = curve()
    found = sample(net, net.init_many(2), X, T, SquaredLoss(), HMC(0.1, 4, 0.1), draws=20, warmup=2)
    assert isinstance(found, Draws)
    assert repr(found).startswith("<20 draws of each of 2 chains, accepted ")
    assert net(X, found.ensemble(7)).shape == (7, 20, 2)
    assert np.array_equal(found.ensemble(2), found.p[[0, 1], [0, -1]])
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    assert len(found.plot().lines) == 2
    many = sample(net, net.init_many(30), X, T, SquaredLoss(), HMC(0.1, 2, 0.1), draws=3, warmup=0)
    assert [text.get_text() for text in many.plot().get_legend().get_texts()] == ["energy, median", "energy, 90 % of chains"]
    pyplot.close("all")


def test_progress(capsys):
    net = curve()
    sample(net, net.init(), X, T, SquaredLoss(), HMC(0.1, 2, 0.1), draws=3, warmup=4, thin=2, progress=True)
    assert "10/10 trajectories" in capsys.readouterr().err


def test_variances_are_those_of_the_windows(monkeypatch):
    note, noted = Variances.note, []
    monkeypatch.setattr(Variances, "note", lambda self, p: noted.append(len(p)) or note(self, p))
    net = curve("numpy")
    sample(net, net.init_many(2), X, T, SquaredLoss(), HMC(0.1, 2), draws=1, warmup=50)
    assert windows(50) == [45]
    assert len(noted) == 45 - 8  # without the first 15 in 100


def test_windows_grow():
    assert windows(1000) == [175, 225, 325, 900]
    assert windows(2000) == [325, 375, 475, 675, 1800]
    assert windows(20) == []
    rows, variances = RNG.normal(size=(50, 3, 4)), Variances()
    for _ in range(2):  # what was taken is forgotten
        for row in rows:
            variances.note(row)
        wanted = (50 * rows.var(axis=0, ddof=1).mean(axis=0) + 5e-3) / 55
        np.testing.assert_allclose(variances.take(), wanted)


def test_what_is_refused():
    net, p = curve(), curve().init_many(2)
    given = X, T, SquaredLoss()
    for settings in (
        {"temperature": 0.0},
        {"temperature": 1e-320},
        {"leapfrog_steps": 0},
        {"leapfrog_steps": 1.5},
        {"step_size": -1.0},
        {"target": 1.0},
        {"target": "a"},
    ):
        assert_refused(lambda settings=settings: HMC(**settings), next(iter(settings)))
    good = HMC(0.1)
    for name, value in {"draws": -1, "warmup": 1.5, "thin": 0, "seed": -1, "progress": 3, "weights": np.ones(4)}.items():
        assert_refused(lambda name=name, value=value: sample(net, p, *given, good, **{name: value}), name)
    assert_refused(lambda: sample(net, p, *given, 0.1), "method")
    assert_refused(lambda: sample("net", p, *given, good), "net")
    assert_refused(lambda: sample(net, p[:, :4], *given, good), "p")
    assert_refused(lambda: sample(net, p, X[:4], T, SquaredLoss(), good), "t")
    assert_refused(lambda: sample(net, p, X, T, "loss", good), "loss")
    assert_refused(lambda: sample(net, np.full_like(p, np.nan), *given, good), "p")
    for layers in ((Dense(3, 4), Dropout(0.5), Dense(4, 2)), (Dense(3, 4), BatchNorm(4), Dense(4, 2))):
        unsound = Chain(*layers)
        assert_refused(lambda net=unsound: sample(net, net.init(), *given, good), "net")
    labels = np.array([0, 1] * 10)
    classifier = Chain(Dense(3, 2))
    start = np.stack([classifier.init(), np.full(classifier.n_params, 1e38, np.float32)])
    with pytest.raises(FloatingPointError, match="row 1 of `p`"):
        sample(classifier, start, X, labels, CrossEntropyLoss(), good, penalty=L2Penalty(1.0))
    found = sample(net, p, *given, HMC(0.1, 2, 0.1), draws=2, warmup=0)
    for n in (0, 5, 1.5):
        assert_refused(lambda n=n: found.ensemble(n), "n")


def test_more_draws_than_memory_and_negative_weights_are_refused():
    net = Chain(Dense(3, 2), backend="numpy")
    given = net.init(), X, T, SquaredLoss(), HMC(0.1, 2, 0.1)
    for draws in (10**15, 10**30):
        with pytest.raises(MemoryError, match=f"`draws` \\(={draws}\\) of 1 chain are more"):
            sample(net, *given, draws=draws)
    assert_refused(lambda: sample(net, *given, weights=np.linspace(-1.0, 1.0, 20)), "weights")
