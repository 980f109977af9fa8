"""Whether two views share memory. No other module decides this.

The strides of a view are known, the length of its batch is not, so the answers hold at every batch size. "No" is certain;
"yes" means that the views may share memory. Windows side by side along an axis of one array do not overlap.
"""

from __future__ import annotations

from chains.program.operations import Operation
from chains.program.view import Batch, Extent, View


def overlap(a: View, b: View) -> bool:
    """Whether two views may have an element in common."""
    if a.buffer is not b.buffer or not a.sample_size or not b.sample_size:
        return False
    if a.loop_strides != b.loop_strides:  # they may overlap at some step
        return True
    periods = dict.fromkeys((0, *a.strides, *b.strides))
    return a == b or not any(_apart(a, b, period) for period in periods)


def same(a: View, b: View) -> bool:
    """Whether two views have the same elements in the same order, whatever their axes."""
    return a == b or (
        a.buffer is b.buffer and (a.offset, a.loop_strides) == (b.offset, b.loop_strides) and _merged(a) == _merged(b)
    )


def across(a: View, b: View) -> bool:
    """Whether two views may overlap other than element by element.

    Then an operation that goes through both in order may overwrite elements before it reads them.
    """
    return a != b and overlap(a, b)


def conflict(a: Operation, b: Operation) -> bool:
    """Whether the order of two operations matters."""
    pairs = [(x, y) for x in a.writes for y in (*b.reads, *b.writes)] + [(x, y) for x in a.reads for y in b.writes]
    return any(overlap(x, y) for x, y in pairs)


def reach(view: View) -> tuple[int, int]:
    """The position of the first element of a view without samples, and the position after its last."""
    width = _width(view, 0)
    assert width is not None, f"{view.text} has samples"
    return view.offset, view.offset + width


def _apart(a: View, b: View, period: int) -> bool:
    """Whether two views use different places of each period, such as a row of a matrix; period 0 is the whole buffer."""
    first, second = _width(a, period), _width(b, period)
    if first is None or second is None:
        return False
    distance = b.offset - a.offset
    if not period:
        return distance >= first or -distance >= second
    return distance % period >= first and -distance % period >= second


def _width(view: View, period: int) -> int | None:
    """The distance within a period from a view's first place to its last, both included; None where the batch decides."""
    width = 1
    for extent, stride in zip(view.shape, view.strides, strict=True):
        if extent != 1 and (not period or stride % period):
            if isinstance(extent, Batch):
                return None
            width += (extent - 1) * stride
    return width


def _merged(view: View) -> list[tuple[Extent, int]]:
    """The axes as lengths and strides; neighbouring axes without gaps are merged."""
    axes: list[tuple[Extent, int]] = []
    for extent, stride in zip(view.shape, view.strides, strict=True):
        if extent == 1:
            continue
        if axes and isinstance(extent, int) and axes[-1][1] == extent * stride:
            outer = axes.pop()[0]
            extent = Batch(outer.per_sample * extent) if isinstance(outer, Batch) else outer * extent
        axes.append((extent, stride))
    return axes
