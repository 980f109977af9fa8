"""Networks as ONNX models."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from chains import layers
from chains.activations import Activation, identity, make_elu, make_leaky_relu
from chains.backends.places import on_host
from chains.chain import Chain
from chains.expr.formulas import trace
from chains.interop.parts import needed
from chains.layers.base import Declaration
from chains.layers.norm import Normalization
from chains.network import arguments
from chains.version import __version__

OPSET, IR = 20, 9
# Activations that ONNX has; others, custom ones too, are written as their formulas.
NATIVE = {
    "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "softplus": "Softplus", "softsign": "Softsign", "sin": "Sin",
    "gelu": "Gelu", "mish": "Mish",
}  # fmt: skip
# Scalar operations of formulas.
OPERATIONS = {
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "floor": "Floor", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "tanh": "Tanh",
    "sin": "Sin", "cos": "Cos", "erf": "Erf", "not": "Not", "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div",
    "pow": "Pow", "min": "Min", "max": "Max", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
    "eq": "Equal", "and": "And", "or": "Or", "where": "Where",
}  # fmt: skip


def to_onnx(net: Chain, p: Any, state: Any = None, *, path: str | os.PathLike[str] | None = None) -> Any:
    """An ONNX model of a network in its mode "eval", for any number of samples.

    Parameters
    ----------
    net : Chain
        The network, of built-in layers, except recurrent ones; activations may be custom.
    p : array, shape (n_params,)
        Its parameters; their type is that of the model.
    state : array, shape (n_state,), optional
        Its state, for networks that have one.
    path : str or path, optional
        A file to write the model to as well.

    Returns
    -------
    onnx.ModelProto
        The model, with the input "x" and the output "y", of opset 20. Parameters stand in it by their names in `net.layout`.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit, and for layers that ONNX has no operators for.
    ImportError
        Where onnx is missing.
    """
    onnx = needed("onnx")
    arguments.check_is("net", net, Chain, "a network such as Chain(Dense(2, 3))")
    p = on_host(arguments.check_params(p, net.n_params))
    arrays = dict(net.views(p))
    if net.n_state:
        if state is None:
            raise ValueError(f"`state` is missing: this network has one ({net.state_layout[0].name}, ...)")
        arrays |= net.state_views(on_host(arguments.check_state(state, net.state_layout, p.dtype, False, {})))
    writer = _Writer(onnx, arrays, p.dtype)
    y = writer.sequence(net.network.declaration, "x")
    helper, kind = onnx.helper, helper_type(onnx, p.dtype)
    writer.nodes.append(helper.make_node("Identity", [y], ["y"]))
    x_kind = kind if net.network.id_count is None else onnx.TensorProto.INT64
    graph = helper.make_graph(
        writer.nodes,
        "chains",
        [helper.make_tensor_value_info("x", x_kind, ["batch", *net.input_shape])],
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


def helper_type(onnx: Any, dtype: Any) -> int:
    """ONNX's number of a NumPy type."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


