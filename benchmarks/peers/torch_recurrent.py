"""The same recurrences by PyTorch, eager: to compile the gradient of 50 steps takes it minutes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Calls = dict[str, Callable[[], Any]]


def _filled(problem: Any, layer: Any, suffix: str) -> tuple[Any, Any]:
    """A recurrent layer or cell, and the linear output, with the problem's parameters."""
    arrays = problem.arrays
    linear = torch.nn.Linear(problem.units, 1)
    second = arrays.get("0.recurrent_bias", np.zeros_like(arrays["0.bias"]))
    with torch.no_grad():
        for name, array in (("weight_ih", arrays["0.weight"].T), ("weight_hh", arrays["0.recurrent_weight"].T),
                            ("bias_ih", arrays["0.bias"]), ("bias_hh", second)):  # fmt: skip
            getattr(layer, name + suffix).copy_(torch.from_numpy(array.copy()))
        linear.weight.copy_(torch.from_numpy(arrays["1.weight"].T.copy()))
        linear.bias.copy_(torch.from_numpy(arrays["1.bias"].copy()))
    return layer, linear


def gradient(problem: Any) -> Calls:
    layer, linear = _filled(problem, getattr(torch.nn, problem.kind)(problem.inputs, problem.units, batch_first=True), "_l0")
    x, t = torch.from_numpy(problem.x), torch.from_numpy(problem.t)
    kept = [layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0]
    kept += [layer.bias_hh_l0] if problem.kind == "GRU" else []
    kept += [linear.weight, linear.bias]

    def eager() -> np.ndarray:
        out, _ = layer(x)
        loss = torch.nn.functional.mse_loss(linear(out[:, -1]), t)
        return np.concatenate([g.numpy().T.ravel() for g in torch.autograd.grad(loss, kept)])

    def threads(count: int) -> Callable[[], Any]:
        def call() -> Any:
            torch.set_num_threads(count)
            return eager()

        return call

    return {f"eager, {count} threads": threads(count) for count in (1, 2)}


def step(problem: Any) -> Calls:
    cell, linear = _filled(problem, torch.nn.GRUCell(problem.inputs, problem.units), "")
    x, h = torch.from_numpy(problem.x[:, 0].copy()), torch.from_numpy(problem.carried)

    def eager() -> Any:
        with torch.inference_mode():
            return linear(cell(x, h)).numpy()

    return {"eager": eager}
