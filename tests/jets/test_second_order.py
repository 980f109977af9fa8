"""Objectives beyond their gradient: SciPy's methods that take a Hessian product or a Jacobian, and Levenberg-Marquardt."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import Chain, Dense, L2Penalty, MSELoss, SquaredLoss, minimize, tanh
from tests.harness import BACKENDS

every_backend = pytest.mark.parametrize("backend", sorted({"numpy", "native", *BACKENDS} - {"cupy"}))
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
        monkeypatch.setattr("chains.network.second_order.BLOCK_BYTES", nbytes)
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
