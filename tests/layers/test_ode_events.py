"""Events: trajectories that end where a function of state and time crosses zero, and gradients through that time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chains import ODE, Chain, Dense, Equations, MSELoss, ode_steps, tanh
from chains.expr import exp, sin
from tests.harness import BACKENDS, assert_close, central_difference

TIMES = (0.25, 0.5, 1.0, 1.3, 2.0)
FALL = Equations(lambda h, v, g: (v, -g), ("h", "v"), parameters={"g": 9.81})
GROUND = Equations(lambda h, v: h, ("h", "v"))
DRIVEN = Equations(
    lambda h, v, c, t, g, k, u: (v, -g - k * v + 0.3 * sin(3.0 * t) * c + 0.1 * u), ("h", "v", "c", "t"),
    network=Dense(4, 1, tanh), outputs=("u",), parameters={"g": 9.81, "k": 0.1},
)  # fmt: skip
RAISED = Equations(lambda h, v, c, t, b: h - b * t - 0.01 * c * v, ("h", "v", "c", "t"), parameters={"b": 0.05})
WAYS = [{"method": "rk4", "steps": 3}, {"method": "leapfrog", "steps": 3}, {"rtol": 1e-6, "max_steps": 40}]


def driven(name, **settings):
    net = Chain(ODE(DRIVEN, TIMES, given=1, time=True, event=RAISED, **settings), input_shape=(3,), backend=name)
    x = np.array([[1.0, 0.0, 0.5], [2.0, 1.0, -0.2], [50.0, 0.0, 1.0], [0.5, 2.0, 0.3]])  # the third one lands too late
    return net, net.init(np.random.default_rng(0), np.float64), x


@pytest.mark.parametrize("settings", WAYS)
@pytest.mark.parametrize("name", BACKENDS)
def test_gradients_through_the_time_of_the_event_are_central_differences(name, settings):
    net, p, x = driven(name, **settings)
    dy = np.random.default_rng(1).normal(size=(4, 6, 3))
    dp, dx = net.vjp(p, x, dy)
    assert_close(dp, central_difference(lambda p: np.sum(dy * net(x, p)), p), 1e-8)
    assert_close(dx, central_difference(lambda x: np.sum(dy * net(x, p)), x), 1e-8)


@pytest.mark.parametrize("settings", [{"method": "midpoint", "steps": 7}, {"rtol": 1e-9, "max_steps": 60}])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_fall_ends_on_the_ground(name, settings):
    """A parabola is exact for these methods."""
    net = Chain(ODE(FALL, (0.0, 0.5, 1.0, 2.0), event=GROUND, **settings), backend=name)
    heights = np.array([0.5, 1.0, 5.0, 30.0])
    y = net(np.stack([heights, np.zeros(4)], 1), np.array([9.81]))
    end = np.minimum(np.sqrt(2.0 * heights / 9.81), 2.0)
    t = np.minimum(np.array([0.0, 0.5, 1.0, 2.0]), end[:, None])
    assert_close(y[:, -1, 2], end, 1e-12)
    assert_close(y[:, :-1, 2], t, 1e-12)
    assert_close(y[:, :-1, 0], heights[:, None] - 0.5 * 9.81 * t**2, 1e-11)
    assert_close(y[:, -1, 1], -9.81 * end, 1e-11)
    assert y[-1, -1, 2] == 2.0


@pytest.mark.parametrize("name", BACKENDS)
def test_directions_and_starts_at_zero(name):
    swing = Equations(lambda q, v: (v, -q), ("q", "v"))
    ends = {}
    for direction in ("both", "up", "down"):
        event = Equations(lambda q, v: q, ("q", "v"))
        net = Chain(ODE(swing, (0.0, 8.0), "tsit5", 100, event=event, direction=direction), backend=name)
        ends[direction] = net(np.array([[0.0, 1.0], [1.0, 0.0]]), np.zeros(0))[:, -1, 2] / np.pi
    assert_close(ends["both"], np.array([1.0, 0.5]), 1e-8)
    assert_close(ends["down"], np.array([1.0, 0.5]), 1e-8)
    assert_close(ends["up"], np.array([2.0, 1.5]), 1e-8)


@pytest.mark.parametrize("settings", [{"steps": 4}, {"rtol": 1e-5}])
@pytest.mark.parametrize("name", BACKENDS)
def test_samples_bring_their_times_and_have_the_bits_that_they_have_alone(name, settings):
    net = Chain(ODE(FALL, 3, event=GROUND, **settings), input_shape=(5,), backend=name)
    x = np.random.default_rng(0).uniform(0.5, 3.0, (21, 5))
    x[:, 2:] = [0.125, 0.5, 2.0]
    y, p = net(x, np.array([9.81])), np.array([9.81])
    for k in (0, 7, 20):
        assert np.array_equal(net(x[k : k + 1], p)[0], y[k])
    shared = Chain(ODE(FALL, (0.125, 0.5, 2.0), event=GROUND, **settings), backend=name)
    assert_close(y, shared(x[:, :2], p), 1e-13)


@pytest.mark.parametrize("name", BACKENDS)
def test_what_comes_after_an_event_does_not_count_and_failures_before_it_do(name):
    """y' = y**2 has no solution from time 1/y on."""
    burst, event = Equations(lambda y: y * y, ("y",)), Equations(lambda y, at: y - at, ("y",), parameters={"at": 4.0})
    for settings in ({"steps": 200}, {"rtol": 1e-6, "max_steps": 64})[name == "native" :]:
        net = Chain(ODE(burst, (0.0, 3.0), event=event, **settings), backend=name)
        p, x = np.array([4.0]), np.array([[1.0], [0.5]])
        dp, dx = net.vjp(p, x, np.ones((2, 3, 2)))
        assert_close(net(x, p)[:, -1], np.array([[4.0, 0.75], [4.0, 1.75]]), 1e-5)
        assert np.isfinite(dp).all()
        assert np.isfinite(dx).all()
    late, target = np.array([1e9]), np.zeros((2, 3, 2))
    with pytest.raises(FloatingPointError, match=r"trajectory 0 stops at t = 0\.99"):
        net.value_and_grad(late, x, target, MSELoss())
    dp, dx = net.vjp(late, x, np.ones((2, 3, 2)))
    assert np.isnan(dx).all()
    assert ode_steps(net, p, x)[0].problem


