"""The fully connected layer."""

from __future__ import annotations

from typing import Any

from chains.activations import Activation, identity, resolve
from chains.initializers import InitializerLike, initializer
from chains.layers.base import Declaration, Layer, SampleShape, check_last_axis
from chains.layers.elementwise import record_activation, record_slope
from chains.params import bounds_of
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
    weight_bounds : pair of float or None, optional
        The range of the weight's entries: (0, None) for a layer that increases in every input. `weight_init` must give values
        within it.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    weight_bounds: tuple[float | None, float | None] | None = None  # earlier pickles have none

    def __init__(
        self, inputs: int, outputs: int, activation: Activation | str = identity, *, bias: bool = True,
        weight_init: InitializerLike = "glorot_normal", bias_init: InitializerLike = "zeros",
        weight_bounds: tuple[float | None, float | None] | None = None,
    ) -> None:  # fmt: skip
        self.inputs = check_count("inputs", inputs)
        self.outputs = check_count("outputs", outputs)
        self.activation = resolve(activation)
        check_flags(bias=bias)
        self.bias = bias
        self.weight_init = initializer(weight_init, "weight_init", shape=(self.inputs, self.outputs))
        self.bias_init = initializer(bias_init, "bias_init", shape=(self.outputs,))
        bounds_of(weight_bounds, name="weight_bounds")
        self.weight_bounds = weight_bounds

    def fixed_input(self) -> SampleShape:
        return (self.inputs,)

    def declare(self, d: Declaration) -> None:
        check_last_axis(d.input, "inputs", self.inputs)
        shape = (*d.input[:-1], self.outputs)
        d.param("weight", (self.inputs, self.outputs), self.weight_init, bounds=self.weight_bounds)
        if self.bias:
            d.param("bias", (self.outputs,), self.bias_init)
        d.output(shape)
        if self.activation.needs_input:
            d.saved("z", shape)  # x @ weight + bias

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        z = s.z if self.activation.needs_input else y
        ops.matmul(z.rows, x.rows, p.weight)
        record_activation(ops, self.activation, y, z, p.bias if self.bias else None)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        dz = record_slope(ops, self.activation, dy, dy, y, s)
        ops.matmul(g.weight, x.rows.T, dz.rows)
        if self.bias:
            ops.sum(g.bias, dz)
        ops.matmul(dx.rows, dz.rows, p.weight.T)
