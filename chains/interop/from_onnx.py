"""ONNX models as networks of this package: the graph, the groups of nodes that are one layer, the layers of single nodes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np

from chains import layers
from chains.activations import ACTIVATIONS, Elu, LeakyRelu, resolve
from chains.activations import activation as custom_activation
from chains.backends import Backend, Cupy
from chains.chain import Chain
from chains.expr.formulas import FUNCTIONS, trace
from chains.interop.parts import Part, assembled, joined, needed
from chains.interop.to_onnx import GATES, NATIVE, OPERATIONS, WITHIN, with_gates
from chains.layers.attention import FORBIDDEN, sinusoids
from chains.support.messages import shown

Found = tuple[str, Part] | None

NAMES = {operator: name for name, operator in NATIVE.items()} | {"Selu": "selu", "Identity": "identity"}
CELLS: dict[str, type[layers.Cell]] = {"RNN": layers.RNNCell, "LSTM": layers.LSTMCell, "GRU": layers.GRUCell}
SCALAR = {operator: FUNCTIONS[name] for name, operator in OPERATIONS.items()}


def from_onnx(model: Any, *, backend: str | Cupy | Backend = "auto") -> tuple[Chain, np.ndarray, np.ndarray | None]:
    """A network with the structure and the weights of an ONNX model.

    Parameters
    ----------
    model : onnx.ModelProto, str or path
        The model, or its file. The first axis of its input is the batch; the other lengths must be known. A second input
        "lengths" has the `lengths` of calls. Branches that begin at one array and are added or concatenated become `Residual`
        and `Parallel`; operations on single numbers become custom activations.
    backend : str or backends.Cupy
        That of the network; see `chains.Chain`.

    Returns
    -------
    net, p, state
        As of `from_torch`; the type is that of the model's input.

    Raises
    ------
    ValueError
        For operators, attributes and branches without a counterpart here; the error names the node.
    ImportError
        If onnx is missing.
    """
    onnx = needed("onnx")
    if isinstance(model, (str, os.PathLike)):
        model = onnx.load(os.fspath(model))
    known = {each.name for each in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in known and each.name != "lengths"]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        raise ValueError(f"the model must have one input and one output, got {len(inputs)} and {len(model.graph.output)}")
    (first,), (last,) = inputs, model.graph.output
    shape = tuple(axis.dim_value for axis in first.type.tensor_type.shape.dim)[1:]
    if not all(shape):
        raise ValueError(f"the lengths of the input's shape (batch, ...) must be known, got {shape}")
    graph = Graph(onnx, model.graph, first.name)
    if last.name != first.name and last.name not in graph.nodes:
        raise ValueError(f"the output {last.name!r} does not depend on the input {first.name!r}")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(last.type.tensor_type.elem_type)
    parts = _parts(graph, first.name, last.name)
    return assembled(parts, shape, backend, np.float64 if dtype == np.float64 else np.float32)


def _parts(graph: Graph, start: str, end: str) -> list[Part]:
    """The layers between two arrays; the first array is on every path to the second."""
    hidden = graph.nodes.pop(start, None)  # so that no pattern reaches across the start
    steps: list[Part | Any] = []  # from the end to the start; a node of one branch becomes a layer after the nodes before it
    while end != start:
        node = graph.nodes[end]
        found = next((found for pattern in PATTERNS if (found := pattern(graph, end)) is not None), None)
        if found is not None:
            before, part = found
            graph.take(*graph.between(before, end))
            steps.append(part)
        elif len(graph.data(node)) == 1:
            (before,) = graph.data(node)
            graph.take(node)
            steps.append(node)
        else:
            before = graph.sources[end]
            graph.take(node)
            steps.append(_join(graph, node, [_parts(graph, before, name) for name in graph.data(node)]))
        end = before
    if hidden is not None:
        graph.nodes[start] = hidden
    parts: list[Part] = []
    for step in reversed(steps):
        made = step if isinstance(step, Part) else _part(graph, step, parts)
        if made is not None:
            parts.append(made)
    return joined(parts)


def _part(graph: Graph, node: Any, parts: list[Part]) -> Part | None:
    """The layer of a node, after these; None for a node that changes the last of them, or nothing."""
    made = MAKERS.get(node.op_type)
    if made is None:
        raise ValueError(f"there is nothing like the operator {node.op_type} of the node {node.name!r} here")
    if node.op_type in ("Gemm", "MatMul") and node.input[0] in graph.arrays:
        raise ValueError(f"{called(node)} must multiply its input by a constant, not a constant by its input")
    try:
        return made(graph.constants(node), graph.attributes(node), parts)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{called(node)}: {error}") from error


def _join(graph: Graph, node: Any, branches: list[list[Part]]) -> Part:
    """The layer that joins branches."""
    params = [array for branch in branches for part in branch for array in part.params]
    state = [array for branch in branches for part in branch for array in part.state]
    if node.op_type == "Add":
        inner, shortcut = sorted(branches, key=len, reverse=True) if not branches[0] else branches
        short = layers.Series(*(part.layer for part in shortcut)) if shortcut else None
        return Part(layers.Residual(*(part.layer for part in inner), shortcut=short), params, state)
    series = [layers.Series(*(part.layer for part in branch)) if len(branch) != 1 else branch[0].layer for branch in branches]
    if node.op_type == "Sum":
        return Part(layers.Parallel(*series, join="sum"), params, state)
    if node.op_type == "Concat" and not graph.constants(node):
        axis = graph.attributes(node)["axis"]
        return Part(layers.Parallel(*series, axis=axis - 1 if axis > 0 else axis), params, state)
    raise ValueError(f"{called(node)} joins branches by {node.op_type}, which no layer here does")


class Graph:
    """The nodes of a model between its input and its output, with the array that each comes from.

    Names stand for arrays. `arrays` are the constants. An array that depends on the input has a *source*: the nearest array
    that is on every path to it from the input. Branches that a node joins begin there.
    """

    def __init__(self, onnx: Any, graph: Any, first: str) -> None:
        self.onnx = onnx
        self.arrays = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
        self.nodes: dict[str, Any] = {}  # by the names of their outputs
        self.sources: dict[str, str] = {}  # the nearest array on every path from the input
        self._depths = {first: 0}
        for node in graph.node:
            self._add(node)
        self._taken: set[str] = set()

    def _add(self, node: Any) -> None:
        data = [] if node.op_type == "Shape" else self.data(node)
        if data:
            source = reduce(self._common, data)
            for name in node.output:
                self.nodes[name], self.sources[name], self._depths[name] = node, source, self._depths[source] + 1
        elif node.op_type == "Constant":
            self.arrays[node.output[0]] = self.onnx.numpy_helper.to_array(self.attributes(node)["value"])
        elif node.op_type == "Expand" and node.input[0] in self.arrays:  # the same for each sample
            self.arrays[node.output[0]] = self.arrays[node.input[0]]

    def _common(self, a: str, b: str) -> str:
        while a != b:
            if self._depths[a] < self._depths[b]:
                a, b = b, a
            a = self.sources[a]
        return a

    def data(self, node: Any) -> list[str]:
        """Those of its inputs that depend on the input of the model."""
        return [name for name in node.input if name in self._depths]

    def constants(self, node: Any) -> list[np.ndarray]:
        return [self.arrays[name] for name in node.input if name in self.arrays]

    def attributes(self, node: Any) -> dict[str, Any]:
        found = {each.name: self.onnx.helper.get_attribute_value(each) for each in node.attribute}
        return {name: number(np.float32(value)) if isinstance(value, float) else value for name, value in found.items()}

    def path(self, name: str, *operators: str) -> list[Any]:
        """The nodes with these operators, from the one that gives `name` upwards; empty if there are others."""
        found = []
        for operator in operators:
            node = self.nodes.get(name)
            if node is None or node.op_type != operator or len(self.data(node)) != 1:
                return []
            found.append(node)
            (name,) = self.data(node)
        return found

    def between(self, start: str, end: str) -> list[Any]:
        """The nodes on the paths from `start` to `end`, each after the nodes of its inputs."""
        found: list[Any] = []
        seen: set[str] = set()

        def visit(name: str) -> None:
            node = self.nodes.get(name)
            if name != start and node is not None and node.output[0] not in seen:
                seen.add(node.output[0])
                for before in self.data(node):
                    visit(before)
                found.append(node)

        visit(end)
        return found

    def take(self, *nodes: Any) -> None:
        """Mark nodes as parts of the network. Raises ValueError for one that is a part already."""
        for node in nodes:
            if node.output[0] in self._taken:
                raise ValueError(f"{called(node)} is in two branches, which is not a layer here")
            self._taken.add(node.output[0])


def number(value: Any) -> float:
    """A number of NumPy, by the fewest digits that mean it: 1e-05 for the float32 9.99999975e-06."""
    return float(str(value[()]))


def called(node: Any) -> str:
    """A node in messages."""
    return f"the node {node.name or node.op_type}"


# Groups of nodes that are one layer. Each function finds such a group by the name of its output. It returns the name of the
# group's input, and the layer with its parameters; None for other nodes.


def formula(graph: Graph, end: str) -> Found:
    """Operations on single numbers: a custom activation, or a built-in one of the same formula."""
    start = _above(graph, end)
    if start is None:
        return None
    while (further := _above(graph, start)) is not None:
        start = further
    nodes = graph.between(start, end)
    if len(nodes) == 1 and _own_layer(nodes[0].op_type):
        return None

    def function(x: Any) -> Any:
        values = {start: x}
        for node in nodes:
            operands = [values[name] if name in values else number(graph.arrays[name]) for name in node.input]
            values[node.output[0]] = _operation(graph, node)(*operands)
        return values[end]

    traced = trace(function, 1)
    for built_in in ACTIVATIONS.values():
        if trace(built_in.function, 1) == traced:
            return start, Part(layers.Activation(built_in))
    return start, Part(layers.Activation(custom_activation("formula", function)))


def _own_layer(operator: str) -> bool:
    return operator in NAMES or operator in ("Elu", "LeakyRelu")


def _above(graph: Graph, end: str) -> str | None:
    """The start of the paths to a node, if only operations on single numbers are on them."""
    node = graph.nodes.get(end)
    if node is None or not _elementwise(graph, node):
        return None
    start = graph.sources[end]
    return start if all(_elementwise(graph, each) for each in graph.between(start, end)) else None


def _elementwise(graph: Graph, node: Any) -> bool:
    data = graph.data(node)
    scalars = [name for name in node.input if name in graph.arrays and graph.arrays[name].ndim == 0]
    return (node.op_type in SCALAR or _own_layer(node.op_type)) and len(data) + len(scalars) == len(node.input)


def _operation(graph: Graph, node: Any) -> Callable[..., Any]:
    if node.op_type in SCALAR:
        return SCALAR[node.op_type]
    settings = graph.attributes(node)
    if node.op_type in ("Elu", "LeakyRelu"):
        return Elu(settings.get("alpha", 1.0)) if node.op_type == "Elu" else LeakyRelu(settings.get("alpha", 0.01))
    if settings.get("approximate", b"none") != b"none":
        raise ValueError(f"{called(node)}: approximate must be none")
    return resolve(NAMES[node.op_type])


def rms_norm(graph: Graph, end: str) -> Found:
    """``x / sqrt(mean(x * x) + eps)``, and ``* weight``."""
    weight: list[np.ndarray] = []
    above = graph.path(end, "Mul")
    if above:
        weight, (end,) = graph.constants(above[0]), graph.data(above[0])
    node = graph.nodes.get(end)
    if node is None or node.op_type != "Div" or len(graph.data(node)) != 2:
        return None
    start, root = graph.data(node)
    path = graph.path(root, "Sqrt", "Add", "ReduceMean")
    square = graph.nodes.get(graph.data(path[-1])[0]) if path else None
    if square is None or square.op_type != "Mul" or graph.data(square) != [start, start]:
        return None
    (eps,), (axes,) = graph.constants(path[1]), graph.constants(path[2])
    shape = weight[0].shape if weight else None
    if axes.tolist() != list(range(-len(shape or (1,)), 0)):
        if shape and axes.tolist() == [-1]:
            return None  # the product is a layer, and the norm without weights another
        raise ValueError(f"{called(path[2])}: the axes must be the last ones, as many as the weight has, got {axes.tolist()}")
    return start, Part(layers.RMSNorm(shape, eps=number(eps), affine=bool(weight)), weight)


def recurrent(graph: Graph, end: str) -> Found:
    """RNN, LSTM or GRU between transpositions, since ONNX has the time axis first."""
    nodes = next(filter(None, (graph.path(end, "Reshape", "Transpose", name, "Transpose") for name in CELLS)), None)
    if nodes is None:
        return None
    _, after, node, before = nodes
    operator, cell = node.op_type, CELLS[node.op_type]
    every = graph.data(after)[0] == node.output[0]
    if _perm(graph, before) != [1, 0, 2] or _perm(graph, after) != ([2, 0, 1, 3] if every else [1, 0, 2]):
        return None
    a = graph.attributes(node)
    refused = {"clip", "input_forget", "layout"} & set(a) | ({"activations"} & set(a) if operator != "RNN" else set())
    if refused or a.get("direction") == b"reverse":
        raise ValueError(f"{called(node)}: {', '.join(refused) or 'the direction reverse'} is not available here")
    arrays = [graph.arrays.get(name) for name in node.input]
    weights, recurrents, biases, _, *initial = arrays[1:] + [None] * (8 - len(arrays))
    if weights is None or recurrents is None:
        raise ValueError(f"{called(node)}: the weights must be constants")
    count, units = len(weights), recurrents.shape[-1]
    if biases is None:
        biases = np.zeros((count, 2 * len(GATES[cell]) * units), weights.dtype)
    states = [array for array in initial if array is not None]
    first = {"initial_state": "parameter"} if states else {}
    inputs, settings = weights.shape[-1], {"return_sequences": every, "bidirectional": count == 2, **first}
    layer: layers.Recurrent
    if cell is layers.RNNCell:
        layer = layers.RNN(inputs, units, _within(a), **settings)
    elif cell is layers.LSTMCell:
        layer = layers.LSTM(inputs, units, **settings)
    else:
        layer = layers.GRU(inputs, units, reset_after=bool(a.get("linear_before_reset", 0)), **settings)
    params, order = [], np.argsort(GATES[cell]).tolist()  # from ONNX's order of gates to the one here
    for k in range(count):
        own, second = np.split(biases[k], 2)
        added = [own, second] if getattr(layer.cell, "reset_after", False) else [own + second]
        params += [with_gates(array, order) for array in (weights[k].T, recurrents[k].T, *added)]
        params += [array[k, 0] for array in states]
    return graph.data(before)[0], Part(layer, params)


def _within(a: dict[str, Any]) -> Any:
    """The activation of an RNN."""
    names = {name.decode() for name in a.get("activations", [b"Tanh"])}
    alphas = a.get("activation_alpha", [])
    if names == {"Elu"} or names == {"LeakyRelu"}:
        make, default = (Elu, 1.0) if names == {"Elu"} else (LeakyRelu, 0.01)
        return make(alphas[0] if alphas else default)
    known = [name for name, operator in WITHIN.items() if names == {operator}]
    if not known:
        raise ValueError(f"the activations of an RNN must be one of {', '.join(WITHIN.values())}, got {sorted(names)}")
    return known[0]


def _perm(graph: Graph, node: Any) -> list[int]:
    return list(graph.attributes(node).get("perm", []))


def attention(graph: Graph, end: str) -> Found:
    """Attention of a sequence to itself, as `to_onnx` writes it."""
    _, out = _product(graph, end)
    after = graph.path(graph.data(out[-1])[0], "Reshape", "Transpose") if out else []
    mix = graph.nodes.get(graph.data(after[-1])[0]) if after else None
    if mix is None or mix.op_type != "MatMul" or len(graph.data(mix)) != 2:
        return None
    shares, values = graph.data(mix)
    above = graph.path(shares, "Softmax", "Mul")
    if not above:
        return None
    (scores,), ((scale,),) = graph.data(above[1]), [np.atleast_1d(each) for each in graph.constants(above[1])]
    causal = False
    while masked := graph.path(scores, "Where"):
        where, _, forbidden = (graph.arrays.get(name) for name in masked[0].input)
        if forbidden is None or forbidden > FORBIDDEN / 2 or (where is not None and (where != np.tri(*where.shape)).any()):
            raise ValueError(
                f"{called(masked[0])} masks steps that attention cannot mask here: only later ones, and those after the lengths"
            )
        causal, (scores,) = causal or where is not None, graph.data(masked[0])
    product = graph.nodes.get(scores)
    heads = [graph.path(name, "Transpose", "Reshape", "Split") for name in (*(graph.data(product) if product else ()), values)]
    if product is None or product.op_type != "MatMul" or not all(heads) or len({id(path[2]) for path in heads}) > 1:
        return None
    (shape,), (projected,) = graph.constants(heads[0][1]), graph.data(heads[0][2])
    start, into = _product(graph, projected)
    (weight,) = graph.constants(into[-1]) if into else ([np.empty(0)])
    if [_perm(graph, path[0]) for path in heads] != [[0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]] or weight.ndim != 2:
        return None
    _, _, count, size = shape.tolist()
    if not np.isclose(scale, size**-0.5):
        raise ValueError(f"{called(above[1])}: the scale must be {size**-0.5:g}, got {shown(float(scale))}")
    layer = layers.Attention(len(weight), count, causal=causal, bias=len(into) == 2)
    if len(out) != len(into):
        raise ValueError(f"{called(mix)}: both products of attention must have biases, or none")
    return start, Part(layer, [array for nodes in (into, out) for node in reversed(nodes) for array in graph.constants(node)])


def _product(graph: Graph, end: str) -> tuple[str, list[Any]]:
    """The input of a product with a constant, and its nodes: that of the bias, if there is one, and the product."""
    nodes = graph.path(end, "Add", "MatMul")
    if not nodes or graph.constants(nodes[0])[0].ndim != 1:  # else the addition is a layer, such as a learned encoding
        nodes = graph.path(end, "MatMul")
    return (graph.data(nodes[-1])[0], nodes) if nodes else ("", [])


def causal_convolution(graph: Graph, end: str) -> Found:
    """A convolution between transpositions, with as many zeros in front as its kernel looks back."""
    nodes = graph.path(end, "Transpose", "Conv", "Transpose")
    if not nodes or not _perm(graph, nodes[0]) == _perm(graph, nodes[2]) == [0, 2, 1]:
        return None
    a, (weight, *bias) = graph.attributes(nodes[1]), graph.constants(nodes[1])
    outputs, inputs, kernel = weight.shape
    dilation = a.get("dilations", [1])[0]
    if a.get("pads") != [(kernel - 1) * dilation, 0] or a.get("strides", [1]) != [1] or a.get("group", 1) != 1:
        raise ValueError(
            f"{called(nodes[1])}: between transpositions there must be a causal convolution, of one group and stride 1"
        )
    layer = layers.CausalConv(inputs, outputs, kernel, dilation=dilation, bias=bool(bias))
    return graph.data(nodes[2])[0], Part(layer, [weight.transpose(2, 1, 0).reshape(kernel * inputs, outputs), *bias])


PATTERNS: list[Callable[[Graph, str], Found]] = [formula, rms_norm, recurrent, attention, causal_convolution]


# The layers of single nodes, from their constants, their attributes and the layers before them.
Make = Callable[[list[np.ndarray], dict[str, Any], list[Part]], Part | None]


def _gemm(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    if a.get("alpha", 1.0) != 1.0 or a.get("beta", 1.0) != 1.0 or a.get("transA", 0):
        raise ValueError("alpha and beta must be 1, and transA 0")
    weight, *bias = arrays
    weight = weight.T if a.get("transB", 0) else weight
    return Part(layers.Dense(*weight.shape, bias=bool(bias)), [weight, *bias])


def _add(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part | None:
    """The bias of the product before; else a shift."""
    last, bias = parts[-1] if parts else None, arrays[0]
    if (
        last is not None
        and isinstance(last.layer, layers.Dense)
        and not last.layer.bias
        and bias.shape == (last.layer.outputs,)
    ):
        last.layer = layers.Dense(last.layer.inputs, last.layer.outputs)
        last.params.append(bias)
        return None
    if bias.ndim == 2 and np.array_equal(bias, sinusoids(*bias.shape).astype(bias.dtype)):
        return Part(layers.PositionalEncoding())
    return Part(layers.Shift(), [bias])


def _window(a: dict[str, Any], ndim: int) -> dict[str, Any]:
    if a.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise ValueError(f"auto_pad must be NOTSET, got {a['auto_pad'].decode()}")
    pads = a.get("pads", [0] * 2 * ndim)
    return {"stride": tuple(a.get("strides", [1] * ndim)), "padding": tuple(zip(pads[:ndim], pads[ndim:], strict=True))}


def _convolution(kind: type, arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    weight, *bias = arrays
    ndim, groups = weight.ndim - 2, a.get("group", 1)
    transposed = kind is layers.ConvTranspose
    if "output_shape" in a:
        raise ValueError("output_shape must be left out")
    rest = {"output_padding": tuple(a.get("output_padding", [0] * ndim))} if transposed else {}
    counts = (weight.shape[0], weight.shape[1] * groups) if transposed else (weight.shape[1] * groups, weight.shape[0])
    layer = kind(
        *counts, weight.shape[2:], **_window(a, ndim), dilation=tuple(a.get("dilations", [1] * ndim)), groups=groups,
        bias=bool(bias), **rest,
    )  # fmt: skip
    return Part(layer, [weight, *bias])


def _pool(kind: type, arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    if a.get("ceil_mode", 0) or set(a.get("dilations", [1])) != {1}:
        raise ValueError("ceil_mode must be 0 and dilations 1")
    size = tuple(a["kernel_shape"])
    rest = {"count_padding": bool(a.get("count_include_pad", 0))} if kind is layers.AvgPool else {}
    return Part(kind(size, **_window(a, len(size)), **rest))


def _batch_norm(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    if a.get("training_mode", 0):
        raise ValueError("training_mode must be 0")
    scale, shift, mean, variance = arrays
    layer = layers.BatchNorm(len(scale), eps=a.get("epsilon", 1e-5), momentum=1.0 - a.get("momentum", 0.9))
    return Part(layer, [scale, shift], [mean, variance])


def _layer_norm(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    if a.get("axis", -1) != -arrays[0].ndim:
        raise ValueError(f"axis must be {-arrays[0].ndim}, got {a.get('axis', -1)}")
    scale = arrays[0]
    shift = arrays[1] if len(arrays) > 1 else np.zeros_like(scale)
    return Part(layers.LayerNorm(scale.shape, eps=a.get("epsilon", 1e-5)), [scale, shift])


def _append(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part | None:
    if not arrays:  # one branch alone
        return None
    if a["axis"] != -1 or len(arrays) != 1 or arrays[0].ndim != 1:
        raise ValueError("a concatenated constant must be an array of one axis, after the last axis of the input")
    return Part(layers.Append(**{f"value_{k}": float(value) for k, value in enumerate(arrays[0])}), list(arrays[0][:, None]))


def _upsample(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    how = a.get("mode", b"nearest"), a.get("coordinate_transformation_mode", b""), a.get("nearest_mode", b"")
    scales = arrays[-1]
    if how != (b"nearest", b"asymmetric", b"floor") or (scales != np.floor(scales)).any() or (scales[:2] != 1).any():
        raise ValueError("scales must be whole, the mode nearest, asymmetric and floor")
    return Part(layers.Upsample(tuple(map(int, scales[2:]))))


def _pad(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    pads, *value = arrays
    before, after = np.split(pads, 2)
    if a.get("mode", b"constant") != b"constant" or any(value) or any((*before[:2], *after[:2])):
        raise ValueError("the padding must be zeros, and none at the batch and the channels")
    return Part(layers.Pad(tuple(zip(before[2:].tolist(), after[2:].tolist(), strict=True))))


def _gather(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    if arrays[0].dtype.kind == "i":  # the constant is the index, else the table
        if a.get("axis", 0) != -1 or arrays[0].ndim != 1:
            raise ValueError("the indices must have one axis, and the axis must be -1")
        return Part(layers.Select(arrays[0].tolist()))
    if a.get("axis", 0) != 0 or arrays[0].ndim != 2:
        raise ValueError("the table must have two axes, and rows must be taken")
    return Part(layers.Embedding(*arrays[0].shape), arrays)


def _reshape(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    front, *shape = arrays[0].tolist()
    if front not in (-1, 0) or any(length == 0 for length in shape) or (front == -1 and -1 in shape):
        raise ValueError(f"the shape must be the batch and the lengths of a sample, got {arrays[0].tolist()}")
    return Part(layers.Reshape(*shape))


def _flatten(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    if a.get("axis", 1) != 1:
        raise ValueError(f"axis must be 1, got {a['axis']}")
    return Part(layers.Flatten())


def _softmax(kind: type, arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    if a.get("axis", -1) != -1:
        raise ValueError(f"axis must be -1, got {a['axis']}")
    return Part(kind())


def _activation(name: str, arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part | None:
    if a.get("approximate", b"none") != b"none":
        raise ValueError("approximate must be none")
    return None if name == "identity" else Part(layers.Activation(name))


MAKERS: dict[str, Make] = {
    "Gemm": _gemm,
    "MatMul": lambda arrays, a, parts: Part(layers.Dense(*arrays[0].shape, bias=False), arrays),
    "Add": _add,
    "Mul": lambda arrays, a, parts: Part(layers.Scale(), arrays),
    "Conv": partial(_convolution, layers.Conv),
    "ConvTranspose": partial(_convolution, layers.ConvTranspose),
    "MaxPool": partial(_pool, layers.MaxPool),
    "AveragePool": partial(_pool, layers.AvgPool),
    "GlobalAveragePool": lambda arrays, a, parts: Part(layers.Series(layers.GlobalAvgPool(), layers.Reshape(-1, 1, 1))),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "GroupNormalization": lambda arrays, a, parts: Part(
        layers.GroupNorm(a["num_groups"], len(arrays[0]), eps=a.get("epsilon", 1e-5)), arrays
    ),
    "Concat": _append,
    "Sum": partial(_activation, "identity"),  # of one
    "Resize": _upsample,
    "Pad": _pad,
    "Gather": _gather,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Softmax": partial(_softmax, layers.Softmax),
    "LogSoftmax": partial(_softmax, layers.LogSoftmax),
    "Elu": lambda arrays, a, parts: Part(layers.Activation(Elu(a.get("alpha", 1.0)))),
    "LeakyRelu": lambda arrays, a, parts: Part(layers.Activation(LeakyRelu(a.get("alpha", 0.01)))),
    "Dropout": lambda arrays, a, parts: Part(layers.Dropout(float(arrays[0]) if arrays else a.get("ratio", 0.5))),
    **{operator: partial(_activation, name) for operator, name in NAMES.items()},
}
