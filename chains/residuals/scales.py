"""Scales of a residual problem: the offset and length of each variable, and the size of each equation.

With scales the network takes and gives numbers of order one, ``(x - offset) / length``. Residuals are formulas of
``offset + length * output``, and of its derivatives by coordinates in their own units. They are divided by the sizes of the
equations, so that the loss has no unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.support.checks import check_number
from chains.support.messages import listed, shown

Pair = tuple[float, float]  # an offset and a length
FAR = 1e3  # a network does not learn from numbers of this size, or from as many times smaller ones


@dataclass(frozen=True)
class Scales:
    """The offset and length of each coordinate and output; the size of each equation of each term, once it is known."""

    coordinates: tuple[Pair, ...]
    outputs: tuple[Pair, ...]
    residuals: tuple[tuple[float, ...], ...] = ()

    def inward(self, points: np.ndarray) -> np.ndarray:
        """Points in users' units as the network takes them."""
        offsets, lengths = np.array(self.coordinates).T
        return (points - offsets) / lengths

    def outward(self, output: int, index: tuple[int, int], coefficient: Any) -> Any:
        """A coefficient of an output's series in users' units."""
        offset, length = self.outputs[output]
        return coefficient * length if index[1] else offset + coefficient * length

    def extreme(self, names: Sequence[str]) -> list[str]:
        """Those of the variables with these names whose numbers are far from one, each with its length."""
        pairs = zip(names, (*self.coordinates, *self.outputs), strict=True)
        return [f"{name} ({length:.1g})" for name, (_, length) in pairs if not 1.0 / FAR < length < FAR]

    def text(self, names: Sequence[str]) -> str:
        """The scales of variables with these names, for people."""
        return ", ".join(
            f"{name}: {offset:.4g} + {length:.4g} * [-1, 1]"
            for name, (offset, length) in zip(names, (*self.coordinates, *self.outputs), strict=True)
        )


def given_scales(scales: Any, coordinates: Sequence[str], outputs: Sequence[str]) -> dict[str, Pair]:
    """The offset and length of each variable that a user names. Raises TypeError or ValueError for others."""
    if not isinstance(scales, Mapping):
        wanted = 'lengths, or offsets and lengths, by name, such as {"x": 0.04}, or {} for guesses'
        raise TypeError(f"`scales` (={shown(scales)}) must be {wanted}")
    names = (*coordinates, *outputs)
    found: dict[str, Pair] = {}
    for name, value in scales.items():
        if name not in names:
            raise ValueError(f"`scales` names {shown(name)}, but there are only {listed(names)}")
        pair = tuple(value) if isinstance(value, (tuple, list)) else (0.0, value)
        if len(pair) != 2:
            raise ValueError(f'`scales["{name}"]` (={shown(value)}) must be a length, or an offset and a length')
        check_number(f'scales["{name}"]', pair[0], "finite")
        check_number(f'scales["{name}"]', pair[1], "in (0, inf)")
        found[name] = float(pair[0]), float(pair[1])
    return found
