"""When two views meet: the one place that knows whether memory is shared.

A view has known strides and a batch of unknown length, so the answers hold at every batch size. That two views do not meet is
certain; that they may is an upper bound. Windows of one array that lie side by side along an axis are told apart.
"""

from __future__ import annotations

from chains.program.operations import Operation
from chains.program.view import Batch, Extent, View


def meet(a: View, b: View) -> bool:
    """Whether two views may have an element in common."""
    if a.buffer is not b.buffer or not a.sample_size or not b.sample_size:
        return False
    if a.moves != b.moves:  # at some step or other
        return True
    periods = dict.fromkeys((0, *a.strides, *b.strides))
    return a == b or not any(_apart(a, b, period) for period in periods)


def same(a: View, b: View) -> bool:
    """Whether two views have the same elements in the same order, whatever their axes."""
    return a == b or (a.buffer is b.buffer and (a.offset, a.moves) == (b.offset, b.moves) and _merged(a) == _merged(b))


def across(a: View, b: View) -> bool:
    """Whether two views may meet other than element by element.

    Then an operation that goes through both in order may overwrite elements that it has still to read.
    """
    return a != b and meet(a, b)


def conflict(a: Operation, b: Operation) -> bool:
    """Whether the order of two operations matters."""
    pairs = [(x, y) for x in a.writes for y in (*b.reads, *b.writes)] + [(x, y) for x in a.reads for y in b.writes]
    return any(meet(x, y) for x, y in pairs)


def reach(view: View) -> tuple[int, int]:
    """The first element of a view without samples, and that after the last."""
    width = _width(view, 0)
    assert width is not None, f"{view.text} has samples"
    return view.offset, view.offset + width


def _apart(a: View, b: View, period: int) -> bool:
    """Whether two views take different places of each period, a row of a matrix for example; 0 is a period without end."""
    first, second = _width(a, period), _width(b, period)
    if first is None or second is None:
        return False
    ahead, behind = b.offset - a.offset, a.offset - b.offset
    if not period:
        return ahead >= first or behind >= second
    return ahead % period >= first and behind % period >= second


def _width(view: View, period: int) -> int | None:
    """How many places of a period a view takes, counted from its first to its last; None where the batch decides."""
    width = 1
    for extent, stride in zip(view.shape, view.strides, strict=True):
        if extent != 1 and (not period or stride % period):
            if isinstance(extent, Batch):
                return None
            width += (extent - 1) * stride
    return width


def _merged(view: View) -> list[tuple[Extent, int]]:
    """The axes as lengths and strides, those that lie in line made one."""
    axes: list[tuple[Extent, int]] = []
    for extent, stride in zip(view.shape, view.strides, strict=True):
        if extent == 1:
            continue
        if axes and isinstance(extent, int) and axes[-1][1] == extent * stride:
            outer = axes.pop()[0]
            extent = Batch(outer.per_sample * extent) if isinstance(outer, Batch) else outer * extent
        axes.append((extent, stride))
    return axes
