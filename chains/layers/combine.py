"""Layers made of layers: one after another, around a shortcut, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from chains.activations import Activation, identity, resolve
from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.elementwise import record_slope
from chains.layers.shape import Reshape
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_word, whole
from chains.support.messages import shown


class Series(Layer):
    """Layers one after another. `chains.Chain` is a series with the calls of a network.

    Parameters
    ----------
    *layers : Layer
        The layers, each of which takes the output of the one before; without any, ``y = x``.

    Raises
    ------
    TypeError
        For anything but layers.
    """

    def __init__(self, *layers: Layer) -> None:
        check_layers(layers)
        self.layers = layers

    def fixed_input(self) -> SampleShape | None:
        return self.layers[0].fixed_input() if self.layers else None

    def declare(self, d: Declaration) -> None:
        shape = d.input
        for k, layer in enumerate(self.layers):
            try:
                output = d.child(str(k), layer, shape)
            except ValueError as error:
                source = f"the output of layer {k - 1}, {self.layers[k - 1]!r}," if k else "the input"
                raise ValueError(f"layer {k}, {layer!r}, does not take {source} of shape {shape}: {error}") from None
            if k and d.children[k].id_count is not None:
                raise ValueError(f"layer {k}, {layer!r}, takes ids, which the first layer can only: layers give real numbers")
            if k < len(self.layers) - 1:
                d.saved(f"y{k}", output)
            shape = output
            d.children[k].has_other_steps |= d.output_times is not None and d.children[k].has_time_axis
            if not d.children[k].keeps_time:
                d.output_times = d.children[k].output_times or 0
        d.output(shape)
        _share_input(d, d.children[:1])

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        if not self.layers:
            ops.copy(y, x)
        steps = self._steps(x, y, s)
        for child, (before, after) in zip(s.children, pairwise(steps), strict=True):
            child.forward(ops, before, after)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        if not self.layers:
            ops.copy(dx, dy)
        steps = self._steps(x, y, s)
        for k in reversed(range(len(self.layers))):
            before = ops.scratch(f"dy{k - 1}", steps[k].sample_shape) if k else dx
            s.children[k].pullback(ops, steps[k], steps[k + 1], dy, before)
            dy = before

    def _steps(self, x: View, y: View, s: Any) -> list[View]:
        """The input, each layer's output, the last of them `y`."""
        if not self.layers:
            return [x]
        return [x, *(getattr(s, f"y{k}") for k in range(len(self.layers) - 1)), y]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.layers))})"


def _share_input(d: Declaration, parts: Sequence[Declaration]) -> None:
    """Let the input hold ids if the parts that read it take ids. Raises ValueError unless all of them do, or none."""
    counts = [part.id_count for part in parts if part.id_count is not None]
    if counts and len(counts) < len(parts):
        layers = [part.layer for part in parts]
        raise ValueError(f"some of the layers that share an input take ids, and others real numbers: {layers}")
    if counts:
        d.takes_ids(min(counts))


def check_layers(layers: Sequence[Any]) -> None:
    """Raise TypeError unless all of them are layers."""
    for k, layer in enumerate(layers):
        if not isinstance(layer, Layer):
            raise TypeError(f"layer {k} (={shown(layer)}) is {_kind(layer)}")


def _kind(thing: Any) -> str:
    """The words for an argument that should be a layer, with a hint."""
    if isinstance(thing, Activation):
        return f"an activation function, not a layer: write chains.Activation({thing})"
    if isinstance(thing, type) and issubclass(thing, Layer):
        return f"a class, not a layer: write {thing.__name__}()"
    several = hasattr(thing, "__iter__") and not isinstance(thing, str)
    return f"a {type(thing).__name__}, not a layer" + ": write Chain(*layers)" * several


def last_layer(layer: Layer) -> Layer:
    """The last layer that computes something: no series of others, and no mere change of shape."""
    while isinstance(layer, Series) and layer.layers:
        computing = [part for part in layer.layers if not isinstance(part, Reshape)]
        layer = (computing or layer.layers)[-1]
    return layer


