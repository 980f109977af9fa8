"""Operators of ONNX with windows: the networks read from them compute what PyTorch does, and are not refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from chains.interop import from_onnx

torch, onnx = pytest.importorskip("torch"), pytest.importorskip("onnx")

from tests.interop.test_onnx_imports import KERNEL, RNG, model_of  # noqa: E402


def padded(x, *sides, value=0.0):
    return torch.nn.functional.pad(x, sides, value=value)


GROUPED = RNG.normal(size=(4, 3, 3, 2)).astype(np.float32)
# Settings that onnx's own evaluator gets wrong, or cannot run: the node, the shape of x, the kernel, and PyTorch's result.
WINDOWS = {
    "transposed, in groups": (
        ("ConvTranspose", ["x", "k"], ["y"], {"group": 2, "strides": [2, 1], "pads": [1, 0, 0, 1], "output_padding": [1, 0]}),
        (4, 5, 4), GROUPED,
        lambda x, k: torch.nn.functional.conv_transpose2d(x, k, stride=(2, 1), groups=2, output_padding=(1, 0))[:, :, 1:, :-1]),
    "transposed signals": (
        ("ConvTranspose", ["x", "k"], ["y"], {"strides": [2], "dilations": [2], "pads": [1, 2]}), (4, 6), KERNEL,
        lambda x, k: torch.nn.functional.conv_transpose1d(x, k, stride=2, dilation=2)[:, :, 1:-2]),
    "signals with other padding at each end": (
        ("Conv", ["x", "k"], ["y"], {"pads": [2, 0], "strides": [2]}), (4, 7), KERNEL,
        lambda x, k: torch.nn.functional.conv1d(padded(x, 2, 0), k, stride=2)),
    "signals in groups": (
        ("Conv", ["x", "k"], ["y"], {"pads": [0, 1], "group": 2, "dilations": [2]}), (8, 7), KERNEL,
        lambda x, k: torch.nn.functional.conv1d(padded(x, 0, 1), k, groups=2, dilation=2)),
    "the largest, with more padding first": (
        ("MaxPool", ["x"], ["y"], {"kernel_shape": [3], "strides": [2], "auto_pad": "SAME_LOWER"}), (4, 6), None,
        lambda x: torch.nn.functional.max_pool1d(padded(x, 1, 0, value=-np.inf), 3, 2)),
    "the largest, with other padding at each end": (
        ("MaxPool", ["x"], ["y"], {"kernel_shape": [3], "pads": [0, 1]}), (4, 6), None,
        lambda x: torch.nn.functional.max_pool1d(padded(x, 0, 1, value=-np.inf), 3, 1)),
    "the mean, with other padding at each end": (
        ("AveragePool", ["x"], ["y"], {"kernel_shape": [3], "pads": [1, 0], "count_include_pad": 1}), (4, 6), None,
        lambda x: torch.nn.functional.avg_pool1d(padded(x, 1, 0), 3, 1)),
    "the mean of images, with more padding first": (
        ("AveragePool", ["x"], ["y"], {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}), (3, 4, 5), None,
        lambda x: torch.nn.functional.avg_pool2d(padded(x, 1, 0, 1, 0), 2, 1)
        / torch.nn.functional.avg_pool2d(padded(torch.ones_like(x), 1, 0, 1, 0), 2, 1)),
    "the largest of signals": (("GlobalMaxPool", ["x"], ["y"]), (3, 5), None, lambda x: x.amax(2, keepdim=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_compared_by_their_definition(name):
    node, shape, kernel, function = WINDOWS[name]
    model = model_of([node], shape, {} if kernel is None else {"k": kernel})
    with warnings.catch_warnings(action="error"):
        net, p, _ = from_onnx(model, backend="numpy")
    x = RNG.normal(size=(3, *shape)).astype(np.float32)
    operands = [torch.from_numpy(each) for each in (x, kernel) if each is not None]
    np.testing.assert_allclose(net(x, p), function(*operands).numpy(), rtol=1e-4, atol=1e-5)
