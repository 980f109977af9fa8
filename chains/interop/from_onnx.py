"""ONNX models as networks of this package."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from chains import layers
from chains.activations import elu, leaky_relu
from chains.backends import Cupy
from chains.chain import Chain
from chains.interop.onnx_graph import Graph, called
from chains.interop.onnx_patterns import NAMES, PATTERNS
from chains.interop.parts import Part, assembled, joined, needed
from chains.layers.attention import sinusoids


def from_onnx(model: Any, *, backend: str | Cupy = "auto") -> tuple[Chain, np.ndarray, np.ndarray | None]:
    """A network with the structure and the weights of an ONNX model.

    Parameters
    ----------
    model : onnx.ModelProto, str or path
        The model, or its file. Its input has the batch as its first axis; the other lengths are known. A second input "lengths"
        is for the `lengths` of calls. Branches that begin at one array and are added or concatenated become `Residual` and
        `Parallel`, operations on single numbers custom activations.
    backend : str or backends.Cupy
        That of the network; see `chains.Chain`.

    Returns
    -------
    net : Chain
        The network.
    p : array, shape (n_params,)
        Its parameters, of the type of the model's input, float32 or float64.
    state : array, shape (n_state,), or None
        Its state, the running statistics; None for networks without.

    Raises
    ------
    ValueError
        For operators, attributes and branches that there is nothing like here, naming the node.
    ImportError
        Where onnx is missing.
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
    """The layers between two arrays, the first of which lies on every way to the second."""
    hidden = graph.nodes.pop(start, None)  # so that no pattern reaches across the start
    steps: list[Part | Any] = []  # from the end to the start; a node of one branch becomes a layer when those before are known
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
            before = graph.source(end)
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
    """The layer that a node is, behind these; None where it changes the last of them, or nothing."""
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


Make = Callable[[list[np.ndarray], dict[str, Any], list[Part]], Part | None]


def _gemm(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    if a.get("alpha", 1.0) != 1.0 or a.get("beta", 1.0) != 1.0 or a.get("transA", 0):
        raise ValueError("alpha and beta must be 1, and transA 0")
    weight, *bias = arrays
    weight = weight.T if a.get("transB", 0) else weight
    return Part(layers.Dense(*weight.shape, bias=bool(bias)), [weight, *bias])


def _matmul(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    return Part(layers.Dense(*arrays[0].shape, bias=False), arrays)


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


def _mul(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    return Part(layers.Scale(), arrays)


def _window(a: dict[str, Any], ndim: int) -> dict[str, Any]:
    if a.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise ValueError(f"auto_pad must be NOTSET, got {a['auto_pad'].decode()}")
    pads = a.get("pads", [0] * 2 * ndim)
    return {"stride": tuple(a.get("strides", [1] * ndim)), "padding": tuple(zip(pads[:ndim], pads[ndim:], strict=True))}


def _convolution(kind: type) -> Make:
    def make(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
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

    return make


def _pool(kind: type) -> Make:
    def make(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
        if a.get("ceil_mode", 0) or set(a.get("dilations", [1])) != {1}:
            raise ValueError("ceil_mode must be 0 and dilations 1")
        size = tuple(a["kernel_shape"])
        rest = {"count_padding": bool(a.get("count_include_pad", 0))} if kind is layers.AvgPool else {}
        return Part(kind(size, **_window(a, len(size)), **rest))

    return make


def _global_pool(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    return Part(layers.Series(layers.GlobalAvgPool(), layers.Reshape(-1, 1, 1)))


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


def _group_norm(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    return Part(layers.GroupNorm(a["num_groups"], len(arrays[0]), eps=a.get("epsilon", 1e-5)), arrays)


def _append(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part | None:
    if not arrays:  # one branch alone
        return None
    if a["axis"] != -1 or len(arrays) != 1 or arrays[0].ndim != 1:
        raise ValueError("what is concatenated must be an array of one axis, behind the last axis of the input")
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


def _softmax(kind: type) -> Make:
    def make(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
        if a.get("axis", -1) != -1:
            raise ValueError(f"axis must be -1, got {a['axis']}")
        return Part(kind())

    return make


def _activation(name: str) -> Make:
    def make(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part | None:
        if a.get("approximate", b"none") != b"none":
            raise ValueError("approximate must be none")
        return None if name == "identity" else Part(layers.Activation(name))

    return make


def _elu(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    return Part(layers.Activation(elu(alpha=a.get("alpha", 1.0))))


def _leaky_relu(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    return Part(layers.Activation(leaky_relu(slope=a.get("alpha", 0.01))))


def _dropout(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    return Part(layers.Dropout(float(arrays[0]) if arrays else a.get("ratio", 0.5)))


MAKERS: dict[str, Make] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Add": _add,
    "Mul": _mul,
    "Conv": _convolution(layers.Conv),
    "ConvTranspose": _convolution(layers.ConvTranspose),
    "MaxPool": _pool(layers.MaxPool),
    "AveragePool": _pool(layers.AvgPool),
    "GlobalAveragePool": _global_pool,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "GroupNormalization": _group_norm,
    "Concat": _append,
    "Sum": _activation("identity"),  # of one
    "Resize": _upsample,
    "Pad": _pad,
    "Gather": _gather,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Softmax": _softmax(layers.Softmax),
    "LogSoftmax": _softmax(layers.LogSoftmax),
    "Elu": _elu,
    "LeakyRelu": _leaky_relu,
    "Dropout": _dropout,
    **{operator: _activation(name) for operator, name in NAMES.items()},
}
