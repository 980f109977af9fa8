"""PyTorch on the CPU: eager, `torch.compile` as its tutorials use it, and the whole step in one compiled function.

Each with one thread and with all.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.harness.machine import cores
from benchmarks.harness.peers import Options
from benchmarks.harness.timing import Contestant
from benchmarks.problems.dense import Problem

_ACTIVATIONS = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "linear": lambda z: z}


def modes(options: Options) -> list[tuple[str, int, str]]:
    """Name, number of threads, and name of its rows, of every mode."""
    threads = {1: "1 thread", cores(): "all threads"}
    names = ("eager", "compile whole step") if options.quick else ("eager", "compile", "compile whole step")
    return [(name, count, f"PyTorch {name}, {text}") for name in names for count, text in threads.items()]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile`, apart from earlier compilations: all those of one code object share a cache, slower and limited."""
    code = function.__code__.replace()
    copy = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    return torch.compile(copy, dynamic=False)


class _Model:
    """The problem's parameters as tensors (weights of shape (outputs, inputs), as in nn.Linear) and its loss."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.x, self.t = torch.from_numpy(problem.x), torch.from_numpy(problem.t)
        self.first = [
            tensor.clone(memory_format=torch.contiguous_format)
            for w, b in problem.layers(problem.p)
            for tensor in (torch.from_numpy(w.T.copy()), torch.from_numpy(b.copy()))
        ]
        self.p = [tensor.clone() for tensor in self.first]

    def loss(self, p: list[Tensor], x: Tensor, t: Tensor) -> Tensor:
        for k, name in enumerate(self.problem.activations):
            x = _ACTIVATIONS[name](functional.linear(x, p[2 * k], p[2 * k + 1]))
        if self.problem.loss == "mse":
            return functional.mse_loss(x, t)
        return 0.5 * functional.mse_loss(x, t, reduction="sum") / len(x)

    def start(self) -> None:
        with torch.no_grad():
            for p, first in zip(self.p, self.first, strict=True):
                p.copy_(first)

    def flat(self, tensors: list[Tensor]) -> np.ndarray:
        """Tensors shaped like the parameters as one vector in the problem's order."""
        return np.concatenate([tensor.detach().numpy().T.ravel() for tensor in tensors])

    def result(self) -> np.ndarray:
        return self.flat(self.p)


Step = Callable[[Tensor, Tensor], Any]


def _stepper(model: _Model, mode: str) -> tuple[Step, Callable[[], None]]:
    """A function that does one step on a batch, and one that goes back to the start."""
    problem = model.problem
    if mode == "compile whole step":
        return _functional_stepper(model)
    for p in model.p:
        p.requires_grad_()
    make = torch.optim.Adam if problem.optimizer == "adam" else torch.optim.SGD
    loss = compiled(lambda x, t: model.loss(model.p, x, t)) if mode == "compile" else partial(model.loss, model.p)
    optimizer = make(model.p, lr=problem.rate, fused=True)

    def step(x: Tensor, t: Tensor) -> None:
        optimizer.zero_grad()
        loss(x, t).backward()
        optimizer.step()

    def start() -> None:
        nonlocal optimizer
        model.start()
        optimizer = make(model.p, lr=problem.rate, fused=True)

    return step, start


def _functional_stepper(model: _Model) -> tuple[Step, Callable[[], None]]:
    """The gradient by `torch.func` and the optimiser written out, all in one compiled function."""
    problem = model.problem
    ms, vs = ([torch.zeros_like(p) for p in model.p] for _ in range(2))
    count = torch.zeros((), dtype=model.p[0].dtype)
    rate = problem.rate

    def adam(p: list[Tensor], ms: list[Tensor], vs: list[Tensor], count: Tensor, x: Tensor, t: Tensor) -> Tensor:
        gradients, value = torch.func.grad_and_value(model.loss)(p, x, t)
        count.add_(1.0)
        root = torch.sqrt(1 - 0.999**count)
        change = rate * root / (1 - 0.9**count)
        for w, m, v, g in zip(p, ms, vs, gradients, strict=True):
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.999).addcmul_(g, g, value=0.001)
            w.sub_(change * (m / (torch.sqrt(v) + 1e-8 * root)))
        return value

    def sgd(p: list[Tensor], x: Tensor, t: Tensor) -> Tensor:
        gradients, value = torch.func.grad_and_value(model.loss)(p, x, t)
        for w, g in zip(p, gradients, strict=True):
            w.sub_(g, alpha=rate)
        return value

    is_adam = problem.optimizer == "adam"
    step = partial(compiled(adam), model.p, ms, vs, count) if is_adam else partial(compiled(sgd), model.p)

    def start() -> None:
        model.start()
        for tensor in (*ms, *vs, count):
            tensor.zero_()

    return step, start


def step_rows(problem: Problem, options: Options) -> list[Contestant]:
    """Steps with all samples."""
    return [_steps(problem, *mode) for mode in modes(options)]


def _steps(problem: Problem, mode: str, threads: int, name: str) -> Contestant:
    model = _Model(problem)
    step, start = _stepper(model, mode)

    def run(n: int) -> None:
        for _ in range(n):
            step(model.x, model.t)

    return Contestant(f"{name}, {problem.dtype}", start, run, model.result, prepare=partial(torch.set_num_threads, threads))


def epoch_rows(problem: Problem, options: Options) -> list[Contestant]:
    """Epochs in shuffled batches."""
    return [_epochs(problem, *mode) for mode in modes(options)]


def _epochs(problem: Problem, mode: str, threads: int, name: str) -> Contestant:
    model = _Model(problem)
    step, start = _stepper(model, mode)

    def run(n: int) -> None:
        for _ in range(n):
            for piece in torch.randperm(problem.samples).split(problem.batch_size):
                step(model.x[piece], model.t[piece])

    return Contestant(f"{name}, {problem.dtype}", start, run, model.result, prepare=partial(torch.set_num_threads, threads))


def gradient_rows(problem: Problem, options: Options) -> list[Contestant]:
    """Values and gradients."""
    wanted = [mode for mode in modes(options) if mode[0] != "compile"]  # the whole gradient is compiled, or nothing
    return [_gradients(problem, *mode) for mode in wanted]


call_rows = gradient_rows


def _gradients(problem: Problem, mode: str, threads: int, name: str) -> Contestant:
    model = _Model(problem)
    results: list[Any] = [None]
    if mode == "eager":
        for p in model.p:
            p.requires_grad_()

        def gradient(p: list[Tensor], x: Tensor, t: Tensor) -> Any:
            value = model.loss(p, x, t)
            return torch.autograd.grad(value, p), value
    else:
        gradient = compiled(lambda p, x, t: torch.func.grad_and_value(model.loss)(p, x, t))

    def run(n: int) -> None:
        for _ in range(n):
            results[0] = gradient(model.p, model.x, model.t)

    def result() -> tuple[float, np.ndarray]:
        gradients, value = results[0]
        return float(value), model.flat(gradients)

    name = f"{name.replace('whole step', 'whole gradient')}, {problem.dtype}"
    return Contestant(name, lambda: None, run, result, prepare=partial(torch.set_num_threads, threads))
