"""Normal equations through RK4 by JAX: Jacobians of diffrax, forward and in reverse, and of steps in `lax.scan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)

RK4_TABLEAU = diffrax.ButcherTableau(
    c=np.array([0.5, 0.5, 1.0]),
    b_sol=np.array([1.0, 2.0, 2.0, 1.0]) / 6.0,
    b_error=np.zeros(4),
    a_lower=(np.array([0.5]), np.array([0.0, 0.5]), np.array([0.0, 0.0, 1.0])),
)


class RK4(diffrax.AbstractERK):
    """The classical method, which diffrax does not have."""

    tableau = RK4_TABLEAU
    interpolation_cls = diffrax.ThirdOrderHermitePolynomialInterpolation.from_k

    def order(self, terms: Any) -> int:
        return 4


def rate(t: Any, y: Any, leaves: Any) -> Any:
    w1, b1, w2, b2 = leaves
    friction = jnp.tanh(y[1:] @ w1 + b1) @ w2 + b2
    return jnp.stack([y[1], -y[0] - friction[0]])


def normal_equations(problem: Any, views: dict[str, Any], times: np.ndarray, steps: int) -> dict[str, Callable[[], np.ndarray]]:
    """A call for each way: the value, J'r and J'J, one after another."""
    y0, t = jnp.asarray(problem.x[0]), jnp.asarray(problem.t[0])
    ends = np.cumsum([view.size for view in views.values()])[:-1]
    shapes = [view.shape for view in views.values()]
    fine = jnp.asarray(np.linspace(times[0], times[-1], (len(times) - 1) * steps + 1))
    h = float(times[1] - times[0]) / steps

    def leaves(p: Any) -> Any:
        return [part.reshape(shape) for part, shape in zip(jnp.split(p, ends), shapes, strict=True)]

    def by_diffrax(adjoint: Any) -> Callable[[Any], Any]:
        def residuals(p: Any) -> Any:
            found = diffrax.diffeqsolve(
                diffrax.ODETerm(rate), RK4(), times[0], times[-1], None, y0, leaves(p),
                saveat=diffrax.SaveAt(ts=jnp.asarray(times)), stepsize_controller=diffrax.StepTo(ts=fine), adjoint=adjoint,
                max_steps=len(fine),
            )  # fmt: skip
            return (found.ys - t).ravel()

        return residuals

    def by_scan(p: Any) -> Any:
        own = leaves(p)

        def step(y: Any, _: Any) -> tuple[Any, None]:
            a = rate(0.0, y, own)
            b = rate(0.0, y + 0.5 * h * a, own)
            c = rate(0.0, y + 0.5 * h * b, own)
            d = rate(0.0, y + h * c, own)
            return y + h / 6.0 * (a + 2.0 * b + 2.0 * c + d), None

        def interval(y: Any, _: Any) -> tuple[Any, Any]:
            y = jax.lax.scan(step, y, None, steps, unroll=True)[0]
            return y, y

        rows = jax.lax.scan(interval, y0, None, len(times) - 1)[1]
        return (jnp.concatenate([y0[None], rows]) - t).ravel()

    def call(residuals: Callable[[Any], Any], jacobian: Any) -> Callable[[], np.ndarray]:
        @jax.jit
        def both(p: Any) -> Any:
            r, j = residuals(p), jacobian(residuals)(p)
            return jnp.concatenate([0.5 * (r @ r)[None], r @ j, (j.T @ j).ravel()])

        p = jnp.asarray(problem.p)
        return lambda: np.asarray(both(p))

    return {
        "jacfwd of diffrax": call(by_diffrax(diffrax.ForwardMode()), jax.jacfwd),
        "jacrev of diffrax": call(by_diffrax(diffrax.RecursiveCheckpointAdjoint()), jax.jacrev),
        "jacfwd of lax.scan": call(by_scan, jax.jacfwd),
        "jacrev of lax.scan": call(by_scan, jax.jacrev),
    }
