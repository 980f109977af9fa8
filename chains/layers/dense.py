"""The fully connected layer."""

from __future__ import annotations

from typing import Any

from chains.activations import Activation, identity, resolve
from chains.initializers import InitializerLike, initializer, setting_text
from chains.layers.base import Declaration, Layer, SampleShape
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_flags


class Dense(Layer):
    """``y = activation(x @ weight + bias)``, over the last axis: samples (..., inputs) become (..., outputs).

    Parameters
    ----------
    inputs, outputs : int
        The length of the last axis, before and after.
    activation : activation or str
        Of the outputs.
    bias : bool
        Whether there is a bias, of shape (outputs,).
    weight_init, bias_init : initializer
        Of the weight, (inputs, outputs), and of the bias. See `chains.initializers`.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        activation: Activation | str = identity,
        *,
        bias: bool = True,
        weight_init: InitializerLike = "glorot_normal",
        bias_init: InitializerLike = "zeros",
    ) -> None:
        self.inputs = check_count("inputs", inputs)
        self.outputs = check_count("outputs", outputs)
        self.activation = resolve(activation)
        check_flags(bias=bias)
        self.bias = bias
        self.weight_init = initializer(weight_init, "weight_init", shape=(self.inputs, self.outputs))
        self.bias_init = initializer(bias_init, "bias_init", shape=(self.outputs,))

    def fixed_input(self) -> SampleShape:
        return (self.inputs,)

    def declare(self, d: Declaration) -> None:
        if d.input[-1:] != (self.inputs,):
            raise ValueError(f"`inputs` (={self.inputs}) must be the last length of the input's shape {d.input}")
        shape = (*d.input[:-1], self.outputs)
        d.param("weight", (self.inputs, self.outputs), self.weight_init)
        if self.bias:
            d.param("bias", (self.outputs,), self.bias_init)
        d.output(shape)
        if self.activation.needs_input:
            d.saved("z", shape)  # x @ weight + bias

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        f = self.activation
        z = s.z if f.needs_input else y
        ops.matmul(z.rows, x.rows, p.weight)
        if self.bias and f.needs_input:
            ops.map((z, y), lambda z, b: (z + b, f(z + b)), z, p.bias)
        elif self.bias:
            ops.map(y, lambda z, b: f(z + b), z, p.bias)
        else:
            ops.map(y, f, z)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        f = self.activation
        dz = dy
        if f.needs_input:
            ops.map(dz, lambda dy, z, y: dy * f.slope(z, y), dy, s.z, y)
        else:
            ops.map(dz, lambda dy, y: dy * f.slope(None, y), dy, y)
        ops.matmul(g.weight, x.rows.T, dz.rows)
        if self.bias:
            ops.sum(g.bias, dz)
        ops.matmul(dx.rows, dz.rows, p.weight.T)

    def short_repr(self) -> str:
        parts = [str(self.inputs), str(self.outputs)]
        parts += [] if self.activation is identity else [str(self.activation)]
        return f"Dense({', '.join(parts)}{'' if self.bias else ', bias=False'})"

    def __repr__(self) -> str:
        bias = setting_text("bias_init", self.bias_init, "zeros")
        return f"{self.short_repr()[:-1]}{setting_text('weight_init', self.weight_init, 'glorot_normal')}{bias})"
