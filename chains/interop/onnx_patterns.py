"""Groups of ONNX nodes that are one layer. Each function finds such a group by the name of what it gives.

It returns the name of what the group takes, and the layer with its parameters; None where the nodes are others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chains import layers
from chains.activations import ACTIVATIONS, Elu, LeakyRelu, resolve
from chains.activations import activation as custom_activation
from chains.expr.formulas import trace
from chains.expr.replay import FUNCTIONS
from chains.interop.onnx_graph import Graph, called, number
from chains.interop.onnx_nodes import NATIVE, OPERATIONS
from chains.interop.onnx_sequences import GATES, WITHIN
from chains.interop.parts import Part
from chains.layers.attention import FORBIDDEN
from chains.support.messages import shown

Found = tuple[str, Part] | None

NAMES = {operator: name for name, operator in NATIVE.items()} | {"Selu": "selu", "Identity": "identity"}
CELLS: dict[str, type[layers.Cell]] = {"RNN": layers.RNNCell, "LSTM": layers.LSTMCell, "GRU": layers.GRUCell}
SCALAR = {operator: FUNCTIONS[name] for name, operator in OPERATIONS.items()}


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
    """Where the ways to a node begin, if only operations on single numbers are on them."""
    node = graph.nodes.get(end)
    if node is None or not _elementwise(graph, node):
        return None
    start = graph.source(end)
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
    _, behind, node, before = nodes
    operator, cell = node.op_type, CELLS[node.op_type]
    every = graph.data(behind)[0] == node.output[0]
    if _perm(graph, before) != [1, 0, 2] or _perm(graph, behind) != ([2, 0, 1, 3] if every else [1, 0, 2]):
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
    params = []
    for k in range(count):
        own, second = np.split(biases[k], 2)
        params += [_gates(cell, weights[k].T), _gates(cell, recurrents[k].T)]
        two = getattr(layer.cell, "reset_after", False)
        params += [_gates(cell, own), _gates(cell, second)] if two else [_gates(cell, own + second)]
        params += [array[k, 0] for array in states]
    return graph.data(before)[0], Part(layer, params)


def _gates(cell: type[layers.Cell], array: np.ndarray) -> np.ndarray:
    """An array (..., gates * units) of ONNX's order of gates, in the order here."""
    order = GATES[cell]
    parts = np.split(array, len(order), axis=-1)
    return np.concatenate([parts[order.index(k)] for k in range(len(order))], axis=-1)


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
    behind = graph.path(graph.data(out[-1])[0], "Reshape", "Transpose") if out else []
    mix = graph.nodes.get(graph.data(behind[-1])[0]) if behind else None
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
                f"{called(masked[0])} masks what attention cannot here: only later steps, and those behind lengths"
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
    """What a product with a constant takes, and its nodes: that of the bias, where there is one, and the product."""
    nodes = graph.path(end, "Add", "MatMul")
    if not nodes or graph.constants(nodes[0])[0].ndim != 1:  # else the addition is a layer, such as a learned encoding
        nodes = graph.path(end, "MatMul")
    return (graph.data(nodes[-1])[0], nodes) if nodes else ("", [])


def causal_convolution(graph: Graph, end: str) -> Found:
    """A convolution between transpositions, padded with zeros in front as far as its kernel looks back."""
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
