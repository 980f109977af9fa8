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

    A trajectory of `leapfrog_steps` is ``leapfrog_steps + 1`` steps of the optimiser from step 0 on. The first and the last one
    change the momentum by half a kick, and the last one leaves p where it is: their losses are those of the trajectory's ends.

    Parameters
    ----------
    learning_rate : float
        The time that a leapfrog step takes.
    temperature : float
        Of the density ``exp(-loss / temperature)``.
    leapfrog_steps : float
        The number of leapfrog steps of a trajectory.
    clip_norm, sparse
        As of `Optimizer`.
    """

    settings: ClassVar[tuple[str, ...]] = ("learning_rate", "temperature", "leapfrog_steps")

    temperature: float = 1.0
    leapfrog_steps: float = 1.0

    @property
    def n_states(self) -> int:
        return 2

    def scalars(self, step: Any) -> tuple[Any, ...]:
        time: Any = self.learning_rate
        ends = where(step < 0.5, 0.5, where(step < self.leapfrog_steps - 0.5, 1.0, 0.5))
        return ends * time / self.temperature, where(step < self.leapfrog_steps - 0.5, time, 0.0)

    def update(self, ops: Recorder, p: View, g: View, states: Sequence[View], scalars: Sequence[View]) -> None:
        momentum, inverse_mass = states

        def kick_and_drift(p: Any, g: Any, momentum: Any, inverse_mass: Any, kick: Any, time: Any) -> tuple[Any, ...]:
            kicked = momentum - kick * g
            return p + time * inverse_mass * kicked, kicked

        ops.map((p, momentum), kick_and_drift, p, g, momentum, inverse_mass, *scalars)
