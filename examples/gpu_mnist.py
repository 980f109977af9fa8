"""LeNet-5 learns to read digits on a GPU: all data are in its memory, and a step is one launch.

    python examples/gpu_mnist.py

looks for MNIST in the folder `mnist` inside $CHAINS_DATA or in the user's cache, and else downloads it (11 MB;
for that `pip install pooch`). Where there is no GPU to use, it says what is missing and trains on the first 6,000
digits with the processor, for three epochs; with `--device cuda` it stops there instead.

The network is that of `lenet5.py`; batches are larger, since a GPU is hardly busy with 32 digits.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from lenet5 import lenet5, pixels
from on_gpu import add_device, choose, machine

from chains import Adam, Chain, CrossEntropyLoss, History, accuracy, train
from chains.data import load_mnist


def epoch_seconds(history: History) -> str:
    """Of the epochs after the first, in which kernels are compiled, where there are any."""
    times = np.diff(history.seconds, prepend=0.0)
    return f"{np.mean(times[1:] if len(times) > 1 else times):.3f}" if len(times) else "none"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train LeNet-5 on MNIST on a GPU.")
    add_device(parser)
    parser.add_argument("--epochs", type=int, default=None, help="(10; without a GPU 3)")
    parser.add_argument("--samples", type=int, default=None, help="digits to train on (all; without a GPU 6,000)")
    parser.add_argument("--batch", type=int, default=None, help="digits a step (512; without a GPU 32)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default=None, help="folder with the four files of MNIST")
    options = parser.parse_args(arguments)

    place = choose(parser, options.device, "fewer digits and epochs")
    on_gpu = place.on_gpu
    epochs = (10 if on_gpu else 3) if options.epochs is None else options.epochs
    samples = (None if on_gpu else 6_000) if options.samples is None else options.samples
    batch = (512 if on_gpu else 32) if options.batch is None else options.batch

    try:
        (images, labels), (test_images, test_labels) = load_mnist(options.data)
    except OSError as error:
        parser.exit(1, f"MNIST is not here: {error}\n")
    x, t = pixels(images[:samples]), labels[:samples]

    net = Chain(*lenet5().layers, input_shape=(1, 28, 28), backend=place.backend)
    p = net.init(seed=options.seed, device=place.memory)  # its place decides where all is done
    history = train(
        net, p, x, t, CrossEntropyLoss(), Adam(2e-3 if batch > 64 else 1e-3),
        epochs=epochs, batch_size=batch, seed=options.seed, progress=True,
    )  # fmt: skip

    outputs = net(pixels(test_images), p, out=np.empty((len(test_images), 10), np.float32))  # back in the computer's memory
    rows = [
        ("machine", machine(place)),
        ("digits trained on", f"{len(x):,}"),
        ("epochs", f"{history.epochs}"),
        ("seconds an epoch", epoch_seconds(history)),
        ("accuracy on the test digits", f"{accuracy(test_labels, outputs):.4f}"),
    ]
    print()
    for name, value in rows:
        print(f"{name:32}{value}")


if __name__ == "__main__":
    main()