def test_settings_that_do_not_fit_are_refused():
    for settings, kind, words in (
        ({"event": 3}, TypeError, r"`event` \(=3\) must be a layer"),
        ({"direction": "up"}, ValueError, r"`direction` \(='up'\) is of use with an `event` only"),
        ({"event": GROUND, "direction": "left"}, ValueError, r"`direction` \(='left'\) must be 'both', 'up' or 'down'"),
        ({"event": GROUND, "method": "kvaerno3"}, ValueError, "goes with explicit methods, not with 'kvaerno3'"),
        ({"event": GROUND, "adjoint": True}, ValueError, r"`adjoint` \(=True\) does not go with an `event`"),
        ({"event": GROUND, "checkpoint_every": 2}, ValueError, r"`checkpoint_every` \(=2\) does not go with an `event`"),
        ({"event": GROUND, "forcing": ([0.0], [1.0])}, ValueError, "`forcing` .* does not go with an `event`"),
    ):
        with pytest.raises(kind, match=words):
            ODE(FALL, (0.0, 1.0), **settings)
    with pytest.raises(ValueError, match=r"gives \(2,\), but must give one number, \(1,\)"):
        Chain(ODE(FALL, (0.0, 1.0), event=FALL))


def test_values_and_gradients_are_those_of_diffrax():
    diffrax, jax = pytest.importorskip("diffrax"), pytest.importorskip("jax")
    optimistix, jnp = pytest.importorskip("optimistix"), jax.numpy
    net = Chain(ODE(Equations(lambda h, v, g, k: (v, -g - k * v), ("h", "v"), parameters={"g": 9.81, "k": 0.3}), (0.0, 4.0),
                    "tsit5", 100, event=GROUND), backend="numpy")  # fmt: skip
    p, x, dy = np.array([9.81, 0.3]), np.array([[3.0, 1.0], [1.0, 5.0]]), np.zeros((2, 3, 3))
    dy[:, -1] = [0.0, 1.0, 2.0]  # the position is zero
    with jax.enable_x64(True):
        event = diffrax.Event(lambda t, y, args, **_: y[0], optimistix.Newton(1e-12, 1e-12))

        def end(p, start):
            term = diffrax.ODETerm(lambda t, y, p: jnp.stack([y[1], -p[0] - p[1] * y[1]]))
            settings = {"event": event, "saveat": diffrax.SaveAt(t1=True), "max_steps": 128}
            settings["stepsize_controller"] = diffrax.ConstantStepSize()
            found = diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 4.0, 0.04, start, p, **settings)
            return found.ys[0, 1] + 2.0 * found.ts[0]

        values, (d_p, d_x) = jax.jit(jax.vmap(jax.value_and_grad(end, (0, 1)), (None, 0)))(jnp.array(p), jnp.array(x))
    found, (dp, dx) = net(x, p), net.vjp(p, x, dy)
    assert_close(found[:, -1, 1] + 2.0 * found[:, -1, 2], np.asarray(values), 1e-8)
    assert_close(dp, np.asarray(d_p).sum(0), 1e-6)
    assert_close(dx, np.asarray(d_x), 1e-6)


