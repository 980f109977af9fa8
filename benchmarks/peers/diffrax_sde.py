"""A scalar stochastic differential equation by diffrax, with each of its paths of noise, and by a loop of JAX's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_platforms", "cpu")


def paths(batch: int, steps: int, noise: float) -> dict[str, Callable[[], Any]]:
    """Calls by name, jitted, each with a key of its own: `batch` paths with all states, (batch, steps + 1)."""
    dt, y0 = 1.0 / steps, jnp.float32(1.0)
    drift, diffusion = lambda t, y, args: -y, lambda t, y, args: jnp.float32(noise)

    def by_diffrax(brownian: Callable[[Any], Any], adjoint: Any, saveat: Any) -> Callable[[Any], Any]:
        def solve(key: Any) -> Any:
            terms = diffrax.MultiTerm(diffrax.ODETerm(drift), diffrax.ControlTerm(diffusion, brownian(key)))
            return diffrax.diffeqsolve(
                terms, diffrax.Euler(), 0.0, 1.0, dt, y0, saveat=saveat, adjoint=adjoint, max_steps=steps + 8
            ).ys[: steps + 1]

        return solve

    def by_scan(key: Any) -> Any:
        dw = jnp.sqrt(jnp.float32(dt)) * jax.random.normal(key, (steps,))

        def step(y: Any, dw: Any) -> tuple[Any, Any]:
            y = y + drift(0.0, y, None) * dt + diffusion(0.0, y, None) * dw
            return y, y

        return jnp.concatenate([y0[None], jax.lax.scan(step, y0, dw)[1]])

    def by_scan_together(key: Any) -> Any:
        dw = jnp.sqrt(jnp.float32(dt)) * jax.random.normal(key, (steps, batch))
        first = jnp.full(batch, y0)

        def step(y: Any, dw: Any) -> tuple[Any, Any]:
            y = y + drift(0.0, y, None) * dt + diffusion(0.0, y, None) * dw
            return y, y

        return jnp.concatenate([first[None], jax.lax.scan(step, first, dw)[1]]).T

    tree = lambda key: diffrax.VirtualBrownianTree(0.0, 1.0, tol=dt / 2, shape=(), key=key)  # noqa: E731
    unsafe = lambda key: diffrax.UnsafeBrownianPath(shape=(), key=key)  # noqa: E731
    every, forward = diffrax.SaveAt(t0=True, steps=True), diffrax.ForwardMode()
    ways = {
        "diffrax VirtualBrownianTree": by_diffrax(tree, diffrax.RecursiveCheckpointAdjoint(), every),
        "diffrax UnsafeBrownianPath": by_diffrax(unsafe, forward, every),
        "diffrax UnsafeBrownianPath, direct": by_diffrax(unsafe, diffrax.DirectAdjoint(), every),
        "JAX scan, noise made before": by_scan,
    }
    calls: dict[str, Callable[[], Any]] = {}
    for name, solve in ways.items():
        jitted = jax.jit(lambda keys, solve=solve: solve(keys[0])) if batch == 1 else jax.jit(jax.vmap(solve))
        calls[name] = _drawn(jitted, batch)
    if batch > 1:
        calls["JAX scan of all, noise made before"] = _drawn(jax.jit(lambda keys: by_scan_together(keys[0])), batch)
    return calls


def _drawn(jitted: Callable[[Any], Any], batch: int) -> Callable[[], np.ndarray]:
    """A call with the keys of its paths, which are made before."""
    keys = jax.random.split(jax.random.key(0), batch)
    return lambda: np.asarray(jitted(keys))
