"""Operations element by element, reductions, random numbers and sums over processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chains.expr import Formula, where
from chains.program.operations.base import Operation, check_broadcast
from chains.program.view import scratch_like

COMMUNICATOR = "communicator"  # the buffer with the communicator to the others (`chains.support.communicator`)
COMMUNICATOR_WORDS = 5


@dataclass(frozen=True)
class Map(Operation):
    """outs = formula(ins), element by element over broadcast operands; an out may be one of the ins."""

    elementwise = True
    over_steps = True

    formula: Formula

    def __str__(self) -> str:
        return f"{self._left} = {self.formula.text([str(view) for view in self.ins])}"

    def transpose(self, t: Any) -> None:
        t.transpose_map(self)


@dataclass(frozen=True)
class Reduce(Operation):
    """out = the "sum" or "max" of the operand over the axes that `out` lacks or has with length 1."""

    over_steps = True

    kind: str

    @property
    def name(self) -> str:
        return self.kind

    @property
    def over_batch(self) -> str | None:
        return self.kind if super().over_batch else None

    @property
    def linear_in(self) -> tuple[int, ...] | None:  # type: ignore[override]
        return (0,) if self.kind == "sum" else None

    def check(self) -> None:
        super().check()
        check_broadcast(self.kind, self.outs[0], self.ins[0])

    def transpose(self, t: Any) -> None:
        (out,), (a,) = self.outs, self.ins
        d = t.take(out)
        if self.kind == "sum":
            t.add(a, d)
            return
        kept, largest, ops = t.value(a), t.value(out, after=True), t.ops
        chosen, count, share = scratch_like(a, "chosen"), scratch_like(out, "count"), scratch_like(out, "share")
        ops.map(chosen, lambda a, largest: where(a == largest, 1.0, 0.0), kept, largest)
        ops.sum(count, chosen)
        ops.map(share, lambda d, count: d / count, d, count)
        ops.map(chosen, lambda a, largest, share: where(a == largest, share, 0.0), kept, largest, share)
        t.add(a, chosen)


class Copy(Operation):
    """out = the operand, broadcast to out's shape and converted to its type."""

    elementwise = True
    over_steps = True
    linear_in = (0,)

    def check(self) -> None:
        super().check()
        check_broadcast("copy", self.ins[0], self.outs[0])

    def transpose(self, t: Any) -> None:
        t.add(self.ins[0], t.take(self.outs[0]))


@dataclass(frozen=True)
class Fill(Operation):
    """out = value."""

    elementwise = True
    over_steps = True
    linear_in = ()

    value: float

    def __str__(self) -> str:
        return f"{self._left} = {self.value:g}"

    def transpose(self, t: Any) -> None:
        """It depends on nothing."""


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
