"""Pools with what is before and behind them in one kernel: which operations these are, and that the numbers are the same."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest

from chains import (
    Activation,
    AvgPool,
    Chain,
    Conv,
    CrossEntropyLoss,
    Dense,
    Dropout,
    Flatten,
    MaxPool,
    Parallel,
    Residual,
    backends,
    relu,
    tanh,
)
from chains.backends import Cupy
from chains.backends.cupy import compiler
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.kernels.pools import PoolInputRun, PoolRun, with_pool_runs
from chains.backends.cupy.source.commands import Launch
from chains.network import record
from chains.network.network import network_of
from chains.program.operations import Map, Pool, PoolInput, Reduce, Window
from chains.program.recorder import Recorder
from tests.cupy import emulated
from tests.cupy.support import needs_compiler
from tests.harness import assert_close, assert_same_bits, run_program

NAME = "emulated-pools"

NETWORKS = {
    "digits": ((Conv(1, 3, 3, relu), MaxPool(2), Conv(3, 4, 2, relu), MaxPool(2)), (1, 12, 12)),
    "photographs": (
        (Conv(3, 4, 3, relu, padding=1), Conv(4, 4, 3, padding=1), MaxPool(2), Activation(relu), Dropout(0.25),
         Conv(4, 5, 3, relu), MaxPool(2), Dropout(0.3)), (3, 8, 8),
    ),
    "uneven": (
        (Conv(2, 3, 1), MaxPool(3, stride=3, padding=((1, 0), (0, 1))), Activation(relu), AvgPool(2, stride=3)), (2, 9, 8),
    ),
    "overlapping": ((Conv(2, 3, 3, relu), MaxPool(3, stride=2, padding=1), Conv(3, 3, 2), AvgPool(3, stride=1)), (2, 11, 10)),
    "gaps": (
        (Conv(2, 3, 1, relu), AvgPool(2, padding=1, count_padding=False), Conv(3, 2, 2, tanh), MaxPool(2, stride=3)), (2, 9, 8),
    ),
    "signals": ((Conv(2, 3, (3,), relu), MaxPool((2,)), Conv(3, 4, (2,)), AvgPool((3,))), (2, 12)),
    "branches": (
        (Conv(2, 3, 1), Parallel(MaxPool(2), AvgPool(2)), Residual(Conv(6, 6, 1, tanh)), MaxPool((1, 2))), (2, 7, 8),
    ),
}  # fmt: skip


@pytest.fixture(params=["own", "cudnn"])
def convolver(request, monkeypatch):
    """Convolutions by kernels of this project, and by cuDNN."""
    if emulated.COMPILER is None:
        pytest.skip("no C compiler on this computer")
    settings = Cupy(convolutions=request.param)
    monkeypatch.setitem(backends.registry._BACKENDS, NAME, partial(emulated.EmulatedBackend, NAME, False, settings))
    monkeypatch.delitem(backends.registry._loaded, NAME, raising=False)
    yield request.param
    backends.registry._loaded.pop(NAME, None)


def separately(operations):
    """What the compiler does without runs."""
    return list(operations)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("samples", [1, 3])
def test_numbers_are_those_of_separate_kernels(name, samples, convolver, monkeypatch):
    """To the bit, but for gradients of biases, which are summed window by window; and NumPy's, where images have NaN too."""
    layers, shape = NETWORKS[name]
    net = Chain(*layers, input_shape=shape)
    rng = np.random.default_rng(samples)
    arrays = {"p": rng.normal(size=net.n_params), "dy": rng.normal(size=(samples, *net.output_shape))}
    arrays |= {"x": rng.normal(size=(samples, *shape)).round(1), "random": np.array([3, 0], np.uint64)}
    arrays["x"].flat[5::29] = np.nan if samples == 3 else 0.0
    program = record.vjp(network_of(net), np.float64, True)
    wanted = run_program(program, "numpy", samples, arrays)
    found, poisoned = (run_program(program, NAME, samples, arrays, fill, runs=3) for fill in (0, 255))
    assert_same_bits(found, poisoned)
    monkeypatch.setattr(compiler, "with_pool_runs", separately)
    backends.registry._loaded.pop(NAME)
    apart = run_program(program, NAME, samples, arrays)
    weights = np.concatenate([np.full(each.stop - each.start, "bias" not in each.name) for each in net.layout])
    for key in wanted:
        np.testing.assert_array_equal(np.isnan(found[key]), np.isnan(wanted[key]))
        assert_close(np.nan_to_num(found[key]), np.nan_to_num(wanted[key]), 1e-13, key)
        same = weights if key == "g" else ...
        np.testing.assert_array_equal(found[key][same], apart[key][same])


