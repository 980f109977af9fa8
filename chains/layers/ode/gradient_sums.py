"""Gradients of a right-hand side's parameters: one of each evaluation, which become sums over stages, steps and segments.

Every way back through the steps of a differential equation uses these: that of explicit steps a stage at a time, that of
implicit ones for all stages of a segment, and the continuous adjoint with the weights that stages have in the method.

    sums = GradientSums(ops, grid, rhs)
    with ops.loop(segments, backwards=True) as at:
        with ops.loop(steps, backwards=True) as step:
            ...  # a pullback, which fills sums.of_step((at,), step, name, view)
        sums.end_segment((at,))
    sums.add_up()

The sum over the samples at each step becomes one product of all steps (`chains.program.hoist`), to which segments add theirs
(`chains.program.accumulate`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chains.layers.node import Node
from chains.layers.ode.grid import Around, Grid, part
from chains.program.recorder import Recorder
from chains.program.steps import Steps
from chains.program.view import View


class GradientSums:
    """The gradients of the parameters of `rhs` over the steps of a grid."""

    def __init__(self, ops: Recorder, grid: Grid, rhs: Node) -> None:
        self._ops, self._grid = ops, grid
        shapes = (shape for each in rhs.declaration.all for shape in each.saved_shapes.values())
        self._of_rows = any(len(shape) > 3 for shape in shapes)  # products of rows have no form for all steps at once
        self._found: list[tuple[View, View, float | None]] = []  # a parameter's gradient, one of each step, their weight

    def of_step(self, at: Around, step: Steps, name: str, view: View, weight: float | None = None) -> View:
        """The gradient of an evaluation, for the gradient `view` of a parameter, to which it counts with this weight."""
        count = step.steps * (self._grid.cut.segments if self._of_rows else 1)
        each = self._ops.scratch(f"{name} of each step", (count, *view.sample_shape), batched=False)
        if weight != 0.0:
            self._found.append((view, each, weight))
        return step.now(part(each, at, 0) if self._of_rows else each, 0)

    def end_segment(self, at: Around) -> None:
        """Record the sums over the steps of a segment, where there are several segments."""
        if at and not self._of_rows:
            self._found = [(view, self._of_segment(at, each), weight) for view, each, weight in self._found]

    def _of_segment(self, at: Around, each: View) -> View:
        name = each.buffer.name.removesuffix("step") + "segment"
        entries = self._ops.scratch(name, (self._grid.cut.segments, *each.sample_shape[1:]), batched=False)
        self._ops.sum(part(entries, at, 0).index(0, 0), each)
        return entries

    def add_up(self) -> None:
        """Record the sums over all steps, and over the stages that have the same parameter."""
        totals: dict[View, list[tuple[View, float | None]]] = {}
        for view, each, weight in self._found:
            total = self._ops.scratch(f"{each.buffer.name}, summed", view.sample_shape, batched=False)
            self._ops.sum(total, each)
            totals.setdefault(view, []).append((total, weight))
        for view, parts in totals.items():
            self._ops.map(view, _weighed_sum([weight for _, weight in parts]), *(total for total, _ in parts))


def _weighed_sum(weights: Sequence[float | None]) -> Callable[..., Any]:
    def formula(*values: Any) -> Any:
        terms = [value if weight is None else weight * value for weight, value in zip(weights, values, strict=True)]
        return sum(terms[1:], terms[0])

    return formula
