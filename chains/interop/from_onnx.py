"""ONNX models as networks of this package.

The model is read in steps. What does not depend on its input is computed (`onnx_model`). Nodes that copy numbers are run on the
numbers of entries (`onnx_copies`). Groups of nodes that are one layer are found (`onnx_patterns`), and each other node becomes
its layers (`onnx_layers`). At last the network is compared with the model.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from chains import layers
from chains.backends import Backend, Cupy
from chains.chain import Chain
from chains.interop.comparison import Source
from chains.interop.onnx_evaluator import evaluator
from chains.interop.onnx_graph import Graph
from chains.interop.onnx_layers import MAKERS, call_of
from chains.interop.onnx_model import called, loaded
from chains.interop.onnx_patterns import PATTERNS
from chains.interop.parts import Part, assembled, joined, needed
from chains.support.checks import check_flags


def from_onnx(
    model: Any, *, backend: str | Cupy | Backend = "auto", check: bool = True
) -> tuple[Chain, np.ndarray, np.ndarray | None]:
    """A network with the structure and the weights of an ONNX model.

    Parameters
    ----------
    model : onnx.ModelProto, str or path
        The model, or its file. The first axis of its input is the batch; the other lengths must be known. A second input
        "lengths" has the `lengths` of calls. Branches that begin at one array and are added or concatenated become `Residual`
        and `Parallel`; operations on single numbers become custom activations. Numbers of float16 and bfloat16 are read as
        float32.
    backend : str or backends.Cupy
        That of the network; see `chains.Chain`.
    check : bool
        Whether to compare the network with onnx's reference evaluator on two small random batches. A model that the evaluator
        cannot run gives a warning.

    Returns
    -------
    net, p, state
        As of `from_torch`; the type is that of the model's output.

    Raises
    ------
    ValueError
        For operators, attributes and branches without a counterpart here; the error names the node. Also if the network does
        not compute what the model does; the error names the first layer that differs.
    ImportError
        If onnx is missing.
    """
    onnx = needed("onnx")
    check_flags(check=check)
    model = loaded(onnx, model)
    known = {each.name for each in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in known and each.name != "lengths"]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        raise ValueError(f"the model must have one input and one output, got {len(inputs)} and {len(model.graph.output)}")
    (first,), (last,) = inputs, model.graph.output
    batch, *shape = _lengths(first)
    _free(onnx, model, first.name, batch)
    graph = Graph(onnx, model, first)
    if last.name != first.name and last.name not in graph.nodes:
        raise ValueError(f"the output {last.name!r} does not depend on the input {first.name!r}")
    if graph.sample(last.name) is None and last.name in graph.nodes:
        graph.check_known(graph.nodes[last.name])
    parts = _parts(graph, first.name, last.name)
    dtype = np.float64 if graph.known.element(last.name) == onnx.TensorProto.DOUBLE else np.float32
    source = _source(onnx, model, first, batch, graph.version) if check else None
    return assembled(parts, tuple(shape), backend, dtype, source)


def _lengths(value: Any) -> tuple[int, ...]:
    """The shape of the model's input; 0 for a batch of any size. Raises ValueError for other lengths that are unknown."""
    kind = value.type.tensor_type
    if not kind.elem_type:
        raise ValueError(f"the input {value.name!r} must be a tensor of a known type")
    shape = tuple(axis.dim_value for axis in kind.shape.dim)
    if not shape or not all(shape[1:]):
        raise ValueError(f"the lengths of the input's shape (batch, ...) must be known, got {shape[1:]}")
    return shape


def _free(onnx: Any, model: Any, first: str, batch: int) -> None:
    """Let a model whose exporter has fixed the batch size reshape any batch: to the length 0, which keeps that of the input."""
    if not batch:
        return
    graph, data = model.graph, {first}
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            value = {each.name: each for each in node.attribute}.get("value")
            if value is not None:
                constants[node.output[0]] = onnx.numpy_helper.to_array(value.t)
        if not data & set(node.input) or node.op_type == "Shape":
            continue
        data.update(node.output)
        target = constants.get(node.input[1]) if node.op_type == "Reshape" and len(node.input) == 2 else None
        if target is not None and target.ndim == 1 and target.size and target[0] == batch and 0 not in target:
            name = f"{node.output[0]}.shape of any batch"
            graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, *target[1:]], np.int64), name))
            node.input[1] = name


