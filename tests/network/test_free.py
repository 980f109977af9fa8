"""Frozen parameters keep their bits, whoever minimises or samples: `objective.free` and `objective.minimize`."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from chains import Chain, Dense, L2Penalty, SquaredLoss, minimize, tanh
from chains.layers import Scale, Shift

optimize = pytest.importorskip("scipy.optimize")
X = np.linspace(-1.0, 1.0, 20)[:, None]
T = 3.0 * np.sin(2.5 * X) - 5.0
METHODS = ["Nelder-Mead", "Powell", "COBYLA", "COBYQA", "BFGS", "L-BFGS-B", "CG", "Newton-CG", "trust-constr", "TNC", "SLSQP"]


def problem(**options):
    """A network whose inputs, and the shift and scale of its outputs, are frozen."""
    net = Chain(Dense(1, 3, tanh), Dense(3, 1), Scale(scale_init=3.0), Shift(shift_init=-5.0), backend="numpy")
    net = net.with_frozen("0.bias", "2.*", "3.*")
    p = net.init(seed=0)
    net.views(p)["0.bias"][...] = [0.1, -0.2, 0.3]
    return net, net.objective(X, T, SquaredLoss(), **options), p


def frozen_of(net, p):
    return np.concatenate([net.views(p)[name].ravel() for name in sorted(net.frozen)])


@pytest.mark.parametrize("method", METHODS)
def test_scipys_methods_leave_frozen_numbers(method):
    net, objective, p = problem()
    found = objective.minimize(p, method, options={"maxfun" if method == "TNC" else "maxiter": 60})
    np.testing.assert_array_equal(frozen_of(net, found.x), frozen_of(net, p.astype(np.float64)))
    assert found.x.shape == p.shape
    assert found.fun == objective.value(found.x)
    assert found.fun < 0.7 * objective.value(p)
    if method in ("BFGS", "L-BFGS-B", "CG", "TNC", "SLSQP"):
        np.testing.assert_array_equal(found.jac, objective(found.x)[1])


def test_arguments_are_of_all_parameters():
    """Bounds, constraints, callbacks and second derivatives get the vector that the caller knows."""
    net, objective, p = problem()
    seen = []
    first = np.eye(len(p))[0]
    constraint = {
        "type": "ineq",
        "fun": lambda p: np.array([p[0] - 0.5, p.size - net.n_params]),
        "jac": lambda p: np.stack([first, 0 * p]),
    }
    linear = optimize.LinearConstraint(np.ones((1, len(p))), -np.inf, 0.0)
    curved = optimize.NonlinearConstraint(
        lambda p: p @ p, 0.0, 60.0, jac=lambda p: 2 * p, hess=lambda p, v: 2 * v[0] * np.eye(len(p))
    )
    bounds = [(-2.0, 2.0)] * len(p)
    for options in (
        {"method": "SLSQP", "bounds": bounds, "constraints": constraint},
        {
            "method": "trust-constr",
            "constraints": [linear, curved],
            "hess": lambda p: np.eye(len(p)),
            "options": {"maxiter": 30},
        },
        {"method": "L-BFGS-B", "bounds": optimize.Bounds(np.full(len(p), -2.0), 2.0)},
        {"method": "Newton-CG", "hessp": objective.hessp},
    ):
        found = objective.minimize(p, callback=lambda p, *_: seen.append(p.shape), **options)
        np.testing.assert_array_equal(frozen_of(net, found.x), frozen_of(net, p.astype(np.float64)))
        if "bounds" in options:
            assert abs(objective.free.select(found.x)).max() <= 2.0
    assert set(seen) == {p.shape}
    named = []

    def callback(intermediate_result):
        named.append(intermediate_result.x.shape)

    objective.minimize(p, "L-BFGS-B", callback=callback)
    assert set(named) == {p.shape}
    with pytest.raises(ValueError, match="`bounds` has 3 pairs, but there are 12 parameters"):
        objective.minimize(p, "L-BFGS-B", bounds=[(0, 1)] * 3)


def test_the_free_objective_is_the_objective():
    net, objective, p = problem()
    free, whole = objective.free, p.astype(np.float64)
    q = free.restrict(p)
    assert free.n_params == q.size == net.n_params - 5
    np.testing.assert_array_equal(free.complete(q), whole)
    rng = np.random.default_rng(0)
    moved = q + 0.1 * rng.normal(size=q.shape)
    at = free.complete(moved)
    np.testing.assert_array_equal(frozen_of(net, at), frozen_of(net, whole))
    value, g = free(moved)
    assert value == objective.value(at) == free.value(moved)
    np.testing.assert_array_equal(g, free.select(objective.gradient(at)))
    np.testing.assert_array_equal(free.gradient(moved), g)
    assert optimize.check_grad(free.value, free.gradient, moved) < 1e-5
    np.testing.assert_array_equal(free.residuals(moved), objective.residuals(at))
    j = free.jacobian(moved)
    np.testing.assert_allclose(free.residuals(moved) @ j, g, rtol=1e-9)
    np.testing.assert_allclose(free.normal_equations(moved)[2], j.T @ j, rtol=1e-9, atol=1e-12)
    v = rng.normal(size=q.shape)
    differences = (free.gradient(moved + 1e-6 * v) - free.gradient(moved - 1e-6 * v)) / 2e-6
    np.testing.assert_allclose(free.hessp(moved, v), differences, rtol=1e-4, atol=1e-6)


def test_free_rows():
    net, objective, _ = problem()
    free = objective.free
    rows = free.restrict(net.init_many(4, seed=0, dtype=np.float64))
    values, g = free(rows)
    assert (values.shape, g.shape) == ((4,), rows.shape)
    assert values[2] == free(rows[2])[0]
    other = net.init_many(4, seed=0, dtype=np.float64)
    net.views(other[1])["0.bias"][...] = 1.0
    q = free.restrict(other)  # a row has other frozen numbers
    np.testing.assert_array_equal(free.complete(q), other)
    with pytest.raises(ValueError, match=r"`q` has shape \(3, \d+\), but the 4 rows of the latest `restrict` have different"):
        free(q[:3])


def test_free_minimisers_and_searches():
    """SciPy's, chains' and those that know only values reach the same minimum."""
    net, objective, p = problem(penalty=L2Penalty(1e-2))
    free = objective.free
    q = free.restrict(p)
    found = free.minimize(q, "BFGS")
    assert found.x.shape == q.shape
    assert minimize(free, found.x + 0.01, gtol=1e-8).fun == pytest.approx(found.fun, rel=1e-6)
    wide = optimize.differential_evolution(free.value, [(-3.0, 3.0)] * free.n_params, maxiter=3, popsize=3, rng=0)
    np.testing.assert_array_equal(frozen_of(net, free.complete(wide.x)), frozen_of(net, p.astype(np.float64)))
    plain = net.objective(X, T, SquaredLoss()).free
    assert minimize(plain, plain.restrict(p), "LM").fun < 0.1


def test_free_members():
    net, _, _ = problem()
    targets = np.stack([T, 0.5 * T, T + 1.0])
    free, starts = net.objective(X, targets, SquaredLoss()).free, net.init_many(3, seed=0, dtype=np.float64)
    found = minimize(free, free.restrict(starts), "LM", maxiter=5)
    for k, (t, start) in enumerate(zip(targets, starts, strict=True)):
        alone = net.objective(X, t, SquaredLoss()).free
        np.testing.assert_array_equal(found.x[k], minimize(alone, alone.restrict(start), "LM", maxiter=5).x)
    np.testing.assert_array_equal(frozen_of(net, free.complete(found.x)[2]), frozen_of(net, starts[2]))


def test_without_frozen_parameters_it_is_the_same_vector():
    net = Chain(Dense(1, 2, tanh), Dense(2, 1), backend="numpy")
    objective, p = net.objective(X, T, SquaredLoss()), net.init(seed=0, dtype=np.float64)
    np.testing.assert_array_equal(objective.free.complete(p), p)
    assert objective.free(p)[0] == objective(p)[0]


def test_a_free_objective_can_be_pickled():
    _, objective, p = problem()
    free = objective.free
    q = free.restrict(p)
    assert pickle.loads(pickle.dumps(free)).value(q) == free.value(q)


def test_two_free_objectives_share_no_numbers():
    _, objective, p = problem()
    first, second = objective.free, objective.free
    q = first.restrict(p)
    value = first.value(q)
    second.restrict(p + 1.0)
    assert first.value(q) == value
    assert second.value(q) != value


@pytest.mark.parametrize("kind", ["objective", "free"])
@pytest.mark.parametrize(("k", "message"), [(-1, "must be a whole number, 0 or more"), (3, "must be less than 3, the number")])
def test_numbers_of_members(kind, k, message):
    net, _, _ = problem()
    objective = net.objective(X, np.stack([T, 0.5 * T, T + 1.0]), SquaredLoss())
    free = objective.free
    free.restrict(net.init_many(3, seed=0))
    with pytest.raises(ValueError, match=rf"`k` \(={k}\) {message}"):
        (objective if kind == "objective" else free).member(k)


def test_frozen_numbers_must_be_known():
    _, objective, p = problem()
    with pytest.raises(ValueError, match=r"call `restrict\(p\)` of this one first"):
        objective.free(np.zeros(objective.free.n_params))
    with pytest.raises(ValueError, match=r"`p` has shape \(3,\), but must have shape \(12,\) or \(members, 12\)"):
        objective.free.restrict(p[:3])
    free = objective.free
    free.restrict(p)
    with pytest.raises(ValueError, match=r"`q` has shape \(12,\), but must have shape \(7,\) or \(members, 7\)"):
        free(p)


@pytest.mark.parametrize("method", ["Nelder-Mead", "BFGS"])
def test_a_network_of_frozen_parameters_stays(method):
    net = Chain(Dense(1, 1), backend="numpy").with_frozen("*")
    p = net.init(seed=0, dtype=np.float64)
    found = net.objective(X, T, SquaredLoss()).minimize(p, method)
    np.testing.assert_array_equal(found.x, p)
    assert found.success
