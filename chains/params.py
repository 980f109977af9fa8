"""Named slices of a flat vector: of the parameters, or of the state."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from chains.expr import exp, where
from chains.initializers import Constant, Initializer
from chains.support.checks import is_real
from chains.support.messages import as_html, listed, meant, shown


@dataclass(frozen=True)
class Bounds:
    """Values above `low`, below `high`, or between both; None stands for no bound."""

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
        """The stored numbers of values, in float64. Raises TypeError or ValueError, naming `what`, unless all are within the
        bounds.
        """
        try:
            value = np.asarray(value, np.float64)
        except (TypeError, ValueError):
            raise TypeError(f"{what} must be numbers {self}, got {shown(value)}") from None
        with np.errstate(invalid="ignore"):  # of an infinite value
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
        """The formula of the stored number for a value v."""
        above, below = ("" if bound is None else f"{bound:.17g}" for bound in (self.low, self.high))
        if self.high is None:
            return f"log(v - {above})"
        return f"log({below} - v)" if self.low is None else f"log((v - {above}) / ({below} - v))"

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"below {self.high:g}" if self.low is None else f"above {self.low:g}"
        return f"between {self.low:g} and {self.high:g}"


def bounds_of(bounds: Any, of: str = "", name: str = "bounds") -> Bounds | None:
    """The bounds of a pair (low, high), in which None stands for no bound. Raises TypeError or ValueError for anything else."""
    if bounds is None:
        return None
    wanted = "must be (low, high), with None where there is no bound: (0, None) for a positive number"
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2 or not all(b is None or is_real(b) for b in bounds):
        raise TypeError(f"`{name}` (={shown(bounds)}){of} {wanted}")
    given = [None if b is None or (math.isinf(b) and (b > 0) == bool(k)) else float(b) for k, b in enumerate(bounds)]
    low, high = given
    if not all(b is None or math.isfinite(b) for b in given) or (
        low is not None and high is not None and not 0.0 < high - low < math.inf
    ):
        raise ValueError(f"`{name}` (={shown(bounds)}){of} {wanted}, and `low` below `high`")
    return None if low is None and high is None else Bounds(low, high)


def bounds_by_name(bounds: Any, values: Mapping[str, float], what: str = "{}") -> dict[str, tuple[float | None, float | None]]:
    """The checked bounds of numbers with these starting values, as pairs; `what` formats a name for messages."""
    if bounds is not None and not isinstance(bounds, Mapping):
        raise TypeError(f'`bounds` (={shown(bounds)}) must be pairs by name, such as {{"birth": (0, None)}}')
    pairs: dict[str, tuple[float | None, float | None]] = {}
    for name, pair in dict(bounds or {}).items():
        if name not in values:
            raise ValueError(f"`bounds` has `{name}`, but there are only {listed(values)}{meant(str(name), values)}")
        within = bounds_of(pair, f" of `{name}`")
        if within is not None:
            within.stored(values[name], f"`{what.format(name)}`")
            pairs[name] = (within.low, within.high)
    return pairs


@dataclass(frozen=True)
class Slice:
    """The entries ``start:stop`` of the flat vector, which hold the array `name` of this shape in C order."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    init: Initializer = field(default=Constant(0.0), repr=False, compare=False)
    bounds: Bounds | None = field(default=None, repr=False)

    def begin(self, rng: np.random.Generator, dtype: Any) -> np.ndarray:
        """The initial array: the stored numbers of the values of its initializer.

        Raises TypeError or ValueError, naming the slice, unless these are finite real numbers within its bounds.
        """
        try:
            values = np.asarray(self.init(rng, self.shape))
        except Exception as error:
            error.add_note(f"in the initializer of `{self.name}`")
            raise
        if values.dtype.kind not in "fiub":
            raise TypeError(f"the initializer of `{self.name}` must return real numbers, got {shown(values)}")
        if values.shape != self.shape:
            raise ValueError(f"the initializer of `{self.name}` must return shape {self.shape}, got {values.shape}")
        if self.bounds is not None:
            values = self.bounds.stored(values, f"what the initializer of `{self.name}` returns")
        with np.errstate(over="ignore"):
            values = values.astype(dtype)
        if not np.isfinite(values).all():
            raise ValueError(f"the initializer of `{self.name}` returned non-finite values for {values.dtype}")
        return values


