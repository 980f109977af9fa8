"""Derivatives beyond the gradient of recurrent networks, whose steps are written out for them."""

from __future__ import annotations

import numpy as np
import pytest

from chains import GRU, LSTM, ODE, Chain, Dense, Flatten, MSELoss, tanh
from tests.harness import assert_close, central_difference

NETWORKS = {
    "GRU": (GRU(2, 3), Dense(3, 1)),
    "LSTM": (LSTM(2, 2, return_sequences=True, bidirectional=True), GRU(4, 2, reset_after=False), Dense(2, 1)),
    "ODE": (Flatten(), Dense(6, 2), ODE(Dense(2, 2, tanh), (0.0, 0.5, 0.75), "midpoint", 2), Flatten(), Dense(6, 1)),
}


@pytest.fixture(params=NETWORKS)
def net(request):
    return Chain(*NETWORKS[request.param], input_shape=(3, 2), backend="numpy")


@pytest.fixture
def problem(net):
    rng = np.random.default_rng(0)
    return rng.normal(0.0, 0.7, net.n_params), rng.normal(size=(2, 3, 2)), rng.normal(size=(2, 1))


def test_hessian_product(net, problem):
    p, x, t = problem
    v = np.random.default_rng(1).normal(size=net.n_params)

    def slope(at):
        return float(net.value_and_grad(at, x, t, MSELoss())[1] @ v)

    assert_close(net.hvp(p, x, t, MSELoss(), v), central_difference(slope, p), 1e-7)


def test_derivatives_by_the_inputs_and_the_parameters(net, problem):
    p, x, _ = problem
    first = net.derivatives(p, x, 1)[1]
    jacobian = net.jacobian(p, x)
    for sample in range(2):
        dy = np.zeros((2, 1))
        dy[sample] = 1.0
        dp, dx = net.vjp(p, x, dy)
        assert_close(jacobian[sample, 0], dp, 1e-12)
        assert_close(first[sample, 0], dx[sample], 1e-12)


def test_gradients_of_single_samples(net, problem):
    p, x, t = problem
    found = net.sample_gradients(p, x, t, MSELoss())
    for sample in range(2):
        one = slice(sample, sample + 1)
        assert_close(found[sample], net.value_and_grad(p, x[one], t[one], MSELoss())[1], 1e-13)
