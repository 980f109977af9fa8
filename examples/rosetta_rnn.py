"""A recurrent network learns whether a movie review is positive: it is the one by which eight frameworks were compared.

    CHAINS_DATA=... python examples/rosetta_rnn.py --epochs 3

looks for the two files of IMDB, `imdb_train.npz` and `imdb_test.npz`, in the folder `imdb` inside $CHAINS_DATA. Of each
review the last 150 words are read, of 30,000 words in all. The 25,000 test reviews are used once, at the end.

Source: "Deep-learning frameworks: a Rosetta Stone of deep learning" (Karmanov et al., Microsoft, 2018), whose frameworks
ended between 0.85 and 0.86.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from picture import add_plot, save_picture

from chains import GRU, Adam, Chain, CrossEntropyLoss, Dense, Embedding, accuracy, train
from chains.data import load_imdb

WORDS, STEPS = 30_000, 150


def rosetta_rnn(backend: str = "auto") -> Chain:
    """The network, from ids (150,) to two logits, made of the last step."""
    return Chain(Embedding(WORDS, 125), GRU(125, 100), Dense(100, 2), input_shape=(STEPS,), backend=backend)


def outputs(net: Chain, p: np.ndarray, x: np.ndarray, lengths: np.ndarray | None, size: int = 500) -> np.ndarray:
    """The logits of many reviews, `size` at a time."""
    parts = [slice(k, k + size) for k in range(0, len(x), size)]
    return np.concatenate([net(x[part], p, lengths=None if lengths is None else lengths[part]) for part in parts])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a recurrent network on IMDB.")
    parser.add_argument("--epochs", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--samples", type=int, default=None, help="reviews to train on, and to test on (all)")
    parser.add_argument("--lengths", action="store_true", help="skip the padding of short reviews")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="auto", help="what runs the network (%(default)s)")
    parser.add_argument("--data", default=None, help="folder with the two files of IMDB")
    add_plot(parser, "rosetta_rnn.png")
    options = parser.parse_args(arguments)

    try:
        (x, t), (x_test, t_test) = load_imdb(options.data, count=WORDS, length=STEPS)
    except OSError as error:
        parser.exit(1, f"IMDB is not here: {error}\n")
    x, t, x_test, t_test = (each[: options.samples] for each in (x, t, x_test, t_test))
    lengths, test_lengths = ((each != 0).sum(axis=1) if options.lengths else None for each in (x, x_test))

    net = rosetta_rnn(options.backend)
    p = net.init(seed=options.seed)
    print(net.summary(), "\n")

    start = time.perf_counter()
    history = train(
        net, p, x, t, CrossEntropyLoss(), Adam(1e-3), lengths=lengths,
        epochs=options.epochs, batch_size=64, drop_last=True, seed=options.seed, progress=True,
    )  # fmt: skip
    seconds = time.perf_counter() - start

    print(f"\n{history}\n")
    y = outputs(net, p, x_test, test_lengths)
    rows = [
        ("accuracy on the test reviews", f"{accuracy(t_test, y):.4f}"),
        ("reviews trained on", f"{len(x):,}"),
        ("steps of 64", f"{history.steps:,}"),
        ("seconds an epoch", f"{seconds / max(history.epochs, 1):.1f}"),
        ("milliseconds a step", f"{1e3 * seconds / max(history.steps, 1):.1f}"),
    ]
    for name, value in rows:
        print(f"{name:36}{value:>10}")

    def draw(figure: Any) -> None:
        axis, positive = figure.subplots(), 1 / (1 + np.exp(y[:, 0] - y[:, 1]))
        for label, name in enumerate(("negative", "positive")):
            axis.hist(positive[t_test == label], np.linspace(0, 1, 41), alpha=0.5, label=f"{name} reviews")
        axis.set(xlabel="probability of a positive review", ylabel="test reviews")
        axis.legend()

    save_picture(options.plot, (6, 4), draw)


if __name__ == "__main__":
    main()
