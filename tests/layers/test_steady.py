"""Steady states: their equation holds, optimistix finds the same ones, and what is told where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from chains import ODE, Chain, Dense, Dropout, Equations, MSELoss, SteadyState, tanh
from chains.expr import exp, log
from tests.harness import BACKENDS, assert_close

FEED = Equations(lambda a, b, feed, k: (feed - k * a * b, k * a * b - b), ("a", "b", "feed"), parameters={"k": 2.0})


@pytest.mark.parametrize("name", BACKENDS)
def test_a_reaction_has_its_known_steady_state(name):
    """b is the feed, and a is 1 / k."""
    net = Chain(SteadyState(FEED, 2, guess=(1.0, 1.0)), input_shape=(1,), backend=name)
    p, feeds = net.init(dtype=np.float64), np.array([[0.5], [1.0], [7.0]])
    assert_close(net(feeds, p), np.hstack([np.full((3, 1), 0.5), feeds]), 1e-12)
    dp, dx = net.vjp(p, feeds, np.ones((3, 2)))
    assert_close(dp, np.array([-0.25 * 3]), 1e-10)
    assert_close(dx, np.ones((3, 1)), 1e-10)


@pytest.mark.parametrize("name", BACKENDS)
def test_halved_steps_converge_where_whole_ones_do_not(name):
    """Newton's whole steps diverge for a rate that is nearly flat, and leave where a logarithm is defined."""
    flat = Equations(lambda y, x: ((1.0 - exp(2.0 * (x - y))) / (1.0 + exp(2.0 * (x - y))),), ("y", "x"))
    bounded = Equations(lambda y, x: (log(y) - x,), ("y", "x"))
    x = np.array([[0.0], [0.5], [-1.0]])
    for rate, guess, wanted in ((flat, 3.0, x), (bounded, 8.0, np.exp(x))):
        net = Chain(SteadyState(rate, 1, guess=guess), input_shape=(1,), backend=name)
        assert_close(net(x, np.zeros(0)), wanted, 1e-9)


@pytest.mark.parametrize("method", ["newton", "anderson"])
@pytest.mark.parametrize("name", BACKENDS)
def test_states_that_are_not_found_are_told(name, method):
    """A call names the sample; other calls give NaN for it alone, and for gradients of parameters."""
    rate = Equations(lambda y, x, k: (k * x - y * y - y,), ("y", "x"), parameters={"k": 1.0})  # none below x = -1/4
    net = Chain(SteadyState(rate, 1, method, max_steps=40), input_shape=(1,), backend=name)
    p, x, dy = net.init(dtype=np.float64), np.array([[0.5], [-1.0], [0.25]]), np.ones((3, 1))
    with pytest.raises(FloatingPointError, match=r"sample 1 was not found, and 1 of 3 in all .* max_steps \(=40\)"):
        net(x, p)
    with pytest.raises(FloatingPointError, match="sample 1 was not found"):
        net.value_and_grad(p, x, dy, MSELoss())
    dp, dx = net.vjp(p, x, dy)
    assert np.isnan(dp).all()
    assert np.isnan(dx).ravel().tolist() == [False, True, False]
    assert np.isnan(net.loss(p, x, dy, MSELoss()))
    good = x[[0, 2]]
    assert_close(dx[[0, 2]], 1.0 / (1.0 + 2.0 * net(good, p)), 1e-9)
    with pytest.raises(FloatingPointError, match="its input is not finite"):
        net(np.array([[np.nan]]), p)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_steady_state_in_each_step_of_an_equation(name):
    """Its solution, found in a loop within the loop of the steps, is kept for each of them."""
    rate = Chain(SteadyState(Chain(Dense(4, 3, tanh), Dense(3, 2)), 2, fixed_point=True), Dense(2, 2))
    net = Chain(ODE(rate, (0.0, 0.5, 1.0), "rk4", 2), input_shape=(2,), backend=name)
    p, x, dy = net.init(seed=0, dtype=np.float64) * 0.5, np.array([[1.0, -0.5], [0.2, 0.7]]), np.arange(12.0).reshape(2, 3, 2)
    dp, _ = net.vjp(p, x, dy)
    for k in (0, 7, 14, 19, len(p) - 1):
        step = 1e-5 * (np.arange(len(p)) == k)
        assert abs(dp[k] - ((net(x, p + step) - net(x, p - step)) * dy).sum() / 2e-5) < 1e-7


def test_jacobians_are_exact_and_series_are_refused():
    net = Chain(SteadyState(FEED, 2, guess=1.0), input_shape=(1,), backend="numpy")
    p, x = net.init(dtype=np.float64), np.array([[0.5], [2.0]])
    assert_close(net.jacobian(p, x), np.array([[[-0.25], [0.0]]] * 2), 1e-10)
    assert_close(net.sample_gradients(p, x, np.zeros((2, 2)), MSELoss()).sum(0) / 2,
                 net.value_and_grad(p, x, np.zeros((2, 2)), MSELoss())[1], 1e-12)  # fmt: skip
    refused = [lambda: net.hvp(p, x, np.zeros((2, 2)), MSELoss(), p), lambda: net.derivatives(p, x, 1)]
    for call in [*refused, lambda: net.gauss_newton(p, x, np.zeros((2, 2)), MSELoss(), p)]:
        with pytest.raises(NotImplementedError, match=r"SteadyState.* has no second derivatives and Taylor series"):
            call()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: SteadyState(FEED, 33), r"`size` \(=33\) must be at most 32"),
        (lambda: SteadyState(FEED, 2, "newtom"), r"`method` \(='newtom'\) must be 'newton' or 'anderson'"),
        (lambda: SteadyState(FEED, 2, guess=(1.0,)), r"`guess` \(=\(1.0,\)\) must be 2 finite numbers"),
        (lambda: SteadyState(FEED, 2, guess="zeros"), r"`guess` \(='zeros'\) must be"),
        (lambda: SteadyState(FEED, 2, rtol=0.0), r"`rtol` \(=0.0\) must be in"),
        (lambda: Chain(SteadyState(Dense(3, 1), 2), input_shape=(1,)), r"gives \(1,\) for 3 features, but `size` \(=2\)"),
        (lambda: Chain(SteadyState(Chain(Dense(3, 2), Dropout(0.5)), 2), input_shape=(1,)), "would drop the same numbers"),
        (lambda: Chain(SteadyState(FEED, 2, guess="input"), input_shape=(1,)), r"a sample must be a guess \(2,\), then"),
    ],
)
def test_settings_that_do_not_fit_are_refused(made, said):
    with pytest.raises(ValueError, match=said):
        made()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("method", ["newton", "anderson"])
def test_values_and_gradients_are_those_of_optimistix(name, method):
    pytest.importorskip("optimistix")
    from benchmarks.peers import optimistix_steady
    from benchmarks.problems import steady

    problem = steady.Problem(batch=20)
    net, p = problem.net(name, method, 1e-11), problem.p
    wanted = optimistix_steady.gradients(problem, net.views(p), 1e-11)["Newton"]()
    value, g = net.value_and_grad(p, problem.x, problem.t, MSELoss())
    assert_close(np.append(g, value), wanted, 1e-9)
