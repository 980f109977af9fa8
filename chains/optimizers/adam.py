"""Adam, and Adam with decoupled weight decay."""

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
class Adam(Optimizer):
    """Adam with bias correction, as in PyTorch. Source: Kingma and Ba 2015.

    Parameters
    ----------
    learning_rate
        As of `Optimizer`.
    beta1, beta2 : float
        The decay of the averages of g and g^2, from 0 to 1, exclusive.
    eps : float
        Added to the root of the average of g^2; positive.
    clip_norm, sparse
        As of `Optimizer`.
    """

    settings: ClassVar[tuple[str, ...]] = (*Optimizer.settings, "beta1", "beta2", "eps")
    n_states: ClassVar[int] = 2

    learning_rate: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("beta1", self.beta1, "in [0, 1)")
        check_number("beta2", self.beta2, "in [0, 1)")
        check_number("eps", self.eps, "in (0, inf)")

    def scalars(self, step: Any) -> tuple[Any, ...]:
        # rate * (m / correct1) / (sqrt(v / correct2) + eps), with both corrections moved into two scalars
        root = sqrt(1.0 - self.beta2 ** (step + 1.0))
        return self.rate(step) * root / (1.0 - self.beta1 ** (step + 1.0)), self.eps * root

    def update(self, ops: Recorder, p: View, g: View, states: Sequence[View], scalars: Sequence[View]) -> None:
        m, v = states
        rate, eps, *_ = scalars
        beta1, beta2 = self.beta1, self.beta2

        def step(p: Any, g: Any, m: Any, v: Any, rate: Any, eps: Any) -> tuple[Any, ...]:
            m = beta1 * m + (1.0 - beta1) * g
            v = beta2 * v + (1.0 - beta2) * (g * g)
            return m, v, p - rate * (m / (sqrt(v) + eps))

        ops.map((m, v, p), step, p, g, m, v, rate, eps)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: p is first multiplied by 1 - rate * weight_decay. Source: Loshchilov and Hutter 2019.

    Parameters
    ----------
    learning_rate, beta1, beta2, eps
        As of `Adam`.
    weight_decay : float
        The rate of the decay, 0 or more. All trained parameters decay, biases too.
    clip_norm, sparse
        As of `Optimizer`.
    """

    settings: ClassVar[tuple[str, ...]] = (*Adam.settings, "weight_decay")

    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("weight_decay", self.weight_decay, "in [0, inf)")

    def scalars(self, step: Any) -> tuple[Any, ...]:
        return *super().scalars(step), 1.0 - self.rate(step) * self.weight_decay

    def update(self, ops: Recorder, p: View, g: View, states: Sequence[View], scalars: Sequence[View]) -> None:
        *_, keep = scalars
        ops.map(p, lambda p, keep: p * keep, p, keep)
        super().update(ops, p, g, states, scalars)
