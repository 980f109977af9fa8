"""Networks that are monotone or convex for all values of their parameters.

Both have one structure: a layer of units takes the outputs of the layer before it, with weights that are not negative, and the
inputs again. An activation that does not decrease keeps the sign of a slope. One that is also convex keeps convexity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from chains.activations import Activation as Function
from chains.activations import identity, resolve, softplus, tanh
from chains.layers.base import Layer, SampleShape
from chains.layers.combine import Parallel, Residual, Series
from chains.layers.dense import Dense
from chains.layers.elementwise import Activation
from chains.layers.shape import Select
from chains.support.checks import check_count, check_counts, whole
from chains.support.messages import shown

_POSITIVE, _NEGATIVE = (0.0, None), (None, 0.0)


class _Constrained(Series):
    """The settings and parts that both share."""

    inputs: int
    widths: tuple[int, ...]
    increasing: tuple[int, ...]
    decreasing: tuple[int, ...]
    activation: Function

    def _build(self, inputs: int, widths: Any, increasing: Any, decreasing: Any, activation: Any, convex: bool) -> None:
        """Check the settings of a layer, and make its parts."""
        self.inputs = check_count("inputs", inputs)
        self.widths = check_counts("widths", widths if isinstance(widths, (list, tuple)) else (widths,))
        self.increasing = _positions("increasing", increasing, self.inputs)
        self.decreasing = _positions("decreasing", decreasing, self.inputs)
        if both := set(self.increasing) & set(self.decreasing):
            raise ValueError(f"`increasing` and `decreasing` must have no input in common, both have {min(both)}")
        self.activation = resolve(activation, "softplus" if convex else "tanh")
        _check_shape_of(self.activation, convex)
        first = self._of_inputs(self.widths[0], bias=True)
        series = Series(first, Activation(self.activation)) if len(self.widths) > 1 else first
        for k, (before, units) in enumerate(pairwise(self.widths), 2):
            hidden = Dense(before, units, weight_init=_positive, weight_bounds=_POSITIVE)
            f = self.activation if k < len(self.widths) else identity
            series = Residual(series, hidden, shortcut=self._of_inputs(units, bias=False), activation=f)
        super().__init__(series)

    def _of_inputs(self, units: int, bias: bool) -> Layer:
        """Linear functions of the inputs, with the sign of slope that each input must have."""
        signed = {*self.increasing, *self.decreasing}
        free = tuple(k for k in range(self.inputs) if k not in signed)
        kinds = [
            (free, {}),
            (self.increasing, {"weight_init": _positive, "weight_bounds": _POSITIVE}),
            (self.decreasing, {"weight_init": _negative, "weight_bounds": _NEGATIVE}),
        ]
        parts: list[Layer] = []
        for positions, settings in kinds:
            if positions:
                linear = Dense(len(positions), units, bias=bias and not parts, **settings)  # type: ignore[arg-type]
                parts.append(linear if len(positions) == self.inputs else Series(Select(positions), linear))
        return parts[0] if len(parts) == 1 else Parallel(*parts, join="sum")

    def fixed_input(self) -> SampleShape:
        return (self.inputs,)

    __repr__ = Layer.__repr__


class Monotone(_Constrained):
    """A network that increases in some inputs and decreases in others, over the last axis: (..., inputs) to (..., outputs).

    ``y1 = activation(x @ A1 + b1)``, ``yk = activation(y @ Wk + x @ Ak + bk)`` with y of the layer before, the last layer
    without activation. All ``Wk > 0``. The rows of each Ak are positive for `increasing` inputs, negative for `decreasing` ones
    and unbounded for others. With a convex activation, such as `softplus`, the outputs are convex too; `tanh` gives curves that
    bend both ways. Sources: Daniels and Velikova 2010; Runje and Shankaranarayana 2023.

    Parameters
    ----------
    inputs : int
        The length of the last axis.
    widths : int or sequence of int
        The units of each layer; the last number is that of the outputs.
    increasing, decreasing : int or iterable of int
        Positions of inputs.
    activation : activation or str
        Of the hidden units. Its slope may nowhere be negative.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name; for an activation that decreases somewhere, such as `gelu`.
    """

    def __init__(
        self, inputs: int, widths: int | Sequence[int], *, increasing: int | Iterable[int] = (),
        decreasing: int | Iterable[int] = (),
        activation: Function | str = tanh,
    ) -> None:  # fmt: skip
        self._build(inputs, widths, increasing, decreasing, activation, convex=False)


class Convex(_Constrained):
    """A network that is convex in its inputs, over the last axis: (..., inputs) to (..., outputs).

    The structure is that of `Monotone`, with an activation that is convex and does not decrease. It also increases or decreases
    in each of the inputs named. Source: Amos, Xu and Kolter, "Input convex neural networks", 2017: those that are convex in all
    inputs.

    Parameters
    ----------
    inputs, widths, increasing, decreasing
        As of `Monotone`.
    activation : activation or str
        Of the hidden units. Its slope may nowhere be negative or decrease.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name; for an activation that is not convex, such as `tanh`.
    """

    def __init__(
        self, inputs: int, widths: int | Sequence[int], *, increasing: int | Iterable[int] = (),
        decreasing: int | Iterable[int] = (),
        activation: Function | str = softplus,
    ) -> None:  # fmt: skip
        self._build(inputs, widths, increasing, decreasing, activation, convex=True)


def _positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Starting values of one sign, whose sums over the inputs do not grow with the number of inputs."""
    return rng.lognormal(0.0, 1.0, shape) / shape[0]


def _negative(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return -_positive(rng, shape)


def _positions(name: str, given: Any, inputs: int) -> tuple[int, ...]:
    """Positions of inputs in ascending order. Raises TypeError or ValueError."""
    found = [whole(k, 0) for k in (given if np.iterable(given) and not isinstance(given, str) else [given])]
    if None in found:
        raise TypeError(f"`{name}` (={shown(given)}) must be whole numbers, positions of inputs, such as [0, 2]")
    positions = sorted(k for k in found if k is not None)
    if len(set(positions)) < len(positions) or (positions and positions[-1] >= inputs):
        raise ValueError(f"`{name}` (={shown(given)}) must be different positions below `inputs` (={inputs})")
    return tuple(positions)


def _check_shape_of(f: Function, convex: bool) -> None:
    """Raise ValueError if an activation decreases, or is not convex, by its values and slopes at points from -40 to 40."""
    x = np.linspace(-40.0, 40.0, 16001)
    with np.errstate(all="ignore"):
        y = np.broadcast_to(f(x), x.shape)
        slopes = np.broadcast_to(f.slope(x, f(x)), x.shape)
        rises, bends = np.diff(y), np.where(slopes[1:] == slopes[:-1], 0.0, np.diff(slopes))  # infinite slopes are equal
        rounding = 1e-12 * np.maximum(1.0, abs(y[1:]))
        falls, jumps = rises < -rounding, np.diff(rises) < -4.0 * rounding[1:]
    if not slopes.min() >= 0.0:
        raise ValueError(f"`activation` (={f}) must not decrease; its slope at {x[slopes.argmin()]:g} is {slopes.min():.2g}")
    if falls.any():
        raise ValueError(f"`activation` (={f}) must not decrease; it jumps down near {x[falls.argmax()]:g}")
    if convex and not (bends >= -1e-12).all():
        raise ValueError(
            f"`activation` (={f}) must be convex, such as softplus or relu; its slope falls near {x[bends.argmin()]:g}"
        )
    if convex and jumps.any():
        raise ValueError(f"`activation` (={f}) must be convex, such as softplus or relu; it jumps near {x[jumps.argmax()]:g}")
