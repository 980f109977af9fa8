"""The marginal likelihood: values and gradients against closed forms, quadrature, PyTorch and central differences."""

import csv
import itertools

import numpy as np
import pytest

from chains import Chain, Equations
from chains.population import Additive, Density, PopulationModel, Proportional, likelihood
from tests.population import newborns
from tests.population.cases import DENSITIES, NORMAL, TWO, counts, decay, simulated

CASES = [*itertools.product(NORMAL, ("FO", "FOCE", "FOCEI", "Laplace")), *((name, "Laplace") for name in DENSITIES)]


def moved(model, seed=0):
    """A vector near the start, with a covariance that is not diagonal where the model has one."""
    theta = model.init(seed=1)
    return theta + 0.1 * np.random.default_rng(seed).standard_normal(len(theta))


@pytest.mark.parametrize(("name", "method"), CASES)
def test_gradients_are_those_of_central_differences(name, method):
    model, *data = (NORMAL | DENSITIES)[name]()
    objective = model.objective(*data, method=method)
    theta = moved(model)
    g = objective(theta)[1]
    found = np.empty_like(g)
    for k in range(len(theta)):
        step = np.zeros_like(theta)
        step[k] = 1e-3
        low, lower, higher, high = (objective(theta + c * step)[0] for c in (-2, -1, 1, 2))
        found[k] = (low - 8.0 * lower + 8.0 * higher - high) / 12e-3
    assert abs(found - g).max() < 1e-7 * max(1.0, abs(g).max())
    each = objective.gradients(theta)
    assert abs(each.sum(0) - g).max() < 1e-9 * max(1.0, abs(g).max())
    assert abs(objective.values(theta).sum() - objective(theta)[0]) < 1e-9


@pytest.mark.parametrize("method", ["FO", "FOCE", "FOCEI", "Laplace"])
def test_a_network_without_parameters(method):
    data = np.zeros((6, 1)), np.array([1.0, 1.2, -0.5, -0.6, 0.2, 0.0]), np.repeat(np.arange(3), 2)
    found = []
    for parameters in ({}, {"a": 0.0}):
        formula = (lambda t, e, a: a + e + 0.0 * t) if parameters else (lambda t, e: e + 0.0 * t)
        model = PopulationModel(Chain(Equations(formula, ("t", "e"), parameters=parameters)), {"level": 0.5}, Additive(0.1))
        objective = model.objective(*data, method=method)
        theta = model.init()
        (value, g), each = objective(theta), objective.gradients(theta)
        found.append((value, g[len(parameters) :], each[:, len(parameters) :]))
    for own, other in zip(*found, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["FO", "FOCE", "FOCEI", "Laplace"])
def test_all_methods_are_exact_for_a_linear_model(method):
    net = Chain(Equations(lambda t, e1, e2, a, b: a + e1 + (b + e2) * t, ("t", "e1", "e2"), parameters={"a": 1.0, "b": 0.5}))
    model = PopulationModel(net, {"level": 0.3, "slope": 0.2}, Additive(0.1), covariance="full")
    rng = np.random.default_rng(0)
    number, x = np.repeat(np.arange(5), [1, 2, 3, 4, 5]), rng.uniform(0.0, 3.0, (15, 1))
    y = rng.normal(2.0, 1.0, 15)
    omega, s = np.array([[0.3, 0.1], [0.1, 0.2]]), 0.15
    theta = model.vector([1.1, 0.4], omega, [s])
    wanted = []
    for k in range(5):
        design = np.column_stack([np.ones((number == k).sum()), x[number == k, 0]])
        c = design @ omega @ design.T + s * np.eye(len(design))
        r = y[number == k] - design @ [1.1, 0.4]
        wanted.append(r @ np.linalg.solve(c, r) + np.linalg.slogdet(c)[1])
    np.testing.assert_allclose(model.objective(x, y, number, method=method).values(theta), wanted, rtol=1e-12)


