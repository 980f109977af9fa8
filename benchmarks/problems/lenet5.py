"""SimpleChains.jl's MNIST: LeNet-5 with relus and max pooling, 44,426 parameters, cross-entropy, Adam 3e-4."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from benchmarks.harness.peers import Options, network_rows
from benchmarks.harness.timing import Absent, Contest, Contestant, Criterion, Table
from benchmarks.problems import networks
from benchmarks.problems.networks import Conv, Dense, Flatten, Pool, Problem, agreement, per_sample

LAYERS = (
    Conv(1, 6, 5), Pool(), Conv(6, 16, 5), Pool(), Flatten(), Dense(256, 120), Dense(120, 84), Dense(84, 10, relu=False)
)  # fmt: skip
BATCHES = (32, 256, 2048)
SAMPLES = 2048  # in a pass
RATE = 3e-4


@cache
def _data() -> tuple[np.ndarray, ...]:
    """Training images and labels, test images and labels."""
    from chains.data import load_mnist

    (x, t), (x_test, t_test) = load_mnist()
    return x[:, None], t, x_test[:, None], t_test


def problem(samples: int, dtype: str, batch_size: int, seed: int = 0) -> Problem:
    """The first digits, scaled to [0, 1], and their labels."""
    x, t, *_ = _data()
    scaled = x[:samples].astype(dtype) / np.array(255, dtype)
    p = networks.initial(LAYERS, seed, dtype)
    assert p.size == 44_426
    return Problem(LAYERS, "adam", RATE, scaled, t[:samples], p, batch_size)


def contests(options: Options) -> list[Contest]:
    """Time per sample of passes through 2,048 digits, all batch sizes in one contest, so that the best of each meet."""
    problems = [problem(SAMPLES, options.dtype, size) for size in BATCHES]
    contestants: list[Contestant | Absent] = []
    for p in problems:
        for row in network_rows(p, options):
            if isinstance(row, Contestant):
                contestants.append(per_sample(row, p))
            elif row not in contestants:
                contestants.append(row)

    def criteria(table: Table) -> list[Criterion]:
        from benchmarks.peers.chains_networks import flops, share_of_sgemm

        mine = table.best("chains")
        found = [c for size in BATCHES for c in agreement(table, 1e-4, f", batch {size:,}")]
        if options.dtype == "float32":
            found += table.compare("lenet5: PyTorch's best mode and batch against chains", table.best("PyTorch"), mine, ">= 5")
            found += table.compare("lenet5: JAX's best mode and batch against chains", table.best("JAX"), mine, ">= 10")
            found += share_of_sgemm(table, flops(problems[0]) / BATCHES[0], 0.45)
        return found

    return [
        Contest(
            key="lenet5",
            title="lenet5, Adam steps over 2,048 digits",
            unit="sample",
            contestants=contestants,
            judged="loss after 2,048 samples",
            judge=lambda trained: networks.loss(problems[0], trained),
            check=SAMPLES,
            longest=100 * SAMPLES,
            criteria=criteria,
        )
    ]


def accuracies(options: Options) -> Iterator[tuple[str, list[Criterion]]]:
    """Test accuracy of chains in batches of 32, a table for each backend; after 10 epochs, three seeds by default."""
    from benchmarks.peers.chains_dense import CHOICES, backends

    seeds, epochs = options.seeds or (0, 1, 2), options.epochs or 10
    for backend in backends(options.backends or CHOICES):
        name = f"lenet5, chains {backend}, {options.dtype}"
        lines, found = [f"{name}: test accuracy after {epochs} epochs in batches of 32"], []
        for seed in seeds:
            try:
                reached = _accuracy(options.dtype, backend, seed, epochs)
            except NotImplementedError as error:
                lines.append(f"  left out: {error}")
                break
            lines.append(f"  seed {seed}  {reached:.4f}")
            if epochs >= 10:
                found.append(Criterion(f"{name}, seed {seed}: accuracy after {epochs} epochs", reached, ">= 0.985"))
        yield "\n".join([*lines, *(f"  {criterion}" for criterion in found)]), found


def _accuracy(dtype: str, backend: str, seed: int, epochs: int) -> float:
    import chains
    from benchmarks.peers.chains_networks import network, optimizer

    p = problem(60_000, dtype, 32, seed)
    net, q = network(p, backend), p.p.copy()
    chains.train(
        net, q, p.x, p.t, chains.CrossEntropyLoss(), optimizer(p), epochs=epochs, batch_size=32, seed=seed, progress=True
    )
    *_, x, t = _data()
    return chains.accuracy(t, net(x.astype(dtype) / np.array(255, dtype), q))
