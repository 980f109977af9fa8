"""Checkpoints: a loop along a time axis in segments. The state at the beginning of each is kept.

The pullback of a loop needs the arrays that its steps have saved. With checkpoints, the forward pass runs through segments of
`every` steps. It keeps the state at the beginning of each segment, and all saved arrays of the last segment. The pullback takes
the segments from the last to the first, repeats the steps of each from its checkpoint, and then runs them backwards. Source:
Chen et al., "Training deep nets with sublinear memory cost", 2016.

    segments = Segments(steps, every)
    for segment in segments.forward(ops):
        if not segment.last:
            ops.copy(segment.entry(checkpoints), state)
        with ops.loop(segment.steps) as at:
            ...  # a step on at.now(segment.part(x), 1); it saves into at.now(arrays.of(segment, s.saved), 1)
    for segment in segments.backward(ops):
        if not segment.last:
            ...  # the steps again, from segment.entry(checkpoints)
        with ops.loop(segment.steps, backwards=True) as at:
            ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chains.program.loop import Steps
from chains.program.recorder import Recorder
from chains.program.view import View


@dataclass(frozen=True)
class Segments:
    """A time axis of `steps`, cut into segments of `every` steps; the last may be shorter. Without `every` there is one
    segment.

    With `backwards` the steps run from the end of the axis to its start, as in the second direction of a recurrence.
    """

    steps: int
    every: int | None = None
    backwards: bool = False

    @property
    def before_last(self) -> int:
        """The number of segments before the last one."""
        return (self.steps - 1) // self.every if self.every is not None else 0

    @property
    def last(self) -> int:
        """The length of the last segment."""
        return self.steps - self.before_last * (self.every or 0)

    def forward(self, ops: Recorder) -> Iterator[Segment]:
        """The segments in order. Operations recorded meanwhile are done for each."""
        yield from self._loop(ops, self.backwards)
        yield Segment(self, self.last, None)

    def backward(self, ops: Recorder) -> Iterator[Segment]:
        """The segments from the last one to the first."""
        yield Segment(self, self.last, None)
        yield from self._loop(ops, not self.backwards)

    def _loop(self, ops: Recorder, backwards: bool) -> Iterator[Segment]:
        if self.before_last:
            assert self.every is not None
            with ops.loop(self.before_last, backwards=backwards, closed=True) as at:
                yield Segment(self, self.every, at)


@dataclass(frozen=True)
class Segment:
    """Consecutive steps, for one loop: those of the segment `at` a step of a loop over segments, or of the last segment."""

    whole: Segments
    steps: int
    at: Steps | None

    @property
    def last(self) -> bool:
        return self.at is None

    def part(self, view: View, axis: int = 1) -> View:
        """The entries for these steps along an axis with an entry for each step."""
        whole, first = self.whole, self.whole.last if self.whole.backwards else 0
        if not whole.before_last:
            return view
        if self.at is not None:
            return self.at.part(view.slice(axis, first, first + whole.steps - whole.last), axis, self.steps)
        return view.slice(axis, 0, first) if first else view.slice(axis, whole.steps - whole.last, whole.steps)

    def entry(self, view: View, axis: int = 1) -> View:
        """The entry for this segment along an axis with an entry for each."""
        return view.index(axis, self.whole.before_last) if self.at is None else self.at.now(view, axis)


class SegmentArrays:
    """The arrays that steps save, read and write in one pass through the segments, each in one piece of memory.

    A product over all steps of a segment needs their rows next to each other.
    """

    def __init__(self, ops: Recorder, segment: Segment) -> None:
        self.ops, self.segment = ops, segment
        self._own: dict[View, View] = {}

    def saved(self, view: View) -> View:
        """The array for the values that steps save in `view`, which has an entry for each step of the last segment."""
        if self.segment.last:
            return view
        if view not in self._own:
            self._own[view] = self.ops.scratch(f"{view} of a segment", (self.segment.steps, *view.sample_shape[1:]))
        return self._own[view]

    def read(self, x: View) -> View:
        """The entries of `x` for these steps."""
        part = self.segment.part(x)
        if part == x or x.dtype != self.ops.dtype:
            return part
        copy = self.ops.scratch(f"{x} of a segment", part.sample_shape)
        self.ops.copy(copy, part)
        return copy

    def write(self, x: View) -> View:
        """An array for the entries of `x` for these steps, which `written` brings to their place."""
        part = self.segment.part(x)
        return part if part == x else self.ops.scratch(f"{x} of a segment", part.sample_shape)

    def written(self, x: View, entries: View) -> None:
        """Record the copy of the array that `write` gave."""
        self.ops.copy(self.segment.part(x), entries)


class StepSums:
    """Gradients of parameters, summed over all steps. The gradients of the steps are separate arrays; their sum becomes one
    product.
    """

    def __init__(self, ops: Recorder, segments: Segments) -> None:
        self.ops, self.segments = ops, segments
        self._entries: dict[View, View] = {}  # by gradient: the array with an entry for each segment
        self._steps: list[tuple[View, View]] = []

    def of_step(self, segment: Segment, at: Steps, name: str, view: View) -> View:
        """The gradient of one step, for the gradient `view` of a parameter."""
        each = self.ops.scratch(f"{name} of each step", (segment.steps, *view.sample_shape), batched=False)
        self._steps.append((self._of_segment(segment, name, view), each))
        return at.now(each, 0)

    def add_steps(self) -> None:
        """Record the sums over the steps of a segment, after the loop over these."""
        for total, each in self._steps:
            self.ops.sum(total, each)
        self._steps.clear()

    def add_segments(self) -> None:
        """Record the sums over the segments."""
        for view, each in self._entries.items():
            self.ops.sum(view, each)

    def _of_segment(self, segment: Segment, name: str, view: View) -> View:
        if not self.segments.before_last:
            return view
        if view not in self._entries:
            shape = (self.segments.before_last + 1, *view.sample_shape)
            self._entries[view] = self.ops.scratch(f"{name} of each segment", shape, batched=False)
        return segment.entry(self._entries[view], 0)
