"""Gradient descent, with momentum and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from chains.optimizers.base import Optimizer
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_number


@dataclass(frozen=True)
class SGD(Optimizer):
    """p -= rate * v, where v = momentum * v + g; with `nesterov`, p -= rate * (g + momentum * v). As in PyTorch.

    Parameters
    ----------
    learning_rate
        As of `Optimizer`.
    momentum : float
        From 0 to 1, exclusive. The gradient is not multiplied by 1 - momentum.
    nesterov : bool
        Whether the step looks ahead along v.
    clip_norm, sparse
        As of `Optimizer`.
    """

    settings: ClassVar[tuple[str, ...]] = (*Optimizer.settings, "momentum")

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("momentum", self.momentum, "in [0, 1)")
        if not isinstance(self.nesterov, bool):
            raise TypeError(f"`nesterov` (={self.nesterov!r}) must be True or False")
        if self.nesterov and self.momentum == 0.0:
            raise ValueError("`nesterov` (=True) needs a positive `momentum` (=0)")

    @property
    def n_states(self) -> int:
        return 1 if self.momentum else 0

    @property
    def rests(self) -> bool:
        return not self.momentum

    def update(self, ops: Recorder, p: View, g: View, states: Sequence[View], scalars: Sequence[View]) -> None:
        (rate, *_), mu = scalars, self.momentum
        if not mu:
            ops.map(p, lambda p, g, rate: p - g * rate, p, g, rate)
            return
        (v,) = states
        ops.map(v, lambda v, g: mu * v + g, v, g)
        if self.nesterov:
            ops.map(p, lambda p, g, v, rate: p - (g + mu * v) * rate, p, g, v, rate)
        else:
            ops.map(p, lambda p, v, rate: p - v * rate, p, v, rate)
