"""Sums over processes."""

from __future__ import annotations

from dataclasses import dataclass

from chains.program.operations.base import Operation

COMMUNICATOR = "communicator"  # the buffer with the communicator to the others (`chains.support.communicator`)
COMMUNICATOR_WORDS = 5


@dataclass(frozen=True)
class AllReduce(Operation):
    """out = the sum of a over all processes, the same bits on each, for the operands (a, communicator).

    All processes do their sums over processes in the order of the program. `out` and `a` are contiguous and hold no samples.
    """

    linear_in = (0,)

    @property
    def name(self) -> str:
        return "all_reduce"

    def check(self) -> None:
        super().check()
        (out,), (a, _) = self.outs, self.ins
        if out.shape != a.shape or out.batched or not (out.contiguous and a.contiguous) or out.dtype != a.dtype:
            raise ValueError(f"all_reduce: {out.text} and {a.text} must be contiguous, of one shape and type, without samples")
