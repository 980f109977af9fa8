"""Bounds of parameters: a number that stays within them is stored as one without bounds.

    value = low + exp(stored)                       above `low`
    value = high - exp(stored)                      below `high`
    value = low + (high - low) / (1 + exp(-stored)) between both

These are the transforms of Stan and PyMC. Above a bound it is the exponential rather than softplus: a step of 0.01 of what is
stored changes a rate by one per cent, whether it is 3e7 or 1e-4. Of softplus, which is linear there, 3e7 would be stored as
3e7, out of reach of any learning rate that suits the other parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.expr import exp, where
from chains.support.checks import is_real
from chains.support.messages import shown


@dataclass(frozen=True)
class Bounds:
    """Values above `low`, below `high`, or between both; None where there is no bound."""

    low: float | None
    high: float | None

    def value_and_slope(self, stored: Any) -> tuple[Any, Any]:
        """The value of a stored number, and its derivative; formulas that neither overflow nor cancel between two bounds."""
        if self.low is None or self.high is None:
            change = exp(stored)
            return (self.high - change, -change) if self.low is None else (self.low + change, change)
        small, width = exp(-abs(stored)), self.high - self.low
        part = width * small / (1.0 + small)  # the distance from the bound that is nearer
        return where(stored > 0.0, self.high - part, self.low + part), part / (1.0 + small)

    def value(self, stored: np.ndarray) -> np.ndarray:
        """The values of stored numbers, a fresh array of their type."""
        value = stored.copy()
        value[...] = self.value_and_slope(stored)[0]
        return value

    def stored(self, value: Any, what: str = "`value`") -> np.ndarray:
        """What is stored for a value, in float64.

        Parameters
        ----------
        value : float or array
            Within the bounds.
        what : str
            What it is, for the message.

        Raises
        ------
        ValueError
            For values that are not within the bounds, or at one of them.
        """
        value = np.asarray(value, np.float64)
        above = value - (-math.inf if self.low is None else self.low)
        below = (math.inf if self.high is None else self.high) - value
        wrong = ~((above > 0.0) & (below > 0.0))
        if wrong.any():
            raise ValueError(f"{what} must be {self}, got {value[wrong][0]:g}")
        if self.high is None:
            return np.log(above)
        return np.log(below) if self.low is None else np.log(above) - np.log(below)

    @property
    def formula(self) -> str:
        """How a value v is stored."""
        above, below = ("" if bound is None else f"{bound:.17g}" for bound in (self.low, self.high))
        if self.high is None:
            return f"log(v - {above})"
        return f"log({below} - v)" if self.low is None else f"log((v - {above}) / ({below} - v))"

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"below {self.high:g}" if self.low is None else f"above {self.low:g}"
        return f"between {self.low:g} and {self.high:g}"


def bounds_of(bounds: Any, of: str = "") -> Bounds | None:
    """The bounds meant by a pair (low, high), in which None is no bound. Raises TypeError or ValueError for anything else."""
    if bounds is None:
        return None
    wanted = "must be (low, high), with None where there is no bound: (0, None) for a positive number"
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2 or not all(b is None or is_real(b) for b in bounds):
        raise TypeError(f"`bounds` (={shown(bounds)}){of} {wanted}")
    given = [None if b is None or (math.isinf(b) and (b > 0) == bool(k)) else float(b) for k, b in enumerate(bounds)]
    low, high = given
    if not all(b is None or math.isfinite(b) for b in given) or (low is not None and high is not None and low >= high):
        raise ValueError(f"`bounds` (={shown(bounds)}){of} {wanted}, and `low` below `high`")
    return None if low is None and high is None else Bounds(low, high)
