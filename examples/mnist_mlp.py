"""The network of Nielsen's book learns to read digits, and the picture shows the weights of its 30 hidden units.

It has 784-30-10 sigmoids and is trained with a rate of 3 on batches of 10.

    python examples/mnist_mlp.py --epochs 10

looks for MNIST in the folder `mnist` inside $CHAINS_DATA or in the user's cache, and else downloads it (11 MB;
for that `pip install pooch`). As in the book, 50,000 digits are trained on, 10,000 more validate every epoch,
and the 10,000 test digits are used once, at the end.

The book draws all parameters from N(0, 1). From there some runs never learn one of the digits and stay near
0.85; ``--init glorot_normal`` begins with smaller weights, learns faster and ends between 0.949 and 0.960
(ten epochs, five seeds).

Source: Michael Nielsen, "Neural Networks and Deep Learning", 2015, chapter 1, which reaches about 0.95.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from picture import add_plot, save_picture

from chains import SGD, Chain, Dense, SquaredLoss, accuracy, train, σ
from chains.data import load_mnist, one_hot


def pixels(images: np.ndarray) -> np.ndarray:
    """Images (n, 28, 28) of bytes as rows (n, 784) of numbers from 0 to 1."""
    return images.reshape(len(images), -1).astype(np.float32) / 255


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train Nielsen's network on MNIST.")
    parser.add_argument("--epochs", type=int, default=10, help="(%(default)s; the book has 30)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--init", default="normal", help="initializer of the weights (%(default)s, as in the book)")
    parser.add_argument("--backend", default="auto", help="what runs the network (%(default)s)")
    parser.add_argument("--data", default=None, help="folder with the four files of MNIST")
    add_plot(parser, "mnist_mlp.png")
    options = parser.parse_args(arguments)

    try:
        (images, labels), (test_images, test_labels) = load_mnist(options.data)
    except OSError as error:
        parser.exit(1, f"MNIST is not here: {error}\n")
    x, t = pixels(images), one_hot(labels, 10)
    held = len(x) // 6
    x, t, validation = x[:-held], t[:-held], (x[-held:], t[-held:])

    start_with = {"weight_init": options.init, "bias_init": "normal" if options.init == "normal" else "zeros"}
    net = Chain(Dense(784, 30, σ, **start_with), Dense(30, 10, σ, **start_with), backend=options.backend)
    p = net.init(seed=options.seed)
    print(net.summary(), "\n")

    start = time.perf_counter()
    history = train(
        net, p, x, t, SquaredLoss(), SGD(3.0), epochs=options.epochs, batch_size=10, seed=options.seed,
        validation=validation, metrics=[accuracy], progress=True,
    )  # fmt: skip
    seconds = time.perf_counter() - start

    print(f"\n{history}\n")
    rows = [
        ("accuracy on the test digits", f"{accuracy(test_labels, net(pixels(test_images), p)):.4f}"),
        ("accuracy on the validation digits", f"{accuracy(validation[1], net(validation[0], p)):.4f}"),
        ("digits trained on", f"{len(x):,}"),
        ("seconds an epoch, with validation", f"{seconds / max(history.epochs, 1):.2f}"),
        ("steps a second, with validation", f"{history.steps / seconds:,.0f}"),
    ]
    for name, value in rows:
        print(f"{name:36}{value:>10}")

    def draw(figure: Any) -> None:
        weights = net.views(p)["0.weight"].T.reshape(-1, 28, 28)
        for axis, unit in zip(figure.subplots(3, 10).flat, weights, strict=True):
            axis.imshow(unit, cmap="RdBu_r", vmin=-2, vmax=2)
            axis.axis("off")

    save_picture(options.plot, (10, 3.2), draw)


if __name__ == "__main__":
    main()
