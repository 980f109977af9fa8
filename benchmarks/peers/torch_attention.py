"""The encoder block by PyTorch: its own layer, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Contestant
from benchmarks.problems.attention import FEATURES, HEADS, HIDDEN, Block, network

# Of each of our parameters, PyTorch's, which is the transposed one.
NAMES = {
    "0.0.inner.0.weight": "norm1.weight", "0.0.inner.0.bias": "norm1.bias",
    "0.0.inner.1.in_weight": "self_attn.in_proj_weight", "0.0.inner.1.in_bias": "self_attn.in_proj_bias",
    "0.0.inner.1.out_weight": "self_attn.out_proj.weight", "0.0.inner.1.out_bias": "self_attn.out_proj.bias",
    "0.1.inner.0.weight": "norm2.weight", "0.1.inner.0.bias": "norm2.bias",
    "0.1.inner.1.weight": "linear1.weight", "0.1.inner.1.bias": "linear1.bias",
    "0.1.inner.2.weight": "linear2.weight", "0.1.inner.2.bias": "linear2.bias",
}  # fmt: skip


def gradient_rows(block: Block, options: Options) -> list[Contestant]:
    return [
        _row(block, f"PyTorch, {mode}, {threads} thread{'s' * (threads > 1)}", mode, threads)
        for mode in (("eager",) if options.quick else ("eager", "torch.compile"))
        for threads in (1, torch.get_num_threads())
    ]


def _row(block: Block, name: str, mode: str, threads: int) -> Contestant:
    settings = {"dropout": 0.0, "batch_first": True, "norm_first": True}
    layer = torch.nn.TransformerEncoderLayer(FEATURES, HEADS, HIDDEN, **settings)
    parameters = dict(layer.named_parameters())
    with torch.no_grad():
        for own, array in network("numpy").views(block.p).items():
            parameters[NAMES[own]].copy_(torch.tensor(array.T))
    x, t = torch.tensor(block.x), torch.tensor(block.t)

    def loss(x: Any, t: Any) -> Any:
        return torch.nn.functional.mse_loss(layer(x), t)

    function: Callable[[Any, Any], Any] = torch.compile(loss) if mode == "torch.compile" else loss

    def run(count: int) -> None:
        torch.set_num_threads(threads)
        for _ in range(count):
            layer.zero_grad()
            function(x, t).backward()

    def gradient() -> np.ndarray:
        views = network("numpy").views(block.p)
        return np.concatenate([parameters[NAMES[own]].grad.numpy().T.ravel() for own in views])

    return Contestant(name, lambda: None, run, gradient, 5)
