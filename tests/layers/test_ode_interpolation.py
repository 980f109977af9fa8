"""Interpolated states: their values, their gradients for the steps that were taken, and where steps end."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from chains import ODE, Chain, Dense, Doses, Equations, Flatten, MSELoss, ode_steps, tanh
from chains.expr import sin, where
from tests.harness import assert_close, central_difference
from tests.layers.interpolating import states_at

METHODS = ("tsit5", "kvaerno3", "kvaerno5")
PENDULUM = Equations(lambda q, v: (v, -sin(q)), ("q", "v"))
NOTHING = np.zeros(0)
RATE = Equations(
    lambda a, b, c, t, u, k: (b + 0.1 * c, -k * a + u * sin(t)), ("a", "b", "c", "t"),
    network=Dense(4, 1, tanh), outputs=("u",), parameters={"k": 2.0},
)  # fmt: skip


def exact(rate, start, times):
    return solve_ivp(rate, (times[0], times[-1]), start, "DOP853", times, rtol=1e-12, atol=1e-13).y.T


@pytest.mark.parametrize("method", METHODS)
def test_errors_are_those_of_the_steps(method):
    times, start = np.linspace(0.0, 3.0, 61), np.array([1.0, 0.5])
    loose, tight = (1e-2, 1e-4) if method == "kvaerno3" else (1e-3, 1e-5)
    wanted = exact(lambda t, y: [y[1], -np.sin(y[0])], start, times)
    errors = {}
    for rtol in (loose, tight):
        net = Chain(ODE(PENDULUM, times, method, rtol=rtol, interpolate=True), backend="numpy")
        (way,) = ode_steps(net, NOTHING, start[None])
        assert len(way.times) < 45
        at_steps = np.max(np.abs(way.states - exact(lambda t, y: [y[1], -np.sin(y[0])], start, way.times)))
        errors[rtol] = np.max(np.abs(net(start[None], NOTHING)[0] - wanted))
        assert errors[rtol] < at_steps + (8.0 if method == "kvaerno5" else 2.0) * rtol
    assert errors[tight] < 0.05 * errors[loose]


CASES = {
    "shared": {}, "own": {"own": True}, "lengths": {"lengths": [7, 3, 1]}, "own, lengths": {"own": True, "lengths": [7, 2, 5]},
    "checkpoints": {"checkpoint_every": 3}, "jumps": {"jumps": [0.7, 1.3]}, "far": {"first": 512.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("method", "case"), [*(("tsit5", case) for case in CASES), ("kvaerno3", "shared"), ("kvaerno5", "own, lengths")]
)
def test_gradients_are_those_of_the_recorded_steps(method, case):
    how = dict(CASES[case])
    own, lengths, first = how.pop("own", False), how.pop("lengths", None), how.pop("first", 0.0)
    rng, times = np.random.default_rng(3), first + np.array([0.0, 0.1, 0.35, 0.4, 0.9, 1.6, 2.0])
    net = Chain(
        ODE(RATE, 7 if own else times, method, rtol=1e-3, given=1, time=True, interpolate=True, max_steps=60, **how),
        backend="native" if method != "tsit5" or case == "shared" else "numpy",
    )
    p, x, dy = rng.normal(size=net.n_params), rng.normal(size=(3, 3)), rng.normal(size=(3, 7, 2))
    along, side = rng.normal(size=p.shape), rng.normal(size=x.shape)
    each = np.stack([times[0] + scale * (times - times[0]) for scale in (1.0, 0.6, 1.2)]) if own else np.tile(times, (3, 1))
    seen, rest = np.hstack([x, each]) if own else x, {} if lengths is None else {"lengths": lengths}
    y, (dp, dx) = net(seen, p, **rest), net.vjp(p, seen, dy, **rest)
    ways, counts = ode_steps(net, p, seen, **rest), lengths or [7, 7, 7]
    assert not any(way.problem for way in ways)
    rate = Chain(RATE, backend="numpy", input_shape=(4,))

    def solved(p, x, k):
        slope = lambda y, t: rate(np.array([[*y, x[k, 2], t]]), p)[0]  # noqa: E731
        return states_at(method, slope, x[k, :2], ways[k].times, each[k, : counts[k]])

    def value(way):  # along the direction of the first numbers for parameters, of the others for samples
        return sum(np.sum(dy[k, : counts[k]] * solved(p + way[0] * along, x + way[1] * side, k)) for k in range(3))

    digits = 1e-8 if first else 1e-9 if method != "tsit5" else 1e-12
    for k in range(3):
        assert_close(y[k, : counts[k]], solved(p, x, k), digits)
        assert not y[k, counts[k] :].any()
    slopes = np.array([dp @ along, np.sum(dx[:, :3] * side)])
    assert_close(slopes, central_difference(value, np.zeros(2)), 1e-6)
    assert not dx[:, 3:].any()  # times are constants


LOOSE = {"rtol": 1e6, "atol": 1e6, "max_steps": 9, "interpolate": True}  # lengths of steps that do not depend on the states


@pytest.mark.parametrize("case", ["event", "event, time", "no event"])
def test_states_before_an_event(case):
    """They are interpolated in the shortened step; its length, the event's time, moves them."""
    rng, times = np.random.default_rng(1), np.linspace(0.0, 0.8, 9)
    limit = 9.0 if case == "no event" else 0.4
    inputs = ("a", "b", "t") if "time" in case else ("a", "b")
    level = Equations(lambda a, b: a - limit - 0.2 * b, ("a", "b"))
    forms = {2: lambda a, b, u: (1.0 + u, 0.3 * a - b), 3: lambda a, b, t, u: (1.0 + u * t, 0.3 * a - b)}
    rise = Equations(forms[len(inputs)], inputs, network=Dense(len(inputs), 1, tanh), outputs=("u",))
    if "time" in case:
        level = Equations(lambda a, b, t: a - limit - 0.2 * b * t, inputs)
    net = Chain(ODE(rise, times, event=level, time="time" in case, **LOOSE), backend="numpy")
    p, x, dy = rng.normal(size=net.n_params), rng.uniform(-0.2, 0.2, (3, 2)), rng.normal(size=(3, 10, 3))
    y, (dp, dx) = net(x, p), net.vjp(p, x, dy)
    ends = y[:, -1, -1]
    assert (ends < 0.8).all() == (case != "no event")
    for k, way in enumerate(ode_steps(net, p, x)):
        slope = lambda y, t, k=k: Chain(rise, backend="numpy")(np.array([[*y, t][: len(inputs)]]), p)[0]  # noqa: E731
        before = times[times < ends[k]]
        steps = np.append(way.times[way.times < ends[k]], ends[k])
        assert_close(y[k, : len(before), :2], states_at("tsit5", slope, x[k], steps, before), 1e-12)
    assert_close(dp, central_difference(lambda p: np.sum(dy * net(x, p)), p), 1e-7)
    assert_close(dx, central_difference(lambda x: np.sum(dy * net(x, p)), x), 1e-7)


