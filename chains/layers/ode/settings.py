"""The settings of a differential equation: times, forcing and tolerances as values that can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.layers.ode.tableaus import Row
from chains.support.checks import is_real
from chains.support.messages import shown


def ascending(name: str, given: Any, least: int, also: str = "") -> np.ndarray:
    """Times as an array (n,). Raises TypeError or ValueError, naming the setting, for others than finite, ascending ones."""
    try:
        flags = isinstance(given, (tuple, list)) and any(isinstance(each, (bool, np.bool_)) for each in given)
        if flags or np.asarray(given).dtype.kind not in "iufO":  # NumPy takes flags and words for numbers
            raise TypeError
        times = np.array(given, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` (={shown(given)}) must be a sequence of ascending times{also}") from None
    if not times.ndim:
        raise TypeError(f"`{name}` (={shown(given)}) must be a sequence of times{also}")
    if times.ndim != 1 or len(times) < least:
        raise ValueError(f"`{name}` has shape {times.shape}, but must be {least} or more times, one behind another")
    if not np.isfinite(times).all():
        raise ValueError(f"`{name}` must be finite, but time {int(np.argmin(np.isfinite(times)))} is not")
    if (falls := np.diff(times) <= 0).any():
        k = int(np.argmax(falls))
        raise ValueError(f"`{name}` must ascend, but {times[k + 1]:g} comes after {times[k]:g}")
    return times


def forcing_of(given: Any) -> tuple[tuple[float, ...], tuple[Row, ...]]:
    """Times (m,) and values (m, features), as a value that can be compared."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(f"`forcing` (={shown(given)}) must be a pair of arrays, times (m,) and values (m, features)")
    times = ascending("forcing[0]", given[0], 1)
    try:
        values = np.array(given[1], np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"`forcing[1]` (={shown(given[1])}) must be numbers, an array (m, features)") from None
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or len(values) != len(times) or not values.shape[1]:
        raise ValueError(f"`forcing[1]` has shape {np.shape(given[1])}, but there are {len(times)} times: wanted (m, features)")
    if not np.isfinite(values).all():
        raise ValueError("`forcing[1]` must be finite")
    return tuple(times.tolist()), tuple(map(tuple, values.tolist()))


def tolerance(name: str, given: Any) -> float | Row:
    """A tolerance: one for the whole state, or one for each of its numbers. Raises TypeError or ValueError, naming it."""
    several = isinstance(given, (tuple, list)) or np.ndim(given) == 1
    values = given if several else [given.item() if isinstance(given, np.ndarray) and given.ndim == 0 else given]
    if not len(values) or not all(map(is_real, values)):
        raise TypeError(f"`{name}` (={shown(given)}) must be a positive number, or one for each number of the state")
    if not all(0.0 < value < np.inf for value in values):
        raise ValueError(f"`{name}` (={shown(given)}) must be positive and finite")
    return tuple(map(float, values)) if several else float(values[0])
