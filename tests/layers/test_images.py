"""Layers of images: their definitions written out, what NumPy's patches may take, and the lessons of larger comparisons."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import (
    Adam,
    AvgPool,
    Chain,
    Conv,
    ConvTranspose,
    CrossEntropyLoss,
    Dense,
    Dropout,
    Flatten,
    GlobalAvgPool,
    MaxPool,
    Pad,
    Upsample,
    relu,
)
from chains.backends.numpy.backend import NumpyBinding
from chains.backends.numpy.images import WORKSPACE_BYTES
from chains.program.operations import Convolve, ConvolveInput, ConvolveWeight, Random
from chains.program.scratch import ALIGNMENT
from tests.harness import assert_close, record_all

RNG = np.random.default_rng(0)


def run(layer, x, backend_name):
    net = Chain(layer, input_shape=x.shape[1:], backend=backend_name)
    p = np.random.default_rng(1).normal(size=net.n_params)
    return net(x, p), net.views(p)


# Definitions, one entry at a time


def convolved(x, weight, bias, stride=(1, 1), dilation=(1, 1), groups=1):
    """The convolution of padded images, from its definition."""
    (batch, _, *inputs), (outputs, part, *size) = x.shape, weight.shape
    lengths = [(inputs[k] - (size[k] - 1) * dilation[k] - 1) // stride[k] + 1 for k in range(2)]
    y = np.zeros((batch, outputs, *lengths))
    for n, o, i, j in np.ndindex(*y.shape):
        first = o // (outputs // groups) * part
        for c, a, b in np.ndindex(part, *size):
            y[n, o, i, j] += (
                weight[o, c, a, b] * x[n, first + c, i * stride[0] + a * dilation[0], j * stride[1] + b * dilation[1]]
            )
    return y + bias[:, None, None]


@pytest.mark.parametrize(
    ("layer", "pads", "rest"),
    [
        (Conv(4, 2, 3), ((0, 0), (0, 0)), {}),
        (Conv(4, 2, (2, 3), stride=(2, 1), padding=(1, 2)), ((1, 1), (2, 2)), {"stride": (2, 1)}),
        (
            Conv(4, 6, 2, groups=2, dilation=(1, 2), padding=((0, 1), (2, 0))),
            ((0, 1), (2, 0)),
            {"dilation": (1, 2), "groups": 2},
        ),
        (Conv(4, 3, (2, 3), padding="same"), ((0, 1), (1, 1)), {}),
        (Conv(4, 3, (1, 2), padding="same", dilation=3), ((0, 0), (1, 2)), {"dilation": (3, 3)}),
        (Conv(4, 8, 1, groups=4), ((0, 0), (0, 0)), {"groups": 4}),
    ],
    ids=str,
)
def test_conv(layer, pads, rest, backend_name):
    x = RNG.normal(size=(3, 4, 5, 6))
    y, p = run(layer, x, backend_name)
    padded = np.pad(x, ((0, 0), (0, 0), *pads))
    assert_close(y, convolved(padded, p["0.weight"], p["0.bias"], **rest), 1e-13)
    assert "same" not in repr(layer) or y.shape[2:] == x.shape[2:]


def test_a_signal_is_an_image_of_height_one(backend_name):
    x = RNG.normal(size=(3, 4, 9))
    for short, long in (
        (Conv(4, 6, (3,), "tanh", stride=2, padding=1), Conv(4, 6, (1, 3), "tanh", stride=(1, 2), padding=(0, 1))),
        (Conv(4, 2, (2,), dilation=3, groups=2), Conv(4, 2, (1, 2), dilation=3, groups=2)),
        (ConvTranspose(4, 2, (3,), stride=2), ConvTranspose(4, 2, (1, 3), stride=(1, 2))),
        (MaxPool((2,), stride=1), MaxPool((1, 2), stride=1)),
        (AvgPool((3,), padding=1), AvgPool((1, 3), padding=(0, 1))),
        (Upsample((3,)), Upsample((1, 3))),
        (Pad(((1, 2),)), Pad(((0, 0), (1, 2)))),
    ):  # fmt: skip
        y, p = run(short, x, backend_name)
        assert y.ndim == 3
        assert not p or p["0.weight"].ndim == 3
        assert_close(y[:, :, None], run(long, x[:, :, None], backend_name)[0], 1e-14)


def test_the_transpose_is_a_transpose(backend_name):
    """For any x and y, the product of Conv(x) with y is that of x with ConvTranspose(y)."""
    settings = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2, "bias": False}
    forward = Chain(Conv(4, 6, (3, 2), **settings), input_shape=(4, 6, 5), backend=backend_name)
    back = Chain(ConvTranspose(6, 4, (3, 2), output_padding=(1, 0), **settings), input_shape=forward.output_shape,
                 backend=backend_name)  # fmt: skip
    assert back.output_shape == forward.input_shape
    p, x, y = RNG.normal(size=forward.n_params), RNG.normal(size=(2, 4, 6, 5)), RNG.normal(size=(2, *forward.output_shape))
    assert np.sum(forward(x, p) * y) == pytest.approx(np.sum(x * back(y, p)), rel=1e-12)


def test_pools(backend_name):
    x = RNG.normal(size=(2, 3, 4, 6))
    blocks = x.reshape(2, 3, 2, 2, 3, 2)
    assert_close(run(MaxPool(2), x, backend_name)[0], blocks.max((3, 5)), 0)
    assert_close(run(AvgPool(2), x, backend_name)[0], blocks.mean((3, 5)), 1e-15)
    assert_close(run(GlobalAvgPool(), x, backend_name)[0], x.mean((2, 3)), 1e-15)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    assert_close(run(MaxPool(3, stride=2, padding=1), x, backend_name)[0], windows.max((4, 5)), 0)
    sums, counts = (np.where(np.isfinite(windows), f, 0.0).sum((4, 5)) for f in (windows, 1.0))
    assert_close(run(AvgPool(3, stride=2, padding=1), x, backend_name)[0], sums / 9, 1e-15)
    assert_close(run(AvgPool(3, stride=2, padding=1, count_padding=False), x, backend_name)[0], sums / counts, 1e-15)


def test_padding_is_never_the_largest(backend_name):
    x = -1.0 - RNG.random((2, 1, 3, 3))
    y, _ = run(MaxPool(2, padding=1), x, backend_name)
    assert y.max() <= -1.0
    assert_close(y[:, :, 0, 0], x[:, :, 0, 0], 0)


def test_the_first_of_equal_entries_takes_the_gradient(backend_name):
    net = Chain(MaxPool(2, stride=1), input_shape=(1, 3, 3), backend=backend_name)
    dy = np.array([[[[1.0, 2.0], [4.0, 8.0]]]])
    for x, wanted in (
        (np.zeros((3, 3)), [[1, 2, 0], [4, 8, 0], [0, 0, 0]]),
        ([[0, 0, 0], [0, 5, 0], [0, 0, 0]], [[0, 0, 0], [0, 15, 0], [0, 0, 0]]),
        ([[0, 1, 0], [1, 0, 1], [0, 1, 0]], [[0, 3, 0], [4, 0, 8], [0, 0, 0]]),
    ):
        _, dx = net.vjp(np.empty(0), np.array(x, float)[None, None], dy)
        np.testing.assert_array_equal(dx[0, 0], wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_overlapping_windows_add_their_gradients(dtype, backend_name):
    """The first entry of a window is inside the images for the last of four windows alone, a strided column of their shares."""
    net = Chain(MaxPool((3, 6), stride=1, padding=(1, 3)), input_shape=(2, 9, 3), backend=backend_name)
    x, dy = RNG.permutation(162).reshape(3, 2, 9, 3).astype(dtype), RNG.integers(1, 9, (3, 2, 9, 4)).astype(dtype)
    wanted, rows = np.zeros((3, 2, 11, 9)), np.pad(x, ((0, 0), (0, 0), (1, 1), (3, 3)), constant_values=-1)
    for *image, row, column in np.ndindex(dy.shape):
        window = rows[*image, row : row + 3, column : column + 6]
        at = np.unravel_index(window.argmax(), window.shape)
        wanted[*image, row + at[0], column + at[1]] += dy[*image, row, column]
    np.testing.assert_array_equal(net.vjp(np.empty(0, dtype), x, dy)[1], wanted[:, :, 1:-1, 3:-3])


def test_upsampling_and_padding(backend_name):
    x = RNG.normal(size=(2, 3, 2, 4))
    assert_close(run(Upsample((2, 3)), x, backend_name)[0], x.repeat(2, axis=2).repeat(3, axis=3), 0)
    assert_close(run(Upsample(), x[:, :, 0], backend_name)[0], x[:, :, 0].repeat(2, axis=2), 0)
    assert_close(run(Pad((1, 2)), x, backend_name)[0], np.pad(x, ((0, 0), (0, 0), (1, 1), (2, 2))), 0)
    assert_close(run(Pad(((1, 0), (0, 3))), x, backend_name)[0], np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 3))), 0)


# What NumPy's patches may take


STACK = (Conv(3, 8, 3, padding=1), MaxPool(3, stride=2), Conv(8, 8, 3, padding=2, groups=2), ConvTranspose(8, 4, 2, stride=2),
         AvgPool(3, stride=1, padding=1, count_padding=False), Conv(4, 6, 1), Conv(6, 2, 5, stride=2, dilation=2))  # fmt: skip


def beyond_the_plan(program, batch):
    """The scratch memory that the NumPy backend adds to that of the program: what is no activation."""
    return NumpyBinding(program, batch, {}, None).scratch_bytes - program.scratch.nbytes(batch)


def test_patches_stay_within_their_bound(dtype):
    """At most `WORKSPACE_BYTES`, rounded to cache lines, for all convolutions and pools together, and a kernel's product."""
    net = Chain(*STACK, input_shape=(3, 24, 20))
    program = record_all(net, dtype).finish()
    kernels = 4 * net.n_params * program.dtype.itemsize
    bound = WORKSPACE_BYTES + 4 * ALIGNMENT
    for batch in (1, 2, 33, 256, 2000):
        assert NumpyBinding(program, batch, {}, None).memory.workspace.nbytes <= bound
        assert beyond_the_plan(program, batch) <= bound + kernels
    assert beyond_the_plan(program, 2000) > 0.9 * WORKSPACE_BYTES  # a tile of samples, not one at a time
    assert beyond_the_plan(program, 1) < 0.2 * WORKSPACE_BYTES


