"""Activations in 16 bits: which buffers they are, how far results are off, and training with a scaled loss."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from chains import (
    SGD,
    Activation,
    AvgPool,
    BatchNorm,
    Chain,
    Conv,
    CrossEntropyLoss,
    Dense,
    Dropout,
    Flatten,
    GlobalAvgPool,
    LossScale,
    MaxPool,
    Residual,
    SquaredLoss,
    backends,
    relu,
    tanh,
    train,
)
from chains.backends import backend
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.kernels.half_activations import TYPES
from chains.backends.cupy.source.c_source import FLOAT16
from chains.network import record
from chains.program.recorder import Recorder
from tests.cupy import emulated
from tests.harness import assert_same_bits, run_program

ROUNDING = {"f16": 2.0**-11, "bf16-activations": 2.0**-8}  # of one number, relative to it
NAME = "emulated-half"


@pytest.fixture(params=ROUNDING)
def precision(request):
    return request.param


@pytest.fixture(params=[None, "auto"], ids=["products", "cudnn"])
def device(request, precision, monkeypatch):
    """A device that stores activations in 16 bits, without cuDNN or with it; "emulated-half" names its backend."""
    if emulated.COMPILER is None:
        pytest.skip("no C compiler on this computer")
    monkeypatch.setitem(backends._BACKENDS, NAME, partial(emulated.EmulatedBackend, NAME, False, request.param, precision))
    monkeypatch.delitem(backends._loaded, NAME, raising=False)
    yield backend(NAME).on_device.device
    backends._loaded.pop(NAME, None)


without = pytest.mark.parametrize("device", [None], ids=["products"], indirect=True)
with_cudnn = pytest.mark.parametrize("device", ["auto"], ids=["cudnn"], indirect=True)
float16 = pytest.mark.parametrize("precision", ["f16"], indirect=True)

IMAGES = (Conv(3, 4, 3, tanh, padding=1), Conv(4, 5, 3), AvgPool(2), Activation(tanh), Dropout(0.3))
NETWORKS = {
    "dense": Chain(Dense(6, 32, tanh), Dense(32, 24, tanh), Dense(24, 4)),
    "images": Chain(*IMAGES, Conv(5, 4, 2, tanh), Flatten(), Dense(16, 4), input_shape=(3, 8, 8)),
    "residual": Chain(
        Conv(2, 4, 3, tanh), BatchNorm(4), Residual(Conv(4, 4, 3, tanh, padding=1)), GlobalAvgPool(), Dense(4, 4),
        input_shape=(2, 7, 6),
    ),
}  # fmt: skip


def arrays_for(net, samples=8):
    rng = np.random.default_rng(0)
    arrays = {"p": net.init(seed=1), "x": rng.normal(size=(samples, *net.input_shape)).astype(np.float32)}
    arrays |= {"t": rng.integers(0, 4, samples).astype(np.float32), "random": np.array([3, 0], np.uint64)}
    return arrays | {"state": net.init_state(np.float32)}


# Numbers


@float16
@without
def test_float16_is_numpys(device):
    """All numbers of 16 bits, and of 32 bits those in the middle of two, those beside them, and those out of range."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = np.sort(every[np.isfinite(every)].astype(np.float32))
    middle = (finite[1:] + finite[:-1]) / 2
    beside = [np.nextafter(middle, np.float32(end)) for end in (-np.inf, np.inf)]
    others = np.array([np.inf, -np.inf, np.nan, 65519.99, 65520.0, -65520.0, 1e30, 3e-8, 2.98e-8, 1e-20, -0.0], np.float32)
    given = np.concatenate([every.astype(np.float32), middle, *beside, others])
    ops = Recorder("convert", np.float32)
    a = ops.external("a", (), role="input", batched=True)
    half = ops.external("half", (), role="output", batched=True, dtype=FLOAT16)
    back = ops.external("back", (), role="output", batched=True)
    ops.copy(half, a)
    ops.copy(back, half)
    runner = backend(NAME).on_device
    binding = runner.bind(ops.finish(), len(given), {"a": device.array(given)})
    binding()
    with np.errstate(over="ignore"):
        wanted = given.astype(np.float16)
    np.testing.assert_array_equal(np.asarray(binding.arrays["half"]), wanted)
    np.testing.assert_array_equal(np.asarray(binding.arrays["back"]), wanted.astype(np.float32))
    signs = np.signbit(np.asarray(binding.arrays["half"]))
    assert (signs == np.signbit(wanted))[~np.isnan(wanted)].all()


# What is computed


