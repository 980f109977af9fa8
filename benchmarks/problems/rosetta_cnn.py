"""The network of the eight-framework comparison on CIFAR-10: four convolutions, dropout, SGD with classical momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from statistics import mean

import numpy as np

from benchmarks.harness.machine import cores
from benchmarks.harness.peers import Options, network_rows
from benchmarks.harness.report import progress_bar
from benchmarks.harness.timing import Contest, Criterion, Table
from benchmarks.problems import networks
from benchmarks.problems.networks import Conv, Dense, Dropout, Flatten, Pool, Problem, agreement

LAYERS = (
    Conv(3, 50, 3, 1), Conv(50, 50, 3, 1, relu=False), Pool(relu=True), Dropout(0.25),
    Conv(50, 100, 3, 1), Conv(100, 100, 3, 1, relu=False), Pool(relu=True), Dropout(0.25),
    Flatten(), Dense(6400, 512), Dropout(0.5), Dense(512, 10, relu=False),
)  # fmt: skip
PARAMETERS = 3_441_592
BATCH, RATE, MOMENTUM = 64, 0.01, 0.9


@cache
def _data() -> tuple[np.ndarray, ...]:
    """Training images and labels, test images and labels."""
    from chains.data import load_cifar10

    (x, t), (x_test, t_test) = load_cifar10()
    return x, t, x_test, t_test


def problem(samples: int, dtype: str, seed: int = 0) -> Problem:
    """The first images, scaled to [0, 1], and their labels."""
    x, t, *_ = _data()
    scaled = x[:samples].astype(dtype) / np.array(255, dtype)
    p = networks.initial(LAYERS, seed, dtype)
    assert p.size == PARAMETERS
    return Problem(LAYERS, "sgd", RATE, scaled, t[:samples], p, BATCH, MOMENTUM)


def contests(options: Options) -> list[Contest]:
    """A step of 64, first without dropout, which shows that all compute the same, then as it is."""
    p = problem(BATCH, options.dtype)
    return [_steps(p.without_dropout(), options), _steps(p, options)]


def _steps(p: Problem, options: Options) -> Contest:
    dropout = any(isinstance(layer, Dropout) for layer in p.layers)
    key = "rosetta_cnn" if dropout else "rosetta_cnn_plain"

    def criteria(table: Table) -> list[Criterion]:
        from benchmarks.peers.chains_networks import flops, share_of_sgemm

        mine = table.best("chains")
        # Masks differ between frameworks, and with them the loss by a little.
        found = agreement(table, 0.03 if dropout else 1e-5)
        if dropout and options.dtype == "float32":
            found += table.compare("rosetta_cnn: PyTorch's best mode against chains", table.best("PyTorch"), mine, ">= 1.8")
            found += share_of_sgemm(table, flops(p), 0.7)
        return found

    return Contest(
        key=key,
        title=f"rosetta_cnn, one step of {BATCH} with momentum" + ", without dropout" * (not dropout),
        unit="step",
        contestants=[row for row in network_rows(p, options) if not (options.quick and "1 thread" in row.name)],
        judged="loss after 2 steps",
        judge=lambda trained: networks.loss(p, trained),
        check=2,
        rounds=(2 if options.quick else 5) if dropout else 1,
        criteria=criteria,
    )


def accuracies(options: Options) -> Iterator[tuple[str, list[Criterion]]]:
    """Test accuracy of chains and PyTorch after each epoch, from the same weights; one epoch, three seeds by default."""
    seeds, epochs, backend = options.seeds or (0, 1, 2), options.epochs or 1, (options.backends or ("auto",))[0]
    runs: dict[str, list[list[float]]] = {}
    for seed in seeds:
        p = problem(50_000, "float32", seed)
        for peer, (title, run) in {"chains": ("chains", _chains_run), "torch": ("PyTorch", _torch_run)}.items():
            if peer in options.peers:
                reached = run(p, seed, epochs, backend)
                runs.setdefault(title, []).append(reached)
                yield _line(f"{title}, seed {seed}", reached), []
    means = {title: [mean(column) for column in zip(*found, strict=True)] for title, found in runs.items()}
    criteria = []
    if len(means) == 2:
        apart = abs(means["chains"][0] - means["PyTorch"][0])
        criteria.append(Criterion("rosetta_cnn: difference of the mean accuracies after 1 epoch", apart, "<= 0.01"))
    if epochs >= 10 and "chains" in runs:
        best = max(run[9] for run in runs["chains"])
        criteria.append(Criterion("rosetta_cnn: accuracy of chains after 10 epochs, best seed", best, ">= 0.75"))
    lines = [_line(f"{title}, mean of {len(seeds)}", reached) for title, reached in means.items()]
    yield "\n".join([*lines, *(f"  {criterion}" for criterion in criteria)]), criteria


def _line(name: str, reached: list[float]) -> str:
    return f"rosetta_cnn, {name}, test accuracy after each epoch: {' '.join(f'{share:.4f}' for share in reached)}"


def _score(outputs: Callable[[np.ndarray], np.ndarray]) -> float:
    """The share of the test images that are recognised, 500 at a time."""
    *_, x, t = _data()
    pieces = [slice(k, k + 500) for k in range(0, len(x), 500)]
    right = [outputs(x[piece].astype(np.float32) / np.float32(255)).argmax(1) == t[piece] for piece in pieces]
    return float(np.concatenate(right).mean())


def _chains_run(p: Problem, seed: int, epochs: int, backend: str) -> list[float]:
    import chains
    from benchmarks.peers.chains_networks import network, optimizer

    net, q = network(p, backend), p.p.copy()
    reached: list[float] = []
    chains.train(
        net, q, p.x, p.t, chains.CrossEntropyLoss(), optimizer(p), epochs=epochs, batch_size=BATCH, drop_last=True,
        seed=seed, progress=True, callbacks=[lambda state: reached.append(_score(lambda x: net(x, q)))],
    )  # fmt: skip
    return reached


def _torch_run(p: Problem, seed: int, epochs: int, backend: str) -> list[float]:
    import torch

    from benchmarks.peers.torch_networks import Model

    torch.manual_seed(seed)
    torch.set_num_threads(cores())
    model = Model(p, "channels-last")
    x, t = torch.from_numpy(p.x), torch.from_numpy(p.t)
    reached: list[float] = []
    with progress_bar(len(x) // BATCH * epochs, "step") as bar:
        for _ in range(epochs):
            for piece in torch.randperm(len(x))[: len(x) // BATCH * BATCH].split(BATCH):
                model.step(model.in_format(x[piece]), t[piece])
                bar.update()
            with torch.no_grad():
                reached.append(_score(lambda x: model.logits(model.in_format(torch.from_numpy(x)), training=False).numpy()))
    return reached
