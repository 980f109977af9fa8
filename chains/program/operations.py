"""The operations of programs, about twenty: they work in place on views. Each fills its `outs` and returns nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from chains.expr import Formula
from chains.program.view import Buffer, View, concrete
from chains.support.caching import lazy

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """The size of a window and how it moves, each a pair: for rows and for columns.

    Entry `k` of the window at output position `o` is at input position ``o * stride + k * dilation - padding[0]``; positions
    outside the input are padding, `padding[0]` of them before the input and `padding[1]` after it.
    """

    size: Pair
    stride: Pair = (1, 1)
    padding: tuple[Pair, Pair] = ((0, 0), (0, 0))
    dilation: Pair = (1, 1)

    def outputs(self, inputs: Pair) -> Pair:
        """The number of window positions over an input of this height and width; not positive if the window is too large."""
        rows, columns = ((inputs[k] + sum(self.padding[k]) - self.span[k]) // self.stride[k] + 1 for k in range(2))
        return rows, columns

    @lazy
    def span(self) -> Pair:
        """The extent of the window, from its first entry to its last, both included."""
        rows, columns = ((self.size[k] - 1) * self.dilation[k] + 1 for k in range(2))
        return rows, columns

    @property
    def area(self) -> int:
        """Entries of the window."""
        return self.size[0] * self.size[1]

    @property
    def padded(self) -> bool:
        return self.padding != ((0, 0), (0, 0))

    def __str__(self) -> str:
        parts = [f"{self.size[0]}x{self.size[1]}"]
        parts += [f"stride {_pair(self.stride)}"] if self.stride != (1, 1) else []
        if self.padded:
            even = all(before == after for before, after in self.padding)
            parts.append(f"padding {_pair((self.padding[0][0], self.padding[1][0])) if even else self.padding}")
        parts += [f"dilation {_pair(self.dilation)}"] if self.dilation != (1, 1) else []
        return ", ".join(parts)


def _pair(pair: Pair) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}x{pair[1]}"


class Total(NamedTuple):
    """A result over all samples: its place, how the results of parts of the batch combine, and whether it is added to."""

    view: View
    over_batch: str
    accumulates: bool


@dataclass(frozen=True)
class Operation:
    """One operation of a program: it fills `outs` from `ins`. `label` names the layer that recorded it.

    A class declares its effects with these attributes. All code that drops, moves, fuses or splits operations relies on them.
    Operations work sample by sample: the results of a sample depend on the operands of that sample, and on operands without
    samples. Results without samples may depend on the whole batch.
    """

    elementwise: ClassVar[bool] = False  # each element depends on the operands' elements at its place; outs may be ins

    outs: tuple[View, ...]
    ins: tuple[View, ...]
    label: str = field(default="", kw_only=True)

    @property
    def accumulates(self) -> bool:
        """Whether the results are added to the contents of `outs`, which are then read too."""
        return False

    @property
    def over_batch(self) -> str | None:
        """How the results of parts of the batch combine to the result of the whole: "sum" or "max"; "whole" where they cannot.

        None where each sample has its results.
        """
        batched = any(view.batched for view in self.ins) and not any(view.batched for view in self.outs)
        return "sum" if batched else None

    @property
    def totals(self) -> tuple[Total, ...]:
        """The results over all samples; of a loop those of all steps."""
        kind = self.over_batch
        return tuple(Total(out, kind, self.accumulates) for out in self.outs) if kind else ()

    @property
    def reads(self) -> tuple[View, ...]:
        """The views whose contents are used."""
        return self.ins + self.outs if self.accumulates else self.ins

    @property
    def writes(self) -> tuple[View, ...]:
        """The views whose contents are changed."""
        return self.outs

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @property
    def views(self) -> tuple[View, ...]:
        return self.outs + self.ins

    @property
    def batched(self) -> bool:
        """Whether the operation works on samples."""
        return any(view.batched for view in self.views)

    @property
    def sums_over_batch(self) -> bool:
        """Whether the results are sums over all samples, so that the results of tiles of the batch add up to them."""
        return self.over_batch is not None

    def on(self, change: Callable[[View], View]) -> Operation:
        """The same operation with `change` applied to each view."""
        twin = object.__new__(type(self))  # faster than `replace`, which checks again what is there
        vars(twin).update(vars(self), outs=tuple(map(change, self.outs)), ins=tuple(map(change, self.ins)))
        return twin

    def flops(self, batch: int) -> int:
        """Multiplications and additions of products and convolutions at a batch size; 0 for other operations."""
        return 0

    def __str__(self) -> str:
        return f"{self._left} = {self.name}({', '.join(map(str, self.ins))})"

    @property
    def _left(self) -> str:
        return ", ".join(view.text for view in self.outs)


@dataclass(frozen=True)
class _Product(Operation):
    """out = a @ b, or out += a @ b."""

    accumulate: bool = False

    @property
    def accumulates(self) -> bool:
        return self.accumulate

    def flops(self, batch: int) -> int:
        (*leading, m, k), (*_, n) = (concrete(view.shape, batch) for view in self.ins)
        return 2 * math.prod(leading) * m * k * n

    def __str__(self) -> str:
        return f"{self._left} {'+=' if self.accumulate else '='} {self.ins[0]} @ {self.ins[1]}"


class MatMul(_Product):
    """out = a @ b, or out += a @ b. Matrices, possibly transposed views."""


class BatchMatMul(_Product):
    """out = a @ b, or out += a @ b, for the matrices in the last two axes; the axes before these are the same for all."""

    @property
    def name(self) -> str:
        return "batch_matmul"


@dataclass(frozen=True)
class Map(Operation):
    """outs = formula(ins), element by element over broadcast operands; an out may be one of the ins."""

    elementwise = True

    formula: Formula

    def __str__(self) -> str:
        return f"{self._left} = {self.formula.text([str(view) for view in self.ins])}"


@dataclass(frozen=True)
class Reduce(Operation):
    """out = the "sum" or "max" of the operand over the axes that `out` lacks or has with length 1."""

    kind: str

    @property
    def name(self) -> str:
        return self.kind

    @property
    def over_batch(self) -> str | None:
        return self.kind if super().over_batch else None


@dataclass(frozen=True)
class _Convolution(Operation):
    """The common part of the convolution and its two gradients. Images are (batch, channels, height, width), kernels
    (outputs, channels / groups, *window.size). Kernels are not flipped, as usual in networks. An output channel reads only
    the input channels of its group.
    """

    window: Window
    groups: int = 1

    @property
    def _images(self) -> tuple[View, View]:
        """The views of the input and of the output image, or of their gradients."""
        raise NotImplementedError

    def flops(self, batch: int) -> int:
        (_, channels, *_), (_, *output) = (concrete(view.shape, 1) for view in self._images)
        return 2 * batch * math.prod(output) * channels // self.groups * self.window.area

    def __str__(self) -> str:
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        return f"{self._left} = {self.name}({', '.join(map(str, self.ins))}; {self.window}{groups})"


@dataclass(frozen=True)
class Convolve(_Convolution):
    """y = the convolution of x with the kernels w, for the operands (x, w)."""

    @property
    def _images(self) -> tuple[View, View]:
        return self.ins[0], self.outs[0]


@dataclass(frozen=True)
class ConvolveInput(_Convolution):
    """dx = the gradient of `Convolve` with respect to x, for the operands (dy, w): the transposed convolution of dy."""

    @property
    def name(self) -> str:
        return "convolve_input"

    @property
    def _images(self) -> tuple[View, View]:
        return self.outs[0], self.ins[0]


@dataclass(frozen=True)
class ConvolveWeight(_Convolution):
    """dw = the gradient of `Convolve` with respect to w, summed over the samples, for the operands (x, dy)."""

    @property
    def name(self) -> str:
        return "convolve_weight"

    @property
    def _images(self) -> tuple[View, View]:
        return self.ins[0], self.ins[1]


@dataclass(frozen=True)
class Pool(Operation):
    """y = the "max" or the "mean" of each window of the operand x, channel by channel.

    Padding is never the largest entry. A mean divides by the size of the window or, without `count_padding`, by the
    number of its entries outside the padding.
    """

    kind: str
    window: Window
    count_padding: bool = True

    @property
    def name(self) -> str:
        return f"{self.kind}_pool"

    def __str__(self) -> str:
        return f"{self._left} = {self.name}({', '.join(map(str, self.ins))}; {self.window})"


@dataclass(frozen=True)
class PoolInput(Pool):
    """dx = the gradient of `Pool` with respect to x, for the operands (dy, x, y) of "max" and (dy,) of "mean".

    If a window has several largest entries, the first one, row by row, gets the gradient, as in PyTorch. A window without
    an entry equal to y passes no gradient on.
    """

    @property
    def name(self) -> str:
        return f"{self.kind}_pool_input"


@dataclass(frozen=True)
class Gather(Operation):
    """out[i, ...] = table[index[i], ...] for the operands (table, index); an index out of range means the nearest row."""


@dataclass(frozen=True)
class ScatterAdd(Operation):
    """out[index[i], ...] += source[i, ...] for the operands (index, source), with indices out of range as in `Gather`."""

    @property
    def accumulates(self) -> bool:
        return True


@dataclass(frozen=True)
class Random(Operation):
    """out = numbers uniform in [0, 1), a pure function of the key operand (seed, step) and of `draw`.

    If the batch is divided among processes, a second operand is the number of the first sample: elements are counted over the
    whole batch.

    Element i is made of 32 random bits: word i of the stream of Philox4x64-10 with key (seed, 0) and
    counter (1 + i // 8, draw, step, 0), low halves first; the number is ``(word >> 8) * 2**-24``.
    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """

    draw: int


@dataclass(frozen=True)
class Copy(Operation):
    """out = the operand, broadcast to out's shape and converted to its type."""

    elementwise = True


@dataclass(frozen=True)
class Fill(Operation):
    """out = value."""

    elementwise = True

    value: float

    def __str__(self) -> str:
        return f"{self._left} = {self.value:g}"


def users(operations: Iterable[Operation]) -> dict[Buffer, list[int]]:
    """The positions of the operations that touch each buffer, in order."""
    found: dict[Buffer, list[int]] = {}
    for position, operation in enumerate(operations):
        for buffer in dict.fromkeys(view.buffer for view in operation.views):
            found.setdefault(buffer, []).append(position)
    return found


COMMUNICATOR = "communicator"  # the buffer with the communicator to the others (`chains.support.communicator`)
COMMUNICATOR_WORDS = 5


@dataclass(frozen=True)
class AllReduce(Operation):
    """out = the sum of a over all processes, the same bits on each, for the operands (a, communicator).

    All processes do their sums over processes in the order of the program. `out` and `a` are contiguous and hold no samples.
    """

    @property
    def name(self) -> str:
        return "all_reduce"