def test_exported_c_has_the_same_events():
    support = pytest.importorskip("tests.exporting.support")
    net, p, x = driven("native", method="midpoint", steps=3)
    y = support.loaded(support.interface(net, "float64", p=p))("forward", 4, x=x)["y"]
    assert_close(y, net(x, p), 1e-13)


@pytest.mark.parametrize("rate", [8.0, 12.0])
@pytest.mark.parametrize("name", BACKENDS)
def test_events_of_any_steepness_are_found(name, rate):
    """At the end of the step, the event is e to a power of hundreds. The derivatives of the time need its slope at the root."""
    steep = Equations(lambda h, v: exp(rate * (0.5 - h)) - 1.0, ("h", "v"))
    net = Chain(ODE(FALL, (0.0, 1.0, 2.0), event=steep, rtol=1e-6, max_steps=40), backend=name)
    y, slopes, bends = net.derivatives(np.array([9.81]), np.array([[3.0, 0.0]]), order=2)
    end = math.sqrt(2.0 * 2.5 / 9.81)
    assert_close(y[0, -1], [0.5, -9.81 * end, end], 1e-12)
    assert_close(slopes[0, -1, 2, 0], 1.0 / (9.81 * end), 1e-11)
    assert_close(bends[0, -1, 2, 0], -1.0 / (9.81**2 * end**3), 1e-11)


@pytest.mark.parametrize("settings", [{"method": "midpoint", "steps": 3}, {"rtol": 1e-6, "max_steps": 20}])
def test_derivatives_along_directions_go_through_the_event(settings):
    curved = Equations(lambda h, v: h + 0.2 * sin(3.0 * h) + 0.05 * v * v - 0.3, ("h", "v"))
    net = Chain(ODE(FALL, (0.0, 0.4, 1.0), event=curved, **settings), backend="numpy")
    p, x, target = np.array([9.81]), np.array([[1.0, 0.0], [2.0, 0.5]]), np.zeros((2, 4, 3))
    gradient = lambda p: net.value_and_grad(p, x, target, MSELoss())[1]  # noqa: E731
    curvature = (gradient(p + 1e-4) - gradient(p - 1e-4)) / 2e-4
    assert_close(net.hvp(p, x, target, MSELoss(), np.ones(1)), curvature, 1e-6)
    _, slopes, _ = net.derivatives(p, x, order=2)
    near = [(net(x + step, p) - net(x - step, p)) / 2e-5 for step in 1e-5 * np.eye(2)]
    assert_close(slopes, np.stack(near, -1), 1e-7)
    bends = [(net(x + step, p) - 2.0 * net(x, p) + net(x - step, p)) / 1e-6 for step in 1e-3 * np.eye(2)]
    assert_close(net.derivatives(p, x, order=2)[2], np.stack(bends, -1), 1e-3)
