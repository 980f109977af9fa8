"""Sums over processes, each of which has a part of the batch."""

from __future__ import annotations

from dataclasses import dataclass

from chains.program.operations import Operation

COMMUNICATOR = "communicator"  # the buffer that says how the others are reached (`chains.support.communicator`)
COMMUNICATOR_WORDS = 5


@dataclass(frozen=True)
class AllReduce(Operation):
    """out = the sum of a over all processes, the same bits on each, for the operands (a, communicator).

    All processes do their sums over processes in the order of the program. `out` and `a` are contiguous and hold no samples.
    """

    @property
    def name(self) -> str:
        return "all_reduce"
