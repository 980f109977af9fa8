"""The base class of optimisers: programs over the flat vectors of parameters, gradient and state.

A learning rate is a number or a schedule: a function of the number of updates made before, in arithmetic and
the functions of `chains.expr` (``lambda step: 1e-3 * 0.99 ** step``), such as those of `chains.schedules`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np

from chains.expr import Expr, minimum, sqrt
from chains.expr.formulas import kept
from chains.program.recorder import Recorder
from chains.program.rows import RowGradient, row_gradients, update_of_rows
from chains.program.settings import Tunable
from chains.program.view import View
from chains.support.checks import check_number, check_settings, check_word

Schedule = Callable[[Any], Any]
Rate = float | Schedule


@dataclass(frozen=True)
class Optimizer(Tunable, ABC):
    """The rule of a step along a gradient: settings only, no state. Use it with `train` or `Updater`.

    Parameters
    ----------
    learning_rate : float or callable
        A number, or a function of the number of updates made before: a schedule.
    clip_norm : float, optional
        The largest Euclidean norm of a gradient. Longer ones are first scaled down to it, as by PyTorch's clip_grad_norm_.
    sparse : str
        How a step treats the rows of an `Embedding` that no id of the batch names. "exact": as the formula does for a gradient
        of zero. "lazy": not at all; their parameters and moments do not change, as with PyTorch's SparseAdam, and a step costs
        time for the other rows only.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    settings: ClassVar[tuple[str, ...]] = ("learning_rate", "clip_norm")

    learning_rate: Rate
    clip_norm: float | None = field(default=None, kw_only=True)
    sparse: str = field(default="exact", kw_only=True)

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        if args or settings:  # there are none while a copy is made
            check_settings(cls, cls.__init__, args, settings)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if callable(self.learning_rate):
            what = f"`learning_rate` (={self.learning_rate!r}) must be a number or a formula of the step"
            object.__setattr__(self, "learning_rate", kept(what, self.learning_rate, 1))
        else:
            check_number("learning_rate", self.learning_rate, "in [0, inf)", ", or a function of the step")
        if self.clip_norm is not None:
            check_number("clip_norm", self.clip_norm, "in (0, inf)", ", or None")
        check_word("sparse", self.sparse, "exact", "lazy")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings by name, as scikit-learn's searches ask for them.

        Parameters
        ----------
        deep : bool
            Whether to list those of an optimiser among the settings too, such as "optimizer__eps".
        """
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        inner = {name: value for name, value in own.items() if deep and isinstance(value, Optimizer)}
        return own | {f"{name}__{key}": each for name, value in inner.items() for key, each in value.get_params().items()}

    def __sklearn_clone__(self) -> Self:
        return self  # it never changes

    @property
    @abstractmethod
    def n_states(self) -> int:
        """The number of vectors that the optimiser keeps, each as long as the parameters; they start at zero."""

    @property
    def rests(self) -> bool:
        """Whether a gradient of zero changes no bit of parameters and moments."""
        return False

    def scalars(self, step: Any) -> tuple[Any, ...]:
        """The numbers that `update` needs and that change from step to step.

        They are computed once a step, in double precision.

        Parameters
        ----------
        step : number or symbol
            How many updates were made before.
        """
        return (self.rate(step),)

    @abstractmethod
    def update(self, ops: Recorder, p: View, g: View, states: Sequence[View], scalars: Sequence[View]) -> None:
        """Record the update of one run of parameters.

        Parameters
        ----------
        ops : Recorder
            The operations.
        p, g : View, shape (n,)
            Parameters and gradient, which may be overwritten.
        states : sequence of View, each of shape (n,)
            The optimiser's `n_states` vectors.
        scalars : sequence of View, each of shape ()
            The numbers that `scalars` has computed for this step.
        """

    def rate(self, step: Any) -> Any:
        """The learning rate of a step.

        Parameters
        ----------
        step : number or symbol
            How many updates were made before.
        """
        return self.learning_rate(step) if callable(self.learning_rate) else self.learning_rate

    def record(self, ops: Recorder, p: View, g: View, ranges: Sequence[tuple[int, int]]) -> None:
        """Record one update of the `ranges` (start, stop) of the flat vector `p`."""
        size = p.sample_size
        moments = ops.external("moments", (self.n_states * size,), role="state")
        step = ops.external("step", (), role="state", dtype=np.float64)
        tables = self._tables(ops, g)
        scalars = [ops.scratch("scalar", (), batched=False) for _ in self.scalars(Expr("input"))]
        if self.clip_norm is not None:
            self._clip(ops, [g.slice(0, *run) for run in ranges], self.clip_norm)
        ops.map((*scalars, step), lambda step: (*self.scalars(step), step + 1.0), step)

        def update(start: int, stop: int) -> None:
            states = [moments.slice(0, k * size + start, k * size + stop) for k in range(self.n_states)]
            self.update(ops, p.slice(0, start, stop), g.slice(0, start, stop), states, scalars)

        for start, stop in ranges:
            for table in [each for each in tables if start <= each.start < stop]:
                if start < table.start:
                    update(start, table.start)
                start = table.stop
            if start < stop:
                update(start, stop)
        for table in tables:
            begun = len(ops.operations)
            update(table.start, table.stop)
            every = self.sparse == "exact" and not self.rests
            rows = update_of_rows(ops.operations[begun:], g.slice(0, table.start, table.stop), table, every=every)
            if rows is not None:
                ops.operations[begun:] = [rows]
                if table.alone:
                    ops.operations = [each for each in ops.operations if all(each is not made for made in table.operations)]
            elif self.sparse == "lazy":
                raise ValueError(f"the update of {self!r} is more than maps of parameters, gradient and states: none is lazy")

    def _tables(self, ops: Recorder, g: View) -> list[RowGradient]:
        """The parts of the gradient that are updated row by row."""
        found = row_gradients(ops.operations, g)
        if self.sparse == "exact":
            return [each for each in found if each.alone and self.clip_norm is None]
        for each in found:
            if not each.alone:
                raise ValueError(
                    f"{type(self).__name__}(sparse='lazy') moves the rows that ids name, but the gradient of a table of shape "
                    f"{each.table.sample_shape} has other parts: leave the table out of penalties, or use sparse='exact'"
                )
        return [replace(each, alone=self.clip_norm is None) for each in found]  # clipping needs the whole gradient

    @staticmethod
    def _clip(ops: Recorder, runs: Sequence[View], largest: float) -> None:
        squares = [ops.scratch("square", (1, 1), batched=False) for _ in runs]
        factor = ops.scratch("clip", (), batched=False)
        for run, square in zip(runs, squares, strict=True):
            row = run.reshape(1, run.sample_size)
            ops.matmul(square, row, row.T)
        total = [square.reshape() for square in squares]
        ops.map(factor, lambda *parts: minimum(largest / (sqrt(sum(parts)) + 1e-6), 1.0), *total)
        for run in runs:
            ops.map(run, lambda g, factor: g * factor, run, factor)
