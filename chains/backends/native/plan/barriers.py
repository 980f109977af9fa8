"""What threads do that stay together through many steps: when they must meet.

In a loop over batches calling the workers for each part of a step, and waiting for them, takes longer than meeting them: a
team's members all go through the whole step, each doing its parts of what is shared and the first one what is not, and
wait for each other only where one needs what another has done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chains.backends.native.plan.segments import TOGETHER, Step, side_by_side
from chains.program.alias import conflict
from chains.program.operations import Operation
from chains.program.view import Buffer

Run = tuple[Buffer, int, int, str]  # entries start..stop of a buffer, and the operation that gives them


@dataclass(frozen=True)
class Work:
    """What one thread does, or, on vectors of a length, all threads share."""

    steps: Sequence[Step]
    maps: Sequence[Operation] = ()  # done with them
    thread: int = 0
    length: int = 0

    @property
    def operations(self) -> list[Operation]:
        return [*(operation for step in self.steps for operation in step.operations), *self.maps]


def meetings(works: Sequence[Work], sums: Iterable[Run] = ()) -> tuple[bool, ...]:
    """For each of these works, done in order, whether all threads must meet before it.

    They meet as early as they may, behind the last thing that one waits for, so that what comes next is done side by side.
    What comes before all is that each thread has added its part of the long ones of these sums, and the first the short ones.
    """
    runs = list(sums)
    met = 0  # the first work behind their last meeting
    meet = [False] * len(works)
    for position, work in enumerate(works):
        waits = [each + 1 for each in range(met, position) if _depends(works[each], work)]
        if not waits and not any(meet) and not _adds_alike(runs, work):
            waits = [0]
        if waits:
            met = waits[-1]
            meet[met] = True
    return tuple(meet)


def _adds_alike(runs: Sequence[Run], work: Work) -> bool:
    """Whether each thread itself has added the sums that it needs for its part."""
    views = [view for operation in work.operations for view in operation.views]
    for buffer, start, stop, _ in runs:
        touched = [view for view in views if view.buffer is buffer]
        if stop - start < TOGETHER:
            alike = not work.length and work.thread == 0
        else:
            alike = work.length > 0 and all((v.offset, v.sample_size) == (start, stop - start) for v in touched)
        if touched and not alike:
            return False
    return True


def _depends(a: Work, b: Work) -> bool:
    """Whether what one thread does of `b` depends on what another one does of `a`, which comes before."""
    if not a.length and not b.length and a.thread == b.thread:
        return False
    if a.length and a.length == b.length and all(side_by_side(a.steps, step) for step in b.steps):
        return False
    return any(conflict(x, y) for x in a.operations for y in b.operations)
