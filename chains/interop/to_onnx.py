"""Networks as ONNX models.

A writer of a layer takes the model's nodes, the declared layer, and the name of its input; it returns the name of its output.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chains import layers
from chains.activations import Activation, Elu, LeakyRelu, identity
from chains.chain import Chain
from chains.expr.formulas import trace
from chains.interop.parts import arrays_by_name, needed
from chains.layers import GRUCell, LSTMCell, RNNCell
from chains.layers.attention import FORBIDDEN, sinusoids
from chains.layers.base import Declaration, SampleShape
from chains.network.network import check_net, network_of
from chains.support.checks import check_flags
from chains.version import __version__

OPSET, IR = 21, 10
AFFINE = (("weight", 1.0), ("bias", 0.0))  # the arrays of a normalisation, and their values if they are left out
# Activations that ONNX has; others, custom ones too, are written as their formulas.
NATIVE = {
    "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "softplus": "Softplus", "softsign": "Softsign", "sin": "Sin",
    "gelu": "Gelu", "mish": "Mish",
}  # fmt: skip
# Activations that ONNX has within its operator RNN.
WITHIN = {
    "tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid", "softplus": "Softplus", "softsign": "Softsign",
}  # fmt: skip
# Scalar operations of formulas.
OPERATIONS = {
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "floor": "Floor", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "tanh": "Tanh",
    "sin": "Sin", "cos": "Cos", "erf": "Erf", "not": "Not", "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div",
    "pow": "Pow", "min": "Min", "max": "Max", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
    "eq": "Equal", "and": "And", "or": "Or", "where": "Where",
}  # fmt: skip
# The gates of each cell: their order here, as ONNX has them.
GATES: dict[type, list[int]] = {RNNCell: [0], LSTMCell: [0, 3, 1, 2], GRUCell: [1, 0, 2]}


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
        Whether the model takes a second input, "lengths" of shape (batch,): the number of steps of each sample.
    path : str or path, optional
        A file to which the model is written too.

    Returns
    -------
    onnx.ModelProto
        The model, with the input "x" and the output "y", of opset 21. Parameters have their names in `net.layout`. Those of
        recurrent layers are stacked, with gates in the order of ONNX.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit, and for layers without operators in ONNX: custom ones, `ODE`, `SDE`, `SteadyState` and
        `Equations`.
    ImportError
        If onnx is missing.
    """
    onnx = needed("onnx")
    check_net(net)
    check_flags(lengths=lengths)
    p, arrays = arrays_by_name(net, p, state)
    if lengths and not network_of(net).declaration.has_time_axis:
        raise ValueError("`lengths` (=True) must be False: no layer of this network has a time axis")
    nodes = Nodes(onnx, arrays, p.dtype, "lengths" if lengths else None)
    y = nodes.sequence(network_of(net).declaration, "x")
    helper, integers = onnx.helper, onnx.TensorProto.INT64
    nodes.nodes.append(helper.make_node("Identity", [y], ["y"]))
    x_kind = nodes.kind if network_of(net).id_count is None else integers
    inputs = [helper.make_tensor_value_info("x", x_kind, ["batch", *net.input_shape])]
    if lengths:
        inputs.append(helper.make_tensor_value_info("lengths", integers, ["batch"]))
    outputs = [helper.make_tensor_value_info("y", nodes.kind, ["batch", *net.output_shape])]
    graph = helper.make_graph(nodes.nodes, "chains", inputs, outputs, nodes.constants)
    about = {"ir_version": IR, "producer_name": "chains", "producer_version": __version__}
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], **about)
    onnx.checker.check_model(model)
    if path is not None:
        onnx.save(model, os.fspath(path))
    return model