class _Writer:
    """Makes nodes of declared layers; a method takes the name of its input and returns that of its output."""

    def __init__(self, onnx: Any, arrays: dict[str, np.ndarray], dtype: np.dtype[Any]) -> None:
        self.onnx, self.arrays, self.dtype = onnx, arrays, dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.known: set[str] = set()
        self.count = 0

    def node(self, operation: str, *inputs: str, **attributes: Any) -> str:
        self.count += 1
        name = f"{operation}_{self.count}"
        self.nodes.append(self.onnx.helper.make_node(operation, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: Any, dtype: Any = None) -> str:
        """The name of an array in the model, by this name; it is written once."""
        if name not in self.known:
            array = np.ascontiguousarray(np.asarray(value, dtype=self.dtype if dtype is None else dtype))
            self.constants.append(self.onnx.numpy_helper.from_array(array.reshape(np.shape(value)), name))
            self.known.add(name)
        return name

    def integers(self, *values: int) -> str:
        return self.constant("shape_" + "_".join(map(str, values)), np.array(values, np.int64), np.int64)

    def number(self, value: float) -> str:
        return self.constant(f"number_{float(value).hex()}", value)

    def array(self, d: Declaration, name: str, shape: tuple[int, ...] | None = None) -> str:
        """A parameter or an array of the state, in another shape where one is given."""
        value = self.arrays[f"{d.name}.{name}"]
        return self.constant(f"{d.name}.{name}", value if shape is None else value.reshape(shape))

    def reshaped(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.integers(-1, *shape))

    def sequence(self, d: Declaration, x: str) -> str:
        for child in d.children:
            x = self.layer(child, x)
        return x

    def layer(self, d: Declaration, x: str) -> str:
        layer = d.layer
        for kind, method in METHODS.items():
            if isinstance(layer, kind):
                result: str = getattr(self, method)(d, layer, x)
                return result
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

    def max_pool(self, d: Declaration, layer: Any, x: str) -> str:
        return self.node("MaxPool", x, **self.window(layer))

    def mean_pool(self, d: Declaration, layer: Any, x: str) -> str:
        return self.node("AveragePool", x, **self.window(layer), count_include_pad=int(layer.count_padding))

    def global_pool(self, d: Declaration, layer: Any, x: str) -> str:
        return self.reshaped(self.node("GlobalAveragePool", x), *d.output_shape)

    def batch_norm(self, d: Declaration, layer: Any, x: str) -> str:
        count = layer.channels
        scale, shift = (
            self.array(d, name) if layer.affine else self.constant(f"{name}_{count}", np.full(count, value))
            for name, value in (("weight", 1.0), ("bias", 0.0))
        )
        statistics = self.array(d, "running_mean"), self.array(d, "running_var")
        return self.node("BatchNormalization", x, scale, shift, *statistics, epsilon=layer.eps)

    def normalization(self, d: Declaration, layer: Any, x: str) -> str:
        """As the layer sees its samples: groups of values that share their statistics, and parameters beside them."""
        grid = layer.grid(d.input)
        axes = [
            k + 1
            for k, (one, many) in enumerate(zip(grid.statistics, grid.values, strict=True))
            if one == 1 and many >= 1 and k
        ]
        x = self.reshaped(x, *grid.values)
        over = self.integers(*axes)
        if not isinstance(layer, layers.RMSNorm):
            x = self.node("Sub", x, self.node("ReduceMean", x, over))
        variance = self.node("ReduceMean", self.node("Mul", x, x), over)
        y = self.node("Div", x, self.node("Sqrt", self.node("Add", variance, self.number(layer.eps))))
        for operation, name in (("Mul", "weight"), ("Add", "bias")):
            if name in d.slices:
                y = self.node(operation, y, self.array(d, name, grid.parameters))
        return self.reshaped(y, *d.output_shape)

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

    def activation(self, f: Activation, x: str) -> str:
        if f is identity:
            return x
        if f._recipe is not None and f.name in NATIVE:
            return self.node(NATIVE[f.name], x)
        make, settings = f._recipe or (None, ())
        if make in (make_elu, make_leaky_relu):
            return self.node("Elu" if make is make_elu else "LeakyRelu", x, alpha=settings[0])
        formula = trace(f.function, 1)
        names = [x]
        for step in formula.instructions:
            names.append(self.instruction(step, [names[operand] for operand in step.operands]))
        return names[formula.outputs[0]]

    def instruction(self, step: Any, operands: list[str]) -> str:
        if step.operation == "const":
            return self.number(step.value)
        if step.operation == "log1p":
            return self.node("Log", self.node("Add", self.number(1.0), *operands))
        if step.operation == "expm1":
            return self.node("Sub", self.node("Exp", *operands), self.number(1.0))
        if step.operation == "ne":
            return self.node("Not", self.node("Equal", *operands))
        return self.node(OPERATIONS[step.operation], *operands)


# By the kinds of layers; the first one that fits counts.
METHODS: dict[type, str] = {
    layers.Series: "series",
    layers.Residual: "residual",
    layers.Parallel: "parallel",
    layers.Dense: "dense",
    layers.Conv: "convolution",
    layers.ConvTranspose: "convolution",
    layers.MaxPool: "max_pool",
    layers.AvgPool: "mean_pool",
    layers.GlobalAvgPool: "global_pool",
    layers.BatchNorm: "batch_norm",
    Normalization: "normalization",
    layers.Dropout: "nothing",
    layers.Activation: "elementwise",
    layers.Scale: "scale",
    layers.Shift: "shift",
    layers.Append: "append",
    layers.Reshape: "reshape",
    layers.Softmax: "softmax",
    layers.Upsample: "upsample",
    layers.Pad: "pad",
    layers.Embedding: "embedding",
}
