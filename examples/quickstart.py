"""A small network learns the exponential of 2x2 matrices: first with Adam, then with BFGS.

It shows a whole session: the network as a table, training with a progress bar, a minimiser of a function of a flat
vector, and the losses of both. With ``--program`` it also prints the operations of a step. No data
are downloaded. The task is the first example of SimpleChains.jl.

    python examples/quickstart.py

takes a few seconds and saves a picture of the losses and the predictions. A few matrices with large exponentials
dominate the mean losses, so the table has the median error too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from picture import add_plot, save_picture

from chains import Adam, Chain, Dense, History, SquaredLoss, minimize, tanh, train


def matrix_exponential(a: np.ndarray) -> np.ndarray:
    """The exponentials of matrices, shape (..., n, n), by scaling and squaring."""
    # exp(a) = exp(a / 2^k)^(2^k), and for a small matrix a few terms of the Taylor series do.
    largest = np.abs(a).sum(axis=-1).max(initial=1.0)
    squarings = int(np.ceil(np.log2(largest))) + 1
    a = a / 2.0**squarings
    term = total = np.broadcast_to(np.eye(a.shape[-1]), a.shape)
    for order in range(1, 16):
        term = term @ a / order
        total = total + term
    for _ in range(squarings):
        total = total @ total
    return total


def make_data(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Matrices of N(0, 1) numbers and their exponentials, each as rows of shape (samples, 4)."""
    matrices = np.random.default_rng(seed).normal(size=(samples, 2, 2))
    rows = (samples, 4)
    return matrices.reshape(rows).astype(np.float32), matrix_exponential(matrices).reshape(rows).astype(np.float32)


def draw(
    figure: Any, history: History, losses: list[float], seconds: list[float], y: np.ndarray, t: np.ndarray
) -> None:  # fmt: skip
    """The loss over time, with Adam and BFGS, and the outputs `y` against the true exponentials `t`."""
    left, right = figure.subplots(1, 2)
    left.semilogy(history.seconds, history.loss, label="Adam")
    left.semilogy(history.seconds[-1] + np.array(seconds), losses, label="BFGS")
    left.set(xlabel="seconds", ylabel="loss on the training data", title="Training")
    left.legend()
    for k, name in enumerate(["exp(A)[0, 0]", "exp(A)[0, 1]", "exp(A)[1, 0]", "exp(A)[1, 1]"]):
        right.plot(t[:, k], y[:, k], ".", markersize=3, label=name)
    limits = [t.min(), t.max()]
    right.plot(limits, limits, color="black", linewidth=0.8)
    right.set(xlabel="true", ylabel="predicted", title="Matrices not trained on")
    right.set_xscale("symlog")
    right.set_yscale("symlog")
    right.legend()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Learn the exponential of 2x2 matrices.")
    parser.add_argument("--samples", type=int, default=5000, help="matrices to train on, and as many to test on (%(default)s)")
    parser.add_argument("--epochs", type=int, default=300, help="epochs of Adam (%(default)s)")
    parser.add_argument("--iterations", type=int, default=200, help="iterations of BFGS at most (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    add_plot(parser, "quickstart.png")
    parser.add_argument("--program", action="store_true", help="print the recorded operations of a step of training too")
    options = parser.parse_args(arguments)

    x, t = make_data(options.samples, 2 * options.seed)
    x_test, t_test = make_data(options.samples, 2 * options.seed + 1)

    # A network holds no parameters: they are one flat vector, which every call takes.
    net = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))
    loss = SquaredLoss()
    p = net.init(seed=options.seed)
    print(net.summary(), "\n")
    if options.program:
        print(net.program(loss), "\n")

    def row(name: str, seconds: float) -> tuple[str, float, float, float, float]:
        error = float(np.median(np.abs(net(x_test, p) - t_test)))
        return name, net.loss(p, x, t, loss), net.loss(p, x_test, t_test, loss), error, seconds

    # Adam updates p in place.
    history = train(
        net, p, x, t, loss, Adam(3e-3), epochs=options.epochs, batch_size=100, seed=options.seed, progress=True
    )  # fmt: skip
    rows = [row("Adam", history.seconds[-1])]

    # BFGS sees a function of a vector. It computes in float64, whatever the type of p.
    points, seconds, start = [p], [0.0], time.perf_counter()

    def watch(now: np.ndarray) -> None:
        points.append(now.copy())
        seconds.append(time.perf_counter() - start)

    result = minimize(net.objective(x, t, loss), p, "BFGS", maxiter=options.iterations, callback=watch, progress=True)
    p = result.x
    rows.append(row("BFGS", seconds[-1]))

    print(f"\n{'after':8}{'train loss':>14}{'test loss':>14}{'median error':>14}{'seconds':>10}")
    for name, train_loss, test_loss, error, took in rows:
        print(f"{name:8}{train_loss:14.3e}{test_loss:14.3e}{error:14.3e}{took:10.2f}")
    print()
    losses = [net.loss(point, x, t, loss) for point in points]
    y = net(x_test, p)
    save_picture(options.plot, (10, 4.5), lambda figure: draw(figure, history, losses, seconds, y, t_test))


if __name__ == "__main__":
    main()
