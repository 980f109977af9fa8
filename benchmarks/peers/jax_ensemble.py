"""The same ensembles by JAX: `vmap` over the networks, `lax.scan` over the steps, jitted."""

from __future__ import annotations

from typing import Any

from jax import lax

from benchmarks.harness.timing import Contestant
from benchmarks.peers.jax_dense import jax, jnp  # on the CPU, float64 allowed
from benchmarks.problems.ensemble import RATE, STEPS

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


def _loss(p: Any, x: Any, t: Any) -> Any:
    for layer in range(2):
        x = jnp.tanh(x @ p[f"{layer}.weight"] + p[f"{layer}.bias"])
    return jnp.mean((x @ p["2.weight"] + p["2.bias"] - t) ** 2)


def _step(state: Any, x: Any, t: Any) -> Any:
    p, m, v, count = state
    value, g = jax.value_and_grad(_loss)(p, x, t)
    count = count + 1
    m = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, m, g)
    v = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, v, g)
    first, second = 1 - BETA1**count, 1 - BETA2**count
    p = jax.tree.map(lambda p, m, v: p - RATE * (m / first) / (jnp.sqrt(v / second) + EPS), p, m, v)
    return (p, m, v, count), value


class _Training:
    def __init__(self, problem: Any, scanned_inside: bool) -> None:
        p = {name: jnp.asarray(array) for name, array in problem.arrays.items()}
        zeros = jax.tree.map(jnp.zeros_like, p)
        self._first = p, zeros, zeros, jnp.zeros(problem.p.shape[:1], jnp.float32)
        data, axis = (jnp.asarray(problem.x), jnp.asarray(problem.t)), 0 if problem.own else None

        def one(state: Any, x: Any, t: Any) -> Any:
            return lax.scan(lambda state, _: _step(state, x, t), state, None, STEPS)

        def scanned(state: Any, x: Any, t: Any) -> Any:
            return lax.scan(lambda state, _: jax.vmap(_step, (0, axis, axis))(state, x, t), state, None, STEPS)

        jitted = jax.jit(jax.vmap(one, (0, axis, axis)) if scanned_inside else scanned)
        self._steps = lambda state: jitted(state, *data)
        self._inside = scanned_inside

    def start(self) -> None:
        self._state, self._losses = self._first, None

    def run(self, steps: int) -> None:
        for _ in range(steps // STEPS):
            self._state, self._losses = self._steps(self._state)
        jax.block_until_ready(self._state)

    def result(self) -> Any:
        losses = self._losses
        return jnp.mean(losses[:, -1] if self._inside else losses[-1])


def contestants(problem: Any) -> list[Contestant]:
    ways = {"JAX jit, scan of vmap": False, "JAX jit, vmap of scan": True}
    trainings = {name: _Training(problem, inside) for name, inside in ways.items()}
    return [Contestant(name, each.start, each.run, each.result, STEPS) for name, each in trainings.items()]
