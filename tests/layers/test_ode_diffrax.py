"""Solutions and gradients of `ODE` against diffrax's, which differentiates the same steps."""

from __future__ import annotations

import numpy as np
import pytest

from chains import MSELoss
from tests.harness import BACKENDS, assert_close

pytest.importorskip("diffrax")
pytest.importorskip("equinox")
pytest.importorskip("optax")


@pytest.mark.parametrize("name", BACKENDS)
def test_gradients_through_210_steps_are_those_of_diffrax(name):
    from benchmarks import ude, ude_diffrax

    problem = ude.Problem(ude.cycles())
    net, p = problem.net(name), problem.start(0) + 0.05
    _, g = net.value_and_grad(p, problem.x, problem.t, MSELoss())
    for call in ude_diffrax.gradients(problem, net.views(p)).values():
        assert_close(g, np.asarray(call()), 1e-10)