class Residual(Layer):
    """``y = activation(inner(x) + shortcut(x))``. Source: He et al. 2015.

    Parameters
    ----------
    *layers : Layer
        `inner`: one layer, or several, one after another.
    shortcut : Layer, optional
        By default x itself. If `inner` changes the shape, a projection such as ``Conv(64, 256, 1)``.
    activation : activation or str
        Of the sum.

    Raises
    ------
    TypeError, ValueError
        For anything but layers, and outputs that differ in shape.
    """

    def __init__(self, *layers: Layer, shortcut: Layer | None = None, activation: Activation | str = identity) -> None:
        check_layers(layers)
        if shortcut is not None and not isinstance(shortcut, Layer):
            raise TypeError(f"`shortcut` (={shown(shortcut)}) must be a layer, or None")
        self.inner = layers[0] if len(layers) == 1 else Series(*layers)
        self.shortcut = shortcut
        self.activation = resolve(activation)

    @property
    def layers(self) -> tuple[Layer]:
        """The layers next to the shortcut, as one layer."""
        return (self.inner,)

    def fixed_input(self) -> SampleShape | None:
        shape = self.inner.fixed_input()
        return shape if shape is not None or self.shortcut is None else self.shortcut.fixed_input()

    def declare(self, d: Declaration) -> None:
        output = d.child("inner", self.inner, d.input)
        skipped = d.child("shortcut", Series() if self.shortcut is None else self.shortcut, d.input)
        if output != skipped:
            raise ValueError(
                f"`inner` (={self.inner!r}) turns shape {d.input} into {output}, but `shortcut` (={self.shortcut!r}) gives "
                f"{skipped}, so the two cannot be added"
            )
        d.output(output)
        _share_input(d, d.children)
        d.saved("inner", output)
        d.saved("shortcut", output)
        d.temporary("d_inner", output)
        d.temporary("dx_shortcut", d.input)
        if self.activation.needs_input:
            d.saved("z", output)  # inner(x) + shortcut(x)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        f, (inner, shortcut) = self.activation, s.children
        inner.forward(ops, x, s.inner)
        shortcut.forward(ops, x, s.shortcut)
        if f.needs_input:
            ops.map((s.z, y), lambda x, inner: (x + inner, f(x + inner)), s.shortcut, s.inner)
        else:
            ops.map(y, lambda x, inner: f(x + inner), s.shortcut, s.inner)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        inner, shortcut = s.children
        record_slope(ops, self.activation, dy, dy, y, s)
        ops.copy(s.d_inner, dy)  # each pullback may overwrite its own
        inner.pullback(ops, x, s.inner, s.d_inner, dx)
        shortcut.pullback(ops, x, s.shortcut, dy, s.dx_shortcut)
        ops.map(dx, lambda dx, shortcut: dx + shortcut, dx, s.dx_shortcut)


class Parallel(Layer):
    """Several layers on one input, their outputs joined.

    Parameters
    ----------
    *layers : Layer
        The layers, one at least.
    join : str
        "concatenate" or "sum".
    axis : int
        The axis of a sample to concatenate along: 0 for features or channels, -1 for the last.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, and outputs that cannot be joined.
    """

    def __init__(self, *layers: Layer, join: str = "concatenate", axis: int = 0) -> None:
        if not layers:
            raise ValueError("`layers` must be at least one layer")
        check_layers(layers)
        check_word("join", join, "concatenate", "sum")
        if whole(axis, -math.inf) is None:
            raise TypeError(f"`axis` (={shown(axis)}) must be a whole number")
        self.layers = layers
        self.join = join
        self.axis = axis

    def fixed_input(self) -> SampleShape | None:
        return next((shape for layer in self.layers if (shape := layer.fixed_input()) is not None), None)

    def declare(self, d: Declaration) -> None:
        shapes = [d.child(str(k), layer, d.input) for k, layer in enumerate(self.layers)]
        if self.join == "sum":
            if len(set(shapes)) > 1:
                raise ValueError(f"the outputs to be summed differ in shape: {shapes}")
            d.output(shapes[0])
        else:
            d.output(self._concatenated(shapes))
        _share_input(d, d.children)
        for k, shape in enumerate(shapes):
            d.saved(f"y{k}", shape)
            d.temporary(f"dy{k}", shape)
            d.temporary(f"dx{k}", d.input)

    def _concatenated(self, shapes: list[SampleShape]) -> SampleShape:
        ndim = len(shapes[0])
        if not -ndim <= self.axis < ndim:
            raise ValueError(f"`axis` (={self.axis}) must be an axis of the outputs, whose shape is {shapes[0]}")
        axis = self.axis % ndim
        if any(
            len(shape) != ndim or shape[:axis] + shape[axis + 1 :] != shapes[0][:axis] + shapes[0][axis + 1 :]
            for shape in shapes
        ):
            raise ValueError(f"the outputs to be concatenated along axis {self.axis} differ elsewhere: {shapes}")
        return (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        outputs = [getattr(s, f"y{k}") for k in range(len(self.layers))]
        for child, output in zip(s.children, outputs, strict=True):
            child.forward(ops, x, output)
        if self.join == "sum":
            ops.map(y, lambda *terms: sum(terms), *outputs)
        else:
            for part, output in zip(self._parts(y, outputs), outputs, strict=True):
                ops.copy(part, output)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        outputs = [getattr(s, f"y{k}") for k in range(len(self.layers))]
        parts = [dy] * len(outputs) if self.join == "sum" else self._parts(dy, outputs)
        branches = []
        for k, (child, output, part) in enumerate(zip(s.children, outputs, parts, strict=True)):
            cotangent, branch = getattr(s, f"dy{k}"), getattr(s, f"dx{k}")
            ops.copy(cotangent, part)  # each branch may overwrite its own
            child.pullback(ops, x, output, cotangent, branch)
            branches.append(branch)
        ops.map(dx, lambda *terms: sum(terms), *branches)

    def _parts(self, joined: View, outputs: list[View]) -> list[View]:
        """The piece of the concatenated array that belongs to each output."""
        axis = self.axis % (joined.ndim - 1) + 1
        ends = [0]
        for output in outputs:
            ends.append(ends[-1] + int(output.shape[axis]))  # type: ignore[arg-type]
        return [joined.slice(axis, start, stop) for start, stop in pairwise(ends)]
