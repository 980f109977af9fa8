"""Groups of ONNX's nodes that are one layer.

Each function finds such a group by the name of its output. It returns the name of the group's input, and the layers with their
parameters; None for other nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from chains import layers
from chains.interop.onnx_copies import numbers, parts_of, places
from chains.interop.onnx_formulas import formula
from chains.interop.onnx_graph import Graph, number
from chains.interop.onnx_model import BATCHES, called
from chains.interop.onnx_recurrent import recurrent
from chains.interop.parts import Part
from chains.layers.attention import FORBIDDEN
from chains.support.messages import shown

Found = tuple[str, list[Part]] | None


def layer_norm(graph: Graph, end: str) -> Found:
    """``(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias``, or without the last two, or the last one."""
    weight, bias, top = _affine(graph, end)
    centred, root = _quotient(graph, top)
    path, difference = graph.path(root, "Sqrt", "Add", "ReduceMean"), graph.nodes.get(centred)
    if not path or difference is None or difference.op_type != "Sub" or len(graph.data(difference)) != 2:
        return None
    start, mean = difference.input
    means = graph.path(mean, "ReduceMean")
    if not means or graph.data(means[0]) != [start] or not _is_square(graph, path[2].input[0], centred):
        return None
    sample, axes = graph.sample(start), graph.axes(means[0])
    if sample is None or axes is None or axes != graph.axes(path[2]) or not _keeps(graph, means[0], path[2]):
        return None
    shape = sample[len(sample) - len(axes) :]
    if axes != list(range(len(sample) - len(axes) + 1, len(sample) + 1)):
        raise ValueError(f"{called(means[0])}: the axes must be the last ones, got {axes}")
    arrays = [] if weight is None else [weight, np.zeros_like(weight) if bias is None else bias]
    if any(array.shape != shape for array in arrays):
        return None  # they are layers, and the norm without weights another
    layer = layers.LayerNorm(shape, eps=number(graph.constants(path[1])[0]), affine=bool(arrays))
    return start, [Part(layer, arrays)]


def _quotient(graph: Graph, end: str) -> tuple[str, str]:
    """Numerator and denominator of a quotient, or of a product with a reciprocal; empty for other nodes."""
    node = graph.nodes.get(end)
    if node is None or node.op_type not in ("Div", "Mul") or len(graph.data(node)) != 2:
        return "", ""
    one, other = node.input
    if node.op_type == "Div":
        return one, other
    for factor, inverse in ((one, other), (other, one)):
        if path := graph.path(inverse, "Reciprocal"):
            return factor, path[0].input[0]
    return "", ""


def _keeps(graph: Graph, *nodes: Any) -> bool:
    return all(graph.attributes(node).get("keepdims", 1) for node in nodes)


def _is_square(graph: Graph, name: str, x: str) -> bool:
    """Whether an array is ``x * x`` or ``x ** 2``."""
    node = graph.nodes.get(name)
    if node is None or node.op_type not in ("Mul", "Pow") or node.input[0] != x:
        return False
    exponent = graph.arrays.get(node.input[1])
    return node.input[1] == x if node.op_type == "Mul" else exponent is not None and bool((exponent == 2.0).all())


def _affine(graph: Graph, end: str) -> tuple[np.ndarray | None, np.ndarray | None, str]:
    """Weight and bias at the end of a norm, and the array before them."""
    weight = bias = None
    top = end
    if added := graph.path(top, "Add"):
        above = graph.data(added[0])[0]
        if graph.path(above, "Mul"):
            bias, top = graph.constants(added[0])[0], above
    if scaled := graph.path(top, "Mul"):
        weight, top = graph.constants(scaled[0])[0], graph.data(scaled[0])[0]
    return weight, bias, top


def rms_norm(graph: Graph, end: str) -> Found:
    """``x / sqrt(mean(x * x) + eps)``, and ``* weight``."""
    weight: list[np.ndarray] = []
    if above := graph.path(end, "Mul"):
        weight, (end,) = graph.constants(above[0]), graph.data(above[0])
    start, root = _quotient(graph, end)
    path = graph.path(root, "Sqrt", "Add", "ReduceMean")
    if not path or not _is_square(graph, path[2].input[0], start) or not _keeps(graph, path[2]):
        return None
    eps, axes, sample = graph.constants(path[1]), graph.axes(path[2]), graph.sample(start)
    if sample is None or axes is None or not eps or eps[0].size != 1:
        return None
    shape, last = weight[0].shape if weight else None, len(sample) + 1
    if axes != list(range(last - len(shape or (1,)), last)) or (shape and sample[len(sample) - len(shape) :] != shape):
        if weight and axes == [last - 1]:
            return None  # the product is a layer, and the norm without weights another
        raise ValueError(f"{called(path[2])}: the axes must be the last ones, as many as the weight has, got {axes}")
    return start, [Part(layers.RMSNorm(shape, eps=number(eps[0]), affine=bool(weight)), weight)]


def copies(graph: Graph, end: str) -> Found:
    """Nodes that copy entries of samples."""
    start, nodes = graph.copied(end)
    sample = graph.sample(start)
    if not nodes or sample is None:
        return None
    found = [graph.relabelled(nodes, numbers(batch, sample), k) for k, batch in enumerate(BATCHES)]
    place = places(found, int(np.prod(sample)))
    if place is None:
        raise ValueError(f"{called(nodes[-1])}: a sample of its output must have entries of one sample, in the same places")
    try:
        return start, parts_of(place, sample)
    except ValueError as error:
        raise ValueError(f"{called(nodes[-1])}: {error}") from error


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
        is_known = where is not None or masked[0].input[0] in graph.known.following
        is_forbidden = forbidden is not None and forbidden.size == 1 and bool(forbidden <= FORBIDDEN / 2)
        if not is_known or not is_forbidden or (where is not None and (where != np.tri(*where.shape)).any()):
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
    arrays = [array for nodes in (into, out) for node in reversed(nodes) for array in graph.constants(node)]
    return start, [Part(layer, arrays)]


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
    if nodes[1].input[0] != nodes[2].output[0] or graph.arrays[nodes[1].input[1]].ndim != 3:
        return None
    a, (weight, *bias) = graph.attributes(nodes[1]), graph.constants(nodes[1])
    outputs, inputs, kernel = weight.shape
    dilation = a.get("dilations", [1])[0]
    if a.get("pads") != [(kernel - 1) * dilation, 0] or a.get("strides", [1]) != [1] or a.get("group", 1) != 1:
        raise ValueError(
            f"{called(nodes[1])}: between transpositions there must be a causal convolution, of one group and stride 1"
        )
    layer = layers.CausalConv(inputs, outputs, kernel, dilation=dilation, bias=bool(bias))
    return graph.data(nodes[2])[0], [Part(layer, [weight.transpose(2, 1, 0).reshape(kernel * inputs, outputs), *bias])]


def chebyshev(graph: Graph, end: str) -> Found:
    """Products of Chebyshev polynomials and their coefficients, as `to_onnx` writes them."""
    out = graph.path(end, "MatMul")
    if not out:
        return None
    (name,), factors = graph.data(out[0]), []
    while (node := graph.nodes.get(name)) is not None and node.op_type == "Mul" and len(graph.data(node)) == 2:
        name, last = node.input
        factors.append(last)
    paths = [graph.path(each, "Add", "MatMul") for each in (name, *reversed(factors))]
    tables = {graph.data(path[1])[0] for path in paths} if all(paths) else set()
    table = graph.nodes.get(tables.pop()) if len(tables) == 1 else None
    if table is None or table.op_type != "Concat" or not _is_recurrence(graph, list(table.input)):
        return None
    scaled = graph.path(table.input[0], "Mul", "Sub")
    if not scaled:
        return None
    (factor,), (centre,), (weight,) = graph.constants(scaled[0]), graph.constants(scaled[1]), graph.constants(out[0])
    interval = np.stack([centre - 1.0 / factor, centre + 1.0 / factor], 1).tolist()
    layer = layers.Chebyshev(len(paths), weight.shape[1], len(table.input), interval)
    if not all(np.array_equal(graph.constants(path[0])[0], each[0]) for path, each in zip(paths, layer.choices(), strict=True)):
        return None
    return graph.data(scaled[1])[0], [Part(layer, [weight])]


def _is_recurrence(graph: Graph, names: list[str]) -> bool:
    """Whether each array from the second on is ``2 u last - older``, where u is the first one, and 1 is before it."""
    for k in range(1, len(names)):
        node = graph.nodes[names[k]]
        product = graph.nodes.get(node.input[0])
        twice = graph.nodes.get(product.input[0]) if product is not None else None
        older = graph.arrays.get(node.input[1])
        begins = older is not None and bool((older == 1.0).all()) if k == 1 else node.input[1] == names[k - 2]
        operators = [each.op_type if each is not None else "" for each in (node, product, twice)]
        if operators != ["Sub", "Mul", "Add"] or list(twice.input) != [names[0]] * 2 or product.input[1] != names[k - 1]:  # type: ignore[union-attr]
            return False
        if not begins:
            return False
    return True


PATTERNS: list[Callable[[Graph, str], Found]] = [
    formula, layer_norm, rms_norm, recurrent, attention, causal_convolution, chebyshev, copies, partial(formula, single=False),
]  # fmt: skip
