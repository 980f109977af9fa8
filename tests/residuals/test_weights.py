"""Weights that follow the training, against their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Adam, AdaptiveWeights, Chain, Dense, ResidualProblem, Term, tanh, train


def pinn():
    rng = np.random.default_rng(0)
    inside, edge = rng.uniform(-1, 1, (30, 2)), rng.uniform(-1, 1, (10, 2))
    terms = [Term(lambda u: u.t + u * u.x - 0.1 * u.xx, inside), Term(lambda u, x: 5.0 * (u - x), edge, weight=3.0)]
    net = Chain(Dense(2, 6, tanh), Dense(6, 1))
    return net, net.init(seed=0, dtype=np.float64), ResidualProblem(("t", "x"), ("u",), terms)


def sizes(net, p, problem):
    """The residual at each point, times the roots of the terms' weights in `t`."""
    return abs(net.objective(problem.x, problem.t, problem.loss).residuals(p))


def test_points_weigh_by_their_residuals():
    net, p, problem = pinn()
    weights = AdaptiveWeights(decay=0.8, rate=0.3, floor=0.05)
    rows = [slice(0, 30), slice(30, 40)]
    numbers = np.zeros(40)
    for update in range(3):
        r = sizes(net, p, problem)
        found = weights.update(net, p, problem)
        for k, own in enumerate(rows):
            share = 0.05 + 0.95 * r[own] / r[own].max()
            numbers[own] = 0.8 * numbers[own] + 0.3 * share if update else 0.3 / 0.2 * share
            wanted = numbers[own] ** 2 / (numbers[own] ** 2).mean()
            np.testing.assert_allclose(found.t[own, k], problem.t[own, k] * wanted, rtol=1e-9)
            np.testing.assert_allclose(found.t[own].mean(0), problem.t[own].mean(0), rtol=1e-12)
        p = p + 0.1
    other = ResidualProblem(("t", "x"), ("u",), [Term(t.residual, t.points[::-1], weight=t.weight) for t in problem.terms])
    moved, fresh = weights.update(net, p, other), AdaptiveWeights(decay=0.8, rate=0.3, floor=0.05).update(net, p, other)
    np.testing.assert_array_equal(moved.t, fresh.t)


def test_terms_weigh_by_their_gradients():
    """After the first update, the terms' gradients have one norm."""
    net, p, problem = pinn()
    weights = AdaptiveWeights(points=False, terms=True)

    def norms(at):
        for k in range(2):
            own = at.t.copy()
            own[:, 1 - k] = 0.0
            yield np.linalg.norm(net.value_and_grad(p, at.x, own, at.loss)[1])

    before = [*norms(problem)]
    found = weights.update(net, p, problem)
    after = [*norms(found)]
    np.testing.assert_allclose(after, np.mean(before), rtol=1e-9)
    assert abs(np.diff(before)[0]) > 0.1 * before[0]
    first = weights.factors
    p = p + 0.3
    wanted = np.mean([*norms(problem)]) / np.array([*norms(problem)])
    weights.update(net, p, problem)
    np.testing.assert_allclose(weights.factors, 0.9 * first + 0.1 * wanted, rtol=1e-9)
    assert [*weights.numbers()] == ["factor 0", "factor 1"]


def test_in_a_loop_of_ones_own():
    """With `train`, whose moments are kept; the loss of the problem as stated falls."""
    net, p, problem = pinn()
    weights, history = AdaptiveWeights(terms=True), None
    before = net.value_and_grad(p, problem.x, problem.t, problem.loss)[0]
    for _ in range(5):
        at = weights.update(net, p, problem)
        history = train(net, p, at.x, at.t, at.loss, Adam(1e-2), epochs=20, batch_size=None, resume=history, progress=False)
    assert int(history.optimizer_state["step"]) == 100
    assert net.value_and_grad(p, problem.x, problem.t, problem.loss)[0] < 0.5 * before


def test_the_state_goes_on():
    net, p, problem = pinn()
    first, second = AdaptiveWeights(terms=True), AdaptiveWeights(terms=True)
    first.update(net, p, problem)
    second.restore(first.state())
    np.testing.assert_array_equal(first.update(net, p + 0.1, problem).t, second.update(net, p + 0.1, problem).t)


def test_bad_settings():
    for settings, message in [
        ({"points": False}, "both False"),
        ({"decay": 1.0}, r"`decay` \(=1.0\)"),
        ({"rate": 0.0}, r"`rate` \(=0.0\)"),
        ({"floor": 2.0}, r"`floor` \(=2.0\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            AdaptiveWeights(**settings)
    net, p, problem = pinn()
    with pytest.raises(ValueError, match="the residual is nan at point 0"):
        AdaptiveWeights().update(net, p * np.nan, problem)
    assert repr(AdaptiveWeights(terms=True)) == "AdaptiveWeights(points=True, terms=True, decay=0.9, rate=0.1, floor=0.5)"
