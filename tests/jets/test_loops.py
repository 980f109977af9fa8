"""Derivatives beyond the gradient of networks with loops, which stay loops."""

from __future__ import annotations

import numpy as np
import pytest

from chains import GRU, LSTM, ODE, Chain, Dense, Flatten, MSELoss, tanh
from chains.jets.jet import Jet
from chains.jets.series import ZERO
from chains.network import record
from chains.network.network import network_of
from chains.network.record_derivatives import (
    derivatives,
    gauss_newton_product,
    hessian_product,
    jacobian,
    laplacian,
    sample_gradients,
)
from chains.program.loop import all_operations
from chains.program.recorder import Recorder
from tests.harness import assert_close, central_difference

NETWORKS = {
    "GRU": (GRU(2, 3), Dense(3, 1)),
    "LSTM": (LSTM(2, 2, return_sequences=True, bidirectional=True), GRU(4, 2, reset_after=False), Dense(2, 1)),
    "ODE": (Flatten(), Dense(6, 2), ODE(Dense(2, 2, tanh), (0.0, 0.5, 0.75), "midpoint", 2), Flatten(), Dense(6, 1)),
    "segments": (
        Flatten(),
        Dense(6, 2),
        ODE(Dense(2, 2, tanh), (0.0, 1.0), "midpoint", 5, checkpoint_every=2),
        Flatten(),
        Dense(4, 1),
    ),
}


@pytest.fixture(params=NETWORKS)
def net(request):
    return Chain(*NETWORKS[request.param], input_shape=(3, 2), backend="numpy")


@pytest.fixture
def problem(net):
    rng = np.random.default_rng(0)
    return rng.normal(0.0, 0.7, net.n_params), rng.normal(size=(2, 3, 2)), rng.normal(size=(2, 1))


def test_hessian_product(net, problem):
    p, x, t = problem
    v = np.random.default_rng(1).normal(size=net.n_params)

    def slope(at):
        return float(net.value_and_grad(at, x, t, MSELoss())[1] @ v)

    assert_close(net.hvp(p, x, t, MSELoss(), v), central_difference(slope, p), 1e-7)


def test_derivatives_by_the_inputs_and_the_parameters(net, problem):
    p, x, _ = problem
    first = net.derivatives(p, x, 1)[1]
    jacobian = net.jacobian(p, x)
    for sample in range(2):
        dy = np.zeros((2, 1))
        dy[sample] = 1.0
        dp, dx = net.vjp(p, x, dy)
        assert_close(jacobian[sample, 0], dp, 1e-12)
        assert_close(first[sample, 0], dx[sample], 1e-12)


def test_gradients_of_single_samples(net, problem):
    p, x, t = problem
    found = net.sample_gradients(p, x, t, MSELoss())
    for sample in range(2):
        one = slice(sample, sample + 1)
        assert_close(found[sample], net.value_and_grad(p, x[one], t[one], MSELoss())[1], 1e-13)


CONTROL = {"rtol": 1e-2, "max_steps": 12}
HOW = [
    {"steps": 3},
    {"steps": 3, "checkpoint_every": 2},
    CONTROL,
    {"method": "kvaerno3"} | CONTROL,
    {"steps": 2, "adjoint": True},
]


@pytest.mark.few(2)
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_jacobians_of_differential_equations(how, own, backend_name):
    net = Chain(ODE(Chain(Dense(2, 3, tanh), Dense(3, 2)), 3 if own else (0.0, 0.4, 1.0), **how), backend=backend_name)
    rng, p = np.random.default_rng(0), net.init(seed=0, dtype=np.float64)
    x = rng.normal(size=(3, 2))
    x = np.hstack([x, np.cumsum(rng.uniform(0.1, 0.4, (3, 3)), axis=1)]) if own else x
    found = net.jacobian(p, x).reshape(3, 6, -1)
    for sample in range(3):
        for k, dy in enumerate(np.eye(6)):
            assert_close(found[sample, k], net.vjp(p, x[sample : sample + 1], dy.reshape(1, 3, 2))[0], 1e-12)


def test_programs_do_not_grow_with_the_steps():
    def sizes(steps):
        network = network_of(Chain(GRU(2, 3), Dense(3, 1), input_shape=(steps, 2)))
        criterion = record.Criterion(MSELoss(), (1,))
        programs = [
            jacobian(network, 1, np.float64),
            derivatives(network, 2, 2, np.float64),
            laplacian(network, 2, np.float64),
            *(make(network, criterion, np.float64) for make in (sample_gradients, hessian_product, gauss_newton_product)),
        ]
        return [len(list(all_operations(program.operations))) for program in programs]

    assert sizes(4) == sizes(40)


@pytest.mark.parametrize("before", [0.0, 1.0])
def test_cotangents_in_some_steps_of_a_loop_are_refused(before):
    ops = Recorder("series", np.float64)
    x, dy, dx = (ops.external(name, (2,), role="input", batched=True) for name in ("x", "dy", "dx"))
    carried, out = ops.scratch("carried", (2,)), ops.external("out", (2,), role="output", batched=True)
    ops.fill(carried, before)
    with ops.loop(3):
        ops.map(out, lambda a, b: a * b, carried, x)
        ops.copy(carried, dy)
    jet, recorded = Jet(ops, (1,)), ops.pop_operations()
    jet.perturb(x, (0, 1), dx)
    jet.adjoint(dy, [ZERO])
    if before:
        with pytest.raises(NotImplementedError, match="`carried` is a cotangent in some steps of a loop only"):
            jet.record(recorded)
    else:  # a zero may be either
        jet.record(recorded)
        assert jet.coefficient(out, ZERO) is not None
