"""BFGS and L-BFGS on flat vectors: the minima that SciPy finds, on NumPy's arrays and on a GPU's."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import chains
from chains import Chain, Dense, L2Penalty, SquaredLoss, tanh
from chains.backends import backend
from chains.minimize.minimize import minimize
from chains.minimize.quasi_newton import Pairs, QuasiNewton
from tests.cupy import emulated

optimize = pytest.importorskip("scipy.optimize")
METHODS = {"BFGS": "BFGS", "SSBroyden": "BFGS", "L-BFGS": "L-BFGS-B"}  # with SciPy's
every_method = pytest.mark.parametrize("method", METHODS)


def rosenbrock(x):
    return optimize.rosen(x), optimize.rosen_der(x)


def network_problem():
    """Fitting a sine."""
    net, rng = Chain(Dense(1, 8, tanh), Dense(8, 1)), np.random.default_rng(0)
    x = rng.uniform(-3, 3, (200, 1))
    return net, x, np.sin(x), net.init(seed=1, dtype=np.float64)


@every_method
@pytest.mark.parametrize("n", [2, 10])
def test_rosenbrock(method, n):
    result = minimize(rosenbrock, np.full(n, -1.2), method, gtol=1e-8, ftol=0.0)
    assert result.success
    np.testing.assert_allclose(result.x, np.ones(n), atol=1e-6)
    assert result.nfev < 400


@pytest.mark.parametrize(
    "wrong", [lambda g: 0.0 * g, lambda g: g, lambda g: g[::-1] * [1.0, -1.0]], ids=["none", "up", "level"]
)
def test_a_model_that_shows_no_way_down_is_forgotten(wrong):
    class Wrong(Pairs):
        forgotten = False

        def __call__(self, g):
            return super().__call__(g) if self.forgotten else wrong(g)

        def forget(self):
            super().forget()
            self.forgotten = True

    start = np.array([-1.2, 1.0])
    point = QuasiNewton(rosenbrock, start, Wrong(start, 5))
    assert point.step() == ""
    assert point.value < rosenbrock(start)[0]


@every_method
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_quadratic_of_wide_range(method, scale):
    rng = np.random.default_rng(0)
    factors = np.logspace(0, 3, 30) * scale
    center = rng.normal(size=30)
    result = minimize(lambda x: (0.5 * factors @ (x - center) ** 2, factors * (x - center)), np.zeros(30), method,
                      gtol=1e-7 * scale, ftol=0.0)  # fmt: skip
    assert result.success, result.message
    np.testing.assert_allclose(result.x, center, atol=1e-6)


@every_method
def test_networks_minimum_is_scipys(method):
    """From near a minimum, so that there is one to find: the value is SciPy's to 1e-6, the vector to 1e-2 of its scale."""
    net, x, t, p = network_problem()
    objective = net.objective(x, t, SquaredLoss(), L2Penalty(1e-3))
    minimum = optimize.minimize(objective, p, jac=True, method="BFGS", options={"gtol": 1e-6}).x
    p = minimum + 0.05 * np.random.default_rng(1).normal(size=p.size)
    options = {"gtol": 1e-6, "maxiter": 5000} | ({"ftol": 0.0} if method == "L-BFGS" else {})
    wanted = optimize.minimize(objective, p, jac=True, method=METHODS[method], options=options)
    found = minimize(objective, p, method, gtol=1e-6, ftol=0.0, maxiter=5000)
    assert found.success, found.message
    assert found.fun == pytest.approx(wanted.fun, rel=1e-6)
    assert found.nfev < 2 * wanted.nfev + 50
    np.testing.assert_allclose(found.x, wanted.x, atol=1e-2 * np.abs(wanted.x).max())


def fits():
    """Sines fitted by small networks from afar, and quadratics of condition 1e4 of several scales."""
    net, x = Chain(Dense(1, 12, tanh), Dense(12, 1)), np.linspace(-1.5, 1.5, 100)[:, None]
    for seed in range(4):
        yield net.objective(x, np.sin(3 * x), SquaredLoss()), net.init(seed=seed, dtype=np.float64)
    center = np.random.default_rng(0).normal(size=30)
    for scale in (1e-3, 1.0, 1e3):
        factors = np.logspace(0, 4, 30) * scale
        yield lambda x, f=factors: (0.5 * f @ (x - center) ** 2, f * (x - center)), np.zeros(30)


def values_along(run, function):
    """The lowest value after each evaluation that `run` makes of the function."""
    values = []

    def recorded(p):
        value, g = function(p)
        values.append(value)
        return value, g

    run(recorded)
    return np.minimum.accumulate(values)


@every_method
def test_evaluations_to_scipys_value(method):
    """What SciPy reaches in 300 iterations is reached within as many evaluations, in the geometric mean and to 40 %."""
    options = {"gtol": 0.0, "maxiter": 300} | ({"ftol": 0.0} if method == "L-BFGS" else {})
    ratios = []
    for function, p in fits():
        wanted = values_along(partial(optimize.minimize, x0=p, jac=True, method=METHODS[method], options=options), function)
        found = values_along(partial(minimize, p=p, method=method, gtol=0.0, ftol=0.0, maxiter=1000), function)
        target = 1.001 * wanted[-1] + 1e-12 * wanted[0]
        ratios.append(((found > target).sum() + 1) / ((wanted > target).sum() + 1))
    assert np.exp(np.log(ratios).mean()) < 1.4, ratios


