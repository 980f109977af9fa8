"""The same fits by JAX: jacrev, J'J, Cholesky, accepted or rejected, `vmap` over the networks and `lax.scan` over the steps."""

from __future__ import annotations

from typing import Any

from jax import lax
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve

from benchmarks.harness.timing import Contestant
from benchmarks.peers.jax_dense import jax, jnp  # on the CPU, float64 allowed


class _Fits:
    def __init__(self, problem: Any, scanned_inside: bool) -> None:
        x, t = jnp.asarray(problem.x), jnp.asarray(problem.t)
        first = {name: jnp.asarray(array) for name, array in problem.arrays.items()}
        unravel = ravel_pytree({name: array[0] for name, array in first.items()})[1]
        p = jax.vmap(lambda each: ravel_pytree(each)[0])(first)

        def residuals(p: Any) -> Any:
            parts, y = unravel(p), x
            for layer in range(2):
                y = jnp.tanh(y @ parts[f"{layer}.weight"] + parts[f"{layer}.bias"])
            return ((y @ parts["2.weight"] + parts["2.bias"] - t) / jnp.sqrt(len(x))).ravel()

        def step(state: Any) -> Any:
            p, r, damping = state
            jacobian = jax.jacrev(residuals)(p)
            normal = jacobian.T @ jacobian
            scale = jnp.maximum(jnp.diag(normal), 1e-8)
            factor = jnp.linalg.cholesky(normal + damping * jnp.diag(scale))
            new = p - cho_solve((factor, True), jacobian.T @ r)
            r_new = residuals(new)
            better = r_new @ r_new < r @ r
            damping = jnp.where(better, jnp.maximum(damping / 3.0, 1e-12), damping * 4.0)
            return jnp.where(better, new, p), jnp.where(better, r_new, r), damping

        together = lambda state: lax.scan(lambda s, _: (jax.vmap(step)(s), None), state, None, problem.steps)[0]  # noqa: E731
        alone = lambda state: lax.scan(lambda s, _: (step(s), None), state, None, problem.steps)[0]  # noqa: E731
        self._steps = jax.jit(jax.vmap(alone) if scanned_inside else together)
        self._count = problem.steps
        self._first = p, jax.vmap(residuals)(p), jnp.full(len(p), 1e-2)

    def start(self) -> None:
        self._state = self._first

    def run(self, steps: int) -> None:
        for _ in range(steps // self._count):
            self._state = jax.block_until_ready(self._steps(self._first))

    def result(self) -> Any:
        return jnp.median(0.5 * (self._state[1] ** 2).sum(1))


def contestants(problem: Any) -> list[Contestant]:
    ways = {"JAX jit, scan of vmap": False, "JAX jit, vmap of scan": True}
    fits = {name: _Fits(problem, inside) for name, inside in ways.items()}
    return [Contestant(name, each.start, each.run, each.result, problem.steps) for name, each in fits.items()]
