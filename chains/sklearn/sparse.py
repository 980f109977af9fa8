"""Sparse samples: rows of a CSR matrix become dense when they are used, a batch or a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.sparse import issparse

from chains.chain import Chain
from chains.losses import Loss
from chains.penalties import Penalty
from chains.support import streams

PIECE = 2**20  # numbers of the dense rows that exist at a time, without batches


class SparseBatches:
    """A source of dense batches (x, t, weights) for `train`, in the same order as batches of arrays."""

    def __init__(
        self, x: Any, t: np.ndarray, weights: np.ndarray | None, *, batch_size: int, shuffle: bool, seed: int, epoch: int
    ) -> None:  # fmt: skip
        self.x, self.t, self.weights = x, t, weights
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.samples = len(t)
        self.epoch = epoch  # passes begun so far

    def __len__(self) -> int:
        return -(-self.samples // self.batch_size)

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        order = np.arange(self.samples)
        if self.shuffle and self.batch_size < self.samples:
            streams.generator("order", self.seed, self.epoch).shuffle(order)
        self.epoch += 1
        return self._batches(order)

    def _batches(self, order: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
        for begin in range(0, self.samples, self.batch_size):
            rows = order[begin : begin + self.batch_size]
            x, t = self.x[rows].toarray(), self.t[rows]
            yield (x, t) if self.weights is None else (x, t, self.weights[rows])


def pieces(x: Any) -> Iterator[slice]:
    """Slices of consecutive rows whose dense form has about `PIECE` numbers."""
    rows = max(1, PIECE // x.shape[1])
    return (slice(begin, min(begin + rows, x.shape[0])) for begin in range(0, x.shape[0], rows))


def outputs_of(net: Chain, p: np.ndarray, x: Any, state: np.ndarray | None) -> np.ndarray:
    """The outputs of the network for the rows of `x`, dense or sparse."""
    if not issparse(x):
        return net(x, p, state=state)
    return np.concatenate([net(x[part].toarray(), p, state=state) for part in pieces(x)])


def summed(
    net: Chain, x: Any, t: np.ndarray, loss: Loss, *,
    weights: np.ndarray | None, penalty: Penalty | None, state: np.ndarray | None,
) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:  # fmt: skip
    """The objective of all rows of a sparse `x`, added up piece by piece."""

    def objective(p: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = 0.0, np.zeros(net.n_params)
        for part in pieces(x):
            w = None if weights is None else weights[part]
            v, g = net.value_and_grad(
                p, x[part].toarray(), t[part], loss, weights=w, penalty=penalty, state=state, mode="eval"
            )  # fmt: skip
            share = (part.stop - part.start) / x.shape[0]
            value += share * v
            gradient += share * g
        return value, gradient

    return objective