@every_method
def test_the_start_is_left_and_the_callback_called(method):
    start, seen = np.full(2, -1.2), []
    result = minimize(rosenbrock, start, method, callback=lambda p: seen.append(p.copy()))
    np.testing.assert_array_equal(start, -1.2)
    assert len(seen) == result.nit
    np.testing.assert_array_equal(seen[-1], result.x)
    assert result.fun == optimize.rosen(result.x)
    np.testing.assert_array_equal(result.jac, optimize.rosen_der(result.x))
    stopped = minimize(rosenbrock, start, method, maxiter=3)
    assert (stopped.nit, stopped.success) == (3, False)


def test_the_line_search_keeps_a_minimum_between_its_ends():
    """A narrow valley behind a gentle slope: tries fall left and right of it, all of them with a steep slope."""
    places, slopes = np.array([0.0, 0.3, 0.35, 0.55, 0.65, 9.0]), np.array([-1.0, -1.0, -5.0, -5.0, 3.0, 3.0])

    def valley(p):
        ends = np.unique([*places[places < p[0]], 0.0, p[0]])
        between = np.interp(ends, places, slopes)
        return float(np.sum(np.diff(ends) * (between[1:] + between[:-1]) / 2.0)), np.interp(p, places, slopes)

    found = minimize(valley, np.zeros(1), "BFGS", gtol=1e-9)
    np.testing.assert_allclose(found.x, 0.6125, atol=1e-9)
    assert found.success
    assert found.nfev <= 20


@every_method
def test_infinite_values_are_walls(method):
    def walled(x):
        with np.errstate(all="ignore"):
            return (x[0] - np.log(x[0]), np.array([1.0 - 1.0 / x[0]])) if x[0] > 0 else (np.nan, np.array([np.nan]))

    result = minimize(walled, np.array([1e-3]), method, gtol=1e-8, ftol=0.0)
    assert result.success
    np.testing.assert_allclose(result.x, 1.0, atol=1e-6)


@every_method
def test_a_minimum_at_once_and_one_without_precision(method):
    assert minimize(rosenbrock, np.ones(3), method).nit == 0
    result = minimize(lambda x: (1e20 + float(x @ x), 2 * x), np.ones(3), method, gtol=1e-12)
    assert not result.success or float(abs(result.jac).max()) <= 1e-12 or "ftol" in result.message


@every_method
def test_on_a_gpus_arrays(method):
    """The vectors stay on the device, and the result is that of NumPy's arrays to rounding."""
    if emulated.COMPILER is None:
        pytest.skip("no C compiler on this computer")
    device = backend("emulated").on_device.device
    net, x, t, p = network_problem()
    wanted = minimize(net.objective(x, t, SquaredLoss(), L2Penalty(1e-3)), p, method, maxiter=15)
    found = net.objective(device.array(x), device.array(t), SquaredLoss(), L2Penalty(1e-3)).minimize(
        device.array(p), method, maxiter=15
    )
    assert device.owns(found.x)
    assert device.owns(found.jac)
    assert found.fun == pytest.approx(wanted.fun, rel=1e-6)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"`method` \(='CG'\) must be 'BFGS', 'SSBroyden', 'L-BFGS' or 'LM'"):
        minimize(rosenbrock, np.ones(3), "CG")
    with pytest.raises(ValueError, match=r"`p` must be a vector, or rows that are vectors, got shape \(1, 1, 3\)"):
        minimize(rosenbrock, np.ones((1, 1, 3)))
    assert chains.minimize is minimize


@pytest.mark.parametrize("method", ["BFGS", "SSBroyden", "L-BFGS"])
def test_a_callback_gets_a_copy(method):
    assert minimize(bowl, np.ones(2), method, callback=lambda p: p.fill(9.0)).x == pytest.approx([0.0, 0.0], abs=1e-5)


def test_a_network_without_parameters_has_nothing_to_fit():
    x = np.ones((3, 2))
    found = minimize(Chain(input_shape=(2,)).objective(x, 2.0 * x, SquaredLoss()), np.zeros(0), "LM")
    assert (found.success, found.nit) == (True, 0)
    assert found.fun == pytest.approx(1.0)


