"""Step control, and times that each trajectory brings: solutions, gradients through the steps that were taken, and failures."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import ODE, Chain, Dense, Equations, MSELoss, ode_steps, tanh
from chains.expr import cos, sin
from tests.harness import BACKENDS, assert_close, central_difference

pytestmark = pytest.mark.parametrize("name", BACKENDS)
TIMES = (0.0, 0.5, 2.0, 2.3)
PENDULUM = Equations(lambda q, v: (v, -sin(q)), ("q", "v"))
STARTS = np.array([[1.0, 0.5], [0.2, -0.1], [3.0, 2.0]])
DRIVEN = {"given": 1, "time": True, "forcing": ([0.0, 1.0, 2.0], [0.0, 1.0, 0.5])}


def driven():
    """A learned rate beside known terms, of a given number, the time and a forcing."""
    return Equations(
        lambda x, c, t, wind, u, k: k * x * cos(t) + u - c * wind,
        inputs=("x", "c", "t", "wind"), network=Dense(4, 1, tanh), outputs=("u",), parameters={"k": 1.0},
    )  # fmt: skip


def test_errors_follow_the_tolerance(name):
    solve_ivp = pytest.importorskip("scipy.integrate").solve_ivp
    exact = [
        solve_ivp(lambda t, y: [y[1], -np.sin(y[0])], TIMES[::3], start, "DOP853", TIMES, rtol=1e-13, atol=1e-14).y.T
        for start in STARTS
    ]
    p, errors = np.zeros(0), []
    for rtol in (1e-4, 1e-8):
        net = Chain(ODE(PENDULUM, TIMES, rtol=rtol, atol=[rtol, rtol], max_steps=70), backend=name)
        errors.append(abs(net(STARTS, p) - exact).max((1, 2)))
        assert (errors[-1] < 20 * rtol).all()
    assert (errors[1] < 1e-3 * errors[0]).all()
    few, many = (len(way.times) for way in ode_steps(net, p, STARTS)[1:])
    assert few < many  # each trajectory has steps of its own


@pytest.mark.few(1)
def test_gradients_are_those_of_the_recorded_steps(name):
    """A gradient is that of a solution by fixed steps of the same lengths, which central differences confirm."""
    net = Chain(ODE(driven(), TIMES, rtol=1e-5, max_steps=30, **DRIVEN), backend=name)
    rng = np.random.default_rng(2)
    p, x, dy = rng.normal(size=net.n_params), rng.normal(size=(3, 2)), rng.normal(size=(3, 4, 1))
    y, (dp, dx) = net(x, p), net.vjp(p, x, dy)
    ways = ode_steps(net, p, x)
    assert not any(way.problem for way in ways)
    assert len({len(way.times) for way in ways}) > 1
    count = max(len(way.times) for way in ways)
    times = np.stack([np.append(way.times, np.full(count - len(way.times), TIMES[-1])) for way in ways])
    places = [[int(np.argmax(own == time)) for time in TIMES] for own in times]
    fixed = Chain(ODE(driven(), count, **DRIVEN), backend="numpy")
    inputs, cotangent = np.concatenate([x, times], 1), np.zeros((3, count, 1))
    for sample, at in enumerate(places):
        cotangent[sample, at] = dy[sample]

    def value(p, x=x):
        return np.sum(cotangent * fixed(np.concatenate([x, times], 1), p))

    assert_close(np.stack([own[at] for own, at in zip(fixed(inputs, p), places, strict=True)]), y, 1e-12)
    fixed_dp, fixed_dx = fixed.vjp(p, inputs, cotangent)
    assert_close(dp, fixed_dp, 1e-12)
    assert_close(dx, fixed_dx[:, :2], 1e-12)
    assert not fixed_dx[:, 2:].any()  # times are constants
    assert_close(dp, central_difference(value, p), 1e-7)
    assert_close(dx, central_difference(lambda x: value(p, x), x), 1e-7)


@pytest.mark.few(2)
@pytest.mark.parametrize("how", [{"steps": 5}, {"rtol": 1e-4, "max_steps": 30}], ids=["fixed", "control"])
def test_own_times_give_what_shared_ones_give(name, how):
    shared, own = (Chain(ODE(driven(), times, **how, **DRIVEN), backend=name) for times in (TIMES, 6))
    p, x = shared.init(seed=1, dtype=np.float64), np.array([[0.5, 1.0], [-0.3, 0.2]])
    times = np.array([[*TIMES, TIMES[-1], TIMES[-1]], [0.0, 0.0, *TIMES]])  # equal times fill up
    y, found = shared(x, p), own(np.concatenate([x, times], 1), p)
    assert_close(found[0], y[0][[0, 1, 2, 3, 3, 3]], 1e-13)
    assert_close(found[1], y[1][[0, 0, 0, 1, 2, 3]], 1e-13)


def test_attempts_that_are_left_change_nothing(name):
    few, many = (Chain(ODE(PENDULUM, TIMES, rtol=1e-4, max_steps=count), backend=name) for count in (20, 33))
    dy = np.ones((3, 4, 2))
    assert np.array_equal(few(STARTS, np.zeros(0)), many(STARTS, np.zeros(0)))
    assert np.array_equal(few.vjp(np.zeros(0), STARTS, dy)[1], many.vjp(np.zeros(0), STARTS, dy)[1])


def test_the_end_of_a_solution_is_told(name):
    explodes = Equations(lambda x, k: k * x * x, ("x",), parameters={"k": 1.0})
    net = Chain(ODE(explodes, (0.0, 2.0), rtol=1e-5, max_steps=40), backend=name)
    p, x, target = np.ones(1), np.array([[0.1], [1.0]]), np.zeros((2, 2, 1))
    told = r"trajectory 1 stops at t = 0\.9\d+ of 2, after 40 tried steps .*, \d+ of them refused, the last one \S+ long"
    for call in (
        lambda: net(x, p),
        lambda: net.value_and_grad(p, x, target, MSELoss()),
        lambda: net(x, p),  # no second call takes another way
    ):
        with pytest.raises(FloatingPointError, match=told):
            call()
    with pytest.raises(FloatingPointError, match="trajectory 0 starts from a state that is not finite"):
        net(np.array([[np.nan]]), p)
    with pytest.raises(FloatingPointError, match=r"trajectory 0 has times \[2. 1.\], but the first must come before"):
        Chain(ODE(explodes, 2, rtol=1e-5, max_steps=5), backend=name)(np.array([[0.1, 2.0, 1.0]]), p)
    with pytest.raises(FloatingPointError, match=r"trajectory 0 has times \[ 0. nan\], but they must be finite"):
        Chain(ODE(explodes, 2, rtol=1e-5, max_steps=5), backend=name)(np.array([[0.1, 0.0, np.nan]]), p)
    assert np.isnan(net.objective(x, target, MSELoss())(p)[0])  # a line search takes a shorter step
    with pytest.raises(FloatingPointError, match="the loss is nan at step 1"):
        chains.train(net, p, x, target, MSELoss(), chains.SGD(0.1), epochs=1)
    fixed = Chain(ODE(explodes, (0.0, 1.0, 2.0), steps=100), backend=name)
    good, bad = ode_steps(fixed, np.ones(1), np.array([[0.1], [1.0]]))
    assert not good.problem
    assert "trajectory 1 is not finite after step 1" in bad.problem


def test_an_equation_behind_a_layer_is_traced(name):
    net = Chain(Dense(3, 2), ODE(PENDULUM, (0.0, 1.0), "rk4", 3), Dense(2, 1), backend=name)
    p, x = net.init(seed=0, dtype=np.float64), np.ones((2, 3))
    ways = ode_steps(net, p, x)
    assert_close(ways[0].times, np.linspace(0.0, 1.0, 4), 1e-15)
    assert_close(np.stack([way.states[[0, -1]] for way in ways]), net[:2](x, p[:8]), 1e-13)
    with pytest.raises(ValueError, match="has no ODE among its layers"):
        ode_steps(net[2:], p[8:], np.ones((1, 2, 2)))


def test_solutions_far_from_time_zero_are_those_at_zero(name):
    """The clock begins at the first time: in float32, where sums of lengths would lose digits, results have the same bits."""
    net, p = Chain(ODE(PENDULUM, 5, rtol=1e-5, max_steps=60), backend=name), np.zeros(0, np.float32)
    ends = 2.0 * np.arange(5)
    near, far = (np.hstack([STARTS, np.tile(first + ends, (3, 1))]).astype(np.float32) for first in (0, 1 << 20))
    assert np.array_equal(net(far, p), net(near, p))
    assert ode_steps(net, p, far)[0].times[[0, -1]].tolist() == [1 << 20, (1 << 20) + 8]
