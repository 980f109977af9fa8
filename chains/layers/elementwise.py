"""Layers that work element by element: an activation on its own, a learned scale, a learned shift."""

from __future__ import annotations

from typing import Any

from chains.activations import Activation as Function
from chains.activations import resolve
from chains.initializers import InitializerLike, initializer
from chains.layers.base import Declaration, Layer
from chains.program.recorder import Recorder
from chains.program.view import View


class Activation(Layer):
    """``y = f(x)`` for an activation, element by element.

    Parameters
    ----------
    f : activation or str
        Such as `tanh`, or its name.

    Raises
    ------
    TypeError, ValueError
        For another function or name.
    """

    def __init__(self, f: Function | str) -> None:
        self.f = resolve(f)

    def declare(self, d: Declaration) -> None:
        d.output(d.input)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        record_activation(ops, self.f, y, x)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        ops.map(dx, lambda dy, x, y: dy * self.f.slope(x, y), dy, x, y)


def record_activation(ops: Recorder, f: Function, y: View, z: View, bias: View | None = None) -> None:
    """Record ``y = f(z + bias)``. If the derivative needs its input, `z` becomes the sum."""
    if bias is None:
        ops.map(y, lambda x: f(x), z)
    elif f.needs_input:
        ops.map((z, y), lambda z, b: (z + b, f(z + b)), z, bias)
    else:
        ops.map(y, lambda z, b: f(z + b), z, bias)


def record_slope(ops: Recorder, f: Function, dz: View, dy: View, y: View, s: Any) -> View:
    """Record ``dz = dy * f'``, the gradient at the input of f, which is ``s.z`` where the derivative needs it. Returns `dz`."""
    if f.needs_input:
        ops.map(dz, lambda dy, z, y: dy * f.slope(z, y), dy, s.z, y)
    else:
        ops.map(dz, lambda dy, y: dy * f.slope(None, y), dy, y)
    return dz


class Scale(Layer):
    """``y = x * scale``, with a trained factor for each feature: the parameter `scale` has the sample's shape.

    Parameters
    ----------
    scale_init : initializer
        Of the factors.
    """

    def __init__(self, *, scale_init: InitializerLike = "ones") -> None:
        self.scale_init = initializer(scale_init, "scale_init")

    def declare(self, d: Declaration) -> None:
        d.param("scale", d.input, self.scale_init)
        d.output(d.input)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.map(y, lambda x, scale: x * scale, x, p.scale)


class Shift(Layer):
    """``y = x + shift``, with a trained term for each feature: the parameter `shift` has the sample's shape.

    Parameters
    ----------
    shift_init : initializer
        Of the terms.
    """

    def __init__(self, *, shift_init: InitializerLike = "zeros") -> None:
        self.shift_init = initializer(shift_init, "shift_init")

    def declare(self, d: Declaration) -> None:
        d.param("shift", d.input, self.shift_init)
        d.output(d.input)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.map(y, lambda x, shift: x + shift, x, p.shift)