@pytest.mark.parametrize(("name", "device"), [("dense", None), ("images", "auto"), ("residual", "auto")], indirect=["device"])
def test_gradients(name, precision, device):
    """Off by a few roundings of one number; more than of the float32 ones; the same bits on any scratch."""
    net = NETWORKS[name]
    program, arrays = net.program(CrossEntropyLoss(), target_shape=()), arrays_for(net)
    wanted = run_program(program, "numpy", 8, arrays)
    found, poisoned = (run_program(program, NAME, 8, arrays, fill, runs=2) for fill in (0, 255))
    assert_same_bits({key: found[key] for key in ("value", "g")}, {key: poisoned[key] for key in ("value", "g")})
    off = np.linalg.norm(found["g"] - wanted["g"]) / np.linalg.norm(wanted["g"]) / ROUNDING[precision]
    assert 0.05 < off < 5  # each of a dozen roundings changes the result by less than one
    assert abs(found["value"] - wanted["value"]) < 2 * ROUNDING[precision] * abs(wanted["value"])


@with_cudnn
def test_small_whole_numbers_are_exact(precision, device):
    """relu, maxima and their pullbacks: ties and zeros among them are those of float32."""
    layers = (Conv(2, 4, 3, relu, padding=1), Conv(4, 3, 2), MaxPool(2), Activation(relu), Flatten(), Dense(27, 3, relu))
    net = Chain(*layers, input_shape=(2, 7, 7))
    rng = np.random.default_rng(5)
    p = rng.choice([-1, 0, 0, 0, 1], net.n_params).astype(np.float32)
    arrays = {"p": p, "x": rng.integers(-1, 2, (4, 2, 7, 7)).astype(np.float32), "dy": rng.integers(-1, 2, (4, 3))}
    program = record.vjp(net.network, np.float32, False)
    wanted, found = (run_program(program, name, 4, arrays) for name in ("numpy", NAME))
    assert np.count_nonzero(wanted["g"]) > 50
    for key in wanted:
        np.testing.assert_array_equal(found[key], wanted[key], key)


@without
@float16
def test_what_is_too_large_is_infinite(device):
    net = Chain(Dense(1, 1), Dense(1, 1))
    p, x = np.array([300.0, 0.0, 1.0, 0.0], np.float32), np.array([[1.0], [300.0], [np.nan], [-300.0], [np.inf]], np.float32)
    found = run_program(record.forward(net.network, np.float32, False), NAME, 5, {"p": p, "x": x})["y"]
    np.testing.assert_array_equal(found[:, 0], [300.0, np.inf, np.nan, -np.inf, np.inf])


# Which buffers


def rounded(net, precision, library):
    program = net.program(CrossEntropyLoss(), target_shape=())
    compiled = Compiled(program, convolutions=library, activations=TYPES[precision])
    return compiled, {view.buffer.name for operation in program.operations for view in operation.views}


@with_cudnn
def test_what_is_stored_in_16_bits(precision, device):
    """Activations and cotangents; neither parameters, gradients, random numbers, losses nor what softmax compares.

    The pool's result and its cotangents are in registers alone.
    """
    net = NETWORKS["images"]
    compiled, known = rounded(net, precision, device.convolutions)
    activations = {"y0", "y1", "y3", "y4", "y5"}
    assert {*compiled.rounded} & known == activations | {"dy", "dy0", "dy1", "dy4", "dy6"}
    assert "y" not in compiled.rounded
    listing = backend(NAME).on_device.listing(net.program(CrossEntropyLoss(), target_shape=()))
    assert f"\nin 16 bits: {', '.join(compiled.rounded)}\n" in listing
    plain = Compiled(net.program(CrossEntropyLoss(), target_shape=()), convolutions=device.convolutions)
    assert plain.rounded == []


@without
def test_without_cudnn_convolutions_stay_as_they_are(precision, device):
    compiled, known = rounded(NETWORKS["images"], precision, None)
    assert {*compiled.rounded} & known == {"dy"}
    wide = Chain(Dense(6, 32, tanh), Dense(32, 4))
    doubles = Compiled(wide.program(SquaredLoss(), dtype=np.float64), activations=TYPES[precision])
    assert doubles.rounded == []


# Training


@without
@float16
def test_a_scaled_loss_trains_where_float16_alone_does_not(device):
    """Cotangents of 1e-9 are zeros in float16. The scale is a power of two, so that it changes no other rounding."""
    rng = np.random.default_rng(2)
    x, t = rng.normal(size=(32, 4)).astype(np.float32), rng.normal(size=(32, 2)).astype(np.float32)
    weights = np.full(32, 1e-8, np.float32)
    moved = {}
    for name, optimizer in (("numpy", SGD(2e7)), (NAME, SGD(2e7)), (NAME, LossScale(SGD(2e7), initial=2.0**24))):
        net = Chain(Dense(4, 16, tanh), Dense(16, 2), backend=name)
        p = net.init(seed=4)
        train(net, p, x, t, SquaredLoss(), optimizer, epochs=3, batch_size=16, weights=weights, shuffle=False)
        moved[name, type(optimizer)] = p - net.init(seed=4)
    wanted, lost, scaled = moved.values()
    size = np.linalg.norm(wanted)
    assert np.linalg.norm(lost - wanted) > 0.9 * size
    assert np.linalg.norm(scaled - wanted) < 10 * ROUNDING["f16"] * size
