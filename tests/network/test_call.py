"""The door of a call: what all methods have in common."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from chains import Chain, CrossEntropyLoss, Dense, SquaredLoss, tanh
from chains.network import calls, derivatives, stepping
from chains.network.call import Method, door
from chains.network.network import network_of
from chains.network.programs import BOUND

X, T = np.ones((3, 4)), np.zeros((3, 2))
LABELS = np.array([0, 1, 1])
OF_TARGETS = {
    "value_and_grad": lambda net, p, t, loss: net.value_and_grad(p, X, t, loss)[1],
    "loss": lambda net, p, t, loss: net.loss(p, X, t, loss),
    "hvp": lambda net, p, t, loss: net.hvp(p, X, t, loss, np.ones_like(p)),
    "gauss_newton": lambda net, p, t, loss: net.gauss_newton(p, X, t, loss, np.ones_like(p)),
}


def made() -> tuple[Chain, Any]:
    net = Chain(Dense(4, 8, tanh), Dense(8, 2))
    return net, net.init(0, np.float64)


def test_every_shortcut_with_targets_is_tested_here():
    things = [thing for module in (calls, derivatives, stepping) for thing in vars(module).values()]
    methods = [thing.method for thing in things if hasattr(thing, "method")]
    assert {method.name for method in methods if "t" in method.inputs.split()} == set(OF_TARGETS)
    assert {method.name for method in methods if method.inputs} == {*OF_TARGETS, "call", "vjp", "step"}


@pytest.mark.parametrize("method", OF_TARGETS)
def test_a_shortcut_checks_targets(method):
    net, p = made()
    for _ in range(4):
        OF_TARGETS[method](net, p, LABELS, CrossEntropyLoss())
        with pytest.raises(ValueError, match="`t`"):
            OF_TARGETS[method](net, p, LABELS + 1, CrossEntropyLoss())


@pytest.mark.parametrize("method", OF_TARGETS)
def test_a_shortcut_takes_vectors_of_targets(method):
    net = Chain(Dense(4, 1))
    p = net.init(0, np.float64)
    wanted = OF_TARGETS[method](net, p, T[:, :1], SquaredLoss())
    for _ in range(4):
        np.testing.assert_array_equal(OF_TARGETS[method](net, p, T[:, 0], SquaredLoss()), wanted)


def test_a_seed_that_equals_the_default_is_checked_each_time():
    net, p = made()
    for _ in range(4):
        net(X, p)
        with pytest.raises(TypeError, match="seed"):
            net(X, p, seed=False)


def test_a_door_has_the_arguments_of_its_method():
    made = door(Method("twice", "net.twice(p, x)", "p x out"))(lambda call: (call.usage, call.p, call.x, call.out, call.state))
    assert made("a network", 1, x=2, out=3) == ("net.twice(p, x)", 1, 2, 3, None)


def test_equal_networks_share_bindings(monkeypatch):
    (first, p), (second, _) = made(), made()
    first.value_and_grad(p, X, T, SquaredLoss())
    (run,) = network_of(first).programs._recorded.values()
    monkeypatch.setattr(type(run.backend), "bind", None)  # it is not called again
    second.value_and_grad(p, X, T, SquaredLoss())


def test_networks_on_other_backends_share_no_bindings():
    found = []
    for backend in ("numpy", "auto", "numpy"):
        net = Chain(Dense(4, 2), backend=backend)
        net.loss(net.init(0), X, T, SquaredLoss())
        found.append((net, *network_of(net).programs._recorded.values()))
    assert found[0][1] is found[2][1]
    assert found[0][1] is not found[1][1]


def test_what_is_shared_lives_no_longer_than_its_networks():
    net, p = made()
    net.loss(p, X, T, SquaredLoss())
    assert len(BOUND) == 1
    del net
    gc.collect()
    assert len(BOUND) == 0
