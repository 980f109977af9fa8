"""The operators RNN, LSTM and GRU of ONNX as layers.

Their arrays have the time as the first axis. Exporters put transpositions and other copies around them, each its own ones:
what these do is computed (`onnx_copies`), not matched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from chains import layers
from chains.activations import Elu, LeakyRelu
from chains.interop.onnx_copies import numbers, parts_of, places
from chains.interop.onnx_graph import Graph
from chains.interop.onnx_model import BATCHES, called
from chains.interop.parts import Part
from chains.interop.to_onnx import GATES, WITHIN, with_gates
from chains.layers.base import SampleShape

CELLS: dict[str, type[layers.Cell]] = {"RNN": layers.RNNCell, "LSTM": layers.LSTMCell, "GRU": layers.GRUCell}
INNER = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}  # the activations here


def recurrent(graph: Graph, end: str) -> tuple[str, list[Part]] | None:
    """A recurrent layer with the copies around it."""
    top, after = graph.copied(end)
    node = graph.nodes.get(top)
    if node is None or node.op_type not in CELLS:
        return None
    which = list(node.output).index(top)
    if which == 2:
        raise ValueError(f"{called(node)}: its output {top!r}, the last state of the cells, is not a result of a layer here")
    if graph.data(node) != [node.input[0]]:
        raise ValueError(f"{called(node)}: its initial states must be constants, the same for each sample")
    _check(graph, node, graph.attributes(node))
    start, before, steps = _before(graph, node)
    _check_lengths(graph, node, steps)
    layer, params = _layer(graph, node, which == 0)
    units = layer.cell.units  # type: ignore[attr-defined]
    every, count = which == 0, 2 if layer.bidirectional else 1
    sample: SampleShape = (steps, count * units) if every else (count * units,)
    outputs = []
    for k, batch in enumerate(BATCHES):
        inner = numbers(batch, (steps, count, units) if every else (count, units))
        outputs.append(graph.relabelled(after, inner.transpose((1, 2, 0, 3) if every else (1, 0, 2)), k))
    place = _either(outputs, int(np.prod(sample)))
    if place is None:
        raise ValueError(f"{called(node)}: the result {end!r} is not its outputs of each sample")
    if every and count == 1 and np.array_equal(place.reshape(-1), np.arange((steps - 1) * units, steps * units)):
        layer.return_sequences, sample, place = False, (units,), place - place.min()
    return start, [*before, Part(layer, params), *_copies(node, place, sample)]


def _before(graph: Graph, node: Any) -> tuple[str, list[Part], int]:
    """The array before the copies in front of a node, the layers of these copies, and the number of steps."""
    shape = graph.known.shapes(node.input[0])[0]
    if shape is None or len(shape) != 3:
        raise ValueError(f"{called(node)}: the shape of its input {node.input[0]!r} must be known")
    steps, _, features = shape
    start, copies = graph.copied(node.input[0])
    if start in graph.nodes and graph.nodes[start].op_type in CELLS:
        return node.input[0], [], steps
    sample = graph.sample(start)
    if sample is None:
        raise ValueError(f"{called(node)}: the first axis of {start!r} must be the batch")
    found = [graph.relabelled(copies, numbers(batch, sample), k) for k, batch in enumerate(BATCHES)]
    place = places(found, int(np.prod(sample)), 1)
    if place is None or place.shape != (steps, features):
        raise ValueError(
            f"{called(node)}: its input must have the axes (steps, batch, features), and the model's input the batch first"
        )
    return start, _copies(node, place, sample), steps


def _either(results: list[np.ndarray | None], size: int) -> np.ndarray | None:
    """The places of the entries of results whose batch is the first or, before another recurrent layer, the second axis."""
    first = places(results, size)
    return places(results, size, 1) if first is None else first


def _copies(node: Any, place: np.ndarray, sample: SampleShape) -> list[Part]:
    try:
        return parts_of(place, sample)
    except ValueError as error:
        raise ValueError(f"{called(node)}: {error}") from error


def _layer(graph: Graph, node: Any, every: bool) -> tuple[layers.Recurrent, list[np.ndarray]]:
    operator, cell, a = node.op_type, CELLS[node.op_type], graph.attributes(node)
    weights, recurrents, biases = (_input(graph, node, k) for k in (1, 2, 3))
    if weights is None or recurrents is None:
        raise ValueError(f"{called(node)}: the weights must be constants")
    count, units = len(weights), recurrents.shape[-1]
    if biases is None:
        biases = np.zeros((count, 2 * len(GATES[cell]) * units), weights.dtype)
    states = list(_states(graph, node, 2 if operator == "LSTM" else 1, (count, units)))
    first = {"initial_state": "parameter"} if states else {}
    inputs = weights.shape[-1]
    settings: dict[str, Any] = {"return_sequences": every, "bidirectional": count == 2, **first}
    layer: layers.Recurrent
    if operator == "RNN":
        layer = layers.RNN(inputs, units, within(node, a), **settings)
    elif operator == "LSTM":
        layer = layers.LSTM(inputs, units, **settings)
    else:
        layer = layers.GRU(inputs, units, reset_after=bool(a.get("linear_before_reset", 0)), **settings)
    params, order = [], np.argsort(GATES[cell]).tolist()  # from ONNX's order of gates to the one here
    for k in range(count):
        own, second = np.split(biases[k], 2)
        added = [own, second] if getattr(layer.cell, "reset_after", False) else [own + second]
        params += [with_gates(array, order) for array in (weights[k].T, recurrents[k].T, *added)]
        params += [array[k] for array in states]
    return layer, params


def _input(graph: Graph, node: Any, position: int) -> np.ndarray | None:
    return graph.arrays.get(node.input[position]) if len(node.input) > position else None


def _check(graph: Graph, node: Any, a: dict[str, Any]) -> None:
    """Raise ValueError for settings and inputs that have no counterpart."""
    refused = [name for name in ("clip", "input_forget", "layout") if a.get(name)]
    if refused or a.get("direction") == b"reverse":
        raise ValueError(f"{called(node)}: {', '.join(refused) or 'the direction reverse'} is not available here")
    names = [name.decode().capitalize() for name in a.get("activations", [])]
    if node.op_type in INNER and names not in ([], INNER[node.op_type], 2 * INNER[node.op_type]):
        raise ValueError(f"{called(node)}: the activations must be {INNER[node.op_type]}, got {names}")
    peepholes = _input(graph, node, 7)
    if peepholes is not None and peepholes.any():
        raise ValueError(f"{called(node)}: peepholes are not available here")


def _check_lengths(graph: Graph, node: Any, steps: int) -> None:
    lengths = node.input[4] if len(node.input) > 4 else ""
    if not lengths or graph.known.follows_lengths(lengths):
        return
    constant = graph.arrays.get(lengths)
    if constant is None or (constant != steps).any():
        raise ValueError(f"{called(node)}: sequence_lens must be left out, all steps, or the input 'lengths'")


def _states(graph: Graph, node: Any, count: int, shape: tuple[int, int]) -> Iterator[np.ndarray]:
    """The initial states, each of the given shape (directions, units); none if exporters have filled them with zeros."""
    names = [name for name in node.input[5 : 5 + count] if name]
    if unknown := [name for name in names if name not in graph.arrays]:
        raise ValueError(f"{called(node)}: the initial state {unknown[0]!r} must be the same for each sample")
    arrays = [graph.arrays[name] for name in names if graph.arrays[name].any() or not graph.known.is_filled(name)]
    for array in arrays:
        if (array != array[:, :1]).any():
            raise ValueError(f"{called(node)}: its initial states must be the same for each sample")
    for k in range(count if arrays else 0):
        given = _input(graph, node, 5 + k)
        yield np.zeros(shape, arrays[0].dtype) if given is None else given[:, 0]


def within(node: Any, a: dict[str, Any]) -> Any:
    """The activation of an RNN."""
    names = {name.decode().capitalize() for name in a.get("activations", [b"Tanh"])}
    known = {operator.capitalize(): name for name, operator in WITHIN.items()}
    alphas = {float(alpha) for alpha in a.get("activation_alpha", [])}
    if names in ({"Elu"}, {"Leakyrelu"}) and len(alphas) < 2:
        make, default = (Elu, 1.0) if names == {"Elu"} else (LeakyRelu, 0.01)
        return make(*[float(str(np.float32(alpha))) for alpha in alphas] or [default])
    if len(names) != 1 or not names <= set(known) or len(alphas) > 1:
        raise ValueError(
            f"{called(node)}: the activations of an RNN must be one of {', '.join(WITHIN.values())}, with the same numbers in "
            f"both directions, got {sorted(names)}"
        )
    return known[names.pop()]
