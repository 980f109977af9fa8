"""The steps of a loop: which part of an array a step sees."""

from __future__ import annotations

from dataclasses import dataclass

from chains.program.view import View


@dataclass(frozen=True)
class Steps:
    """So many steps of a loop, the outermost of depth 0, along a time axis; from its end on if `backwards`."""

    steps: int
    depth: int
    backwards: bool = False

    def now(self, view: View, axis: int, ahead: int = 0) -> View:
        """The entry of an axis that is this step's, or so many `ahead` of that along the axis; without the axis.

        Raises ValueError where the axis is the batch, or shorter than the steps want.
        """
        stride = self._stride(view, axis, self.steps + ahead)
        first = self.steps - 1 if self.backwards else 0
        mark = f"{'-' if self.backwards else ''}{'tuvw'[self.depth % 4]}" + (f"+{ahead}" if ahead else "")
        entry = view.index(axis, first + ahead).named(f"{view}[{mark}]")
        return entry.advancing(self.depth, -stride if self.backwards else stride)

    def part(self, view: View, axis: int, length: int) -> View:
        """The entries of an axis that are this step's where each has so many, one behind another."""
        stride = length * self._stride(view, axis, length * self.steps)
        first = length * (self.steps - 1) if self.backwards else 0
        entries = view.slice(axis, first, first + length).named(f"{view}[{'-' if self.backwards else ''}{length}t:]")
        return entries.advancing(self.depth, -stride if self.backwards else stride)

    def _stride(self, view: View, axis: int, wanted: int) -> int:
        """The stride of an axis with as many entries as are wanted."""
        axis = axis % view.ndim if -view.ndim <= axis < view.ndim else axis
        extent = view.shape[axis] if axis < view.ndim else None
        if not isinstance(extent, int) or extent < wanted:
            raise ValueError(f"loop: axis {axis} of {view.text} has no {wanted} entries for {self.steps} steps")
        return view.strides[axis]