def test_a_large_sample_has_patches_of_its_own(dtype):
    """Where one sample's patches exceed the bound, it is these that count, at any batch size."""
    program = record_all(Chain(Conv(32, 8, 5, padding=2), input_shape=(32, 40, 40)), dtype).finish()
    one = 40 * 40 * (32 * 25 + 8) + 32 * 44 * 44  # patches, results, padded images
    for batch in (1, 2, 100):
        taken = NumpyBinding(program, batch, {}, None).memory.workspace.nbytes
        assert one * program.dtype.itemsize <= taken <= one * program.dtype.itemsize + 3 * ALIGNMENT


@pytest.mark.parametrize("batch", [1, 3, 700])
def test_tiles_add_up(batch, dtype):
    """Batches of several tiles, the last one smaller, give what their samples give alone."""
    net = Chain(*STACK, input_shape=(3, 24, 20), backend="numpy")
    p = net.init(dtype=dtype)
    x = np.random.default_rng(2).normal(size=(batch, 3, 24, 20)).astype(dtype)
    dy = np.random.default_rng(3).normal(size=(batch, *net.output_shape)).astype(dtype)
    g, dx = net.vjp(p, x, dy)
    y, tolerance = net(x, p), 1e-4 if dtype is np.float32 else 1e-12
    parts = [net.vjp(p, x[k : k + 1], dy[k : k + 1]) for k in range(batch)]
    assert_close(g, np.sum([part for part, _ in parts], axis=0, dtype=np.float64), tolerance)
    assert_close(dx, np.concatenate([part for _, part in parts]), tolerance)
    assert_close(y, np.concatenate([net(x[k : k + 1], p) for k in range(batch)]), tolerance)


