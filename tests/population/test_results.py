"""What a fit tells: residuals, shrinkage, predictive checks, networks of single subjects, files, figures."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from chains import ODE, Chain, Equations, Flatten, num_threads
from chains.expr import exp
from chains.population import Additive, Combined, Density, PopulationModel, Proportional, load, save
from chains.population.fitting import names_and_values
from tests.mpi import together
from tests.population.cases import TWO, closed_form, counts, decay, differential, simulated, tails


@pytest.fixture(scope="module")
def fitted():
    model, *data = closed_form(Proportional(0.02), subjects=30)
    return model, data, model.fit(*data)


def test_predictions_and_residuals_are_in_the_order_of_the_data(fitted):
    model, (x, y, number), fit = fitted
    order = np.random.default_rng(0).permutation(len(x))
    again = model.fit(x[order], y[order], number[order], theta=fit.theta)
    r, mixed = fit.residuals, again.residuals
    p = fit.theta[:2]
    np.testing.assert_allclose(r.y[:, 0], y)
    np.testing.assert_allclose(r.pred, model.net(np.column_stack([x, np.zeros((len(x), 2))]), p))
    np.testing.assert_allclose(r.ipred, model.net(np.column_stack([x, fit.effects[number]]), p))
    np.testing.assert_allclose(r.iwres[:, 0], (y - r.ipred[:, 0]) / (np.sqrt(np.exp(fit.theta[-1])) * r.ipred[:, 0]))
    np.testing.assert_allclose(mixed.cwres, r.cwres[order], atol=1e-3)
    assert abs(r.cwres.mean()) < 0.2
    assert 0.85 < r.cwres.std() < 1.15


@pytest.mark.parametrize("method", ["FO", "FOCE", "FOCEI", "Laplace"])
def test_conditional_residuals_of_a_linear_model_are_exact(method):
    net = Chain(Equations(lambda t, e1, e2, a, b: a + e1 + (b + e2) * t, ("t", "e1", "e2"), parameters={"a": 1.0, "b": 0.5}))
    model = PopulationModel(net, {"level": 0.3, "slope": 0.2}, Additive(0.1))
    rng = np.random.default_rng(0)
    number, x, y = np.repeat(np.arange(4), 3), rng.uniform(0.0, 3.0, (12, 1)), rng.normal(2.0, 1.0, 12)
    fit = model.fit(x, y, number, method=method, maxiter=0)
    for k in range(4):
        own = number == k
        design = np.column_stack([np.ones(3), x[own, 0]])
        values, vectors = np.linalg.eigh(design @ np.diag([0.3, 0.2]) @ design.T + 0.1 * np.eye(3))
        wanted = vectors @ (vectors.T @ (y[own] - design @ [1.0, 0.5]) / np.sqrt(values))
        np.testing.assert_allclose(fit.residuals.cwres[own, 0], wanted, rtol=1e-9)


def test_shrinkage_is_near_one_where_data_tell_nothing():
    rng = np.random.default_rng(0)
    net = decay()
    model = PopulationModel(net, TWO, Additive(400.0))
    x, y, number = simulated(net, rng.normal(0.0, 0.25, (10, 2)), 0.1)
    found = model.fit(x, y, number, maxiter=0).shrinkage()
    assert found["clearance"] > 0.9
    assert found["errors"] > 0.5  # the errors are much smaller than the model says


def test_shrinkage_is_by_the_standard_deviation_about_the_mean():
    net = Chain(Equations(lambda t, e, a: a + e + 0.0 * t, ("t", "e"), parameters={"a": 3.0}))
    model = PopulationModel(net, {"level": 0.5}, Additive(0.1))
    number, y = np.repeat(np.arange(3), 2), np.repeat([4.0, 4.5, 5.0], 2)  # all are above the typical value
    fit = model.fit(np.zeros((6, 1)), y, number, maxiter=0)
    share = 0.5 / (0.5 + 0.1 / 2)  # of the means of the subjects, the exact effects of a linear model
    np.testing.assert_allclose(fit.shrinkage()["level"], 1.0 - share * np.std([1.0, 1.5, 2.0]) / np.sqrt(0.5), rtol=1e-9)


def test_simulated_subjects_without_a_solution_are_named():
    rate = Equations(lambda c, k, typical: -typical * exp(k) * c, ("c", "k"), parameters={"typical": 1.0})
    net = Chain(ODE(rate, [0.0, 1.0], rtol=1e-7, max_steps=30, given=1), Flatten())
    model = PopulationModel(net, {"rate": 4.0}, Additive(0.1))  # some drawn rates need more steps
    x, y = np.ones((20, 1)), np.repeat([[np.nan, 0.4]], 20, axis=0)
    with pytest.raises(FloatingPointError, match=r"subject \d+ with the drawn effects rate=[\d.]+: .* Raise max_steps"):
        model.simulate(model.init(), x, draws=5)
    with pytest.raises(FloatingPointError, match="drawn effects"):
        model.fit(x, y, maxiter=0).check(np.tile([0.0, 1.0], (20, 1)))


def test_simulated_measurements_have_the_moments_of_the_model():
    net = Chain(Equations(lambda t, e, a: a + e + 0.0 * t, ("t", "e"), parameters={"a": 3.0}))
    model = PopulationModel(net, {"level": 0.5}, Combined(0.1, 0.04))
    x = np.zeros((4000, 1))
    drawn = model.simulate(model.init(), x, np.repeat(np.arange(2000), 2), draws=2, seed=3)
    assert drawn.shape == (2, 4000, 1)
    pairs = drawn[..., 0].reshape(2, 2000, 2)
    np.testing.assert_allclose(drawn.mean(), 3.0, atol=0.05)
    np.testing.assert_allclose(drawn.var(), 0.5 + 0.1 + 0.04 * 9.5, rtol=0.05)
    np.testing.assert_allclose(np.cov(pairs.reshape(-1, 2).T)[0, 1], 0.5, atol=0.05)
    again = model.simulate(model.init(), x, np.repeat(np.arange(2000), 2), draws=2, seed=3)
    assert (drawn == again).all()


def test_a_predictive_check_finds_a_wrong_model(fitted):
    model, data, fit = fitted
    right = fit.check(data[0][:, 0], bins=4, draws=100)
    assert right.observed.shape == (3, len(right.centres)) == right.simulated.shape[1:]
    assert right.inside.mean() > 0.8
    wrong = fit.theta.copy()
    wrong[1] += 0.7  # twice the volume
    assert model.fit(*data, theta=wrong, maxiter=0).check(data[0][:, 0], bins=4, draws=100).inside.mean() < 0.5
    with pytest.raises(ValueError, match="`by` must have a finite number"):
        fit.check(data[0][:3, 0])
    with pytest.raises(ValueError, match=r"`quantiles` .* must be between 0 and 1"):
        fit.check(data[0][:, 0], quantiles=(1.0,))


def test_held_out_subjects_are_likelier_under_the_true_model(fitted):
    _, _, fit = fitted
    net = decay()
    x, y, number = simulated(net, np.random.default_rng(9).normal(0.0, 0.25, (20, 2)), 0.12, seed=4)
    held_out = fit.model.objective(x, y, number)
    other = PopulationModel(net, {"clearance": 0.5, "volume": 0.5}, Proportional(0.3))
    assert held_out(fit.theta)[0] < other.objective(x, y, number)(other.init())[0] - 10.0


def test_the_network_of_one_subject_has_its_predictions(fitted):
    _, (x, _, number), fit = fitted
    net, p = fit.individual(5)
    np.testing.assert_allclose(net(x[number == 5], p), fit.residuals.ipred[number == 5], rtol=1e-14)
    with pytest.raises(ValueError, match=r"`subject` \(=99\) is not among the 30 subjects"):
        fit.individual(99)


def test_an_ode_has_residuals_where_something_was_measured():
    model, *data = differential()
    fit = model.fit(*data, maxiter=2)
    missing = np.isnan(data[1])
    assert (np.isnan(fit.residuals.cwres) == missing).all()
    assert (np.isnan(fit.residuals.iwres) == missing).all()
    assert np.isfinite(fit.residuals.ipred).all()
    assert fit.individual(2)[0](data[0], fit.individual(2)[1]).shape == (6, 3, 1)


def test_saved_models_come_back(tmp_path, fitted):
    model, data, fit = fitted
    save(tmp_path / "model.safetensors", model, fit.theta)
    again, theta = load(tmp_path / "model.safetensors")
    assert (theta == fit.theta).all()
    assert repr(again) == repr(model)
    assert again.objective(*data)(theta)[0] == model.objective(*data)(theta)[0]
    student, *_ = tails()
    save(tmp_path / "student.safetensors", student, student.init())
    with pytest.raises(ValueError, match="its errors are a Density: pass it as `error`"):
        load(tmp_path / "student.safetensors")
    assert load(tmp_path / "student.safetensors", error=student.error)[0].n_params == student.n_params
    with pytest.raises(ValueError, match="`theta` has shape"):
        save(tmp_path / "model.safetensors", model, fit.theta[1:])


def test_copies_through_pickle_give_the_same_numbers(fitted):
    model, _, fit = fitted
    again = pickle.loads(pickle.dumps(fit))
    np.testing.assert_allclose(again.effects, fit.effects, rtol=1e-9)
    assert again.objective(fit.theta)[0] == pytest.approx(fit.value, rel=1e-12)
    assert repr(again.model) == repr(model)


def test_threads_and_their_number_change_nothing_but_rounding(fitted):
    _, _, fit = fitted
    with ThreadPoolExecutor(4) as pool:
        found = [value for value, _ in pool.map(fit.objective, [fit.theta] * 12)]
    with num_threads(1):
        found.append(fit.objective(fit.theta)[0])
    np.testing.assert_allclose(found, fit.value, rtol=1e-12)


def test_figures(fitted):
    pytest.importorskip("matplotlib").use("agg")
    _, data, fit = fitted
    assert fit.residuals.plot().get_xlabel() == "prediction"
    assert len(fit.check(data[0][:, 0], draws=20).plot().lines) == 3


def test_a_density_has_no_weighted_residuals_and_draws():
    model, *data = counts()
    fit = model.fit(*data, method="Laplace", maxiter=3)
    assert np.isnan(fit.residuals.cwres).all()
    assert [*fit.shrinkage()] == ["level"]
    with pytest.raises(ValueError, match=r"drawn from normal errors, not from Density\(\)"):
        fit.check(data[0][:, 0])


def test_values_and_printed_fits(fitted):
    model, _, fit = fitted
    found = fit.values
    assert found["0.k"] == pytest.approx(np.exp(fit.theta[0]))
    np.testing.assert_allclose(model.vector(fit.theta[:2], found["covariance"], [found["proportional"]]), fit.theta)
    assert [*fit.estimates()] == ["0.k", "0.v", "variance(clearance)", "variance(volume)", "proportional"]
    assert "variance(clearance)" in str(fit)
    assert "30 subjects" in repr(fit)
    with pytest.raises(ValueError, match=r"`kind` .* must be 'sandwich', 'R' or 'S'"):
        fit.standard_errors("T")


# The logarithm of a standard deviation of 0, and of one whose square is 0 a step from there.
@pytest.mark.parametrize("logarithm", [-800.0, -350.0])
def test_without_a_variance_there_are_no_standard_errors(fitted, logarithm):
    model, _, fit = fitted
    theta = fit.theta.copy()
    theta[model.net.n_params] = logarithm
    with pytest.raises(ValueError, match="R is singular"):
        replace(fit, theta=theta).standard_errors("R")


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_slopes_of_the_estimates_are_those_of_their_values(covariance):
    net = Chain(Equations(lambda t, e1, e2, a: a + e1 + e2 * t, ("t", "e1", "e2"), parameters={"a": 1.0}))
    model = PopulationModel(net, {"level": 0.3, "slope": 0.2}, Combined(0.1, 0.2), covariance=covariance)
    theta = np.random.default_rng(0).normal(size=len(model.init()))
    names, values, found = names_and_values(model, theta)
    step = 1e-6 * np.eye(len(theta))
    wanted = [(names_and_values(model, theta + d)[1] - names_and_values(model, theta - d)[1]) / 2e-6 for d in step]
    assert found.shape == (len(names), len(theta)) == (len(values), len(theta))
    np.testing.assert_allclose(found, np.transpose(wanted), atol=1e-8)


def test_standard_errors_agree_where_the_model_is_right():
    model, *data = closed_form(Proportional(0.02), subjects=150)
    fit = model.fit(*data)
    sandwich, r, s = ([*fit.standard_errors(kind).values()] for kind in ("sandwich", "R", "S"))
    np.testing.assert_allclose(sandwich, r, rtol=0.3)
    np.testing.assert_allclose(s, r, rtol=0.3)
    truth = {"0.k": 0.3, "0.v": 2.0, "variance(clearance)": 0.0625, "proportional": 0.0144}
    errors = fit.standard_errors()
    for name, value in truth.items():
        assert abs(fit.estimates()[name] - value) < 4.0 * errors[name]


def test_processes_share_their_subjects():
    done = together(2, "tests.population.processes")
    assert done.returncode == 0, done.stdout + done.stderr


def test_density_is_refused_by_argument():
    with pytest.raises(TypeError, match=r"`deviance` \(=2\) must be a formula"):
        Density(2)
