"""A neural differential equation at many times by diffrax: trajectories with own steps, and with the same ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_platforms", "cpu")

Arrays = dict[str, Any]
ADJOINTS = {
    "default adjoint": diffrax.RecursiveCheckpointAdjoint(),
    "16 checkpoints": diffrax.RecursiveCheckpointAdjoint(checkpoints=16),
    "64 checkpoints": diffrax.RecursiveCheckpointAdjoint(checkpoints=64),
}


def rate(t: Any, y: Any, leaves: Arrays) -> Any:
    layers = len(leaves) // 2
    for k in range(layers):
        y = y @ leaves[f"0.{k}.weight"] + leaves[f"0.{k}.bias"]
        y = jnp.tanh(y) if k + 1 < layers else y
    return y


def solution(problem: Any, adjoint: Any, leaves: Arrays, y: Any) -> Any:
    rtol, atol = problem.tolerances
    times = jnp.asarray(problem.times, y.dtype)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(rate), diffrax.Tsit5(), times[0], times[-1], None, y, leaves, saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol), adjoint=adjoint, max_steps=256,
    ).ys  # fmt: skip


def own_steps(problem: Any, adjoint: Any, leaves: Arrays, x: Any) -> Any:
    return jax.vmap(partial(solution, problem, adjoint, leaves))(x)


def same_steps(problem: Any, adjoint: Any, leaves: Arrays, x: Any) -> Any:
    return jnp.swapaxes(solution(problem, adjoint, leaves, x), 0, 1)


def calls(problem: Any, views: Arrays) -> dict[str, dict[str, Callable[[], Any]]]:
    """Forward solutions, and gradients of the mean square by the parameters, as chains has them."""
    if problem.x.dtype == np.float64:
        jax.config.update("jax_enable_x64", True)
    leaves, x = {name: jnp.asarray(array) for name, array in views.items()}, jnp.asarray(problem.x)
    found: dict[str, dict[str, Callable[[], Any]]] = {"forward": {}, "gradient": {}}
    for text, way in (("own steps", own_steps), ("the same steps for all", same_steps)):
        forward = jax.jit(partial(way, problem, ADJOINTS["default adjoint"]))
        found["forward"][text] = lambda forward=forward: np.asarray(forward(leaves, x))
        for name, adjoint in ADJOINTS.items():

            def loss(leaves: Arrays, x: Any, way: Any = way, adjoint: Any = adjoint) -> Any:
                return jnp.mean(way(problem, adjoint, leaves, x) ** 2)

            gradient = jax.jit(jax.grad(loss))
            found["gradient"][f"{text}, {name}"] = partial(_flat, list(views), gradient, leaves, x)
    return found


def _flat(names: list[str], gradient: Callable[..., Arrays], leaves: Arrays, x: Any) -> Any:
    found = gradient(leaves, x)
    return np.concatenate([np.asarray(found[name]).ravel() for name in names])
