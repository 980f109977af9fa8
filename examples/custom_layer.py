"""A custom layer and a custom activation are checked against central differences, then trained.

    python examples/custom_layer.py

A layer declares its parameters and scratch arrays, and records how its output is filled. Its pullback is derived from these
operations. A class may have a method `pullback` instead, as in `chains/layers/dense.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from chains import Adam, Chain, Dense, Layer, SquaredLoss, activation, train
from chains.expr import sin
from chains.layers import Declaration
from chains.program import Recorder, View
from chains.testing import check_gradients

# An activation is a formula and its derivative. Source: Ziyin, Hartwig and Ueda 2020, equation 3 with a = 1.
snake = activation("snake", lambda x: x + sin(x) ** 2, derivative=lambda x: 1 + sin(2 * x))


class Product(Layer):
    """``y = (x @ a + c) * (x @ b + 1)``: products of two features, which a Dense layer can only approximate."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs = inputs, outputs

    def fixed_input(self) -> tuple[int, ...]:
        return (self.inputs,)

    def declare(self, d: Declaration) -> None:
        d.param("a", (self.inputs, self.outputs), "lecun_normal")
        d.param("b", (self.inputs, self.outputs), "lecun_normal")
        d.param("c", (self.outputs,), "zeros")
        d.output((self.outputs,))
        d.temporary("left", (self.outputs,))  # what the pullback reads is kept without your doing
        d.temporary("right", (self.outputs,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.left, x, p.a)
        ops.matmul(s.right, x, p.b)
        ops.map(y, lambda u, v, c: (u + c) * (v + 1), s.left, s.right, p.c)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Check and train a custom layer.")
    parser.add_argument("--epochs", type=int, default=100)
    options = parser.parse_args(arguments)

    own = Chain(Product(8, 8), Dense(8, 16, snake), Dense(16, 1))
    plain = Chain(Dense(8, 24, "tanh"), Dense(24, 16, "tanh"), Dense(16, 1))
    print(own.summary(), "\n")

    checked = check_gradients(own)
    by_p, by_x = checked.parameters, checked.inputs
    print(f"largest difference from central differences: {by_p:.1e} for parameters, {by_x:.1e} for inputs\n")

    # Something to learn: a wave of the inner product of two vectors, which are the halves of a sample.
    x, x_test = np.random.default_rng(0).uniform(-1, 1, (2, 2000, 8)).astype(np.float32)
    t, t_test = (np.sin(2 * np.sum(x[:, :4] * x[:, 4:], axis=1, keepdims=True)) for x in (x, x_test))

    loss, rows = SquaredLoss(), []
    for name, net in [("custom layer and activation", own), ("Dense and tanh only", plain)]:
        p = net.init(seed=0)
        history = train(net, p, x, t, loss, Adam(3e-3), epochs=options.epochs, batch_size=50, progress=True)
        rows.append((name, net.n_params, history.loss[-1], net.loss(p, x_test, t_test, loss), history.seconds[-1]))

    print(f"\n{'network':28}{'parameters':>12}{'train loss':>14}{'test loss':>14}{'seconds':>10}")
    for name, size, train_loss, test_loss, seconds in rows:
        print(f"{name:28}{size:12}{train_loss:14.3e}{test_loss:14.3e}{seconds:10.2f}")


if __name__ == "__main__":
    main()
