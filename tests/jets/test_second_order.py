"""Objectives beyond their gradient: SciPy's methods that take a Hessian product or a Jacobian, and Levenberg-Marquardt."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import Chain, Dense, L2Penalty, MSELoss, ResidualProblem, SquaredLoss, Term, minimize, tanh
from chains.expr import sin
from tests.harness import BACKENDS

EVERY_BACKEND = sorted({"numpy", "native", *BACKENDS} - {"cupy"})
every_backend = pytest.mark.parametrize("backend", EVERY_BACKEND)
RNG = np.random.default_rng(0)
X, T = RNG.normal(size=(30, 2)), RNG.normal(size=(30, 2))
WEIGHTS = RNG.uniform(0.5, 2.0, 30)


def net_of(backend: str) -> Chain:
    return Chain(Dense(2, 6, tanh), Dense(6, 2), backend=backend)


@every_backend
@pytest.mark.parametrize("loss", [SquaredLoss(), MSELoss()], ids=repr)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_half_the_sum_of_the_residuals_squares_is_the_value(backend, loss, weights):
    net = net_of(backend)
    objective, p = net.objective(X, T, loss, weights=weights), net.init(seed=1, dtype=np.float64)
    value, g = objective(p)
    r, j = objective.residuals(p), objective.jacobian(p)
    assert r.shape == (60,)
    assert j.shape == (60, net.n_params)
    assert 0.5 * r @ r == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(r @ j, g, rtol=1e-10, atol=1e-13)
    step = 1e-6 * np.ones_like(p)
    wanted = (objective.residuals(p + step) - objective.residuals(p - step)) / 2
    np.testing.assert_allclose(j @ step, wanted, atol=1e-13)


@every_backend
def test_normal_equations_do_not_depend_on_blocks(backend, monkeypatch):
    net = net_of(backend)
    objective, p = net.objective(X, T, MSELoss(), weights=WEIGHTS), net.init(seed=1, dtype=np.float64)
    j, r = objective.jacobian(p), objective.residuals(p)
    for nbytes in (1 << 25, 8 * net.n_params * 2 * 7):
        monkeypatch.setattr("chains.objectives.second_order.BLOCK_BYTES", nbytes)
        value, g, matrix = objective.normal_equations(p)
        assert value == pytest.approx(0.5 * r @ r, rel=1e-12)
        np.testing.assert_allclose(g, j.T @ r, atol=1e-13)
        np.testing.assert_allclose(matrix, j.T @ j, atol=1e-13)


@pytest.mark.parametrize("method", ["Newton-CG", "trust-ncg", "trust-krylov"])
def test_scipys_methods_with_hessian_products(method):
    scipy = pytest.importorskip("scipy.optimize")
    net = net_of("auto")
    objective, p = net.objective(X, T, SquaredLoss(), L2Penalty(0.05)), net.init(seed=1, dtype=np.float64)
    found = scipy.minimize(objective, p, jac=True, hessp=objective.hessp, method=method, options={"maxiter": 500})
    assert found.fun < objective(p)[0]
    assert np.abs(objective.gradient(found.x)).max() < 1e-4


def test_scipys_least_squares_and_ours_reach_the_same_value():
    scipy = pytest.importorskip("scipy.optimize")
    net = net_of("auto")
    x = np.linspace(-1.0, 1.0, 25)[:, None] * [1.0, -0.5]
    t = np.stack([np.sin(2.0 * x[:, 0]), x[:, 0] ** 2], axis=-1)
    objective, p = net.objective(x, t, MSELoss()), net.init(seed=0, dtype=np.float64)
    theirs = scipy.least_squares(objective.residuals, p, objective.jacobian, method="trf", max_nfev=300)
    ours = minimize(objective, p, "LM", maxiter=300)
    plain = minimize(objective, p, "BFGS", maxiter=300)
    assert ours.fun < max(1e-6, 1.5 * theirs.cost)
    assert ours.fun <= plain.fun
    assert ours.fun == pytest.approx(objective(ours.x)[0], rel=1e-9)


def test_levenberg_marquardt_ends_as_its_settings_say():
    net = net_of("auto")
    objective, p = net.objective(X, T, MSELoss()), net.init(seed=0, dtype=np.float64)
    before = p.copy()
    points: list[np.ndarray] = []
    few = minimize(objective, p, "LM", maxiter=3, callback=lambda q: points.append(q.copy()))
    assert (few.nit, few.success, len(points)) == (3, False, 3)
    np.testing.assert_array_equal(points[-1], few.x)
    np.testing.assert_array_equal(p, before)
    assert minimize(objective, p, "LM", ftol=0.5).message == "the value falls by less than `ftol`"
    converged = minimize(objective, p, "LM", gtol=2e-3)
    assert converged.success
    assert converged.message == "the gradient is below `gtol`"


def test_what_is_no_sum_of_squares_is_refused():
    net = net_of("numpy")
    p = net.init(dtype=np.float64)
    with pytest.raises(ValueError, match=r"not of L1Loss\(\)"):
        net.objective(X, T, chains.L1Loss()).residuals(p)
    with pytest.raises(ValueError, match="L2Penalty"):
        net.objective(X, T, MSELoss(), L2Penalty(0.1)).jacobian(p)
    with pytest.raises(ValueError, match="must not be negative"):
        net.objective(X, T, MSELoss(), weights=-WEIGHTS).residuals(p)
    with pytest.raises(TypeError, match="`function`"):
        minimize(lambda q: (float(q @ q), 2 * q), p, "LM")
    with pytest.raises(ValueError, match=r"`v` has shape \(3,\)"):
        net.objective(X, T, MSELoss()).hessp(p, np.ones(3))


def equations(points: np.ndarray, edge: np.ndarray) -> ResidualProblem:
    """Two coupled equations within, one at an edge, whose rows of the second are zero."""
    terms = [
        Term(lambda u, v, x, f: (u.t + u * u.x - 0.3 * v.xx - f, v.tx + sin(x) * u), points, {"f": points[:, 0]}),
        Term(lambda v: v - 0.5, edge, weight=3.0),
    ]
    return ResidualProblem(("t", "x"), ("u", "v"), terms, transform=lambda u, v, x: ((1.0 - x * x) * u, v))


@every_backend
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_residuals_of_differential_equations(backend, weights, monkeypatch):
    net = Chain(Dense(2, 6, tanh), Dense(6, 5, "gelu"), Dense(5, 2), backend=backend)
    problem, p = equations(X[:20], X[20:]), net.init(seed=1, dtype=np.float64)
    objective = net.objective(problem.x, problem.t, problem.loss, weights=weights)
    value, g = objective(p)
    r, j = objective.residuals(p), objective.jacobian(p)
    assert r.shape == (60,)
    assert j.shape == (60, net.n_params)
    assert not r[41::2].any()
    assert not j[41::2].any()
    assert 0.5 * r @ r == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(r @ j, g, rtol=1e-9, atol=1e-12)
    for k in range(0, net.n_params, 7):
        step = 1e-5 * np.eye(net.n_params)[k]
        wanted = (objective.residuals(p + step) - objective.residuals(p - step)) / 2e-5
        np.testing.assert_allclose(j[:, k], wanted, rtol=1e-7, atol=1e-8)
    monkeypatch.setattr("chains.objectives.second_order.BLOCK_BYTES", 8 * net.n_params * 2 * 7)
    np.testing.assert_allclose(objective.residuals(p), r, rtol=1e-11, atol=1e-14)
    found, gradient, matrix = objective.normal_equations(p)
    assert found == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(gradient, g, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(matrix, j.T @ j, atol=1e-12)


def test_jacobian_of_residuals_as_in_jax(jax64):
    jax, jnp = jax64, jax64.numpy
    layers = Dense(2, 6, tanh), Dense(6, 1)
    p = Chain(*layers).init(seed=2, dtype=np.float64)
    problem = ResidualProblem(("t", "x"), ("u",), [Term(lambda u: u.t + u * u.x - 0.2 * u.xx, X)])

    def network(p, z):
        return (jnp.tanh(z @ p[:12].reshape(2, 6) + p[12:18]) @ p[18:24] + p[24]).sum()

    def residuals(p):
        def residual(z):
            first, second = jax.grad(network, 1)(p, z), jax.hessian(network, 1)(p, z)
            return first[0] + network(p, z) * first[1] - 0.2 * second[1, 1]

        return jnp.sqrt(2.0 / len(X)) * jax.vmap(residual)(X)

    r, jacobian = jax.jit(residuals)(p), jax.jit(jax.jacrev(residuals))(p)
    for backend in EVERY_BACKEND:
        objective = Chain(*layers, backend=backend).objective(problem.x, problem.t, problem.loss)
        np.testing.assert_allclose(objective.residuals(p), r, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(objective.jacobian(p), jacobian, rtol=1e-9, atol=1e-12)


def test_an_equation_is_solved_by_least_squares():
    """u' = -u, u(0) = 1."""
    t = np.linspace(0.0, 1.0, 15)[:, None]
    net = Chain(Dense(1, 6, tanh), Dense(6, 1))
    problem = ResidualProblem(("t",), ("u",), [Term(lambda u: u.t + u, t), Term(lambda u: u - 1.0, t[:1])])
    objective, p = net.objective(problem.x, problem.t, problem.loss), net.init(seed=0, dtype=np.float64)
    ours = minimize(objective, p, "LM", gtol=1e-8, maxiter=300)
    np.testing.assert_allclose(net(t, ours.x)[:, 0], np.exp(-t[:, 0]), atol=1e-5)
    scipy = pytest.importorskip("scipy.optimize")
    theirs = scipy.least_squares(objective.residuals, p, objective.jacobian, max_nfev=200)
    np.testing.assert_allclose(net(t, theirs.x)[:, 0], np.exp(-t[:, 0]), atol=1e-4)
