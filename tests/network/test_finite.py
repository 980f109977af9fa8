"""SciPy's optimisers on objectives that fail at some parameters: they end at the lowest finite point, and say so."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies import optimisers
from chains.objectives.minimize_with_scipy import FiniteFunction

optimize = pytest.importorskip("scipy.optimize")
METHODS = ["BFGS", "CG", "L-BFGS-B", "TNC", "SLSQP", "Newton-CG", "trust-constr"]


@pytest.fixture(scope="module")
def failing():
    return optimisers.problem()


@pytest.mark.parametrize("method", METHODS)
def test_fits_of_an_ode_that_fails_end_lower(failing, method):
    net, objective = failing
    for p in optimisers.starts(net, objective, 4):
        result = objective.minimize(p, method, options={"maxfun" if method == "TNC" else "maxiter": 20})
        assert np.isfinite(result.x).all()
        assert result.fun == objective.value(result.x) < objective.value(p)
        np.testing.assert_array_equal(result.grad if "grad" in result else result.jac, objective.gradient(result.x))
        assert "The value or the gradient was infinite or NaN at" in result.message


def test_the_lowest_finite_point_is_returned(failing):
    """This start has a step of 2^-12 before it fails, where no point meets the strong Wolfe conditions."""
    net, objective = failing
    p = net.init(np.random.default_rng(4), np.float64)
    result = objective.minimize(p, options={"maxiter": 20})
    assert not result.success
    assert result.message.endswith("The lowest finite point is returned.")
    assert result.fun < objective.value(p)


def test_a_start_that_fails(failing):
    net, objective = failing
    p = next(p for p in (net.init(seed=seed, dtype=np.float64) for seed in range(9)) if np.isnan(objective.value(p)))
    result = objective.minimize(p)
    assert np.isnan(result.fun)
    assert not result.success
    assert "at 1 of 1 points" in result.message


def walled(p):
    """The minimum of p - log(p) is at 1; there is none below 0."""
    return (float(p[0] - np.log(p[0])), 1.0 - 1.0 / p) if p[0] > 0.0 else (np.nan, p * np.nan)


def test_points_outside_the_bounds_are_no_result():
    function = FiniteFunction(walled)
    assert function(np.array([1.0]))[0] == 1.0
    assert function(np.array([-1.0])) == (1e4, -5e3)
    ended = optimize.OptimizeResult(x=np.array([2.0]), fun=9.0, jac=np.ones(1), success=True, message="Bounded.")
    result = function.complete(ended, restricted=True)
    assert (result.x, result.fun, result.jac) == (2.0, 2.0 - np.log(2.0), 0.5)
    assert result.message == "Bounded. The value or the gradient was infinite or NaN at 1 of 2 points."


def test_results_without_failures_are_scipys():
    function, point = FiniteFunction(walled), np.array([2.0])
    result = optimize.minimize(function, point, jac=True)
    assert function.complete(result, restricted=False).message == optimize.minimize(walled, point, jac=True).message


def test_the_benchmark_runs(capsys):
    optimisers.main(["--starts", "1", "--iterations", "5", "--methods", "BFGS"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("| objective.minimize, BFGS | 1 | 1 | 1 | ")
