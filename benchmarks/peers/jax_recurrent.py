"""The same recurrences by JAX: jitted, a scan over the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

jax.config.update("jax_platforms", "cpu")

Calls = dict[str, Callable[[], Any]]


def _gru(p: Any, h: Any, a: Any) -> Any:
    n = h.shape[-1]
    q = h @ p["0.recurrent_weight"] + p["0.recurrent_bias"]
    r, z = jax.nn.sigmoid(a[:, :n] + q[:, :n]), jax.nn.sigmoid(a[:, n : 2 * n] + q[:, n : 2 * n])
    new = jnp.tanh(a[:, 2 * n :] + r * q[:, 2 * n :])
    return new + z * (h - new)


def _lstm(p: Any, state: Any, a: Any) -> Any:
    h, c = state
    i, f, g, o = jnp.split(a + h @ p["0.recurrent_weight"], 4, axis=1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _output(p: Any, h: Any) -> Any:
    return h @ p["1.weight"] + p["1.bias"]


def gradient(problem: Any) -> Calls:
    zeros = jnp.zeros((problem.batch, problem.units), jnp.float32)
    first, cell = (zeros, _gru) if problem.kind == "GRU" else ((zeros, zeros), _lstm)

    def loss(p: Any, x: Any, t: Any, unroll: int) -> Any:
        inputs = jnp.swapaxes(x @ p["0.weight"] + p["0.bias"], 0, 1)
        last, _ = jax.lax.scan(lambda state, a: (cell(p, state, a), None), first, inputs, unroll=unroll)
        return jnp.mean((_output(p, last if problem.kind == "GRU" else last[0]) - t) ** 2)

    p = {name: jnp.asarray(array) for name, array in problem.arrays.items()}
    x, t = jnp.asarray(problem.x), jnp.asarray(problem.t)

    def way(unroll: int) -> Callable[[], Any]:
        def flat(p: Any, x: Any, t: Any) -> Any:
            value, g = jax.value_and_grad(loss)(p, x, t, unroll)
            return value, jnp.concatenate([g[name].ravel() for name in p_names])

        p_names = list(problem.arrays)
        jitted = jax.jit(flat)
        return lambda: jax.block_until_ready(jitted(p, x, t))[1]

    return {"jit, scan": way(1), "jit, scan unrolled by 10": way(10)}


def step(problem: Any) -> Calls:
    p = {name: jnp.asarray(array) for name, array in problem.arrays.items()}
    x, h = jnp.asarray(problem.x[:, 0]), jnp.asarray(problem.carried)
    jitted = jax.jit(lambda p, x, h: _output(p, _gru(p, h, x @ p["0.weight"] + p["0.bias"])))
    return {"jit": lambda: jax.block_until_ready(jitted(p, x, h))}
