"""Whoever swaps `x` and `p` is told so, in every call that takes both."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import chains
from chains import GRU, HMC, ODE, SGD, Chain, Dense, MSELoss
from chains.callbacks import find_learning_rate

NET = Chain(Dense(3, 2), backend="numpy")
P, X, T, DY = NET.init(0), np.ones((5, 3), np.float32), np.ones((5, 2), np.float32), np.ones((5, 2), np.float32)
MANY = NET.init_many(4)
LOSS = MSELoss()
STEPS = Chain(GRU(2, 3), input_shape=(4, 2), backend="numpy")
SOLUTION = Chain(ODE(Dense(2, 2), [0.0, 1.0]), backend="numpy")


def queued(call):
    with chains.Queue() as queue:
        return call(queue)


SWAPPED = {
    "__call__": lambda: NET(P, X),
    "__call__ of members": lambda: NET(MANY, X),
    "value_and_grad": lambda: NET.value_and_grad(X, P, T, LOSS),
    "value_and_grad of members": lambda: NET.value_and_grad(X, MANY, T, LOSS),
    "value_and_grad of one sample": lambda: NET.value_and_grad(X[0], P, T[0], LOSS),
    "loss": lambda: NET.loss(X, P, T, LOSS),
    "vjp": lambda: NET.vjp(X, P, DY),
    "step": lambda: STEPS.step(STEPS.init(), np.ones((5, 2), np.float32)),
    "derivatives": lambda: NET.derivatives(X, P),
    "laplacian": lambda: NET.laplacian(X, P),
    "input_jacobian": lambda: NET.input_jacobian(X, P),
    "jacobian": lambda: NET.jacobian(X, P),
    "hvp": lambda: NET.hvp(X, P, T, LOSS, P),
    "gauss_newton": lambda: NET.gauss_newton(X, P, T, LOSS, P),
    "sample_gradients": lambda: NET.sample_gradients(X, P, T, LOSS),
    "ode_steps": lambda: chains.ode_steps(SOLUTION, np.ones((5, 2)), SOLUTION.init()),
    "train": lambda: chains.train(NET, X, P, T, LOSS, SGD(0.1)),
    "train of members": lambda: chains.train(NET, X, MANY, T, LOSS, SGD(0.1)),
    "sample": lambda: chains.sample(NET, X, P, T, LOSS, HMC(), draws=2),
    "Queue": lambda: queued(lambda q: q.value_and_grad(NET, X, P, T, LOSS)),
    "Queue.__call__": lambda: queued(lambda q: q(NET, P, X)),
    "find_learning_rate": lambda: find_learning_rate(NET, X, P, T, LOSS, SGD(0.1)),
}


@pytest.mark.parametrize("call", SWAPPED)
def test_swapped_arguments_are_named(call):
    with pytest.raises(TypeError, match="`x` and `p` are swapped"):
        SWAPPED[call]()


def test_no_call_is_left_out():
    names = {name for name in vars(Chain) if not name.startswith("_")} | {"__call__"}
    methods = {name: getattr(Chain, name) for name in names if inspect.isfunction(getattr(Chain, name))}
    functions = {name: thing for name in dir(chains) if inspect.isfunction(thing := getattr(chains, name))}
    calls = {name for name, call in (methods | functions).items() if {"x", "p"} <= set(inspect.signature(call).parameters)}
    assert calls <= set(SWAPPED)


@pytest.mark.parametrize("backend", ["numpy", "auto"])
def test_what_may_be_meant_is_not_called_swapped(backend):
    """Inputs of as many numbers as there are parameters."""
    net = Chain(Dense(2, 1, bias=False), backend=backend)
    with pytest.raises(ValueError, match="`p` must have shape"):
        net.value_and_grad(np.ones(3, np.float32), np.ones((4, 2), np.float32), np.ones((4, 1)), LOSS)


@pytest.mark.parametrize(
    "call", ["vjp", "derivatives", "laplacian", "input_jacobian", "jacobian", "hvp", "gauss_newton", "sample_gradients"]
)
def test_an_ensemble_where_one_network_is_wanted_is_told_to_pass_a_row(call):
    given = {"vjp": (DY,), "hvp": (T, LOSS, P), "gauss_newton": (T, LOSS, P), "sample_gradients": (T, LOSS)}
    with pytest.raises(ValueError, match=r"got \(4, 8\); of an ensemble, pass one row, P\[k\]"):
        getattr(NET, call)(MANY, X, *given.get(call, ()))
