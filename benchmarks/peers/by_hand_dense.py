"""The honest baseline: NumPy written by hand for the very network, in place, without a new array in any step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import add, divide, exp, multiply, negative, sqrt, subtract, tanh

from benchmarks.harness.machine import blas_modes
from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Contestant, in_modes
from benchmarks.problems.dense import Problem

_NAME = "NumPy by hand"


def tanh_network(problem: Problem, p: np.ndarray, g: np.ndarray) -> Callable[[], float]:
    """The gradient of in -> tanh -> tanh -> linear under the mean squared error: a call fills `g`, returns the loss."""
    x, t, dtype = problem.x, problem.t, p.dtype
    (w1, b1), (w2, b2), (w3, b3) = problem.layers(p)
    (dw1, db1), (dw2, db2), (dw3, db3) = problem.layers(g)
    n, outputs = t.shape
    y1, y2, y3 = (np.empty((n, len(b)), dtype) for b in (b1, b2, b3))
    d1, d2 = np.empty_like(y1), np.empty_like(y2)
    x_t, y1_t, y2_t, w2_t, w3_t = x.T, y1.T, y2.T, w2.T, w3.T
    flat, ones = y3.reshape(-1), np.ones(n, dtype)
    one, slope, share = np.array(1.0, dtype), np.array(2.0 / (n * outputs), dtype), 1.0 / (n * outputs)

    def gradient() -> float:
        x.dot(w1, y1)
        add(y1, b1, y1)
        tanh(y1, y1)
        y1.dot(w2, y2)
        add(y2, b2, y2)
        tanh(y2, y2)
        y2.dot(w3, y3)
        add(y3, b3, y3)
        subtract(y3, t, y3)
        value = flat.dot(flat) * share
        multiply(y3, slope, y3)
        y2_t.dot(y3, dw3)
        ones.dot(y3, db3)
        y3.dot(w3_t, d2)
        multiply(y2, y2, y2)
        subtract(one, y2, y2)
        multiply(d2, y2, d2)
        y1_t.dot(d2, dw2)
        ones.dot(d2, db2)
        d2.dot(w2_t, d1)
        multiply(y1, y1, y1)
        subtract(one, y1, y1)
        multiply(d1, y1, d1)
        x_t.dot(d1, dw1)
        ones.dot(d1, db1)
        return value

    return gradient


def sigmoid_network(problem: Problem, p: np.ndarray, g: np.ndarray, x: np.ndarray, t: np.ndarray) -> Callable[[], float]:
    """The gradient of in -> sigmoid -> sigmoid under half the squared error, summed over the batch `x`, `t`."""
    dtype = p.dtype
    (w1, b1), (w2, b2) = problem.layers(p)
    (dw1, db1), (dw2, db2) = problem.layers(g)
    n = len(x)
    y1, y2 = np.empty((n, len(b1)), dtype), np.empty((n, len(b2)), dtype)
    d1, d2 = np.empty_like(y1), np.empty_like(y2)
    x_t, y1_t, w2_t = x.T, y1.T, w2.T
    flat, ones, one, share = d2.reshape(-1), np.ones(n, dtype), np.array(1.0, dtype), 0.5 / n

    def gradient() -> float:
        x.dot(w1, y1)
        add(y1, b1, y1)
        negative(y1, y1)
        exp(y1, y1)
        add(y1, one, y1)
        divide(one, y1, y1)
        y1.dot(w2, y2)
        add(y2, b2, y2)
        negative(y2, y2)
        exp(y2, y2)
        add(y2, one, y2)
        divide(one, y2, y2)
        subtract(y2, t, d2)
        value = flat.dot(flat) * share
        multiply(d2, y2, d2)
        subtract(one, y2, y2)
        multiply(d2, y2, d2)
        y1_t.dot(d2, dw2)
        ones.dot(d2, db2)
        d2.dot(w2_t, d1)
        multiply(d1, y1, d1)
        subtract(one, y1, y1)
        multiply(d1, y1, d1)
        x_t.dot(d1, dw1)
        ones.dot(d1, db1)
        return value

    return gradient


def adam(p: np.ndarray, g: np.ndarray, learning_rate: float) -> tuple[Callable[[], None], Callable[[], None]]:
    """Two functions: one that moves `p` along `g`, one that goes back to the first step."""
    m, v, s = (np.zeros_like(p) for _ in range(3))
    beta1, beta2 = 0.9, 0.999
    keep1, keep2, new1, new2 = (np.array(beta, p.dtype) for beta in (beta1, beta2, 1 - beta1, 1 - beta2))
    rate, eps = np.zeros((), p.dtype), np.zeros((), p.dtype)
    count = 0

    def update() -> None:
        nonlocal count
        count += 1
        root = math.sqrt(1.0 - beta2**count)
        rate[()] = learning_rate * root / (1.0 - beta1**count)
        eps[()] = 1e-8 * root
        multiply(m, keep1, m)
        multiply(g, new1, s)
        add(m, s, m)
        multiply(v, keep2, v)
        multiply(g, g, s)
        multiply(s, new2, s)
        add(v, s, v)
        sqrt(v, s)
        add(s, eps, s)
        divide(m, s, s)
        multiply(s, rate, s)
        subtract(p, s, p)

    def reset() -> None:
        nonlocal count
        m.fill(0.0)
        v.fill(0.0)
        count = 0

    return update, reset


def step_rows(problem: Problem, options: Options) -> list[Contestant]:
    """Steps with all samples."""
    p, g = problem.p.copy(), np.empty_like(problem.p)
    if problem.hidden == "tanh":
        gradient = tanh_network(problem, p, g)
        update, reset = adam(p, g, problem.rate)

        def run(n: int) -> None:
            for _ in range(n):
                gradient()
                update()
    else:
        gradient = sigmoid_network(problem, p, g, problem.x, problem.t)
        rate = np.array(problem.rate / problem.samples, p.dtype)

        def reset() -> None:
            pass

        def run(n: int) -> None:
            with np.errstate(all="ignore"):  # exp may overflow to infinity: the sigmoid is then 0
                for _ in range(n):
                    gradient()
                    multiply(g, rate, g)
                    subtract(p, g, p)

    def start() -> None:
        p[...] = problem.p
        reset()

    return in_modes(Contestant(f"{_NAME}, {problem.dtype}", start, run, lambda: p), blas_modes())


def epoch_rows(problem: Problem, options: Options) -> list[Contestant]:
    """Epochs of the sigmoid network in shuffled batches, gathered into one buffer."""
    p, g, size = problem.p.copy(), np.empty_like(problem.p), problem.batch_size
    x, t = problem.x, problem.t
    x_batch, t_batch = np.empty((size, x.shape[1]), p.dtype), np.empty((size, t.shape[1]), p.dtype)
    gradient = sigmoid_network(problem, p, g, x_batch, t_batch)
    rate = np.array(problem.rate / size, p.dtype)
    rng, order = np.random.default_rng(0), np.arange(len(x))
    pieces = [order[k : k + size] for k in range(0, len(x), size)]  # views: they change with the order

    def start() -> None:
        p[...] = problem.p

    def run(n: int) -> None:
        with np.errstate(all="ignore"):
            for _ in range(n):
                rng.shuffle(order)
                for piece in pieces:
                    x.take(piece, 0, x_batch, "clip")
                    t.take(piece, 0, t_batch, "clip")
                    gradient()
                    multiply(g, rate, g)
                    subtract(p, g, p)

    return in_modes(Contestant(f"{_NAME}, {problem.dtype}", start, run, lambda: p), blas_modes())


def gradient_rows(problem: Problem, options: Options) -> list[Contestant]:
    """The value and gradient of the tanh network."""
    p, g = problem.p.copy(), np.empty_like(problem.p)
    gradient = tanh_network(problem, p, g)
    value: list[Any] = [0.0]

    def run(n: int) -> None:
        for _ in range(n):
            value[0] = gradient()

    return in_modes(Contestant(f"{_NAME}, {problem.dtype}", lambda: None, run, lambda: (value[0], g)), blas_modes())


call_rows = gradient_rows
