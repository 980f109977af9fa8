"""Hamilton's equations of the parameters, as steps of an optimiser: so a trajectory is one call of compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from chains.expr import where
from chains.optimizers import Optimizer
from chains.program.recorder import Recorder
from chains.program.view import View


@dataclass(frozen=True)
class Leapfrog(Optimizer):
    """Parameters move in the potential ``loss / temperature``; the states are a momentum and an inverse mass for each.

    A trajectory of so many `leaps` is ``leaps + 1`` steps from step 0 on. The first and the last one change the momentum by
    half a kick, and the last one leaves p where it is: the losses of these two are those of the trajectory's ends.

    Parameters
    ----------
    learning_rate : float
        The time that a leap takes.
    temperature : float
        Of the density ``exp(-loss / temperature)``.
    leaps : float
        How many there are.
    clip_norm, sparse
        As of `Optimizer`.
    """

    settings: ClassVar[tuple[str, ...]] = ("learning_rate", "temperature", "leaps")

    temperature: float = 1.0
    leaps: float = 1.0

    @property
    def n_states(self) -> int:
        return 2

    def scalars(self, step: Any) -> tuple[Any, ...]:
        time: Any = self.learning_rate
        ends = where(step < 0.5, 0.5, where(step < self.leaps - 0.5, 1.0, 0.5))
        return ends * time / self.temperature, where(step < self.leaps - 0.5, time, 0.0)

    def update(self, ops: Recorder, p: View, g: View, states: Sequence[View], scalars: Sequence[View]) -> None:
        momentum, inverse_mass = states

        def leap(p: Any, g: Any, momentum: Any, inverse_mass: Any, kick: Any, time: Any) -> tuple[Any, ...]:
            kicked = momentum - kick * g
            return p + time * inverse_mass * kicked, kicked

        ops.map((p, momentum), leap, p, g, momentum, inverse_mass, *scalars)
