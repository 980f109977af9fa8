"""MLX: modules hold the parameters, a gradient is a transformed function, arrays are lazy until they are evaluated."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from mlx import nn, optimizers
from mlx.utils import tree_flatten, tree_map

from rosetta import problem


def build() -> nn.Module:
    mx.random.seed(problem.SEED)
    few, many = problem.CHANNELS
    drop, drop_last = problem.DROPOUT
    net = nn.Sequential(
        nn.Conv2d(3, few, 3, padding=1), nn.ReLU(), nn.Conv2d(few, few, 3, padding=1),
        nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(drop),
        nn.Conv2d(few, many, 3, padding=1), nn.ReLU(), nn.Conv2d(many, many, 3, padding=1),
        nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(drop),
        lambda x: x.flatten(1), nn.Linear(64 * many, problem.HIDDEN), nn.ReLU(), nn.Dropout(drop_last),
        nn.Linear(problem.HIDDEN, problem.CLASSES),
    )  # fmt: skip
    glorot = nn.init.glorot_uniform()
    net.update(tree_map(lambda p: glorot(p) if p.ndim > 1 else mx.zeros_like(p), net.parameters()))
    assert sum(p.size for _, p in tree_flatten(net.parameters())) == problem.PARAMETERS
    return net


def train(net: nn.Module, x: np.ndarray, t: np.ndarray, epochs: int) -> None:
    net.train()
    optimizer = optimizers.SGD(problem.LEARNING_RATE, problem.MOMENTUM)
    value_and_grad = nn.value_and_grad(net, lambda x, t: nn.losses.cross_entropy(net(x), t, reduction="mean"))
    images_last = problem.channels_last(x)
    for epoch in range(epochs):
        for images, labels in problem.batches(images_last, t, epoch):
            _, gradient = value_and_grad(mx.array(images), mx.array(labels))
            optimizer.update(net, gradient)
            mx.eval(net.parameters(), optimizer.state)


def predict(net: nn.Module, x: np.ndarray) -> np.ndarray:
    net.eval()
    pieces = problem.pieces(problem.channels_last(x))
    return np.concatenate([np.array(net(mx.array(piece))).argmax(1) for piece in pieces])
