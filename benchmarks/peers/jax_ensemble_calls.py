"""The same calls by JAX: `vmap` over the networks, jitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.peers.jax_dense import jax, jnp  # on the CPU, float64 allowed


def _outputs(p: Any, x: Any) -> Any:
    for weight, bias in p[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = p[-1]
    return x @ weight + bias


def _loss(p: Any, x: Any, t: Any) -> Any:
    return jnp.mean((_outputs(p, x) - t) ** 2)


def _arrays(problem: Any) -> tuple[Any, Any, Any]:
    return jax.tree.map(jnp.asarray, (problem.arrays, problem.x, problem.t))


def calls(problem: Any) -> dict[str, Callable[[], Any]]:
    p, x, _ = _arrays(problem)
    jitted = jax.jit(jax.vmap(_outputs, (0, None)))
    return {"jit, vmap": lambda: jitted(p, x).block_until_ready()}


def gradients(problem: Any) -> dict[str, Callable[[], Any]]:
    """The gradients as one array, (members, n_params), in the order of the flat vector."""
    data = _arrays(problem)
    jitted = jax.jit(jax.vmap(jax.value_and_grad(_loss), (0, None, None)))
    return {"jit, vmap": lambda: _Gradients(jax.block_until_ready(jitted(*data))[1])}


class _Gradients:
    """The gradients of all layers, which become one array for the judge alone."""

    def __init__(self, layers: Any) -> None:
        self._layers = layers

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        parts = [part.reshape(len(part), -1) for layer in self._layers for part in layer]
        return jax.device_get(jnp.concatenate(parts, 1)).astype(dtype)
