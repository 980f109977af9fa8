"""Loops in machine code: memory that does not grow with the batch, code that does not grow with the steps."""

from __future__ import annotations

import numpy as np
import pytest

from chains import GRU, Chain, Dense, MSELoss

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
    short, long = (native.listing(gradient(steps)) for steps in (2, 150))
    assert abs(len(long) - len(short)) < 0.02 * len(short)
