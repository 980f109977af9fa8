"""Networks along time, one step at a time, with the same parameters. The carried arrays are an input and an output."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.combine import Parallel, Residual, Series
from chains.layers.conv import CausalConv
from chains.layers.norm import GroupNorm
from chains.layers.recurrent import Recurrent
from chains.program.recorder import Recorder
from chains.program.view import View

_COMBINED = (Series, Residual, Parallel)  # whose parts may have a step each


class Carried(NamedTuple):
    """An array that a layer carries: a part of all that the network carries for each sample."""

    layer: Layer
    start: int
    stop: int
    shape: SampleShape
    initial: str | None  # the parameter that it begins with; None: zeros


class _Step(Layer):
    """A layer at one step, which finds the arrays that it carries in ``ops.carried``; see `place_carried`."""

    @abstractmethod
    def carried_shapes(self, d: Declaration) -> dict[str, SampleShape]:
        """The shapes of these arrays by name, from the declaration of the layer."""


class _OneStep(_Step):
    """A recurrent layer at one step."""

    def __init__(self, layer: Recurrent) -> None:
        self.layer = layer

    def carried_shapes(self, d: Declaration) -> dict[str, SampleShape]:
        return d.children[0].carried_shapes

    def declare(self, d: Declaration) -> None:
        d.output(d.child("", self.layer.cell, d.input))
        for name, shape in self.carried_shapes(d).items() if self.layer.initial_state == "parameter" else ():
            d.param(f"initial_{name}", shape, "zeros")

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        (cell,) = s.children
        shapes = cell.declaration.carried_shapes
        before, after = (dict(zip(shapes, views, strict=True)) for views in ops.carried[self])
        cell.at_a_step(lambda view: view, lambda _, view: view, {"before": before, "after": after}).forward(
            ops, x, after[next(iter(shapes))]
        )
        ops.copy(y, after[next(iter(shapes))])

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        (cell,) = s.children
        shapes = cell.declaration.carried_shapes
        before, after, d_before, given = (dict(zip(shapes, views, strict=True)) for views in ops.carried[self])
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


class _EarlierInputs(_Step):
    """The input of one step after the earlier ones that a causal convolution sees: (features,) to (kernel * features,).

    It carries the inputs of the last (kernel - 1) * dilation steps, the earliest first; zeros are those before a sequence.
    """

    def __init__(self, kernel: int, dilation: int) -> None:
        self.kernel, self.dilation = kernel, dilation
        self.steps = (kernel - 1) * dilation

    def carried_shapes(self, d: Declaration) -> dict[str, SampleShape]:
        return {"inputs": (self.steps, *d.input)} if self.steps else {}

    def declare(self, d: Declaration) -> None:
        if len(d.input) != 1:
            raise ValueError(f"a causal convolution needs (features,) at one step, not shape {d.input}")
        d.output((self.kernel * d.input[0],))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        *earlier, last = self._parts(y, x.sample_shape[0])
        ops.copy(last, x)
        if not self.steps:
            return
        (before,), (after,) = ops.carried[self]
        for k, part in enumerate(earlier):
            ops.copy(part, before.index(1, k * self.dilation))
        if self.steps > 1:
            ops.copy(after.slice(1, 0, self.steps - 1), before.slice(1, 1, self.steps))
        ops.copy(after.index(1, self.steps - 1), x)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        *earlier, last = self._parts(dy, x.sample_shape[0])
        if not self.steps:
            ops.copy(dx, last)
            return
        _, _, (d_before,), (d_after,) = ops.carried[self]
        ops.map(dx, lambda a, b: a + b, last, d_after.index(1, self.steps - 1))
        ops.fill(d_before.index(1, 0), 0.0)
        if self.steps > 1:
            ops.copy(d_before.slice(1, 1, self.steps), d_after.slice(1, 0, self.steps - 1))
        for k, part in enumerate(earlier):
            seen = d_before.index(1, k * self.dilation)
            ops.map(seen, lambda a, b: a + b, seen, part)

    def _parts(self, joined: View, features: int) -> list[View]:
        """The features of each step that is seen, the earliest first."""
        return [joined.slice(-1, k * features, (k + 1) * features) for k in range(self.kernel)]


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
        ends = [_rest(view, front) for view, front in ((x, s.input), (y, s.output))]
        place_carried(ops, node.declaration, ends)
        ops.copy(s.input, _front(x, s.input))
        node.forward(ops, s.input, s.output)
        ops.copy(_front(y, s.output), s.output)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        (node,) = s.children
        d_input, d_output = ops.scratch("d_input", s.input.sample_shape), ops.scratch("d_output", s.output.sample_shape)
        ends = ((x, s.input), (y, s.output), (dx, s.input), (dy, s.output))
        place_carried(ops, node.declaration, [_rest(view, front) for view, front in ends])
        ops.copy(d_output, _front(dy, s.output))
        node.pullback(ops, s.input, s.output, d_output, d_input)
        ops.copy(_front(dx, s.input), d_input)


def _front(view: View, front: View) -> View:
    """The first part of a vector, in the shape of `front`."""
    return view.slice(1, 0, math.prod(front.sample_shape)).reshape(*front.sample_shape)


def _rest(view: View, front: View) -> View:
    """The part of a vector after `front`: the carried arrays."""
    return view.slice(1, math.prod(front.sample_shape), view.sample_shape[0])


def carries(declaration: Declaration) -> bool:
    """Whether a network has layers that carry something from step to step: recurrences and causal convolutions."""
    layer = declaration.layer
    if isinstance(layer, CausalConv):
        return layer.kernel > 1
    return isinstance(layer, Recurrent) or (isinstance(layer, _COMBINED) and any(map(carries, declaration.children)))


def stepwise(declaration: Declaration) -> Layer:
    """A declared layer at one step. Raises ValueError for a layer that needs more of the sequence."""
    layer, parts = declaration.layer, declaration.children
    if isinstance(layer, CausalConv):
        return Series(_EarlierInputs(layer.kernel, layer.dilation), layer.dense)
    if isinstance(layer, Series):
        return Series(*map(stepwise, parts))
    if isinstance(layer, Residual):
        inner, shortcut = map(stepwise, parts)
        return Residual(inner, shortcut=shortcut, activation=layer.activation)
    if isinstance(layer, Parallel):
        axis = layer.axis if layer.axis < 0 else layer.axis - len(parts[0].output_shape)  # steps have one axis less
        return Parallel(*map(stepwise, parts), join=layer.join, axis=axis)
    if isinstance(layer, Recurrent):
        if layer.bidirectional:
            raise ValueError(f"{layer!r} goes through a sequence from its end too, so that there is no single step")
        return _OneStep(layer)
    return layer


def check_steps(whole: Declaration, one: Declaration, steps: int) -> None:
    """Raise ValueError for a layer of a network, at `one` step, whose shapes are not those of the `whole` sequence."""
    layer, timed = whole.layer, whole.input == (steps, *one.input)
    if isinstance(layer, _COMBINED):  # first, so that the message names the innermost layer
        for a, b in zip(whole.children, one.children, strict=True):
            check_steps(a, b, steps)
    for sequence, step in ((whole.input, one.input), (whole.output_shape, one.output_shape)):
        if sequence not in (step, (steps, *step)):
            raise ValueError(f"{layer!r} has shape {sequence} for all steps and {step} for one: there is no single step")
    if isinstance(layer, GroupNorm) and timed:
        raise ValueError(f"{layer!r} takes the steps for channels: there is no single step")
    if isinstance(one.layer, _Step) and not timed:
        raise ValueError(f"{layer!r} takes another axis than that of the input for time: there is no single step")


def joined(layer: Layer, shape: SampleShape) -> Layer:
    """A stepwise layer, for inputs of this shape, as one whose vectors have the carried arrays too."""
    return _Joined(layer, shape)


def carried_by(declaration: Declaration) -> list[Carried]:
    """The arrays that the layers of a stepwise network carry, in order."""
    found: list[Carried] = []
    for d, step in _steps(declaration):
        for name, shape in step.carried_shapes(d).items():
            start, initial = found[-1].stop if found else 0, d.slices.get(f"initial_{name}")
            parameter = None if initial is None else initial.name
            found.append(Carried(step, start, start + math.prod(shape), shape, parameter))
    return found


def place_carried(ops: Recorder, declaration: Declaration, vectors: Sequence[View]) -> None:
    """Give the layers of a stepwise network their parts of vectors of all that is carried.

    The vectors are those before and after the step; for a pullback, then their gradients.
    """
    ops.carried = {step: [[] for _ in vectors] for _, step in _steps(declaration)}
    for each in carried_by(declaration):
        for vector, views in zip(vectors, ops.carried[each.layer], strict=True):
            views.append(vector.slice(1, each.start, each.stop).reshape(*each.shape))


def _steps(declaration: Declaration) -> Iterator[tuple[Declaration, _Step]]:
    """The layers of a stepwise network that carry arrays. Each is in one place, since `stepwise` makes new ones."""
    if isinstance(declaration.layer, _Step):
        yield declaration, declaration.layer
        return
    for child in declaration.children:
        yield from _steps(child)