# Lessons of comparisons of larger networks


def classifier():
    features = (Conv(1, 4, 3, relu, padding="same"), MaxPool(2), Dropout(0.25), Conv(4, 6, 3, "tanh"), GlobalAvgPool())
    return Chain(*features, Dense(6, 3), input_shape=(1, 8, 8))


def labelled(program, kind):
    return [operation.label for operation in program.operations if isinstance(operation, kind)]


def test_the_first_layers_input_gradient_is_never_computed():
    program = classifier().program(CrossEntropyLoss(), Adam(), target_shape=())
    assert labelled(program, ConvolveWeight) == ["3.Conv'", "0.Conv'"]
    assert labelled(program, ConvolveInput) == ["3.Conv'"]
    transposed = Chain(ConvTranspose(1, 2, 2), Flatten(), Dense(18, 2), input_shape=(1, 2, 2))
    program = transposed.program(CrossEntropyLoss(), Adam(), target_shape=())
    assert labelled(program, Convolve) == []
    assert labelled(program, ConvolveInput) == ["0.ConvTranspose"]


def test_gradients_stop_where_nothing_below_is_trained():
    program = classifier().with_frozen("0.*").program(CrossEntropyLoss(), Adam(), target_shape=())
    assert labelled(program, ConvolveWeight) == ["3.Conv'"]
    assert labelled(program, ConvolveInput) == []
    assert not any("pool_input" in operation.name for operation in program.operations)


