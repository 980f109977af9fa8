"""The same derivatives by JAX: jitted, nested in each of the usual ways."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.jet import jet

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)

Calls = dict[str, Callable[[], Any]]
PINN, MATRIX_EXP = (2, 20, 20, 20, 1), (4, 32, 16, 4)


def _network(widths: tuple[int, ...]) -> Callable[[Any, Any], Any]:
    def network(p: Any, x: Any) -> Any:
        start = 0
        for inputs, outputs in itertools.pairwise(widths):
            weight = p[start : start + inputs * outputs].reshape(inputs, outputs)
            bias = p[start + inputs * outputs : start + (inputs + 1) * outputs]
            start += (inputs + 1) * outputs
            x = x @ weight + bias
            x = jnp.tanh(x) if start < len(p) else x
        return x

    return network


def _ready(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    jitted, arrays = jax.jit(function), [jnp.asarray(each) for each in arguments]
    return lambda: jax.block_until_ready(jitted(*arrays))


def _second(f: Callable[[Any], Any], z: Any, v: Any) -> tuple[Any, Any, Any]:
    """f, f' and f'' along v by forward mode twice."""
    (value, first), (_, second) = jax.jvp(lambda z: jax.jvp(f, (z,), (v,)), (z,), (v,))
    return value, first, second


def _by_jet(f: Callable[[Any], Any], z: Any, v: Any) -> tuple[Any, Any, Any]:
    value, (first, second) = jet(f, (z,), ((v, jnp.zeros_like(v)),))
    return value, first, second


def input_derivatives(p: np.ndarray, x: np.ndarray) -> Calls:
    network, axes = _network(PINN), jnp.eye(2)

    def along(way: Callable[..., Any]) -> Callable[..., Any]:
        def all_points(p: Any, x: Any) -> Any:
            found = [way(lambda x: network(p, x), x, jnp.broadcast_to(axis, x.shape)) for axis in axes]
            return jnp.stack([second for _, _, second in found], -1)

        return all_points

    def hessian(p: Any, x: Any) -> Any:
        return jax.vmap(lambda z: jnp.diagonal(jax.hessian(lambda z: network(p, z))(z), axis1=-2, axis2=-1))(x)

    ways = {"jvp of jvp": along(_second), "jet": along(_by_jet), "vmap of hessian": hessian}
    return {name: _ready(way, p, x) for name, way in ways.items()}


def pinn(p: np.ndarray, burgers: Any) -> Calls:
    network, viscosity = _network(PINN), 0.01 / math.pi
    along_t, along_x = jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])

    def whole(way: Callable[..., Any]) -> Callable[..., Any]:
        def loss(p: Any, inside: Any, edge: Any, values: Any) -> Any:
            f = lambda z: network(p, z)[..., 0]  # noqa: E731
            _, u_t = jax.jvp(f, (inside,), (jnp.broadcast_to(along_t, inside.shape),))
            u, u_x, u_xx = way(f, inside, jnp.broadcast_to(along_x, inside.shape))
            return jnp.mean((u_t + u * u_x - viscosity * u_xx) ** 2) + jnp.mean((f(edge) - values) ** 2)

        return lambda *arguments: jax.value_and_grad(loss)(*arguments)[1]

    def by_point(p: Any, inside: Any, edge: Any, values: Any) -> Any:
        f = lambda p, z: network(p, z)[0]  # noqa: E731

        def residual(p: Any, z: Any) -> Any:
            slope = jax.grad(f, 1)
            u_xx = jax.jvp(lambda z: slope(p, z), (z,), (along_x,))[1][1]
            return slope(p, z)[0] + f(p, z) * slope(p, z)[1] - viscosity * u_xx

        def loss(p: Any) -> Any:
            inner = jnp.mean(jax.vmap(lambda z: residual(p, z))(inside) ** 2)
            return inner + jnp.mean((jax.vmap(lambda z: f(p, z))(edge) - values) ** 2)

        return jax.value_and_grad(loss)(p)[1]

    ways = {"jvp of jvp": whole(_second), "jet": whole(_by_jet), "vmap of jvp of grad": by_point}
    return {name: _ready(way, p, burgers.inside, burgers.edge, burgers.values) for name, way in ways.items()}


def hessian_product(p: np.ndarray, x: np.ndarray, t: np.ndarray, v: np.ndarray) -> Calls:
    network = _network(MATRIX_EXP)

    def loss(p: Any, x: Any, t: Any) -> Any:
        return jnp.mean((network(p, x) - t) ** 2)

    forward = lambda p, x, t, v: jax.jvp(lambda p: jax.grad(loss)(p, x, t), (p,), (v,))[1]  # noqa: E731
    reverse = lambda p, x, t, v: jax.grad(lambda p: jax.grad(loss)(p, x, t) @ v)(p)  # noqa: E731
    return {"jvp of grad": _ready(forward, p, x, t, v), "grad of grad": _ready(reverse, p, x, t, v)}


def jacobian(p: np.ndarray, x: np.ndarray) -> Calls:
    network = _network(MATRIX_EXP)
    return {"vmap of jacrev": _ready(jax.vmap(jax.jacrev(network), (None, 0)), p, x)}
