"""Recurrent networks one step at a time, with the same parameters. The carried arrays are an input and an output."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.combine import Series
from chains.layers.recurrent import Recurrent
from chains.program.recorder import Recorder
from chains.program.view import View


class Carried(NamedTuple):
    """An array that a cell carries: a part of all that the network carries for each sample."""

    cell: int
    start: int
    stop: int
    shape: SampleShape
    initial: str | None  # the parameter that it begins with; None: zeros


class _OneStep(Layer):
    """A recurrent layer at one step."""

    def __init__(self, layer: Recurrent) -> None:
        self.layer = layer

    def declare(self, d: Declaration) -> None:
        d.output(d.child("", self.layer.cell, d.input))
        carried = d.children[-1].carried_shapes
        for name, shape in carried.items() if self.layer.initial_state == "parameter" else ():
            d.param(f"initial_{name}", shape, "zeros")

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        (cell,) = s.children
        shapes = cell.declaration.carried_shapes
        before, after = ({name: ops.carried.pop(0) for name in shapes} for _ in range(2))
        cell.at_a_step(lambda view: view, lambda _, view: view, {"before": before, "after": after}).forward(
            ops, x, after[next(iter(shapes))]
        )
        ops.copy(y, after[next(iter(shapes))])

    def pullback(self, *_: Any) -> None:
        raise NotImplementedError("one step has no pullback: take the gradient of the whole sequence")


def stepwise(layer: Layer) -> Layer:
    """A layer at one step. Raises ValueError for a layer that needs more of the sequence."""
    if isinstance(layer, Series):
        return Series(*map(stepwise, layer.layers))
    if isinstance(layer, Recurrent):
        if layer.bidirectional:
            raise ValueError(f"{layer!r} goes through a sequence from its end too, so that there is no single step")
        return _OneStep(layer)
    return layer


def carried_by(declaration: Declaration) -> list[Carried]:
    """The arrays that the cells of a stepwise network carry, in order."""
    found: list[Carried] = []
    for cell, (layer, shapes) in enumerate(_cells(declaration)):
        for name, shape in shapes.items():
            start = found[-1].stop if found else 0
            initial = layer.slices.get(f"initial_{name}")
            found.append(Carried(cell, start, start + math.prod(shape), shape, None if initial is None else initial.name))
    return found


def _cells(declaration: Declaration) -> Iterator[tuple[Declaration, dict[str, SampleShape]]]:
    """The stepwise layers, each with the shapes of the arrays that its cell carries."""
    if isinstance(declaration.layer, _OneStep):
        yield declaration, declaration.children[0].carried_shapes
        return
    for child in declaration.children:
        yield from _cells(child)
