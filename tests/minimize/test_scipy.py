"""SciPy's minimisers end where they end with a plain NumPy objective."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Chain, Dense, L2Penalty, SquaredLoss, tanh

optimize = pytest.importorskip("scipy.optimize")

METHODS = ["BFGS", "L-BFGS-B", "CG", "Newton-CG", "trust-constr", "TNC", "SLSQP"]
OPTIONS = {
    "trust-constr": {"gtol": 1e-7, "maxiter": 3000},
    "TNC": {"maxfun": 20000, "gtol": 1e-8, "ftol": 1e-15, "xtol": 1e-14},
    "SLSQP": {"ftol": 1e-14, "maxiter": 2000},
    "L-BFGS-B": {"ftol": 1e-15, "gtol": 1e-8, "maxiter": 5000, "maxfun": 20000},
    "Newton-CG": {"xtol": 1e-9},
    "BFGS": {"gtol": 1e-7},
    "CG": {"gtol": 1e-7, "maxiter": 5000},
}
X = np.linspace(-1.0, 1.0, 20)[:, None]
T = np.sin(2.5 * X)
STRENGTH = 1e-2


def by_hand(p):
    """The same network, 1-4-1 with tanh, half the mean square plus a penalty, in plain NumPy."""
    a, b, c, d = p[:4][None, :], p[4:8], p[8:12][:, None], p[12:]
    h = np.tanh(X @ a + b)
    r = h @ c + d - T
    dh = (r @ c.T) * (1 - h * h)
    gradient = np.concatenate([(X.T @ dh).ravel(), dh.sum(0), (h.T @ r).ravel(), r.sum(0)]) / len(X)
    return 0.5 * np.mean(np.sum(r * r, axis=1)) + STRENGTH * np.sum(p * p), gradient + 2 * STRENGTH * p


@pytest.fixture
def net(backend_name):
    return Chain(Dense(1, 4, tanh), Dense(4, 1), backend=backend_name)


def start(net, dtype):
    """Parameters of this type, handed to SciPy as float64 numbers: it does not take float32 everywhere."""
    return net.init(seed=3, dtype=dtype).astype(np.float64)


def test_the_objective_is_the_plain_one(net):
    objective, p = net.objective(X, T, SquaredLoss(), L2Penalty(STRENGTH)), start(net, np.float64)
    value, gradient = objective(p)
    assert value == pytest.approx(by_hand(p)[0], rel=1e-13)
    np.testing.assert_allclose(gradient, by_hand(p)[1], rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("method", METHODS)
def test_minimize_takes_what_init_gives(net, method, dtype):
    """Also float32, from which some of SciPy's methods cannot start."""
    p = net.init(seed=3, dtype=dtype)
    wanted = optimize.minimize(by_hand, p.astype(np.float64), jac=True, method=method, options=OPTIONS[method])
    objective = net.objective(X, T, SquaredLoss(), L2Penalty(STRENGTH))
    found = objective.minimize(p, method, options=OPTIONS[method])
    assert found.fun == pytest.approx(wanted.fun, rel=1e-6)
    np.testing.assert_allclose(found.x, wanted.x, atol=2e-3)


@pytest.mark.parametrize("method", METHODS)
def test_method_ends_at_the_same_minimum(net, method, dtype):
    p = start(net, dtype)
    wanted, found = (
        optimize.minimize(f, p, jac=True, method=method, options=OPTIONS[method])
        for f in (by_hand, net.objective(X, T, SquaredLoss(), L2Penalty(STRENGTH)))
    )
    assert found.x.dtype == np.float64
    assert found.fun == pytest.approx(wanted.fun, rel=1e-7)
    np.testing.assert_allclose(found.x, wanted.x, atol=2e-3)
    assert np.abs(by_hand(found.x)[1]).max() < 1e-4
    assert found.fun < by_hand(p)[0] / 2


@pytest.mark.parametrize("method", METHODS)
def test_one_minimum_for_all(net, method):
    """Without help of equal rounding: the value is that of the best method."""
    best = optimize.minimize(by_hand, start(net, np.float64), jac=True, method="BFGS", options={"gtol": 1e-8})
    found = optimize.minimize(
        net.objective(X, T, SquaredLoss(), L2Penalty(STRENGTH)),
        start(net, np.float32),
        jac=True,
        method=method,
        options=OPTIONS[method],
    )
    assert found.fun == pytest.approx(best.fun, rel=1e-5)


@pytest.mark.parametrize("method", ["BFGS", "L-BFGS-B", "CG", "trust-constr"])
def test_a_start_left_in_float32(net, method):
    """Those methods that take float32 numbers reach the minimum all the same: value and gradient are float64."""
    best = optimize.minimize(by_hand, start(net, np.float64), jac=True, method="BFGS", options={"gtol": 1e-8})
    found = optimize.minimize(
        net.objective(X, T, SquaredLoss(), L2Penalty(STRENGTH)),
        net.init(seed=3),
        jac=True,
        method=method,
        options={"maxiter": 3000},
    )
    assert found.fun == pytest.approx(best.fun, rel=1e-4)


def test_check_grad(net):
    objective = net.objective(X, T, SquaredLoss())
    assert optimize.check_grad(objective.value, objective.gradient, start(net, np.float64)) < 1e-6


def test_least_squares_through_vjp(net):
    """The Jacobian, row by row, is what SciPy's own differences give."""
    p = start(net, np.float64)
    rows = []
    for k in range(len(X)):
        dy = np.zeros_like(T)
        dy[k] = 1.0
        rows.append(net.vjp(p, X, dy)[0])
    numerical = optimize.approx_fprime(p, lambda p: net(X, p).ravel(), 1e-7)
    np.testing.assert_allclose(np.array(rows), numerical, atol=1e-6)


def test_settings_of_a_method_are_told_where_to_go(net):
    objective, p = net.objective(X, T, SquaredLoss()), net.init()
    with pytest.raises(TypeError, match=r"`maxiter` is not an argument .* as options=\{'maxiter': 5\}"):
        objective.minimize(p, maxiter=5)
    assert objective.minimize(p, options={"maxiter": 5}).nit == 5
    for method in ("L-BFGS", "LM"):
        with pytest.raises(ValueError, match=rf"`method` .='{method}'. is not one of SciPy: chains.minimize.objective, p, "):
            objective.minimize(p, method)
    with pytest.raises(ValueError, match=r"`p` must be a vector, got shape \(2, \d+\): of many starts, minimize each row"):
        objective.minimize(net.init_many(2))
