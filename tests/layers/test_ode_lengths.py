"""Trajectories of fewer times than others: what lies behind a trajectory's length counts for nothing."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import GRU, ODE, Chain, Dense, Equations, MSELoss, Reshape, ode_steps, tanh
from tests.harness import BACKENDS, assert_close

LENGTHS = np.array([4, 2, 1])
TIMES = np.array([[0.0, 0.5, 0.75, 1.5], [0.5, 1.0, np.pi, -2.0], [1.0, 0.0, 0.0, 0.0]])  # with padding
X = np.array([[1.0, 0.5], [0.2, -0.1], [0.7, 0.3]])


@pytest.mark.few(2)
@pytest.mark.parametrize("how", [{"steps": 3}, {"rtol": 1e-3, "max_steps": 12}, {"steps": 3, "adjoint": True}], ids=str)
@pytest.mark.parametrize("own", [True, False], ids=["own", "shared"])
@pytest.mark.parametrize("name", BACKENDS)
def test_losses_and_gradients_are_those_of_the_trajectories_alone(name, own, how):
    net = Chain(ODE(Dense(2, 2, tanh), 4 if own else TIMES[0], **how), backend=name)
    p, t = net.init(seed=1, dtype=np.float64), np.random.default_rng(0).normal(size=(3, 4, 2))
    t[np.arange(4) >= LENGTHS[:, None]] = 0.0
    x = np.hstack([X, TIMES]) if own else X
    value, g = net.value_and_grad(p, x, t, MSELoss(), lengths=LENGTHS)
    y = net(x, p, lengths=LENGTHS)
    assert not y[np.arange(4) >= LENGTHS[:, None]].any()
    values, total = [], np.zeros_like(g)
    for start, times, target, count in zip(X, TIMES if own else TIMES[[0, 0, 0]], t, LENGTHS, strict=True):
        if count == 1:
            values.append(np.sum((start - target[0]) ** 2))
            continue
        alone = Chain(ODE(Dense(2, 2, tanh), times[:count], **how), backend="numpy")
        one, d = alone.value_and_grad(p, start[None], target[None, :count], MSELoss())
        values.append(count * 2 * one)
        total += count * 2 * d
    tolerance = 1e-3 if "rtol" in how else 1e-12  # other times have other steps
    assert_close(np.array(value), np.array(sum(values) / t.size), tolerance)
    assert_close(g, total / t.size, tolerance)


def test_training_takes_them_and_wrong_ones_are_refused():
    net = Chain(ODE(Dense(2, 2, tanh), 4, steps=2), backend="numpy")
    p, t = net.init(seed=0, dtype=np.float64), np.zeros((3, 4, 2))
    x = np.hstack([X, TIMES])
    history = chains.train(net, p, x, t, MSELoss(), chains.SGD(0.1), epochs=3, lengths=LENGTHS, batch_size=None)
    assert history.loss[-1] < history.loss[0]
    with pytest.raises(ValueError, match="`lengths` must be from 1 to 4, the steps of a sample, but there is 5"):
        net(x, p, lengths=np.array([5, 1, 1]))
    with pytest.raises(ValueError, match="this network has no recurrent layer"):
        net.step(x, p, None)
    with pytest.raises(FloatingPointError, match=r"the loss is nan at step 1: .*; `ode_steps\(net, p, x\)` gives the status"):
        chains.train(net, p, x, t, MSELoss(), chains.SGD(0.1), epochs=1, batch_size=None)


@pytest.mark.parametrize("name", BACKENDS)
def test_own_times_that_fall_are_told(name):
    net = Chain(ODE(Equations(lambda x: -x, ("x",)), 3, "rk4", 2), backend=name)
    x, nothing = np.array([[1.0, 0.0, 1.0, 2.0], [1.0, 0.0, 2.0, 1.0], [1.0, 0.0, 1.0, 1.0]]), np.zeros(0)
    assert np.isnan(net(x, nothing)).all(axis=(1, 2)).tolist() == [False, True, False]
    problems = [way.problem for way in ode_steps(net, nothing, x)]
    assert problems == ["", "trajectory 1 has times that must ascend, but 1 comes after 2", ""]


HOW = [{"steps": 9}, {"steps": 7, "checkpoint_every": 3}, {"steps": 5, "checkpoint_every": 20}, {"rtol": 1e-4, "max_steps": 25},
       {"steps": 9, "adjoint": True}, {"steps": 6, "method": "kvaerno3"}]  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("name", BACKENDS)
def test_what_explodes_behind_a_length_is_not_met(name, how):
    """x' = a x**2 is infinite at the time 1 / (a x), which the first trajectory's length comes before."""
    rhs, times = Equations(lambda x, a: a * x * x, ("x",), parameters={"a": 1.0}), (0.0, 0.3, 0.5, 3.0, 9.0)
    net, short = Chain(ODE(rhs, times, **how), backend=name), Chain(ODE(rhs, times[:3], **how), backend="numpy")
    p, x, lengths = np.ones(1), np.array([[1.0], [0.01]]), np.array([3, 5])
    y, (g, dx) = net(x, p, lengths=lengths), net.vjp(p, x, np.ones((2, 5, 1)), lengths=lengths)
    tolerance = 1e-3 if "rtol" in how else 1e-12
    assert_close(y[0, :3], short(x[:1], p)[0], tolerance)
    one, other = short.vjp(p, x[:1], np.ones((1, 3, 1))), net.vjp(p, x[1:], np.ones((1, 5, 1)))
    assert_close(g, one[0] + other[0], tolerance)
    assert_close(dx, np.concatenate([one[1], other[1]]), tolerance)
    ways = ode_steps(net, p, x, lengths=lengths)
    assert [way.times[-1] for way in ways] == pytest.approx([0.5, 9.0])
    assert not any(way.problem for way in ways)
    assert_close(ways[0].states[-1], y[0, 2], 0.0)
    if "adjoint" not in how and "rtol" not in how and "method" not in how:
        assert ode_steps(net, p, x)[0].problem


@pytest.mark.parametrize("how", [{"steps": 3}, {"rtol": 1e-3, "max_steps": 30}], ids=str)
def test_steps_of_own_times_end_at_the_length(how):
    net = Chain(ODE(Dense(2, 2, tanh), 4, **how), backend="numpy")
    p, x = net.init(seed=1, dtype=np.float64), np.hstack([X, TIMES])
    x[2, 3:] = np.nan
    ways = ode_steps(net, p, x, lengths=LENGTHS)
    assert [way.times[-1] for way in ways] == [1.5, 1.0, 1.0]
    assert not any(way.problem for way in ways)
    assert "must" in ode_steps(net, p, x)[1].problem


def test_a_failure_is_told_of_the_times_that_a_trajectory_has():
    net = Chain(ODE(Equations(lambda x: x * x, ("x",)), 3, rtol=1e-3, max_steps=20), Dense(1, 1), backend="numpy")
    x = np.array([[1.0, 0.5, 2.0, -7.0]])
    p, lengths = net.init(dtype=np.float64), np.array([2])
    for call in (
        lambda: net(x, p, lengths=lengths),
        lambda: net.value_and_grad(p, x, np.zeros((1, 3, 1)), MSELoss(), lengths=lengths),
    ):
        with pytest.raises(FloatingPointError, match=r"trajectory 0 stops at t = 1.4\d* of 2,"):
            call()


def test_lengths_are_those_of_the_times_also_beside_recurrent_layers():
    rhs = Chain(Reshape(2, 1), GRU(1, 2), input_shape=(2,))
    net, p = Chain(ODE(rhs, TIMES[0], steps=3), input_shape=(2,), backend="numpy"), rhs.init(seed=1, dtype=np.float64)
    y = net(X, p, lengths=LENGTHS)
    assert_close(y, np.where(np.arange(4)[:, None] < LENGTHS[:, None, None], net(X, p), 0.0), 1e-12)
    behind = Chain(ODE(Dense(2, 2, tanh), TIMES[0]), GRU(2, 3), backend="numpy")
    with pytest.raises(ValueError, match=r"layer 1, .*GRU.*, has other steps than the input"):
        behind(X, behind.init(), lengths=np.array([1, 2, 2]))
