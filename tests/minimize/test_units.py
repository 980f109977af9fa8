"""A fit is the same fit in any unit: of the loss, of the data, and for "LM" of the parameters."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Chain, Dense, Equations, MSELoss, SquaredLoss, minimize, tanh
from chains.expr import exp
from chains.layers import Scale
from chains.minimize.units import UNLIKE, InUnits
from tests.minimize.test_rows import reference

METHODS = ["BFGS", "SSBroyden", "L-BFGS", "LM"]
every_method = pytest.mark.parametrize("method", METHODS)
UNITS = [1e-8, 1e-3, 1e4, 1e8]
POWERS = [2.0**-27, 0.5, 2.0, 2.0**26]
X = np.linspace(-1.5, 1.5, 30)[:, None]
T = np.sin(2.0 * X) + 0.05 * np.cos(17.0 * X)


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


def scaled_data(unit, backend="numpy"):
    """Targets in a unit, reached from the same parameters through a frozen scale; parameters without the scale."""
    net = Chain(Dense(1, 4, tanh), Dense(4, 1), Scale(scale_init=unit), backend=backend).with_frozen("2.*")
    return net.objective(X, unit * T, SquaredLoss()), net.init(seed=0, dtype=np.float64)


def iterates(function, start, method, **options):
    seen = []
    found = minimize(function, start, method, callback=lambda p: seen.append(p.copy()), progress=False, **options)
    return found, np.array(seen)


def assert_same(found, wanted, iterates, others):
    assert (found.message, found.success, found.nit, found.nfev) == (wanted.message, wanted.success, wanted.nit, wanted.nfev)
    np.testing.assert_array_equal(iterates, others)


@every_method
@pytest.mark.parametrize("unit", POWERS)
def test_the_unit_of_the_loss(method, unit):
    """To the bit for powers of two, to the status and the end."""
    function, start = scaled_data(1.0)
    wanted, path = iterates(function if method != "LM" else Scaled(function, 1.0), start, method, gtol=1e-3, maxiter=300)
    found, other = iterates(Scaled(function, unit), start, method, gtol=1e-3, maxiter=300)
    assert_same(found, wanted, other, path)
    assert found.fun == unit * wanted.fun
    np.testing.assert_array_equal(found.jac, unit * wanted.jac)
    if wanted.state is not None:
        turned = unit if method != "L-BFGS" else 1.0
        np.testing.assert_array_equal(found.state[..., 0, :] * turned, wanted.state[..., 0, :])


@every_method
@pytest.mark.parametrize("unit", UNITS)
def test_any_unit_of_the_loss(method, unit):
    """Other numbers round: the iterates agree, and the status."""
    function, start = decay((1.0, 1.0, 1.0))
    wanted, path = iterates(Scaled(function, 1.0), start, method)
    found, other = iterates(Scaled(function, unit), start, method)
    assert (found.message, found.success, found.nit) == (wanted.message, True, wanted.nit)
    np.testing.assert_allclose(other, path, rtol=1e-5, atol=1e-7)
    assert found.fun / unit == pytest.approx(wanted.fun, rel=1e-9)


@every_method
@pytest.mark.parametrize("backend", ["numpy", "auto"])
@pytest.mark.parametrize("unit", [2.0**-20, 2.0**13])
def test_the_unit_of_the_data(method, backend, unit):
    wanted, path = iterates(*scaled_data(1.0, backend), method, gtol=1e-3, maxiter=100)
    found, other = iterates(*scaled_data(unit, backend), method, gtol=1e-3, maxiter=100)
    assert_same(found, wanted, other[:, :-1], path[:, :-1])


@pytest.mark.parametrize("compiled", [False, True])
def test_curves_in_any_unit_are_fitted(compiled):
    """The success of 200 decaying curves with noise does not depend on the unit of the signal."""
    rng, time = np.random.default_rng(0), np.linspace(0.0, 4.0, 40)[:, None]
    truth = np.column_stack([rng.uniform(1.0, 3.0, 200), rng.uniform(0.5, 2.0, 200)])
    curves = truth[:, :1] * np.exp(-truth[:, 1:] * time.T) + 0.02 * rng.normal(size=(200, 40))
    net = Chain(Equations(lambda t, a, k: a * exp(-k * t), ("t",), parameters={"a": 1.0, "k": 1.0}))
    for unit in (1.0, 1e4, 1e-6):
        objective = net.objective(time, unit * curves[:, :, None], SquaredLoss())
        many = minimize(objective if compiled else reference(objective), np.array([[unit, 1.0]] * 200), "LM")
        assert many.success.all()
        if unit == 1.0:
            wanted = many
        np.testing.assert_allclose(many.x / [unit, 1.0], wanted.x, rtol=1e-5)
        assert abs(many.nit - wanted.nit).max() <= 1
        far = minimize(objective, np.ones((200, 2)), "LM")  # a start that knows nothing of the unit
        assert far.success.mean() > 0.9


def decay(units):
    """A curve whose parameters have these units."""
    time = np.linspace(0.0, 4.0, 40)[:, None]
    signal = 2.0 * np.exp(-0.7 * time) + 0.5 + 0.02 * np.random.default_rng(0).normal(size=time.shape)
    u = dict(zip(("a", "k", "c"), units, strict=True))
    formula = lambda t, a, k, c: u["a"] * a * exp(-u["k"] * k * t) + u["c"] * c  # noqa: E731
    net = Chain(Equations(formula, ("t",), parameters={"a": 1.0, "k": 1.0, "c": 1.0}), backend="numpy")
    return net.objective(time, signal, MSELoss()), 1.0 / np.array(units)


def test_the_rule_of_lm_does_not_depend_on_units_of_parameters():
    """At the same point, the same answer: the cosines do not change."""
    for gtol, expected in ((1e-5, True), (1e-12, False)):
        for units in ((1.0, 1.0, 1.0), (1e-7, 1e5, 1e3)):
            objective, start = decay(units)
            first = minimize(objective, start, "LM", maxiter=200)
            assert first.success
            assert minimize(objective, first.x, "LM", gtol=gtol, maxiter=0).success == expected


@every_method
def test_parameters_of_many_magnitudes_end_at_the_least_value(method):
    """Absolute rules ended in success far above it."""
    objective, start = decay((1e2, 1e-7, 1.0))  # 0.02, 7e6 and 0.5
    least = minimize(*decay((1.0, 1.0, 1.0)), "LM").fun
    if method != "LM":
        with pytest.warns(UserWarning, match="the parameters have sizes from 0.01 to 1e\\+07"):
            found = minimize(objective, start, method)
    else:
        found = minimize(objective, start, method)
    assert found.success
    assert found.fun == pytest.approx(least, rel=1e-6)


def test_warnings_come_once_and_not_for_networks():
    objective, start = decay((1e2, 1e-7, 1.0))
    with pytest.warns(UserWarning, match="the parameters have sizes") as warned:
        minimize(objective, np.array([start] * 3), "BFGS", maxiter=2)
    assert len(warned) == 1
    net = Chain(Dense(1, 30, tanh), Dense(30, 1))
    p = net.init(seed=0, dtype=np.float64)
    p[3], p[-1] = 1e-12, 1e-13  # small by chance
    minimize(net.objective(X, T, SquaredLoss()), p, maxiter=2)  # a warning would be an error


@every_method
def test_the_precision_of_values_is_a_success(method):
    function, start = decay((1.0, 1.0, 1.0))
    found = minimize(function, start, method, gtol=0.0, ftol=0.0)
    assert (found.message, found.success) == ("the precision of the values is reached", True)


def test_frozen_numbers_do_not_count_for_lm():
    """A frozen scale of 1e8 does not change the trust region."""
    paths = []
    for unit in (1.0, 2.0**27):
        function, start = scaled_data(unit)
        paths.append(iterates(reference(function), start, "LM", maxiter=10)[1][:, :-1])
    np.testing.assert_array_equal(*paths)


def test_units_are_of_parameters_that_are_unlike():
    def bowl(p):
        return float(p @ p), 2.0 * p

    assert (InUnits(bowl, np.array([1.0, 5.0]), always=False).units == 1.0).all()
    p = np.array([1.0, 2.0 * UNLIKE])
    assert InUnits(lambda p: (2.0, 1.0 / p), p, always=False).units.tolist() == [1.0, 32.0]
    assert (InUnits(lambda p: (2.0, np.ones(2)), p, always=False).units == 1.0).all()  # the first one hardly matters


@pytest.mark.parametrize("method", ["BFGS", "SSBroyden", "L-BFGS"])
def test_targets_far_from_the_size_of_parameters_are_no_minimum(method):
    """Steps as long as the parameters change such a loss by little everywhere, which is no convergence."""
    x = np.random.default_rng(0).normal(size=(200, 2))
    net = Chain(Dense(2, 8, tanh), Dense(8, 1))
    objective = net.objective(x, 1e6 * np.tanh(x[:, :1] * x[:, 1:]), SquaredLoss())
    start = net.init(seed=0, dtype=np.float64)
    found = minimize(objective, start, method, maxiter=500)
    assert found.nit > 50
    assert found.fun < 0.8 * objective(start)[0]


@pytest.mark.filterwarnings("ignore:the parameters have sizes", "ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize("method", ["BFGS", "SSBroyden", "L-BFGS"])
@pytest.mark.parametrize("unit", [1.0, 1e3, 1e6])
def test_a_decay_in_any_unit_of_its_data(method, unit):
    """From a start that is far away in other units."""
    t = np.linspace(0.0, 4.0, 40)
    data = 2.5 * np.exp(-0.8 * t) + 0.02 * np.random.default_rng(1).normal(size=40)

    def loss(p, unit):
        wave = np.exp(-p[1] * t)
        r = p[0] * wave - unit * data
        return 0.5 * float(r @ r), np.array([r @ wave, -(r * p[0] * t) @ wave])

    best = unit**2 * minimize(lambda p: loss(p, 1.0), np.array([2.5, 0.8]), "BFGS", gtol=1e-9).fun
    found = minimize(lambda p: loss(p, unit), np.array([1.0, 1.0]), method)
    assert found.success
    assert found.fun < 1.01 * best