class Layout(Sequence[Slice]):
    """The slices of a flat vector in order; a sequence, also indexed by name. ``print(layout)`` shows the table."""

    def __init__(self, slices: Iterable[Slice], what: str = "parameter") -> None:
        self.what = what
        self._slices = tuple(slices)
        self._by_name = {entry.name: entry for entry in self._slices}
        self.size = self._slices[-1].stop if self._slices else 0

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self._by_name:
                raise KeyError(_unknown(self.what, key, self._by_name))
            return self._by_name[key]
        return self._slices[key]

    def __len__(self) -> int:
        return len(self._slices)

    def __iter__(self) -> Iterator[Slice]:
        return iter(self._slices)

    def names(self, *patterns: str) -> frozenset[str]:
        """The names that match, a frozenset.

        Parameters
        ----------
        *patterns : str
            Shell-style patterns: "0.*", "*.bias".

        Raises
        ------
        TypeError, ValueError
            For a pattern that is not a string or matches nothing.
        """
        found: set[str] = set()
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise TypeError(f"a pattern (={pattern!r}) must be a text such as '*.weight'")
            matches = {name for name in self._by_name if fnmatchcase(name, pattern)}
            if not matches:
                raise ValueError(f"no {self.what} matches {pattern!r}; the names are {listed(self._by_name)}")
            found |= matches
        return frozenset(found)

    def ranges(self, without: frozenset[str] = frozenset()) -> list[tuple[int, int]]:
        """The longest runs (start, stop) of the vector without some of the slices.

        Parameters
        ----------
        without : frozenset of str
            The names of these slices.
        """
        runs: list[tuple[int, int]] = []
        for entry in self._slices:
            if entry.name in without or entry.start == entry.stop:
                continue
            if runs and runs[-1][1] == entry.start:
                runs[-1] = (runs[-1][0], entry.stop)
            else:
                runs.append((entry.start, entry.stop))
        return runs

    def views(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Each slice by name, as an array of its shape that shares memory.

        Parameters
        ----------
        vector : array, shape (size,)
            The vector.
        """
        return Views((entry.name, vector[entry.start : entry.stop].reshape(entry.shape)) for entry in self._slices)

    def values(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Each slice by name as layers see it, within its bounds if it has any: a fresh array of its shape.

        Parameters
        ----------
        vector : array, shape (size,)
            The vector.
        """
        views = self.views(vector)
        return Views((e.name, views[e.name].copy() if e.bounds is None else e.bounds.value(views[e.name])) for e in self)

    def init(self, rng: np.random.Generator, dtype: Any) -> np.ndarray:
        """A fresh vector, each slice filled by its initializer. Numbers are drawn in float64, then rounded.

        Parameters
        ----------
        rng : Generator
            NumPy's.
        dtype : type
            float32 or float64.

        Raises
        ------
        TypeError, ValueError
            If an initializer returns another shape than that of the slice, or anything but finite real numbers; the error names
            the slice.
        """
        vector = np.empty(self.size, dtype)
        for entry in self._slices:
            vector[entry.start : entry.stop] = entry.begin(rng, dtype).reshape(-1)
        return vector

    def __str__(self) -> str:
        if not self._slices:
            return f"no {self.what}s"
        width = max(len(entry.name) for entry in self._slices)
        return "\n".join(f"{e.name:{width}}  {e.start:>9,}:{e.stop:<9,}  {e.shape}" for e in self._slices)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return as_html(str(self))

    def __repr__(self) -> str:
        return f"Layout({list(self._slices)!r})"


class Views(dict[str, np.ndarray]):
    """Arrays by name: a dictionary whose KeyError lists the known names."""

    def __missing__(self, key: object) -> np.ndarray:
        raise KeyError(_unknown("array", key, self))


def _unknown(what: str, key: object, names: Collection[str]) -> str:
    """The message for an unknown name, with the known ones."""
    return f"no {what} is named {key!r}; the names are {listed(names)}{meant(str(key), names)}"


class LayoutBuilder:
    """Hands out consecutive slices."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self.frozen: set[str] = set()  # names of slices that are not trained

    def add(self, name: str, shape: tuple[int, ...], init: Initializer, bounds: Bounds | None = None, of: str = "") -> Slice:
        if bounds is not None and isinstance(init, Constant):
            bounds.stored(init.value, f"`init`{of}")  # refused here rather than by net.init
        start = self.slices[-1].stop if self.slices else 0
        self.slices.append(Slice(name, start, start + math.prod(shape), shape, init, bounds))
        return self.slices[-1]
