"""What is told of the solutions of differential equations: their steps, and why they fail."""

from __future__ import annotations

import numpy as np
import pytest

from chains import ODE, Chain, Equations, ode_steps
from chains.expr import cos
from tests.harness import assert_close

EXPLODES = Equations(lambda x: x * x, ("x",))
NOTHING = np.zeros(0)


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
