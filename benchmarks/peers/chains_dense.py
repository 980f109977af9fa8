"""Chains itself, on every backend there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import chains
from benchmarks.harness.machine import blas_modes, sgemm_rates
from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Contestant, Criterion, Table, in_modes
from benchmarks.problems.dense import Problem
from chains.backends import backend as find_backend
from chains.backends.base import Feed

BACKENDS = ("numpy", "native")  # those that this version of chains lacks are skipped
INSIDE = "inside a loop: chains native"  # the name of the row
CHOICES = (*BACKENDS, "auto")


def backends(wanted: Sequence[str] | None = None) -> list[str]:
    """Those of the wanted backends (None: all) that can be used here."""
    found = []
    for name in BACKENDS if wanted is None else wanted:
        try:
            find_backend(name)
        except (ValueError, ImportError):
            continue
        found.append(name)
    return found


def modes(backend: str) -> list[tuple[str, Callable[[], None]]]:
    """The numbers of threads that have a row each: BLAS's, or those of compiled code itself."""
    if backend == "auto":
        return blas_modes()[-1:]
    if backend != "native":
        return blas_modes()
    most = chains.get_num_threads()
    counts = {"1 thread": 1, "all threads": most} if most > 1 else {"1 thread": 1}
    return [(text, partial(chains.set_num_threads, count)) for text, count in counts.items()]


def network(problem: Problem, backend: str) -> chains.Chain:
    functions = {"tanh": chains.tanh, "sigmoid": chains.sigmoid, "linear": chains.identity}
    layers = zip(problem.sizes[:-1], problem.sizes[1:], problem.activations, strict=True)
    return chains.Chain(*(chains.Dense(a, b, functions[name]) for a, b, name in layers), backend=backend)


def settings(problem: Problem) -> tuple[chains.Loss, chains.Optimizer]:
    loss = {"mse": chains.MSELoss, "squared": chains.SquaredLoss}[problem.loss]()
    optimizer = {"adam": chains.Adam, "sgd": chains.SGD}[problem.optimizer](problem.rate)
    return loss, optimizer


def matrix_flops(problem: Problem, batch: int) -> int:
    """Operations of the matrix products of a step, as the recorded program has them."""
    loss, _ = settings(problem)
    return network(problem, "numpy").program(loss, dtype=problem.dtype).flops(batch)


def native_criteria(problem: Problem, table: Table, wanted: dict[str, float], share: float, threads: str) -> list[Criterion]:
    """The native backend against the peers' best modes, and its matrix operations over the machine's sgemm rate."""
    native = table.best("chains native")
    if native is None or problem.dtype != "float32":
        return []
    criteria = []
    for peer, factor in wanted.items():
        text = f"{table.key}: {peer}'s best mode against chains native"
        criteria += table.compare(text, table.best(peer), native, f">= {factor:g}")
    if share:
        rate = matrix_flops(problem, problem.batch_size or problem.samples) / native.median / 1e9 / sgemm_rates()[threads]
        criteria.append(
            Criterion(f"{table.key}: matrix operations of chains native over the sgemm rate", rate, f">= {share:g}")
        )
    return criteria


def step_rows(problem: Problem, options: Options) -> list[Contestant]:
    """`train`, all samples in each step: one step an epoch."""
    return [row for name in backends(options.backends) for row in _training(problem, name)]


def epoch_rows(problem: Problem, options: Options) -> list[Contestant]:
    """`train`, in shuffled batches."""
    return [row for name in backends(options.backends) for row in _training(problem, name)]


def _training(problem: Problem, backend: str) -> list[Contestant]:
    net, (loss, optimizer), p = network(problem, backend), settings(problem), problem.p.copy()

    def start() -> None:
        p[...] = problem.p

    def run(epochs: int) -> None:
        chains.train(
            net, p, problem.x, problem.t, loss, optimizer,
            epochs=epochs, batch_size=problem.batch_size, seed=epochs, progress=False,
        )  # fmt: skip

    return in_modes(Contestant(f"chains {backend}, {problem.dtype}", start, run, lambda: p), modes(backend))


def gradient_rows(problem: Problem, options: Options) -> list[Contestant]:
    """`value_and_grad(out=)`."""
    # A network for each row: calls keep what they are bound to, threads included.
    pairs = [(name, mode) for name in backends(options.backends) for mode in modes(name)]
    return [row for name, mode in pairs for row in in_modes(_call(problem, name, "out="), [mode])]


def call_rows(problem: Problem, options: Options) -> list[Contestant]:
    """All ways to ask for a value and a gradient from Python, and the same within a loop of machine code."""
    names = backends(options.backends)
    rows = [_call(problem, name, way) for name in names for way in ("value_and_grad", "out=", "objective")]
    return [*rows, _inside(problem)] if "native" in names else rows


def _inside(problem: Problem) -> Contestant:
    """The program of a gradient, run many times in one call: what an epoch's loop pays."""
    net, (loss, _) = network(problem, "native"), settings(problem)
    runner = find_backend("native")
    arrays = {"p": problem.p.copy(), "x": problem.x, "t": problem.t}
    binding = runner.bind(net.program(loss, dtype=problem.dtype), problem.samples, arrays)
    feed = runner.feed(binding, {}, np.zeros(0, np.int64))
    return Contestant(
        f"{INSIDE}, {problem.dtype}", lambda: None, lambda n: _all(feed, n),
        lambda: (binding.arrays["value"].item(), binding.arrays["g"].copy()),
    )  # fmt: skip


def _all(feed: Feed, n: int) -> None:
    feed(0, np.empty(n))


def _call(problem: Problem, backend: str, way: str) -> Contestant:
    net, (loss, _) = network(problem, backend), settings(problem)
    p, x, t = problem.p.copy(), problem.x, problem.t
    g = np.empty_like(p)
    result: list[Any] = [None]

    def run(n: int) -> None:
        for _ in range(n):
            result[0] = net.value_and_grad(p, x, t, loss)

    def run_out(n: int) -> None:
        for _ in range(n):
            result[0] = net.value_and_grad(p, x, t, loss, out=g)

    objective = net.objective(x, t, loss)

    def run_objective(n: int) -> None:
        for _ in range(n):
            result[0] = objective(p)

    name, run = {
        "value_and_grad": ("value_and_grad", run),
        "out=": ("value_and_grad(out=)", run_out),
        "objective": ("objective (computes in float64)", run_objective),
    }[way]
    return Contestant(f"chains {backend}, {name}", lambda: None, run, lambda: result[0])
