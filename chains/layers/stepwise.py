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

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        (cell,) = s.children
        shapes = cell.declaration.carried_shapes
        before, after, d_before, given = ({name: ops.carried.pop(0) for name in shapes} for _ in range(4))
        first, d_after = next(iter(shapes)), {}  # a pullback may overwrite its cotangents
        for name, shape in shapes.items():
            d_after[name] = ops.scratch(f"d_after_{name}", shape)
            ops.copy(d_after[name], given[name])
        ops.map(d_after[first], lambda a, b: a + b, given[first], dy)
        views = {"before": before, "after": after, "d_before": d_before, "d_after": d_after}
        node = cell.at_a_step(lambda view: view, lambda _, view: view, views)
        node.pullback(ops, x, after[first], d_after[first], dx)
        for name in shapes if self.layer.initial_state == "parameter" else ():
            ops.fill(getattr(g, f"initial_{name}"), 0.0)


class _Joined(Layer):
    """A stepwise network as a layer without hidden inputs or outputs, so that it has a pullback.

    Its samples are vectors: the input of a step, of this shape but flattened, then the carried arrays before the step. Its
    outputs are those of the network, then the carried arrays after the step.
    """

    def __init__(self, layer: Layer, shape: SampleShape) -> None:
        self.layer, self.shape = layer, shape

    def declare(self, d: Declaration) -> None:
        output = d.child("", self.layer, self.shape)
        carried = carried_by(d.children[-1])[-1].stop
        d.saved("input", self.shape)
        d.saved("output", output)
        d.output((math.prod(output) + carried,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        (node,) = s.children
        for before, after in zip(*(self._carried(node, view, end) for view, end in ((x, s.input), (y, s.output))), strict=True):
            ops.carried += [*before, *after]
        ops.copy(s.input, _front(x, s.input))
        node.forward(ops, s.input, s.output)
        ops.copy(_front(y, s.output), s.output)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        (node,) = s.children
        d_input, d_output = ops.scratch("d_input", s.input.sample_shape), ops.scratch("d_output", s.output.sample_shape)
        ends = ((x, s.input), (y, s.output), (dx, s.input), (dy, s.output))
        for arrays in reversed(list(zip(*(self._carried(node, view, end) for view, end in ends), strict=True))):
            ops.carried += [each for of_cell in arrays for each in of_cell]
        ops.copy(d_output, _front(dy, s.output))
        node.pullback(ops, s.input, s.output, d_output, d_input)
        ops.copy(_front(dx, s.input), d_input)

    @staticmethod
    def _carried(node: Any, view: View, front: View) -> list[list[View]]:
        """The carried arrays of each cell in a vector that begins with `front`."""
        cells: dict[int, list[View]] = {}
        begin = math.prod(front.sample_shape)
        for each in carried_by(node.declaration):
            part = view.slice(1, begin + each.start, begin + each.stop).reshape(*each.shape)
            cells.setdefault(each.cell, []).append(part)
        return list(cells.values())


def _front(view: View, front: View) -> View:
    """The first part of a vector, in the shape of `front`."""
    return view.slice(1, 0, math.prod(front.sample_shape)).reshape(*front.sample_shape)


def stepwise(layer: Layer) -> Layer:
    """A layer at one step. Raises ValueError for a layer that needs more of the sequence."""
    if isinstance(layer, Series):
        return Series(*map(stepwise, layer.layers))
    if isinstance(layer, Recurrent):
        if layer.bidirectional:
            raise ValueError(f"{layer!r} goes through a sequence from its end too, so that there is no single step")
        return _OneStep(layer)
    return layer


def joined(layer: Layer, shape: SampleShape) -> Layer:
    """A stepwise layer, for inputs of this shape, as one whose vectors have the carried arrays too."""
    return _Joined(layer, shape)


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
