"""Adagrad, and RMSProp with a decaying average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from chains.expr import sqrt
from chains.optimizers.base import Optimizer, Rate
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_number


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """p -= rate * g / (sqrt(v) + eps), v the sum of all g^2 so far, as in PyTorch. Source: Duchi et al. 2011.

    Parameters
    ----------
    learning_rate
        As of `Optimizer`.
    eps : float
        Positive.
    clip_norm, sparse
        As of `Optimizer`.
    """

    settings: ClassVar[tuple[str, ...]] = (*Optimizer.settings, "eps")
    n_states: ClassVar[int] = 1
    rests: ClassVar[bool] = True

    learning_rate: Rate = 1e-2
    eps: float = 1e-10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("eps", self.eps, "in (0, inf)")

    def update(self, ops: Recorder, p: View, g: View, states: Sequence[View], scalars: Sequence[View]) -> None:
        (v,), (rate, *_), eps = states, scalars, self.eps

        def step(p: Any, g: Any, v: Any, rate: Any) -> tuple[Any, ...]:
            v = v + g * g
            return v, p - rate * (g / (sqrt(v) + eps))

        ops.map((v, p), step, p, g, v, rate)


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """p -= rate * g / (sqrt(v) + eps), v the decaying average of g^2, as in PyTorch. Source: Hinton 2012.

    Parameters
    ----------
    learning_rate
        As of `Optimizer`.
    decay : float
        Of the average, from 0 to 1, exclusive.
    eps : float
        Positive.
    clip_norm, sparse
        As of `Optimizer`.
    """

    settings: ClassVar[tuple[str, ...]] = (*Optimizer.settings, "decay", "eps")
    n_states: ClassVar[int] = 1

    learning_rate: Rate = 1e-2
    decay: float = 0.99
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("decay", self.decay, "in [0, 1)")
        check_number("eps", self.eps, "in (0, inf)")

    def update(self, ops: Recorder, p: View, g: View, states: Sequence[View], scalars: Sequence[View]) -> None:
        (v,), (rate, *_), decay, eps = states, scalars, self.decay, self.eps

        def step(p: Any, g: Any, v: Any, rate: Any) -> tuple[Any, ...]:
            v = decay * v + (1.0 - decay) * (g * g)
            return v, p - rate * (g / (sqrt(v) + eps))

        ops.map((v, p), step, p, g, v, rate)
