"""MXNet's Gluon, of the last version there was: calls are queued, and what is read is waited for."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from rosetta import problem


def build() -> Any:
    mx.random.seed(problem.SEED)
    few, many = problem.CHANNELS
    drop, drop_last = problem.DROPOUT
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(few, 3, padding=1, activation="relu", in_channels=3), nn.Conv2D(few, 3, padding=1, in_channels=few),
        nn.MaxPool2D(2), nn.Activation("relu"), nn.Dropout(drop),
        nn.Conv2D(many, 3, padding=1, activation="relu", in_channels=few), nn.Conv2D(many, 3, padding=1, in_channels=many),
        nn.MaxPool2D(2), nn.Activation("relu"), nn.Dropout(drop),
        nn.Flatten(), nn.Dense(problem.HIDDEN, activation="relu", in_units=64 * many), nn.Dropout(drop_last),
        nn.Dense(problem.CLASSES, in_units=problem.HIDDEN),
    )  # fmt: skip
    net.initialize(mx.init.Xavier(rnd_type="uniform", factor_type="avg", magnitude=3))
    net.hybridize()
    assert sum(int(np.prod(p.shape)) for p in net.collect_params().values()) == problem.PARAMETERS
    return net


def train(net: Any, x: np.ndarray, t: np.ndarray, epochs: int) -> None:
    settings = {"learning_rate": problem.LEARNING_RATE, "momentum": problem.MOMENTUM}
    trainer = gluon.Trainer(net.collect_params(), "sgd", settings)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for epoch in range(epochs):
        for images, labels in problem.batches(x, t, epoch):
            with autograd.record():
                value = loss(net(nd.array(images)), nd.array(labels))
            value.backward()
            trainer.step(problem.BATCH_SIZE)
            nd.waitall()


def predict(net: Any, x: np.ndarray) -> np.ndarray:
    return np.concatenate([net(nd.array(piece)).asnumpy().argmax(1) for piece in problem.pieces(x)])
