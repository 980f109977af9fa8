"""The operators of ONNX with windows, by their definition: onnx's reference evaluator gets some settings of them wrong.

As of onnx 1.23, these are transposed convolutions in groups, pools of signals whose two ends have different padding, the
padding "SAME_LOWER", and the largest entries of signals. `ceil_mode` is left out: where it adds positions, the shape of the
result shows it. Source: https://onnx.ai/onnx/operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Pads = list[tuple[int, int]]


class Window:
    """The settings of a window over the last axes of an array, from the attributes of a node."""

    def __init__(self, sizes: Sequence[int], lengths: Sequence[int], given: dict[str, Any]) -> None:
        count = len(sizes)
        self.sizes, self.lengths = tuple(sizes), tuple(lengths)
        self.strides = tuple(given.get("strides") or (1,) * count)
        self.dilations = tuple(given.get("dilations") or (1,) * count)
        self.spans = tuple((size - 1) * step + 1 for size, step in zip(self.sizes, self.dilations, strict=True))
        self.pads = self._pads(given.get("auto_pad") or "NOTSET", given.get("pads") or (0,) * 2 * count)

    def _pads(self, how: str, pads: Sequence[int]) -> Pads:
        if how == "NOTSET":
            return list(zip(pads[: len(self.sizes)], pads[len(self.sizes) :], strict=True))
        if how == "VALID":
            return [(0, 0)] * len(self.sizes)
        found = []
        for length, stride, span in zip(self.lengths, self.strides, self.spans, strict=True):
            total = max(0, (-(-length // stride) - 1) * stride + span - length)
            small, large = total // 2, total - total // 2
            found.append((small, large) if how == "SAME_UPPER" else (large, small))
        return found

    def parts(self, x: np.ndarray, padding: float) -> np.ndarray:
        """The entries under the window: (batch, channels, *positions, *sizes)."""
        x = np.pad(x, [(0, 0), (0, 0), *self.pads], constant_values=padding)
        axes, every = tuple(range(2, x.ndim)), (slice(None),) * 2
        found = np.lib.stride_tricks.sliding_window_view(x, self.spans, axes)
        return found[(*every, *(slice(None, None, step) for step in (*self.strides, *self.dilations)))]

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of `parts` that are the sizes."""
        return tuple(range(-len(self.sizes), 0))


def _by_groups(x: np.ndarray, w: np.ndarray, groups: int) -> Any:
    """The channels of an array and the first axis of the weights, group by group."""
    return zip(np.split(x, groups, axis=1), np.split(w, groups), strict=True)


def _products(groups: Any, axes: Any) -> np.ndarray:
    """The products of the groups, summed over these axes; their channels one after another."""
    return np.concatenate([np.moveaxis(np.tensordot(x, w, axes), -1, 1) for x, w in groups], axis=1)


def _with_bias(y: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    return y if bias is None else y + bias.reshape(-1, *(1,) * (y.ndim - 2))


def convolved(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, given: dict[str, Any]) -> np.ndarray:
    """What Conv computes."""
    window = Window(w.shape[2:], x.shape[2:], given)
    groups = _by_groups(window.parts(x, 0.0), w, given.get("group") or 1)
    return _with_bias(_products(groups, ((1, *window.axes), (1, *range(2, w.ndim)))), bias)


def spread(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, given: dict[str, Any]) -> np.ndarray:
    """What ConvTranspose computes: each entry adds the kernel, times itself, to the positions under the window there."""
    window = Window(w.shape[2:], x.shape[2:], given)
    more = given.get("output_padding") or (0,) * len(window.sizes)
    rows = list(zip(window.lengths, window.strides, window.spans, strict=True))
    groups = given.get("group") or 1
    y = np.zeros((len(x), w.shape[1] * groups, *((n - 1) * step + span for n, step, span in rows)), x.dtype)
    for entry in np.ndindex(window.sizes):
        starts = [k * step for k, step in zip(entry, window.dilations, strict=True)]
        at = [slice(s, s + (n - 1) * step + 1, step) for s, (n, step, _) in zip(starts, rows, strict=True)]
        y[(slice(None), slice(None), *at)] += _products(_by_groups(x, w[(..., *entry)], groups), (1, 0))
    y = np.pad(y, [(0, 0), (0, 0), *((0, extra) for extra in more)])
    ends = [slice(first, n - last) for (first, last), n in zip(window.pads, y.shape[2:], strict=True)]
    return _with_bias(y[(slice(None), slice(None), *ends)], bias)


def largest(x: np.ndarray, given: dict[str, Any]) -> np.ndarray:
    """What MaxPool computes."""
    window = Window(given["kernel_shape"], x.shape[2:], given)
    return window.parts(x, -np.inf).max(axis=window.axes)


def average(x: np.ndarray, given: dict[str, Any]) -> np.ndarray:
    """What AveragePool computes."""
    window = Window(given["kernel_shape"], x.shape[2:], given)
    counted = window.parts(np.ones_like(x), 1.0 if given.get("count_include_pad") else 0.0)
    return window.parts(x, 0.0).sum(axis=window.axes) / counted.sum(axis=window.axes)


def largest_of_all(x: np.ndarray, given: dict[str, Any]) -> np.ndarray:
    """What GlobalMaxPool computes."""
    return x.max(axis=tuple(range(2, x.ndim)), keepdims=True)


def operators(onnx: Any) -> list[type]:
    """The operators for onnx's evaluator."""
    from onnx.reference.op_run import OpRun

    def made(name: str, function: Any) -> type:
        def run(self: Any, *arrays: np.ndarray, **newest: Any) -> tuple[np.ndarray, ...]:
            pairs = ((each.name, onnx.helper.get_attribute_value(each)) for each in self.onnx_node.attribute)
            given = {key: value.decode() if isinstance(value, bytes) else value for key, value in pairs}
            y = function(*arrays, given).astype(arrays[0].dtype)
            return y, *(np.zeros(y.shape, np.int64) for _ in self.onnx_node.output[1:])  # places, which no layer reads

        return type(name, (OpRun,), {"_run": run})

    functions = {
        "Conv": lambda x, w, *rest: convolved(x, w, *_bias(rest)),
        "ConvTranspose": lambda x, w, *rest: spread(x, w, *_bias(rest)),
        "MaxPool": largest, "AveragePool": average, "GlobalMaxPool": largest_of_all,
    }  # fmt: skip
    return [made(name, function) for name, function in functions.items()]


def _bias(rest: Sequence[Any]) -> tuple[Any, Any]:
    return (None, *rest) if len(rest) == 1 else (rest[0], rest[1])
