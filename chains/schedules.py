"""Learning-rate schedules: functions of the number of updates made before, to pass as a learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from chains.expr import cos, floor, minimum, where
from chains.expr.formulas import kept
from chains.program.settings import Tunable
from chains.support.checks import check_number

Schedule = Callable[[Any], Any]


@dataclass(frozen=True)
class _Decay(Tunable):
    """The settings of schedules that fall by a factor."""

    settings: ClassVar[tuple[str, ...]] = ("rate", "decay", "every")

    rate: float
    decay: float
    every: float

    def __post_init__(self) -> None:
        check_number("rate", self.rate, "in [0, inf)")
        check_number("decay", self.decay, "in (0, inf)")
        check_number("every", self.every, "in (0, inf)")


@dataclass(frozen=True)
class exponential(_Decay):
    """``rate * decay ** (step / every)``: the rate falls by a factor over each `every` updates.

    Parameters
    ----------
    rate : float
        The rate at step 0.
    decay : float
        The factor; positive.
    every : float
        Updates.
    """

    every: float = 1

    def __call__(self, step: Any) -> Any:
        return self.rate * self.decay ** (step / self.every)


@dataclass(frozen=True)
class stepwise(_Decay):
    """``rate * decay ** floor(step / every)``: constant for `every` updates, then lower by a factor.

    Parameters
    ----------
    rate, decay, every
        As of `exponential`.
    """

    def __call__(self, step: Any) -> Any:
        return self.rate * self.decay ** floor(step / self.every)


@dataclass(frozen=True)
class cosine(Tunable):
    """From `rate` down to `final` along half a cosine, then `final`. Source: Loshchilov and Hutter 2017.

    Parameters
    ----------
    rate : float
        The rate at step 0.
    steps : float
        Updates until the final rate.
    final : float
        The final rate.
    """

    settings: ClassVar[tuple[str, ...]] = ("rate", "steps", "final")

    rate: float
    steps: float
    final: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        check_number("rate", self.rate, "in [0, inf)")
        check_number("steps", self.steps, "in (0, inf)")
        check_number("final", self.final, "in [0, inf)")

    def __call__(self, step: Any) -> Any:
        return self.final + 0.5 * (self.rate - self.final) * (1.0 + cos(math.pi * minimum(step / self.steps, 1.0)))


@dataclass(frozen=True)
class warmup(Tunable):
    """From ``1 / steps`` of the rate up to it in equal parts, then another schedule from its start.

    Parameters
    ----------
    schedule : float or callable
        The rate, or a function of the number of updates made after the warm-up.
    steps : float
        Updates of the warm-up.
    """

    settings: ClassVar[tuple[str, ...]] = ("schedule", "steps")

    schedule: float | Schedule
    steps: float

    def __post_init__(self) -> None:
        if callable(self.schedule):
            rate = kept(f"`schedule` (={self.schedule!r}) must be a number or a formula of the step", self.schedule, 1)
            object.__setattr__(self, "schedule", rate)
        else:
            check_number("schedule", self.schedule, "in [0, inf)", ", or a function of the step")
        check_number("steps", self.steps, "in (0, inf)")

    def __call__(self, step: Any) -> Any:
        after = step - self.steps
        full = self.schedule(where(after > 0, after, 0.0)) if callable(self.schedule) else self.schedule
        return where(step < self.steps, (step + 1.0) / self.steps, 1.0) * full
