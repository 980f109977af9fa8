"""The cases of the harness on array libraries: equal to NumPy, with scratch that holds zeros or NaN."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from chains.backends import ArrayBackend
from chains.network import record
from chains.network.network import network_of
from chains.testing import assert_close, run_program
from tests.harness import CASES, LAYERS, assert_same_bits

LIBRARIES = [name for name in ("torch", "array_api_strict", "numpy") if importlib.util.find_spec(name)]


@pytest.fixture(scope="module", params=LIBRARIES)
def library(request):
    return ArrayBackend(request.param)


@pytest.mark.few(40)
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_value_and_gradients_equal_numpy(case, mode, library):
    problem = case.problem(5)
    for found, wanted in (
        (problem.value_and_grad(library, mode=mode), problem.value_and_grad(mode=mode)),
        (problem.vjp(library, mode=mode), problem.vjp(mode=mode)),
        ([problem.call(library, mode=mode)], [problem.call(mode=mode)]),
    ):
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other, 1e-12)


@pytest.mark.few(12)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_scratch_is_filled_before_it_is_read(case, dtype, library):
    problem = case.problem(3)
    program = record.vjp(network_of(case.net()), training=True, dtype=np.dtype(dtype))
    arrays = {"p": problem.p, "x": problem.x, "dy": problem.dy, "state": problem.state, "random": np.array([3, 0], np.uint64)}
    zeros, poisoned = (run_program(program, library, len(problem.x), arrays, fill) for fill in (0, 0xFF))
    assert_same_bits(zeros, poisoned)
