"""The same calls by PyTorch: products of stacks of matrices by `baddbmm`, and the gradient of the sum of all losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _outputs(p: Any, x: Any) -> Any:
    for number, (weight, bias) in enumerate(p):
        x = torch.baddbmm(bias[:, None], x, weight)
        x = torch.tanh(x) if number < len(p) - 1 else x
    return x


def _stacks(problem: Any) -> tuple[Any, Any, Any]:
    p = [tuple(torch.from_numpy(part.copy()) for part in layer) for layer in problem.arrays]
    return p, torch.from_numpy(problem.x).expand(len(problem.p), -1, -1), torch.from_numpy(problem.t)


def calls(problem: Any) -> dict[str, Callable[[], Any]]:
    p, x, _ = _stacks(problem)

    def call() -> Any:
        with torch.no_grad():
            return _outputs(p, x)

    return {"baddbmm": call}


def gradients(problem: Any) -> dict[str, Callable[[], Any]]:
    p, x, t = _stacks(problem)
    flat = [part.requires_grad_() for layer in p for part in layer]

    def call() -> Any:
        losses = ((_outputs(p, x) - t) ** 2).mean((1, 2))
        return _Gradients(torch.autograd.grad(losses.sum(), flat))

    return {"baddbmm": call}


class _Gradients:
    """The gradients of all layers, which become one array for the judge alone."""

    def __init__(self, parts: Any) -> None:
        self._parts = parts

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return torch.cat([part.reshape(len(part), -1) for part in self._parts], 1).numpy().astype(dtype)
