"""Loss scaling: gradients that are stored in float16 on the way are made large enough for it, and unfit ones are left out."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from chains.checks import check_count, check_is, check_number
from chains.expr import floor, maximum, where
from chains.optimizers import Optimizer, Rate
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.samplers import SWAG


@dataclass(frozen=True)
class LossScale(Optimizer):
    """An optimiser on a scaled loss, for float16: the loss's cotangent is multiplied by a scale, the gradient divided by it.

    A step whose gradient is not finite leaves parameters and moments as they are and halves the scale; schedules and Adam's
    correction count it. `interval` steps with finite gradients in a row double the scale. So does PyTorch's GradScaler with
    its default numbers. The reported loss is not scaled. One that is itself not finite ends training, as always. An `Updater`
    takes gradients as they are, and leaves out those that are not finite.

    Parameters
    ----------
    optimizer : Optimizer
        How parameters move along the gradient.
    initial : float
        The first scale, positive; with powers of two, scaling rounds nothing.
    interval : int, optional
        Steps until a larger scale is tried. None: the scale stays as it is.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name; for optimisers with ``sparse="lazy"``; and for `SWAG`, whose mean would count
        steps that are left out.
    """

    settings: ClassVar[tuple[str, ...]] = ("learning_rate", "clip_norm", "initial")

    learning_rate: Rate = field(init=False, repr=False, default=0.0)
    clip_norm: float | None = field(init=False, repr=False, default=None)
    sparse: str = field(init=False, repr=False, default="exact")
    optimizer: Optimizer
    initial: float = 65536.0
    interval: int | None = 2000

    def __post_init__(self) -> None:
        check_is("optimizer", self.optimizer, Optimizer, "an optimiser such as Adam(1e-3)")
        if isinstance(self.optimizer, LossScale):
            raise ValueError(f"`optimizer` (={self.optimizer!r}) scales the loss already")
        check_number("initial", self.initial, "in (0, inf)")
        if self.interval is not None:
            check_count("interval", self.interval, 1, ", or None")
        if self.optimizer.sparse == "lazy":
            raise ValueError(f"`optimizer` (={self.optimizer!r}) updates single rows, but a scaled gradient is a whole one")
        if isinstance(self.optimizer, SWAG):
            raise ValueError(f"`optimizer` (={self.optimizer!r}) counts every step, but a scaled loss may leave some out")
        object.__setattr__(self, "learning_rate", self.optimizer.learning_rate)
        object.__setattr__(self, "clip_norm", self.optimizer.clip_norm)

    @property
    def n_states(self) -> int:
        return self.optimizer.n_states + 1  # of the last one, only the first number is used: the scale's

    def rate(self, step: Any) -> Any:
        return self.optimizer.rate(step)

    def scalars(self, step: Any) -> tuple[Any, ...]:
        return self.optimizer.scalars(step)

    def scale(self, ops: Recorder, size: int) -> tuple[View, View] | None:
        if not size:
            return None
        scale, inverse = (ops.scratch(name, (), batched=False) for name in ("loss scale", "inverse loss scale"))
        initial, interval = self.initial, self.interval

        def factors(count: Any) -> tuple[Any, ...]:
            factor = initial if interval is None else initial * 2.0 ** _whole(count, interval)
            return factor, 1.0 / factor

        ops.map((scale, inverse), factors, self._count(ops, size))
        return scale, inverse

    def record(self, ops: Recorder, p: View, g: View, ranges: Sequence[tuple[int, int]]) -> None:
        if not ranges:  # nothing is trained
            super().record(ops, p, g, ranges)
            return
        finite = ops.scratch("finite", (), batched=False)
        largest = [ops.scratch("largest", (1,), batched=False) for _ in ranges]
        for (start, stop), out in zip(ranges, largest, strict=True):
            sizes = ops.scratch("sizes", (stop - start,), batched=False)
            ops.map(sizes, lambda g: maximum(g, -g), g.slice(0, start, stop))
            ops.max(out, sizes)
        # NaN is greater than nothing, and less.
        ops.map(finite, lambda *all: _every([each < float("inf") for each in all]), *(out.reshape() for out in largest))
        guarded = copy.copy(self)
        object.__setattr__(guarded, "_finite", finite)
        Optimizer.record(guarded, ops, p, g, ranges)
        if (interval := self.interval) is not None:
            # One more for each finite gradient: the scale's exponent is the number of whole intervals.
            count = self._count(ops, p.sample_size)
            lower = lambda count: (_whole(count, interval) - 1.0) * interval  # noqa: E731
            ops.map(count, lambda count, finite: where(finite > 0.0, count + 1.0, lower(count)), count, finite)

    def update(self, ops: Recorder, p: View, g: View, states: Sequence[View], scalars: Sequence[View]) -> None:
        kept = (p, *states[:-1])
        before = [ops.scratch("before", view.sample_shape, batched=False) for view in kept]
        for old, view in zip(before, kept, strict=True):
            ops.copy(old, view)
        self.optimizer.update(ops, p, g, states[:-1], scalars)
        for old, view in zip(before, kept, strict=True):
            ops.map(view, lambda new, old, finite: where(finite > 0.0, new, old), view, old, vars(self)["_finite"])

    def _count(self, ops: Recorder, size: int) -> View:
        """Where the scale's number is kept."""
        moments = ops.external("moments", (self.n_states * size,), role="state")
        return moments.index(0, self.optimizer.n_states * size)


def with_rate(optimizer: Optimizer, learning_rate: Rate) -> Optimizer:
    """The same optimiser with another learning rate."""
    if isinstance(optimizer, LossScale):
        return replace(optimizer, optimizer=with_rate(optimizer.optimizer, learning_rate))
    return replace(optimizer, learning_rate=learning_rate)


def _whole(count: Any, interval: int) -> Any:
    """The whole intervals in a whole number; without the half, the quotient's rounding may lose one."""
    return floor((count + 0.5) * (1.0 / interval))


def _every(conditions: Sequence[Any]) -> Any:
    """1 where all conditions hold, else 0."""
    result: Any = 1.0
    for condition in conditions:
        result = where(condition, result, 0.0)
    return result
