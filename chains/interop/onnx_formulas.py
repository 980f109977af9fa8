"""Operations of ONNX on single numbers, as activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

from chains import layers
from chains.activations import ACTIVATIONS, Activation, Elu, LeakyRelu, activation, resolve
from chains.expr import exp, floor, maximum, minimum, tanh, trace, where
from chains.expr.formulas import FUNCTIONS
from chains.interop.onnx_graph import Graph, number
from chains.interop.onnx_model import called
from chains.interop.parts import Part
from chains.interop.to_onnx import NATIVE, OPERATIONS

Attributes = dict[str, Any]
NAMES = {operator: name for name, operator in NATIVE.items()} | {"Selu": "selu", "Identity": "identity"}


def _clip(a: Attributes, x: Any, low: Any = None, high: Any = None) -> Any:
    low, high = a.get("min", low), a.get("max", high)
    x = x if low is None else maximum(x, low)
    return x if high is None else minimum(x, high)


def _selu(a: Attributes, x: Any) -> Any:
    alpha, gamma = a.get("alpha", 1.6732631921768188), a.get("gamma", 1.0507010221481323)
    return gamma * where(x > 0.0, x, alpha * exp(x) - alpha)


def _gelu(a: Attributes, x: Any) -> Any:
    if a.get("approximate", b"none") == b"none":
        return resolve("gelu")(x)
    return 0.5 * x * (1.0 + tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def _shrink(a: Attributes, x: Any) -> Any:
    edge, bias = a.get("lambd", 0.5), a.get("bias", 0.0)
    return where(x < -edge, x + bias, where(x > edge, x - bias, 0.0))


def _celu(a: Attributes, x: Any) -> Any:
    alpha = a.get("alpha", 1.0)
    return maximum(x, 0.0) + minimum(alpha * (exp(x / alpha) - 1.0), 0.0)


def _of_all(name: str, a: Attributes, *values: Any) -> Any:
    return reduce(FUNCTIONS[name], values)


# Functions of the attributes and the operands.
OPERATORS: dict[str, Callable[..., Any]] = {
    **{operator: partial(lambda f, a, *values: f(*values), FUNCTIONS[name]) for name, operator in OPERATIONS.items()},
    **{operator: partial(lambda name, a, x: resolve(name)(x), name) for operator, name in NAMES.items()},
    **{operator: partial(_of_all, name) for operator, name in (("Max", "max"), ("Min", "min"), ("Sum", "add"))},
    "Elu": lambda a, x: Elu(a.get("alpha", 1.0))(x),
    "LeakyRelu": lambda a, x: LeakyRelu(a.get("alpha", 0.01))(x),
    "Clip": _clip,
    "Selu": _selu,
    "Gelu": _gelu,
    "Celu": _celu,
    "Shrink": _shrink,
    "HardSigmoid": lambda a, x: minimum(maximum(a.get("alpha", 0.2) * x + a.get("beta", 0.5), 0.0), 1.0),
    "HardSwish": lambda a, x: x * minimum(maximum(x / 6.0 + 0.5, 0.0), 1.0),
    "ThresholdedRelu": lambda a, x: where(x > a.get("alpha", 1.0), x, 0.0),
    "PRelu": lambda a, x, slope: where(x < 0.0, slope * x, x),
    "Swish": lambda a, x: x * resolve("sigmoid")(a.get("alpha", 1.0) * x),
    "Reciprocal": lambda a, x: 1.0 / x,
    "Ceil": lambda a, x: -floor(-x),
    "Cast": lambda a, x: x,  # among equal types
    "Tan": lambda a, x: FUNCTIONS["sin"](x) / FUNCTIONS["cos"](x),
}
AFFINE = ("Add", "Sub", "Mul", "Div", "Sum")  # with arrays of length 1 they may be layers, since these may be trained


def formula(graph: Graph, end: str, single: bool = True) -> tuple[str, list[Part]] | None:
    """Operations on single numbers: a custom activation, or a built-in one of the same formula."""
    start = _above(graph, end, single)
    if start is None:
        return None
    while (further := _above(graph, start, single)) is not None:
        start = further
    nodes = graph.between(start, end)
    if all(node.op_type in ("Identity", "Cast") for node in nodes):
        return start, []

    def function(x: Any) -> Any:
        values = {start: x}
        for node in nodes:
            names = list(node.input)
            while names and not names[-1]:
                names.pop()
            operands = [values[name] if name in values else _constant(graph, name) for name in names]
            values[node.output[0]] = OPERATORS[node.op_type](graph.attributes(node), *operands)
        return values[end]

    try:
        return start, [Part(layers.Activation(_built_in(nodes, graph) or _named(function)))]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{called(nodes[-1])}: {error}") from error


def _constant(graph: Graph, name: str) -> float | None:
    return number(graph.arrays[name]) if name else None


def _built_in(nodes: list[Any], graph: Graph) -> Activation | None:
    """The activation of a single node that is one of chains."""
    node, a = nodes[0], graph.attributes(nodes[0])
    if len(nodes) > 1:
        return None
    if node.op_type in ("Elu", "LeakyRelu"):
        return Elu(a.get("alpha", 1.0)) if node.op_type == "Elu" else LeakyRelu(a.get("alpha", 0.01))
    is_plain = a.get("approximate", b"none") == b"none" and not {"alpha", "gamma"} & set(a)
    return resolve(NAMES[node.op_type]) if node.op_type in NAMES and is_plain else None


def _named(function: Callable[[Any], Any]) -> Activation:
    traced = trace(function, 1)
    for built_in in ACTIVATIONS.values():
        if trace(built_in.function, 1) == traced:
            return built_in
    return activation("formula", function)


def _above(graph: Graph, end: str, single: bool) -> str | None:
    """The start of the paths to a node, if only operations on single numbers are on them."""
    node = graph.nodes.get(end)
    if node is None or not _elementwise(graph, node, single) or _is_layer(graph, node):
        return None
    start = graph.sources[end]
    if not graph.is_float(start):
        return None
    return start if all(_elementwise(graph, each, single) for each in graph.between(start, end)) else None


def _elementwise(graph: Graph, node: Any, single: bool) -> bool:
    """Whether a node works on numbers: its data and constants of one entry, which have no axes if `single` and it is affine."""
    if node.op_type not in OPERATORS or len(node.output) != 1:
        return False
    if node.op_type == "Cast" and graph.known.element(node.input[0]) != graph.known.element(node.output[0]):
        return False
    data, sample = graph.data(node), graph.sample(node.output[0])
    if sample is None or any(graph.sample(name) != sample for name in data):
        return False
    rest = [name for name in node.input if name and name not in data]
    return all(name in graph.arrays and _is_number(graph.arrays[name], len(sample), node, single) for name in rest)


def _is_number(array: Any, rank: int, node: Any, single: bool) -> bool:
    has_axes = not (single and node.op_type in AFFINE)
    return array.size == 1 and array.ndim <= (rank + 1 if has_axes else 0) and array.dtype.kind in "fb"


def _is_layer(graph: Graph, node: Any) -> bool:
    """Whether a sum, difference, product or quotient with a constant of one entry is a layer, whose constant may be trained."""
    data, sample = graph.data(node), graph.sample(node.output[0])
    if node.op_type not in AFFINE or len(data) != 1 or len(node.input) != 2 or sample is None:
        return False
    if node.op_type == "Div" and node.input[0] != data[0]:
        return False  # no layer divides a constant
    (array,) = graph.constants(node)
    is_sum = node.op_type in ("Add", "Sum") or (node.op_type == "Sub" and node.input[0] == data[0])
    # An entry of a sample has an entry of the constant, unless the constant is repeated along all of its axes.
    return 1 in sample[len(sample) - min(array.ndim, len(sample)) :] or (is_sum and graph.lacks_bias(data[0]))
