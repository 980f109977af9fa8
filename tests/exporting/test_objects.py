"""Object files give the bits that Python gives on the same instruction set: all layers, losses and optimisers."""

from __future__ import annotations

from itertools import pairwise
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import BatchNorm, Chain, Dense, Dropout, SquaredLoss, tanh
from tests.exporting.support import compare, data, interface, loaded
from tests.harness import ACTIVATION_CASES, LAYERS, LOSS_CASES, OPTIMIZERS, PENALTY_CASES
from tests.layers.test_random_chains import cases

from chains.backends.native.llvm.jit import scheduling  # isort: skip
from chains.exporting.objects import Objects  # isort: skip
from chains.exporting.targets import targets_of  # isort: skip

pytestmark = pytest.mark.few(4)

BATCHES = (1, 5, 100)
CASES = [*LAYERS, *ACTIVATION_CASES, *(case for case in (*LOSS_CASES, *PENALTY_CASES) if not case.weighted)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits_are_those_of_python(case):
    dtype = ("float32", "float64")[crc32(case.name.encode()) % 2]
    made = interface(case.net(), dtype, loss=case.loss, target_shape=case.problem(1).t.shape[1:], penalty=case.penalty)
    functions = loaded(made)
    for n in BATCHES:
        batch, arrays = data(case, n, dtype)
        compare(functions, batch, arrays)


@pytest.mark.parametrize("target", ["wasm32", "aarch64", "cortex-m4", "x86-64-v3"])
def test_files_do_not_depend_on_what_was_compiled_before(target):
    """An order of instructions that was asked for once does not stay."""
    net, targets = Chain(Dense(3, 5, tanh), Dense(5, 2)), targets_of(target)
    before = Objects(interface(net), targets).code(targets)
    with scheduling(False):
        pass
    assert Objects(interface(net), targets).code(targets) == before


def test_code_for_one_sample_is_for_targets_with_much_of_a_stack():
    """On Windows, a function that takes a page of it needs the compiler's runtime."""
    for target, has_it in (("windows-x86-64-v3", False), ("x86-64-v3", True)):
        for sizes in ((6, 100, 21), (1, 1000, 1)):
            net, targets = Chain(*(Dense(a, b, "sin") for a, b in pairwise(sizes))), targets_of(target)
            code = Objects(interface(net, "float64", gradient=None), targets).code(targets)
            assert (b"model_forward_many" in code) is has_it
            assert b"chkstk" not in code


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["SGD", "Nesterov", "AdamW", "Adagrad"])
def test_steps_have_the_bits_of_python(name):
    optimizer = OPTIMIZERS[name]
    net = Chain(Dense(3, 5, tanh), BatchNorm(5), Dropout(0.3), Dense(5, 2))
    functions = loaded(interface(net, loss=SquaredLoss(), optimizer=optimizer, gradient=None))
    assert [call.name for call in functions.interface.calls] == ["forward", "loss", "step"]
    rng = np.random.default_rng(0)
    for n in (2, 33):
        arrays = {"x": rng.normal(size=(n, 3)), "t": rng.normal(size=(n, 2)), "p": rng.normal(size=net.n_params)}
        arrays |= {"moments": rng.uniform(size=optimizer.n_states * net.n_params), "state": rng.uniform(0.5, 2.0, net.n_state)}
        compare(functions, n, arrays | {"step": np.array(3.0), "random": np.array([3, 7], np.uint64)})


@settings(max_examples=2)
@given(cases(), st.integers(1, 100), st.sampled_from(["float32", "float64"]))
def test_random_networks_have_the_bits_of_python(case, n, dtype):
    functions = loaded(interface(case.net(), dtype, loss=case.loss, penalty=case.penalty))
    batch, arrays = data(case, n, dtype)
    compare(functions, batch, arrays)
