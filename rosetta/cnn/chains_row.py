"""This project: a network is layers, its parameters are a vector, and a training loop is there."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains import SGD, Activation, Chain, Conv, CrossEntropyLoss, Dense, Dropout, Flatten, MaxPool, relu
from chains import train as fit
from rosetta import problem


def build() -> tuple[Chain, np.ndarray]:
    few, many = problem.CHANNELS
    drop, drop_last = problem.DROPOUT
    glorot: dict[str, Any] = {"weight_init": "glorot_uniform"}
    net = Chain(
        Conv(3, few, 3, relu, padding=1, **glorot), Conv(few, few, 3, padding=1, **glorot),
        MaxPool(2), Activation(relu), Dropout(drop),
        Conv(few, many, 3, relu, padding=1, **glorot), Conv(many, many, 3, padding=1, **glorot),
        MaxPool(2), Activation(relu), Dropout(drop),
        Flatten(), Dense(64 * many, problem.HIDDEN, relu, **glorot), Dropout(drop_last),
        Dense(problem.HIDDEN, problem.CLASSES, **glorot),
        input_shape=(3, 32, 32),
    )  # fmt: skip
    assert net.n_params == problem.PARAMETERS
    return net, net.init(seed=problem.SEED)


def train(model: tuple[Chain, np.ndarray], x: np.ndarray, t: np.ndarray, epochs: int) -> None:
    net, p = model
    optimizer = SGD(problem.LEARNING_RATE, momentum=problem.MOMENTUM)
    source = (batch for epoch in range(epochs) for batch in problem.batches(x, t, epoch))
    fit(net, p, source, None, CrossEntropyLoss(), optimizer, seed=problem.SEED)


def predict(model: tuple[Chain, np.ndarray], x: np.ndarray) -> np.ndarray:
    net, p = model
    return np.concatenate([net(piece, p).argmax(1) for piece in problem.pieces(x)])
