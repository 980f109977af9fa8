"""Steady states by optimistix: jitted, under vmap, with each solver that suits small states, and the implicit adjoint.

Its fixed-point iterations do not converge here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lineax
import numpy as np
import optimistix

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)

STATE = 8


def gradients(problem: Any, views: dict[str, Any], tolerance: float) -> dict[str, Callable[[], np.ndarray]]:
    """A call for each solver: the gradient, then the value of the loss."""
    x, t, leaves = jnp.asarray(problem.x), jnp.asarray(problem.t), [jnp.asarray(view) for view in views.values()]

    def rhs(y: Any, args: Any) -> Any:
        (w1, b1, w2, b2), x = args
        return jnp.tanh(jnp.concatenate([y, x]) @ w1 + b1) @ w2 + b2

    def call(solver: Any, adjoint: Any) -> Callable[[], np.ndarray]:
        def solve(leaves: Any, x: Any) -> Any:
            start, equation = jnp.zeros(STATE), lambda y, args: rhs(y, args) - y
            return optimistix.root_find(equation, solver, start, (leaves, x), adjoint=adjoint, max_steps=64, throw=False).value

        @jax.jit
        def value_and_grad(leaves: Any) -> Any:
            loss = lambda leaves: jnp.mean((jax.vmap(lambda x: solve(leaves, x))(x) - t) ** 2)  # noqa: E731
            value, g = jax.value_and_grad(loss)(leaves)
            return jnp.concatenate([*(each.ravel() for each in g), value[None]])

        return lambda: np.asarray(value_and_grad(leaves))

    plain, lu = optimistix.ImplicitAdjoint(), optimistix.ImplicitAdjoint(linear_solver=lineax.LU())
    given = tolerance, tolerance
    return {
        "Newton": call(optimistix.Newton(*given), plain),
        "Newton, LU": call(optimistix.Newton(*given, linear_solver=lineax.LU()), lu),
        "Dogleg": call(optimistix.Dogleg(*given), plain),
    }