def bowl(p):
    return float(p @ p), 2 * p


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.ones(2), bowl), {}, r"`function` \(=an array of float64, shape \(2,\)\) must be a function"),
        ((bowl, np.ones((2, 2, 2))), {}, r"`p` must be a vector, or rows that are vectors, got shape \(2, 2, 2\)"),
        ((bowl, np.ones((2, 2))), {"callback": print}, "`callback` is for one vector, but `p` has rows"),
        ((bowl, np.ones(2)), {"bounds": (0.0, 1.0)}, "`bounds` are for the methods 'L-BFGS' and 'LM', not for 'BFGS'"),
        ((bowl, np.ones(2), "L-BFGS"), {"bounds": 3}, r"`bounds` \(=3\) must be a pair \(low, high\)"),
        ((bowl, np.ones(3), "L-BFGS"), {"bounds": [(0.0, 1.0)] * 3}, r"must be a pair \(low, high\) of numbers or arrays"),
        ((bowl, np.ones(2), "L-BFGS"), {"bounds": (1.0, 0.0)}, "`bounds` must have low <= high for every parameter"),
        (
            (bowl, np.ones(2), "L-BFGS"),
            {"bounds": [(0, 1), (0, 2)]},
            "could be .low, high., or a pair for each of two",
        ),
        ((bowl, np.ones((5, 2)), "L-BFGS"), {"bounds": ((0, 1), (0, 2))}, "or a pair for each of two parameters"),
        ((bowl, np.ones(2), "L-BFGS"), {"bounds": (np.inf, np.inf)}, r"a number between them.*got \(inf, inf\)"),
        ((bowl, np.ones(2), "L-BFGS"), {"bounds": (None, -np.inf)}, r"a number between them.*got \(-inf, -inf\)"),
        ((bowl, np.ones(2), "L-BFGS"), {"bounds": (np.ones(3), 4.0)}, r"that broadcast to the shape of `p`, \(2,\)"),
        ((bowl, np.ones(2, complex)), {}, "`p` must be real, got complex128"),
        ((bowl, [1.0, np.nan]), {}, r"`p` must be finite, got nan at index \(1,\)"),
        ((bowl, np.ones(2)), {"maxiter": 2.5}, r"`maxiter` \(=2.5\) must be a whole number, 0 or more"),
        ((bowl, np.ones(2)), {"maxiter": -1}, r"`maxiter` \(=-1\)"),
        ((bowl, np.ones(2)), {"memory": 0}, r"`memory` \(=0\) must be a positive whole number"),
        ((bowl, np.ones(2)), {"gtol": np.nan}, r"`gtol` \(=nan\) must be in \[0, inf\)"),
        ((bowl, np.ones(2)), {"ftol": "a"}, r"`ftol` \(='a'\) must be a number"),
        ((bowl, np.ones(2)), {"callback": 3}, r"`callback` \(=3\) must be a function"),
        ((lambda p: 1.0, np.ones(2)), {}, "must return the value and the gradient, not"),
        ((lambda p: (1.0, None), np.ones(2)), {}, r"must return a gradient of real numbers, of shape \(2,\)"),
        ((lambda p: (1.0, p[:1]), np.ones(2)), {}, r"must return a gradient of real numbers, of shape \(2,\)"),
        ((lambda p: (1.0, p * 1j), np.ones(2)), {}, "must return a gradient of real numbers.*complex128"),
        ((lambda p: ("a", p), np.ones(2)), {}, "must return a number as the value, not 'a'"),
        ((lambda: 1.0, np.ones(2)), {}, "must be a function of `p`"),
        ((bowl, np.ones(2)), {"callback": lambda: None}, "must be a function of `p`, or None"),
    ],
)
def test_arguments_that_make_no_sense(arguments, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        minimize(*arguments, **options)


@pytest.mark.parametrize("function", [lambda p: (np.nan, p), lambda p: (np.inf, p), lambda p: (1.0, p * np.nan)])
def test_where_there_are_no_numbers_it_does_not_start(function):
    found = minimize(function, np.ones(2))
    assert not found.success
    assert (found.message, found.nit, found.nfev) == ("the value or the gradient at `p` is infinite or NaN", 0, 1)


def test_lists_are_vectors():
    found = minimize(bowl, [3, -1])
    assert found.success
    np.testing.assert_allclose(found.x, 0.0, atol=1e-5)


def test_the_result_can_be_printed():
    lines = repr(minimize(lambda p: (float(p @ p), 2 * p), np.ones(300))).splitlines()
    assert [line.split(":")[0].strip() for line in lines] == ["message", "success", "fun", "jac", "nit", "nfev", "x"]
    assert lines[-1].endswith("an array of float64, shape (300,)")


@every_method
def test_a_search_that_fails_returns_the_lowest_point_it_saw(method):
    """The gradient says that the function falls everywhere, so no point has the slope of a minimum."""
    seen = []

    def lies(p):
        seen.append(abs(float(p[0]) - 0.3))
        return seen[-1], np.full(1, -1.0)

    found = minimize(lies, np.zeros(1), method, maxiter=1)
    assert len(seen) > 5
    assert found.fun == min(seen) < seen[0]


def test_each_row_has_its_own_bounds():
    high = np.array([[0.5, 3.0], [2.5, 0.25], [9.0, 9.0]])
    found = minimize(lambda p: (float((p - 1.0) @ (p - 1.0)), 2.0 * (p - 1.0)), np.zeros((3, 2)), "L-BFGS", bounds=(None, high))
    np.testing.assert_allclose(found.x, np.minimum(high, 1.0), atol=1e-6)
