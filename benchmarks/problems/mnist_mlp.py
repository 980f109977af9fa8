"""Nielsen's network on MNIST: 784 -> 30 sigmoid -> 10 sigmoid, plain SGD in batches of 10, rate 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from statistics import median

import numpy as np
from tqdm.auto import tqdm

import chains
from benchmarks.harness.peers import Options, rows
from benchmarks.harness.report import progress_bar
from benchmarks.harness.timing import Contest, Criterion, Table
from benchmarks.peers import chains_dense as chains_peer
from benchmarks.peers.chains_dense import native_criteria
from benchmarks.problems.dense import Problem, initial, outputs, value_and_grad

SIZES = (784, 30, 10)
BATCH = 10
SAMPLES = 50_000  # to train on
JUDGED_EPOCHS = (1, 2, 10)


@cache
def _data() -> tuple[np.ndarray, ...]:
    """Training images and labels, test images and labels."""
    from chains.data import load_mnist

    (x, labels), (x_test, test_labels) = load_mnist()
    return x[:SAMPLES].reshape(-1, 784), labels[:SAMPLES], x_test.reshape(-1, 784) / 255.0, test_labels


def problem(samples: int, dtype: str, batch_size: int | None = BATCH, seed: int = 0) -> Problem:
    """The first images, scaled to [0, 1], and their labels as one-hot vectors."""
    x, labels, *_ = _data()
    t = np.zeros((samples, 10), dtype)
    t[np.arange(samples), labels[:samples]] = 1.0
    scaled = x[:samples].astype(dtype) / np.array(255, dtype)
    return Problem(
        SIZES, "sigmoid", "sigmoid", "squared", "sgd", 3.0, scaled, t, initial(SIZES, "normal", seed, dtype), batch_size
    )


def accuracy(p: Problem, trained: np.ndarray) -> float:
    """The share of the test images that are recognised."""
    *_, x, labels = _data()
    return float((outputs(p, trained, x).argmax(1) == labels).mean())


def contests(options: Options) -> list[Contest]:
    """A step of 10, then an epoch."""
    return [_steps(problem(BATCH, options.dtype, None), options), _epochs(options)]


def _steps(p: Problem, options: Options) -> Contest:
    def criteria(table: Table) -> list[Criterion]:
        text = "mnist_mlp: a step of chains numpy against NumPy by hand"
        return [
            *table.compare(text, table.best("chains numpy"), table.best("NumPy by hand"), "<= 1.25"),
            *native_criteria(p, table, {"PyTorch": 35, "JAX jit": 10, "JAX scan": 7}, 0.55, "1 thread"),
        ]

    return Contest(
        key="mnist_mlp_step",
        title="mnist_mlp, one SGD step of 10",
        unit="step",
        contestants=rows("step", p, options),
        judged="loss after 100 steps",
        judge=lambda trained: value_and_grad(p, trained)[0],
        check=100,
        criteria=criteria,
    )


def _epochs(options: Options) -> Contest:
    samples = SAMPLES // 10 if options.quick else SAMPLES
    p = problem(samples, options.dtype)
    contestants = rows("epoch", p, options)
    other = "float64" if options.dtype == "float32" else "float32"
    p_other = problem(samples, other)
    # chains and the script by hand in the other type too; the per-sample loop is in float64 anyway
    own = [name for name in ("chains", "by_hand") if name in options.peers]
    extra = rows("epoch", p_other, replace(options, peers=own))
    place = next((k for k, c in enumerate(contestants) if not c.name.startswith(("chains", "NumPy by hand"))), len(contestants))
    contestants[place:place] = extra

    def criteria(table: Table) -> list[Criterion]:
        mine, hand = table.best(f"chains numpy, {options.dtype}"), table.best(f"NumPy by hand, {options.dtype}")
        fastest, compiled = table.best("chains"), table.best("chains native") is not None
        torch = table.best("PyTorch")
        loop, epoch = table.best("NumPy per sample"), "mnist_mlp: an epoch of"
        return [
            *table.compare(f"{epoch} chains numpy against NumPy by hand", mine, hand, "<= 1.25"),
            *table.compare(f"{epoch} the per-sample loop against chains", loop, fastest, ">= 60" if compiled else ">= 20"),
            *table.compare(f"{epoch} PyTorch's best mode against chains", torch, fastest, ">= 35" if compiled else ">= 3"),
        ]

    return Contest(
        key="mnist_mlp_epoch",
        title=f"mnist_mlp, one epoch of {samples // BATCH:,} steps with the shuffle" + ", a tenth" * options.quick,
        unit="epoch",
        contestants=contestants,
        judged="accuracy after 1 epoch",
        judge=lambda trained: accuracy(p, trained),
        longest=5,
        rounds=3 if options.quick else 5,
        seconds=None if options.quick else 1.0,  # some epochs a turn for the fast: starting `train` is not what is timed
        criteria=criteria,
    )


def accuracies(options: Options) -> Iterator[tuple[str, list[Criterion]]]:
    """Test accuracy of chains after 1, 2 and 10 epochs, five seeds by default: tables, and what was promised.

    Each from N(0, 1) weights and biases, as in the book, and from the default ones of `Dense`.
    """
    seeds = options.seeds or range(5)
    for backend in chains_peer.backends(options.backends):
        for dtype, start in product(("float32", "float64"), ("N(0,1)", "default")):
            with progress_bar(len(seeds) * max(JUDGED_EPOCHS), "epoch") as bar:
                yield _accuracies(dtype, backend, start, bar, seeds)


def _accuracies(dtype: str, backend: str, start: str, bar: tqdm, seeds: Sequence[int]) -> tuple[str, list[Criterion]]:
    p = problem(SAMPLES, dtype)
    net = chains_peer.network(p, backend)
    loss, optimizer = chains_peer.settings(p)
    runs: list[list[float]] = []  # (seeds, epochs)
    for seed in seeds:
        q = initial(SIZES, "normal", seed, dtype) if start == "N(0,1)" else net.init(seed, dtype)
        run: list[float] = []

        def judge(state: chains.callbacks.TrainingState, run: list[float] = run) -> None:
            run.append(accuracy(p, state.p))
            bar.update()

        chains.train(
            net, q, p.x, p.t, loss, optimizer,
            epochs=max(JUDGED_EPOCHS), batch_size=BATCH, seed=seed, progress=False, callbacks=[judge],
        )  # fmt: skip
        runs.append(run)
    medians = [median(column) for column in zip(*runs, strict=True)]
    name = f"chains {backend}, {dtype}, {start} start"
    lines = [f"mnist_mlp, test accuracy, {name}", "  after epoch  " + "".join(f"  seed {k}" for k in seeds) + "  median"]
    for epoch in JUDGED_EPOCHS:
        lines.append(f"  {epoch:11}  " + "".join(f"  {run[epoch - 1]:.4f}" for run in runs) + f"  {medians[epoch - 1]:.4f}")
    criteria = [
        Criterion(f"{name}: median accuracy after 2 epochs", medians[1], ">= 0.91"),
        Criterion(f"{name}: best median accuracy within 10 epochs", max(medians), ">= 0.945"),
    ]
    return "\n".join([*lines, *(f"  {criterion}" for criterion in criteria)]), criteria