def test_many_times_are_interpolated_by_default():
    """The choice depends on the settings alone; few times, and those of events, forcing and doses, end steps."""
    for rtol, method, least in ((1e-3, "tsit5", 17), (1e-6, "tsit5", 64), (1e-6, "kvaerno3", 400)):
        few, many = (ODE(PENDULUM, count + 1, method, rtol=rtol) for count in (least - 1, least))
        assert (few.interpolates, many.interpolates) == (False, True)
    times = np.linspace(0.0, 1.0, 101)
    forced = ODE(Dense(3, 2), times, rtol=1e-3, forcing=([0.0, 1.0], [0.0, 1.0]))
    ended = ODE(Dense(2, 2), times, rtol=1e-3, event=Dense(2, 1))
    assert not forced.interpolates
    assert not ended.interpolates
    assert not ODE(PENDULUM, times, rtol=1e-3, interpolate=False).interpolates
    with pytest.raises(ValueError, match="must be at least 3: steps end at the last time, and at jumps"):
        ODE(PENDULUM, times, rtol=1e-3, jumps=[0.2, 0.4], max_steps=2)
    net = Chain(ODE(PENDULUM, times, rtol=1e-3), backend="numpy")
    assert len(ode_steps(net, NOTHING, np.ones((1, 2)))[0].times) < 8


@pytest.mark.parametrize("method", METHODS[1:])
def test_defaults_keep_the_tolerance_of_stiff_equations(method):
    """Van der Pol's, on its slow branch, where steps are long."""
    rtol = 1e-6 if method == "kvaerno5" else 1e-3
    times, start = np.linspace(0.0, 50.0, 70), np.array([2.0, 0.0])
    rate = Equations(lambda x, v: (v, 100.0 * (1.0 - x * x) * v - x), ("x", "v"))
    slope = lambda t, y: [y[1], 100.0 * (1.0 - y[0] ** 2) * y[1] - y[0]]  # noqa: E731
    wanted = solve_ivp(slope, (0.0, 50.0), start, "Radau", times, rtol=1e-9, atol=1e-13).y.T
    found = Chain(ODE(rate, times, method, rtol=rtol), backend="numpy")(start[None], NOTHING)[0]
    assert np.max(np.abs(found - wanted) / (1e-3 * rtol + rtol * np.abs(wanted))) < 5.0


