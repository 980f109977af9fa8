"""Nielsen's book: a list of weight matrices, backpropagation for one sample at a time, gradients summed over the batch.

Written from the algorithm in chapter 1 and 2 of "Neural Networks and Deep Learning" (2015), with its conventions:
column vectors, weights of shape (outputs, inputs), new arrays throughout, in float64.
"""

from __future__ import annotations

import random

import numpy as np

from benchmarks.harness.machine import blas_modes
from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Contestant, in_modes
from benchmarks.problems.dense import Problem

Arrays = list[np.ndarray]


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-z))


def sigmoid_prime(z: np.ndarray) -> np.ndarray:
    return sigmoid(z) * (1 - sigmoid(z))


class Network:
    """A sigmoid network trained by plain SGD."""

    def __init__(self, weights: Arrays, biases: Arrays) -> None:
        self.weights = weights
        self.biases = biases

    def epoch(self, data: list[tuple[np.ndarray, np.ndarray]], batch_size: int, rate: float) -> None:
        """One shuffled pass over the samples (x, t), each a pair of columns."""
        random.shuffle(data)
        for start in range(0, len(data), batch_size):
            self.update(data[start : start + batch_size], rate)

    def update(self, batch: list[tuple[np.ndarray, np.ndarray]], rate: float) -> None:
        """One step along the mean gradient of the batch."""
        sum_b = [np.zeros(b.shape) for b in self.biases]
        sum_w = [np.zeros(w.shape) for w in self.weights]
        for x, t in batch:
            grad_b, grad_w = self.backprop(x, t)
            sum_b = [s + g for s, g in zip(sum_b, grad_b, strict=True)]
            sum_w = [s + g for s, g in zip(sum_w, grad_w, strict=True)]
        step = rate / len(batch)
        self.weights = [w - step * s for w, s in zip(self.weights, sum_w, strict=True)]
        self.biases = [b - step * s for b, s in zip(self.biases, sum_b, strict=True)]

    def backprop(self, x: np.ndarray, t: np.ndarray) -> tuple[Arrays, Arrays]:
        """The gradients of half the squared error of one sample, by bias and by weight."""
        activations, zs = [x], []
        for w, b in zip(self.weights, self.biases, strict=True):
            zs.append(np.dot(w, activations[-1]) + b)
            activations.append(sigmoid(zs[-1]))
        grad_b = [np.zeros(b.shape) for b in self.biases]
        grad_w = [np.zeros(w.shape) for w in self.weights]
        delta = (activations[-1] - t) * sigmoid_prime(zs[-1])
        for layer in reversed(range(len(zs))):
            grad_b[layer] = delta
            grad_w[layer] = np.dot(delta, activations[layer].T)
            if layer:
                delta = np.dot(self.weights[layer].T, delta) * sigmoid_prime(zs[layer - 1])
        return grad_b, grad_w


def epoch_rows(problem: Problem, options: Options) -> list[Contestant]:
    """Epochs in shuffled batches."""
    data = [(x[:, None].astype(float), t[:, None].astype(float)) for x, t in zip(problem.x, problem.t, strict=True)]
    network = Network([], [])

    def start() -> None:
        layers = problem.layers(problem.p.astype(float))
        network.weights = [np.ascontiguousarray(w.T) for w, _ in layers]
        network.biases = [b[:, None].copy() for _, b in layers]

    def run(n: int) -> None:
        for _ in range(n):
            network.epoch(data, problem.batch_size or len(data), problem.rate)

    def result() -> np.ndarray:
        return np.concatenate(
            [part for w, b in zip(network.weights, network.biases, strict=True) for part in (w.T.ravel(), b.ravel())]
        )

    return in_modes(Contestant("NumPy per sample (Nielsen), float64", start, run, result), blas_modes())
