"""Layers of sequences as nodes of ONNX.

Each function takes the name of an input, (batch, time, ...), and returns that of the output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chains.activations import Elu, LeakyRelu
from chains.interop.onnx_nodes import Nodes
from chains.layers import Attention, CausalConv, GRUCell, LSTMCell, PositionalEncoding, Recurrent, RNNCell
from chains.layers.attention import FORBIDDEN, sinusoids
from chains.layers.base import Declaration

# The gates of each cell: their order here, as ONNX wants them.
GATES: dict[type, list[int]] = {RNNCell: [0], LSTMCell: [0, 3, 1, 2], GRUCell: [1, 0, 2]}
# Activations that ONNX has within its operator RNN.
WITHIN = {
    "tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid", "softplus": "Softplus", "softsign": "Softsign",
}  # fmt: skip


def recurrent(nodes: Nodes, d: Declaration, layer: Recurrent, x: str) -> str:
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
    return nodes.constant(f"{d.name}.{name}", np.stack([_gates(child, nodes.value(child, name)).T for child in d.children]))


def _biases(nodes: Nodes, d: Declaration) -> str:
    """Of all directions, (directions, 2 * gates * units): those of inputs, then those of states."""
    rows = []
    for child in d.children:
        own = _gates(child, nodes.value(child, "bias"))
        second = _gates(child, nodes.value(child, "recurrent_bias")) if "recurrent_bias" in child.slices else 0.0 * own
        rows.append(np.concatenate([own, second]))
    return nodes.constant(f"{d.name}.bias", np.stack(rows))


def _gates(cell: Declaration, array: np.ndarray) -> np.ndarray:
    """An array (..., gates * units) in ONNX's order of gates."""
    order = GATES[type(cell.layer)]
    parts = np.split(array, len(order), axis=-1)
    return np.concatenate([parts[k] for k in order], axis=-1)


def _initial(nodes: Nodes, d: Declaration, name: str) -> str:
    """The first states of all directions, (directions, 1, units)."""
    rows = [nodes.value(d, each) for each in d.slices if each.endswith(f"initial_{name}")]
    return nodes.constant(f"{d.name}.initial_{name}", np.stack(rows)[:, None])


def attention(nodes: Nodes, d: Declaration, layer: Attention, x: str) -> str:
    time, features = d.input
    heads = layer.heads
    projected = _product(nodes, d, "in", x)
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
    return _product(nodes, d, "out", nodes.reshaped(mixed, *d.output_shape))


def _product(nodes: Nodes, d: Declaration, name: str, x: str) -> str:
    y = nodes.node("MatMul", x, nodes.array(d, f"{name}_weight"))
    return nodes.node("Add", y, nodes.array(d, f"{name}_bias")) if f"{name}_bias" in d.slices else y


def _seen(nodes: Nodes, where: str, scores: str) -> str:
    return nodes.node("Where", where, scores, nodes.number(FORBIDDEN))


def positional(nodes: Nodes, d: Declaration, layer: PositionalEncoding, x: str) -> str:
    if layer.kind == "learned":
        return nodes.node("Add", x, nodes.array(d, "encoding"))
    return nodes.node("Add", x, nodes.constant("sinusoids_" + "_".join(map(str, d.input)), sinusoids(*d.input)))


def causal_convolution(nodes: Nodes, d: Declaration, layer: CausalConv, x: str) -> str:
    """A convolution behind as many zeros as its kernel looks back."""
    dense = d.children[1]
    weight = nodes.value(dense, "weight").reshape(layer.kernel, layer.inputs, layer.outputs)
    arrays = [nodes.constant(f"{dense.name}.weight", weight.transpose(2, 1, 0))]
    arrays += [nodes.array(dense, "bias")] if layer.bias else []
    settings = {"dilations": [layer.dilation], "pads": [(layer.kernel - 1) * layer.dilation, 0], "kernel_shape": [layer.kernel]}
    y = nodes.node("Conv", nodes.node("Transpose", x, perm=[0, 2, 1]), *arrays, **settings)
    return nodes.activation(layer.activation, nodes.node("Transpose", y, perm=[0, 2, 1]))


WRITERS: dict[type, Callable[[Nodes, Declaration, Any, str], str]] = {
    Recurrent: recurrent,
    Attention: attention,
    PositionalEncoding: positional,
    CausalConv: causal_convolution,
}
