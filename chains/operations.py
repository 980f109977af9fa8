"""The vocabulary: a dozen in-place operations on views. Each fills its `outs` and returns nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from chains.expr import Formula
from chains.view import View, concrete


@dataclass(frozen=True)
class Operation:
    """A step of a program: fills `outs` from `ins`. `label` says which layer recorded it."""

    outs: tuple[View, ...]
    ins: tuple[View, ...]
    label: str = field(default="", kw_only=True)

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @property
    def views(self) -> tuple[View, ...]:
        return self.outs + self.ins

    @property
    def sums_over_batch(self) -> bool:
        """Whether the results are sums over the samples, so that tiles of the batch add up to them."""
        return any(view.batched for view in self.ins) and not any(view.batched for view in self.outs)

    def __str__(self) -> str:
        return f"{self._left} = {self.name}({', '.join(map(str, self.ins))})"

    @property
    def _left(self) -> str:
        return ", ".join(view.text for view in self.outs)


@dataclass(frozen=True)
class MatMul(Operation):
    """out = a @ b, or out += a @ b. Matrices, possibly transposed views."""

    accumulate: bool = False

    def flops(self, batch: int) -> int:
        """Multiplications and additions at a batch size."""
        (m, k), (_, n) = (concrete(view.shape, batch) for view in self.ins)
        return 2 * m * k * n

    def __str__(self) -> str:
        return f"{self._left} {'+=' if self.accumulate else '='} {self.ins[0]} @ {self.ins[1]}"


@dataclass(frozen=True)
class Map(Operation):
    """outs = formula(ins), element by element over broadcast operands; an out may be one of the ins."""

    formula: Formula

    def __str__(self) -> str:
        return f"{self._left} = {self.formula.text([str(view) for view in self.ins])}"


@dataclass(frozen=True)
class Reduce(Operation):
    """out = the "sum" or "max" of the one operand over the axes that `out` lacks or has with length 1."""

    kind: str

    @property
    def name(self) -> str:
        return self.kind


@dataclass(frozen=True)
class Gather(Operation):
    """out[i, ...] = table[index[i], ...] for the two operands (table, index)."""


@dataclass(frozen=True)
class ScatterAdd(Operation):
    """out[index[i], ...] += source[i, ...] for the two operands (index, source)."""


@dataclass(frozen=True)
class Random(Operation):
    """out = numbers uniform in [0, 1), a pure function of the key operand (seed, step) and of `draw`.

    Element i is made of 32 random bits: word i of the stream of Philox4x64-10 with key (seed, 0) and
    counter (1 + i // 8, draw, step, 0), low halves first; the number is ``(word >> 8) * 2**-24``.
    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """

    draw: int


@dataclass(frozen=True)
class Copy(Operation):
    """out = the operand, which is broadcast and converted to out's type."""


@dataclass(frozen=True)
class Fill(Operation):
    """out = value."""

    value: float

    def __str__(self) -> str:
        return f"{self._left} = {self.value:g}"
