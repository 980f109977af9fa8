"""JAX with Equinox and Optax: a network is a tree of arrays, and a batch is one sample's function mapped."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from equinox import nn

from rosetta import problem


def build() -> list[nn.Sequential]:
    keys = iter(jax.random.split(jax.random.key(problem.SEED), 20))
    few, many = problem.CHANNELS
    drop, drop_last = problem.DROPOUT
    relu = nn.Lambda(jax.nn.relu)

    def block(inputs: int, outputs: int) -> list[eqx.Module]:
        first, second = (nn.Conv2d(n, outputs, 3, padding=1, key=next(keys)) for n in (inputs, outputs))
        return [first, relu, second, nn.MaxPool2d(2, 2), relu, nn.Dropout(drop)]

    dense = nn.Linear(64 * many, problem.HIDDEN, key=next(keys)), nn.Linear(problem.HIDDEN, problem.CLASSES, key=next(keys))
    rest = [nn.Lambda(jnp.ravel), dense[0], relu, nn.Dropout(drop_last), dense[1]]

    def start(p: jax.Array) -> jax.Array:  # biases are (outputs,) or (outputs, 1, 1)
        out_in = jax.nn.initializers.glorot_uniform(1, 0)
        return out_in(next(keys), p.shape) if p.size > p.shape[0] else jnp.zeros_like(p)

    net = jax.tree.map(lambda p: start(p) if eqx.is_array(p) else p, nn.Sequential([*block(3, few), *block(few, many), *rest]))
    assert sum(p.size for p in jax.tree.leaves(eqx.filter(net, eqx.is_array))) == problem.PARAMETERS
    return [net]  # networks never change: the list holds the one of now


def train(model: list[nn.Sequential], x: np.ndarray, t: np.ndarray, epochs: int) -> None:
    optimizer = optax.sgd(problem.LEARNING_RATE, problem.MOMENTUM)
    moments = optimizer.init(eqx.filter(model[0], eqx.is_array))

    def loss(net: nn.Sequential, x: jax.Array, t: jax.Array, key: jax.Array) -> jax.Array:
        logits = jax.vmap(lambda x, key: net(x, key=key))(x, jax.random.split(key, len(x)))
        return optax.softmax_cross_entropy_with_integer_labels(logits, t).mean()

    @eqx.filter_jit
    def step(net, moments, x, t, key):  # type: ignore[no-untyped-def]
        changes, moments = optimizer.update(eqx.filter_grad(loss)(net, x, t, key), moments)
        return eqx.apply_updates(net, changes), moments

    for epoch in range(epochs):
        for number, batch in enumerate(problem.batches(x, t, epoch)):
            key = jax.random.fold_in(jax.random.key(problem.SEED + epoch), number)
            model[0], moments = jax.block_until_ready(step(model[0], moments, *batch, key))


def predict(model: list[nn.Sequential], x: np.ndarray) -> np.ndarray:
    logits = eqx.filter_jit(jax.vmap(eqx.nn.inference_mode(model[0])))
    return np.concatenate([logits(piece).argmax(1) for piece in problem.pieces(x)])
