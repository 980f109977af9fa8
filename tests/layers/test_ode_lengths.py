"""Trajectories of fewer times than others: what lies behind a trajectory's length counts for nothing."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import ODE, Chain, Dense, Equations, MSELoss, ode_steps, tanh
from tests.harness import BACKENDS, assert_close

LENGTHS = np.array([4, 2, 1])
TIMES = np.array([[0.0, 0.5, 0.75, 1.5], [0.5, 1.0, np.pi, -2.0], [1.0, 0.0, 0.0, 0.0]])  # with padding
X = np.array([[1.0, 0.5], [0.2, -0.1], [0.7, 0.3]])


@pytest.mark.by_day(few=2)
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
    with pytest.raises(FloatingPointError, match=r"the loss is nan at step 1: .*; `ode_steps\(net, p, x\)` tells what became"):
        chains.train(net, p, x, t, MSELoss(), chains.SGD(0.1), epochs=1, batch_size=None)


@pytest.mark.parametrize("name", BACKENDS)
def test_own_times_that_fall_are_told(name):
    net = Chain(ODE(Equations(lambda x: -x, ("x",)), 3, "rk4", 2), backend=name)
    x, nothing = np.array([[1.0, 0.0, 1.0, 2.0], [1.0, 0.0, 2.0, 1.0], [1.0, 0.0, 1.0, 1.0]]), np.zeros(0)
    assert np.isnan(net(x, nothing)).all(axis=(1, 2)).tolist() == [False, True, False]
    problems = [way.problem for way in ode_steps(net, nothing, x)]
    assert problems == ["", "trajectory 1 has times that must ascend, but 1 comes after 2", ""]
