"""Recurrences: a cell is a step, and `Recurrent` repeats it along the first axis of its samples, the time.

    class Decay(Cell):
        def declare(self, d):
            d.carry("h", d.input)

        def forward(self, ops, x, y, p, s):
            ops.map(y, lambda x, h: x + 0.5 * h, x, s.before.h)

The pullback is derived from the operations of `forward`, unless the class has one:

        def pullback(self, ops, x, y, dy, dx, p, g, s):
            ops.copy(dx, dy)
            ops.map(s.d_before.h, lambda dy: 0.5 * dy, dy)

The loop is recorded once, and a cell is written for one step. Products of a cell's input alone, and the gradients of its
weights, become one product for all steps (`chains.program.hoist`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chains.expr import where
from chains.layers.base import Declaration, Layer
from chains.layers.node import Node, check_filled, check_kept
from chains.layers.segments import Segment, SegmentArrays, Segments, StepSums
from chains.program.loop import Steps
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_flags, check_is, check_word

Arrays = dict[str, View]


class Cell(Layer):
    """A step of a recurrence: a layer with arrays that are carried from step to step.

    `declare` names these arrays by ``d.carry(name, shape)``. ``d.input`` is the shape of a sample's input at one step; the
    first of the arrays is the cell's output. `forward` reads `x` and ``s.before.<name>``. It fills `y`, which is the first of
    ``s.after.<name>``, and the others.

    A `pullback`, which need not be written, reads ``s.d_after.<name>``, the first of which is `dy`; they may be overwritten. It
    fills `dx`, ``g.<parameter>`` and ``s.d_before.<name>``. Arrays of ``d.saved`` are kept for each step.
    """


class Recurrent(Layer):
    """A cell repeated along the first axis of its samples, (steps, ...).

    If a call passes `lengths`, states do not change after a sample's length, and outputs of these steps are zero, as for packed
    sequences of PyTorch.

    Parameters
    ----------
    cell : Cell
        A step: without a state of the network, and without arrays of the whole batch.
    return_sequences : bool
        Whether to return the outputs of all steps, (steps, ...), instead of the last one.
    bidirectional : bool
        Whether a second cell of the same kind, with separate parameters, runs from the end to the beginning. Its output follows
        that of the first along the last axis.
    initial_state : str
        "zeros", or "parameter" for a trained state that starts as zeros.
    checkpoint_every : int, optional
        Keep only the state of every k-th step; the pullback repeats the steps between. This needs less memory and one more
        forward pass. By default everything is kept.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    def __init__(
        self, cell: Cell, *, return_sequences: bool = False, bidirectional: bool = False, initial_state: str = "zeros",
        checkpoint_every: int | None = None,
    ) -> None:  # fmt: skip
        check_is("cell", cell, Cell, "a cell, such as GRUCell(4, 32)")
        check_flags(return_sequences=return_sequences, bidirectional=bidirectional)
        check_word("initial_state", initial_state, "zeros", "parameter")
        self.cell = cell
        self.return_sequences = return_sequences
        self.bidirectional = bidirectional
        self.initial_state = initial_state
        self.checkpoint_every = None if checkpoint_every is None else check_count("checkpoint_every", checkpoint_every)

    def declare(self, d: Declaration) -> None:
        if not d.input:
            raise ValueError(f"{self!r} needs samples with a time axis, (steps, ...), not scalars")
        steps, d.timed, d.output_times = d.input[0], True, None if self.return_sequences else 0
        segments = self.segments(steps)
        for name in self._directions:
            output = d.child(name, self.cell, d.input[1:])
            carried = d.children[-1].carried_shapes
            if not carried:
                raise ValueError(f"{self.cell!r} carries nothing from step to step: it must call d.carry(name, shape)")
            if self.bidirectional and not output:
                raise ValueError("`bidirectional` (=True) needs outputs with an axis to put the two directions along")
            keep_each_step(d.children[-1], segments.last)
            for array, shape in carried.items():
                if self.initial_state == "parameter":
                    d.param(_joined("initial", name, array), shape, "zeros")
                d.saved(_joined("before", name, array), (segments.last, *shape))
                d.saved(_joined("after", name, array), (segments.last, *shape))
                if segments.before_last:
                    d.saved(_joined("checkpoint", name, array), (segments.before_last, *shape))
        output = (*output[:-1], 2 * output[-1]) if self.bidirectional else output
        d.output((steps, *output) if self.return_sequences else output)

    def segments(self, steps: int, backwards: bool = False) -> Segments:
        """The steps between checkpoints."""
        return Segments(steps, self.checkpoint_every, backwards)

    @property
    def _directions(self) -> tuple[str, ...]:
        return ("forward", "backward") if self.bidirectional else ("",)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        for direction, node in zip(self._directions, s.children, strict=True):
            _Direction(self, ops, direction, node, x, self._part(y, direction), s).forward(p)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        for direction, node in zip(self._directions, s.children, strict=True):
            one = _Direction(self, ops, direction, node, x, self._part(y, direction), s)
            if direction != "backward":
                one.pullback(self._part(dy, direction), dx, g)
                continue
            other = ops.scratch("dx", dx.sample_shape)
            one.pullback(self._part(dy, direction), other, g)
            ops.map(dx, lambda a, b: a + b, dx, other)

    def _part(self, output: View, direction: str) -> View:
        """A direction's part of the output, or of its gradient."""
        if not direction:
            return output
        half = int(output.shape[-1]) // 2  # type: ignore[arg-type]
        return output.slice(-1, 0, half) if direction == "forward" else output.slice(-1, half, 2 * half)


