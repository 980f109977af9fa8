"""Differential equations as a layer: orders of convergence, gradients, what the right-hand side sees, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import ODE, Chain, Dense, Embedding, Equations, MSELoss, tanh
from chains.expr import cos, sin
from chains.layers.ode import METHODS
from tests.harness import BACKENDS, assert_close, central_difference

pytestmark = pytest.mark.parametrize("name", BACKENDS)
PENDULUM = Equations(lambda q, v: (v, -sin(q)), ("q", "v"))
GROWTH = Equations(lambda x, t: x * cos(t), ("x", "t"))


def solved(name, layer, x, p=()):
    return Chain(layer, backend=name)(np.asarray(x, np.float64), np.asarray(p, np.float64))


def reference(times, start):
    """The pendulum by SciPy, at given times."""
    solve_ivp = pytest.importorskip("scipy.integrate").solve_ivp
    found = solve_ivp(lambda t, y: [y[1], -np.sin(y[0])], (times[0], times[-1]), start, "DOP853", times, rtol=1e-13, atol=1e-14)
    return found.y.T


@pytest.mark.few(3)
@pytest.mark.parametrize("method", METHODS)
def test_methods_converge_by_their_orders(name, method):
    start, order = [1.0, 0.5], METHODS[method].order
    exact = reference((0.0, 2.0), start)[-1]
    errors = [abs(solved(name, ODE(PENDULUM, (0, 2), method, steps), [start])[0, -1] - exact).max() for steps in (8, 16)]
    assert order - 0.3 < np.log2(errors[0] / errors[1]) < order + 0.9


@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4", "tsit5", "kvaerno5"])
def test_the_time_of_each_stage_is_that_of_the_method(name, method):
    exact, order = 2.0 * np.exp(np.sin(1.5) - np.sin(0.5)), METHODS[method].order
    errors = [abs(solved(name, ODE(GROWTH, (0.5, 1.5), method, n, time=True), [[2.0]])[0, -1, 0] - exact) for n in (6, 12)]
    assert order - 0.3 < np.log2(errors[0] / errors[1]) < order + 0.9


def test_tsit5_meets_the_conditions_of_order_five(name):
    (((rows, b),), c) = METHODS["tsit5"].halves, np.array(METHODS["tsit5"].c)
    a = np.array([[*row, *[0.0] * (6 - len(row))] for row in rows])
    assert_close(a.sum(1), c, 1e-14)
    for power in range(5):
        assert_close(b @ c**power, np.array(1 / (power + 1)), 1e-14)
    assert_close(b @ a @ a @ a @ c, np.array(1 / 120), 1e-14)


def test_leapfrog_keeps_the_energy_and_goes_back(name):
    layer = ODE(PENDULUM, np.linspace(0.0, 40.0, 11), "leapfrog", 20)
    way = solved(name, layer, [[1.0, 0.0]])[0]
    energy = 0.5 * way[:, 1] ** 2 - np.cos(way[:, 0])
    assert np.ptp(energy[1:]) < 4e-3
    back = solved(name, layer, [way[-1] * [1.0, -1.0]])[0, -1]
    assert_close(back, np.array([1.0, 0.0]), 1e-10)


def test_times_need_not_be_even(name):
    times = (0.0, 0.1, 0.7, 3.0)
    starts = np.array([[1.0, 0.5], [0.2, -0.1]])
    found = solved(name, ODE(PENDULUM, times, "tsit5", 12), starts)
    assert_close(found, np.stack([reference(times, start) for start in starts]), 1e-6)
    assert_close(found[:, 0], starts, 0.0)


def test_what_is_given_stays_as_it_is_and_forcing_is_interpolated(name):
    rate = Equations(lambda x, dose, wind, sun: dose * wind + sun + 0.0 * x, ("x", "dose", "wind", "sun"))
    forcing = ([0.0, 1.0, 3.0], [[0.0, 1.0], [2.0, 1.0], [0.0, 1.0]])
    layer = ODE(rate, (-1.0, 0.0, 1.0, 3.0, 4.0), "midpoint", 4, given=1, forcing=forcing)
    found = solved(name, layer, [[0.5, 1.0], [0.5, -2.0]])
    wind, sun = np.array([0.0, 0.0, 1.0, 3.0, 3.0]), np.array([0.0, 1.0, 2.0, 4.0, 5.0])
    assert_close(found[..., 0], 0.5 + np.array([[1.0], [-2.0]]) * wind + sun, 1e-14)


@pytest.mark.few(3)
@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_central_differences(name, method):
    known = Equations(
        lambda x, v, c, t, u, k: (v, u - k * x * c + sin(t)),
        inputs=("x", "v", "c", "t"),
        network=Dense(4, 1, tanh),
        outputs=("u",),
        parameters={"k": 0.7},
    )
    net = Chain(ODE(known, (0.0, 0.5, 0.75), method, 2, given=1, time=True), backend=name)
    rng = np.random.default_rng(3)
    p, x, dy = rng.normal(size=net.n_params), rng.normal(size=(4, 3)), rng.normal(size=(4, 3, 2))
    dp, dx = net.vjp(p, x, dy)
    assert_close(dp, central_difference(lambda p: np.sum(dy * net(x, p)), p), 1e-8)
    assert_close(dx, central_difference(lambda x: np.sum(dy * net(x, p)), x), 1e-8)


def test_an_embedding_trains_the_initial_states(name):
    net = Chain(Embedding(2, 2, weight_init=[[1.0, 0.0], [0.5, 0.5]]), ODE(PENDULUM, (0, 1)), input_shape=(), backend=name)
    p, ids, target = net.init(dtype=np.float64), np.array([1, 0]), np.zeros((2, 2, 2))
    assert_close(net(ids, p)[:, 0], np.array([[0.5, 0.5], [1.0, 0.0]]), 0.0)
    target[:, 1] = net(ids, p)[:, 1]
    history = chains.train(net, p, ids, target, MSELoss(), chains.Adam(0.1), epochs=3, batch_size=None)
    assert history.loss[-1] < history.loss[0]


def test_a_program_does_not_grow_with_the_steps(name):
    rate = Chain(Dense(2, 5, tanh), Dense(5, 2))
    few, many = (Chain(ODE(rate, (0, 1), "rk4", steps), backend=name).program(MSELoss()) for steps in (10, 1000))
    assert len(few.operations) == len(many.operations)


def test_right_hand_sides_that_do_not_fit_are_refused(name):
    for layer, shape, words in (
        (ODE(Dense(2, 3), (0, 1)), (2,), r"gives \(3,\) for a state of shape \(2,\)"),
        (ODE(Dense(2, 2), (0, 1), time=True), (1,), r"its change, from the state and 1 more \(given, time, forcing\)"),
        (ODE(Dense(3, 3), (0, 1), "leapfrog"), (3,), "positions and as many velocities, not a state of length 3"),
        (ODE(Dense(33, 33), (0, 1), "kvaerno5"), (33,), "takes states of at most 32 numbers, but there are 33"),
        (ODE(Dense(3, 2), (0, 1), given=1), (1,), r"a state \(n,\) and 1 given features, but its shape is \(1,\)"),
        (ODE(Dense(3, 3), (0, 1)), (2, 3), r"but its shape is \(2, 3\)"),
        (ODE(Dense(3, 3), 4), (4,), r"a state \(n,\) and 0 given features and 4 times, but its shape is \(4,\)"),
        (ODE(Dense(3, 3), (0, 1), rtol=1e-3, atol=[1e-6, 1e-6]), (3,), "as many numbers as the state, 3, or be one for all"),
        (ODE(chains.BatchNorm(3), (0, 1)), (3,), "has a state or arrays of the whole batch"),
        (Equations(lambda x: x, ("x",)), (2,), r"must name the features of a sample, whose shape is \(2,\)"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            Chain(layer, input_shape=shape, backend=name)
    with pytest.raises(ValueError, match=r"`rhs` has Dropout\(0.5\), .* put it before or after the ODE"):
        Chain(ODE(chains.Series(Dense(2, 2), chains.Dropout(0.5)), (0, 1)), input_shape=(2,), backend=name)


def test_a_right_hand_side_of_rows(name):
    """Its layers save matrices of (samples x rows)."""
    rows = chains.Series(chains.Reshape(3, 2), chains.Attention(2), Dense(2, 2, tanh), chains.Flatten())
    net = Chain(ODE(rows, (0.0, 0.5), "midpoint", 2), input_shape=(6,), backend=name)
    rng = np.random.default_rng(1)
    p, x, dy = rng.normal(size=net.n_params), rng.normal(size=(2, 6)), rng.normal(size=(2, 2, 6))
    dp, dx = net.vjp(p, x, dy)
    assert_close(dp, central_difference(lambda p: np.sum(dy * net(x, p)), p), 1e-8)
    assert_close(dx, central_difference(lambda x: np.sum(dy * net(x, p)), x), 1e-8)


def test_steps_keep_their_lengths_at_late_times(name):
    """Seconds since 1970, microseconds apart: what rounding leaves of each length is kept."""
    times = 1.7e9 + np.array([0.0, 1e-5, 3e-5])
    y = Chain(ODE(Equations(lambda x: 1e5 * x, ("x",)), times, "rk4", steps=30), backend=name)(np.ones((1, 1)), np.zeros(0))
    assert_close(y[0, :, 0], np.exp(1e5 * (times - times[0])), 1e-6)
