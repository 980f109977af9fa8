"""Learning-rate schedules: functions of the number of updates made before, to pass as a learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from chains.expr import cos, floor, minimum, where

Schedule = Callable[[Any], Any]


def exponential(rate: float, decay: float, every: int = 1) -> Schedule:
    """``rate * decay ** (step / every)``: the rate falls by the factor `decay` over each `every` updates."""
    _check_positive("every", every)
    return lambda step: rate * decay ** (step / every)


def stepwise(rate: float, decay: float, every: int) -> Schedule:
    """``rate * decay ** floor(step / every)``: constant for `every` updates, then lower by the factor `decay`."""
    _check_positive("every", every)
    return lambda step: rate * decay ** floor(step / every)


def cosine(rate: float, steps: int, *, final: float = 0.0) -> Schedule:
    """From `rate` down to `final` along half a cosine over `steps` updates, then `final` (Loshchilov and Hutter 2017)."""
    _check_positive("steps", steps)
    return lambda step: final + 0.5 * (rate - final) * (1.0 + cos(math.pi * minimum(step / steps, 1.0)))


def warmup(schedule: float | Schedule, steps: int) -> Schedule:
    """From ``1 / steps`` of the rate up to it in equal parts over `steps` updates, then `schedule` from its start."""
    _check_positive("steps", steps)

    def rate(step: Any) -> Any:
        after = step - steps
        full = schedule(where(after > 0, after, 0.0)) if callable(schedule) else schedule
        return where(step < steps, (step + 1.0) / steps, 1.0) * full

    return rate


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"`{name}` (={value}) must be positive")
