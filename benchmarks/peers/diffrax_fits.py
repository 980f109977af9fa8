"""Whole fits through diffrax: Levenberg-Marquardt or BFGS of optimistix, and Adam of optax in one loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import optax
import optimistix

from benchmarks.peers.diffrax_sensitivities import RK4

jax.config.update("jax_enable_x64", True)


class Marquardt(optimistix.LevenbergMarquardt):
    """Ends where half the sum of squares is at most `enough`."""

    enough: float

    def __init__(self, enough: float, linear_solver: Any) -> None:
        super().__init__(rtol=0.0, atol=0.0, linear_solver=linear_solver)
        self.enough = enough

    def terminate(self, fn: Any, y: Any, args: Any, options: Any, state: Any, tags: Any) -> Any:
        done, result = super().terminate(fn, y, args, options, state, tags)
        return done | (~state.first_step & (state.f_info.as_min() <= self.enough)), result


class Broyden(optimistix.BFGS):
    """Ends where half the sum of squares is at most `enough`."""

    enough: float

    def __init__(self, enough: float) -> None:
        super().__init__(rtol=0.0, atol=0.0)
        self.enough = enough

    def terminate(self, fn: Any, y: Any, args: Any, options: Any, state: Any, tags: Any) -> Any:
        done, result = super().terminate(fn, y, args, options, state, tags)
        return done | (~state.first_step & (state.f_info.as_min() <= self.enough)), result


def residuals_by(problem: Any, adjoint: Any) -> Callable[[Any], Any]:
    """The residuals of all trajectories, flat, as a function of the flat parameters."""
    layout = problem.layout()
    ends = np.cumsum([int(np.prod(shape)) for _, shape in layout])[:-1]
    times, x, t = jnp.asarray(problem.times), jnp.asarray(problem.x), jnp.asarray(problem.t)
    forcing = [diffrax.LinearInterpolation(times, jnp.asarray(values)) for values in problem.forcing.values()]

    def rate(at: Any, y: Any, leaves: Any) -> Any:
        own = [each.evaluate(at) for each in forcing]
        return problem.slopes(jnp, at, y, own, leaves)

    if problem.forcing:
        how = {"solver": RK4(), "stepsize_controller": diffrax.StepTo(ts=times), "max_steps": len(times)}
    else:
        how = {"solver": diffrax.Tsit5(), "stepsize_controller": diffrax.PIDController(rtol=1e-4, atol=1e-6), "max_steps": 256}

    def solution(y: Any, leaves: Any) -> Any:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(rate), t0=times[0], t1=times[-1], dt0=None, y0=y, args=leaves, saveat=diffrax.SaveAt(ts=times),
            adjoint=adjoint, throw=False, **how,
        ).ys  # fmt: skip

    def residuals(p: Any) -> Any:
        parts = jnp.split(p, ends)
        leaves = {name: part.reshape(shape) for (name, shape), part in zip(layout, parts, strict=True)}
        found = jax.vmap(solution, (0, None))(x, leaves)[..., np.array(problem.observed)]
        return (found - t).ravel()

    return residuals


def fits(problem: Any, target: float, most: dict[str, int]) -> dict[str, Callable[[np.ndarray], tuple[np.ndarray, int]]]:
    """Functions of the start: the parameters, and the number of iterations."""
    enough = (target * problem.noise) ** 2
    half, method = 0.5 * problem.t.size * enough, problem.method
    forward, reverse = (residuals_by(problem, way()) for way in (diffrax.ForwardMode, diffrax.RecursiveCheckpointAdjoint))

    @jax.jit
    def newton(p: Any) -> Any:
        how = {"max_steps": most[method], "throw": False}
        if method == "LM":
            found = optimistix.least_squares(lambda p, _: forward(p), Marquardt(half, lineax.QR()), p, **how)
        else:
            found = optimistix.minimise(lambda p, _: 0.5 * jnp.sum(reverse(p) ** 2), Broyden(half), p, **how)
        return found.value, found.stats["num_steps"]

    rule = optax.adam(problem.learning_rate)
    gradient = jax.value_and_grad(lambda p: jnp.mean(reverse(p) ** 2))

    @jax.jit
    def adam(p: Any) -> Any:
        def step(carry: Any) -> Any:
            p, state, count, _ = carry
            value, g = gradient(p)
            change, state = rule.update(g, state)
            return jnp.where(value > enough, optax.apply_updates(p, change), p), state, count + 1, value

        def unmet(carry: Any) -> Any:
            return (carry[2] < most["Adam"]) & ~(carry[3] <= enough)

        found = jax.lax.while_loop(unmet, step, (p, rule.init(p), 0, jnp.inf))
        return found[0], found[2]

    def called(fit: Any) -> Callable[[np.ndarray], tuple[np.ndarray, int]]:
        def call(p: np.ndarray) -> tuple[np.ndarray, int]:
            found, iterations = fit(jnp.asarray(p))
            return np.asarray(found), int(iterations)

        return call

    return {method: called(newton), "Adam": called(adam)}
