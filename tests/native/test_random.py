"""Random numbers have NumPy's bits."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Chain, Dropout
from chains.backends import UnsupportedOperationError
from chains.backends.numpy.backend import NumpyBackend
from chains.network import record
from chains.network.network import network_of
from tests import harness

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from tests.native.support import (
    Fenced,
    Maps,
    every_instruction_set,
    floats,
    native,
    random_arrays,
    random_program,
    run_fenced,
    run_on,
)


@pytest.mark.few(10)
@every_instruction_set
@floats
@pytest.mark.parametrize("shape", [(), (3,), (8,), (13,), (2, 5)], ids=str)
def test_random_numbers_are_the_bits_of_numpy(shape, kind, simd, eager):
    program = random_program(kind, shape)
    for batch in (1, 2, 7, 49, 103, 2000):
        for key in ([0, 0], [2**63 + 5, 2**40]):
            arrays = random_arrays(program, batch) | {"random": np.array(key, np.uint64)}
            wanted = run_on(NumpyBackend(), program, batch, arrays)
            for threads in (1, 3):
                fences = Fenced()
                actual = run_fenced(native(threads, simd), program, batch, arrays, fences)
                fences.check()
                harness.assert_same_bits(actual, wanted)


@floats
@pytest.mark.parametrize("threads", [1, 3])
def test_random_numbers_without_samples(kind, threads, eager):
    """A result of the whole batch has as many numbers as it has, however many samples there are."""
    m = Maps(kind)
    drawn = m.ops.scratch("drawn", (5, 3, 4), batched=False)
    m.ops.random(drawn)
    m.ops.map(m.output("y", 5, 3, 4, batched=False), lambda u: 2.0 * u, drawn)
    m.ops.map(m.output("z", 3, 4), lambda x, u: x + u, m.input("x", 3, 4), drawn.index(0, 2))
    program = m.program()
    for batch in (1, 33, 1000):
        arrays = random_arrays(program, batch) | {"random": np.array([7, batch], np.uint64)}
        fences = Fenced()
        found = run_fenced(native(threads), program, batch, arrays, fences)
        fences.check()
        harness.assert_same_bits(found, run_on(NumpyBackend(), program, batch, arrays))


def test_random_numbers_in_a_slice():
    m = Maps("float32")
    y = m.output("y", 5, role="state")
    m.ops.random(y.slice(1, 1, 3))
    program = m.program()
    arrays = random_arrays(program, 50)
    try:
        actual = run_on(native(), program, 50, arrays)
    except UnsupportedOperationError:
        return
    harness.assert_same_bits(actual, run_on(NumpyBackend(), program, 50, arrays))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_what_numpy_drops(rate, eager):
    net = Chain(Dropout(rate), Dropout(0.5), input_shape=(11,))
    program = record.forward(network_of(net), np.dtype(np.float32), True)
    arrays = random_arrays(program, 1000)
    wanted = run_on(NumpyBackend(), program, 1000, arrays)["y"]
    for threads in (1, 2, 3):
        actual = run_on(native(threads), program, 1000, arrays)["y"]
        np.testing.assert_array_equal(actual == 0.0, wanted == 0.0)
        np.testing.assert_allclose(actual, wanted, rtol=1e-6)
