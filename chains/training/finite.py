"""Checks that end training: learning rates, losses and parameters must be finite."""

from __future__ import annotations

import math

import numpy as np

from chains.expr.formulas import Replay, traced
from chains.optimizers import Optimizer
from chains.support.memory import HOST, memory_of
from chains.support.messages import shown

RATES_AT_ONCE = 1000  # steps whose learning rates are computed together


class Rates:
    """Checks the learning rates of a schedule before the steps."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._schedule = optimizer.learning_rate
        self._rate = Replay(traced("`learning_rate`", optimizer.rate, 1)) if callable(self._schedule) else None
        self._start = self._stop = 0.0  # the steps whose rates are known to be good

    def good(self, first: float, count: int = 1) -> int:
        """The number of these steps that may be done: those before the first rate that is negative or not finite.

        Raises FloatingPointError, with the number of the step, if there are none.
        """
        if self._rate is None or self._start <= first <= first + count <= self._stop:
            return count
        steps = np.arange(first, first + max(count, RATES_AT_ONCE), dtype=np.float64)
        with np.errstate(all="ignore"):
            rates = np.broadcast_to(self._rate(steps), steps.shape)
        wrong = np.flatnonzero(~((rates >= 0) & (rates < math.inf)))
        good = int(wrong[0]) if wrong.size else len(steps)
        if not good:
            raise FloatingPointError(
                f"`learning_rate` (={shown(self._schedule)}) must be finite, zero or positive, got {rates[0]:g} at step "
                f"{first:.0f}, counted from 0"
            )
        self._start, self._stop = first, first + good
        return min(good, count)


def loss_text(loss: float, step: int, advice: str = "") -> str:
    """The message that the loss of a step is not finite, with what the network's layers advise."""
    return (
        f"the loss is {loss} at step {step}: the parameters or the data are out of range; "
        f"try a lower learning rate or clip_norm, or look for extreme values in the data{advice and f'; {advice}'}"
    )


def parameter_text(p: np.ndarray, step: int) -> str:
    """The message that the last step made a parameter infinite or NaN; empty if not. After earlier steps, the loss shows it."""
    if memory_of(p) is not HOST or np.isfinite(p).all():
        return ""
    position = int(np.argmin(np.isfinite(p)))
    return (
        f"`p` holds {p[position]} at index {position} after step {step}: the step was too large; "
        "try a lower learning rate or clip_norm, or look for extreme values in the data"
    )