class _Direction:
    """The loop of one cell along the time axis, being recorded."""

    def __init__(self, layer: Recurrent, ops: Recorder, direction: str, node: Node, x: View, y: View, s: Any) -> None:
        self.layer, self.ops, self.direction, self.node = layer, ops, direction, node
        self.x, self.y, self.s = x, y, s
        self.backwards = direction == "backward"
        steps = int(x.shape[1])  # type: ignore[arg-type]
        self.segments = layer.segments(steps, self.backwards)
        self.shapes = node.declaration.carried_shapes
        self.first = next(iter(self.shapes))
        self.mask = mask_of(ops, ops.lengths, steps)  # 1 if a sample has a step; None if all samples have all steps

    def forward(self, p: Any) -> None:
        ops, carried = self.ops, self._arrays("carried")
        for name, view in carried.items():
            if self.layer.initial_state == "parameter":
                ops.copy(view, getattr(p, _joined("initial", self.direction, name)))
            else:
                ops.fill(view, 0.0)
        for segment in self.segments.forward(ops):
            for name, view in carried.items() if not segment.last else ():
                ops.copy(segment.entry(self._saved("checkpoint", name)), view)
            arrays = SegmentArrays(ops, segment)
            y = segment.part(self.y) if self.layer.return_sequences else None
            self._steps(arrays, carried, arrays.read(self.x), y)
        if not self.layer.return_sequences:
            ops.copy(self.y, carried[self.first])

    def _steps(self, arrays: SegmentArrays, carried: Arrays, x: View, y: View | None) -> None:
        """Record the steps of a segment. They fill `y`, the outputs, if it is given."""
        ops, mask = self.ops, self._mask_of(arrays.segment)
        with ops.loop(arrays.segment.steps, backwards=self.backwards) as at:
            before, after = self._before(arrays, at), self._after(arrays, at, y)
            for name, view in carried.items():
                ops.copy(before[name], view)
            begun, part = len(ops.operations), lambda view: at.now(arrays.saved(view), 1)
            node = self.node.at_a_step(part, lambda _, view: view, {"before": before, "after": after})
            node.forward(ops, at.now(x, 1), after[self.first])
            self._check("forward", begun, {f"s.after.{name}": view for name, view in after.items()}, before)
            for name, view in carried.items():
                if mask is None:
                    ops.copy(view, after[name])
                else:
                    ops.map(view, _chosen, _beside(view, at.now(mask, 1)), after[name], before[name])
            if mask is not None and y is not None:
                out = at.now(y, 1)
                ops.map(out, lambda m, y: where(m > 0.0, y, 0.0), _beside(out, at.now(mask, 1)), after[self.first])

    def pullback(self, dy: View, dx: View, g: Any) -> None:
        ops, sequences = self.ops, self.layer.return_sequences
        d_after, sums = self._arrays("d_after"), StepSums(ops, self.segments)
        for name, view in d_after.items():
            if name == self.first and not sequences:
                ops.copy(view, dy)
            else:
                ops.fill(view, 0.0)
        for segment in self.segments.backward(ops):
            arrays = SegmentArrays(ops, segment)
            x, y = arrays.read(self.x), segment.part(self.y) if sequences and segment.last else None
            if not segment.last:
                carried = self._arrays("carried")
                for name, view in carried.items():
                    ops.copy(view, segment.entry(self._saved("checkpoint", name)))
                self._steps(arrays, carried, x, None)
            d_inputs = arrays.write(dx)
            self._pull_steps(arrays, (x, y), (segment.part(dy) if sequences else None, d_inputs), d_after, sums)
            arrays.written(dx, d_inputs)
            sums.add_steps()
        sums.add_segments()
        for name, view in d_after.items() if self.layer.initial_state == "parameter" else ():
            ops.sum(getattr(g, _joined("initial", self.direction, name)), view)

    def _pull_steps(
        self, arrays: SegmentArrays, values: tuple[View, View | None], cotangents: tuple[View | None, View], d_after: Arrays,
        sums: StepSums,
    ) -> None:  # fmt: skip
        """Record the pullback of the steps of a segment, for (x, y) and (dy, dx)."""
        ops, segment, mask, (x, y), (dy, dx) = self.ops, arrays.segment, self._mask_of(arrays.segment), values, cotangents
        d_before, passed = self._arrays("d_before"), self._arrays("passed")  # by steps that a sample does not have
        with ops.loop(segment.steps, backwards=not self.backwards) as at:
            self._split_gradients(
                d_after, passed, None if dy is None else at.now(dy, 1), None if mask is None else at.now(mask, 1)
            )
            before, after = self._before(arrays, at), self._after(arrays, at, y)
            views = {"before": before, "after": after, "d_before": d_before, "d_after": d_after}
            begun, part = len(ops.operations), lambda view: at.now(arrays.saved(view), 1)
            node = self.node.at_a_step(part, lambda name, view: sums.of_step(segment, at, name, view), views)
            node.pullback(ops, at.now(x, 1), after[self.first], d_after[self.first], at.now(dx, 1))
            self._check("pullback", begun, {f"s.d_before.{name}": view for name, view in d_before.items()}, {})
            for name, view in d_after.items():
                if mask is None:
                    ops.copy(view, d_before[name])
                else:
                    ops.map(view, lambda a, b: a + b, d_before[name], passed[name])

    def _split_gradients(self, d_after: Arrays, passed: Arrays, dy: View | None, mask: View | None) -> None:
        """Record the gradients that enter a step, with that of its output, and those that skip it."""
        ops, out = self.ops, d_after[self.first]
        if mask is not None:
            for name, view in d_after.items():
                ops.map((view, passed[name]), _divided, _beside(view, mask), view)
        if dy is not None and mask is not None:
            ops.map(out, lambda a, b, m: where(m > 0.0, a + b, 0.0), out, dy, _beside(out, mask))
        elif dy is not None:
            ops.map(out, lambda a, b: a + b, out, dy)

    def _arrays(self, kind: str) -> Arrays:
        """An array of a sample for each that is carried."""
        return {name: self.ops.scratch(_joined(kind, self.direction, name), shape) for name, shape in self.shapes.items()}

    def _saved(self, kind: str, name: str) -> View:
        """An array that the layer keeps for one that is carried."""
        return getattr(self.s, _joined(kind, self.direction, name))

    def _mask_of(self, segment: Segment) -> View | None:
        return None if self.mask is None else segment.part(self.mask)

    def _before(self, arrays: SegmentArrays, at: Steps) -> Arrays:
        """The carried arrays before a step."""
        return {name: at.now(arrays.saved(self._saved("before", name)), 1) for name in self.shapes}

    def _after(self, arrays: SegmentArrays, at: Steps, y: View | None) -> Arrays:
        """The carried arrays after a step, the first of which may be the output."""
        after = {name: at.now(arrays.saved(self._saved("after", name)), 1) for name in self.shapes}
        return after if y is None or self.mask is not None else {**after, self.first: at.now(y, 1)}

    def _check(self, function: str, begun: int, filled: Mapping[str, View], kept: Mapping[str, View]) -> None:
        name, recorded = f"{type(self.layer.cell).__name__}.{function}", self.ops.operations[begun:]
        check_filled(name, recorded, filled)
        check_kept(name, recorded, {f"s.before.{name}": view for name, view in kept.items()}, "fill s.after instead")