def kinds(net, **settings):
    """How often a step of a network does what, by the names of kernels without numbers."""
    commands = Compiled(net.program(CrossEntropyLoss(), target_shape=()), **settings).commands
    return Counter(each.kernel.name.rsplit("_", 1)[0] for each in commands if isinstance(each, Launch))


def test_kernels_of_digits():
    """Bias, pool and relu are a kernel, as are both pullbacks and the sum for the bias: all maps left are the loss's."""
    net = Chain(*NETWORKS["digits"][0], Flatten(), Dense(16, 3), input_shape=(1, 12, 12))
    with_runs = kinds(net)
    assert (with_runs["max_pool"], with_runs["max_pool_input"]) == (2, 2)
    assert with_runs["map"] == kinds(Chain(Dense(16, 3)))["map"]


def pooled(kind, reads_input=False, changes=False):
    """The operations of a program with a bias, a pool, what is computed from its result, and the pullback."""
    ops, window = Recorder("pool", np.float32), Window((2, 2), (2, 2))
    x = ops.external("x", (3, 4, 4), role="input", batched=True)
    b = ops.external("b", (3, 1, 1), role="input")
    dy = ops.external("dy", (3, 2, 2), role="input", batched=True)
    dx = ops.external("dx", (3, 4, 4), role="output", batched=True)
    db = ops.external("db", (3, 1, 1), role="output")
    z = ops.external("z", (3, 4, 4), role="output", batched=True)
    a, y, d = ops.scratch("a", (3, 4, 4)), ops.scratch("y", (3, 2, 2)), ops.scratch("d", (3, 2, 2))
    ops.map(a, lambda x, b: x * 2.0 + b, x, b)
    ops.pool(kind, y, a, window)
    if changes:
        ops.map(y, lambda y: y * 2.0, y)
    ops.map(d, lambda dy, y: dy * y, dy, y)
    ops.pool_input(kind, dx, d, a, y, window)
    ops.sum(db, dx)
    if reads_input:
        ops.map(z, lambda a: a + 1.0, a)
    return ops.finish().operations


def test_what_others_read_is_stored():
    """A pool takes its input along where nobody else reads it, and the choice serves where the result is the pool's own."""
    whole = with_pool_runs(pooled("max"))
    assert [type(each) for each in whole] == [PoolRun, PoolInputRun]
    assert [len(each.before) for each in whole] == [1, 0]  # the second map is done behind the pool
    assert whole[0].chosen is whole[1].chosen
    assert [type(each) for each in with_pool_runs(pooled("max", reads_input=True))] == [Map, PoolRun, PoolInputRun, Map]
    assert [type(each) for each in with_pool_runs(pooled("max", changes=True))] == [Map, PoolRun, PoolInput, Reduce]
    assert [type(each) for each in with_pool_runs(pooled("mean"))] == [PoolRun, PoolInputRun]


@needs_compiler
def test_largest_entries_of_windows_without_numbers():
    """Windows of infinities and NaN: a choice is made among infinities, and none where a number is missing."""
    ops, window = Recorder("pool", np.float64), Window((1, 2), (1, 2))
    x, dx = (ops.external(name, (1, 1, 12), role=role, batched=True) for name, role in (("x", "input"), ("dx", "output")))
    dy, y = (ops.external(name, (1, 1, 6), role=role, batched=True) for name, role in (("dy", "input"), ("y", "output")))
    ops.pool("max", y, x, window)
    ops.pool_input("max", dx, dy, x, y, window)
    program = ops.finish()
    assert any(isinstance(each, Pool) for each in program.operations)
    inf, nan = np.inf, np.nan
    numbers = [-inf, -inf, inf, inf, nan, 1, 1, nan, -0.0, 0.0, 3, 2]
    arrays = {"x": np.array(numbers).reshape(1, 1, 1, 12), "dy": np.arange(1.0, 7).reshape(1, 1, 1, 6)}
    wanted, found, backwards = (run_program(program, name, 1, arrays) for name in ("numpy", "emulated", "backwards"))
    assert wanted["dx"].ravel().tolist() == [1, 0, 2, 0, 0, 0, 0, 0, 5, 0, 6, 0]
    for key in wanted:
        np.testing.assert_array_equal(found[key], wanted[key])
        np.testing.assert_array_equal(backwards[key], wanted[key])
