"""The steps of a solution: their number, lengths and times, and the segments that they are cut into.

With checkpoints, memory is needed for the steps of one segment. Segments of equal steps end at the times, or all segments
between two times are equal. So outputs are states at ends of segments, or at the same places within each segment. If the
numbers do not divide evenly, spare steps of length 0 come first: they evaluate the right-hand side at the beginning of the next
step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from chains.expr import where
from chains.program.loop import Steps
from chains.program.recorder import Recorder
from chains.program.view import View

SEGMENT = 8  # steps in a segment, by default, with step control or an event; a segment is done or left out as a whole


Around = tuple[Steps, ...]  # loops over segments, the outermost first


class Cut(NamedTuple):
    """The number of segments of `length` steps. `spare` counts the steps of length 0, or the intervals if a segment has
    several.
    """

    segments: int
    length: int
    spare: int = 0


@dataclass(frozen=True)
class Grid:
    """The steps from time to time.

    Parameters
    ----------
    times : tuple of float, or int
        The times, or the number of times in each sample.
    steps : int
        The number of equal steps from each time to the next.
    attempts : int, optional
        The number of attempts, for step control instead of equal steps.
    every : int, optional
        The largest number of steps from one checkpoint to the next.
    apart : bool
        Whether segments of equal steps end at the next time.
    ends : bool
        Whether each sample has its own last time; later steps have the length 0.
    """

    times: tuple[float, ...] | int
    steps: int
    attempts: int | None = None
    every: int | None = None
    apart: bool = False
    ends: bool = False

    @property
    def intervals(self) -> int:
        return (self.times if isinstance(self.times, int) else len(self.times)) - 1

    @property
    def needed(self) -> int:
        """The number of steps, without spare ones."""
        return self.attempts or self.intervals * self.steps

    @cached_property
    def cut(self) -> Cut:
        """The segments."""
        if self.attempts is not None:
            return _cut(self.attempts, self.every or SEGMENT)
        every = self.most
        if not self.apart and (every is None or every >= self.needed):
            return Cut(1, self.needed)
        if every is None or self.within:
            parts, length, spare = _cut(self.steps, every or SEGMENT)
            return Cut(self.intervals * parts, length, spare)
        parts, length, spare = _cut(self.intervals, every // self.steps)
        return Cut(parts, length * self.steps, spare)

    @property
    def most(self) -> int | None:
        """How many equal steps a segment has at most."""
        return self.every or (SEGMENT if self.ends else None)

    @property
    def total(self) -> int:
        """The number of steps."""
        return self.cut.segments * self.cut.length

    @property
    def repeats(self) -> bool:
        """Whether a pullback repeats the steps of each segment, from a checkpoint."""
        return self.attempts is not None or self.ends or self.cut.segments > 1

    @property
    def within(self) -> bool:
        """Whether segments lie between two times."""
        return self.apart or (self.most is not None and self.most < self.steps)

    @property
    def own(self) -> bool:
        """Whether the times are part of each sample."""
        return isinstance(self.times, int)

    @property
    def varies(self) -> bool:
        """Whether each sample has different steps."""
        return self.attempts is not None or self.own or self.ends

    def equal(self) -> tuple[np.ndarray, np.ndarray]:
        """The begins and lengths of the steps that all samples share, (total,)."""
        assert isinstance(self.times, tuple)
        times, (_, _, spare), spare_times = np.array(self.times), self.cut, 0
        begins = np.linspace(times[:-1], times[1:], self.steps, endpoint=False, axis=1)
        lengths = np.repeat(np.diff(times)[:, None] / self.steps, self.steps, axis=1)
        if self.within:
            begins = np.concatenate([np.repeat(times[:-1, None], spare, axis=1), begins], axis=1)
            lengths = np.concatenate([np.zeros((self.intervals, spare)), lengths], axis=1)
        else:
            spare_times = spare * self.steps
        return (
            np.concatenate([np.full(spare_times, times[0]), begins.reshape(-1)]),
            np.concatenate([np.zeros(spare_times), lengths.reshape(-1)]),
        )

    def own_steps(self, view: View) -> View:
        """The entries of an array (batch, total, ...) for the steps without spare ones, (batch, intervals, steps, ...)."""
        spare = self.cut.spare
        if self.within:
            return view.split(1, self.intervals).slice(2, spare, spare + self.steps)
        return view.slice(1, spare * self.steps, self.total).split(1, self.intervals)

    def until(self, ops: Recorder, mask: View) -> View:
        """Record the lengths of equal steps for each sample, (batch, total, 1): 0 after its last time.

        `mask`, (batch, times, 1), is 1 at the times that a sample has.
        """
        lengths = ops.scratch("lengths until the last time", (self.total, 1))
        first = 0 if self.within else self.cut.spare * self.steps
        if first:
            ops.fill(lengths.slice(1, 0, first), 0.0)
        own = lengths.index(2, 0).slice(1, first, self.total).split(1, self.intervals)
        shared = ops.constant("lengths of steps", self.equal()[1][first:].reshape(self.intervals, -1))
        has = mask.slice(1, 1, self.intervals + 1)
        ops.map(own, lambda has, h: where(has > 0.0, h, 0.0), has, shared)
        return lengths

    def fill(self, ops: Recorder, times: View, begins: View, lengths: View) -> None:
        """Record the begins and lengths of equal steps between the times of each sample, (batch, times)."""
        (_, _, spare), steps, intervals = self.cut, self.steps, self.intervals
        if spare and not self.within:
            ops.fill(lengths.slice(1, 0, spare * steps), 0.0)
            ops.copy(begins.slice(1, 0, spare * steps), times.slice(-1, 0, 1).expand(-1))
            begins, lengths = (view.slice(1, spare * steps, self.total) for view in (begins, lengths))
        starts, stops = (times.slice(-1, k, k + intervals).expand(-1) for k in (0, 1))
        begins, lengths = (view.index(2, 0).split(1, intervals) for view in (begins, lengths))
        per_interval = int(begins.shape[2])  # type: ignore[arg-type]
        if spare and self.within:
            ops.fill(lengths.slice(2, 0, spare), 0.0)
            ops.copy(begins.slice(2, 0, spare), starts)
            begins, lengths = (view.slice(2, spare, per_interval) for view in (begins, lengths))
        numbers = ops.constant("numbers of steps", np.arange(steps, dtype=np.float64))
        ops.map(lengths, lambda a, b: (b - a) * (1.0 / steps), starts, stops)
        ops.map(begins, lambda a, h, k: a + k * h, starts, lengths, numbers)


def _cut(steps: int, most: int) -> Cut:
    """The fewest segments of equal length, of at most `most` steps each."""
    segments = -(-steps // most)
    length = -(-steps // segments)
    segments = -(-steps // length)
    return Cut(segments, length, segments * length - steps)


def part(view: View, around: Around, axis: int = 1) -> View:
    """The entries of an axis for the current steps of the enclosing loops, the outermost first."""
    for at in around:
        view = at.part(view, axis, int(view.shape[axis]) // at.steps)  # type: ignore[arg-type]
    return view
