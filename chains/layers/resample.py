"""Layers that change how large images or signals are, and compute nothing."""

from __future__ import annotations

from typing import Any

from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.images import Number, Padding, per_axis, sides
from chains.program.recorder import Recorder
from chains.program.view import View


class Upsample(Layer):
    """Each entry repeated along every axis but the channels, as by PyTorch's `Upsample` with mode "nearest".

    Samples (channels, length, ...) become (channels, factor * length, ...).

    Parameters
    ----------
    factor : int or tuple of int
        How often: one number, or one for each axis.

    Raises
    ------
    ValueError
        For factors that are not positive whole numbers.
    """

    def __init__(self, factor: Number = 2) -> None:
        self.factor = per_axis("factor", factor, len(factor) if isinstance(factor, tuple) else 1)

    def declare(self, d: Declaration) -> None:
        lengths = zip(d.input[1:], self._factors(d.input), strict=True)
        d.output((d.input[0], *(length * factor for length, factor in lengths)))

    def _factors(self, shape: SampleShape) -> tuple[int, ...]:
        return _for_each_axis("factor", self.factor, shape)

    def _split(self, small: View, large: View) -> tuple[View, View]:
        """Both arrays with two axes for each, of its length in the small one and of its factor."""
        channels, *lengths = small.sample_shape
        one, many = [], []
        for length, factor in zip(lengths, self._factors(small.sample_shape), strict=True):
            one += [length, 1]
            many += [length, factor]
        return small.reshape(channels, *one), large.reshape(channels, *many)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        x, y = self._split(x, y)
        ops.copy(y, x)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        dx, dy = self._split(dx, dy)
        ops.sum(dx, dy)

    def __repr__(self) -> str:
        return f"Upsample({self.factor[0] if len(self.factor) == 1 else self.factor})"


class Pad(Layer):
    """Zeros around images (channels, height, width) or signals (channels, length). The channels are not padded.

    Parameters
    ----------
    padding : int or tuple
        A number for all sides, or a tuple with a number or a pair (before, after) for each axis.

    Raises
    ------
    ValueError
        For numbers that are not whole, or below 0.
    """

    def __init__(self, padding: Padding) -> None:
        self.padding = sides(padding, len(padding) if isinstance(padding, tuple) else 1)

    def declare(self, d: Declaration) -> None:
        pads = _for_each_axis("padding", self.padding, d.input)
        d.output((d.input[0], *(before + length + after for length, (before, after) in zip(d.input[1:], pads, strict=True))))

    def _interior(self, padded: View, shape: SampleShape) -> View:
        for axis, (before, _) in enumerate(_for_each_axis("padding", self.padding, shape), 1):
            padded = padded.slice(axis + 1, before, before + shape[axis])
        return padded

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.fill(y, 0.0)
        ops.copy(self._interior(y, x.sample_shape), x)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        ops.copy(dx, self._interior(dy, x.sample_shape))

    def __repr__(self) -> str:
        one = len(self.padding) == 1 and self.padding[0][0] == self.padding[0][1]
        return f"Pad({self.padding[0][0] if one else self.padding})"


def _for_each_axis(name: str, values: tuple[Any, ...], shape: SampleShape) -> tuple[Any, ...]:
    """The setting for each axis but the channels. Raises ValueError where there are not as many."""
    axes = len(shape) - 1
    if axes < 1 or len(values) not in (1, axes):
        raise ValueError(
            f"`{name}` (={values}) needs channels and {'at least one axis' if len(values) == 1 else f'{len(values)} axes'} "
            f"more, but the input has the sample shape {shape}"
        )
    return values * axes if len(values) == 1 else values
