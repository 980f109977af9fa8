"""Networks as ONNX models."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from chains import layers
from chains.chain import Chain, check_net
from chains.interop import onnx_sequences
from chains.interop.onnx_nodes import Nodes
from chains.interop.parts import arrays_by_name, needed
from chains.layers.base import Declaration, SampleShape
from chains.support.checks import check_flags
from chains.version import __version__

OPSET, IR = 21, 10
AFFINE = (("weight", 1.0), ("bias", 0.0))  # of a normalisation, and what they are where they are left out


def to_onnx(net: Chain, p: Any, state: Any = None, *, lengths: bool = False, path: str | os.PathLike[str] | None = None) -> Any:
    """An ONNX model of a network in its mode "eval", for any number of samples.

    Parameters
    ----------
    net : Chain
        The network, of built-in layers; activations may be custom, except within an RNN.
    p : array, shape (n_params,)
        Its parameters; their type is that of the model.
    state : array, shape (n_state,), optional
        Its state, for networks that have one.
    lengths : bool
        Whether the model takes a second input, "lengths" of shape (batch,): how many steps each sample has.
    path : str or path, optional
        A file to write the model to as well.

    Returns
    -------
    onnx.ModelProto
        The model, with the input "x" and the output "y", of opset 21. Parameters stand in it by their names in `net.layout`;
        those of recurrent layers are stacked, and their gates ordered, as ONNX has them.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit, and for layers that ONNX has no operators for: custom ones, `ODE` and `Equations`.
    ImportError
        Where onnx is missing.
    """
    onnx = needed("onnx")
    check_net(net)
    check_flags(lengths=lengths)
    p, arrays = arrays_by_name(net, p, state)
    if lengths and not net.network.declaration.goes_along_time:
        raise ValueError("`lengths` (=True) must be False: no layer of this network has a time axis")
    writer = _Writer(onnx, arrays, p.dtype, "lengths" if lengths else None)
    y = writer.sequence(net.network.declaration, "x")
    helper, kind = onnx.helper, writer.kind
    writer.nodes.append(helper.make_node("Identity", [y], ["y"]))
    x_kind = kind if net.network.id_count is None else onnx.TensorProto.INT64
    inputs = [helper.make_tensor_value_info("x", x_kind, ["batch", *net.input_shape])]
    if lengths:
        inputs.append(helper.make_tensor_value_info("lengths", onnx.TensorProto.INT64, ["batch"]))
    graph = helper.make_graph(
        writer.nodes,
        "chains",
        inputs,
        [helper.make_tensor_value_info("y", kind, ["batch", *net.output_shape])],
        writer.constants,
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="chains",
        producer_version=__version__,
    )
    onnx.checker.check_model(model)
    if path is not None:
        onnx.save(model, os.fspath(path))
    return model


class _Writer(Nodes):
    """Makes nodes of declared layers; a method takes the name of its input and returns that of its output."""

    def sequence(self, d: Declaration, x: str) -> str:
        for child in d.children:
            x = self.layer(child, x)
        return x

    def layer(self, d: Declaration, x: str) -> str:
        layer = d.layer
        if type(layer).forward.__module__.startswith("chains.layers."):  # else it is a custom layer's
            for kind, write in WRITERS.items():
                if isinstance(layer, kind):
                    return write(self, d, layer, x)
        raise TypeError(f"there is no operator of ONNX for {layer!r}")

    def series(self, d: Declaration, layer: Any, x: str) -> str:
        return self.sequence(d, x)

    def residual(self, d: Declaration, layer: Any, x: str) -> str:
        inner, shortcut = (self.layer(child, x) for child in d.children)
        return self.activation(layer.activation, self.node("Add", inner, shortcut))

    def parallel(self, d: Declaration, layer: Any, x: str) -> str:
        outputs = [self.layer(child, x) for child in d.children]
        if layer.join == "sum":
            return self.node("Sum", *outputs)
        return self.node("Concat", *outputs, axis=layer.axis % len(d.output_shape) + 1)

    def dense(self, d: Declaration, layer: Any, x: str) -> str:
        y = self.node("MatMul", x, self.array(d, "weight"))
        return self.activation(layer.activation, self.node("Add", y, self.array(d, "bias")) if layer.bias else y)

    def convolution(self, d: Declaration, layer: Any, x: str) -> str:
        inputs = [x, self.array(d, "weight"), *([self.array(d, "bias")] if layer.bias else [])]
        settings = {**self.window(layer), "group": layer.groups, "dilations": layer.dilation}
        if isinstance(layer, layers.ConvTranspose):
            return self.activation(
                layer.activation, self.node("ConvTranspose", *inputs, **settings, output_padding=layer.output_padding)
            )
        return self.activation(layer.activation, self.node("Conv", *inputs, **settings))

    def window(self, layer: Any) -> dict[str, Any]:
        pads = [before for before, _ in layer.padding] + [after for _, after in layer.padding]
        return {"kernel_shape": layer.kernel, "strides": layer.stride, "pads": pads}

    def filled(self, shape: SampleShape, value: float) -> str:
        """An array of one number."""
        return self.constant(f"all_{value}_" + "_".join(map(str, shape)), np.full(shape, value))

    def max_pool(self, d: Declaration, layer: Any, x: str) -> str:
        return self.node("MaxPool", x, **self.window(layer))

    def mean_pool(self, d: Declaration, layer: Any, x: str) -> str:
        return self.node("AveragePool", x, **self.window(layer), count_include_pad=int(layer.count_padding))

    def global_pool(self, d: Declaration, layer: Any, x: str) -> str:
        return self.reshaped(self.node("GlobalAveragePool", x), *d.output_shape)

    def batch_norm(self, d: Declaration, layer: Any, x: str) -> str:
        shape = (layer.channels,)
        scale, shift = (self.array(d, name) if layer.affine else self.filled(shape, value) for name, value in AFFINE)
        statistics = self.array(d, "running_mean"), self.array(d, "running_var")
        return self.node("BatchNormalization", x, scale, shift, *statistics, epsilon=layer.eps)

    def layer_norm(self, d: Declaration, layer: Any, x: str) -> str:
        shape = layer.parameter_shape(d.input)
        affine = [self.array(d, name) if layer.affine else self.filled(shape, value) for name, value in AFFINE]
        return self.node("LayerNormalization", x, *affine, axis=-len(shape), epsilon=layer.eps, stash_type=self.kind)

    def rms_norm(self, d: Declaration, layer: Any, x: str) -> str:
        shape = layer.parameter_shape(d.input)
        axes = self.integers(*range(-len(shape), 0))
        mean = self.node("ReduceMean", self.node("Mul", x, x), axes)
        y = self.node("Div", x, self.node("Sqrt", self.node("Add", mean, self.number(layer.eps))))
        if len(shape) == 1 and not layer.affine:
            return y
        return self.node("Mul", y, self.array(d, "weight") if layer.affine else self.filled(shape, 1.0))  # it tells the axes

    def group_norm(self, d: Declaration, layer: Any, x: str) -> str:
        affine = [self.array(d, name) if layer.affine else self.filled((layer.channels,), value) for name, value in AFFINE]
        settings = {"num_groups": layer.groups, "epsilon": layer.eps, "stash_type": self.kind}
        if len(d.input) > 1:
            return self.node("GroupNormalization", x, *affine, **settings)
        positions = self.reshaped(x, *d.input, 1)  # the operator wants an axis of them
        return self.reshaped(self.node("GroupNormalization", positions, *affine, **settings), *d.output_shape)

    def nothing(self, d: Declaration, layer: Any, x: str) -> str:
        return x

    def elementwise(self, d: Declaration, layer: Any, x: str) -> str:
        return self.activation(layer.f, x)

    def scale(self, d: Declaration, layer: Any, x: str) -> str:
        return self.node("Mul", x, self.array(d, "scale"))

    def shift(self, d: Declaration, layer: Any, x: str) -> str:
        return self.node("Add", x, self.array(d, "shift"))

    def append(self, d: Declaration, layer: Any, x: str) -> str:
        count = len(layer.values)
        values = np.concatenate([self.arrays[f"{d.name}.{name}"] for name, _ in layer.values])
        front = self.node("Slice", self.node("Shape", x), self.integers(0), self.integers(-1))
        shape = self.node("Concat", front, self.integers(count), axis=0)
        return self.node("Concat", x, self.node("Expand", self.constant(f"{d.name}.values", values), shape), axis=-1)

    def select(self, d: Declaration, layer: Any, x: str) -> str:
        return self.node("Gather", x, self.integers(*layer.indices), axis=-1)

    def reshape(self, d: Declaration, layer: Any, x: str) -> str:
        return self.reshaped(x, *d.output_shape)

    def softmax(self, d: Declaration, layer: Any, x: str) -> str:
        return self.node("LogSoftmax" if isinstance(layer, layers.LogSoftmax) else "Softmax", x, axis=-1)

    def upsample(self, d: Declaration, layer: Any, x: str) -> str:
        factors = [new / old for new, old in zip(d.output_shape, d.input, strict=True)]
        scales = self.constant("scales_" + "_".join(map(str, factors)), np.array([1.0, *factors]), np.float32)
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.node("Resize", x, "", scales, **how)

    def pad(self, d: Declaration, layer: Any, x: str) -> str:
        pads = layer.padding * (len(d.input) - 1 if len(layer.padding) == 1 else 1)
        return self.node("Pad", x, self.integers(0, 0, *(before for before, _ in pads), 0, 0, *(after for _, after in pads)))

    def embedding(self, d: Declaration, layer: Any, x: str) -> str:
        return self.node("Gather", self.array(d, "weight"), x)


# By the kinds of layers; the first one that fits counts.
WRITERS: dict[type, Callable[[Any, Declaration, Any, str], str]] = {
    **onnx_sequences.WRITERS,
    layers.Series: _Writer.series,
    layers.Residual: _Writer.residual,
    layers.Parallel: _Writer.parallel,
    layers.Dense: _Writer.dense,
    layers.Conv: _Writer.convolution,
    layers.ConvTranspose: _Writer.convolution,
    layers.MaxPool: _Writer.max_pool,
    layers.AvgPool: _Writer.mean_pool,
    layers.GlobalAvgPool: _Writer.global_pool,
    layers.BatchNorm: _Writer.batch_norm,
    layers.RMSNorm: _Writer.rms_norm,
    layers.LayerNorm: _Writer.layer_norm,
    layers.GroupNorm: _Writer.group_norm,
    layers.Dropout: _Writer.nothing,
    layers.Activation: _Writer.elementwise,
    layers.Scale: _Writer.scale,
    layers.Shift: _Writer.shift,
    layers.Append: _Writer.append,
    layers.Select: _Writer.select,
    layers.Reshape: _Writer.reshape,
    layers.Softmax: _Writer.softmax,
    layers.Upsample: _Writer.upsample,
    layers.Pad: _Writer.pad,
    layers.Embedding: _Writer.embedding,
}