def test_steps_end_at_times_with_doses():
    doses, times = Doses(1, 0), np.linspace(0.0, 2.0, 31)
    x = np.array([[1.0, 0.5, 0.7, 2.0]])
    default, given = (Chain(ODE(PENDULUM, times, rtol=1e-3, doses=doses, **how), backend="numpy")
                      for how in ({}, {"interpolate": False}))  # fmt: skip
    assert np.array_equal(default(x, NOTHING), given(x, NOTHING))
    assert len(ode_steps(default, NOTHING, x)[0].times) > 30


@pytest.mark.parametrize("first", [0.0, 700.0])
def test_steps_end_beside_jumps(first):
    times = first + np.linspace(0.0, 2.0, 5)
    switched = Equations(lambda x, t: where(t < first + 0.7, 1.0, -2.0) + 0.0 * x, ("x", "t"))
    wanted = np.minimum(times - first, 0.7) - 2.0 * np.maximum(times - first - 0.7, 0.0)
    for interpolate in (True, False):
        for own in (True, False):
            ode = ODE(
                switched, 5 if own else times, rtol=1e-6, time=True, jumps=[first + 0.7], interpolate=interpolate, max_steps=16
            )  # fmt: skip
            net, x = Chain(ode, backend="numpy"), np.array([[0.0, *times]]) if own else np.zeros((1, 1))
            assert_close(net(x, NOTHING)[0, :, 0], wanted, 1e-11)
            assert ode_steps(net, NOTHING, x)[0].refused == 0


@pytest.mark.parametrize("method", ["tsit5", "kvaerno3"])
def test_hessian_products(method):
    net = Chain(ODE(Dense(2, 2, tanh), (0.0, 0.2, 0.3, 0.5), method, **LOOSE), Flatten(), Dense(8, 1), backend="numpy")
    rng = np.random.default_rng(0)
    p, x, t, v = rng.normal(size=net.n_params), rng.normal(size=(2, 2)), rng.normal(size=(2, 1)), rng.normal(size=net.n_params)

    def slope(by):
        return net.value_and_grad(p + by[0] * v, x, t, MSELoss())[1]

    wanted = (slope([1e-5]) - slope([-1e-5])) / 2e-5
    assert_close(net.hvp(p, x, t, MSELoss(), v), wanted, 1e-7)


@pytest.mark.parametrize("case", ["own", "shared", "lengths", "implicit"])
def test_times_between_doses(case):
    """Steps end at doses only. Values and gradients, also by all times, are those of steps that end at the times."""
    times = np.array([[0.0, 0.1, 0.5, 0.6, 1.0, 1.3], [0.2, 0.3, 0.7, 1.1, 1.2, 1.6]])
    own, how = case != "shared", {"lengths": [6, 3]} if case == "lengths" else {}
    doses = Doses(2, 1, infusion="duration", lag=True, bioavailability=True)
    rate = Equations(lambda a, b, t, k: (-k * a + b * b, -b - 0.1 * t * a), ("a", "b", "t"), parameters={"k": 0.7})
    x = np.array([[1.0, 0.5, 0.03, 0.9, 0.25, 0.75, 1.0, 0.7, 0.0, 0.3], [0.4, 0.2, 0.05, 0.8, 0.35, 9.0, 0.6, 0.5, 0.2, 0.0]])
    x, p, dy = np.hstack([x, times]) if own else x, np.array([0.7]), np.random.default_rng(0).normal(size=(2, 6, 2))
    method, rtol = ("kvaerno5", 1e-6) if case == "implicit" else ("tsit5", 1e-8)
    found, steps = [], []
    for interpolate in (True, False):
        ode = ODE(rate, 6 if own else times[0], method, rtol=rtol, time=True, doses=doses, interpolate=interpolate)
        net = Chain(ode, backend="numpy")
        found.append([net(x, p, **how), *net.vjp(p, x, dy, **how)])
        steps.append(ode_steps(net, p, x, **how)[0].times)
    for between, at_times in zip(*found, strict=True):
        assert_close(between, at_times, 1e-3 if case == "implicit" else 1e-5)
    assert [bool(np.isclose(way, 0.1).any()) for way in steps] == [False, True]
