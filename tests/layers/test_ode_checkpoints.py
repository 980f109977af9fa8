"""Checkpoints of the steps of differential equations, and attempts of step control that are left out: the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from chains import ODE, Chain, Dense, Equations, Flatten, MSELoss, Reshape, ode_steps, tanh
from chains.backends import lowering
from chains.expr import cos
from chains.layers.ode import METHODS
from chains.layers.ode.grid import Grid
from chains.program.loop import Loop
from tests.harness import BACKENDS, SEED, assert_close, run_program

CONTROLS = [{"rtol": 1e-3}, {"rtol": 1e-3, "adjoint": True}, {"rtol": 1e-3, "method": "kvaerno3"}]
FORCING = ([0.0, 1.0, 2.0], [0.0, 1.0, 0.5])


def drawn(rng, control):
    """Two equal layers, of settings at random, the second one with checkpoints; and samples of theirs."""
    own, steps, count = bool(rng.integers(2)), int(rng.integers(1, 8)), int(rng.integers(2, 7))
    method = "tsit5" if control else str(rng.choice([name for name, tableau in METHODS.items() if len(tableau.halves) == 1]))
    rhs = Equations(
        lambda x, c, t, wind, u, k: k * x * cos(t) + u - c * wind,
        inputs=("x", "c", "t", "wind"), network=Chain(Dense(4, 3, tanh), Dense(3, 1)), outputs=("u",), parameters={"k": 1.0},
    )  # fmt: skip
    times = np.sort(rng.uniform(0.0, 2.5, (9, count)), axis=1)
    how = {"rtol": 1e-3, "max_steps": 23} if control else {"steps": steps}
    layer = lambda **more: ODE(rhs, count if own else times[0], method, given=1, time=True, forcing=FORCING, **how, **more)  # noqa: E731
    batch = int(rng.integers(1, 9))
    x = np.hstack([rng.normal(size=(batch, 2)), times[:batch]] if own else [rng.normal(size=(batch, 2))])
    every = int(rng.integers(1, 25 if control else (count - 1) * steps + 2))
    return layer(checkpoint_every=23 if control else None), layer(checkpoint_every=every), x


@pytest.mark.few(2)
@pytest.mark.parametrize("control", [False, True], ids=["fixed", "control"])
@pytest.mark.parametrize("draw", range(5))
@pytest.mark.parametrize("name", BACKENDS)
def test_solutions_and_gradients_are_those_without_checkpoints(name, draw, control):
    rng = np.random.default_rng([SEED, draw, control])
    plain, layer, x = drawn(rng, control)
    plain = Chain(plain, backend=name if control else "numpy")  # step control goes by the last digits
    net, p = Chain(layer, backend=name), rng.normal(size=plain.n_params)
    y = plain(x, p)
    assert np.isfinite(y).all()
    assert_close(net(x, p), y, 1e-11, repr(layer))
    for found, wanted in zip(net.vjp(p, x, np.ones(y.shape)), plain.vjp(p, x, np.ones(y.shape)), strict=True):
        assert_close(found, wanted, 1e-11, repr(layer))


def test_all_ways_to_cut_steps_have_each_step_once():
    for intervals, steps, every in np.ndindex(5, 7, 30):
        grid = Grid(tuple(np.arange(intervals + 2.0)), steps + 1, None, every + 1)
        begins, lengths = grid.equal()
        assert len(begins) == grid.total
        assert grid.cut.length <= max(every + 1, 1)
        assert_close(begins[lengths > 0.0], np.arange((intervals + 1) * (steps + 1)) / (steps + 1), 1e-13)
        assert grid.total - grid.needed <= grid.cut.spare * max(steps + 1, intervals + 1)


def test_memory_is_that_of_a_segment_and_of_a_state_for_each():
    rate = Chain(Dense(4, 32, tanh), Dense(32, 4))

    def memory(times, steps, every, **how):
        net = Chain(ODE(rate, times, steps=steps, checkpoint_every=every, **how), backend="numpy")
        return net.program(MSELoss()).scratch.bytes_per_sample

    whole = memory((0, 1), 400, None)
    assert memory((0, 1), 400, 20) < 0.08 * whole
    assert memory((0, 1), 4000, 20) - memory((0, 1), 400, 20) == 2 * 180 * 4 * 4  # a state, and its cotangent, for each segment
    assert memory(np.arange(401.0), 1, 20) < 0.15 * whole  # with the states at all times and their cotangents
    control = [memory((0, 1), 1, every, rtol=1e-3, max_steps=400) for every in (None, 20, 400)]
    assert control[0] < control[1] < 0.2 * control[2]


def test_attempts_that_no_sample_needs_are_left_out(monkeypatch):
    """The right-hand side is evaluated for those in use, and the pullback goes through segments with a step alone."""
    skip, done = lowering._unless_zero, []

    def counted(only, calls):
        return skip(only, [lambda: done.append(len(calls)), *calls])

    monkeypatch.setattr(lowering, "_unless_zero", counted)
    rate, x = Dense(2, 2, tanh), np.array([[1.0, 0.5], [0.2, -0.1]])
    found = {}
    for most in (24, 64):
        net = Chain(ODE(rate, (0.0, 1.0, 3.0), rtol=1e-8, max_steps=most), backend="numpy")
        p, taken = net.init(np.random.default_rng(0), np.float64), []
        assert 8 < max(len(way.times) - 1 + way.refused for way in ode_steps(net, p, x)) <= 16
        for call in (lambda: net(x, p), lambda: net.vjp(p, x, np.ones((2, 3, 2)))):  # noqa: B023
            call()
            done.clear()
            taken.append((call(), len(done)))
        found[most] = taken
    for few, many in zip(found[24], found[64], strict=True):
        assert few[1] == many[1] < 40
        for a, b in zip(few[0], many[0], strict=True):
            assert np.array_equal(a, b)


def test_segments_that_are_left_out_add_nothing_to_gradients():
    """Weights of rows: what the layer saves is copied stage by stage, so their gradients are summed up in each segment."""
    rate = Chain(Reshape(2, 1), Dense(1, 3, tanh), Flatten(), Dense(6, 2))
    rng = np.random.default_rng(0)
    given, found = {"x": rng.normal(size=(3, 2)), "t": rng.normal(size=(3, 2, 2)), "p": rng.normal(size=20)}, []
    for every in (40, 8):  # with one segment none is left out
        net = Chain(ODE(rate, (0.0, 0.1), rtol=1e-2, max_steps=40, checkpoint_every=every), input_shape=(2,), backend="numpy")
        found.append(run_program(net.program(MSELoss(), dtype=np.float64), "numpy", 3, given, 0xFF)["g"])
    assert_close(found[1], found[0], 1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize("how", [{"checkpoint_every": 2}, {"rtol": 1e-2, "max_steps": 20}, {"adjoint": True}], ids=str)
def test_right_hand_sides_of_rows_are_compiled(how):
    pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")
    rate, rng = Chain(Reshape(2, 1), Dense(1, 3, tanh), Flatten(), Dense(6, 2)), np.random.default_rng(0)
    settings = {"method": "rk4", "steps": 3} | how if "rtol" not in how else how
    nets = [Chain(ODE(rate, (0.0, 0.1), **settings), input_shape=(2,), backend=name) for name in ("native", "numpy")]
    p, x, dy = rng.normal(size=nets[0].n_params), rng.normal(size=(3, 2)), rng.normal(size=(3, 2, 2))
    for found, wanted in zip(*(net.vjp(p, x, dy) for net in nets), strict=True):
        assert_close(found, wanted, 1e-9)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BACKENDS)
def test_a_solution_that_fails_is_told_beside_ones_that_do_not(name):
    net = Chain(ODE(Equations(lambda x: x * x, ("x",)), (0.0, 2.0), rtol=1e-5, max_steps=21, checkpoint_every=4), backend=name)
    x, nothing = np.array([[0.1], [1.0], [0.2]]), np.zeros(0)
    with pytest.raises(FloatingPointError, match=r"trajectory 1 stops at t = 0\.9\d+ of 2, after 21 tried steps"):
        net(x, nothing)
    with pytest.raises(FloatingPointError, match=r"trajectory 0 stops at t = 0\.9\d+ of 2"):
        net.bound(nothing)(x[1])
    assert np.isnan(net.loss(nothing, x, np.ones((3, 2, 1)), MSELoss()))
    dx = net.vjp(nothing, x, np.ones((3, 2, 1)))[1]
    assert_close(dx[[0, 2], 0], 1.0 + 1.0 / (1.0 - 2.0 * x[[0, 2], 0]) ** 2, 1e-3)


@pytest.mark.few(2)
@pytest.mark.parametrize("how", CONTROLS, ids=str)
@pytest.mark.parametrize("name", BACKENDS)
def test_gradients_of_solutions_that_fail_are_nan_whatever_is_beside_them(name, how):
    rng = np.random.default_rng(0)
    rate = Equations(lambda x, u: x * x + u, ("x",), network=Dense(1, 1, tanh), outputs=("u",))
    net = Chain(ODE(rate, (0.0, 0.5, 1.0), max_steps=24, checkpoint_every=4, **how), backend=name)
    p, x, dy = np.zeros(2), rng.uniform(-0.5, 0.3, (17, 1)), rng.normal(size=(17, 3, 1))
    sound = net.vjp(p, x, dy)
    assert all(np.isfinite(each).all() for each in sound)
    for start in (np.nan, 1.5):  # the second one goes to infinity before the last time
        for failed in ([3], [3, 16], list(range(17))):
            others, some = np.setdiff1d(np.arange(17), failed), x.copy()
            some[failed] = start
            dp, dx = net.vjp(p, some, dy)
            assert np.isnan(dp).all()
            assert np.isnan(dx[failed]).all()
            assert_close(dx[others], sound[1][others], 1e-12)


def test_the_loops_of_step_control_may_end_early():
    program = Chain(ODE(Dense(2, 2), (0, 1), rtol=1e-3)).program(MSELoss())
    loops = [each for each in program.operations if isinstance(each, Loop)]
    assert [loop.skip_where_zero is not None for loop in loops] == [True, True]
