"""LeNet-5 learns to read digits, and the picture shows digits that it reads wrongly.

It has two convolutions with pooling and three dense layers, and is trained by Adam on batches of 32.

    python examples/lenet5.py --epochs 10

looks for MNIST in the folder `mnist` inside $CHAINS_DATA or in the user's cache, and else downloads it (11 MB;
for that `pip install pooch`). All 60,000 digits are trained on; the 10,000 test digits are used once, at the end.
`--samples 5000` trains on the first 5,000 only.

Source: LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition", 1998, in the
form of SimpleChains.jl's example: rectified units, max pooling, 44,426 parameters.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from picture import add_plot, save_picture

from chains import Adam, Chain, Conv, CrossEntropyLoss, Dense, Flatten, MaxPool, accuracy, relu, train
from chains.data import load_mnist


def lenet5(backend: str = "auto") -> Chain:
    """The network, from images (1, 28, 28) to ten logits."""
    return Chain(
        Conv(1, 6, 5, relu), MaxPool(2),  # (6, 12, 12)
        Conv(6, 16, 5, relu), MaxPool(2),  # (16, 4, 4)
        Flatten(), Dense(256, 120, relu), Dense(120, 84, relu), Dense(84, 10),
        input_shape=(1, 28, 28), backend=backend,
    )  # fmt: skip


def pixels(images: np.ndarray) -> np.ndarray:
    """Images (n, 28, 28) of bytes as (n, 1, 28, 28), one channel of numbers from 0 to 1."""
    return images[:, None].astype(np.float32) / 255


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train LeNet-5 on MNIST.")
    parser.add_argument("--epochs", type=int, default=10, help="(%(default)s)")
    parser.add_argument("--samples", type=int, default=None, help="digits to train on (all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="auto", help="what runs the network (%(default)s)")
    parser.add_argument("--data", default=None, help="folder with the four files of MNIST")
    add_plot(parser, "lenet5.png")
    options = parser.parse_args(arguments)

    try:
        (images, labels), (test_images, test_labels) = load_mnist(options.data)
    except OSError as error:
        parser.exit(1, f"MNIST is not here: {error}\n")
    x, t = pixels(images[: options.samples]), labels[: options.samples]

    net = lenet5(options.backend)
    p = net.init(seed=options.seed)
    print(net.summary(), "\n")

    history = train(
        net, p, x, t, CrossEntropyLoss(), Adam(3e-4),
        epochs=options.epochs, batch_size=32, seed=options.seed, progress=True,
    )  # fmt: skip

    print(f"\n{history}\n")
    outputs = net(pixels(test_images), p)
    rows = [
        ("accuracy on the test digits", f"{accuracy(test_labels, outputs):.4f}"),
        ("digits trained on", f"{len(x):,}"),
        ("seconds an epoch", f"{history.seconds[-1] / history.epochs:.2f}" if history.epochs else "none"),
        ("microseconds a digit", f"{1e6 * history.seconds[-1] / (history.epochs * len(x)):.1f}" if history.epochs else "none"),
    ]
    for name, value in rows:
        print(f"{name:36}{value:>10}")

    def draw(figure: Any) -> None:
        read, axes = outputs.argmax(1), figure.subplots(2, 6).ravel()
        for axis, k in zip(axes, np.flatnonzero(read != test_labels), strict=False):
            axis.imshow(test_images[k], cmap="gray_r")
            axis.set_title(f"{test_labels[k]}, read as {read[k]}")
        for axis in axes:
            axis.axis("off")

    save_picture(options.plot, (10, 4), draw)


if __name__ == "__main__":
    main()
