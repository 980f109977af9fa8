"""The problems of `benchmarks.gpu` in PyTorch on the GPU: eager, compiled with reduced overhead, and as a CUDA graph.

"channels-last" is a graph too, with images and kernels in that memory format, which suits tensor cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import chains
from benchmarks.gpu.problems import NoGpuError, Problem, Result, Setting, problem, timing
from chains.interop import to_torch

GRAPHS = ("graph", "channels-last")  # modes


def measure(key: str, mode: str, precision: str, setting: Setting) -> Result:
    """The seconds of all epochs, the loss of the last step and the accuracy of the first run; full batches only.

    A rehearsal runs on the processor; else it raises NoGpuError where PyTorch has no GPU.
    """
    import torch

    if not torch.cuda.is_available() and not setting.tiny:
        raise NoGpuError("PyTorch is installed without CUDA")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    given = problem(key, setting)
    trainer = _Trainer(torch, given, mode, "cuda" if torch.cuda.is_available() else "cpu")
    trainer.epochs()  # with compilation, capture and the choice of convolutions
    result: Result = {"loss": trainer.loss.item(), "version": torch.__version__, "accuracy": trainer.accuracy()}
    return result | timing(min(trainer.epochs() for _ in range(2)), given.steps)


class _Trainer:
    """A model, its optimiser and its data on the GPU, with a step in one of the modes."""

    def __init__(self, torch: Any, given: Problem, mode: str, device: str) -> None:
        self._torch, self._problem, self._device = torch, given, device
        net = given.net("numpy")
        self._model = to_torch(net, net.init(seed=0)).to(device)
        self._optimizer = _optimizer(torch, given.optimizer, self._model, device)
        self._criterion = _criterion(torch, given.loss)
        self._x, self._t = (torch.from_numpy(array).to(device) for array in (given.x, given.t))
        self._batch = [array[: given.batch].clone() for array in (self._x, self._t)]
        if mode == "channels-last":
            self._model = self._model.to(memory_format=torch.channels_last)
            self._x, self._batch[0] = (a.contiguous(memory_format=torch.channels_last) for a in (self._x, self._batch[0]))
        self.loss = torch.zeros((), device=device)
        self._forward = torch.compile(self._model, mode="reduce-overhead") if mode == "compile" else self._model
        self._set_to_none = mode not in GRAPHS
        self._step: Callable[[], object] = self._captured() if mode in GRAPHS else self._eager

    def _eager(self) -> None:
        self._optimizer.zero_grad(set_to_none=self._set_to_none)
        x, t = self._batch
        value = self._criterion(self._forward(x), t)
        value.backward()
        self._optimizer.step()
        self.loss.copy_(value.detach())

    def _captured(self) -> Callable[[], object]:
        """The step as a graph, made as PyTorch's documentation says: after some steps on a side stream."""
        torch, before = self._torch, deepcopy(self._model.state_dict())
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._eager()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._eager()
        self._model.load_state_dict(before)
        for value in (value for state in self._optimizer.state.values() for value in state.values()):
            if torch.is_tensor(value):
                value.zero_()
        return graph.replay

    def epochs(self) -> float:
        """The seconds of all epochs, with their shuffles on the GPU."""
        torch, length, batch = self._torch, len(self._x), self._problem.batch
        wait = torch.cuda.synchronize if self._device == "cuda" else lambda: None
        wait()
        start = time.perf_counter()
        for _ in range(self._problem.epochs):
            order = torch.randperm(length, device=self._device) if batch < length else None
            for k in range(0, length - batch + 1, batch):
                if order is not None:
                    for data, part in zip((self._x, self._t), self._batch, strict=True):
                        torch.index_select(data, 0, order[k : k + batch], out=part)
                self._step()
        wait()
        return time.perf_counter() - start

    def accuracy(self) -> float | None:
        if self._problem.test is None:
            return None
        (x, t), torch = self._problem.test, self._torch
        self._model.eval()
        with torch.no_grad():
            parts = [self._model(torch.from_numpy(x[k : k + 1000]).to(self._device)).argmax(1) for k in range(0, len(x), 1000)]
        self._model.train()
        return float((torch.cat(parts).cpu().numpy() == t).mean())


def _optimizer(torch: Any, optimizer: Any, model: Any, device: str) -> Any:
    made = partial(torch.optim.SGD, momentum=optimizer.momentum) if isinstance(optimizer, chains.SGD) else torch.optim.Adam
    capturable = {"capturable": True} if device == "cuda" and isinstance(optimizer, chains.Adam) else {}
    return made(model.parameters(), lr=optimizer.learning_rate, fused=True, **capturable)


def _criterion(torch: Any, loss: Any) -> Callable[[Any, Any], Any]:
    if isinstance(loss, chains.CrossEntropyLoss):
        return torch.nn.functional.cross_entropy
    mean = torch.nn.functional.mse_loss
    return mean if loss == chains.MSELoss() else lambda y, t: 0.5 * mean(y, t, reduction="sum") / len(y)
