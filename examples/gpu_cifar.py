"""The network of `rosetta_cnn.py` learns on a GPU, from photographs in its memory or from batches that are streamed to it.

    python examples/gpu_cifar.py
    python examples/gpu_cifar.py --augment

looks for CIFAR-10 in the folder `cifar10` inside $CHAINS_DATA or in the user's cache, and else downloads it (170 MB; for
that `pip install pooch`). With `--augment`, threads of the host shift and mirror the photographs of the next batches,
which are copied to the GPU while it learns from the ones before.

Where there is no GPU to use, it says what is missing and uses the processor, for one epoch over the first
1,000 photographs; with `--device cuda` it stops there instead.

Source: "Deep-learning frameworks: a Rosetta Stone of deep learning" (Karmanov et al., Microsoft, 2018), whose frameworks
ended between 0.75 and 0.79 after ten epochs without augmentation.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from on_gpu import add_device, choose, machine
from rosetta_cnn import pixels, rosetta_cnn

from chains import SGD, Chain, CrossEntropyLoss, accuracy, train
from chains.backends import Cupy
from chains.data import Augment, Batches, load_cifar10, prefetch


def outputs(net: Chain, p: np.ndarray, images: np.ndarray, size: int = 500) -> np.ndarray:
    """The logits of many images, `size` at a time, so that not all intermediate images are in memory."""
    y = np.empty((len(images), 10), np.float32)
    for k in range(0, len(images), size):
        net(pixels(images[k : k + size]), p, out=y[k : k + size])
    return y


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a convolutional network on CIFAR-10 on a GPU.")
    add_device(parser)
    parser.add_argument("--precision", choices=("float32", "tf32"), default="float32", help="of products on a GPU")
    parser.add_argument("--augment", action="store_true", help="shift and mirror the photographs, and stream them")
    parser.add_argument("--epochs", type=int, default=None, help="(10; without a GPU 1)")
    parser.add_argument("--samples", type=int, default=None, help="photographs to train on (all; without a GPU 1,000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default=None, help="folder with the six files of CIFAR-10")
    options = parser.parse_args(arguments)

    place = choose(parser, options.device, "fewer photographs and epochs")
    on_gpu = place.on_gpu
    epochs = (10 if on_gpu else 1) if options.epochs is None else options.epochs
    samples = (None if on_gpu else 1_000) if options.samples is None else options.samples

    try:
        (images, labels), (test_images, test_labels) = load_cifar10(options.data)
    except OSError as error:
        parser.exit(1, f"CIFAR-10 is not here: {error}\n")
    x, t = pixels(images[:samples]), labels[:samples]
    if not on_gpu:
        test_images, test_labels = test_images[:1_000], test_labels[:1_000]

    backend = Cupy(precision=options.precision) if place.fused else place.backend
    net = rosetta_cnn(backend)
    p = net.init(seed=options.seed, device=place.memory)  # its place decides where all is done
    loss, optimizer = CrossEntropyLoss(), SGD(0.01, momentum=0.9)
    rest = {"epochs": epochs, "seed": options.seed, "progress": True}
    if options.augment:
        batches = Batches(x, t, batch_size=64, drop_last=True, seed=options.seed, augment=Augment())
        history = train(net, p, prefetch(batches), None, loss, optimizer, **rest)
    else:
        history = train(net, p, x, t, loss, optimizer, batch_size=64, drop_last=True, **rest)

    times = np.diff(history.seconds, prepend=0.0)
    rows = [
        ("machine", machine(place)),
        ("photographs trained on", f"{len(x):,}, {'streamed' if options.augment else 'all at hand'}"),
        ("epochs", f"{history.epochs}"),
        ("seconds an epoch", f"{np.min(times):.3f}" if len(times) else "none"),
        ("milliseconds a step", f"{1e3 * np.sum(times) / history.steps:.3f}" if history.steps else "none"),
        ("accuracy on test photographs", f"{accuracy(test_labels, outputs(net, p, test_images)):.4f}"),
    ]
    print()
    for name, value in rows:
        print(f"{name:32}{value}")


if __name__ == "__main__":
    main()
