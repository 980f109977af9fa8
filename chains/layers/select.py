"""Entries of the last axis: those states of a solution that are observed, for example."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from chains.layers.base import Declaration, Layer
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import whole
from chains.support.messages import shown


class Select(Layer):
    """``y = x[..., indices]``: entries of the last axis, in this order. Samples (..., n) become (..., len(indices)).

    Parameters
    ----------
    indices : iterable of int
        The positions, at least one. As in NumPy, negative ones count from the end, and a position may be there twice: its
        gradient is the sum.

    Raises
    ------
    TypeError, ValueError
        For indices that are not whole numbers, for none, and for an input that does not have them.
    """

    def __init__(self, indices: Iterable[int]) -> None:
        given = list(indices) if np.iterable(indices) else []
        found = [whole(index, -math.inf) for index in given]
        if not found or None in found:
            raise TypeError(f"`indices` (={shown(indices)}) must be whole numbers, at least one, such as Select([1])")
        self.indices = tuple(index for index in found if index is not None)

    def declare(self, d: Declaration) -> None:
        if not d.input:
            raise ValueError(f"{self!r} needs samples with at least one axis, not scalars")
        length = d.input[-1]
        if any(not -length <= index < length for index in self.indices):
            raise ValueError(f"`indices` (={shown(self.indices)}) must be positions of the last axis of {d.input}")
        d.output((*d.input[:-1], len(self.indices)))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        for part, run in self._runs(x, y):
            ops.copy(part, run)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        ops.fill(dx, 0.0)
        for part, run in self._runs(dx, dy):
            ops.map(run, lambda run, part: run + part, run, part)

    def _runs(self, x: View, y: View) -> Iterator[tuple[View, View]]:
        """The parts of `y` that are in one piece in `x`, each with that piece."""
        places = [index % x.sample_shape[-1] for index in self.indices]
        start = 0
        for stop in range(1, len(places) + 1):
            if stop == len(places) or places[stop] != places[stop - 1] + 1:
                yield y.slice(-1, start, stop), x.slice(-1, places[start], places[stop - 1] + 1)
                start = stop

    def __repr__(self) -> str:
        return f"Select({list(self.indices)})"
