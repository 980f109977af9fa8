"""tinygrad: everything is lazy and made of a few operations; a step is compiled by clang."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from tinygrad import Context, Tensor, TinyJit, nn

from rosetta import problem


class Network:
    def __init__(self) -> None:
        Tensor.manual_seed(problem.SEED)
        few, many = problem.CHANNELS
        sizes = (3, few, few, many, many)
        self.convolutions = [nn.Conv2d(n, m, 3, padding=1) for n, m in pairwise(sizes)]
        self.hidden = nn.Linear(64 * many, problem.HIDDEN)
        self.outputs = nn.Linear(problem.HIDDEN, problem.CLASSES)
        for layer in (*self.convolutions, self.hidden, self.outputs):
            layer.weight = Tensor.glorot_uniform(*layer.weight.shape)
            layer.bias = Tensor.zeros(*layer.bias.shape).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        drop, drop_last = problem.DROPOUT
        for first, second in (self.convolutions[:2], self.convolutions[2:]):
            x = second(first(x).relu()).max_pool2d(2).relu().dropout(drop)
        return self.outputs(self.hidden(x.flatten(1)).relu().dropout(drop_last))


def build() -> Network:
    net = Network()
    assert sum(int(np.prod(p.shape)) for p in nn.state.get_parameters(net)) == problem.PARAMETERS
    return net


def train(net: Network, x: np.ndarray, t: np.ndarray, epochs: int) -> None:
    optimizer = nn.optim.SGD(nn.state.get_parameters(net), problem.LEARNING_RATE, problem.MOMENTUM)

    @TinyJit
    def step(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(images).sparse_categorical_crossentropy(labels).backward()
        return loss.realize(*optimizer.schedule_step())

    with Context(TRAINING=1):
        for epoch in range(epochs):
            for images, labels in problem.batches(x, t, epoch):
                step(Tensor(images).realize(), Tensor(labels.astype(np.int32)).realize()).item()


def predict(net: Network, x: np.ndarray) -> np.ndarray:
    logits = TinyJit(lambda piece: net(piece).realize())
    return np.concatenate([logits(Tensor(piece).realize()).numpy().argmax(1) for piece in problem.pieces(x)])
