"""PaddlePaddle: as in PyTorch, but for names."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from paddle import nn

from rosetta import problem


class Network(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(problem.WORDS, problem.FEATURES)
        self.gru = nn.GRU(problem.FEATURES, problem.UNITS)
        self.outputs = nn.Linear(problem.UNITS, problem.OPINIONS)

    def forward(self, x: Any) -> Any:
        steps, _ = self.gru(self.embedding(x))
        return self.outputs(steps[:, -1])


def build() -> Network:
    paddle.seed(problem.SEED)
    net = Network()
    assert sum(p.size for p in net.parameters()) == problem.RNN_PARAMETERS
    return net


def train(net: Network, x: np.ndarray, t: np.ndarray, epochs: int) -> None:
    net.train()
    loss = nn.CrossEntropyLoss()
    optimizer = paddle.optimizer.Adam(problem.ADAM_RATE, parameters=net.parameters())
    for epoch in range(epochs):
        for reviews, labels in problem.batches(x, t, epoch):
            loss(net(paddle.to_tensor(reviews)), paddle.to_tensor(labels)).backward()
            optimizer.step()
            optimizer.clear_grad()


def predict(net: Network, x: np.ndarray) -> np.ndarray:
    net.eval()
    return np.concatenate([net(paddle.to_tensor(piece)).numpy().argmax(1) for piece in problem.pieces(x)])
