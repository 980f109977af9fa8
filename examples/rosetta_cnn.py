"""A convolutional network learns ten kinds of photographs: it is the one by which eight frameworks were compared.

    python examples/rosetta_cnn.py --epochs 10

looks for CIFAR-10 in the folder `cifar10` inside $CHAINS_DATA or in the user's cache, and else downloads it
(170 MB; for that `pip install pooch`). All 50,000 photographs are trained on, without augmentation; the 10,000 test
photographs are used once, at the end, where about 0.77 of them are recognised after ten epochs. An epoch is
1.9e13 operations: minutes on a few cores. `--samples 2000` trains on the first 2,000 photographs only.

Source: "Deep-learning frameworks: a Rosetta Stone of deep learning" (Karmanov et al., Microsoft, 2018), whose frameworks
ended between 0.75 and 0.79.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from picture import add_plot, save_picture

from chains import (
    SGD,
    Activation,
    Chain,
    Conv,
    CrossEntropyLoss,
    Dense,
    Dropout,
    Flatten,
    MaxPool,
    accuracy,
    relu,
    train,
)
from chains.data import load_cifar10

KINDS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def rosetta_cnn(backend: str = "auto") -> Chain:
    """The network, from images (3, 32, 32) to ten logits; activations follow the pooling, on a quarter of the elements."""
    return Chain(
        _conv(3, 50, relu), _conv(50, 50), MaxPool(2), Activation(relu), Dropout(0.25),  # (50, 16, 16)
        _conv(50, 100, relu), _conv(100, 100), MaxPool(2), Activation(relu), Dropout(0.25),  # (100, 8, 8)
        Flatten(), Dense(6400, 512, relu, weight_init="glorot_uniform"), Dropout(0.5),
        Dense(512, 10, weight_init="glorot_uniform"),
        input_shape=(3, 32, 32), backend=backend,
    )  # fmt: skip


def _conv(inputs: int, outputs: int, activation: str = "identity") -> Conv:
    return Conv(inputs, outputs, 3, activation, padding=1, weight_init="glorot_uniform")


def pixels(images: np.ndarray) -> np.ndarray:
    """Images of bytes as numbers from 0 to 1."""
    return images.astype(np.float32) / 255


def outputs(net: Chain, p: np.ndarray, images: np.ndarray, size: int = 500) -> np.ndarray:
    """The logits of many images, `size` at a time, so that not all intermediate images are in memory."""
    return np.concatenate([net(pixels(images[k : k + size]), p) for k in range(0, len(images), size)])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a convolutional network on CIFAR-10.")
    parser.add_argument("--epochs", type=int, default=10, help="(%(default)s)")
    parser.add_argument("--samples", type=int, default=None, help="photographs to train on (all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="auto", help="what runs the network (%(default)s)")
    parser.add_argument("--data", default=None, help="folder with the six files of CIFAR-10")
    add_plot(parser, "rosetta_cnn.png")
    options = parser.parse_args(arguments)

    try:
        (images, labels), (test_images, test_labels) = load_cifar10(options.data)
    except OSError as error:
        parser.exit(1, f"CIFAR-10 is not here: {error}\n")
    x, t = pixels(images[: options.samples]), labels[: options.samples]

    net = rosetta_cnn(options.backend)
    p = net.init(seed=options.seed)
    print(net.summary(), "\n")

    start = time.perf_counter()
    history = train(
        net, p, x, t, CrossEntropyLoss(), SGD(0.01, momentum=0.9),
        epochs=options.epochs, batch_size=64, drop_last=True, seed=options.seed, progress=True,
    )  # fmt: skip
    seconds = time.perf_counter() - start

    print(f"\n{history}\n")
    y = outputs(net, p, test_images)
    rows = [
        ("accuracy on the test photographs", f"{accuracy(test_labels, y):.4f}"),
        ("photographs trained on", f"{len(x):,}"),
        ("steps of 64", f"{history.steps:,}"),
        ("seconds an epoch", f"{seconds / max(history.epochs, 1):.1f}"),
        ("milliseconds a step", f"{1e3 * seconds / max(history.steps, 1):.1f}"),
    ]
    for name, value in rows:
        print(f"{name:36}{value:>10}")

    def draw(figure: Any) -> None:
        for axis, image, label, found in zip(figure.subplots(2, 6).flat, test_images, test_labels, y.argmax(1), strict=False):
            axis.imshow(image.transpose(1, 2, 0))
            axis.axis("off")
            axis.set_title(f"{KINDS[label]}:\n{KINDS[found]}", color="black" if label == found else "red")

    save_picture(options.plot, (10, 4.5), draw)


if __name__ == "__main__":
    main()
