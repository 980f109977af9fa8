"""The layers of single nodes of ONNX.

A maker takes a `Call`: the node, its constant inputs by position, the shape of its data. It returns the layers of the node with
their parameters. It raises ValueError for settings without a counterpart; the reader adds the name of the node.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from chains import layers
from chains.interop.onnx_graph import Graph
from chains.interop.parts import Part
from chains.layers.attention import sinusoids
from chains.layers.base import SampleShape


@dataclass
class Call:
    """A node with its only data, which is the input `position`.

    `inputs` are the constants by position; None for the data, and for inputs that are left out. `sample` and `output` are the
    shapes of a sample of the data and of the result; `a` are the attributes, and `before` the layer before, if there is one.
    """

    node: Any
    inputs: list[np.ndarray | None]
    position: int
    sample: SampleShape
    output: SampleShape
    a: dict[str, Any]
    version: int
    before: Part | None

    def given(self, first: int, last: int) -> list[np.ndarray]:
        """The constants at these positions. Raises ValueError if one is missing before another."""
        found = [*self.inputs[first:last], *[None] * max(0, last - max(first, len(self.inputs)))]
        while found and found[-1] is None:
            found.pop()
        if any(each is None for each in found):
            raise ValueError("an input that comes before others must not be left out")
        return [each for each in found if each is not None]

    def at(self, position: int) -> np.ndarray | None:
        return self.inputs[position] if position < len(self.inputs) else None

    def setting(self, name: str, position: int, default: Any = None) -> Any:
        """A setting that is an attribute, or in newer versions a constant input."""
        value = self.at(position)
        return self.a.get(name, default) if value is None else value

    def axis(self, default: int) -> int:
        return int(self.a.get("axis", default)) % (len(self.sample) + 1)


def call_of(graph: Graph, node: Any, before: Part | None) -> Call:
    """The call of a node. Raises ValueError if the shapes of its data are unknown, or another output of it is used."""
    positions = [k for k, name in enumerate(node.input) if name in graph.data(node)]
    if positions[0] != 0 and node.op_type not in ANYWHERE:
        raise ValueError(f"its data must be its first input, not number {positions[0] + 1}")
    sample, output = graph.sample(node.input[positions[0]]), graph.sample(node.output[0])
    if sample is None or output is None:
        name = node.input[positions[0]] if sample is None else node.output[0]
        raise ValueError(f"the array {name!r} must have a known shape for any number of samples, which are its first axis")
    is_table = node.op_type == "Gather" and positions == [1]
    if not (graph.is_integer(node.input[1]) if is_table else graph.is_float(node.input[positions[0]])):
        raise ValueError("its data must be floating-point numbers, or the ids of an embedding")
    inputs = [None if k in positions else graph.arrays.get(name) for k, name in enumerate(node.input)]
    return Call(node, inputs, positions[0], sample, output, graph.attributes(node), graph.version, before)


def _gemm(c: Call) -> list[Part]:
    if c.a.get("transA", 0):
        raise ValueError("transA must be 0, or the samples would be columns")
    weight, *bias = c.given(1, 3)
    weight = c.a.get("alpha", 1.0) * (weight.T if c.a.get("transB", 0) else weight)
    if not bias or not c.a.get("beta", 1.0):
        return [Part(layers.Dense(*weight.shape, bias=False), [weight.astype(c.inputs[1].dtype)])]  # type: ignore[union-attr]
    rows = c.a.get("beta", 1.0) * np.broadcast_to(_for_sample(bias[0], c.output), c.output)
    return [Part(layers.Dense(*weight.shape), [weight.astype(bias[0].dtype), rows.astype(bias[0].dtype)])]


def _matmul(c: Call) -> list[Part]:
    (weight,) = c.given(1, 2)
    while weight.ndim > 2 and len(weight) == 1:
        weight = weight[0]
    if weight.ndim > 2 or not c.sample:
        raise ValueError(f"the constant must be a matrix, got the shape {weight.shape}")
    if weight.ndim == 2:
        return [Part(layers.Dense(*weight.shape, bias=False), [weight])]
    return [Part(layers.Dense(len(weight), 1, bias=False), [weight[:, None]]), Part(layers.Reshape(*c.output))]


def _for_sample(array: np.ndarray, sample: SampleShape) -> np.ndarray:
    """A constant that is broadcast to each sample, without the axis of the batch."""
    if array.ndim == len(sample) + 1:
        if len(array) != 1:
            raise ValueError(f"its constant, of shape {array.shape}, must be the same for each sample")
        array = array[0]
    try:
        fits = np.broadcast_shapes(array.shape, sample) == sample
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"its constant, of shape {array.shape}, must not make samples of shape {sample} larger")
    return array


def _affine(c: Call) -> list[Part]:
    """``x * scale + shift`` with constants: what a sum, difference, product or quotient is."""
    scale: np.ndarray | None = None
    shift: np.ndarray | None = None
    constants = [_for_sample(array, c.sample) for array in c.inputs if array is not None]
    if not constants:  # a sum of one
        return []
    (array, *more), operator = constants, c.node.op_type
    if operator in ("Add", "Sum"):
        shift = sum(more, array)
    elif operator == "Sub":
        shift = -array if c.position == 0 else array
        scale = None if c.position == 0 else -np.ones_like(array)
    elif operator == "Mul" or c.position == 0:
        scale = array if operator == "Mul" else 1.0 / array
    else:
        raise ValueError("it must divide its input by a constant, not a constant by its input")
    parts = [] if scale is None else [Part(layers.Scale(), [_full(scale, c.sample)])]
    return parts if shift is None else [*parts, *_shift(c, shift, None if parts else c.before)]


def _full(array: np.ndarray, sample: SampleShape) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(array, sample))


def _shift(c: Call, array: np.ndarray, before: Part | None) -> list[Part]:
    """The bias of the product before; else a positional encoding, or a shift."""
    if before is not None and (biased := _biased(before.layer, array, c.sample)) is not None:
        before.layer = biased
        before.params.append(array.reshape(-1))
        return []
    if array.ndim == 2 and array.shape == c.sample and np.array_equal(array, sinusoids(*array.shape).astype(array.dtype)):
        return [Part(layers.PositionalEncoding())]
    return [Part(layers.Shift(), [_full(array, c.sample)])]


def _biased(layer: layers.Layer, array: np.ndarray, sample: SampleShape) -> layers.Layer | None:
    """The layer with a bias, if it has none and adding the array to a sample of its output is one."""
    if not isinstance(layer, (layers.Dense, layers.Conv, layers.ConvTranspose)) or layer.bias:
        return None
    shape = (1,) * (len(sample) - array.ndim) + array.shape
    if array.size != layer.outputs or shape[-1 if isinstance(layer, layers.Dense) else 0] != layer.outputs:
        return None
    biased = copy.copy(layer)
    biased.bias = True
    return biased


def _window(c: Call, size: tuple[int, ...]) -> dict[str, Any]:
    """Stride and padding, as the operator has them or as they follow from the lengths."""
    ndim = len(size)
    stride, dilation = c.a.get("strides", [1] * ndim), c.a.get("dilations", [1] * ndim)
    pads = list(c.a.get("pads", [0] * 2 * ndim))
    how = c.a.get("auto_pad", b"NOTSET")
    if how in (b"SAME_UPPER", b"SAME_LOWER"):
        if c.node.op_type == "ConvTranspose":
            raise ValueError(f"auto_pad must be NOTSET, got {how.decode()}")
        rows = zip(c.sample[1:], c.output[1:], size, stride, dilation, strict=True)
        totals = [max(0, (new - 1) * step + (k - 1) * d + 1 - old) for old, new, k, step, d in rows]
        small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
        pads = small + large if how == b"SAME_UPPER" else large + small
    elif how == b"VALID":
        pads = [0] * 2 * ndim
    return {"stride": tuple(stride), "padding": tuple(zip(pads[:ndim], pads[ndim:], strict=True))}


def _convolution(kind: type, c: Call) -> list[Part]:
    weight, *bias = c.given(1, 3)
    ndim, groups = weight.ndim - 2, c.a.get("group", 1)
    if "output_shape" in c.a:
        raise ValueError("output_shape must be left out")
    transposed = kind is layers.ConvTranspose
    rest = {"output_padding": tuple(c.a.get("output_padding", [0] * ndim))} if transposed else {}
    counts = (weight.shape[0], weight.shape[1] * groups) if transposed else (weight.shape[1] * groups, weight.shape[0])
    layer = kind(
        *counts, weight.shape[2:], **_window(c, weight.shape[2:]), dilation=tuple(c.a.get("dilations", [1] * ndim)),
        groups=groups, bias=bool(bias), **rest,
    )  # fmt: skip
    return [Part(layer, [weight, *bias])]


def _pool(kind: type, c: Call) -> list[Part]:
    if set(c.a.get("dilations", [1])) != {1} or c.a.get("storage_order", 0):
        raise ValueError("dilations must be 1, and storage_order 0")
    size = tuple(c.a["kernel_shape"])
    rest = {"count_padding": bool(c.a.get("count_include_pad", 0))} if kind is layers.AvgPool else {}
    return [Part(kind(size, **_window(c, size), **rest))]  # ceil_mode is seen in the shape of the result


def _global_pool(c: Call) -> list[Part]:
    return [Part(layers.Series(layers.GlobalAvgPool(), layers.Reshape(*c.output)))]


def _mean(c: Call) -> list[Part]:
    """A mean over all positions."""
    axes = c.setting("axes", 1)
    rank = len(c.sample) + 1
    if axes is None or sorted(int(axis) % rank for axis in np.ravel(axes)) != list(range(2, rank)) or rank < 3:
        raise ValueError("a mean must be over all axes after the channels")
    return [Part(layers.GlobalAvgPool()), *([Part(layers.Reshape(*c.output))] if len(c.output) > 1 else [])]


def _batch_norm(c: Call) -> list[Part]:
    if c.a.get("training_mode", 0) or not c.a.get("spatial", 1):
        raise ValueError("training_mode must be 0, and spatial 1")
    scale, shift, mean, variance = c.given(1, 5)
    layer = layers.BatchNorm(len(scale), eps=c.a.get("epsilon", 1e-5), momentum=1.0 - c.a.get("momentum", 0.9))
    return [Part(layer, [scale, shift], [mean, variance])]


def _layer_norm(c: Call) -> list[Part]:
    axis = c.axis(-1)
    if axis == 0:
        raise ValueError(f"axis must be after the batch, got {c.a.get('axis')}")
    shape = c.sample[axis - 1 :]
    scale, *shift = (_full(_trimmed(array, len(shape)), shape) for array in c.given(1, 3))
    return [Part(layers.LayerNorm(shape, eps=c.a.get("epsilon", 1e-5)), [scale, *(shift or [np.zeros_like(scale)])])]


def _rms_norm(c: Call) -> list[Part]:
    axis = c.axis(-1)
    if axis == 0:
        raise ValueError(f"axis must be after the batch, got {c.a.get('axis')}")
    shape, (scale,) = c.sample[axis - 1 :], c.given(1, 2)
    return [Part(layers.RMSNorm(shape, eps=c.a.get("epsilon", 1e-5)), [_full(_trimmed(scale, len(shape)), shape)])]


def _trimmed(array: np.ndarray, ndim: int) -> np.ndarray:
    """An array without leading axes of length 1, with at most `ndim` axes."""
    while array.ndim > ndim and len(array) == 1:
        array = array[0]
    return array


def _group_norm(c: Call) -> list[Part]:
    if not c.sample:
        raise ValueError("its data must have an axis of channels after the batch")
    channels = c.sample[0]
    groups = c.a["num_groups"] if c.node.op_type == "GroupNormalization" else channels
    arrays = [np.repeat(array, channels // len(array)) for array in c.given(1, 3)]  # before opset 21, of groups
    return [Part(layers.GroupNorm(groups, channels, eps=c.a.get("epsilon", 1e-5)), arrays)]


def _append(c: Call) -> list[Part]:
    """Constants before and after the last axis of the data."""
    if not c.sample or c.axis(-1) != len(c.sample):
        raise ValueError("constants must be concatenated along the last axis")
    before, after = (_values(c, arrays) for arrays in (c.inputs[: c.position], c.inputs[c.position + 1 :]))
    values, width = [*after, *before], c.sample[-1]
    if not values:
        return []
    starts: dict[str, Any] = {f"value_{k}": float(value) for k, value in enumerate(values)}
    parts = [Part(layers.Append(**starts), [*np.array(values)[:, None]])]
    if before:
        order = [*range(width + len(after), width + len(values)), *range(width + len(after))]
        parts.append(Part(layers.Select(order)))
    return parts


def _values(c: Call, arrays: list[np.ndarray | None]) -> list[float]:
    """The values that constants add to each row."""
    found: list[float] = []
    for array in arrays:
        if array is None or array.ndim != len(c.sample) + 1 or len(array) != 1 or (array != _first_row(array)).any():
            raise ValueError("a concatenated constant must be the same for each sample, and in each row of it")
        found += _first_row(array).tolist()
    return found


def _first_row(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1, array.shape[-1])[0]


def _pad(c: Call) -> list[Part]:
    """Zeros, or a cut, around signals and images."""
    rank = len(c.sample) + 1
    pads, value = np.ravel(c.setting("pads", 1)), c.setting("value", 2, 0.0)
    axes = c.at(3)
    if axes is not None:
        every = np.zeros((2, rank), int)
        every[:, axes % rank] = pads.reshape(2, -1)
        pads = every.reshape(-1)
    if not pads.any():
        return []
    before, after = np.split(pads, 2)
    if c.a.get("mode", b"constant") != b"constant" or np.any(value) or any((*before[:2], *after[:2])) or (pads < 0).any():
        raise ValueError("the padding must be zeros, and none at the batch and the channels")
    return [Part(layers.Pad(tuple(zip(before[2:].tolist(), after[2:].tolist(), strict=True))))]


def _embedding(c: Call) -> list[Part]:
    table = c.inputs[0]
    if table is None or c.a.get("axis", 0) != 0 or table.ndim != 2:
        raise ValueError("the table must have two axes, and rows must be taken")
    return [Part(layers.Embedding(*table.shape), [table])]


def _softmax(kind: type, c: Call) -> list[Part]:
    """Before version 13 of ONNX, all axes from the given one on are one axis."""
    old = c.version < 13
    axis, last = c.axis(1 if old else -1), len(c.sample)
    if axis == 0:
        raise ValueError("axis must not be that of the batch")
    if axis == last:
        return [Part(kind())]
    if not old and math.prod(c.sample[axis:]) != 1:
        raise ValueError(f"axis must be the last one, got {c.a.get('axis')}")
    return [Part(layers.Reshape(*c.sample[: axis - 1], -1)), Part(kind()), Part(layers.Reshape(*c.sample))]


def _dropout(c: Call) -> list[Part]:
    training, rate = c.at(2), float(np.ravel(c.setting("ratio", 1, 0.5))[0])
    if training is not None and training.any() and rate:
        raise ValueError("training_mode must be false")
    return [Part(layers.Dropout(rate))] if rate else []


MAKERS: dict[str, Callable[[Call], list[Part]]] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Sum"), _affine),
    "Conv": partial(_convolution, layers.Conv),
    "ConvTranspose": partial(_convolution, layers.ConvTranspose),
    "MaxPool": partial(_pool, layers.MaxPool),
    "AveragePool": partial(_pool, layers.AvgPool),
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": lambda c: [Part(layers.MaxPool(tuple(c.sample[1:])))],
    "ReduceMean": _mean,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _group_norm,
    "Concat": _append,
    "Pad": _pad,
    "Gather": _embedding,
    "Softmax": partial(_softmax, layers.Softmax),
    "LogSoftmax": partial(_softmax, layers.LogSoftmax),
    "Dropout": _dropout,
}
ANYWHERE = {"Add", "Sub", "Mul", "Div", "Sum", "Concat", "Gather"}  # their data may be any of their inputs
