"""Layers that change a sample's shape and nothing else. They cost nothing: the copies they record are left out."""

from __future__ import annotations

import math
from typing import Any

from chains.layers.base import Declaration, Layer, SampleShape
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import whole
from chains.support.messages import shown


class Reshape(Layer):
    """Each sample's elements, in C order, in another shape.

    Parameters
    ----------
    *shape : int
        The lengths. One may be -1, for what the others leave.

    Raises
    ------
    TypeError, ValueError
        For lengths that are not valid, and for samples with another number of elements.
    """

    def __init__(self, *shape: int) -> None:
        if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
            raise TypeError(
                f"`shape` (={shape[0]!r}): pass lengths as separate arguments, Reshape({', '.join(map(str, shape[0]))})"
            )
        lengths = [whole(length, -1) or None for length in shape]
        if lengths.count(-1) > 1 or None in lengths:
            raise ValueError(f"`shape` (={shown(shape)}) must be positive lengths, of which one may be -1")
        self.shape = tuple(length for length in lengths if length is not None)

    def declare(self, d: Declaration) -> None:
        d.output(self._resolved(d.input))

    def _resolved(self, input: SampleShape) -> SampleShape:
        size, known = math.prod(input), math.prod(length for length in self.shape if length != -1)
        shape = tuple(size // known if length == -1 else length for length in self.shape)
        if math.prod(shape) != size:
            raise ValueError(f"`shape` (={self.shape}) cannot hold the {size} elements of an input of shape {input}")
        return shape

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.copy(y, x.reshape(*y.sample_shape))

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        ops.copy(dx, dy.reshape(*dx.sample_shape))

    def __repr__(self) -> str:
        return f"Reshape({', '.join(map(str, self.shape))})"


class Flatten(Reshape):
    """Each sample as one axis."""

    def __init__(self) -> None:
        super().__init__(-1)

    def __repr__(self) -> str:
        return "Flatten()"
