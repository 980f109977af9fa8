"""The problems of `benchmarks.gpu` in PyTorch on the GPU: eager, compiled with reduced overhead, and as a CUDA graph.

"channels-last" is a graph too, with images and kernels in that layout, which suits tensor cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import chains
from benchmarks.gpu_problems import NoGpuError, Problem, Setting, activation_of, problem, timing

GRAPHS = ("graph", "channels-last")  # modes


def measure(key: str, mode: str, precision: str, setting: Setting) -> dict[str, Any]:
    """The seconds of all epochs, the loss of the last step and the accuracy of the first run; full batches only.

    Float32 products stay so unless `precision` is "tf32". Where all is tiny, it runs anywhere; else it raises
    NoGpuError where PyTorch has no GPU.
    """
    import torch

    if not torch.cuda.is_available() and not setting.tiny:
        raise NoGpuError("PyTorch is installed without CUDA")
    torch.manual_seed(0)
    rounded = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = rounded
    torch.backends.cudnn.benchmark = True
    given = problem(key, setting)
    trainer = _Trainer(torch, given, mode, "cuda" if torch.cuda.is_available() else "cpu")
    trainer.epochs()  # with compilation, capture and the choice of convolutions
    result: dict[str, Any] = {"loss": trainer.loss.item(), "version": torch.__version__}
    if given.test is not None:
        result["accuracy"] = trainer.accuracy(*given.test)
    return result | timing(min(trainer.epochs() for _ in range(2)), given.full_steps)


class _Trainer:
    """A model, its optimiser and its data on the GPU, with a step in one of the modes."""

    def __init__(self, torch: Any, given: Problem, mode: str, device: str) -> None:
        self._torch, self._problem, self._device = torch, given, device
        self._model = _model(torch, given).to(device)
        self._optimizer = _optimizer(torch, given.optimizer, self._model, device)
        self._criterion = _criterion(torch, given.loss)
        self._x, self._t = torch.from_numpy(given.x).to(device), torch.from_numpy(given.t).to(device)
        batch = given.batch
        self._own_x, self._own_t = self._x[:batch].clone(), self._t[:batch].clone()
        if mode == "channels-last":
            self._model = self._model.to(memory_format=torch.channels_last)
            self._x, self._own_x = (a.contiguous(memory_format=torch.channels_last) for a in (self._x, self._own_x))
        self.loss = torch.zeros((), device=device)
        self._forward = torch.compile(self._model, mode="reduce-overhead") if mode == "compile" else self._model
        self._set_to_none = mode not in GRAPHS
        self._step: Callable[[], object] = self._captured() if mode in GRAPHS else self._eager

    def _eager(self) -> None:
        self._optimizer.zero_grad(set_to_none=self._set_to_none)
        value = self._criterion(self._forward(self._own_x), self._own_t)
        value.backward()
        self._optimizer.step()
        self.loss.copy_(value.detach())

    def _captured(self) -> Callable[[], object]:
        """As PyTorch's documentation has it: some steps on a side stream, then one recorded."""
        cuda, before = self._torch.cuda, [p.detach().clone() for p in self._model.parameters()]
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(3):
                self._eager()
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self._eager()
        with self._torch.no_grad():
            for p, first in zip(self._model.parameters(), before, strict=True):
                p.copy_(first)
            for state in self._optimizer.state.values():
                for value in state.values():
                    if self._torch.is_tensor(value):
                        value.zero_()
        return graph.replay

    def epochs(self) -> float:
        """The seconds of all epochs, with their shuffles on the GPU."""
        torch, given = self._torch, self._problem
        x, t, batch = self._x, self._t, given.batch
        self._wait()
        start = time.perf_counter()
        for _ in range(given.epochs):
            order = torch.randperm(len(x), device=self._device) if batch < len(x) else None
            for k in range(0, len(x) - batch + 1, batch):
                if order is not None:
                    part = order[k : k + batch]
                    torch.index_select(x, 0, part, out=self._own_x)
                    torch.index_select(t, 0, part, out=self._own_t)
                self._step()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def accuracy(self, x: np.ndarray, t: np.ndarray) -> float:
        torch = self._torch
        self._model.eval()
        with torch.no_grad():
            parts = [self._model(torch.from_numpy(x[k : k + 1000]).to(self._device)).argmax(1) for k in range(0, len(x), 1000)]
        self._model.train()
        return float((torch.cat(parts).cpu().numpy() == t).mean())


def _model(torch: Any, given: Problem) -> Any:
    """The same layers, from the same parameters."""
    nn, made = torch.nn, []
    functions = {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "relu": nn.ReLU}
    net = given.net("numpy")
    arrays = iter(net.views(net.init(seed=0)).values())
    for layer in given.layers:
        if isinstance(layer, chains.Dense):
            made.append(nn.Linear(layer.inputs, layer.outputs))
            _fill(torch, made[-1], next(arrays).T, next(arrays))
        elif isinstance(layer, chains.Conv):
            padding = [pair[0] for pair in layer.window.padding]
            made.append(nn.Conv2d(layer.inputs, layer.outputs, layer.window.size, padding=padding))
            _fill(torch, made[-1], next(arrays), next(arrays))
        elif isinstance(layer, chains.MaxPool):
            made.append(nn.MaxPool2d(layer.window.size))
        elif isinstance(layer, chains.Flatten):
            made.append(nn.Flatten())
        elif isinstance(layer, chains.Dropout):
            made.append(nn.Dropout(layer.rate))
        if activation_of(layer) in functions:
            made.append(functions[activation_of(layer)]())
    return nn.Sequential(*made)


def _fill(torch: Any, module: Any, weight: np.ndarray, bias: np.ndarray) -> None:
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(weight.copy()))
        module.bias.copy_(torch.from_numpy(bias.copy()))


def _optimizer(torch: Any, optimizer: Any, model: Any, device: str) -> Any:
    if isinstance(optimizer, chains.Adam):
        rest = {"capturable": True} if device == "cuda" else {}
        return torch.optim.Adam(model.parameters(), lr=optimizer.learning_rate, fused=True, **rest)
    return torch.optim.SGD(model.parameters(), lr=optimizer.learning_rate, momentum=optimizer.momentum, fused=True)


def _criterion(torch: Any, loss: Any) -> Callable[[Any, Any], Any]:
    functional = torch.nn.functional
    if isinstance(loss, chains.CrossEntropyLoss):
        return functional.cross_entropy
    if loss == chains.MSELoss():
        return functional.mse_loss
    return lambda y, t: 0.5 * functional.mse_loss(y, t, reduction="sum") / len(y)
