"""The right-hand side of a differential equation: its input, the arrays that it saves, and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.expr import maximum, minimum
from chains.layers.base import Declaration
from chains.layers.dropout import Dropout
from chains.layers.node import Node
from chains.layers.ode.grid import Around, Grid, part
from chains.layers.ode.methods import Length, Row, Tableau
from chains.program.loop import Steps
from chains.program.recorder import Recorder
from chains.program.view import View

Forcing = tuple[tuple[float, ...], tuple[Row, ...]]


@dataclass(frozen=True)
class Inputs:
    """The features after the state in the input of the right-hand side.

    Parameters
    ----------
    ops, x, n : Recorder, View, int
        The recorder, the samples, and the length of the state at the beginning of each sample.
    given, time, forcing : int, bool, (times, values) or None
        As of `ODE`.
    first : View or float
        The time from which times are counted.
    """

    ops: Recorder
    x: View
    n: int
    given: int
    time: bool
    forcing: Forcing | None
    first: View | float = 0.0

    @property
    def known(self) -> int:
        """The number of features that are functions of the time."""
        return int(self.time) + (0 if self.forcing is None else len(self.forcing[1][0]))

    @property
    def width(self) -> int:
        """The length of the right-hand side's input."""
        return self.n + self.given + self.known

    def at_stages(self, grid: Grid, tableau: Tableau) -> View | None:
        """The time and the forcing at each step and stage, (steps, stages, features), if all samples have the same steps."""
        if not self.known or grid.varies:
            return None
        begins, lengths = grid.equal()
        t = begins[:, None] + lengths[:, None] * np.array(tableau.c)
        features = [t] if self.time else []
        if self.forcing is not None:
            features += [np.interp(t, self.forcing[0], column) for column in zip(*self.forcing[1], strict=True)]
        return self.ops.constant("time and forcing", np.stack(features, -1))

    def record(self, seen: View, t: View | None = None, h: Length = 0.0, c: float = 0.0) -> None:
        """Record the given features; with a `t`, also time and forcing at t + c * h."""
        ops, behind = self.ops, self.n + self.given
        if self.given:
            ops.copy(seen.slice(-1, self.n, behind), self.x.slice(-1, self.n, behind))
        if not self.known or t is None:
            return
        now = ops.scratch("now", (1,))
        move_time = [h] if isinstance(h, View) and c else []
        ops.map(now, lambda t, *h: t + c * h[0] if h else t, t, *move_time)
        first = self.first
        if isinstance(first, View):
            ops.map(now, lambda first, t: first + t, first, now)
        elif first:
            ops.map(now, lambda t: first + t, now)
        if self.time:
            ops.copy(seen.slice(-1, behind, behind + 1), now)
        if self.forcing is not None:
            self._force(self.forcing, seen.slice(-1, behind + self.time, self.width), now)

    def _force(self, forcing: Forcing, out: View, now: View) -> None:
        """Record the forcing at a time of each sample: a mean of its values, weighted by hat functions over their times."""
        ops, at, values = self.ops, np.array(forcing[0]), np.array(forcing[1])
        if len(at) == 1:
            ops.copy(out, ops.constant("forcing", values[0]))
            return
        gaps = 1.0 / np.diff(at)
        rise, fall = (ops.constant(f"forcing, {name}", each) for name, each in
                      (("rise", np.r_[gaps[0], gaps]), ("fall", np.r_[gaps, gaps[-1]])))  # fmt: skip
        knots, weights = ops.constant("forcing, times", at), ops.scratch("weights of forcing", (len(at),))
        inside = ops.scratch("within forcing", (1,))
        ops.map(inside, lambda t: minimum(maximum(t, float(at[0])), float(at[-1])), now)
        hat = lambda t, a, rise, fall: maximum(minimum(1.0 + (t - a) * rise, 1.0 - (t - a) * fall), 0.0)  # noqa: E731
        ops.map(weights, hat, inside, knots, rise, fall)
        ops.matmul(out, weights, ops.constant("forcing", values))


class Copies:
    """The arrays that the right-hand side saves in one evaluation; `entry` gives the part of a saved array.

    Arrays of more than one axis are copied: layers use them as matrices of (samples x rows), whose rows must not have gaps.
    """

    def __init__(self, ops: Recorder, entry: Callable[[View], View]) -> None:
        self._ops, self._entry = ops, entry
        self._copies: dict[View, tuple[View, View]] = {}

    def array(self, view: View) -> View:
        """The array that stands for a saved one in this evaluation."""
        entry = self._entry(view)
        if entry.ndim <= 2:
            return entry
        if view not in self._copies:
            self._copies[view] = entry, self._ops.scratch(f"{view.buffer.name} of a stage", entry.sample_shape)
        return self._copies[view][1]

    def keep(self) -> None:
        """Record that the arrays are kept for the pullback."""
        for entry, own in self._copies.values():
            self._ops.copy(entry, own)

    def fetch(self) -> None:
        """Record that the arrays are as they were kept."""
        for entry, own in self._copies.values():
            self._ops.copy(own, entry)


class Kept(Copies):
    """The arrays that the right-hand side saves for one stage of each step."""

    def __init__(self, ops: Recorder, at: Steps, stage: int) -> None:
        super().__init__(ops, lambda view: at.now(view, 1).index(1, stage))


def at_once(ops: Recorder, rhs: Node, gradient: Callable[[str, View], View] = lambda _, view: view) -> Node:
    """The right-hand side with the saved arrays of one evaluation; the next evaluation overwrites them."""
    made: dict[View, View] = {}

    def one(view: View) -> View:
        if view not in made:
            made[view] = ops.scratch(f"{view.buffer.name}, once", view.sample_shape[2:])
        return made[view]

    return rhs.at_a_step(one, gradient, {})


def unread(ops: Recorder) -> Callable[[str, View], View]:
    """The arrays for gradients of parameters that are never read."""
    return lambda name, view: ops.scratch(f"{name}, unread", view.sample_shape, batched=False)


def check_deterministic(declaration: Declaration) -> None:
    """Raise ValueError for a right-hand side with dropout."""
    if isinstance(declaration.layer, Dropout) and declaration.layer.rate > 0.0:
        raise ValueError(
            f"`rhs` has {declaration.layer!r}, which would drop the same numbers at every step: put it before or after the ODE"
        )
    for child in declaration.children:
        check_deterministic(child)


class GradientSums:
    """The gradients of the parameters of `rhs` over the steps of a grid."""

    def __init__(self, ops: Recorder, grid: Grid, rhs: Node) -> None:
        self._ops, self._grid = ops, grid
        saved = (shape[2:] for each in rhs.declaration.all for shape in each.saved_shapes.values())
        others = (shape for each in rhs.declaration.all for shape in each.temporary_shapes.values())
        self._of_rows = any(
            len(shape) > 1 for shape in (*saved, *others)
        )  # their products cannot be done for all steps together
        self._found: list[tuple[View, View, float | None]] = []  # a parameter's gradient, one of each step, their weight

    def of_step(self, at: Around, step: Steps, name: str, view: View, weight: float | None = None) -> View:
        """The gradient of an evaluation, which counts with this weight in the gradient `view` of a parameter."""
        count = step.steps * (self._grid.cut.segments if self._of_rows else 1)
        each = self._ops.scratch(f"{name} of each step", (count, *view.sample_shape), batched=False)
        if weight != 0.0:
            self._found.append((view, each, weight))
        return step.now(part(each, at, 0) if self._of_rows else each, 0)

    def end_segment(self, at: Around) -> None:
        """Record the sums over the steps of a segment, if there are several segments."""
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
