"""An ensemble for training, with the separate seeds, optimisers and data of its members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chains.backends import Executable
from chains.chain import Chain
from chains.losses import Loss
from chains.network import arguments, ensembles
from chains.network.ensembles import Members
from chains.network.record import Criterion
from chains.optimizers import Optimizer
from chains.penalties import Penalty
from chains.program.settings import numbers_of, structure
from chains.support.checks import check_is
from chains.support.memory import memory_of
from chains.support.messages import counted, shown


class Ensemble:
    """Rows of parameters, with one seed for all or one for each, and optimisers that differ only in their numbers.

    Raises TypeError or ValueError for invalid seeds and optimisers, and unless there are as many as members.
    """

    def __init__(self, p: np.ndarray, seed: Any, optimizer: Any) -> None:
        self.p = p
        self.seed = self._seeds(seed)
        self.optimizers = self._optimizers(optimizer)
        self.members = Members(len(p))

    def _seeds(self, seed: Any) -> int | list[int]:
        if not isinstance(seed, (list, tuple, range, np.ndarray)):
            return arguments.check_seed(seed, f", or one for each of {counted(len(self.p), 'member')}")
        self._check_count("seed", seed)
        return [arguments.check_seed(each.item() if isinstance(each, np.generic) else each) for each in seed]

    def _optimizers(self, optimizer: Any) -> list[Optimizer]:
        if not isinstance(optimizer, (list, tuple)):
            check_is("optimizer", optimizer, Optimizer, "an optimiser such as Adam(1e-3), or one for each member")
            return [optimizer]
        self._check_count("optimizer", optimizer)
        first = optimizer[0]
        for number, each in enumerate(optimizer):
            check_is(f"optimizer[{number}]", each, Optimizer, "an optimiser such as Adam(1e-3)")
            if structure(each) != structure(first):
                raise ValueError(
                    f"`optimizer` must hold optimisers that differ in numbers alone, none of them zero, since all share one "
                    f"program: optimizer[{number}] is {each!r}, but optimizer[0] is {first!r}"
                )
        return list(optimizer)

    def _check_count(self, name: str, given: Any) -> None:
        if len(given) != len(self.p):
            raise ValueError(f"`{name}` (={shown(given)}) must be one, or one for each of {counted(len(self.p), 'member')}")

    def problem(
        self, net: Chain, x: Any, t: Any, loss: Loss, weights: Any, penalty: Penalty | None, lengths: Any
    ) -> tuple[dict[str, Any], Criterion]:
        """The checked data by buffer name, and the criterion to minimise."""
        self.members = ensembles.check_data(net, len(self.p), x, t, loss, weights, lengths)
        first = {"weights": None, "lengths": None} | self.members.of(0)
        return dict(self.members.arrays), net.problem(**first, loss=loss, penalty=penalty)[1]

    def check_state(self, net: Chain, step: Executable, state: Any) -> np.ndarray | None:
        """The members' states. Raises TypeError or ValueError where they do not fit, or are missing."""
        if state is None:
            net.state_for(step.program, None, self.p.dtype, False, {"p": self.p})
            return None
        ensembles.add_state(self.members, net, state, self.p, True)
        return self.members.arrays.pop("state")

    def settings(self, step: Executable, objective: Criterion) -> dict[str, Any]:
        """The settings of the members' optimisers, a row for each; empty if all share one."""
        if len(self.optimizers) == 1:
            return {}
        rows: Sequence[dict[str, np.ndarray]] = [
            step.program.tuned(numbers_of((objective, optimizer))) for optimizer in self.optimizers
        ]
        return {name: memory_of(self.p).contiguous(np.stack([row[name] for row in rows])) for name in rows[0]}
