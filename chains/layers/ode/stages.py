"""A layer as the right-hand side of a differential equation: what it saves in each stage of a step, and what it may not do."""

from __future__ import annotations

from collections.abc import Callable

from chains.layers.base import Declaration
from chains.layers.dropout import Dropout
from chains.layers.node import Node
from chains.program.recorder import Recorder
from chains.program.steps import Steps
from chains.program.view import View


class Copies:
    """What the right-hand side saves in one evaluation; `entry` gives the part of a saved array.

    Arrays of more than one axis are copied: layers take them for matrices of (samples x rows), whose rows must not have gaps.
    """

    def __init__(self, ops: Recorder, entry: Callable[[View], View]) -> None:
        self._ops, self._entry = ops, entry
        self._copies: dict[View, tuple[View, View]] = {}

    def array(self, view: View) -> View:
        """The array that stands for a saved one in this evaluation."""
        entry = self._entry(view)
        if entry.ndim <= 2:
            return entry
        if view not in self._copies:
            self._copies[view] = entry, self._ops.scratch(f"{view.buffer.name} of a stage", entry.sample_shape)
        return self._copies[view][1]

    def keep(self) -> None:
        """Record that the arrays are kept for the pullback."""
        for entry, own in self._copies.values():
            self._ops.copy(entry, own)

    def fetch(self) -> None:
        """Record that the arrays are as they were kept."""
        for entry, own in self._copies.values():
            self._ops.copy(own, entry)


class Kept(Copies):
    """What the right-hand side saves for one stage of each step."""

    def __init__(self, ops: Recorder, at: Steps, stage: int) -> None:
        super().__init__(ops, lambda view: at.now(view, 1).index(1, stage))


def at_once(ops: Recorder, rhs: Node) -> Node:
    """The right-hand side with saved arrays of one evaluation, which are overwritten by the next one."""
    made: dict[View, View] = {}

    def one(view: View) -> View:
        if view not in made:
            made[view] = ops.scratch(f"{view.buffer.name}, once", view.sample_shape[2:])
        return made[view]

    return rhs.at_a_step(one, lambda _, view: view, {})


def check_deterministic(declaration: Declaration) -> None:
    """Raise ValueError for a right-hand side with dropout."""
    if isinstance(declaration.layer, Dropout) and declaration.layer.rate > 0.0:
        raise ValueError(
            f"`rhs` has {declaration.layer!r}, which would drop the same numbers at every step: put it before or behind the ODE"
        )
    for child in declaration.children:
        check_deterministic(child)
