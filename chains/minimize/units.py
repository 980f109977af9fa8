"""Units of the loss and of the parameters in which the methods compute: powers of two, which change no bits.

A method sees the same numbers, whatever the unit of the loss. Quasi-Newton methods begin with the unit matrix. So they measure
each parameter in the root of its size, for parameters of several orders of magnitude: whole sizes would keep weights of
networks that happen to be small from moving. "BFGS" and "SSBroyden" learn better units; "L-BFGS" keeps these, and has them
only where sizes are far apart.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from chains.minimize.stopping import sizes_at
from chains.support.callers import levels_outside
from chains.support.memory import memory_of, on_host
from chains.support.messages import shown

MOST_DOUBLINGS = 300  # of a unit, so that matrices stay far from the largest number
UNLIKE = 1e3  # of the sizes of parameters, from which on "L-BFGS" has units of them
SPREAD = 1e6  # of the sizes of parameters, from which on a warning says so
INFLUENCE = 1e-3  # of the largest: parameters that matter less do not count, such as weights that happen to be small


def power_of_two(number: float) -> float:
    """The largest power of two that is at most `number`, within limits; 1 for 0 and what is not finite."""
    if not (math.isfinite(number) and number != 0.0):
        return 1.0
    return 2.0 ** min(max(math.frexp(number)[1] - 1, -MOST_DOUBLINGS), MOST_DOUBLINGS)


class InUnits:
    """A function of parameters in `units`, with values times `factor`, so that the start is about 1. Both are powers of two.

    Units are the roots of the sizes of the parameters: `always`, or only if those that matter are unlike.
    """

    @np.errstate(over="ignore", invalid="ignore")
    def __init__(self, function: Callable[[Any], Any], p: Any, *, always: bool = True) -> None:
        self._function = function
        self._first: Any = evaluated(function, p)
        value, g = self._first
        least, most = size_range(p, g)
        units = _roots_of_sizes(p, g) if always or most >= UNLIKE * least else np.ones(p.shape)
        self.units = memory_of(p).contiguous(units)
        size = float((abs(g) * abs(p)).sum()) or abs(value)
        unit = power_of_two(size)
        self.factor = 1.0 / unit
        # Of the unit matrix with which methods begin: what is left of the size, so that other units give the same matrix. The
        # 2 is by the counts of `benchmarks.studies.nist`: the line search soon corrects a matrix that is too large.
        self.width = 2.0 * unit / size if 1.0 <= size / unit < 2.0 else 1.0

    def __call__(self, q: Any) -> tuple[float, Any]:
        """The value and the gradient; the first call is at the start."""
        (value, g), self._first = self._first or evaluated(self._function, q * self.units), None
        return value * self.factor, g * self.units * self.factor

    def natural_gradient(self, g: Any) -> Any:
        """A gradient in the caller's units."""
        return g / self.factor / self.units

    def natural_state(self, state: Any) -> Any:
        """What a method knows of the curvature, in the caller's units."""
        return self._converted(state, self.units, self.factor)

    def state(self, natural: Any) -> Any:
        """What a method knows of the curvature, in these units."""
        return self._converted(natural, 1.0 / self.units, 1.0 / self.factor)

    def _converted(self, state: Any, units: Any, factor: float) -> Any:
        """The inverse Hessian matrix (n, n), or pairs (pairs, 2, n) of a step and the change of the gradient along it."""
        if state.ndim == 2:
            return state * (units[:, None] * units[None, :]) * factor
        converted = memory_of(state).empty(state.shape, state.dtype)
        converted[:, 0], converted[:, 1] = state[:, 0] * units, state[:, 1] / units / factor
        return converted


class SumInUnit:
    """A sum of squares times `factor`; it is about 1 at the start."""

    units = 1.0

    def __init__(self, function: Any) -> None:
        self._function = function
        self.factor = 0.0  # before the first call

    def normal_equations(self, p: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """The value, J'r and J'J; the first call is at the start."""
        value, g, matrix = self._function.normal_equations(p)
        self.factor = self.factor or 1.0 / power_of_two(value)
        return value * self.factor, g * self.factor, matrix * self.factor

    def value(self, p: np.ndarray) -> float:
        """The value alone."""
        value: float = self._function.value(p) * self.factor
        return value

    def natural_gradient(self, g: np.ndarray) -> np.ndarray:
        """A gradient in the caller's unit."""
        return g / self.factor


def evaluated(function: Callable[[Any], Any], p: Any) -> tuple[float, Any]:
    """The value and the gradient, checked."""
    returned = function(p)
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        raise TypeError(f"`function` must return the value and the gradient, not {shown(returned)}")
    value, g = returned
    if getattr(g, "shape", None) != p.shape or g.dtype.kind not in "fiu":
        raise ValueError(f"`function` must return a gradient of real numbers, of shape {p.shape}, not {shown(g)}")
    try:
        return float(value), g
    except (TypeError, ValueError) as error:
        raise TypeError(f"`function` must return a number as the value, not {shown(value)}") from error


def _roots_of_sizes(p: Any, g: Any) -> np.ndarray:
    exponents = np.floor(np.log2(np.sqrt(on_host(sizes_at(p, g)))))
    units: np.ndarray = 2.0 ** np.clip(exponents, -MOST_DOUBLINGS, MOST_DOUBLINGS)
    return units


def size_range(p: Any, g: Any) -> tuple[float, float]:
    """The smallest and the largest size of the parameters that matter, at a point with this gradient."""
    sizes = abs(on_host(p))
    influence = sizes * abs(on_host(g))
    chosen = sizes[(influence > 0.0) & (influence >= INFLUENCE * influence.max(initial=0.0))]
    return (float(chosen.min()), float(chosen.max())) if chosen.size else (1.0, 1.0)


def warn_of_spread(p: Any, g: Any) -> bool:
    """Warn of parameters that differ by orders of magnitude, at a point with this gradient. Returns whether they do."""
    least, most = size_range(p, g)
    if not most >= SPREAD * least:
        return False
    warnings.warn(
        f"the parameters have sizes from {least:.2g} to {most:.2g}, and quasi-Newton methods find minima sooner "
        "if all are about 1: give positive ones `bounds=(0, None)`, or measure them in other units, for example through a "
        'frozen `Scale`; "LM" depends less on units',
        stacklevel=levels_outside(),
    )
    return True
