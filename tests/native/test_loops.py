"""Loops in machine code: memory that does not grow with the batch, code that does not grow with the steps."""

from __future__ import annotations

import numpy as np
import pytest

from chains import GRU, RNN, Chain, Dense, MSELoss

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import NativeBackend


def gradient(steps: int):
    net = Chain(GRU(4, 32), Dense(32, 1), input_shape=(steps, 4), backend="native")
    return net.program(MSELoss(), dtype=np.float32)


def test_scratch_memory_does_not_grow_with_the_batch():
    program, native = gradient(150), NativeBackend(threads=2)
    few, many = (native.scratch_bytes(program, batch) for batch in (192, 10_000))
    assert few == many


def test_code_does_not_grow_with_the_steps():
    native = NativeBackend(threads=1)
    short, long = (native.listing(gradient(steps)) for steps in (75, 150))  # of a few steps, code is chosen by their sizes
    assert abs(len(long) - len(short)) < 0.01 * len(short)


@pytest.mark.skipif(not NativeBackend(threads=1).processor.is_x86, reason="a processor that is not slow at them")
def test_subnormal_numbers_are_zeros_in_loops_and_nowhere_else():
    net = Chain(RNN(1, 1, "identity"), input_shape=(3, 1), backend="native")
    p = np.array([1.0, 1e-20, 0.0], np.float32)  # the weights of input and state, and a bias
    x, dy = np.ones((1, 3, 1), np.float32), np.ones((1, 1), np.float32)
    _, dx = net.vjp(p, x, dy)
    np.testing.assert_array_equal(dx.ravel(), np.array([0.0, 1e-20, 1.0], np.float32))  # the first would be 1e-40
    tiny = np.full(8, 1e-38, np.float32)
    assert np.all(tiny * np.float32(0.1) > 0.0)  # as before the call
    plain = Chain(Dense(1, 1), backend="native")
    assert plain(np.full((1, 1), 1e-20, np.float32), p[[1, 2]]).item() == pytest.approx(1e-40, rel=1e-3)
