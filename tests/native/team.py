"""Networks whose products are split among threads or whose tiles are shared out, and steps done by a team."""

from __future__ import annotations

import numpy as np
import pytest

from chains import SGD, BatchNorm, Chain, Dense, Dropout, SquaredLoss, relu, sigmoid, tanh
from chains.backends.numpy.backend import NumpyBackend

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native.runtime.shared import worker_pool
from chains.program.view import Buffer, View
from tests.native.support import native, random_arrays

SPLIT = {
    "narrow": Chain(Dense(784, 30, sigmoid), Dense(30, 10, sigmoid)),
    "deep": Chain(Dense(130, 120, relu), Dense(120, 101, tanh), Dense(101, 97, tanh), Dense(97, 3)),
    "without biases": Chain(Dense(150, 130, tanh, bias=False), Dense(130, 64, bias=False)),
    "statistics of the batch": Chain(Dense(300, 40), BatchNorm(40), Dense(40, 5, tanh)),
    "dropout": Chain(Dense(200, 90, relu), Dropout(0.4), Dense(90, 7)),
}
TILED = {
    "three layers": Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4)),
    "statistics of the batch": Chain(Dense(9, 21), BatchNorm(21), Dense(21, 17, tanh), BatchNorm(17), Dense(17, 3)),
    "dropout": Chain(Dense(7, 50, relu), Dropout(0.4), Dense(50, 3)),
}


def fed(runner, program, batch, arrays, sources, order, together=False, make=None):
    """The values of steps on batches of data sets, and what they make of the states."""
    own = {}
    for name, array in arrays.items():
        own[name] = make(array.shape, array.dtype, array.dtype.itemsize) if make else array.copy()
        own[name][...] = array
    scratch = make((runner.scratch_bytes(program, batch),), np.uint8, 64) if make else None
    binding = runner.bind(program, batch, own, scratch)
    values = np.full(len(order) // batch, np.nan)
    feed = runner.feed(binding, sources, order)
    if isinstance(runner, NumpyBackend):
        feed(0, values)
    else:
        worker_pool().ensure(binding.threads)
        assert feed._run(0, values, together) == len(values)
    return {"values": values, **{name: own[name] for name, b in program.buffers.items() if b.role == "state"}}


def problem(net, batch, kind, steps=40, seed=0):
    rng = np.random.default_rng(seed)
    samples = 3 * batch + 5
    x = 0.3 * rng.normal(size=(samples, *net.input_shape)).astype(kind)
    t = rng.normal(size=(samples, *net.output_shape)).astype(kind)
    order = np.concatenate([rng.permutation(samples)[: 3 * batch] for _ in range(-(-steps // 3))])[: steps * batch]
    return {"x": x, "t": t}, order


def program_of(net, optimizer, kind="float32", penalty=None):
    return net.program(SquaredLoss(), optimizer, penalty=penalty, dtype=kind)


def states(program, batch):
    """Parameters small enough to be trained, and states that might have come from training."""
    arrays = random_arrays(program, batch)
    found = {name: np.array(abs(array)) for name, array in arrays.items() if program.buffers[name].role == "state"}
    return {name: a for name, a in arrays.items() if name in ("random", "value")} | found | {"p": 0.1 * arrays["p"]}


def assert_same_bits(a, b, what=""):
    for name, array in b.items():
        assert a[name].tobytes() == array.tobytes(), f"{name} {what}"


def vector(name, length=1000, role="scratch"):
    return View(Buffer(name, role, np.dtype(np.float32), (length,)), (length,), (1,))


def training(net, optimizer, threads=2, batch=10, steps=2000):
    program = program_of(net, optimizer)
    sources, order = problem(net, batch, "float32", steps)
    arrays = states(program, batch)
    return lambda together: fed(native(threads), program, batch, arrays, sources, order, together)


KINDS = pytest.mark.parametrize("net", [SPLIT["narrow"], TILED["three layers"]], ids=["split", "tiled"])


def training_of(net, steps=2000):
    return training(net, SGD(0.01), batch=10 if net is SPLIT["narrow"] else 200, steps=steps)
