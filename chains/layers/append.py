"""Trained numbers beside the outputs of a network: the unknown coefficients of a model, for example."""

from __future__ import annotations

import math
from typing import Any

from chains.initializers import Constant
from chains.layers.base import Declaration, Layer
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import is_real
from chains.support.messages import shown


class Append(Layer):
    """``y = (x, values)``: trained numbers behind the last axis of a sample, such as the unknown coefficients of a model.

    Samples (..., n) become (..., n + len(values)). The numbers do not depend on the input.

    Parameters
    ----------
    **values : float
        The starting values by name, one at least: ``Append(viscosity=0.02)`` has a parameter ``viscosity`` of shape (1,).

    Raises
    ------
    TypeError, ValueError
        For values that are not finite numbers, and without any.
    """

    def __init__(self, **values: float) -> None:
        if not values:
            raise ValueError("Append() needs a value at least, such as Append(viscosity=0.02)")
        for name, value in values.items():
            if not is_real(value) or not math.isfinite(value):
                raise TypeError(f"`{name}` (={shown(value)}) must be a finite number")
        self.values = tuple((name, float(value)) for name, value in values.items())

    def declare(self, d: Declaration) -> None:
        if not d.input:
            raise ValueError(f"{self!r} needs samples with at least one axis, not scalars")
        for name, value in self.values:
            d.param(name, (1,), Constant(value))
        d.output((*d.input[:-1], d.input[-1] + len(self.values)))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        width = x.sample_shape[-1]
        ops.copy(y.slice(-1, 0, width), x)
        for k, (name, _) in enumerate(self.values, width):
            ops.copy(y.slice(-1, k, k + 1), getattr(p, name))

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        width = x.sample_shape[-1]
        for k, (name, _) in enumerate(self.values, width):
            ops.sum(getattr(g, name), dy.slice(-1, k, k + 1))
        ops.copy(dx, dy.slice(-1, 0, width))

    def __repr__(self) -> str:
        return f"Append({', '.join(f'{name}={value:g}' for name, value in self.values)})"
