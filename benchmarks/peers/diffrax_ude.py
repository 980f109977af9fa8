"""Lynx and hare by diffrax, Equinox and Optax: jitted, with each adjoint that takes constant steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)

Arrays = dict[str, Any]


class Model(eqx.Module):
    """The right-hand side; its leaves are the parameters by their names in chains."""

    leaves: Arrays

    def __call__(self, t: Any, y: Any, args: Any) -> Any:
        p, h = self.leaves, y
        for k in range(4):
            h = h @ p[f"0.network.{k}.weight"] + p[f"0.network.{k}.bias"]
            h = jnp.tanh(h) if k < 3 else h
        return jnp.stack([p["0.birth"] * y[0], -p["0.death"] * y[1]]) + h


def loss_by(problem: Any, adjoint: Any) -> Callable[[Model], Any]:
    x, t = jnp.asarray(problem.x[0]), jnp.asarray(problem.t[0])
    times = jnp.arange(float(len(t)))

    def loss(model: Model) -> Any:
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(model), diffrax.Tsit5(), 0.0, float(len(t) - 1), 0.1, x,
            saveat=diffrax.SaveAt(ts=times), stepsize_controller=diffrax.ConstantStepSize(), adjoint=adjoint, max_steps=256,
        )  # fmt: skip
        return jnp.mean((found.ys - t) ** 2)

    return loss


def flat(names: list[str], leaves: Arrays) -> Any:
    return jnp.concatenate([leaves[name].ravel() for name in names])


def gradients(problem: Any, views: Arrays) -> dict[str, Callable[[], Any]]:
    model = Model({name: jnp.asarray(array) for name, array in views.items()})
    adjoints = {
        "recursive checkpoints": diffrax.RecursiveCheckpointAdjoint(),
        "recursive checkpoints, all kept": diffrax.RecursiveCheckpointAdjoint(checkpoints=256),
        "direct": diffrax.DirectAdjoint(),
        "backsolve": diffrax.BacksolveAdjoint(),
    }
    calls: dict[str, Callable[[], Any]] = {}
    for name, adjoint in adjoints.items():
        jitted = eqx.filter_jit(eqx.filter_value_and_grad(loss_by(problem, adjoint)))
        calls[name] = lambda jitted=jitted: np.asarray(flat(list(views), jitted(model)[1].leaves))
    return calls


def fit(problem: Any, seed: int) -> float:
    """Adam by Optax, then SciPy's BFGS, as chains does it."""
    from scipy.optimize import minimize

    views = problem.net("numpy").views(problem.start(seed))
    shapes, names = {name: array.shape for name, array in views.items()}, list(views)
    ends = np.cumsum([array.size for array in views.values()])[:-1]

    def model(p: Any) -> Model:
        parts = jnp.split(p, ends)
        return Model({name: part.reshape(shapes[name]) for name, part in zip(names, parts, strict=True)})

    loss = loss_by(problem, diffrax.RecursiveCheckpointAdjoint())
    value_and_grad = eqx.filter_jit(jax.value_and_grad(lambda p: loss(model(p))))
    adam = optax.adam(0.02)

    @jax.jit
    def run(p: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            p, state = carry
            changes, state = adam.update(value_and_grad(p)[1], state)
            return (optax.apply_updates(p, changes), state), None

        return jax.lax.scan(step, (p, adam.init(p)), None, 300)[0][0]

    p = run(flat(names, {name: jnp.asarray(array) for name, array in views.items()}))

    def objective(p: np.ndarray) -> tuple[float, np.ndarray]:
        value, g = value_and_grad(jnp.asarray(p))
        return float(value), np.asarray(g)

    return float(minimize(objective, np.asarray(p), jac=True, method="BFGS", options={"maxiter": 300}).fun)
