"""Chainer, of the last version there was: define by run, which PyTorch took from here."""

from __future__ import annotations

from typing import Any

import chainer
import numpy as np
from chainer import functions, links

from rosetta import problem


class Network(chainer.Chain):
    def __init__(self) -> None:
        super().__init__()
        few, many = problem.CHANNELS
        glorot = {"initialW": chainer.initializers.GlorotUniform()}
        with self.init_scope():
            self.conv1 = links.Convolution2D(3, few, 3, pad=1, **glorot)
            self.conv2 = links.Convolution2D(few, few, 3, pad=1, **glorot)
            self.conv3 = links.Convolution2D(few, many, 3, pad=1, **glorot)
            self.conv4 = links.Convolution2D(many, many, 3, pad=1, **glorot)
            self.hidden = links.Linear(64 * many, problem.HIDDEN, **glorot)
            self.outputs = links.Linear(problem.HIDDEN, problem.CLASSES, **glorot)

    def forward(self, x: Any) -> Any:
        drop, drop_last = problem.DROPOUT
        for first, second in ((self.conv1, self.conv2), (self.conv3, self.conv4)):
            x = functions.relu(functions.max_pooling_2d(second(functions.relu(first(x))), 2))
            x = functions.dropout(x, drop)
        return self.outputs(functions.dropout(functions.relu(self.hidden(x)), drop_last))


def build() -> Network:
    np.random.seed(problem.SEED)
    net = Network()
    assert net.count_params() == problem.PARAMETERS
    return net


def train(net: Network, x: np.ndarray, t: np.ndarray, epochs: int) -> None:
    optimizer = chainer.optimizers.MomentumSGD(problem.LEARNING_RATE, problem.MOMENTUM).setup(net)
    for epoch in range(epochs):
        for images, labels in problem.batches(x, t, epoch):
            loss = functions.softmax_cross_entropy(net(images), labels.astype(np.int32))
            net.cleargrads()
            loss.backward()
            optimizer.update()


def predict(net: Network, x: np.ndarray) -> np.ndarray:
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        return np.concatenate([net(piece).array.argmax(1) for piece in problem.pieces(x)])
