"""A wide network learns on a GPU, with products in float32 and in TF32: how much faster and less accurate is TF32?

    python examples/gpu_wide.py

A network of three layers learns along which of ten random directions a random point is farthest. Nearly all the work is
matrix products, so the table shows the speed of the GPU's products. It also shows what rounding their factors
to 10 bits gains and costs; sums and parameters stay float32.

Where there is no GPU to use, it says what is missing and uses the processor and a network a sixteenth as wide,
which has one row; with `--device cuda` it stops there instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from on_gpu import add_device, choose, machine

from chains import SGD, Chain, CrossEntropyLoss, Dense, accuracy, relu, train
from chains.backends import Cupy

CLASSES = 10


def points(samples: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Normally distributed points (samples, width), and the direction, of ten, along which each is farthest."""
    directions = np.random.default_rng(0).standard_normal((width, CLASSES), np.float32)
    x = np.random.default_rng(seed).standard_normal((samples, width), np.float32)
    return x, (x @ directions).argmax(1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a wide network on a GPU, at each precision.")
    add_device(parser)
    parser.add_argument("--width", type=int, default=None, help="of the hidden layers (4,096; without a GPU 256)")
    parser.add_argument("--samples", type=int, default=None, help="points to train on (65,536; without a GPU 4,096)")
    parser.add_argument("--epochs", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    place = choose(parser, options.device, "a smaller network and fewer points")
    on_gpu = place.on_gpu
    width = options.width or (4096 if on_gpu else 256)
    samples = options.samples or (65_536 if on_gpu else 4_096)
    batch = min(1024, max(1, samples // 8))

    inputs = max(1, width // 2)
    (x, t), (test_x, test_t) = (points(n, inputs, seed) for n, seed in ((samples, 1), (max(1, samples // 8), 2)))
    backends = {"float32": "cupy", "tf32": Cupy(precision="tf32")} if place.fused else {"float32": place.backend}
    loss, optimizer = CrossEntropyLoss(), SGD(0.05, momentum=0.9)
    print(f"{machine(place)}: {inputs:,} -> {width:,} -> {width:,} -> {CLASSES}, {samples:,} points, batches of {batch:,}\n")
    print(f"{'products':12}{'seconds an epoch':>18}{'TFLOP/s':>10}{'accuracy':>10}")
    for name, backend in backends.items():
        net = Chain(Dense(inputs, width, relu), Dense(width, width, relu), Dense(width, CLASSES), backend=backend)
        p = net.init(seed=options.seed, device=place.memory)
        history = train(net, p, x, t, loss, optimizer, epochs=options.epochs, batch_size=batch, seed=options.seed)
        outputs = net(test_x, p, out=np.empty((len(test_x), CLASSES), np.float32))
        times = np.diff(history.seconds, prepend=0.0)
        seconds = float(np.min(times)) if len(times) else np.nan  # the first one has the compilation in it
        rate = net.program(loss, optimizer, target_shape=()).flops(samples) / seconds / 1e12
        print(f"{name:12}{seconds:>18.4f}{rate:>10.3f}{accuracy(test_t, outputs):>10.4f}")


if __name__ == "__main__":
    main()
