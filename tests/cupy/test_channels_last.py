"""Convolutions by cuDNN with biases and relus, in the layout with channels innermost, and the copies at their borders."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest

import chains
from chains import (
    Activation,
    AvgPool,
    BatchNorm,
    Chain,
    Conv,
    ConvTranspose,
    CrossEntropyLoss,
    Dense,
    Dropout,
    Flatten,
    GlobalAvgPool,
    MaxPool,
    Residual,
    backends,
    relu,
    tanh,
)
from chains.backends import backend
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.device.cudnn import Cudnn
from chains.backends.cupy.kernels.channels_last import with_channels_last
from chains.backends.cupy.kernels.library_convolutions import Convolved
from chains.backends.cupy.source.commands import Launch
from chains.network import record
from tests.cupy import emulated, fake_cudnn
from tests.harness import assert_close, assert_same_bits, run_program

NAME = "emulated-last"


@pytest.fixture
def last(monkeypatch):
    """Channels are innermost for all types, which is otherwise for tensor cores alone."""
    monkeypatch.setattr(Cudnn, "wants_last", lambda self, dtype: True)


@pytest.fixture
def device(request, monkeypatch):
    if emulated.COMPILER is None:
        pytest.skip("no C compiler on this computer")
    choice = getattr(request, "param", "auto")
    monkeypatch.setitem(backends._BACKENDS, NAME, partial(emulated.EmulatedBackend, NAME, False, choice))
    monkeypatch.delitem(backends._loaded, NAME, raising=False)
    yield backend(NAME).on_device.device
    backends._loaded.pop(NAME, None)


NETWORKS = {
    "pools": (
        (Conv(3, 5, 3, relu, padding=1), Conv(5, 4, 3), MaxPool(2), Activation(relu), Dropout(0.3), Conv(4, 6, 2), AvgPool(2),
         Flatten(), Dense(6, 3)), (3, 8, 8),
    ),
    "branches": (
        (Conv(2, 4, 3, tanh), chains.Parallel(Conv(4, 3, 1, relu), Conv(4, 2, 1)), BatchNorm(5),
         Residual(Conv(5, 5, 3, relu, padding=1)), GlobalAvgPool(), Dense(5, 2)), (2, 7, 6),
    ),
    "borders": ((Conv(1, 3, 3, relu), ConvTranspose(3, 1, 2, stride=2), Conv(1, 2, 2), Flatten(), Dense(98, 2)), (1, 6, 6)),
    "signals": ((Conv(2, 4, (3,), relu), MaxPool((2,)), Conv(4, 3, (2,), groups=1), Flatten(), Dense(9, 2)), (2, 10)),
    "groups": ((Conv(4, 6, 3, relu, groups=2), chains.Scale(), Conv(6, 4, 2, stride=2)), (4, 8, 7)),
}  # fmt: skip


def arrays_for(net, samples=3):
    rng = np.random.default_rng(0)
    arrays = {"p": rng.normal(size=net.n_params), "x": rng.normal(size=(samples, *net.input_shape))}
    arrays |= {"dy": rng.normal(size=(samples, *net.output_shape)), "random": np.array([3, 0], np.uint64)}
    return arrays | {"state": net.init_state(np.float64)}


def launched(net, device, samples=3):
    """What a gradient's program does, in order: the kind of each convolution, and the names of kernels without numbers."""
    program = net.program(CrossEntropyLoss(), target_shape=())
    compiled = Compiled(program, convolutions=device.convolutions)
    steps = [step for step, _ in compiled.at(samples) if not isinstance(step, Launch) or step.grid(samples) is not None]
    return [_kind(step) for step in steps]


def _kind(step):
    if isinstance(step, Convolved):
        return "xwy"[step.convolution.result] + " " + step.convolution.after
    return step.kernel.name.rsplit("_", 1)[0] if isinstance(step, Launch) else type(step).__name__


# The layout


@pytest.mark.usefixtures("last")
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, device):
    """Results, gradients and states equal NumPy's on scratch of zeros and of NaN, eagerly and as a graph."""
    layers, shape = NETWORKS[name]
    net = Chain(*layers, input_shape=shape)
    arrays, dtype = arrays_for(net), np.float64
    for program in (record.forward(net.network, dtype, False), record.vjp(net.network, dtype, True)):
        wanted = run_program(program, "numpy", 3, arrays)
        found, poisoned = (run_program(program, NAME, 3, arrays, fill, runs=3) for fill in (0, 255))
        assert_same_bits(found, poisoned)
        for key in wanted:
            assert_close(found[key], wanted[key], 1e-13, key)


@pytest.mark.usefixtures("last")
def test_images_change_their_layout_at_borders_alone(device, monkeypatch):
    """The input is copied, and nothing else: pools and maps write what is read as rows in the order that is read."""
    layers = (Conv(3, 8, 3, relu, padding=1), Conv(8, 8, 3), MaxPool(2), Dropout(0.3), Conv(8, 5, 3, relu, padding=1))
    net = Chain(*layers, AvgPool(3), Flatten(), Dense(5, 3), input_shape=(3, 8, 8))
    laid_out = launched(net, device)
    monkeypatch.setattr(Cudnn, "wants_last", lambda self, dtype: False)
    assert laid_out[:2] == ["copies", "map"]  # kernels and biases; images
    assert laid_out[-1] == "copies"  # gradients of kernels
    assert laid_out[2:-1] == [kind for kind in launched(net, device) if kind != "copies"]


