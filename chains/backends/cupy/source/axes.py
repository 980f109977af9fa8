"""Iteration spaces: which element of each view a thread works on."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from chains.program.view import Batch, Extent, Shape, View


@dataclass(frozen=True)
class Axis:
    """An axis to go along: its length, and how far a step leads in each view (in elements)."""

    extent: Extent
    strides: tuple[int, ...]


def aligned_strides(view: View, ndim: int) -> tuple[int, ...]:
    """The view's strides for each of `ndim` axes it broadcasts to; 0 where it does not move."""
    missing = ndim - view.ndim
    own = (0 if extent == 1 else stride for extent, stride in zip(view.shape, view.strides, strict=True))
    return (0,) * missing + tuple(own)


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """The axes without those of length 1, neighbours that are one run in every view made one."""
    result: list[Axis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        before = result[-1] if result else None
        if (
            before is not None
            and isinstance(axis.extent, int)
            and all(a == b * axis.extent for a, b in zip(before.strides, axis.strides, strict=True))
        ):
            result[-1] = Axis(_product(before.extent, axis.extent), axis.strides)
        else:
            result.append(axis)
    return result


def _product(a: Extent, b: int) -> Extent:
    return Batch(a.per_sample * b) if isinstance(a, Batch) else a * b


def extent_text(extent: Extent) -> str:
    """The length of an axis as C, from the variable `batch`."""
    if isinstance(extent, Batch):
        return "batch" if extent.per_sample == 1 else f"(batch * {extent.per_sample})"
    return str(extent)


def count_text(axes: Sequence[Axis]) -> str:
    """How many elements there are, as C."""
    fixed = math.prod(axis.extent for axis in axes if isinstance(axis.extent, int))
    grows = [extent_text(axis.extent) for axis in axes if isinstance(axis.extent, Batch)]
    return " * ".join([*grows, str(fixed)] if fixed != 1 or not grows else grows)


def count(axes: Sequence[Axis], batch: int) -> int:
    """How many elements there are at a batch size."""
    return math.prod(length(axis.extent, batch) for axis in axes)


def length(extent: Extent, batch: int) -> int:
    return extent.per_sample * batch if isinstance(extent, Batch) else extent


class Space:
    """The elements of a shape, and where `views`, which broadcast to it, have each of them.

    The axes fall into those that are kept and those that are `reduced`; the variables `kept` and `inner` are the
    numbers of an element along the first and along the second.
    """

    def __init__(
        self, shape: Shape, views: Iterable[View], reduced: Collection[int] = (), kept: str = "i", inner: str = "r"
    ) -> None:
        self._number = {view: number for number, view in enumerate(dict.fromkeys(views))}
        strides = [aligned_strides(view, len(shape)) for view in self._number]
        axes = [Axis(extent, tuple(own[k] for own in strides)) for k, extent in enumerate(shape)]
        self.kept = merged([axis for k, axis in enumerate(axes) if k not in reduced])
        self.inner = merged([axis for k, axis in enumerate(axes) if k in reduced])
        self._kept_lines, kept_names = coordinate_lines(self.kept, kept, "c")
        self._inner_lines, inner_names = coordinate_lines(self.inner, inner, "d")
        self._names = [*kept_names, *inner_names]

    @property
    def kept_lines(self) -> list[str]:
        """Statements that find the place along the kept axes."""
        return self._kept_lines

    @property
    def inner_lines(self) -> list[str]:
        """Statements that find the place along the reduced axes."""
        return self._inner_lines

    def step(self, axis: Axis, view: View) -> int:
        """How far a step along an axis leads in a view."""
        return axis.strides[self._number[view]]

    def index_of(self, view: View) -> str:
        """The number of the view's element in its buffer, as C."""
        number = self._number[view]
        steps = [axis.strides[number] for axis in (*self.kept, *self.inner)]
        return offset_text(view.offset, [*zip(self._names, steps, strict=True), *advances(view)])


def coordinate_lines(axes: Sequence[Axis], index: str, prefix: str) -> tuple[list[str], list[str]]:
    """Statements that take the number `index` apart into a coordinate for each axis, and the coordinates' names."""
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
    """The number of the current step of each loop around, as C, and how far a step leads in the view."""
    return [(step_name(depth), move) for depth, move in enumerate(view.loop_strides)]


def step_name(depth: int) -> str:
    """The variable for the current step of the loop at this depth."""
    return f"now{depth}"


def offset_text(start: int, parts: Sequence[tuple[str, int]]) -> str:
    """start + the sum of coordinate * stride, as C."""
    terms = [name if stride == 1 else f"{name} * {stride}" for name, stride in parts if stride]
    if start or not terms:
        terms.append(str(start))
    return " + ".join(terms)
