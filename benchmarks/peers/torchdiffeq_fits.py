"""Whole fits through torchdiffeq by PyTorch's Adam."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torchdiffeq import odeint


def fit(problem: Any, target: float, most: int, seconds: float) -> Callable[[np.ndarray], tuple[np.ndarray, int]]:
    """A function of the start: the parameters, and the number of iterations. It stops after some seconds."""
    layout = problem.layout()
    sizes = [int(np.prod(shape)) for _, shape in layout]
    times, x, t = (torch.tensor(array) for array in (problem.times, problem.x, problem.t))
    forcing = torch.tensor(np.stack(list(problem.forcing.values()), 1)) if problem.forcing else None
    how = {"method": "rk4"} if problem.forcing else {"method": "dopri5", "rtol": 1e-4, "atol": 1e-6}

    torch.set_num_threads(1)  # arrays are small

    def loss(p: torch.Tensor) -> torch.Tensor:
        parts = torch.split(p, sizes)
        leaves = {name: part.reshape(shape) for (name, shape), part in zip(layout, parts, strict=True)}

        def rate(at: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return problem.slopes(torch, at, y, _at(at, times, forcing), leaves)

        found = odeint(rate, x, times, **how).transpose(0, 1)[..., list(problem.observed)]
        return torch.mean((found - t) ** 2)

    def call(start: np.ndarray) -> tuple[np.ndarray, int]:
        p, begin, enough = torch.tensor(start, requires_grad=True), time.perf_counter(), (target * problem.noise) ** 2
        rule = torch.optim.Adam([p], problem.learning_rate)
        done = 0
        while done < most:
            done += 1
            rule.zero_grad()
            value = loss(p)
            if value.item() <= enough or time.perf_counter() - begin > seconds:
                break
            value.backward()
            rule.step()
        return p.detach().numpy().copy(), done

    return call


def _at(at: torch.Tensor, times: torch.Tensor, values: torch.Tensor | None) -> Any:
    """The forcing at a time, interpolated linearly."""
    if values is None:
        return ()
    k = int(torch.searchsorted(times, at).clamp(1, len(times) - 1))
    share = (at - times[k - 1]) / (times[k] - times[k - 1])
    return torch.unbind(values[k - 1] + share * (values[k] - values[k - 1]))
