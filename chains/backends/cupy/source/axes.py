"""Iteration spaces: the element of each view that a thread works on."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from chains.lowering.axes import Axis, axes_of, merged
from chains.lowering.c_language import sum_text
from chains.program.view import Batch, Extent, Shape, View


def extent_text(extent: Extent) -> str:
    """The length of an axis as C, from the variable `batch`."""
    if isinstance(extent, Batch):
        return "batch" if extent.per_sample == 1 else f"(batch * {extent.per_sample})"
    return str(extent)


def count_text(axes: Sequence[Axis]) -> str:
    """The number of elements, as C."""
    fixed = math.prod(axis.extent for axis in axes if isinstance(axis.extent, int))
    grows = [extent_text(axis.extent) for axis in axes if isinstance(axis.extent, Batch)]
    return " * ".join([*grows, str(fixed)] if fixed != 1 or not grows else grows)


def count(axes: Sequence[Axis], batch: int) -> int:
    """The number of elements at a batch size."""
    return math.prod(length(axis.extent, batch) for axis in axes)


def length(extent: Extent, batch: int) -> int:
    return extent.per_sample * batch if isinstance(extent, Batch) else extent


class Space:
    """The elements of a shape, and their places in `views`, which broadcast to it.

    The axes fall into those that are kept and those that are `reduced`; the variables `kept` and `inner` are the
    numbers of an element along the first and along the second.
    """

    def __init__(
        self, shape: Shape, views: Iterable[View], reduced: Collection[int] = (), kept: str = "i", inner: str = "r"
    ) -> None:
        self._number = {view: number for number, view in enumerate(dict.fromkeys(views))}
        axes = axes_of(shape, [*self._number])
        self.kept = merged([axis for k, axis in enumerate(axes) if k not in reduced])
        self.inner = merged([axis for k, axis in enumerate(axes) if k in reduced])
        self.kept_lines, kept_names = coordinate_lines(self.kept, kept, "c")  # statements that find the kept coordinates
        self.inner_lines, inner_names = coordinate_lines(self.inner, inner, "d")  # statements for the reduced ones
        self._names = [*kept_names, *inner_names]

    def step(self, axis: Axis, view: View) -> int:
        """The stride of a view along an axis."""
        return axis.strides[self._number[view]]

    def index_of(self, view: View) -> str:
        """The number of the view's element in its buffer, as C."""
        number = self._number[view]
        steps = [axis.strides[number] for axis in (*self.kept, *self.inner)]
        return sum_text(view.offset, [*zip(self._names, steps, strict=True), *advances(view)])


def coordinate_lines(axes: Sequence[Axis], index: str, prefix: str) -> tuple[list[str], list[str]]:
    """Statements that split the number `index` into a coordinate for each axis, and the coordinates' names."""
    if len(axes) == 1:
        return [], [index]
    names = [f"{prefix}{k}" for k in range(len(axes))]
    lines = [f"Index {prefix}_rest = {index};"] if axes else []
    for k in range(len(axes) - 1, 0, -1):
        extent = extent_text(axes[k].extent)
        lines += [f"const Index {names[k]} = {prefix}_rest % {extent};", f"{prefix}_rest /= {extent};"]
    if axes:
        lines.append(f"const Index {names[0]} = {prefix}_rest;")
    return lines, names


def advances(view: View) -> list[tuple[str, int]]:
    """The number of the current step of each loop, as C, and the view's stride along it."""
    return [(step_name(depth), move) for depth, move in enumerate(view.loop_strides)]


def step_name(depth: int) -> str:
    """The variable for the current step of the loop at this depth."""
    return f"now{depth}"
