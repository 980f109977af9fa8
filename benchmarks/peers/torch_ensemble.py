"""The same ensembles by PyTorch: gradients of products of stacks of matrices, fused Adam on stacked parameters."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.harness.timing import Contestant
from benchmarks.problems.ensemble import RATE, STEPS


class _Training:
    """Products of stacks of matrices: the sum of the members' losses has the gradient of each."""

    def __init__(self, problem: Any, compiled: bool) -> None:
        self._problem = problem
        self._x, self._t = torch.from_numpy(problem.x), torch.from_numpy(problem.t)

        def losses(p: Any) -> Any:
            x = self._x if problem.own else self._x.expand(len(problem.p), -1, -1)
            for layer in range(3):
                x = torch.baddbmm(p[f"{layer}.bias"][:, None], x, p[f"{layer}.weight"])
                x = torch.tanh(x) if layer < 2 else x
            return ((x - self._t) ** 2).mean((1, 2))

        self._losses = torch.compile(losses) if compiled else losses

    def start(self) -> None:
        self._p = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in self._problem.arrays.items()}
        self._optimizer = torch.optim.Adam(self._p.values(), RATE, fused=True)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._optimizer.zero_grad()
            self._values = self._losses(self._p)
            self._values.sum().backward()
            self._optimizer.step()

    def result(self) -> float:
        return self._values.mean().item()


def contestants(problem: Any) -> list[Contestant]:
    trainings = {"PyTorch eager": _Training(problem, False), "PyTorch compiled": _Training(problem, True)}
    return [Contestant(name, each.start, each.run, each.result, STEPS) for name, each in trainings.items()]
