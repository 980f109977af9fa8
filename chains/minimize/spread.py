"""Parameters that differ by orders of magnitude, which quasi-Newton methods learn slowly or not at all."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from chains.support.callers import levels_outside
from chains.support.memory import on_host

SPREAD = 1e6  # of the sizes of parameters, from which on a warning says so
INFLUENCE = 1e-3  # of the largest: parameters that matter less do not count, such as weights that happen to be small


def warn_of_spread(p: Any, g: Any) -> None:
    """Warn if the parameters that matter differ by orders of magnitude, at a point with this gradient."""
    sizes = abs(on_host(p))
    with np.errstate(over="ignore", invalid="ignore"):
        influence = sizes * abs(on_host(g))
    chosen = sizes[(influence > 0.0) & (influence >= INFLUENCE * influence.max(initial=0.0))]
    least, most = (float(chosen.min()), float(chosen.max())) if chosen.size else (1.0, 1.0)
    if most < SPREAD * least:
        return
    warnings.warn(
        f"the parameters have sizes from {least:.2g} to {most:.2g}. Quasi-Newton methods are for sizes of about 1; with others "
        "they take long, or stop too early. Give positive parameters bounds in their layer, as in "
        '`Equations(..., bounds={"k": (0, None)})`, which takes their logarithm; or measure them in other units, for example '
        'through a frozen `Scale`. "LM" depends less on units',
        stacklevel=levels_outside(),
    )
