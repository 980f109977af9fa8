"""Layers that copy the entries of a sample: to another shape, selected, appended, repeated or padded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from chains.initializers import Constant
from chains.layers.base import Declaration, Layer, SampleShape
from chains.layers.images import Number, Padding, per_axis, sides
from chains.params import bounds_by_name
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import is_real, whole
from chains.support.messages import shown


class Reshape(Layer):
    """Each sample's elements, in C order, in another shape.

    Parameters
    ----------
    *shape : int
        The lengths. One may be -1: it follows from the others.

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


class Flatten(Reshape):
    """Each sample as one axis."""

    def __init__(self) -> None:
        super().__init__(-1)


class Select(Layer):
    """``y = x[..., indices]``: entries of the last axis, in this order. Samples (..., n) become (..., len(indices)).

    Parameters
    ----------
    indices : iterable of int
        The positions, at least one. As in NumPy, negative ones count from the end. A position may occur twice: its gradient is
        the sum.

    Raises
    ------
    TypeError, ValueError
        For indices that are not whole numbers, for an empty list, and for an input that does not have them.
    """

    def __init__(self, indices: Iterable[int]) -> None:
        given = list(indices) if np.iterable(indices) else []
        found = [whole(index, -math.inf) for index in given]
        if not found or None in found:
            raise TypeError(f"`indices` (={shown(indices)}) must be whole numbers, at least one, such as Select([1])")
        self.indices = tuple(index for index in found if index is not None)

    def declare(self, d: Declaration) -> None:
        if not d.input:
            raise ValueError(f"{self!r} needs samples with at least one axis, not scalars")
        length = d.input[-1]
        if any(not -length <= index < length for index in self.indices):
            raise ValueError(f"`indices` (={shown(self.indices)}) must be positions of the last axis of {d.input}")
        d.output((*d.input[:-1], len(self.indices)))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        for part, run in self._runs(x, y):
            ops.copy(part, run)

    def _runs(self, x: View, y: View) -> Iterator[tuple[View, View]]:
        """The parts of `y` that are contiguous in `x`, each with its part of `x`."""
        places = [index % x.sample_shape[-1] for index in self.indices]
        start = 0
        for stop in range(1, len(places) + 1):
            if stop == len(places) or places[stop] != places[stop - 1] + 1:
                yield y.slice(-1, start, stop), x.slice(-1, places[start], places[stop - 1] + 1)
                start = stop

    def __repr__(self) -> str:
        return f"Select({list(self.indices)})"


class Append(Layer):
    """``y = (x, values)``: trained numbers after the last axis of a sample, such as unknown coefficients of a model.

    Samples (..., n) become (..., n + len(values)). The numbers do not depend on the input.

    Parameters
    ----------
    bounds : mapping of pair of float or None, optional
        The lowest and highest values by name, as of `Equations`: ``{"viscosity": (0, None)}`` for a positive number.
    **values : float
        The starting values by name, one at least: ``Append(viscosity=0.02)`` has a parameter ``viscosity`` of shape (1,).

    Raises
    ------
    TypeError, ValueError
        For values that are not finite numbers, or not within their bounds, and without any.
    """

    bounds: Mapping[str, tuple[float | None, float | None]] | None = None  # earlier pickles have none

    def __init__(self, *, bounds: Mapping[str, tuple[float | None, float | None]] | None = None, **values: float) -> None:
        if not values:
            raise ValueError("Append() needs a value at least, such as Append(viscosity=0.02)")
        for name, value in values.items():
            if not is_real(value) or not math.isfinite(value):
                raise TypeError(f"`{name}` (={shown(value)}) must be a finite number")
        self.values = tuple((name, float(value)) for name, value in values.items())
        self.bounds = bounds_by_name(bounds, dict(self.values)) or None

    def declare(self, d: Declaration) -> None:
        if not d.input:
            raise ValueError(f"{self!r} needs samples with at least one axis, not scalars")
        for name, value in self.values:
            d.param(name, (1,), Constant(value), bounds=(self.bounds or {}).get(name))
        d.output((*d.input[:-1], d.input[-1] + len(self.values)))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        width = x.sample_shape[-1]
        ops.copy(y.slice(-1, 0, width), x)
        for k, (name, _) in enumerate(self.values, width):
            ops.copy(y.slice(-1, k, k + 1), getattr(p, name))


class Upsample(Layer):
    """Each entry is repeated along every axis but the channels, as by PyTorch's `Upsample` with mode "nearest".

    Samples (channels, length, ...) become (channels, factor * length, ...).

    Parameters
    ----------
    factor : int or tuple of int
        The number of repetitions: one number, or one for each axis.

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
        """Both arrays with two axes for each axis: its length in the small array, and its factor."""
        channels, *lengths = small.sample_shape
        one, many = [], []
        for length, factor in zip(lengths, self._factors(small.sample_shape), strict=True):
            one += [length, 1]
            many += [length, factor]
        return small.reshape(channels, *one), large.reshape(channels, *many)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        x, y = self._split(x, y)
        ops.copy(y, x)


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

    def __repr__(self) -> str:
        one = len(self.padding) == 1 and self.padding[0][0] == self.padding[0][1]
        return f"Pad({self.padding[0][0] if one else self.padding})"


def _for_each_axis(name: str, values: tuple[Any, ...], shape: SampleShape) -> tuple[Any, ...]:
    """The setting for each axis but the channels. Raises ValueError if their number is different."""
    axes = len(shape) - 1
    if axes < 1 or len(values) not in (1, axes):
        raise ValueError(
            f"`{name}` (={values}) needs channels and {'at least one axis' if len(values) == 1 else f'{len(values)} axes'} "
            f"more, but the input has the sample shape {shape}"
        )
    return values * axes if len(values) == 1 else values
