"""PyTorch: modules hold the parameters, autograd keeps a tape; channels last, which is its faster layout on processors."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from rosetta import problem


def build() -> nn.Module:
    torch.manual_seed(problem.SEED)
    few, many = problem.CHANNELS
    drop, drop_last = problem.DROPOUT
    net = nn.Sequential(
        nn.Conv2d(3, few, 3, padding=1), nn.ReLU(), nn.Conv2d(few, few, 3, padding=1),
        nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(drop),
        nn.Conv2d(few, many, 3, padding=1), nn.ReLU(), nn.Conv2d(many, many, 3, padding=1),
        nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(drop),
        nn.Flatten(), nn.Linear(64 * many, problem.HIDDEN), nn.ReLU(), nn.Dropout(drop_last),
        nn.Linear(problem.HIDDEN, problem.CLASSES),
    )  # fmt: skip
    for p in net.parameters():
        if p.ndim > 1:
            nn.init.xavier_uniform_(p)
        else:
            nn.init.zeros_(p)
    assert sum(p.numel() for p in net.parameters()) == problem.PARAMETERS
    return net.to(memory_format=torch.channels_last)


def train(net: nn.Module, x: np.ndarray, t: np.ndarray, epochs: int) -> None:
    net.train()
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), problem.LEARNING_RATE, problem.MOMENTUM)
    for epoch in range(epochs):
        for images, labels in problem.batches(x, t, epoch):
            optimizer.zero_grad()
            outputs = net(torch.from_numpy(images).to(memory_format=torch.channels_last))
            loss(outputs, torch.from_numpy(labels)).backward()
            optimizer.step()


@torch.no_grad()
def predict(net: nn.Module, x: np.ndarray) -> np.ndarray:
    net.eval()
    return np.concatenate([net(torch.from_numpy(piece)).argmax(1).numpy() for piece in problem.pieces(x)])
