"""Jacobians by tangents of all parameters, against pullbacks, and the choice between both."""

import numpy as np
import pytest

import chains
from chains import ODE, Chain, Dense, Equations, HuberLoss, SquaredLoss, tanh
from chains.layers import SteadyState
from chains.network.network import network_of
from chains.objectives.fits import fitter_of
from tests.harness import LAYERS, OWN_LAYERS

TIMES = np.linspace(0.0, 3.0, 13)
WITHOUT = (
    "SteadyState",
    "ODE-adjoint",
    "MaxPool",
)  # no tangents of a solution, of the continuous adjoint, of windows that overlap
METHODS = {
    "rk4": {"method": "rk4", "steps": 2},
    "tsit5-control": {"rtol": 1e-4, "max_steps": 12},
    "tsit5-checkpoints": {"checkpoint_every": 5},
    "kvaerno3": {"method": "kvaerno3", "steps": 2},
    "kvaerno5-control": {"method": "kvaerno5", "rtol": 1e-3, "max_steps": 6},
    "leapfrog": {"method": "leapfrog", "steps": 2},
}


def oscillator(backend="numpy", hidden=3, times=TIMES, **settings):
    """A damped oscillator whose friction is a network."""
    friction = Chain(Dense(1, hidden, tanh), Dense(hidden, 1))
    rhs = Equations(lambda h, v, f: (v, -h - f), inputs=("h", "v"), networks={"f": (friction, ("v",))})
    return Chain(ODE(rhs, times, **(settings or METHODS["rk4"])), input_shape=(2,), backend=backend)


def data_of(net, samples=2):
    rng = np.random.default_rng(0)
    return net.init(seed=0, dtype=np.float64), rng.normal(size=(samples, *net.input_shape))


def close(found, wanted, tolerance=1e-12):
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=tolerance * max(1.0, abs(wanted).max(initial=0.0)))


@pytest.mark.parametrize("case", [*LAYERS, *OWN_LAYERS], ids=lambda case: case.name)
def test_tangents_are_those_of_the_pullback(case):
    net, data = case.net(), case.problem(2)
    p, rng = np.asarray(data.p, np.float64), np.random.default_rng(1)
    more = {"state": net.init_state(dtype=np.float64)} if network_of(net).n_state else {}
    try:
        found = net.jacobian(p, data.x, direction="forward", **more)
    except NotImplementedError:
        assert any(name in case.name for name in WITHOUT), case.name
        return
    dy = rng.normal(size=(len(data.x), *net.output_shape))
    wanted = net.vjp(p, data.x, dy, mode="eval", **more)[0]
    close(np.tensordot(dy, found, dy.ndim), wanted)


@pytest.mark.parametrize("settings", METHODS.values(), ids=METHODS)
def test_both_directions_agree_for_each_method(settings):
    net = oscillator(times=(0.0, 1.2), **settings)
    p, x = data_of(net)
    close(net.jacobian(p, x, direction="forward"), net.jacobian(p, x, direction="reverse"))


@pytest.mark.parametrize("name", ["rk4", "tsit5-control", "kvaerno3"])
def test_machine_code_computes_the_same(name):
    pytest.importorskip("llvmlite")
    nets = [oscillator(backend, times=(0.0, 1.2), **METHODS[name]) for backend in ("native", "numpy")]
    p, x = data_of(nets[0], 3)
    close(*(net.jacobian(p, x, direction="forward") for net in nets))


def test_lengths_and_float32():
    net = oscillator()
    p, x = data_of(net)
    lengths = np.array([4, 13])
    found = net.jacobian(p, x, lengths=lengths, direction="forward")
    assert not found[0, 4:].any()
    close(found, net.jacobian(p, x, lengths=lengths, direction="reverse"))
    single = net.jacobian(p.astype(np.float32), x.astype(np.float32))
    assert single.dtype == np.float32
    close(single, net.jacobian(p, x), 1e-5)


def test_a_solution_that_fails_has_nan_in_both_directions():
    net = oscillator(rtol=1e-6, max_steps=3, times=(0.0, 1.0))
    p, x = data_of(net)
    x[0] *= 1e-9  # which three steps solve
    for direction in ("forward", "reverse"):
        found = net.jacobian(p, x, direction=direction)
        assert not np.isnan(found[0]).any()
        assert np.isnan(found[1]).all()


def direction_of(net):
    return net.objective(*problem_of(net), SquaredLoss()).jacobian_direction


def problem_of(net, samples=2):
    _, x = data_of(net, samples)
    return x, np.random.default_rng(2).normal(size=(samples, *net.output_shape))


@pytest.mark.parametrize(
    ("net", "direction"),
    [
        (oscillator(times=(0.0, 1.0)), "forward"),  # 10 parameters, 4 outputs: a loop
        (oscillator(times=(0.0, 1.0), hidden=7), "reverse"),  # 22 parameters
        (Chain(Dense(1, 30, bias=False)), "forward"),  # as many outputs as parameters
        (Chain(Dense(2, 30, bias=False)), "reverse"),  # no loop
        (Chain(Dense(2, 3), Dense(3, 30, bias=False)).with_frozen("1.weight"), "forward"),
        (Chain(SteadyState(Equations(lambda y, x, a: a * x - y, inputs=("y", "x"), parameters={"a": 4.0}), 1)), "reverse"),
    ],
)  # fmt: skip
def test_the_choice_is_by_cost(net, direction):
    assert direction_of(net) == direction
    assert f"{direction} Jacobian" in repr(net.objective(*problem_of(net), SquaredLoss()))
    assert "Jacobian" not in repr(net.objective(*problem_of(net), HuberLoss()))  # which has no residuals


def test_a_direction_that_does_not_exist():
    net = oscillator(adjoint=True)
    p, x = data_of(net)
    with pytest.raises(ValueError, match="`direction` \\(='back'\\) must be"):
        net.jacobian(p, x, direction="back")
    with pytest.raises(NotImplementedError, match=r"ODE.*no tangents"):
        net.jacobian(p, x, direction="forward")
    assert direction_of(net) == "reverse"


def test_the_gauss_newton_product_has_the_same_jacobian():
    net = oscillator(rtol=1e-4, max_steps=12, times=(0.0, 1.0))
    p, x = data_of(net)
    t, v = np.zeros((len(x), *net.output_shape)), np.linspace(-1.0, 1.0, len(p))
    j = net.jacobian(p, x, direction="forward").reshape(-1, len(p))
    close(net.gauss_newton(p, x, t, SquaredLoss(), v), j.T @ (j @ v) / len(x))


def test_normal_equations_in_machine_code_have_many_residuals_of_a_sample():
    pytest.importorskip("llvmlite")
    net = oscillator("native", steps=1, method="rk4")
    x, t = problem_of(net)
    objective = net.objective(x, t, SquaredLoss())
    second = objective.second_order
    assert second.per_sample == 26
    assert fitter_of(second, objective._data, ()) is not None
    plain = oscillator("numpy", steps=1, method="rk4").objective(x, t, SquaredLoss())
    p = net.init(seed=0, dtype=np.float64)
    for found, wanted in zip(objective.normal_equations(p), plain.normal_equations(p), strict=True):
        close(np.asarray(found), np.asarray(wanted))
    found = [chains.minimize(each, p, "LM", maxiter=5) for each in (objective, plain)]
    close(found[0].x, found[1].x, 1e-6)
