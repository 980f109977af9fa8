"""What is told of the solutions of differential equations: their steps, and why they fail."""

from __future__ import annotations

import numpy as np
import pytest

from chains import ODE, Chain, Equations, Parallel, Residual, Scale, ode_steps
from chains.expr import cos
from chains.layers.base import Layer
from tests.harness import assert_close

EXPLODES = Equations(lambda x: x * x, ("x",))
NOTHING = np.zeros(0)


class Last(Layer):
    """The last state of a solution."""

    def declare(self, d):
        d.output(d.input[1:])

    def forward(self, ops, x, y, p, s):
        ops.copy(y, x.index(1, x.sample_shape[0] - 1))

    def pullback(self, ops, x, y, dy, dx, p, g, s):
        ops.fill(dx, 0.0)
        ops.copy(dx.index(1, x.sample_shape[0] - 1), dy)


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_the_right_hand_side_sees_the_time(own):
    times = 3000.25 + np.arange(4.0)
    net = Chain(ODE(Equations(lambda x, t: 0.0 * x + cos(t), ("x", "t")), 4 if own else times, rtol=1e-7, time=True),
                backend="numpy")  # fmt: skip
    x = np.ones((1, 1))
    y = net(np.hstack([x, times[None]]) if own else x, NOTHING)
    assert_close(y[0, :, 0], 1.0 + np.sin(times) - np.sin(times[0]), 1e-6)


def test_a_solution_that_ends_shortly_before_a_large_time_is_told():
    net = Chain(ODE(EXPLODES, (1e6, 1e6 + 2.0), rtol=1e-6, max_steps=30), backend="numpy")
    with pytest.raises(FloatingPointError, match=r"trajectory 0 stops at t = 100000\d\.\d+ of 1000002,"):
        net(np.ones((1, 1)), NOTHING)
    assert ode_steps(net, NOTHING, np.ones((1, 1)))[0].times[-1] < 1e6 + 1.1


def test_too_few_steps_are_told_apart_from_stiff_problems():
    mild = Chain(ODE(Equations(lambda x, y: (y, -x), ("x", "y")), (0.0, 50.0), rtol=1e-8, max_steps=20), backend="numpy")
    stiff = Chain(ODE(Equations(lambda x: -1e6 * x, ("x",)), (0.0, 1.0), rtol=1e-3, max_steps=20), backend="numpy")
    (few,), (hard,) = ode_steps(mild, NOTHING, np.ones((1, 2))), ode_steps(stiff, NOTHING, np.ones((1, 1)))
    assert "long. Raise max_steps, or rtol (=1e-08)" in few.problem
    assert "The problem is stiff there" in hard.problem


def test_a_tolerance_below_the_rounding_of_float32_is_told():
    net = Chain(ODE(Equations(lambda x, y: (y, -x), ("x", "y")), (0.0, 50.0), rtol=1e-9, max_steps=20), backend="numpy")
    for dtype, advice in (
        ("float32", "rounds by more than rtol allows: pass parameters of float64, or raise rtol"),
        ("float64", "Raise"),
    ):
        assert advice in ode_steps(net, NOTHING.astype(dtype), np.ones((1, 2), dtype))[0].problem


CONTROL = {"rtol": 1e-5, "max_steps": 12}


@pytest.mark.parametrize(
    "layer", [lambda ode: Chain(Chain(ode)), lambda ode: Residual(Chain(ode, Last())), lambda ode: Parallel(ode, ode)]
)
def test_failures_within_layers_are_told(layer):
    ode = ODE(EXPLODES, (0.0, 2.0), **CONTROL)
    net = Chain(Scale(), layer(ode), backend="numpy", input_shape=(1,))
    p, x = net.init(dtype=np.float64), np.array([[0.1], [1.0]])
    with pytest.raises(FloatingPointError, match=r"trajectory 1 stops at t = 0\.\d+ of 2,"):
        net(x, p)
    good, bad = ode_steps(net, p, x)
    assert not good.problem
    assert bad.problem


def test_each_equation_is_looked_at():
    ode = ODE(EXPLODES, (0.0, 2.0), **CONTROL)
    net = Chain(ODE(Equations(lambda x: 0.0 * x + 1.0, ("x",)), (0.0, 1.0), **CONTROL), Last(), ode, backend="numpy")
    for p in (NOTHING, np.zeros((2, 0))):
        member = "member 0: " if p.ndim == 2 else ""
        with pytest.raises(FloatingPointError, match=f"^{member}layer 2: trajectory 0 stops at t = "):
            net(np.zeros((1, 1)), p)


def test_a_right_hand_side_that_is_not_finite_is_told():
    net = Chain(ODE(Equations(lambda x, k: k / x, ("x",), parameters={"k": 1.0}), (0.0, 2.0), **CONTROL), backend="numpy")
    with pytest.raises(FloatingPointError, match="stops at t = 0 of 2: the right-hand side is not finite there"):
        net(np.zeros((1, 1)), np.zeros(1))
    with pytest.raises(FloatingPointError, match="trajectory 0: the parameters of the right-hand side are not finite"):
        net(np.ones((1, 1)), np.full(1, np.nan))
