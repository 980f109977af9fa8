"""ONNX models as networks of this package."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from chains import layers
from chains.activations import make_elu, make_leaky_relu
from chains.chain import Chain
from chains.interop.parts import Part, assembled, needed

ACTIVATIONS = {
    "Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid", "Softplus": "softplus", "Softsign": "softsign", "Sin": "sin",
    "Gelu": "gelu", "Mish": "mish", "Selu": "selu", "Identity": "identity",
}  # fmt: skip


def from_onnx(model: Any, *, backend: str = "auto") -> tuple[Chain, np.ndarray, np.ndarray | None]:
    """A network with the structure and the weights of an ONNX model whose nodes follow one another.

    Parameters
    ----------
    model : onnx.ModelProto, str or path
        The model, or its file. Its input has the batch as its first axis; the other lengths are known.
    backend : str
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
        For models with branches, and for operators and attributes that there is nothing like here, naming the node.
    ImportError
        Where onnx is missing.
    """
    onnx = needed("onnx")
    if isinstance(model, (str, os.PathLike)):
        model = onnx.load(os.fspath(model))
    graph = model.graph
    arrays = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    inputs = [each for each in graph.input if each.name not in arrays]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise ValueError(f"the model must have one input and one output, got {len(inputs)} and {len(graph.output)}")
    tensor = inputs[0].type.tensor_type
    shape = tuple(axis.dim_value for axis in tensor.shape.dim)[1:]
    if not all(shape):
        raise ValueError(f"the lengths of the input's shape (batch, ...) must be known, got {shape}")
    reader = _Reader(onnx, arrays, inputs[0].name)
    for node in graph.node:
        reader.add(node)
    if reader.current != graph.output[0].name:
        raise ValueError("the nodes of the model must follow one another, from its input to its output")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return assembled(reader.parts, shape, backend, np.float64 if dtype == np.float64 else np.float32)


class _Reader:
    """Goes through the nodes; `current` is the name of what the last one gave."""

    def __init__(self, onnx: Any, arrays: dict[str, np.ndarray], first: str) -> None:
        self.onnx, self.arrays, self.current = onnx, arrays, first
        self.parts: list[Part] = []

    def add(self, node: Any) -> None:
        attributes = {each.name: self.onnx.helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type == "Constant":
            self.arrays[node.output[0]] = self.onnx.numpy_helper.to_array(attributes["value"])
            return
        names = [name for name in node.input if name]
        data = [name for name in names if name not in self.arrays]
        if data != [self.current]:
            raise ValueError(f"the node {node.name or node.op_type} must take what the one before gave, and constants")
        self.current = node.output[0]
        made = MAKERS.get(node.op_type)
        if made is None:
            raise ValueError(f"there is nothing like the operator {node.op_type} of the node {node.name!r} here")
        try:
            part = made([self.arrays[name] for name in names if name in self.arrays], attributes, self.parts)
        except (ValueError, TypeError) as error:
            raise ValueError(f"the node {node.name or node.op_type}: {error}") from error
        if part is not None:
            self.parts.append(part)


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
    if a.get("axis", -1) != -1 and a["axis"] != -arrays[0].ndim:
        raise ValueError(f"axis must be -1, got {a['axis']}")
    scale = arrays[0]
    shift = arrays[1] if len(arrays) > 1 else np.zeros_like(scale)
    return Part(layers.LayerNorm(scale.shape, eps=a.get("epsilon", 1e-5)), [scale, shift])


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
    return Part(layers.Activation(make_elu(a.get("alpha", 1.0))))


def _leaky_relu(arrays: list[np.ndarray], a: dict[str, Any], parts: list[Part]) -> Part:
    return Part(layers.Activation(make_leaky_relu(a.get("alpha", 0.01))))


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
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Softmax": _softmax(layers.Softmax),
    "LogSoftmax": _softmax(layers.LogSoftmax),
    "Elu": _elu,
    "LeakyRelu": _leaky_relu,
    "Dropout": _dropout,
    **{operator: _activation(name) for operator, name in ACTIVATIONS.items()},
}