def test_laplace_is_near_adaptive_quadrature():
    model, x, y, number = counts()
    p, variance = np.array([1.0, 0.2]), 0.16
    theta = model.vector(p, [[variance]], [])
    objective = model.objective(x, y, number, method="Laplace")
    modes, values = objective.effects(theta)[:, 0], objective.values(theta)
    nodes, weights = np.polynomial.hermite_e.hermegauss(31)
    for k, (mode, value) in enumerate(zip(modes, values, strict=True)):
        own = number == k

        def log_density(e, own=own):
            f = np.exp(p[0] + p[1] * x[own, 0] + e[:, None])
            return (y[own] * np.log(f) - f).sum(1) - 0.5 * e**2 / variance - 0.5 * np.log(variance)

        f = np.exp(p[0] + p[1] * x[own, 0] + mode)
        sd = (f.sum() + 1.0 / variance) ** -0.5
        assert abs((y[own] - f).sum() - mode / variance) < 1e-8  # the effect is the mode
        exact = -2.0 * np.log((weights * np.exp(log_density(mode + sd * nodes) + 0.5 * nodes**2 + value / 2)).sum() * sd)
        exact += value + np.log(2.0 * np.pi)
        assert abs(exact - value) < 0.02
        one = -2.0 * (log_density(np.array([mode]))[0] + np.log(sd))
        np.testing.assert_allclose(value, one, rtol=1e-12)


def test_focei_is_that_of_autograd_in_pytorch():
    torch = pytest.importorskip("torch")
    net = decay()
    model = PopulationModel(net, TWO, Proportional(0.02), covariance="full")
    x, y, number = simulated(net, np.random.default_rng(1).normal(0.0, 0.25, (4, 2)), 0.12)
    theta = moved(model)
    objective = model.objective(x, y, number)
    value, g = objective(theta)
    z = torch.tensor(theta, requires_grad=True)
    factor = torch.stack([torch.stack([z[2].exp(), z[4] * 0.0]), torch.stack([z[4], z[3].exp()])])
    omega, s = factor @ factor.T, z[5].exp()
    precision, total = torch.linalg.inv(omega), 0.0

    def slope(value, e):
        return torch.autograd.grad(value, e, create_graph=True)[0]

    for k in range(4):
        t, own = torch.tensor(x[number == k, 0]), torch.tensor(y[number == k])

        def predicted(e, t=t):
            return 10.0 * torch.exp(-e[1] - z[1]) * torch.exp(-z[0].exp() * torch.exp(e[0] - e[1]) * t)

        def inner(e, own=own, predicted=predicted):
            f = predicted(e)
            return ((own - f) ** 2 / (s * f * f) + torch.log(s * f * f)).sum() + e @ precision @ e

        e = torch.tensor(objective.effects(theta)[k] + 0.01)
        for _ in range(5):  # the derivative of the last step by z is that of the minimum
            e = e.detach().requires_grad_()
            by_e = slope(inner(e), e)
            e = e - torch.linalg.solve(torch.stack([slope(each, e) for each in by_e]), by_e)
        f = predicted(e)
        a = torch.stack([slope(each, e) for each in f])
        h = a.T @ (a * (1.0 / (s * f * f) + 2.0 / (f * f))[:, None]) + precision
        total = total + inner(e) + torch.logdet(omega) + torch.logdet(h)
    total.backward()
    np.testing.assert_allclose(value, total.item(), rtol=1e-12)
    np.testing.assert_allclose(g, z.grad.numpy(), rtol=1e-8, atol=1e-9)


def test_equal_bits_for_any_order_of_subjects():
    model, x, y, number = NORMAL["combined"]()
    order = np.argsort(np.random.default_rng(0).permutation(number.max() + 1)[number], kind="stable")
    theta = moved(model)
    first, second = (model.objective(x[rows], y[rows], number[rows]) for rows in (np.arange(len(x)), order))
    assert [a.tobytes() for a in map(np.asarray, first(theta))] == [a.tobytes() for a in map(np.asarray, second(theta))]
    names = np.array([f"s{k:02}" for k in number])
    assert model.objective(x, y, names)(theta)[0] == model.objective(x, y, number)(theta)[0]


