"""The continuous adjoint of differential equations: near the exact gradient, by the order of the method."""

from __future__ import annotations

import numpy as np
import pytest

from chains import ODE, Chain, Dense, Equations, MSELoss, tanh
from chains.expr import cos
from chains.layers.ode import METHODS
from tests.harness import BACKENDS, assert_close

pytestmark = pytest.mark.parametrize("name", BACKENDS)
TIMES = (0.0, 0.5, 0.75, 1.5)
DRIVEN = {"given": 1, "time": True, "forcing": ([0.0, 2.0], [0.0, 0.5])}
COTANGENT = np.random.default_rng(5).normal(size=(5, 4, 1))
X = np.random.default_rng(4).normal(size=(5, 2))


def gradients(name, times=TIMES, x=X, **how):
    rhs = Equations(
        lambda x, c, t, wind, u, k: k * x * cos(t) + u - c * wind,
        inputs=("x", "c", "t", "wind"), network=Dense(4, 1, tanh), outputs=("u",), parameters={"k": 1.0},
    )  # fmt: skip
    net = Chain(ODE(rhs, times, **DRIVEN, **how), backend=name)
    dp, dx = net.vjp(np.random.default_rng(3).normal(size=net.n_params), x, COTANGENT)
    return np.concatenate([dp, dx[:, :2].ravel()])


@pytest.mark.few(1)
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if len(method.halves) == 1 and not method.gamma])
def test_it_converges_to_the_exact_gradient_by_the_order_of_the_method(name, method):
    exact = gradients("numpy", steps=30)
    errors = [abs(gradients(name, method=method, steps=steps, adjoint=True) - exact).max() for steps in (5, 10)]
    assert METHODS[method].order - 0.4 < np.log2(errors[0] / errors[1]) < METHODS[method].order + 1.5


@pytest.mark.few(1)
@pytest.mark.parametrize("settings", [{"checkpoint_every": 3}, {"times": 4}, {"steps": 9}], ids=str)
def test_segments_and_own_times_change_nothing(name, settings):
    x = np.hstack([X, np.tile(TIMES, (5, 1))]) if "times" in settings else X
    how = {"steps": 7, "adjoint": True} | settings
    wanted = gradients("numpy", steps=how["steps"], adjoint=True, checkpoint_every=how["steps"])
    assert_close(gradients(name, x=x, **how), wanted, 1e-12)


@pytest.mark.few(1)
def test_it_goes_back_through_the_steps_that_step_control_accepted(name):
    exact = gradients("numpy", steps=12)
    errors = [abs(gradients(name, rtol=rtol, max_steps=18, adjoint=True) - exact).max() for rtol in (1e-3, 1e-7)]
    assert errors[1] < 1e-5
    assert errors[1] < 1e-2 * errors[0]


def test_the_memory_of_a_trajectory_does_not_grow_with_the_steps(name):
    def memory(steps):
        net = Chain(ODE(Chain(Dense(3, 8, tanh), Dense(8, 3)), (0, 1, 2), steps=steps, adjoint=True), backend=name)
        return net.program(MSELoss()).scratch.bytes_per_sample

    assert memory(16) == memory(1600)


def test_methods_for_halves_of_a_state_are_refused(name):
    with pytest.raises(
        ValueError, match=r"`adjoint` \(=True\) goes back in time by a method for the whole state, not by 'leapf"
    ):
        ODE(Dense(2, 2), (0, 1), "leapfrog", adjoint=True)
