"""Named slices of a flat vector: of the parameters, or of the state."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from chains.bounds import Bounds
from chains.initializers import Constant, Initializer
from chains.support.messages import as_html, listed, meant, shown


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
        """The array to begin with: what is stored for the values of its initializer.

        Raises TypeError or ValueError, naming the slice, where these are not finite real numbers within its bounds.
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
            In the shell's sense: "0.*", "*.bias".

        Raises
        ------
        TypeError, ValueError
            For a pattern that is no text or matches nothing.
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
        """Each slice as an array of its own shape, sharing memory, by name.

        Parameters
        ----------
        vector : array, shape (size,)
            The vector.
        """
        return Views((entry.name, vector[entry.start : entry.stop].reshape(entry.shape)) for entry in self._slices)

    def values(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Each slice as layers see it, a fresh array of its own shape, by name: where it has bounds, within these.

        Parameters
        ----------
        vector : array, shape (size,)
            The vector.
        """
        views = self.views(vector)
        return Views((e.name, views[e.name].copy() if e.bounds is None else e.bounds.value(views[e.name])) for e in self)

    def init(self, rng: np.random.Generator, dtype: Any) -> np.ndarray:
        """A fresh vector, each slice filled by its initializer. The draws are those of float64, then rounded.

        Parameters
        ----------
        rng : Generator
            NumPy's.
        dtype : type
            float32 or float64.

        Raises
        ------
        TypeError, ValueError
            Where an initializer returns another shape than the slice has, or anything but finite real numbers; the error names
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
    """Arrays by name, as a dictionary that says which names there are where it has no such one."""

    def __missing__(self, key: object) -> np.ndarray:
        raise KeyError(_unknown("array", key, self))


def _unknown(what: str, key: object, names: Collection[str]) -> str:
    """That there is no such name, but which there are."""
    return f"no {what} is named {key!r}; the names are {listed(names)}{meant(str(key), names)}"


class LayoutBuilder:
    """Hands out consecutive slices."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self.frozen: set[str] = set()  # names of slices that are not to be trained

    def add(self, name: str, shape: tuple[int, ...], init: Initializer, bounds: Bounds | None = None, of: str = "") -> Slice:
        if bounds is not None and isinstance(init, Constant):
            bounds.stored(init.value, f"`init`{of}")  # refused here rather than by net.init
        start = self.slices[-1].stop if self.slices else 0
        self.slices.append(Slice(name, start, start + math.prod(shape), shape, init, bounds))
        return self.slices[-1]
