"""LeNet-5 learns to read digits on a GPU: all data lie there, and a step is one launch.

    python examples/gpu_mnist.py

looks for MNIST in the folder `mnist` inside $CHAINS_DATA or in the user's cache, and else downloads it (11 MB;
for that `pip install pooch`). Where there is no GPU to use, it says what is missing and trains on the first 6,000
digits with the processor, for three epochs; with `--device cuda` it stops there instead.

The network is that of `lenet5.py`; batches are larger, since a GPU is hardly busy with 32 digits.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence

import numpy as np

from chains import Adam, Chain, Conv, CrossEntropyLoss, Dense, Flatten, History, MaxPool, accuracy, relu, train
from chains.data import load_mnist


def lenet5() -> Chain:
    """The network, from images (1, 28, 28) to ten logits."""
    return Chain(
        Conv(1, 6, 5, relu), MaxPool(2),  # (6, 12, 12)
        Conv(6, 16, 5, relu), MaxPool(2),  # (16, 4, 4)
        Flatten(), Dense(256, 120, relu), Dense(120, 84, relu), Dense(84, 10),
        input_shape=(1, 28, 28),
    )  # fmt: skip


def pixels(images: np.ndarray) -> np.ndarray:
    """Images (n, 28, 28) of bytes as (n, 1, 28, 28), one channel of numbers from 0 to 1."""
    return images[:, None].astype(np.float32) / 255


def missing() -> str:
    """What is missing for computing on a GPU; nothing where there is one."""
    try:
        Chain(Dense(1, 1)).init(device="cuda")
    except ValueError as error:
        return str(error)
    return ""


def machine(on_gpu: bool) -> str:
    """What computes."""
    if not on_gpu:
        return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    import cupy

    return cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()


def epoch_seconds(history: History) -> str:
    """Of the epochs after the first, in which kernels are compiled, where there are any."""
    times = np.diff(history.seconds, prepend=0.0)
    return f"{np.mean(times[1:] if len(times) > 1 else times):.3f}" if len(times) else "none"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train LeNet-5 on MNIST on a GPU.")
    parser.add_argument(
        "--device", choices=("auto", "cuda", "cpu"), default="auto", help="(%(default)s: a GPU if there is one)"
    )
    parser.add_argument("--epochs", type=int, default=None, help="(10; without a GPU 3)")
    parser.add_argument("--samples", type=int, default=None, help="digits to train on (all; without a GPU 6,000)")
    parser.add_argument("--batch", type=int, default=None, help="digits a step (512; without a GPU 32)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default=None, help="folder with the four files of MNIST")
    options = parser.parse_args(arguments)

    sentence = "" if options.device == "cpu" else missing()
    if sentence and options.device == "cuda":
        parser.exit(1, f"No GPU can be used: {sentence}\n")
    on_gpu = options.device != "cpu" and not sentence
    if sentence:
        print(f"No GPU can be used: {sentence}\nThe processor goes on, with fewer digits and epochs.\n")
    epochs = (10 if on_gpu else 3) if options.epochs is None else options.epochs
    samples = (None if on_gpu else 6_000) if options.samples is None else options.samples
    batch = (512 if on_gpu else 32) if options.batch is None else options.batch

    try:
        (images, labels), (test_images, test_labels) = load_mnist(options.data)
    except OSError as error:
        parser.exit(1, f"MNIST is not here: {error}\n")
    x, t = pixels(images[:samples]), labels[:samples]

    net = lenet5()
    p = net.init(seed=options.seed, device="cuda" if on_gpu else "cpu")  # its place decides where all is done
    history = train(
        net, p, x, t, CrossEntropyLoss(), Adam(2e-3 if batch > 64 else 1e-3),
        epochs=epochs, batch_size=batch, seed=options.seed, progress=True,
    )  # fmt: skip

    outputs = net(pixels(test_images), p, out=np.empty((len(test_images), 10), np.float32))  # back in the computer's memory
    rows = [
        ("machine", machine(on_gpu)),
        ("digits trained on", f"{len(x):,}"),
        ("epochs", f"{history.epochs}"),
        ("seconds an epoch", epoch_seconds(history)),
        ("accuracy on the test digits", f"{accuracy(outputs, test_labels):.4f}"),
    ]
    print()
    for name, value in rows:
        print(f"{name:32}{value}")


if __name__ == "__main__":
    main()