class Nodes:
    """The nodes and constants of a model; a method takes the names of inputs and returns that of the output.

    `arrays` are a network's parameters and state by name; `lengths` is the name of the input that holds those of the samples.
    """

    def __init__(self, onnx: Any, arrays: dict[str, np.ndarray], dtype: np.dtype[Any], lengths: str | None) -> None:
        self.onnx, self.arrays, self.dtype, self.lengths = onnx, arrays, dtype, lengths
        self.kind = int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))  # ONNX's number of the type
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.known: set[str] = set()
        self.count = 0

    def node(self, operation: str, *inputs: str, **attributes: Any) -> str:
        (name,) = self.several(operation, inputs, 1, **attributes)
        return name

    def several(self, operation: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """The names of as many outputs of a node."""
        self.count += 1
        name = f"{operation}_{self.count}"
        outputs = [name] if count == 1 else [f"{name}_{k}" for k in range(count)]
        self.nodes.append(self.onnx.helper.make_node(operation, list(inputs), outputs, name=name, **attributes))
        return outputs

    def constant(self, name: str, value: Any, dtype: Any = None) -> str:
        """The name of an array in the model; it is written once."""
        if name not in self.known:
            array = np.ascontiguousarray(np.asarray(value, dtype=self.dtype if dtype is None else dtype))
            self.constants.append(self.onnx.numpy_helper.from_array(array.reshape(np.shape(value)), name))
            self.known.add(name)
        return name

    def integers(self, *values: int) -> str:
        return self.constant("shape_" + "_".join(map(str, values)), np.array(values, np.int64), np.int64)

    def number(self, value: float) -> str:
        return self.constant(f"number_{float(value).hex()}", value)

    def value(self, d: Declaration, name: str) -> np.ndarray:
        """A parameter or an array of the state."""
        return self.arrays[f"{d.name}.{name}"]

    def array(self, d: Declaration, name: str) -> str:
        """The name of a parameter or an array of the state."""
        return self.constant(f"{d.name}.{name}", self.value(d, name))

    def filled(self, shape: SampleShape, value: float) -> str:
        """The name of an array of one number."""
        return self.constant(f"all_{value}_" + "_".join(map(str, shape)), np.full(shape, value))

    def reshaped(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.integers(-1, *shape))

    def activation(self, f: Activation, x: str) -> str:
        if f is identity:
            return x
        if f._recipe is not None and f.name in NATIVE:
            return self.node(NATIVE[f.name], x)
        if isinstance(f, Elu):
            return self.node("Elu", x, alpha=f.alpha)
        if isinstance(f, LeakyRelu):
            return self.node("LeakyRelu", x, alpha=f.negative_slope)
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


def residual(nodes: Nodes, d: Declaration, layer: layers.Residual, x: str) -> str:
    inner, shortcut = (nodes.layer(child, x) for child in d.children)
    return nodes.activation(layer.activation, nodes.node("Add", inner, shortcut))


def parallel(nodes: Nodes, d: Declaration, layer: layers.Parallel, x: str) -> str:
    outputs = [nodes.layer(child, x) for child in d.children]
    if layer.join == "sum":
        return nodes.node("Sum", *outputs)
    return nodes.node("Concat", *outputs, axis=layer.axis % len(d.output_shape) + 1)


def dense(nodes: Nodes, d: Declaration, layer: layers.Dense, x: str) -> str:
    return nodes.activation(layer.activation, _product(nodes, d, x))


def convolution(nodes: Nodes, d: Declaration, layer: Any, x: str) -> str:
    inputs = [x, nodes.array(d, "weight"), *([nodes.array(d, "bias")] if layer.bias else [])]
    settings = {**_window(layer), "group": layer.groups, "dilations": layer.dilation}
    if not isinstance(layer, layers.ConvTranspose):
        return nodes.activation(layer.activation, nodes.node("Conv", *inputs, **settings))
    y = nodes.node("ConvTranspose", *inputs, **settings, output_padding=layer.output_padding)
    return nodes.activation(layer.activation, y)


def _window(layer: Any) -> dict[str, Any]:
    pads = [before for before, _ in layer.padding] + [after for _, after in layer.padding]
    return {"kernel_shape": layer.kernel, "strides": layer.stride, "pads": pads}


def _affine(nodes: Nodes, d: Declaration, layer: Any, shape: SampleShape) -> list[str]:
    """Weight and bias of a normalisation; ones and zeros if it has none."""
    return [nodes.array(d, name) if layer.affine else nodes.filled(shape, value) for name, value in AFFINE]


def batch_norm(nodes: Nodes, d: Declaration, layer: layers.BatchNorm, x: str) -> str:
    affine = _affine(nodes, d, layer, (layer.channels,))
    statistics = nodes.array(d, "running_mean"), nodes.array(d, "running_var")
    return nodes.node("BatchNormalization", x, *affine, *statistics, epsilon=layer.eps)


def layer_norm(nodes: Nodes, d: Declaration, layer: layers.LayerNorm, x: str) -> str:
    shape = layer.parameter_shape(d.input)
    settings = {"axis": -len(shape), "epsilon": layer.eps, "stash_type": nodes.kind}
    return nodes.node("LayerNormalization", x, *_affine(nodes, d, layer, shape), **settings)


def rms_norm(nodes: Nodes, d: Declaration, layer: layers.RMSNorm, x: str) -> str:
    shape = layer.parameter_shape(d.input)
    axes = nodes.integers(*range(-len(shape), 0))
    mean = nodes.node("ReduceMean", nodes.node("Mul", x, x), axes)
    y = nodes.node("Div", x, nodes.node("Sqrt", nodes.node("Add", mean, nodes.number(layer.eps))))
    if len(shape) == 1 and not layer.affine:
        return y
    return nodes.node("Mul", y, nodes.array(d, "weight") if layer.affine else nodes.filled(shape, 1.0))  # it has the axes


def group_norm(nodes: Nodes, d: Declaration, layer: layers.GroupNorm, x: str) -> str:
    affine = _affine(nodes, d, layer, (layer.channels,))
    settings = {"num_groups": layer.groups, "epsilon": layer.eps, "stash_type": nodes.kind}
    if len(d.input) > 1:
        return nodes.node("GroupNormalization", x, *affine, **settings)
    positions = nodes.reshaped(x, *d.input, 1)  # the operator needs an axis of them
    return nodes.reshaped(nodes.node("GroupNormalization", positions, *affine, **settings), *d.output_shape)


def append(nodes: Nodes, d: Declaration, layer: layers.Append, x: str) -> str:
    values = np.concatenate([nodes.value(d, name) for name, _ in layer.values])
    front = nodes.node("Slice", nodes.node("Shape", x), nodes.integers(0), nodes.integers(-1))
    shape = nodes.node("Concat", front, nodes.integers(len(layer.values)), axis=0)
    return nodes.node("Concat", x, nodes.node("Expand", nodes.constant(f"{d.name}.values", values), shape), axis=-1)


def waves(nodes: Nodes, d: Declaration, x: str, frequencies: np.ndarray) -> str:
    """The sines of the angles x @ frequencies, then the cosines, which are sines a quarter of a period later."""
    weight = nodes.constant(f"{d.name}.frequencies", np.tile(frequencies, 2))
    phases = nodes.constant(f"{d.name}.phases", np.repeat([0.0, 0.5 * math.pi], frequencies.shape[1]))
    return nodes.node("Sin", nodes.node("Add", nodes.node("MatMul", x, weight), phases))


def periodic(nodes: Nodes, d: Declaration, layer: layers.Periodic, x: str) -> str:
    """The inputs that are copied and the sines and cosines of the others, in the order of the inputs."""
    sines = [(k, period) for k, period in enumerate(layer.periods) if period is not None]
    frequencies = np.zeros((len(layer.periods), len(sines), layer.harmonics))
    for number, (k, period) in enumerate(sines):
        frequencies[k, number] = layer.angular_frequencies(period)
    y = waves(nodes, d, x, frequencies.reshape(len(layer.periods), -1))
    copied = [k for k, period in enumerate(layer.periods) if period is None]
    if copied:
        y = nodes.node("Concat", nodes.node("Gather", x, nodes.integers(*copied), axis=-1), y, axis=-1)
    # The input of each entry of y; a stable sort moves the entries of an input together.
    owners = [*copied, *np.repeat([k for k, _ in sines] * 2, layer.harmonics)]
    return nodes.node("Gather", y, nodes.integers(*np.argsort(owners, kind="stable").tolist()), axis=-1)


def chebyshev(nodes: Nodes, d: Declaration, layer: layers.Chebyshev, x: str) -> str:
    """The polynomials of all inputs by the recurrence; then for each input those of the terms, whose product is the basis."""
    named = zip(("centre", "factor"), layer.affine(), strict=True)
    centre, factor = (nodes.constant(f"{d.name}.{name}", value) for name, value in named)
    u = nodes.node("Mul", nodes.node("Sub", x, centre), factor)
    twice, polynomials = nodes.node("Add", u, u), [u]
    for k in range(2, layer.degree + 1):
        older = nodes.number(1.0) if k == 2 else polynomials[-2]
        polynomials.append(nodes.node("Sub", nodes.node("Mul", twice, polynomials[-1]), older))
    table, basis = nodes.node("Concat", *polynomials, axis=-1), ""
    for k, choice in enumerate(layer.choices()):
        rows = np.zeros((layer.degree, layer.inputs, layer.terms))
        rows[:, k] = choice[1:]
        weight = nodes.constant(f"{d.name}.choice{k}", rows.reshape(-1, layer.terms))
        ones = nodes.constant(f"{d.name}.ones{k}", choice[0])  # the polynomial of degree 0
        factors = nodes.node("Add", nodes.node("MatMul", table, weight), ones)
        basis = nodes.node("Mul", basis, factors) if basis else factors
    return _product(nodes, d, basis)


def fourier_series(nodes: Nodes, d: Declaration, layer: layers.FourierSeries, x: str) -> str:
    """Cosines and sines, which are cosines a quarter of a period earlier, by the weight without its first row, the constant."""
    frequencies, weight = layer.angular_frequencies(), nodes.value(d, "weight")
    angles = nodes.node("MatMul", x, nodes.constant(f"{d.name}.frequencies", np.tile(frequencies, 2)))
    phases = nodes.constant(f"{d.name}.phases", np.repeat([0.5 * math.pi, 0.0], frequencies.shape[1]))
    waves = nodes.node("Sin", nodes.node("Add", angles, phases))
    y = nodes.node("MatMul", waves, nodes.constant(f"{d.name}.weight", weight[1:]))
    return nodes.node("Add", y, nodes.constant(f"{d.name}.constant", weight[0]))


def upsample(nodes: Nodes, d: Declaration, layer: layers.Upsample, x: str) -> str:
    factors = [new / old for new, old in zip(d.output_shape, d.input, strict=True)]
    scales = nodes.constant("scales_" + "_".join(map(str, factors)), np.array([1.0, *factors]), np.float32)
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return nodes.node("Resize", x, "", scales, **how)


def pad(nodes: Nodes, d: Declaration, layer: layers.Pad, x: str) -> str:
    pads = layer.padding * (len(d.input) - 1 if len(layer.padding) == 1 else 1)
    return nodes.node("Pad", x, nodes.integers(0, 0, *(before for before, _ in pads), 0, 0, *(after for _, after in pads)))


def recurrent(nodes: Nodes, d: Declaration, layer: layers.Recurrent, x: str) -> str:
    """RNN, LSTM or GRU, both directions in one node."""
    cell, kind = layer.cell, type(layer.cell)
    if kind not in GATES:
        raise TypeError(f"there is no operator of ONNX for {layer!r}")
    operator, count, units = kind.__name__.removesuffix("Cell"), len(d.children), getattr(cell, "units", 0)
    inputs = [
        nodes.node("Transpose", x, perm=[1, 0, 2]),
        *(_of_directions(nodes, d, name) for name in ("weight", "recurrent_weight")),
        _biases(nodes, d),
        "" if nodes.lengths is None else nodes.node("Cast", nodes.lengths, to=nodes.onnx.TensorProto.INT32),
    ]
    if layer.initial_state == "parameter":
        batch = nodes.node("Slice", nodes.node("Shape", x), nodes.integers(0), nodes.integers(1))
        shape = nodes.node("Concat", nodes.integers(count), batch, nodes.integers(units), axis=0)
        inputs += [nodes.node("Expand", _initial(nodes, d, name), shape) for name in d.children[0].carried_shapes]
    settings: dict[str, Any] = {"hidden_size": units, "direction": "bidirectional" if count == 2 else "forward"}
    if isinstance(cell, GRUCell):
        settings["linear_before_reset"] = int(cell.reset_after)
    if isinstance(cell, RNNCell):
        settings |= _within(cell, count)
    *_, every, last = nodes.several(operator, inputs, 2, **settings)
    if layer.return_sequences:  # (time, directions, batch, units)
        return nodes.reshaped(nodes.node("Transpose", every, perm=[2, 0, 1, 3]), *d.output_shape)
    return nodes.reshaped(nodes.node("Transpose", last, perm=[1, 0, 2]), *d.output_shape)


def _within(cell: RNNCell, count: int) -> dict[str, Any]:
    """The attributes that name an activation. Raises TypeError for one that the operator does not have."""
    f = cell.activation
    if isinstance(f, Elu):
        return {"activations": ["Elu"] * count, "activation_alpha": [f.alpha] * count}
    if isinstance(f, LeakyRelu):
        return {"activations": ["LeakyRelu"] * count, "activation_alpha": [f.negative_slope] * count}
    if f._recipe is None or f.name not in WITHIN:
        raise TypeError(f"the operator RNN of ONNX does not have the activation {f.name}, only {', '.join(WITHIN)}")
    return {"activations": [WITHIN[f.name]] * count}


def _of_directions(nodes: Nodes, d: Declaration, name: str) -> str:
    """The weights of all directions, (directions, gates * units, inputs)."""
    rows = [with_gates(nodes.value(child, name), GATES[type(child.layer)]).T for child in d.children]
    return nodes.constant(f"{d.name}.{name}", np.stack(rows))


def _biases(nodes: Nodes, d: Declaration) -> str:
    """Of all directions, (directions, 2 * gates * units): those of inputs, then those of states."""
    rows, order = [], GATES[type(d.children[0].layer)]
    for child in d.children:
        own = with_gates(nodes.value(child, "bias"), order)
        second = with_gates(nodes.value(child, "recurrent_bias"), order) if "recurrent_bias" in child.slices else 0.0 * own
        rows.append(np.concatenate([own, second]))
    return nodes.constant(f"{d.name}.bias", np.stack(rows))


def with_gates(array: np.ndarray, order: list[int]) -> np.ndarray:
    """An array (..., gates * units) with its gates in another order."""
    parts = np.split(array, len(order), axis=-1)
    return np.concatenate([parts[k] for k in order], axis=-1)


def _initial(nodes: Nodes, d: Declaration, name: str) -> str:
    """The first states of all directions, (directions, 1, units)."""
    rows = [nodes.value(d, each) for each in d.slices if each.endswith(f"initial_{name}")]
    return nodes.constant(f"{d.name}.initial_{name}", np.stack(rows)[:, None])


def attention(nodes: Nodes, d: Declaration, layer: layers.Attention, x: str) -> str:
    time, features = d.input
    heads = layer.heads
    projected = _product(nodes, d, x, "in_")
    parts = nodes.several("Split", [projected], 3, axis=-1, num_outputs=3)
    split = [nodes.reshaped(part, time, heads, features // heads) for part in parts]
    queries, keys, values = (
        nodes.node("Transpose", part, perm=perm)
        for part, perm in zip(split, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
    )
    scores = nodes.node("MatMul", queries, keys)
    if layer.causal:
        scores = _seen(nodes, nodes.constant(f"seen_{time}", np.tri(time, dtype=bool), bool), scores)
    if nodes.lengths is not None:
        numbers = nodes.constant(f"numbers_{time}", np.arange(time), np.int64)
        lengths = nodes.reshaped(nodes.lengths, 1, 1, 1)
        scores = _seen(nodes, nodes.node("Less", numbers, lengths), scores)
    shares = nodes.node("Softmax", nodes.node("Mul", scores, nodes.number((features // heads) ** -0.5)), axis=-1)
    mixed = nodes.node("Transpose", nodes.node("MatMul", shares, values), perm=[0, 2, 1, 3])
    return _product(nodes, d, nodes.reshaped(mixed, *d.output_shape), "out_")


def _product(nodes: Nodes, d: Declaration, x: str, prefix: str = "") -> str:
    y = nodes.node("MatMul", x, nodes.array(d, f"{prefix}weight"))
    return nodes.node("Add", y, nodes.array(d, f"{prefix}bias")) if f"{prefix}bias" in d.slices else y


def _seen(nodes: Nodes, where: str, scores: str) -> str:
    return nodes.node("Where", where, scores, nodes.number(FORBIDDEN))


def positional(nodes: Nodes, d: Declaration, layer: layers.PositionalEncoding, x: str) -> str:
    if layer.kind == "learned":
        return nodes.node("Add", x, nodes.array(d, "encoding"))
    return nodes.node("Add", x, nodes.constant("sinusoids_" + "_".join(map(str, d.input)), sinusoids(*d.input)))


def causal_convolution(nodes: Nodes, d: Declaration, layer: layers.CausalConv, x: str) -> str:
    """A convolution after as many zeros as its kernel looks back."""
    dense = d.children[1]
    weight = nodes.value(dense, "weight").reshape(layer.kernel, layer.inputs, layer.outputs)
    arrays = [nodes.constant(f"{dense.name}.weight", weight.transpose(2, 1, 0))]
    arrays += [nodes.array(dense, "bias")] if layer.bias else []
    settings = {"dilations": [layer.dilation], "pads": [(layer.kernel - 1) * layer.dilation, 0], "kernel_shape": [layer.kernel]}
    y = nodes.node("Conv", nodes.node("Transpose", x, perm=[0, 2, 1]), *arrays, **settings)
    return nodes.activation(layer.activation, nodes.node("Transpose", y, perm=[0, 2, 1]))


# By the kinds of layers; the first one that fits counts.
WRITERS: dict[type, Callable[[Nodes, Declaration, Any, str], str]] = {
    layers.Recurrent: recurrent,
    layers.Attention: attention,
    layers.PositionalEncoding: positional,
    layers.CausalConv: causal_convolution,
    layers.Series: lambda nodes, d, layer, x: nodes.sequence(d, x),
    layers.Residual: residual,
    layers.Parallel: parallel,
    layers.Dense: dense,
    layers.Conv: convolution,
    layers.ConvTranspose: convolution,
    layers.MaxPool: lambda nodes, d, layer, x: nodes.node("MaxPool", x, **_window(layer)),
    layers.AvgPool: lambda nodes, d, layer, x: nodes.node(
        "AveragePool", x, **_window(layer), count_include_pad=int(layer.count_padding)
    ),
    layers.GlobalAvgPool: lambda nodes, d, layer, x: nodes.reshaped(nodes.node("GlobalAveragePool", x), *d.output_shape),
    layers.BatchNorm: batch_norm,
    layers.RMSNorm: rms_norm,
    layers.LayerNorm: layer_norm,
    layers.GroupNorm: group_norm,
    layers.Dropout: lambda nodes, d, layer, x: x,
    layers.Activation: lambda nodes, d, layer, x: nodes.activation(layer.f, x),
    layers.Scale: lambda nodes, d, layer, x: nodes.node("Mul", x, nodes.array(d, "scale")),
    layers.Shift: lambda nodes, d, layer, x: nodes.node("Add", x, nodes.array(d, "shift")),
    layers.Append: append,
    layers.Fourier: lambda nodes, d, layer, x: waves(nodes, d, x, 2.0 * math.pi * nodes.value(d, "frequencies")),
    layers.Periodic: periodic,
    layers.Chebyshev: chebyshev,
    layers.FourierSeries: fourier_series,
    layers.Select: lambda nodes, d, layer, x: nodes.node("Gather", x, nodes.integers(*layer.indices), axis=-1),
    layers.Reshape: lambda nodes, d, layer, x: nodes.reshaped(x, *d.output_shape),
    layers.LogSoftmax: lambda nodes, d, layer, x: nodes.node("LogSoftmax", x, axis=-1),
    layers.Softmax: lambda nodes, d, layer, x: nodes.node("Softmax", x, axis=-1),
    layers.Upsample: upsample,
    layers.Pad: pad,
    layers.Embedding: lambda nodes, d, layer, x: nodes.node("Gather", nodes.array(d, "weight"), x),
}