@pytest.mark.usefixtures("last")
def test_threads_beside_each_other_touch_numbers_beside_each_other(device):
    """Maps and the sums for biases go through images as they lie: as one axis, or channel by channel."""
    net = Chain(Conv(2, 6, 3, tanh, padding=1), Conv(6, 6, 2, tanh), MaxPool(2), Flatten(), Dense(36, 2), input_shape=(2, 7, 5))
    given = with_channels_last(net.program(CrossEntropyLoss(), target_shape=()).operations)
    views = [view for each in given if each.elementwise or each.name == "sum" for view in each.views if view.ndim == 4]
    images = [view for view in views if view.batched]
    assert images
    assert all(view.contiguous and view.shape[3] == 6 for view in images)
    assert {view.shape for view in views if not view.batched} == {(1, 1, 1, 6)}


def test_the_layout_is_for_tensor_cores(device):
    wanted = {
        (precision, kind): Cudnn(device, device.library, precision).wants_last(np.dtype(kind))
        for precision in ("float32", "tf32")
        for kind in (np.float32, np.float64)
    }
    assert wanted == {("float32", np.float32): 0, ("float32", np.float64): 0, ("tf32", np.float32): 1, ("tf32", np.float64): 0}


# Copies


def test_parameters_are_copied_by_one_launch(device):
    """What does not begin at 16 bytes, before the first convolution and behind the last, however often it is read."""
    net = Chain(Conv(1, 3, 3, relu), Conv(3, 3, 3, relu), Conv(3, 2, 3, relu), Flatten(), Dense(8, 2), input_shape=(1, 8, 8))
    steps = launched(net, device)
    assert steps.count("copies") == 2
    assert steps[0] == steps[-1] == "copies"
    assert steps[1:4] == ["y relu_bias"] * 3


# Biases and relus


@pytest.mark.parametrize("device", ["auto", "cudnn-timed"], indirect=True)
def test_biases_and_relus_go_along(device):
    layers = (Conv(2, 3, 3, relu), Conv(3, 4, 3), Conv(4, 2, 1, bias=False), MaxPool(2))
    net = Chain(*layers, input_shape=(2, 8, 8), backend=NAME)
    p, x = net.init(seed=1), np.random.default_rng(1).normal(size=(5, 2, 8, 8)).astype(np.float32)
    found = net(x, p)
    assert Counter(device.library.followed[-3:]) == {"bias relu": 1, "bias": 1, "": 1}
    assert_close(found, Chain(*net.layers, input_shape=net.input_shape, backend="numpy")(x, p), 1e-5)
    head = Chain(*net.layers, Flatten(), Dense(8, 3), input_shape=(2, 8, 8))
    assert launched(head, device)[:4] == ["copies", "y relu_bias", "y bias", "y "]


@pytest.mark.parametrize("losing", [{fake_cudnn.RIGHT}, {fake_cudnn.RIGHT, fake_cudnn.QUICKER}])
def test_relu_keeps_nan(device, losing):
    """Of plans whose relu loses NaN none is taken; where all do, relu is a kernel's."""
    device.library.loses_nan = losing
    net = Chain(Conv(1, 2, 2, relu), input_shape=(1, 4, 4), backend=NAME)
    x = np.random.default_rng(0).normal(size=(3, 1, 4, 4)).astype(np.float32)
    x[1, 0, 2, 2] = np.nan
    found, wanted = (Chain(*net.layers, input_shape=(1, 4, 4), backend=name)(x, net.init(seed=2)) for name in (NAME, "numpy"))
    assert np.isnan(wanted).sum() == 8
    assert_close(found, wanted, 1e-6)
    assert bool("bias relu" in device.library.followed) == (len(losing) == 1)


def test_refused_biases_are_maps(device):
    device.library.refuses = lambda graph: bool(graph.after)
    net = Chain(Conv(2, 3, 3, relu), Conv(3, 4, 3), input_shape=(2, 8, 8))
    head = Chain(*net.layers, Flatten(), Dense(64, 2), input_shape=(2, 8, 8))
    assert launched(head, device)[1:5] == ["y ", "map", "y ", "map"]
    arrays = arrays_for(net)
    program = record.vjp(net.network, np.float64, False)
    wanted, found = (run_program(program, name, 3, arrays) for name in ("numpy", NAME))
    for key in wanted:
        assert_close(found[key], wanted[key], 1e-13, key)


@pytest.mark.parametrize("device", ["cudnn-timed"], indirect=True)
@pytest.mark.parametrize("delay", [0.0, 100.0])
def test_what_is_quicker_is_taken(device, delay):
    """One graph, or a convolution and a kernel; tried once for each shape, on memory that the run writes anew."""
    device.library.delay = delay
    layers = (Conv(2, 3, 3, relu), Conv(3, 4, 3))
    net, x = Chain(*layers, input_shape=(2, 8, 8), backend=NAME), np.ones((3, 2, 8, 8), np.float32)
    p = net.init(seed=3)
    for name in (NAME, NAME):
        before = len(device.library.executed), device.library.followed.count("bias relu")
        found = Chain(*layers, input_shape=(2, 8, 8), backend=name)(x, p)
    done = len(device.library.executed) - before[0], device.library.followed.count("bias relu") - before[1]
    assert done == (2, int(not delay))
    assert_close(found, Chain(*layers, input_shape=(2, 8, 8), backend="numpy")(x, p), 1e-5)
