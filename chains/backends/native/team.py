"""What threads do that stay together through many steps: when they must meet.

In a loop over batches calling the workers for each part of a step, and waiting for them, takes longer than meeting them: a
team's members all go through the whole step, each doing its parts of what is shared and the first one what is not, and
wait for each other only where one needs what another has done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chains.backends.native.segments import TOGETHER, Step, conflict, side_by_side
from chains.operations import Operation
from chains.view import Buffer

Run = tuple[Buffer, int, int, str]  # entries start..stop of a buffer, and the operation that gives them
Piece = tuple[int, list[Step]]


def meetings(pieces: Sequence[Piece], runs: Iterable[Run]) -> tuple[bool, ...]:
    """For each piece of what is done once, whether all must meet before it. What comes before them is that each has added its
    part of the long ones of these sums, and the first thread the short ones.
    """
    runs = list(runs)
    before: list[Piece] = []  # since they met
    result = []
    for piece in pieces:
        meet = not _adds_alike(runs, piece) or any(_depends(each, piece) for each in before)
        if meet:
            runs, before = [], []
        before.append(piece)
        result.append(meet)
    return tuple(result)


def _operations(piece: Piece) -> list[Operation]:
    return [operation for step in piece[1] for operation in step.operations]


def _adds_alike(runs: Sequence[Run], piece: Piece) -> bool:
    """Whether each thread itself has added the sums that it needs for its part of a piece."""
    length = piece[0]
    views = [view for operation in _operations(piece) for view in operation.views]
    for buffer, start, stop, _ in runs:
        whole = length and all((v.offset, v.sample_size) == (start, stop - start) for v in views if v.buffer is buffer)
        if any(v.buffer is buffer for v in views) and not (whole if stop - start >= TOGETHER else not length):
            return False
    return True


def _depends(a: Piece, b: Piece) -> bool:
    """Whether one thread's part of a piece depends on another thread's part of an earlier one."""
    if a[0] == b[0] and (not a[0] or all(side_by_side(a[1], step) for step in b[1])):
        return False
    return any(conflict(x, y) for x in _operations(a) for y in _operations(b))
