"""The settings of a differential equation: checks, and how times are printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chains.layers.base import Layer
from chains.layers.ode.doses import Doses
from chains.layers.ode.methods import METHODS, Row, Tableau
from chains.layers.ode.right_side import Forcing
from chains.support.arguments import check_finite
from chains.support.checks import check_count, check_flags, check_number, is_real
from chains.support.messages import listed, shown

MAX_STEPS = 256  # attempts of step control, by default
STEPS_TO_A_TIME = 4  # or as many attempts to each of the times, if these are more
ENDS_AT_TIMES = ("adjoint", "event", "forcing", "doses")  # with these, steps end at the times by default
MANY, FACTOR = 16, 4.0  # states at more times than 16, and than 4 * rtol ** (-1 / order), are interpolated by default
# The interpolant of kvaerno5 has a lower order: on long steps of stiff equations its errors are hundreds of tolerances, where
# those at the ends of steps are few. So states are interpolated by default with these methods alone.
DENSE = ("tsit5", "kvaerno3")
MAX_SHOWN = 6  # times in a printed layer; of more, the first ones and the last


class Settings:
    """The settings of an `ODE`, as they are checked, and what follows from them."""

    rhs: Layer
    times: tuple[float, ...] | int
    method: str
    steps: int
    rtol: float | None
    atol: float | Row | None
    max_steps: int | None
    given: int
    time: bool
    forcing: Forcing | None
    checkpoint_every: int | None
    adjoint: bool
    event: Layer | None
    direction: str
    doses: Doses | None
    interpolate: bool | None
    jumps: Row

    @property
    def intervals(self) -> int:
        """The number of times after the first one."""
        return (self.times if isinstance(self.times, int) else len(self.times)) - 1

    @property
    def interpolates(self) -> bool:
        """Whether states at the times are interpolated."""
        if self.interpolate is not None or self.rtol is None:
            return bool(self.interpolate)
        plain = self.method in DENSE and not any(getattr(self, name) for name in ENDS_AT_TIMES)
        return plain and self.intervals > max(MANY, FACTOR * self.rtol ** (-1.0 / METHODS[self.method].order))

    @property
    def tableau(self) -> Tableau:
        method = METHODS[self.method]
        return method.with_end if self.interpolates else method

    @property
    def implicit(self) -> bool:
        """Whether stages are solutions of equations."""
        return METHODS[self.method].gamma > 0.0

    @property
    def own_times(self) -> int:
        """The number of features of a sample that are times."""
        return self.times if isinstance(self.times, int) else 0

    @property
    def own_features(self) -> int:
        """The number of features of a sample after the state and the given ones."""
        return self.own_times + (0 if self.doses is None else self.doses.width)

    @property
    def known(self) -> int:
        """The number of features of the right-hand side that are functions of the time."""
        return int(self.time) + (0 if self.forcing is None else len(self.forcing[1][0]))


def ascending(name: str, given: Any, least: int, also: str = "") -> np.ndarray:
    """Times as an array (n,). Raises TypeError or ValueError, naming the setting, unless they are finite and ascending."""
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
        raise ValueError(f"`{name}` has shape {times.shape}, but must be {least} or more times, shape (n,)")
    check_finite(times.dtype, **{name: times})
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
        raise ValueError(f"`forcing[1]` has shape {np.shape(given[1])}, but there are {len(times)} times: use (m, features)")
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


def tolerances(
    method: str, steps: int, rtol: Any, atol: Any, max_steps: Any
) -> tuple[float | None, float | Row | None]:  # fmt: skip
    """The checked settings of step control, `rtol` and `atol`; without it, the others are of no use."""
    if rtol is None:
        for name, given in (("atol", atol), ("max_steps", max_steps)):
            if given is not None:
                raise ValueError(f"`{name}` (={shown(given)}) is of use with step control only: set `rtol` too")
        return None, None
    check_number("rtol", rtol, "in (0, inf)")
    if not METHODS[method].error:
        estimate = listed(repr(name) for name, tableau in METHODS.items() if tableau.error)
        raise ValueError(f"`rtol` (={shown(rtol)}): method {method!r} does not estimate its error, but {estimate} do")
    if steps != 1:
        raise ValueError(f"`steps` (={steps}) is a number of equal steps, but `rtol` (={shown(rtol)}) chooses steps")
    return float(rtol), 1e-3 * float(rtol) if atol is None else tolerance("atol", atol)


def most_steps(ode: Settings, given: Any) -> int | None:
    """The checked setting `max_steps` of an equation that has its others."""
    if ode.rtol is None:
        return None
    doses = 0 if ode.doses is None else ode.doses.events
    stops = doses + len(ode.jumps) + (1 if ode.interpolates else ode.intervals)
    most = max(MAX_STEPS, STEPS_TO_A_TIME * stops) if given is None else check_count("max_steps", given)
    if most < stops:
        where = "the last time, and at jumps" if ode.interpolates else "each of the times"
        raise ValueError(f"`max_steps` (={most}) must be at least {stops}: steps end at {where}")
    return most


def interpolation(ode: Settings, rtol: Any, interpolate: Any, jumps: Any) -> tuple[bool | None, Row]:
    """The checked settings `interpolate` and `jumps`, which need step control; `ode` has those that they may not go with."""
    if interpolate is not None:
        check_flags(interpolate=interpolate)
    own = tuple(ascending("jumps", jumps, 0).tolist())
    if rtol is None and (interpolate or own):
        name, said = ("interpolate", "True") if interpolate else ("jumps", shown(jumps))
        raise ValueError(f"`{name}` (={said}) is of use with step control only: set `rtol` too")
    if own and not isinstance(ode.times, int):
        first, last = ode.times[0], ode.times[-1]
        if outside := [time for time in own if not first <= time <= last]:
            raise ValueError(f"`jumps` has {outside[0]:g}, but must be from {first:g} to {last:g}, the times of the solution")
    for name, given, others in (("interpolate", interpolate, ("adjoint",)), ("jumps", own, ("doses",))):
        for other in others if given else ():
            if value := getattr(ode, other):
                raise ValueError(f"`{name}` (={shown(given)}) does not go with `{other}` (={shown(value)})")
    return None if interpolate is None else bool(interpolate), own


def text_of(times: Sequence[float]) -> str:
    """Times as they are printed."""
    numbers = [f"{t:g}" for t in times]
    if len(numbers) == 1:
        return f"({numbers[0]},)"
    return f"({', '.join(numbers if len(numbers) <= MAX_SHOWN else [*numbers[:2], '...', numbers[-1]])})"
