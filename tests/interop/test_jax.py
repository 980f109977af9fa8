"""Networks as functions of JAX."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import BatchNorm, Chain, Dense, tanh
from chains.interop import as_jax

jax = pytest.importorskip("jax")
jnp = jax.numpy


@pytest.fixture(scope="module")
def network():
    net = Chain(Dense(3, 6, tanh), Dense(6, 2))
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    return net, as_jax(net), x, net.init(seed=1)


def plain(x, p):
    """The same network, written in JAX."""
    w, b, v, c = p[:18].reshape(3, 6), p[18:24], p[24:36].reshape(6, 2), p[36:]
    return jnp.tanh(x @ w + b) @ v + c


def close(one, two):
    np.testing.assert_allclose(one, two, rtol=2e-5, atol=2e-6)


def test_calls_and_jit(network):
    net, f, x, p = network
    close(f(x, p), net(x, p))
    close(jax.jit(f)(x, p), plain(x, p))


def test_gradients(network):
    _, f, x, p = network

    def loss(function):
        return lambda x, p: (function(x, p) ** 3).sum()

    for own, other in zip(jax.grad(loss(f), (0, 1))(x, p), jax.grad(loss(plain), (0, 1))(x, p), strict=True):
        close(own, other)
    value, g = jax.jit(jax.value_and_grad(loss(f), 1))(x, p)
    close(value, loss(plain)(x, p))
    close(g, jax.grad(loss(plain), 1)(x, p))


def test_vmap_over_inputs_parameters_and_both(network):
    _, f, x, p = network
    xs, ps = np.stack([x, 2 * x, -x]), np.stack([p, 0.5 * p, -p])
    for axes, arguments in (((0, None), (xs, p)), ((None, 0), (x, ps)), ((0, 0), (xs, ps))):
        close(jax.vmap(f, axes)(*arguments), jax.vmap(plain, axes)(*arguments))
        own, other = (
            jax.jit(jax.vmap(jax.grad(lambda x, p, g=g: (g(x, p) ** 2).sum(), (0, 1)), axes))(*arguments) for g in (f, plain)
        )
        for one, two in zip(own, other, strict=True):
            close(one, two)
    close(jax.vmap(jax.vmap(f, (0, None)), (None, 0))(xs, ps), jax.vmap(jax.vmap(plain, (0, None)), (None, 0))(xs, ps))


def test_networks_with_a_state_and_ids():
    net = Chain(Dense(3, 4), BatchNorm(4))
    p, state = net.init(), np.arange(1.0, 9.0, dtype=np.float32)
    x = np.ones((2, 3), np.float32)
    close(as_jax(net, state)(x, p), net(x, p, state=state))
    close(as_jax(net)(x, p), net(x, p, state=net.init_state()))
    with pytest.raises(ValueError, match="`state` must have shape"):
        as_jax(net, state[:-1])
    net = Chain(chains.Embedding(5, 2), chains.Flatten(), Dense(6, 1), input_shape=(3,))
    p, ids = net.init(), np.array([[0, 1, 4], [2, 2, 2]])
    g = jax.grad(lambda p: as_jax(net)(ids, p).sum())(p)
    close(g, net.vjp(p, ids, np.ones((2, 1), np.float32))[0])
