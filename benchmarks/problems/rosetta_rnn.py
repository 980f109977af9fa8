"""The recurrent network of the eight-framework comparison on IMDB: an embedding of 30,000 words, a GRU, Adam."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import mean
from typing import Any

import numpy as np

import chains
from benchmarks.harness.peers import PEERS, Options, libraries
from benchmarks.harness.timing import Absent, Contest, Contestant, Criterion, Table, in_modes
from benchmarks.peers.chains_dense import backends, modes
from benchmarks.peers.chains_networks import share_of_sgemm
from benchmarks.problems.networks import agreement
from chains import GRU, Adam, Chain, CrossEntropyLoss, Dense, Embedding

WORDS, FEATURES, UNITS, STEPS = 30_000, 125, 100, 150
BATCH, RATE = 64, 1e-3
SECONDS = 1.0  # of a turn
BATCHES = 12  # that a run goes through: were it one, it would soon be known by heart, with gradients of denormal numbers
LOSS = CrossEntropyLoss()


def network(backend: str = "auto", words: int = WORDS) -> Chain:
    return Chain(Embedding(words, FEATURES), GRU(FEATURES, UNITS), Dense(UNITS, 2), input_shape=(STEPS,), backend=backend)


@cache
def data() -> tuple[np.ndarray, ...]:
    """Training reviews and labels, test reviews and labels."""
    (x, t), (x_test, t_test) = chains.data.load_imdb(count=WORDS, length=STEPS)
    return x, t, x_test, t_test


@dataclass(frozen=True)
class Problem:
    """Reviews, their labels and the starting parameters of `network`."""

    x: np.ndarray
    t: np.ndarray
    p: np.ndarray
    words: int = WORDS

    @property
    def batches(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Reviews with their labels, whole numbers of 64 bits, `BATCH` at a time."""
        t = self.t.astype(np.int64)
        return [(self.x[k : k + BATCH], t[k : k + BATCH]) for k in range(0, len(self.x), BATCH)]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name."""
        return network("numpy", self.words).views(self.p)


def problem(samples: int, seed: int = 0) -> Problem:
    """The first reviews."""
    x, t, *_ = data()
    p = network("numpy").init(seed=seed)
    assert p.size == 3_818_302
    return Problem(x[:samples], t[:samples], p)


def contests(options: Options) -> list[Contest]:
    """A step of 64 reviews with Adam, in both forms of chains."""
    if options.dtype != "float32":
        return []
    p = problem(BATCHES * BATCH)
    rows = [_row(p, name, sparse) for sparse in ("exact", "lazy") for name in backends(options.backends or ("native",))]
    found: list[Contestant | Absent] = []
    for row, name in rows:
        found += in_modes(row, modes(name))
    return [
        Contest(
            key="rosetta_rnn",
            title=f"rosetta_rnn, one step of {BATCH} reviews with Adam",
            unit="step",
            contestants=found + _peers(p, options),
            judged=f"loss after {BATCHES} steps",
            judge=lambda trained: loss(p, trained),
            check=BATCHES,
            longest=2 * BATCHES,
            seconds=SECONDS,
            rounds=2 if options.quick else 7,
            criteria=_criteria,
        )
    ]


def loss(p: Problem, trained: np.ndarray) -> float:
    """The loss on the first reviews, by NumPy in float64."""
    x, t = p.x[:BATCH], p.t[:BATCH]
    return float(network("numpy", p.words).loss(trained.astype(np.float64), x, t, LOSS))


def _criteria(table: Table) -> list[Criterion]:
    own, lazy = table.best("chains native, exact"), table.best("chains native, lazy")
    exact = [row for row in table.rows if "lazy" not in row.name]  # lazy steps are others
    found = agreement(replace(table, rows=exact), 1e-4)
    for name in ("PyTorch", "JAX"):
        found += table.compare(f"rosetta_rnn: {name}'s best mode against chains, exact Adam", table.best(name), own, ">= 3")
    found += table.compare("rosetta_rnn: exact Adam against sparse='lazy'", own, lazy, ">= 1.3")
    return found + share_of_sgemm(table, flops(), 0.6, "chains native, exact")


def flops() -> int:
    """Operations of the products of a step."""
    return network("numpy").program(LOSS, target_shape=()).flops(BATCH)


def _row(p: Problem, backend: str, sparse: str) -> tuple[Contestant, str]:
    net, rule, q = network(backend), Adam(RATE, sparse=sparse), p.p.copy()

    def start() -> None:
        q[...] = p.p

    def run(steps: int) -> None:
        chains.train(net, q, p.x, p.t, LOSS, rule, epochs=steps // BATCHES, batch_size=BATCH, shuffle=False, progress=False)

    return Contestant(f"chains {backend}, {sparse} Adam, float32", start, run, lambda: q, chunk=BATCHES), backend


def _peers(p: Problem, options: Options) -> list[Contestant | Absent]:
    found, modules = libraries("rosetta_rnn", options)
    return found + [row for module in modules.values() for row in module.rows(p)]


# Accuracy


def losses(p: Problem, batch: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    """The losses of chains and of PyTorch, batch after batch, from the same weights."""
    import torch

    net, q, model, history = network(words=p.words), p.p.copy(), _pytorch().Model(p), None
    own, theirs = [], []
    for k in range(0, len(p.x), batch):
        x, t = p.x[k : k + batch], p.t[k : k + batch]
        history = chains.train(net, q, x, t, LOSS, Adam(RATE), shuffle=False, progress=False, resume=history)
        own.append(history.loss[0])
        theirs.append(model.step(torch.from_numpy(x), torch.from_numpy(t.astype(np.int64))).item())
    return np.array(own), np.array(theirs)


def accuracies(options: Options) -> Iterator[tuple[str, list[Criterion]]]:
    """Test accuracy of chains, then of PyTorch, from the same weights after each epoch; three epochs and seeds by default."""
    seeds, epochs = options.seeds or (0, 1, 2), options.epochs or 3
    if "torch" in options.peers:
        own, theirs = losses(problem(50 * BATCH))
        difference = float(np.abs(own - theirs).max())
        apart = Criterion("rosetta_rnn: largest difference of the first 50 losses from PyTorch's", difference, "<= 1e-4")
        yield f"rosetta_rnn, losses of chains at steps 1, 25, 50: {own[0]:.6f} {own[24]:.6f} {own[49]:.6f}\n  {apart}", [apart]
    means: dict[str, list[float]] = {}
    for peer, run in (("chains", _chains_run), ("torch", _torch_run)):
        if peer not in options.peers:
            continue
        runs = []
        for seed in seeds:
            runs.append(run(problem(len(data()[0]), seed), seed, epochs))
            yield _line(f"{PEERS[peer]}, seed {seed}", runs[-1]), []
        means[PEERS[peer]] = [mean(column) for column in zip(*runs, strict=True)]
    own = means.get("chains", [])
    criteria = [Criterion(f"rosetta_rnn: mean accuracy of chains after {epochs} epochs", own[-1], ">= 0.845")] if own else []
    if len(means) == 2:
        apart = means["PyTorch"][-1] - own[-1]
        criteria.append(Criterion("rosetta_rnn: mean accuracy of PyTorch less that of chains", apart, "<= 0.01"))
    lines = [_line(f"{title}, mean of {len(seeds)}", reached) for title, reached in means.items()]
    yield "\n".join([*lines, *(f"  {criterion}" for criterion in criteria)]), criteria


def _line(name: str, reached: Sequence[float]) -> str:
    return f"rosetta_rnn, {name}, test accuracy after each epoch: {' '.join(f'{share:.4f}' for share in reached)}"


def score(outputs: Callable[[np.ndarray], np.ndarray]) -> float:
    """The share of the test reviews that are understood, 500 at a time."""
    *_, x, t = data()
    right = [outputs(x[k : k + 500]).argmax(1) == t[k : k + 500] for k in range(0, len(x), 500)]
    return float(np.concatenate(right).mean())


def _chains_run(p: Problem, seed: int, epochs: int) -> list[float]:
    net, q = network(), p.p.copy()
    reached: list[float] = []
    chains.train(
        net, q, p.x, p.t, LOSS, Adam(RATE), epochs=epochs, batch_size=BATCH, drop_last=True, seed=seed, progress=True,
        callbacks=[lambda state: reached.append(score(lambda x: net(x, q)))],
    )  # fmt: skip
    return reached


def _torch_run(p: Problem, seed: int, epochs: int) -> list[float]:
    return _pytorch().accuracies(p, seed, epochs)


def _pytorch() -> Any:
    return libraries("rosetta_rnn", Options(peers=("torch",)))[1]["PyTorch"]