def _beside(view: View, mask: View) -> View:
    """A mask of one step, (batch, 1), that broadcasts to an array of samples of any shape."""
    return mask.reshape(*[1] * (view.ndim - 1))


def mask_of(ops: Recorder, lengths: View | None, steps: int) -> View | None:
    """Record, for each step and sample, 1 where the sample has that step and 0 after its length; None without lengths."""
    if lengths is None:
        return None
    mask = ops.scratch("mask", (steps, 1))
    numbers = ops.constant("numbers of steps", np.arange(steps).reshape(steps, 1))
    ops.map(mask, lambda t, n: where(t < n, 1.0, 0.0), numbers, lengths.expand(1).expand(2))
    return mask


def _chosen(m: Any, after: Any, before: Any) -> Any:
    """The state after a step that a sample has, and before one that it does not have."""
    return where(m > 0.0, after, before)


def _divided(m: Any, d: Any) -> tuple[Any, Any]:
    """The gradient that enters a step that the sample has, and the gradient that skips a step that it does not have."""
    return where(m > 0.0, d, 0.0), where(m > 0.0, 0.0, d)


def keep_each_step(declaration: Declaration, *axes: int) -> None:
    """Keep a layer's saved arrays for each step of a loop. Raises ValueError for a layer with arrays of the whole batch.

    `axes` are the number of steps and, if a step has several evaluations, their number.
    """
    if declaration.shared_shapes or declaration.state_slices:
        raise ValueError(f"{declaration.layer!r} has a state or arrays of the whole batch, which no step of a loop may have")
    declaration.kept_axes = (*axes, *declaration.kept_axes)
    declaration.saved_shapes = {name: (*axes, *shape) for name, shape in declaration.saved_shapes.items()}
    for child in declaration.children:
        keep_each_step(child, *axes)


def _joined(kind: str, direction: str, name: str) -> str:
    return "_".join(part for part in (direction, kind, name) if part)
