"""Solutions and gradients of `ODE` against diffrax's, which differentiates the same steps."""

from __future__ import annotations

import numpy as np
import pytest

from chains import ODE, Chain, Dense, Equations, MSELoss, ode_steps, tanh
from chains.expr import cos
from tests.harness import BACKENDS, assert_close

pytest.importorskip("diffrax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("optimistix")


def test_gradients_through_210_steps_are_those_of_diffrax():
    from benchmarks.peers import diffrax_ude as ude_diffrax
    from benchmarks.problems import ude

    problem = ude.Problem(ude.cycles())
    p = problem.start(0) + 0.05
    wanted = ude_diffrax.gradients(problem, problem.net("numpy").views(p))["recursive checkpoints"]()
    for name in BACKENDS:
        _, g = problem.net(name).value_and_grad(p, problem.x, problem.t, MSELoss())
        assert_close(g, np.asarray(wanted), 1e-10)


@pytest.mark.parametrize("name", BACKENDS)
def test_gradients_through_controlled_steps_are_those_of_diffrax(name):
    """diffrax goes through the recorded steps, and differentiates them."""
    import diffrax
    import jax
    import jax.numpy as jnp

    rate, times = Dense(2, 2, tanh), (0.0, 0.5, 2.0)
    net = Chain(ODE(rate, times, rtol=1e-6, max_steps=30), backend=name)
    p, x, dy = net.init(seed=4, dtype=np.float64) * 2.0, np.array([[1.0, -0.5]]), np.arange(6.0).reshape(1, 3, 2)
    (way,) = ode_steps(net, p, x)

    with jax.enable_x64(True):

        def solved(parts, start):
            solution = diffrax.diffeqsolve(
                diffrax.ODETerm(lambda t, y, parts: jnp.tanh(y @ parts["weight"] + parts["bias"])), diffrax.Tsit5(),
                times[0], times[-1], None, start, parts, saveat=diffrax.SaveAt(ts=jnp.array(times)),
                stepsize_controller=diffrax.StepTo(jnp.array(way.times)), adjoint=diffrax.DirectAdjoint(),
            )  # fmt: skip
            return solution.ys

        parts = {key.split(".")[-1]: jnp.array(view) for key, view in net.views(p).items()}
        ys, pull = jax.vjp(solved, parts, jnp.array(x[0]))
        d_parts, d_start = pull(jnp.array(dy[0]))
    dp, dx = net.vjp(p, x, dy)
    assert_close(net(x, p)[0], np.asarray(ys), 1e-10)
    assert_close(dx[0], np.asarray(d_start), 1e-10)
    for key, view in net.views(dp).items():
        assert_close(view, np.asarray(d_parts[key.split(".")[-1]]), 1e-10)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BACKENDS)
def test_the_continuous_adjoint_is_that_of_diffrax(name):
    """Its BacksolveAdjoint goes back through the same steps, from the state at each of the times."""
    from benchmarks.peers import diffrax_ude as ude_diffrax
    from benchmarks.problems import ude

    problem = ude.Problem(3.0 * ude.cycles()[:6])
    net, p = problem.net(name, steps=ude.STEPS, adjoint=True), problem.start(0) + 0.4
    g = net.value_and_grad(p, problem.x, problem.t, MSELoss())[1]
    exact = problem.net(name).value_and_grad(p, problem.x, problem.t, MSELoss())[1]
    wanted = np.asarray(ude_diffrax.gradients(problem, net.views(p))["backsolve"]())
    assert_close(g, wanted, 1e-10)
    assert abs(g - exact).max() > 1e3 * abs(g - wanted).max()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("method", ["kvaerno3", "kvaerno5"])
def test_implicit_steps_are_those_of_diffrax(name, method):
    """Through the recorded steps of a stiff problem, where Newton's method goes on until nothing changes."""
    import diffrax
    import jax
    import jax.numpy as jnp
    import optimistix

    stiff = Equations(lambda a, b, k: (-k * (a - cos(b)), a - b * b), ("a", "b"), parameters={"k": 200.0})
    times = (0.0, 0.25, 1.0)
    net = Chain(ODE(stiff, times, method, rtol=1e-3, max_steps=40), backend=name)
    p, x, dy = net.init(dtype=np.float64), np.array([[1.0, -0.5]]), np.arange(6.0).reshape(1, 3, 2) - 2.0
    (way,) = ode_steps(net, p, x)

    with jax.enable_x64(True):
        newton = optimistix.Newton(rtol=1e-11, atol=1e-11, norm=optimistix.max_norm)
        kind = {"kvaerno3": diffrax.Kvaerno3, "kvaerno5": diffrax.Kvaerno5}[method]
        solver = kind(root_finder=newton, root_find_max_steps=200)

        def solved(k, start):
            rhs = lambda t, y, k: jnp.stack([-k * (y[0] - jnp.cos(y[1])), y[0] - y[1] ** 2])  # noqa: E731
            return diffrax.diffeqsolve(
                diffrax.ODETerm(rhs), solver, times[0], times[-1], None, start, k, saveat=diffrax.SaveAt(ts=jnp.array(times)),
                stepsize_controller=diffrax.StepTo(jnp.array(way.times)), adjoint=diffrax.DirectAdjoint(),
            ).ys  # fmt: skip

        ys, pull = jax.vjp(solved, jnp.array(p[0]), jnp.array(x[0]))
        d_k, d_start = pull(jnp.array(dy[0]))
    dp, dx = net.vjp(p, x, dy)
    assert_close(net(x, p)[0], np.asarray(ys), 1e-10)
    assert_close(dp[0], np.asarray(d_k), 1e-10)
    assert_close(dx[0], np.asarray(d_start), 1e-10)
