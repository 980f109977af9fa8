"""A small encoder block: 32 features, 4 heads, feed-forward 64, norms first; 16 sequences of 32 tokens, float32."""

from __future__ import annotations

import numpy as np

from benchmarks.harness.peers import Options, rows
from benchmarks.harness.timing import Contest, Contestant, Criterion, Table
from benchmarks.problems.derivatives import error, repeated
from chains import Chain, MSELoss, TransformerBlock, num_threads

FEATURES, HEADS, HIDDEN, TOKENS, BATCH = 32, 4, 64, 32, 16


class Block:
    """The same parameters, inputs and targets for all."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.x, self.t = (rng.normal(size=(BATCH, TOKENS, FEATURES)).astype(np.float32) for _ in range(2))
        self.p = network("numpy").init(seed=0)


def network(backend: str) -> Chain:
    return Chain(TransformerBlock(FEATURES, HEADS, HIDDEN), input_shape=(TOKENS, FEATURES), backend=backend)


def contests(options: Options) -> list[Contest]:
    block = Block()
    own = [_chains(block, threads) for threads in (1, 2)]
    exact = network("numpy").value_and_grad(block.p.astype(np.float64), block.x, block.t, MSELoss())[1]
    contest = Contest(
        key="attention",
        title="value and gradient of an encoder block, 16 sequences of 32 tokens, float32",
        unit="call",
        contestants=own + rows("gradient", block, options, "attention"),
        judged="relative error",
        judge=error(exact),
        criteria=_criteria,
    )
    return [contest]


def _chains(block: Block, threads: int) -> Contestant:
    net, g, loss = network("native"), np.empty_like(block.p), MSELoss()

    def call() -> np.ndarray:
        with num_threads(threads):
            return net.value_and_grad(block.p, block.x, block.t, loss, out=g)[1]

    return repeated(f"chains native, {threads} thread{'s' * (threads > 1)}", call, 10)


def _criteria(table: Table) -> list[Criterion]:
    own = table.best("chains native")
    found = table.compare("attention: PyTorch's best mode against chains native", table.best("PyTorch"), own, ">= 4")
    return found + table.compare("attention: JAX's best mode against chains native", table.best("JAX"), own, ">= 3")
