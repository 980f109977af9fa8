"""PyTorch: a module of one's own, since its GRU gives more than the last step."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from rosetta import problem


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(problem.WORDS, problem.FEATURES)
        self.gru = nn.GRU(problem.FEATURES, problem.UNITS, batch_first=True)
        self.outputs = nn.Linear(problem.UNITS, problem.OPINIONS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps, _ = self.gru(self.embedding(x))
        return self.outputs(steps[:, -1])


def build() -> Network:
    torch.manual_seed(problem.SEED)
    net = Network()
    assert sum(p.numel() for p in net.parameters()) == problem.RNN_PARAMETERS
    return net


def train(net: Network, x: np.ndarray, t: np.ndarray, epochs: int) -> None:
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(net.parameters(), problem.ADAM_RATE)
    for epoch in range(epochs):
        for reviews, labels in problem.batches(x, t, epoch):
            optimizer.zero_grad()
            loss(net(torch.from_numpy(reviews)), torch.from_numpy(labels)).backward()
            optimizer.step()


@torch.no_grad()
def predict(net: Network, x: np.ndarray) -> np.ndarray:
    return np.concatenate([net(torch.from_numpy(piece)).argmax(1).numpy() for piece in problem.pieces(x)])
