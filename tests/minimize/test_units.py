"""A fit is the same fit in any unit: of the loss, of the data, and for "LM" of the parameters."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Chain, Dense, Equations, MSELoss, SquaredLoss, minimize, tanh
from chains.expr import exp, sqrt
from chains.layers import Scale
from chains.minimize.levenberg_marquardt import SINGULAR
from chains.minimize.minimize import LIMIT
from tests.minimize.test_rows import reference

POWERS = [2.0**-27, 0.5, 2.0**26]
X = np.linspace(-1.5, 1.5, 30)[:, None]
T = np.sin(2.0 * X) + 0.05 * np.cos(17.0 * X)
TIME = np.linspace(0.0, 4.0, 40)[:, None]
both_paths = pytest.mark.parametrize("compiled", [False, True], ids=["NumPy", "compiled"])


class Scaled:
    """A function times a number."""

    def __init__(self, function, factor):
        self.function, self.factor = function, factor

    def __call__(self, p):
        value, g = self.function(p)
        return self.factor * value, self.factor * g

    def value(self, p):
        return self.factor * self.function.value(p)

    def normal_equations(self, p):
        return tuple(self.factor * each for each in self.function.normal_equations(p))


def in_unit(unit, compiled=False):
    """Targets in a unit, reached from the same parameters through a frozen scale; parameters without the scale."""
    net = Chain(Dense(1, 4, tanh), Dense(4, 1), Scale(scale_init=unit), backend="auto" if compiled else "numpy")
    objective = net.with_frozen("2.*").objective(X, unit * T, SquaredLoss())
    return objective if compiled else reference(objective), net.init(seed=0, dtype=np.float64)


def iterates(function, start, method, **options):
    seen = []
    found = minimize(function, start, method, callback=lambda p: seen.append(p.copy()), progress=False, **options)
    return found, np.array(seen)


def assert_same(found, wanted):
    for name in ("message", "success", "nit", "nfev"):
        assert getattr(found, name) == getattr(wanted, name), name


@pytest.mark.parametrize("unit", POWERS)
def test_lm_in_any_unit_of_the_loss(unit):
    """The same bits for powers of two."""
    function, start = in_unit(1.0)
    wanted, path = iterates(function, start, "LM", maxiter=100)
    found, other = iterates(Scaled(function, unit), start, "LM", maxiter=100)
    assert_same(found, wanted)
    np.testing.assert_array_equal(other, path)
    assert found.fun == unit * wanted.fun


@both_paths
@pytest.mark.parametrize("unit", POWERS)
def test_lm_in_any_unit_of_the_data(unit, compiled):
    """A frozen scale changes no bit of the path of the others."""
    wanted, path = iterates(*in_unit(1.0, compiled), "LM", maxiter=100)
    found, other = iterates(*in_unit(unit, compiled), "LM", maxiter=100)
    assert_same(found, wanted)
    np.testing.assert_array_equal(other[:, :-1], path[:, :-1])


@pytest.mark.parametrize("factor", [1e-8, 1e-3, 1e4, 1e8])
def test_lm_times_any_number(factor):
    function, start = decay((1.0, 1.0, 1.0))
    wanted, path = iterates(Scaled(function, 1.0), start, "LM")
    found, other = iterates(Scaled(function, factor), start, "LM")
    assert wanted.success
    assert_same(found, wanted)
    np.testing.assert_allclose(other, path, rtol=1e-9)


@both_paths
def test_curves_in_any_unit_are_fitted(compiled):
    """The success of decaying curves with noise does not depend on the unit of the signal."""
    rng = np.random.default_rng(0)
    count = 200 if compiled else 20
    truth = np.column_stack([rng.uniform(1.0, 3.0, count), rng.uniform(0.5, 2.0, count)])
    curves = truth[:, :1] * np.exp(-truth[:, 1:] * TIME.T) + 0.02 * rng.normal(size=(count, 40))
    net = Chain(Equations(lambda t, a, k: a * exp(-k * t), ("t",), parameters={"a": 1.0, "k": 1.0}))
    wanted = None
    for unit in (1.0, 1e4, 1e-6):
        objective = net.objective(TIME, unit * curves[:, :, None], SquaredLoss())
        found = minimize(objective if compiled else reference(objective), np.array([[unit, 1.0]] * count), "LM")
        wanted = found if wanted is None else wanted
        assert found.success.all()
        np.testing.assert_allclose(found.x / [unit, 1.0], wanted.x, rtol=1e-5)
        assert abs(found.nit - wanted.nit).max() <= 1
        far = minimize(objective, np.ones((count, 2)), "LM")  # a start that knows nothing of the unit
        assert (far.success & (far.fun <= 1.001 * found.fun)).mean() > 0.9
        assert not (far.success & (far.fun > 1.01 * found.fun)).any()


def decay(units, noise=0.02, backend="numpy"):
    """A curve whose parameters have these units."""
    signal = 2.0 * np.exp(-0.7 * TIME) + 0.5 + noise * np.random.default_rng(0).normal(size=TIME.shape)
    u = dict(zip(("a", "k", "c"), units, strict=True))
    formula = lambda t, a, k, c: u["a"] * a * exp(-u["k"] * k * t) + u["c"] * c  # noqa: E731
    net = Chain(Equations(formula, ("t",), parameters={"a": 1.0, "k": 1.0, "c": 1.0}), backend=backend)
    return net.objective(TIME, signal, MSELoss()), 1.0 / np.array(units)


def test_one_unit_of_all_parameters_changes_no_step_of_lm():
    wanted, path = iterates(*decay((1.0, 1.0, 1.0)), "LM")
    found, other = iterates(*decay((2.0**20,) * 3), "LM")
    assert_same(found, wanted)
    np.testing.assert_array_equal(other * 2.0**20, path)


@pytest.mark.parametrize("units", [(2.0**-23, 2.0**17, 2.0**10), (1e7, 1.0, 1e-7)])
def test_lm_ends_in_any_units_of_parameters(units):
    least = minimize(*decay((1.0, 1.0, 1.0)), "LM", gtol=1e-8)
    found = minimize(*decay(units), "LM")
    assert found.success
    assert found.fun == pytest.approx(least.fun, rel=1e-8)


@both_paths
@pytest.mark.parametrize("size", [0.0, 1e-8])
def test_small_starts_of_lm(size, compiled):
    """Sizes at the start say nothing about the minimum."""
    objective, start = decay((1.0, 1.0, 1.0), backend="auto" if compiled else "numpy")
    found = minimize(objective if compiled else reference(objective), size * start, "LM")
    assert found.success
    assert found.fun == pytest.approx(minimize(objective, start, "LM").fun, rel=1e-6)


@both_paths
@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize(("unit", "start"), [(1e-9, 1e8), (1e-6, 1e4), (1e-2, 1e8)])
def test_starts_far_above_the_data(unit, start, noise, compiled):
    """The loss at the start says nothing about what is zero, and its scales hold no parameter."""
    net = Chain(
        Equations(lambda t, a, k: a * exp(-k * t), ("t",), parameters={"a": 1.0, "k": 1.0}),
        backend="auto" if compiled else "numpy",
    )
    signal = np.exp(-1.3 * TIME) * (1.0 + noise * np.random.default_rng(0).normal(size=TIME.shape))
    objective = net.objective(TIME, unit * signal, SquaredLoss())
    found = minimize(objective if compiled else reference(objective), np.array([start, 0.7]), "LM")
    assert found.success
    np.testing.assert_allclose(found.x, [unit, 1.3], rtol=max(1e-3, noise))


@both_paths
def test_a_point_without_a_jacobian_is_said(compiled):
    net = Chain(
        Equations(lambda t, a, k: a * exp(-t) + sqrt(k) * t, ("t",), parameters={"a": 1.0, "k": 1.0}),
        backend="auto" if compiled else "numpy",
    )
    objective = net.objective(TIME, 2.0 * np.exp(-TIME), SquaredLoss())
    bounds = np.array([-10.0, 0.0]), np.array([10.0, 10.0])
    found = minimize(objective if compiled else reference(objective), np.ones(2), "LM", bounds=bounds)
    assert (found.success, found.message, found.nit) == (False, SINGULAR, 0)


@both_paths
def test_fits_without_noise_end_in_success(compiled):
    """Though their values fall to zero, or crawl there."""
    net = Chain(Dense(1, 6, tanh), Dense(6, 1), backend="auto" if compiled else "numpy")
    objective = net.objective(X, np.sin(2.0 * X) + 0.5, SquaredLoss())
    many = minimize(objective if compiled else reference(objective), net.init_many(4, seed=0, dtype=np.float64), "LM")
    assert many.success.all()
    assert many.nit.max() < 300
    assert many.fun.max() < 1e-7
    exact, start = decay((1.0, 1.0, 1.0), 0.0, net.backend)
    for gtol in (1e-5, 0.0):
        found = minimize(exact if compiled else reference(exact), start, "LM", gtol=gtol)
        assert found.success
        assert found.fun < 1e-20


@both_paths
def test_lm_beside_bounds_in_any_unit(compiled):
    paths = []
    for unit in (1.0, 2.0**20):
        function, start = in_unit(unit, compiled)
        start[-1] = min(start[-1], 2.0**30)
        paths.append(minimize(function, start, "LM", bounds=(-0.9, 2.0**30), maxiter=60))
    assert_same(*paths)
    np.testing.assert_array_equal(paths[0].x[:-1], paths[1].x[:-1])
    assert (paths[0].x == -0.9).any()


def test_frozen_parameters_do_not_change_lms_path():
    """The path of `free` is that of all parameters, to rounding."""
    net = Chain(Dense(2, 3, tanh), Dense(3, 2, tanh), Dense(2, 1), backend="numpy").with_frozen("0.weight", "1.bias")
    rng = np.random.default_rng(0)
    objective, p = net.objective(rng.normal(size=(40, 2)), rng.normal(size=(40, 1)), SquaredLoss()), net.init(seed=0)
    free = objective.free
    q = free.restrict(p)
    for steps in (1, 3, 6):
        whole = minimize(objective, p, "LM", maxiter=steps)
        found = minimize(free, q, "LM", maxiter=steps)
        assert_same(found, whole)
        assert found.message == LIMIT
        np.testing.assert_allclose(found.x, free.select(whole.x), rtol=1e-6)


def test_parameters_of_many_magnitudes_are_said_once():
    objective, start = decay((1e2, 1e-7, 1.0))
    with pytest.warns(UserWarning, match=r"the parameters have sizes from 0.01 to 1e\+07") as warned:
        minimize(objective, np.array([start] * 3), "BFGS", maxiter=2)
    assert len(warned) == 1
    minimize(objective, start, "LM")  # a warning would be an error
    net = Chain(Dense(1, 30, tanh), Dense(30, 1))
    p = net.init(seed=0, dtype=np.float64)
    p[3], p[-1] = 1e-12, 1e-13  # small by chance
    minimize(net.objective(X, T, SquaredLoss()), p, maxiter=2)
    frozen, p = in_unit(2.0**40)
    minimize(frozen, p, maxiter=2)