def _source(onnx: Any, model: Any, first: Any, batch: int, version: int) -> Source:
    """The model in onnx's reference evaluator, in batches of its own size if that is fixed."""
    kind = onnx.helper.tensor_dtype_to_np_dtype(first.type.tensor_type.elem_type)
    (last,) = (each.name for each in model.graph.output)
    has_lengths = any(each.name == "lengths" for each in model.graph.input) and first.name != "lengths"

    def run(x: np.ndarray, **more: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        made = evaluator(model, version)
        if not batch:
            found = made.run(None, {first.name: x.astype(kind), **more}, intermediate=True)
            return found[last], found
        padded = np.concatenate([x, np.repeat(x[-1:], -len(x) % batch, axis=0)]).astype(kind)
        chunks = [made.run(None, {first.name: each}) for each in np.split(padded, len(padded) // batch)]
        return np.concatenate([y for (y,) in chunks])[: len(x)], {}

    def lengths(count: int) -> dict[str, Any]:
        """All steps: the evaluator does not take lengths into account."""
        return {"lengths": np.full(count, first.type.tensor_type.shape.dim[1].dim_value)} if has_lengths else {}

    tolerance = 1e-7 if kind == np.float64 else 1e-5  # attributes are float32 in every model
    return Source("the ONNX model", run, tolerance, lengths)


def _parts(graph: Graph, start: str, end: str) -> list[Part]:
    """The layers between two arrays; the first array is on every path to the second."""
    hidden = graph.nodes.pop(start, None)  # so that no pattern reaches across the start
    steps: list[tuple[str, str, Any]] = []  # from the end to the start; a node of one branch waits for the layers before it
    while end != start:
        node = graph.nodes[end]
        found = next((found for pattern in PATTERNS if (found := pattern(graph, end)) is not None), None)
        made: Any = node
        if found is not None:
            before, made = found
            graph.take(*graph.between(before, end))
        else:
            _check(graph, node, end)
            before = graph.data(node)[0] if len(graph.data(node)) == 1 else graph.sources[end]
            graph.take(node)
            if len(graph.data(node)) > 1:
                made = [_join(graph, node, [_parts(graph, before, name) for name in graph.data(node)])]
        steps.append((before, end, made))
        end = before
    if hidden is not None:
        graph.nodes[start] = hidden
    parts: list[Part] = []
    for before, name, step in reversed(steps):
        made = step if isinstance(step, list) else _made(graph, step, parts)
        _check_shape(graph, before, name, made)
        parts += made
        if parts:
            parts[-1].name = name
    return joined(parts)


def _check(graph: Graph, node: Any, end: str) -> None:
    """Raise ValueError for a node that no layer can be."""
    graph.check_known(node)
    if node.domain not in ("", "ai.onnx"):
        raise ValueError(f"{called(node)} is an operator of {node.domain}, which is not one of ONNX's own")
    if end != node.output[0]:
        raise ValueError(f"{called(node)}: its output {end!r} is not a result of a layer here, only its first output is")


def _made(graph: Graph, node: Any, parts: list[Part]) -> list[Part]:
    """The layers of a node, after these."""
    if node.op_type not in MAKERS:
        raise ValueError(f"there is nothing like the operator {node.op_type} of {called(node)} here")
    try:
        return MAKERS[node.op_type](call_of(graph, node, parts[-1] if parts else None))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{called(node)}: {error}") from error


def _check_shape(graph: Graph, start: str, end: str, parts: list[Part]) -> None:
    """Raise ValueError unless layers give the shape that the model has there."""
    sample, expected = graph.sample(start), graph.sample(end)
    if sample is None or expected is None:  # an array between recurrent layers, which have the time first
        return
    try:
        shape = sample
        if parts:  # of copies, since activations may still be merged into the layers
            shape = Chain(*copy.deepcopy([part.layer for part in parts]), input_shape=sample, backend="numpy").output_shape
    except (ValueError, TypeError) as error:
        raise ValueError(f"{called(graph.nodes[end])}: {error}") from error
    if shape != expected:
        raise ValueError(
            f"{called(graph.nodes[end])} has samples of shape {expected}, but {parts[-1].layer if parts else 'the layer'!r} "
            f"gives {shape}"
        )


def _join(graph: Graph, node: Any, branches: list[list[Part]]) -> Part:
    """The layer that joins branches."""
    params = [array for branch in branches for part in branch for array in part.params]
    state = [array for branch in branches for part in branch for array in part.state]
    is_alike = len({graph.sample(name) for name in (*graph.data(node), node.output[0])}) == 1
    if node.op_type in ("Add", "Sum") and (graph.constants(node) or not is_alike):
        raise ValueError(f"{called(node)} must add arrays of one shape, and no constants besides")
    if node.op_type == "Add":
        inner, shortcut = sorted(branches, key=len, reverse=True) if not branches[0] else branches
        short = layers.Series(*(part.layer for part in shortcut)) if shortcut else None
        return Part(layers.Residual(*(part.layer for part in inner), shortcut=short), params, state)
    series = [layers.Series(*(part.layer for part in branch)) if len(branch) != 1 else branch[0].layer for branch in branches]
    if node.op_type == "Sum":
        return Part(layers.Parallel(*series, join="sum"), params, state)
    if node.op_type == "Concat" and not graph.constants(node):
        sample, axis = graph.sample(node.output[0]), graph.attributes(node)["axis"]
        if sample is None or axis % (len(sample) + 1) == 0:
            raise ValueError(f"{called(node)} must join samples, not batches")
        return Part(layers.Parallel(*series, axis=axis - 1 if axis > 0 else axis), params, state)
    raise ValueError(f"{called(node)} joins branches by {node.op_type}, which no layer here does")
