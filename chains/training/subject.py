"""What a run trains: one network, perhaps by several processes together, or the members of an ensemble."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from chains.backends import Executable
from chains.chain import Chain
from chains.losses import Loss
from chains.network import arguments, ensembles
from chains.network.record import Criterion
from chains.optimizers import Optimizer
from chains.penalties import Penalty
from chains.training.ensemble import Ensemble
from chains.training.ensemble_history import EnsembleHistory
from chains.training.history import History
from chains.training.judge import Judge, Metric
from chains.training.member_judge import MemberJudge
from chains.training.member_steps import MemberSteps
from chains.training.processes import Processes, check_divided
from chains.training.shared_steps import SharedSteps
from chains.training.steps import ArraySteps, Steps

Data = tuple[dict[str, Any], Criterion]  # arrays by buffer name, and what is minimised
Vectors = dict[str, np.ndarray | None]


class Subject(ABC):
    """The checked parameters `p` of a network, with `seed` and `optimizer`; of an ensemble, the first member's optimiser."""

    net: Chain
    p: np.ndarray
    seed: Any
    optimizer: Optimizer

    @abstractmethod
    def check_source(self) -> None:
        """Raise ValueError where the batches cannot come from a source."""

    @abstractmethod
    def problem(self, x: Any, t: Any, loss: Loss, weights: Any, penalty: Penalty | None, lengths: Any) -> Data:
        """The checked data and the criterion to minimise."""

    @abstractmethod
    def with_counted_targets(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The data for checks of their numbers, without targets that do not count."""

    @abstractmethod
    def samples_of(self, data: Mapping[str, Any]) -> int:
        """How many samples there are; of an ensemble, for each member."""

    @abstractmethod
    def steps_on_arrays(
        self, samples: int, batch_size: int, drop_last: bool, objective: Criterion, history: Any
    ) -> Callable[..., Steps]:
        """The kind of steps. Raises ValueError for batches that it cannot take."""

    @abstractmethod
    def check_state(self, step: Executable, state: Any, data: Mapping[str, Any]) -> np.ndarray | None:
        """The state, if the network has one. Raises TypeError or ValueError where it does not fit, or is missing."""

    @abstractmethod
    def judge(
        self, state: Any, loss: Loss, penalty: Penalty | None, validation: Any, metrics: Sequence[Metric], history: Any
    ) -> Judge | MemberJudge:
        """What computes the numbers on the validation data."""

    def still_trained(self, vectors: Vectors, history: Any) -> Vectors:
        """The part of these vectors that is trained on: all but the rows of members that have ended."""
        return vectors


class OneNetwork(Subject):
    """One network, trained by this process or by several `processes` together."""

    def __init__(self, net: Chain, p: Any, seed: Any, optimizer: Any, processes: Processes | None) -> None:
        self.net = net
        self.p = arguments.check_trained(p, net.n_params)
        self.seed = arguments.check_seed(seed)
        self.optimizer = optimizer
        self._processes = processes

    def check_source(self) -> None:
        if self._processes is not None:
            raise ValueError("`t` is missing: with `comm`, training is on arrays, not on a source of batches")

    def problem(self, x: Any, t: Any, loss: Loss, weights: Any, penalty: Penalty | None, lengths: Any) -> Data:
        return self.net.problem(x, t, loss, weights, penalty, lengths)

    def with_counted_targets(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        return arguments.with_counted_targets(self.net.network.declaration, data)

    def samples_of(self, data: Mapping[str, Any]) -> int:
        return len(data["x"])

    def steps_on_arrays(
        self, samples: int, batch_size: int, drop_last: bool, objective: Criterion, history: History
    ) -> Callable[..., Steps]:
        if self._processes is None:
            return ArraySteps
        check_divided(samples, batch_size, drop_last, self._processes.comm.size)
        if self.optimizer.sparse == "lazy":
            raise ValueError("`comm` needs sparse='exact': the rows that ids name differ between the processes")
        return partial(SharedSteps, self._processes.comm)

    def check_state(self, step: Executable, state: Any, data: Mapping[str, Any]) -> np.ndarray | None:
        return self.net.state_for(step.program, state, self.p.dtype, False, {"p": self.p, **data}).get("state")

    def judge(
        self, state: Any, loss: Loss, penalty: Penalty | None, validation: Any, metrics: Sequence[Metric], history: History
    ) -> Judge:
        return Judge(self.net, self.p, state, loss, penalty, validation, metrics)


class ManyNetworks(Subject):
    """The members of an ensemble."""

    def __init__(self, net: Chain, p: Any, seed: Any, optimizer: Any) -> None:
        self.net = net
        self.p = ensembles.check_members(p, net.n_params, trained=True)
        self._ensemble = Ensemble(self.p, seed, optimizer)
        self.seed, self.optimizer = self._ensemble.seed, self._ensemble.optimizers[0]

    def check_source(self) -> None:
        raise ValueError("`t` is missing: an ensemble is trained on arrays, not on a source of batches")

    def problem(self, x: Any, t: Any, loss: Loss, weights: Any, penalty: Penalty | None, lengths: Any) -> Data:
        return self._ensemble.problem(self.net, x, t, loss, weights, penalty, lengths)

    def with_counted_targets(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._ensemble.members.with_counted_targets(self.net.network.declaration)

    def samples_of(self, data: Mapping[str, Any]) -> int:
        return self._ensemble.members.samples

    def steps_on_arrays(
        self, samples: int, batch_size: int, drop_last: bool, objective: Criterion, history: EnsembleHistory
    ) -> Callable[..., Steps]:
        return partial(MemberSteps, self._ensemble, objective, history)

    def check_state(self, step: Executable, state: Any, data: Mapping[str, Any]) -> np.ndarray | None:
        return self._ensemble.check_state(self.net, step, state)

    def judge(
        self,
        state: Any,
        loss: Loss,
        penalty: Penalty | None,
        validation: Any,
        metrics: Sequence[Metric],
        history: EnsembleHistory,
    ) -> MemberJudge:
        return MemberJudge(self.net, self.p, state, loss, penalty, validation, metrics, history)

    def still_trained(self, vectors: Vectors, history: EnsembleHistory) -> Vectors:
        return {name: None if rows is None else rows[history.running] for name, rows in vectors.items()}


def subject_of(net: Chain, p: Any, seed: Any, optimizer: Any, processes: Processes | None) -> Subject:
    """What is trained, by these arguments of `train`. Raises TypeError or ValueError where they do not fit."""
    if not ensembles.is_ensemble(p):
        return OneNetwork(net, p, seed, optimizer, processes)
    if processes is not None:
        raise ValueError("`comm` is for one network: the members of an ensemble need no messages, divide them instead")
    return ManyNetworks(net, p, seed, optimizer)
