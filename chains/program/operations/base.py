"""What all operations have: views, effects, and rules with a default."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from chains.program.view import Buffer, View
from chains.support.messages import shown


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
    over_steps: ClassVar[bool] = False  # one can do the work of all steps of a loop: views may have the steps as another axis

    # The operands in each of which the results are linear; none of them if the results depend on no numbers. None where they
    # are not linear: then derivatives need a rule (`chains.jets.jet`).
    linear_in: ClassVar[tuple[int, ...] | None] = None

    outs: tuple[View, ...]
    ins: tuple[View, ...]
    label: str = field(default="", kw_only=True)
    held: bool = field(default=False, kw_only=True, compare=False)  # whether tangents take its results for constants

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

    def check(self) -> None:
        """Raise unless the operands are arrays of a program that fit together."""
        check_views(self.name, *self.views)

    def transpose(self, t: Any) -> None:
        """Record the pullback: a term for the cotangent of each operand, from those of the results.

        Parameters
        ----------
        t : chains.program.transpose.Transposer
            It has the cotangents, and records.
        """
        way = f"write the layer's pullback, or `{type(self).__name__}.transpose`"
        raise NotImplementedError(f"there is no rule for the pullback of `{self.name}`: {way}")

    def flops(self, batch: int) -> int:
        """Multiplications and additions of products and convolutions at a batch size; 0 for other operations."""
        return 0

    def __str__(self) -> str:
        return f"{self._left} = {self.name}({', '.join(map(str, self.ins))})"

    @property
    def _left(self) -> str:
        return ", ".join(view.text for view in self.outs)


def users(operations: Iterable[Operation]) -> dict[Buffer, list[int]]:
    """The positions of the operations that touch each buffer, in order."""
    found: dict[Buffer, list[int]] = {}
    for position, operation in enumerate(operations):
        for buffer in dict.fromkeys(view.buffer for view in operation.views):
            found.setdefault(buffer, []).append(position)
    return found


# Whether the operands of an operation fit together


def check_views(name: str, *views: Any) -> None:
    """Raise TypeError unless all of these are arrays of a program."""
    for view in views:
        if not isinstance(view, View):
            raise TypeError(
                f"{name}: `{shown(view)}` is not an array of this program: write numbers in the formula, as in "
                "ops.map(y, lambda x: 2 * x, x), and make other arrays part of the program with ops.constant(name, array)"
            )


def check_broadcast(name: str, small: View, large: View) -> None:
    """Raise unless `small` broadcasts to the shape of `large` by NumPy's rule."""
    pairs = list(zip(reversed(small.shape), reversed(large.shape), strict=False))
    if small.ndim > large.ndim or any(a not in (b, 1) for a, b in pairs):
        raise ValueError(f"{name}: {small} does not broadcast to {large}")
