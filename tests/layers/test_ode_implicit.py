"""Implicit methods: their numbers, stiff problems, gradients through their steps, and what is told where they fail."""

from __future__ import annotations

import numpy as np
import pytest

from chains import ODE, Chain, Dense, Equations, Flatten, MSELoss, Reshape, ode_steps, tanh
from chains.expr import cos
from chains.layers.ode import METHODS
from chains.layers.ode.implicit import record_inverse
from chains.program.recorder import Recorder
from tests.harness import BACKENDS, assert_close, central_difference, run_program

IMPLICIT = [name for name, tableau in METHODS.items() if tableau.gamma]
REACTION = Equations(
    lambda a, b, c, k1, k2, k3: (-k1 * a + k3 * b * c, k1 * a - k3 * b * c - k2 * b * b, k2 * b * b), ("a", "b", "c"),
    parameters={"k1": 0.04, "k2": 3e7, "k3": 1e4},
)  # fmt: skip
RELAXATION = Equations(lambda x, v: (v, 1000.0 * (1.0 - x * x) * v - x), ("x", "v"))  # van der Pol's


def conditions(a, b, c, order):
    """How far b is from the conditions of an order, one for each rooted tree, Hairer, Nørsett and Wanner, II.2."""
    yield from (b @ c**k - 1 / (k + 1) for k in range(order))
    if order > 2:
        yield b @ a @ c - 1 / 6
    if order > 3:
        yield from ((b * c) @ a @ c - 1 / 8, b @ a @ c**2 - 1 / 12, b @ a @ a @ c - 1 / 24)
    if order > 4:
        ac = a @ c
        yield from ((b * c**2) @ ac - 1 / 10, b @ ac**2 - 1 / 20, (b * c) @ a @ c**2 - 1 / 15, b @ a @ c**3 - 1 / 20)
        yield from ((b * c) @ a @ ac - 1 / 30, b @ a @ (c * ac) - 1 / 40, b @ a @ a @ c**2 - 1 / 60, b @ a @ a @ ac - 1 / 120)


@pytest.mark.parametrize("method", IMPLICIT)
def test_numbers_of_the_methods(method):
    """Order of the method and of the estimate, stages, stiff accuracy, and stability: at infinity and on the imaginary axis."""
    tableau = METHODS[method]
    (((rows, b),), c) = tableau.halves, np.array(tableau.c)
    a = np.array([[*row, *[0.0] * (len(c) - len(row))] for row in rows]) + np.diag([0.0] + [tableau.gamma] * (len(c) - 1))
    assert_close(a.sum(1), c, 1e-15)
    assert_close(a[-1], np.array(b), 0.0)
    assert max(map(abs, conditions(a, np.array(b), c, tableau.order))) < 1e-14
    other = np.array(b) - tableau.error
    assert_close(other, a[-2], 1e-16)
    assert max(map(abs, conditions(a, other, c, tableau.order - 1))) < 1e-14
    for numbers, infinite in ((np.array(b), 0.0), (other, None)):
        growth = [1 + z * numbers @ np.linalg.solve(np.eye(len(c)) - z * a, np.ones(len(c)))
                  for z in [*1j * np.geomspace(1e-3, 1e5, 200), -1e9]]  # fmt: skip
        assert np.abs(growth).max() < 1 + 1e-12
        if infinite is not None:
            assert abs(growth[-1]) < 1e-6


@pytest.mark.parametrize("name", BACKENDS)
def test_inverses_are_those_of_lapack(name):
    """Also where rows must be exchanged, and where entries differ by many orders; that of a singular one is not finite."""
    rng = np.random.default_rng(1)
    for n in (1, 4):
        matrices = rng.normal(size=(6, n, n)) * 10.0 ** rng.integers(-3, 4, (6, n, 1))
        matrices[1] = np.eye(n)[::-1]
        matrices[2] = 0.0
        ops = Recorder("inverse", np.float64)
        x, y = ops.external("x", (n, n), role="input", batched=True), ops.external("y", (n, n), role="output", batched=True)
        record_inverse(ops, y, x)
        found = run_program(ops.finish(), name, 6, {"x": matrices})["y"]
        good = [0, 1, 3, 4, 5]
        assert_close(found[good] @ matrices[good], np.broadcast_to(np.eye(n), (5, n, n)), 1e-9)
        assert not np.isfinite(found[2]).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    ("rhs", "start", "times", "how", "tolerance"),
    [
        (REACTION, [1.0, 0.0, 0.0], [0.0, 0.4, 40.0, 4e3], {"rtol": 1e-6, "atol": [1e-9, 1e-12, 1e-9], "max_steps": 100}, 1e-6),
        (RELAXATION, [2.0, 0.0], [0.0, 500.0, 1000.0], {"rtol": 1e-5, "max_steps": 256}, 1e-4),
    ],
    ids=["reaction", "relaxation"],
)
def test_stiff_problems(name, rhs, start, times, how, tolerance):
    """Robertson's and van der Pol's, against Radau; Tsit5 tells that they are stiff."""
    solve_ivp = pytest.importorskip("scipy.integrate").solve_ivp
    net = Chain(ODE(rhs, times, "kvaerno5", **how), backend=name)
    p = net.init(dtype=np.float64)
    one = Chain(rhs, backend="numpy").bound(p)
    exact = solve_ivp(lambda t, y: one(y), (times[0], times[-1]), start, "Radau", times, rtol=1e-10, atol=1e-13).y.T
    found = net(np.array([start]), p)[0]
    assert (abs(found - exact) < tolerance * abs(exact).max(0)).all()
    explicit = Chain(ODE(rhs, times, **how), backend=name)
    with pytest.raises(FloatingPointError, match=r"The problem is stiff there, which method='kvaerno5' is for"):
        explicit(np.array([start]), p)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BACKENDS)
