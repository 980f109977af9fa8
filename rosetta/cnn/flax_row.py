"""JAX with Flax (nnx) and Optax: modules hold the parameters, a step is a function that is compiled."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import optax
from flax import nnx

from rosetta import problem


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        glorot = nnx.initializers.glorot_uniform()
        conv = partial(nnx.Conv, kernel_size=(3, 3), padding="SAME", kernel_init=glorot, rngs=rngs)
        few, many = problem.CHANNELS
        self.convolutions = nnx.List([conv(3, few), conv(few, few), conv(few, many), conv(many, many)])
        self.hidden = nnx.Linear(64 * many, problem.HIDDEN, kernel_init=glorot, rngs=rngs)
        self.outputs = nnx.Linear(problem.HIDDEN, problem.CLASSES, kernel_init=glorot, rngs=rngs)
        self.drop, self.drop_last = (nnx.Dropout(rate, rngs=rngs) for rate in problem.DROPOUT)

    def __call__(self, x: jax.Array) -> jax.Array:
        for first, second in (self.convolutions[:2], self.convolutions[2:]):
            x = nnx.max_pool(second(nnx.relu(first(x))), (2, 2), (2, 2))
            x = self.drop(nnx.relu(x))
        x = self.drop_last(nnx.relu(self.hidden(x.reshape(len(x), -1))))
        return self.outputs(x)


def build() -> Network:
    net = Network(nnx.Rngs(problem.SEED))
    assert sum(p.size for p in jax.tree.leaves(nnx.state(net, nnx.Param))) == problem.PARAMETERS
    return net


@nnx.jit
def step(net: Network, optimizer: nnx.Optimizer, x: jax.Array, t: jax.Array) -> jax.Array:
    def loss(net: Network) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(net(x), t).mean()

    value, gradient = nnx.value_and_grad(loss)(net)
    optimizer.update(net, gradient)
    return value


def train(net: Network, x: np.ndarray, t: np.ndarray, epochs: int) -> None:
    net.train()
    optimizer = nnx.Optimizer(net, optax.sgd(problem.LEARNING_RATE, problem.MOMENTUM), wrt=nnx.Param)
    for epoch in range(epochs):
        for images, labels in problem.batches(problem.channels_last(x), t, epoch):
            step(net, optimizer, images, labels).block_until_ready()


def predict(net: Network, x: np.ndarray) -> np.ndarray:
    net.eval()
    logits = nnx.jit(lambda net, x: net(x))
    return np.concatenate([logits(net, piece).argmax(1) for piece in problem.pieces(problem.channels_last(x))])
