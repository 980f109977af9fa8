"""Chebyshev and Fourier expansions: against NumPy's, in fits of one step, in equations, and what lists of terms mean."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial import chebyshev

import chains
from chains import ODE, Chain, Equations, MSELoss, SquaredLoss, Term, minimize
from chains.layers import Chebyshev, FourierSeries
from tests.harness import BACKENDS

rng = np.random.default_rng(5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("degree", [1, 2, 5, 12])
def test_one_input_is_chebval(backend, degree):
    net = Chain(Chebyshev(1, 2, degree), backend=backend)
    x, p = rng.uniform(-1.0, 1.0, (50, 1)), rng.normal(size=2 * (degree + 1))
    wanted = chebyshev.chebval(x[:, 0], p.reshape(degree + 1, 2)).T
    np.testing.assert_allclose(net(x, p), wanted, rtol=0.0, atol=1e-14 * (1 + abs(p).sum()))
    basis = Chain(Chebyshev(1, degree + 1, degree), backend=backend)(x, np.eye(degree + 1).ravel())
    np.testing.assert_allclose(basis, chebyshev.chebvander(x[:, 0], degree), rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_inputs_are_products(backend):
    layer = Chebyshev(3, 2, 4, ((-1, 1), (0.0, 2.0), (300.0, 700.0)))
    u, p = rng.uniform(-1.0, 1.0, (40, 3)), rng.normal(size=2 * layer.terms)
    x = u * [1.0, 1.0, 200.0] + [0.0, 1.0, 500.0]
    tables = [chebyshev.chebvander(u[:, k], 4)[:, layer.degrees[:, k]] for k in range(3)]
    wanted = np.prod(tables, axis=0) @ p.reshape(-1, 2)
    np.testing.assert_allclose(Chain(layer, backend=backend)(x, p), wanted, rtol=0.0, atol=1e-13)


def test_the_terms_are_those_of_the_total_degree():
    degrees = Chebyshev(2, 1, 3).degrees
    assert degrees.tolist() == [[0, 0], [1, 0], [0, 1], [2, 0], [1, 1], [0, 2], [3, 0], [2, 1], [1, 2], [0, 3]]
    waves = FourierSeries(2, 1, 2, 1.0).waves
    assert waves.tolist() == [[1, 0], [0, 1], [2, 0], [1, 1], [1, -1], [0, 2]]
    for inputs, order in ((1, 5), (3, 4), (4, 3)):
        layer, grid = FourierSeries(inputs, 1, order, 1.0), np.indices((2 * order + 1,) * inputs).reshape(inputs, -1) - order
        assert layer.terms == 1 + 2 * len(layer.waves) == (abs(grid).sum(axis=0) <= order).sum()
        both = {tuple(sign * wave) for wave in layer.waves for sign in (1, -1)}
        assert len(both) == 2 * len(layer.waves)


def test_outside_the_interval_the_polynomial_continues():
    net = Chain(Chebyshev(1, 1, 6, (0.0, 2.0)))
    p, x = rng.normal(size=7), np.array([[-3.0], [2.5], [40.0]])
    np.testing.assert_allclose(net(x, p)[:, 0], chebyshev.chebval(x[:, 0] - 1.0, p), rtol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fourier_series_are_cosines_and_sines(backend):
    layer = FourierSeries(2, 3, 3, (2.0, 24.0))
    x, p = rng.uniform(-2.0, 2.0, (40, 2)), rng.normal(size=3 * layer.terms)
    angles = 2.0 * np.pi * (x / [2.0, 24.0]) @ layer.waves.T
    basis = np.concatenate([np.ones((40, 1)), np.cos(angles), np.sin(angles)], 1)
    net = Chain(layer, backend=backend)
    np.testing.assert_allclose(net(x, p), basis @ p.reshape(-1, 3), rtol=0.0, atol=1e-13)
    np.testing.assert_allclose(net(x + np.array([4.0, -24.0]), p), net(x, p), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("layer", [Chebyshev(2, 1, 5), FourierSeries(2, 1, 2, 3.0)], ids=str)
def test_lm_fits_the_least_squares_solution_in_two_steps(layer):
    net, x = Chain(layer), rng.uniform(-1.0, 1.0, (200, 2))
    t = np.exp(x[:, :1]) * np.sin(2.0 * x[:, 1:])
    fit = minimize(net.objective(x, t, MSELoss()), net.init(seed=0, dtype=np.float64), "LM")
    basis = Chain(type(layer)(2, layer.terms, *([5] if layer.terms == 21 else [2, 3.0])))(x, np.eye(layer.terms).ravel())
    best = np.linalg.lstsq(basis, t)[0]
    assert fit.success
    assert fit.nit <= 2
    np.testing.assert_allclose(net(x, fit.x), basis @ best, rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_derivatives_to_order_four(backend):
    x, p = rng.uniform(-0.9, 0.9, (20, 1)), rng.normal(size=8)
    found = Chain(Chebyshev(1, 1, 7, (-2.0, 2.0)), backend=backend).derivatives(p, x, order=4)
    for order, value in enumerate(found):
        wanted = chebyshev.chebval(0.5 * x[:, 0], chebyshev.chebder(p, order) if order else p) * 0.5**order
        np.testing.assert_allclose(value.ravel(), wanted, rtol=1e-12, atol=1e-12)
    q, w = rng.normal(size=7), 2.0 * np.pi * np.arange(1, 4) / 5.0
    found = Chain(FourierSeries(1, 1, 3, 5.0), backend=backend).derivatives(q, x, order=4)
    for order, value in enumerate(found):
        angles = w * x + 0.5 * np.pi * order
        wanted = np.cos(angles) * w**order @ q[1:4] + np.sin(angles) * w**order @ q[4:] + (q[0] if order == 0 else 0.0)
        np.testing.assert_allclose(value.ravel(), wanted, rtol=1e-12, atol=1e-12)


def test_an_expansion_learns_a_term_of_an_equation():
    truth = Chain(ODE(Equations(lambda y: -y * y * y, ["y"]), [0.0, 0.5, 1.0], steps=20), backend="numpy")
    rate = Equations(lambda y, u: u, ["y"], network=Chebyshev(1, 1, 3, (0.0, 2.0), weight_init="zeros"), outputs=["u"])
    net, start = Chain(ODE(rate, [0.0, 0.5, 1.0], steps=20), backend="numpy"), np.linspace(0.2, 2.0, 20)[:, None]
    fit = minimize(net.objective(start, truth(start, np.empty(0)), SquaredLoss()), net.init(dtype=np.float64), "LM", gtol=1e-12)
    y = np.linspace(0.3, 1.8, 7)[:, None]
    np.testing.assert_allclose(Chain(rate)(y, fit.x), -(y**3), atol=1e-6)


def test_an_expansion_solves_a_boundary_value_problem():
    """u'' = -u with u(0) = 0 and u(1) = sin(1): linear in the coefficients, so that one step of LM solves it."""
    x = np.linspace(0.0, 1.0, 30)[:, None]
    terms = [Term(lambda u: u.xx + u, x), Term(lambda u, x: u - x * np.sin(1.0), np.array([[0.0], [1.0]]))]
    problem = chains.ResidualProblem(("x",), ("u",), terms)
    net = Chain(Chebyshev(1, 1, 14, (0.0, 1.0)), backend="numpy")
    fit = minimize(net.objective(problem.x, problem.t, problem.loss), net.init(seed=0, dtype=np.float64), "LM", gtol=1e-12)
    np.testing.assert_allclose(net(x, fit.x), np.sin(x), atol=1e-9)
