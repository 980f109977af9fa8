"""This project: a recurrent layer is a loop in the program, recorded once."""

from __future__ import annotations

import numpy as np

from chains import GRU, Adam, Chain, CrossEntropyLoss, Dense, Embedding
from chains import train as fit
from rosetta import problem


def build() -> tuple[Chain, np.ndarray]:
    net = Chain(
        Embedding(problem.WORDS, problem.FEATURES),
        GRU(problem.FEATURES, problem.UNITS),
        Dense(problem.UNITS, problem.OPINIONS),
        input_shape=(problem.STEPS,),
    )
    assert net.n_params == problem.RNN_PARAMETERS
    return net, net.init(seed=problem.SEED)


def train(model: tuple[Chain, np.ndarray], x: np.ndarray, t: np.ndarray, epochs: int) -> None:
    net, p = model
    source = (batch for epoch in range(epochs) for batch in problem.batches(x, t, epoch))
    fit(net, p, source, None, CrossEntropyLoss(), Adam(problem.ADAM_RATE), seed=problem.SEED)


def predict(model: tuple[Chain, np.ndarray], x: np.ndarray) -> np.ndarray:
    net, p = model
    return np.concatenate([net(piece, p).argmax(1) for piece in problem.pieces(x)])
