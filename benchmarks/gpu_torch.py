"""The problems of `benchmarks.gpu` in PyTorch on the GPU: eager, compiled with reduced overhead, and as a CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import chains


def rows(problem: Any) -> Iterator[tuple[str, float | None]]:
    """Each mode with the seconds it takes for the problem's epochs, or a sentence why there is none."""
    try:
        import torch
    except ImportError:
        yield "PyTorch is not installed", None
        return
    if not torch.cuda.is_available():
        yield "PyTorch is installed without CUDA", None
        return
    for mode in ("eager", "compile", "graph"):
        try:
            yield f"PyTorch {mode}", _seconds(torch, problem, mode)
        except Exception as error:  # a mode that fails is a row too
            yield f"PyTorch {mode} failed: {error}", None


def _seconds(torch: Any, problem: Any, mode: str) -> float:
    model = _model(torch, problem.layers).cuda()
    optimizer = _optimizer(torch, problem.optimizer, model)
    criterion = _criterion(torch, problem.loss)
    x, t = torch.from_numpy(problem.x).cuda(), torch.from_numpy(problem.t).cuda()
    forward = torch.compile(model, mode="reduce-overhead") if mode == "compile" else model
    batch = problem.batch
    own_x, own_t = x[:batch].clone(), t[:batch].clone()

    def step() -> None:
        optimizer.zero_grad(set_to_none=mode != "graph")
        criterion(forward(own_x), own_t).backward()
        optimizer.step()

    do: Callable[[], object] = step
    if mode == "graph":
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        do = graph.replay

    def epochs() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(problem.epochs):
            order = torch.randperm(len(x), device="cuda")
            for k in range(0, len(x) - batch + 1, batch):
                if batch < len(x):
                    part = order[k : k + batch]
                    own_x.copy_(x[part])
                    own_t.copy_(t[part])
                do()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    epochs()
    return min(epochs() for _ in range(2))


def _model(torch: Any, layers: Any) -> Any:
    """The same layers, by name."""
    nn, made = torch.nn, []
    names = {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "relu": nn.ReLU}
    for layer in layers:
        if isinstance(layer, chains.Dense):
            made.append(nn.Linear(layer.inputs, layer.outputs))
        elif isinstance(layer, chains.Conv):
            padding = [pair[0] for pair in layer.window.padding]
            made.append(nn.Conv2d(layer.inputs, layer.outputs, layer.window.size, padding=padding))
        elif isinstance(layer, chains.MaxPool):
            made.append(nn.MaxPool2d(layer.window.size))
        elif isinstance(layer, chains.Flatten):
            made.append(nn.Flatten())
        elif isinstance(layer, chains.Dropout):
            made.append(nn.Dropout(layer.rate))
        activation = getattr(layer, "activation", None)
        if activation is not None and activation.name in names:
            made.append(names[activation.name]())
    return nn.Sequential(*made)


def _optimizer(torch: Any, optimizer: Any, model: Any) -> Any:
    if isinstance(optimizer, chains.Adam):
        return torch.optim.Adam(model.parameters(), lr=optimizer.learning_rate, fused=True, capturable=True)
    return torch.optim.SGD(model.parameters(), lr=optimizer.learning_rate, momentum=optimizer.momentum, fused=True)


def _criterion(torch: Any, loss: Any) -> Callable[[Any, Any], Any]:
    functional = torch.nn.functional
    if isinstance(loss, chains.CrossEntropyLoss):
        return functional.cross_entropy
    if loss == chains.MSELoss():
        return functional.mse_loss
    return lambda y, t: 0.5 * functional.mse_loss(y, t, reduction="sum") / len(y)
