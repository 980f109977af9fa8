"""PaddlePaddle: modules hold the parameters, a tape is kept, as in PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from paddle import nn

from rosetta import problem


def build() -> Any:
    paddle.seed(problem.SEED)
    few, many = problem.CHANNELS
    drop, drop_last = problem.DROPOUT
    glorot = {"weight_attr": nn.initializer.XavierUniform(), "bias_attr": nn.initializer.Constant(0.0)}
    net = nn.Sequential(
        nn.Conv2D(3, few, 3, padding=1, **glorot), nn.ReLU(), nn.Conv2D(few, few, 3, padding=1, **glorot),
        nn.MaxPool2D(2), nn.ReLU(), nn.Dropout(drop),
        nn.Conv2D(few, many, 3, padding=1, **glorot), nn.ReLU(), nn.Conv2D(many, many, 3, padding=1, **glorot),
        nn.MaxPool2D(2), nn.ReLU(), nn.Dropout(drop),
        nn.Flatten(), nn.Linear(64 * many, problem.HIDDEN, **glorot), nn.ReLU(), nn.Dropout(drop_last),
        nn.Linear(problem.HIDDEN, problem.CLASSES, **glorot),
    )  # fmt: skip
    assert sum(p.size for p in net.parameters()) == problem.PARAMETERS
    return net


def train(net: Any, x: np.ndarray, t: np.ndarray, epochs: int) -> None:
    net.train()
    loss = nn.CrossEntropyLoss()
    optimizer = paddle.optimizer.Momentum(problem.LEARNING_RATE, problem.MOMENTUM, net.parameters())
    for epoch in range(epochs):
        for images, labels in problem.batches(x, t, epoch):
            loss(net(paddle.to_tensor(images)), paddle.to_tensor(labels)).backward()
            optimizer.step()
            optimizer.clear_grad()


def predict(net: Any, x: np.ndarray) -> np.ndarray:
    net.eval()
    return np.concatenate([net(paddle.to_tensor(piece)).numpy().argmax(1) for piece in problem.pieces(x)])
