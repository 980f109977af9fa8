"""Random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chains.program.operations.base import Operation


@dataclass(frozen=True)
class Random(Operation):
    """out = numbers uniform in [0, 1), a pure function of the key operand (seed, step) and of `draw`.

    If the batch is divided among processes, a second operand is the number of the first sample: elements are counted over the
    whole batch.

    Element i is made of 32 random bits: word i of the stream of Philox4x64-10 with key (seed, 0) and
    counter (1 + i // 8, draw, step, 0), low halves first; the number is ``(word >> 8) * 2**-24``.
    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """

    linear_in = ()

    draw: int

    def transpose(self, t: Any) -> None:
        """It depends on nothing that has a cotangent."""
