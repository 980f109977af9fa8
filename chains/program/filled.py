"""The elements that operations of a loop's body fill."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from chains.program.view import Batch, Buffer, View


class Filled:
    """The elements that were filled, for one sample, by buffer and advance."""

    def __init__(self) -> None:
        self._filled: dict[tuple[Buffer, tuple[int, ...]], np.ndarray] = {}

    def add(self, views: Iterable[View]) -> None:
        for view in views:
            filled = self._filled.setdefault((view.buffer, view.loop_strides), np.zeros(view.buffer.size, bool))
            view.within(filled)[...] = True

    def covers(self, view: View) -> bool:
        """Whether all of a view is filled."""
        filled = self._filled.get((view.buffer, view.loop_strides))
        lengths = [n.per_sample if isinstance(n, Batch) else n for n in view.shape]
        last = view.offset + sum((n - 1) * stride for n, stride in zip(lengths, view.strides, strict=True))
        return filled is not None and view.offset >= 0 and last < len(filled) and bool(view.within(filled).all())
