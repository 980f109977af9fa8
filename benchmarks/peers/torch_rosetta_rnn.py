"""The recurrent network of the comparison by PyTorch, eager: to compile a recurrence of 150 steps takes it minutes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.harness.machine import cores
from benchmarks.harness.report import progress_bar
from benchmarks.harness.timing import Contestant, in_modes
from benchmarks.problems import rosetta_rnn as own

# Names in chains, and where PyTorch has the transposed array.
_PLACES = {
    "0.weight": ("embedding", "weight", False),
    "1.weight": ("gru", "weight_ih_l0", True),
    "1.recurrent_weight": ("gru", "weight_hh_l0", True),
    "1.bias": ("gru", "bias_ih_l0", False),
    "1.recurrent_bias": ("gru", "bias_hh_l0", False),
    "2.weight": ("outputs", "weight", True),
    "2.bias": ("outputs", "bias", False),
}


class Model(nn.Module):
    """The network and its optimiser, with the parameters of a `rosetta_rnn.Problem`."""

    def __init__(self, problem: Any, *, fused: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(problem.words, own.FEATURES)
        self.gru = nn.GRU(own.FEATURES, own.UNITS, batch_first=True)
        self.outputs = nn.Linear(own.UNITS, 2)
        self._arrays = problem.arrays
        self._rate, self._fused = own.RATE, fused
        self.begin()

    def begin(self) -> None:
        """Back to the starting parameters, with an optimiser that has made no step."""
        with torch.no_grad():
            for name, place in self._tensors().items():
                place.copy_(torch.from_numpy(self._arrays[name].copy()))
        self.optimizer = torch.optim.Adam(self.parameters(), self._rate, fused=self._fused)

    def _tensors(self) -> dict[str, torch.Tensor]:
        """PyTorch's tensors by chains' names, transposed where chains has them so."""
        tensors = {}
        for name in self._arrays:
            layer, tensor, turned = _PLACES[name]
            found = getattr(getattr(self, layer), tensor)
            tensors[name] = found.T if turned else found
        return tensors

    @property
    def flat(self) -> np.ndarray:
        """The parameters as chains' flat vector."""
        return np.concatenate([each.detach().numpy().ravel() for each in self._tensors().values()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outputs(self.gru(self.embedding(x))[0][:, -1])

    def step(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self(x), t)
        loss.backward()
        self.optimizer.step()
        return loss


def rows(problem: Any) -> list[Contestant]:
    """Steps with Adam as it is by default and fused, on one thread and on all."""
    found = []
    batches = [(torch.from_numpy(x), torch.from_numpy(t)) for x, t in problem.batches]
    counts = [("1 thread", partial(torch.set_num_threads, 1)), ("all threads", partial(torch.set_num_threads, cores()))]
    for text, fused in (("eager", False), ("eager, fused Adam", True)):
        model = Model(problem, fused=fused)

        def run(steps: int, model: Model = model) -> None:
            for k in range(steps):
                model.step(*batches[k % len(batches)])

        found += in_modes(
            Contestant(f"PyTorch {text}", model.begin, run, lambda model=model: model.flat, chunk=len(batches)), counts
        )
    return found


def accuracies(problem: Any, seed: int, epochs: int) -> list[float]:
    """Test accuracy after each epoch."""
    torch.manual_seed(seed)
    torch.set_num_threads(cores())
    model, (x, t) = Model(problem), (torch.from_numpy(problem.x), torch.from_numpy(problem.t.astype(np.int64)))
    reached: list[float] = []
    with progress_bar(len(x) // own.BATCH * epochs, "step") as bar:
        for _ in range(epochs):
            for piece in torch.randperm(len(x))[: len(x) // own.BATCH * own.BATCH].split(own.BATCH):
                model.step(x[piece], t[piece])
                bar.update()
            with torch.no_grad():
                reached.append(own.score(lambda x: model(torch.from_numpy(x)).numpy()))
    return reached
