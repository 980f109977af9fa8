"""When networks grow: 2048 -> 4096 relu -> 4096 relu -> 10, cross-entropy, plain SGD, one step of 1,024 samples."""

from __future__ import annotations

import numpy as np

from benchmarks.harness.peers import Options, network_rows
from benchmarks.harness.timing import Contest, Criterion, Table
from benchmarks.problems import networks
from benchmarks.problems.networks import Dense, Problem, agreement

LAYERS = (Dense(2048, 4096), Dense(4096, 4096), Dense(4096, 10, relu=False))
BATCH = 1024


def problem(dtype: str, batch: int = BATCH) -> Problem:
    """N(0, 1) inputs and labels that have nothing to do with them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, 2048)).astype(dtype)
    t = rng.integers(0, 10, batch)
    return Problem(LAYERS, "sgd", 0.01, x, t, networks.initial(LAYERS, 0, dtype), batch)


def contests(options: Options) -> list[Contest]:
    """Steps; each takes the better part of a second."""
    p = problem(options.dtype)

    def criteria(table: Table) -> list[Criterion]:
        from benchmarks.peers.chains_networks import flops, share_of_sgemm

        mine = table.best("chains")
        found = agreement(table, 1e-5)
        if options.dtype == "float32":
            found += table.compare("wide: PyTorch's best mode against chains", table.best("PyTorch"), mine, ">= 1.4")
            found += table.compare("wide: JAX's best mode against chains", table.best("JAX"), mine, ">= 1")
            found += share_of_sgemm(table, flops(p), 0.85)
        return found

    return [
        Contest(
            key="wide",
            title="wide, 2048-4096-4096-10, one SGD step of 1,024",
            unit="step",
            contestants=network_rows(p, options),
            judged="loss after 1 step",
            judge=lambda trained: networks.loss(p, trained),
            check=1,
            rounds=1 if options.quick else 5,
            criteria=criteria,
        )
    ]
