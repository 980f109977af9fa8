"""Chains on networks of convolutions, pools and dense layers: `train`, on every backend there is."""

from __future__ import annotations

import numpy as np

import chains
from benchmarks.harness.machine import sgemm_rates
from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Contestant, Criterion, Table, in_modes
from benchmarks.peers.chains_dense import CHOICES, backends, modes
from benchmarks.problems import networks
from benchmarks.problems.networks import Problem

_LAYERS = {
    networks.Conv: lambda c: [chains.Conv(c.inputs, c.outputs, c.kernel, _relu(c), padding=c.padding)],
    networks.Dense: lambda c: [chains.Dense(c.inputs, c.outputs, _relu(c))],
    networks.Pool: lambda c: [chains.MaxPool(2)] + [chains.Activation(chains.relu)] * c.relu,
    networks.Flatten: lambda c: [chains.Flatten()],
    networks.Dropout: lambda c: [chains.Dropout(c.rate)],
}


def _relu(layer: networks.Conv | networks.Dense) -> str:
    return "relu" if layer.relu else "identity"


def network(problem: Problem, backend: str) -> chains.Chain:
    layers = [made for layer in problem.layers for made in _LAYERS[type(layer)](layer)]
    return chains.Chain(*layers, input_shape=problem.x.shape[1:], backend=backend)


def optimizer(problem: Problem) -> chains.Optimizer:
    return chains.Adam(problem.rate) if problem.optimizer == "adam" else chains.SGD(problem.rate, momentum=problem.momentum)


def network_rows(problem: Problem, options: Options) -> list[Contestant]:
    """Passes through the samples, by each backend and by the one that "auto" chooses."""
    names = backends(options.backends or CHOICES)
    return [row for name in names for row in in_modes(_passes(problem, name), modes(name))]


def _passes(problem: Problem, backend: str) -> Contestant:
    net, loss, rule, p = network(problem, backend), chains.CrossEntropyLoss(), optimizer(problem), problem.p.copy()

    def start() -> None:
        p[...] = problem.p

    def run(passes: int) -> None:
        chains.train(
            net, p, problem.x, problem.t, loss, rule,
            epochs=passes, batch_size=problem.batch_size, shuffle=False, progress=False,
        )  # fmt: skip

    return Contestant(f"chains {backend}, {problem.dtype}", start, run, lambda: p)


def flops(problem: Problem) -> int:
    """Operations of the products and convolutions of a step: forward, weight gradients, input gradients but the first."""
    program = network(problem, "numpy").program(chains.CrossEntropyLoss(), target_shape=(), dtype=problem.dtype)
    return program.flops(problem.batch_size)


def share_of_sgemm(table: Table, per_unit: float, wanted: float, prefix: str = "chains") -> list[Criterion]:
    """The rate of chains' fastest row, at so many operations a unit, over the sgemm rate of the cores that it uses."""
    row = table.best(prefix)
    if row is None or np.dtype(np.float32).name not in row.name:
        return []
    threads = "1 thread" if "1 thread" in row.name else "all threads"
    share = per_unit / row.median / 1e9 / sgemm_rates()[threads]
    text = f"{table.key}: matrix operations of {row.name} over the sgemm rate of {threads}"
    return [Criterion(text, share, f">= {wanted:g}")]
