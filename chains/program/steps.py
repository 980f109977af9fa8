"""The steps of a loop, and the part of an array that each step uses."""

from __future__ import annotations

from dataclasses import dataclass

from chains.program.view import View


@dataclass(frozen=True)
class Steps:
    """The steps of a loop along a time axis, from its end if `backwards`. The outermost loop has depth 0."""

    steps: int
    depth: int
    backwards: bool = False

    def now(self, view: View, axis: int, ahead: int = 0) -> View:
        """The entry of an axis for the current step, or the entry `ahead` places after it; without the axis.

        Raises ValueError where the axis is the batch, or has too few entries.
        """
        stride = self._stride(view, axis, self.steps + ahead)
        first = self.steps - 1 if self.backwards else 0
        mark = f"{'-' if self.backwards else ''}{'tuvw'[self.depth % 4]}" + (f"+{ahead}" if ahead else "")
        entry = view.index(axis, first + ahead).named(f"{view}[{mark}]")
        return entry.advancing(self.depth, -stride if self.backwards else stride)

    def part(self, view: View, axis: int, length: int) -> View:
        """The entries of an axis for the current step, where each step has `length` consecutive ones."""
        stride = length * self._stride(view, axis, length * self.steps)
        first = length * (self.steps - 1) if self.backwards else 0
        entries = view.slice(axis, first, first + length).named(f"{view}[{'-' if self.backwards else ''}{length}t:]")
        return entries.advancing(self.depth, -stride if self.backwards else stride)

    def _stride(self, view: View, axis: int, wanted: int) -> int:
        """The stride of an axis. Raises ValueError unless it has as many entries as wanted."""
        axis = axis % view.ndim if -view.ndim <= axis < view.ndim else axis
        extent = view.shape[axis] if axis < view.ndim else None
        if not isinstance(extent, int) or extent < wanted:
            raise ValueError(f"loop: axis {axis} of {view.text} has no {wanted} entries for {self.steps} steps")
        return view.strides[axis]