def test_dropout_switches_by_mode(backend_name):
    net = Chain(*classifier().layers, input_shape=(1, 8, 8), backend=backend_name)
    x, t, p = RNG.normal(size=(5, 1, 8, 8)), np.array([0, 1, 2, 0, 1]), net.init(dtype=np.float64)
    without = Chain(
        *(layer for layer in net.layers if not isinstance(layer, Dropout)), input_shape=(1, 8, 8), backend=backend_name
    )
    assert net(x, p, seed=1).tobytes() == net(x, p, seed=2).tobytes() == without(x, p).tobytes()
    assert np.any(net(x, p, mode="train", seed=1) != net(x, p, mode="train", seed=2))
    loss = CrossEntropyLoss()
    assert net.value_and_grad(p, x, t, loss, seed=1)[0] != net.value_and_grad(p, x, t, loss, seed=2)[0]
    assert net.loss(p, x, t, loss) == without.loss(p, x, t, loss)
    assert labelled(net.program(loss, Adam(), target_shape=()), Random)
    assert not labelled(net.program(loss, target_shape=(), mode="eval"), Random)


def test_a_small_network_learns(backend_name):
    """Which way a stroke goes, from noisy images of one."""
    rng = np.random.default_rng(0)
    t = rng.integers(0, 2, 400)
    x = 0.3 * rng.normal(size=(400, 1, 8, 8))
    for k, place in enumerate(rng.integers(0, 8, 400)):
        (x[k, 0] if t[k] else x[k, 0].T)[place] += 1.0
    net = Chain(Conv(1, 4, 3, relu), MaxPool(2), Conv(4, 8, 2, relu), GlobalAvgPool(), Dense(8, 2), input_shape=(1, 8, 8),
                backend=backend_name)  # fmt: skip
    p = net.init(seed=1)
    chains.train(net, p, x[:300], t[:300], CrossEntropyLoss(), Adam(0.01), epochs=20, batch_size=30, seed=0)
    assert chains.accuracy(t[300:], net(x[300:], p)) > 0.95
