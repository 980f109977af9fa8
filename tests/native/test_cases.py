"""Cases of the harness on several threads and random networks equal NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains.backends.numpy.backend import NumpyBackend
from chains.network.network import network_of
from tests.harness import CASES, LAYERS, LOSS_CASES, PENALTY_CASES, targets
from tests.layers.test_random_chains import cases

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import memory_plan
from tests.native.support import Fenced, assert_equal_results, gradient_program, native, random_arrays, run_fenced, run_on

pytestmark = pytest.mark.few(4)

CHOSEN = [*LAYERS[::2], *LOSS_CASES[::4], *PENALTY_CASES[::5], *(case for case in CASES if case.name.startswith("own-"))]


@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_cases_on_threads_equal_numpy(case, eager):
    net, batch, rng = case.net(), 101, np.random.default_rng(3)
    program = gradient_program(net, "float64", criterion=case.criterion())
    arrays = random_arrays(program, batch) | {"t": targets(case.targets, rng, batch, net.output_shape).astype("f8")}
    arrays = {name: array for name, array in arrays.items() if name in program.buffers}
    wanted = run_on(NumpyBackend(), program, batch, arrays)
    for threads in (1, 3):
        fences = Fenced()
        actual = run_fenced(native(threads), program, batch, arrays, fences)
        fences.check(f"{threads} threads")
        assert_equal_results(actual, wanted, "float64", f"{threads} threads")


@settings(max_examples=6)
@given(st.data())
def test_random_chains_equal_numpy(data):
    case, batch = data.draw(cases()), data.draw(st.sampled_from([1, 2, 17, 48, 49, 100]))
    batch = max(batch, network_of(case.net()).declaration.most_demanding.smallest_batch)
    program = gradient_program(case.net(), "float64", criterion=case.criterion())
    arrays = random_arrays(program, batch)
    wanted = run_on(NumpyBackend(), program, batch, arrays, runs=2)  # a state is updated by each
    memory_plan.MIN_THREAD_OPERATIONS, before = 1, memory_plan.MIN_THREAD_OPERATIONS
    try:
        for threads in (1, 2):
            fences = Fenced()
            actual = run_fenced(native(threads), program, batch, arrays, fences, runs=2)
            fences.check()
            assert_equal_results(actual, wanted, "float64", factor=10.0)
    finally:
        memory_plan.MIN_THREAD_OPERATIONS = before