def test_a_subject_alone_has_the_effects_that_it_has_among_others():
    model, x, y, number = NORMAL["combined"]()
    theta = moved(model)
    together = model.objective(x, y, number)
    own = number == 3
    alone = model.objective(x[own], y[own], number[own])
    np.testing.assert_allclose(alone.effects(theta)[0], together.effects(theta)[3], rtol=1e-12)
    np.testing.assert_allclose(alone.values(theta)[0], together.values(theta)[3], rtol=1e-12)


@pytest.mark.parametrize("name", ["combined", "ode"])
@pytest.mark.parametrize("method", ["FOCE", "FOCEI"])
def test_blocks_of_subjects_change_nothing_but_rounding(name, method, monkeypatch):
    model, *data = NORMAL[name]()
    theta = moved(model)
    whole = model.objective(*data, method=method)
    monkeypatch.setattr(likelihood, "BLOCK", 5)
    parts = model.objective(*data, method=method)
    for found, wanted in zip(parts(theta), whole(theta), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    for call in ("values", "effects", "gradients"):
        np.testing.assert_allclose(getattr(parts, call)(theta), getattr(whole, call)(theta), rtol=1e-7, atol=1e-9)


def test_effects_are_found_from_bad_starts():
    model, x, y, number = NORMAL["proportional"]()
    theta = moved(model)
    objective = model.objective(x, y, number)
    wanted = objective.effects(theta)
    objective._start = np.full_like(objective._start, 9.0)
    np.testing.assert_allclose(objective.effects(theta), wanted, atol=1e-7)
    objective._start = np.full_like(objective._start, 1e4)  # where predictions are not finite
    np.testing.assert_allclose(objective.effects(theta), wanted, atol=1e-7)


def test_points_without_effects_are_infinite_and_starts_there_are_refused():
    model, *data = NORMAL["additive"]()
    theta = model.init()
    theta[0] = 800.0  # the logarithm of a rate
    objective = model.objective(*data)
    value, g = objective(theta)
    assert value == np.inf
    assert np.isnan(g).all()
    with pytest.raises(ValueError, match="`theta`: the likelihood is not finite at the start"):
        model.fit(*data, theta=theta)
    assert np.isfinite(objective(model.init())[0])


def test_a_variance_that_has_vanished_is_a_point_without_effects():
    model, *data = NORMAL[next(iter(NORMAL))]()
    theta = model.init(seed=1)
    theta[model.net.n_params] = -1000.0
    value, g = model.objective(*data)(theta)
    assert value == np.inf
    assert np.isnan(g).all()


def test_other_optimisers_take_the_objective():
    minimize = pytest.importorskip("scipy.optimize").minimize
    model, *data = NORMAL["additive"]()
    objective = model.objective(*data)
    theta = model.init()
    found = minimize(objective, theta, jac=True, method="L-BFGS-B").fun
    assert abs(objective.minimize(theta).fun - found) < 1e-4
    assert abs(model.fit(*data).value - found) < 1e-4


def test_frozen_parameters_stay():
    net = decay().with_frozen("*.k")
    model = PopulationModel(net, TWO, Proportional(0.02))
    data = simulated(net, np.random.default_rng(1).normal(0.0, 0.25, (10, 2)), 0.12)
    objective, theta = model.objective(*data), model.init()
    assert objective(theta)[1][0] == 0.0
    fit = model.fit(*data)
    assert fit.theta[0] == theta[0]
    assert objective.minimize(theta).x[0] == theta[0]
    errors = fit.standard_errors()
    assert errors["0.k"] == 0.0
    assert errors["0.v"] > 0.0


@pytest.fixture
def phenobarbital():
    study = pytest.importorskip("benchmarks.studies.population")
    data = study.newborns(newborns.FOLDER)
    net = Chain(study.Bolus((data[0].shape[1] - 3) // 2))
    return PopulationModel(net, study.VARIANCES, Proportional(study.ERROR)), data


@newborns.here
def test_the_newborns_have_the_published_objectives(phenobarbital):
    model, data = phenobarbital
    objective = model.objective(*data)
    theta = model.vector(newborns.ESTIMATE, np.diag(newborns.ESTIMATE_VARIANCES), [newborns.ESTIMATE_ERROR])
    with open(newborns.FOLDER / "phenobarbital-foce.csv") as file:
        published = np.array([[*map(float, row.values())] for row in csv.DictReader(file)])
    assert (objective.subjects.ids == published[:, 0]).all()
    assert abs(objective.values(theta) - published[:, 3]).max() < 1e-4
    assert abs(objective.effects(theta) - published[:, 1:3]).max() < 1e-5
    assert abs(objective(theta)[0] - 586.27606) < 1e-4


@newborns.here
def test_the_newborns_have_the_published_estimates(phenobarbital):
    model, data = phenobarbital
    fit = model.fit(*data)
    assert fit.value <= 586.2761
    assert fit.success
    wanted = [*newborns.ESTIMATE, *newborns.ESTIMATE_VARIANCES, newborns.ESTIMATE_ERROR]
    np.testing.assert_allclose([*fit.estimates().values()], wanted, rtol=1e-3)
    np.testing.assert_allclose([*fit.standard_errors().values()], newborns.STANDARD_ERRORS, rtol=0.02)


BAD = {
    "x columns": (lambda x, y, k: (np.hstack([x, x]), y, k), r"`x` has shape .*wanted \(samples, 1\)"),
    "x nan": (
        lambda x, y, k: (np.where(np.arange(len(x))[:, None] == 3, np.nan, x), y, k),
        r"`x` must be finite, got nan in row 3",
    ),
    "no samples": (lambda x, y, k: (x[:0], y[:0], k[:0]), r"`x` has no samples"),
    "y short": (lambda x, y, k: (x, y[1:], k), r"`y` has shape .*wanted"),
    "y infinite": (lambda x, y, k: (x, np.where(np.arange(len(y)) == 2, np.inf, y), k), r"`y` must be finite, or NaN"),
    "y missing": (lambda x, y, k: (x, np.where(k == 1, np.nan, y), k), r"`y` has no measurement of subject 1"),
    "ids short": (lambda x, y, k: (x, y, k[1:]), r"`subjects` has shape"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_are_refused_by_name(name):
    model, *data = NORMAL["additive"]()
    change, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        model.objective(*change(*data))


def test_bad_models_are_refused_by_name():
    net = decay()
    with pytest.raises(TypeError, match=r"`effects` \(=2\) must be variances by name"):
        PopulationModel(net, 2, Additive(0.1))
    with pytest.raises(ValueError, match=r"`effects\['k'\]` \(=0.0\) must be in"):
        PopulationModel(net, {"k": 0.0}, Additive(0.1))
    with pytest.raises(TypeError, match=r"`error` .* must be a residual error"):
        PopulationModel(net, TWO, 0.1)
    with pytest.raises(ValueError, match=r"`covariance` .*'diagonal' or 'full'"):
        PopulationModel(net, TWO, Additive(0.1), covariance="block")
    with pytest.raises(ValueError, match="wanted a vector that ends with the 4 effects"):
        PopulationModel(net, dict.fromkeys("abcd", 0.1), Additive(0.1))
    with pytest.raises(ValueError, match="`additive`"):
        Additive(-1.0)
    with pytest.raises(ValueError, match=r"`deviance` takes \['f', 'y'\]"):
        Density(lambda f, y: f, scale=1.0)
    model, *data = counts()
    with pytest.raises(ValueError, match=r"`method` .* needs normal errors"):
        model.objective(*data)
    with pytest.raises(ValueError, match=r"`method` .*'Laplace'"):
        model.objective(*data, method="laplace")