def test_gradients_are_those_of_the_recorded_steps(name):
    """A gradient is that of fixed steps of the same lengths, which central differences confirm."""
    stiff = Equations(
        lambda a, b, c, t, u, k: (-k * (a - cos(t)) + 0.1 * b, u - c * a * b), inputs=("a", "b", "c", "t"),
        network=Dense(4, 1, tanh), outputs=("u",), parameters={"k": 300.0},
    )  # fmt: skip
    times, rest = (0.0, 0.5, 2.0), {"given": 1, "time": True}
    net = Chain(ODE(stiff, times, "kvaerno5", rtol=1e-3, max_steps=24, **rest), backend=name)
    rng = np.random.default_rng(2)
    p, x, dy = net.init(seed=1, dtype=np.float64), rng.normal(size=(2, 3)), rng.normal(size=(2, 3, 2))
    ways = ode_steps(net, p, x)
    count = max(len(way.times) for way in ways)
    assert len({len(way.times) for way in ways}) > 1 or len({way.times[1] for way in ways}) > 1
    steps = np.stack([np.append(way.times, np.full(count - len(way.times), times[-1])) for way in ways])
    places = [[int(np.argmax(own == time)) for time in times] for own in steps]
    fixed = Chain(ODE(stiff, count, "kvaerno5", **rest), backend="numpy")
    inputs, cotangent = np.concatenate([x, steps], 1), np.zeros((2, count, 2))
    for sample, at in enumerate(places):
        cotangent[sample, at] = dy[sample]

    def value(p, x=x):
        return np.sum(cotangent * fixed(np.concatenate([x, steps], 1), p))

    assert_close(net(x, p), np.stack([own[at] for own, at in zip(fixed(inputs, p), places, strict=True)]), 1e-9)
    dp, dx = net.vjp(p, x, dy)
    assert_close(dp, central_difference(value, p), 1e-7)
    assert_close(dx, central_difference(lambda x: value(p, x), x), 1e-7)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BACKENDS)
def test_steps_whose_iterations_do_not_converge_are_told(name):
    net = Chain(ODE(RELAXATION, (0.0, 900.0), "kvaerno3", 2), backend=name)
    with pytest.raises(FloatingPointError, match=r"trajectory 0 is not finite after step \d of 2, .* Newton's"):
        net(np.array([[2.0, 5.0]]), np.zeros(0))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BACKENDS)
def test_gradients_of_rows_are_those_without_checkpoints(name):
    """Weights of rows have gradients in each segment, which are added up."""
    rate = Chain(Reshape(2, 1), Dense(1, 3, tanh), Flatten(), Dense(6, 2))
    rng = np.random.default_rng(0)
    p, x, dy = rng.normal(size=20), rng.normal(size=(3, 2)), rng.normal(size=(3, 2, 2))
    for how in ({"steps": 3}, {"rtol": 1e-4, "max_steps": 12}):
        plain, net = (
            Chain(ODE(rate, (0.0, 0.2), "kvaerno3", checkpoint_every=k, **how), input_shape=(2,), backend=backend)
            for k, backend in ((12, "numpy"), (1 if "steps" in how else 4, name))
        )
        assert_close(net.vjp(p, x, dy)[0], plain.vjp(p, x, dy)[0], 1e-7)


def test_second_derivatives_in_machine_code_are_those_of_numpy():
    """The series of a linear system has more results than its solution."""
    pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")
    x, target = np.random.default_rng(0).normal(size=(9, 2)), np.zeros((9, 2, 2))
    found = []
    for name in ("numpy", "native"):
        net = Chain(ODE(Chain(Dense(2, 3, tanh), Dense(3, 2)), (0.0, 1.0), "kvaerno3"), backend=name)
        p = net.init(seed=0, dtype=np.float64)
        found.append(net.hvp(p, x, target, MSELoss(), np.ones_like(p)))
    assert_close(found[1], found[0], 1e-12)
