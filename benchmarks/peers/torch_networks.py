"""PyTorch on networks of convolutions, pools and dense layers: eager and compiled, each plain and channels-last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.harness.machine import cores
from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Absent, Contestant
from benchmarks.peers.torch_dense import compiled
from benchmarks.problems import networks
from benchmarks.problems.networks import Problem

Run = Callable[[Tensor, Tensor], Any]


class Model:
    """The problem's parameters as tensors (weights as in nn.Linear and nn.Conv2d), its loss and its training step."""

    def __init__(self, problem: Problem, mode: str = "eager") -> None:
        self.problem = problem
        images = problem.x.ndim == 4
        self.channels_last = "channels-last" in mode and images
        self.first = [self._as_tensor(array) for array in problem.tensors(problem.p)]
        self.p = [tensor.clone().requires_grad_() for tensor in self.first]
        self.optimizer = self._optimizer()
        self._loss: Run = compiled(lambda x, t: self._plain_loss(x, t)) if "compile" in mode else self._plain_loss

    def _as_tensor(self, array: np.ndarray) -> Tensor:
        """A copy of one parameter: dense weights transposed, kernels in the memory format of the mode."""
        tensor = torch.from_numpy(array.T.copy() if array.ndim == 2 else array.copy())
        return self.in_format(tensor)

    def in_format(self, tensor: Tensor) -> Tensor:
        """Images and kernels as the mode wants them in memory."""
        last = self.channels_last and tensor.ndim == 4
        return tensor.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)

    def _optimizer(self) -> torch.optim.Optimizer:
        if self.problem.optimizer == "adam":
            return torch.optim.Adam(self.p, lr=self.problem.rate, fused=True)
        return torch.optim.SGD(self.p, lr=self.problem.rate, momentum=self.problem.momentum, fused=True)

    def logits(self, x: Tensor, training: bool = True) -> Tensor:
        tensors = iter(self.p)
        for layer in self.problem.layers:
            if isinstance(layer, networks.Conv):
                x = functional.conv2d(x, next(tensors), next(tensors), padding=layer.padding)
            elif isinstance(layer, networks.Dense):
                x = functional.linear(x, next(tensors), next(tensors))
            elif isinstance(layer, networks.Pool):
                x = functional.max_pool2d(x, 2)
            elif isinstance(layer, networks.Flatten):
                x = x.flatten(1)
            else:
                x = functional.dropout(x, layer.rate, training)
            if getattr(layer, "relu", False):
                x = functional.relu(x)
        return x

    def _plain_loss(self, x: Tensor, t: Tensor) -> Tensor:
        return functional.cross_entropy(self.logits(x), t)

    def start(self) -> None:
        with torch.no_grad():
            for p, first in zip(self.p, self.first, strict=True):
                p.copy_(first)
        self.optimizer = self._optimizer()

    def gradient(self, x: Tensor, t: Tensor) -> Tensor:
        """Leave the gradient of the loss with the parameters; the loss."""
        self.optimizer.zero_grad()
        value = self._loss(x, t)
        value.backward()
        return value

    def step(self, x: Tensor, t: Tensor) -> None:
        self.gradient(x, t)
        self.optimizer.step()

    def flat(self, tensors: Sequence[Tensor]) -> np.ndarray:
        """Tensors shaped like the parameters as one vector in the problem's order."""
        arrays = [tensor.detach().numpy() for tensor in tensors]
        return np.concatenate([(array.T if array.ndim == 2 else array).ravel() for array in arrays])


def network_rows(problem: Problem, options: Options) -> list[Contestant | Absent]:
    """Passes through the samples: each mode with one thread and with all."""
    images = problem.x.ndim == 4
    names = ["eager", "channels-last"] if images else ["eager"]
    if not options.quick:
        names += ["compile", "compile, channels-last"] if images else ["compile"]
    threads = dict.fromkeys((1, cores()))
    rows: list[Contestant | Absent] = [_passes(problem, name, count) for name in names for count in threads]
    if options.quick:
        rows.append(Absent("PyTorch compile", "left out by --quick: compilation takes too long"))
    return rows


def _passes(problem: Problem, mode: str, threads: int) -> Contestant:
    model = Model(problem, mode)
    x, t = torch.from_numpy(problem.x), torch.from_numpy(problem.t)
    size = problem.batch_size
    batches = [(model.in_format(x[k : k + size]), t[k : k + size]) for k in range(0, problem.samples, size)]

    def run(passes: int) -> None:
        for _ in range(passes):
            for batch in batches:
                model.step(*batch)

    name = f"PyTorch {mode}, {'1 thread' if threads == 1 else 'all threads'}, {problem.dtype}"
    return Contestant(name, model.start, run, lambda: model.flat(model.p), prepare=partial(torch.set_num_threads, threads))
