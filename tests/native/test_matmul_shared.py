"""Products of different sizes that share the code of their blocks: results are as with NumPy, and the code is short."""

from __future__ import annotations

import pytest

from chains import SGD, Chain, Dense, Residual, relu, tanh
from chains.backends.numpy.backend import NumpyBackend

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import NativeBackend
from chains.backends.native.compiler import compile_program
from chains.backends.native.llvm.target import Processor, processor
from chains.backends.native.plan import outlining
from chains.backends.native.plan.passes import plan_of
from tests.native.support import (
    Fenced,
    assert_equal_results,
    every_instruction_set,
    floats,
    gradient_program,
    native,
    random_arrays,
    run_fenced,
    run_on,
)
from tests.native.team import fed, problem, program_of, states
from tests.native.test_shared_weights import Recurrence

pytestmark = pytest.mark.few(3)

NETWORKS = {
    "odd": Chain(Dense(3, 17, tanh), Dense(17, 9, relu), Dense(9, 41), Dense(41, 23, relu), Dense(23, 70, relu)),
    "narrow": Chain(Dense(1, 2), Dense(2, 1, relu), Dense(1, 5), Dense(5, 3)),
    "added": Chain(Residual(Dense(19, 19, relu)), Residual(Dense(19, 19))),
    "recurrence": Chain(Recurrence(13), input_shape=(4, 6)),
}


def widths(layers):
    return Chain(*(Dense(16 + k, 17 + k, relu) for k in range(layers)))


@pytest.fixture
def shared(changed_compiler, monkeypatch):
    """Let all products share their blocks, however few they are."""
    monkeypatch.setattr(outlining, "MAX_PRODUCTS", 0)
    changed_compiler()


def sharing(program):
    steps = [each for segment in plan_of(program, processor()).segments for step in segment.tiled_steps for each in step.all]
    return [step.fused_product.shared for step in steps if step.fused_product]


@floats
@pytest.mark.parametrize("name", NETWORKS)
def test_every_size(name, kind, eager, shared):
    program = gradient_program(NETWORKS[name], kind)
    assert all(sharing(program))
    for batch in (1, 50, 131):
        arrays = random_arrays(program, batch)
        wanted = run_on(NumpyBackend(), program, batch, arrays)
        for threads in (1, 2):
            fences = Fenced()
            found = run_fenced(NativeBackend(threads=threads), program, batch, arrays, fences)
            fences.check(f"batch {batch}, {threads} threads")
            assert_equal_results(found, wanted, kind, f"batch {batch}, {threads} threads", factor=10.0)


@every_instruction_set
def test_every_width_of_vectors(simd, eager, shared):
    program = gradient_program(NETWORKS["odd"], "float32")
    arrays = random_arrays(program, 101)
    wanted = run_on(NumpyBackend(), program, 101, arrays)
    assert_equal_results(run_on(native(2, simd), program, 101, arrays), wanted, "float32", factor=10.0)


@pytest.mark.parametrize("batch", [9, 100])
def test_training(batch, many, shared):
    """Threads have parts of the products, updates are fused, and samples are read where they lie in the data set."""
    net = Chain(Dense(112, 30, relu), Dense(30, 112, relu), Dense(112, 50))
    program = program_of(net, SGD(0.01))
    sources, order = problem(net, batch, "float32", steps=5)
    arrays = states(program, batch)
    found = fed(NativeBackend(threads=2), program, batch, arrays, sources, order, together=True)
    assert_equal_results(found, fed(NumpyBackend(), program, batch, arrays, sources, order), "float32", factor=100)


def test_code_of_many_sizes_is_shared_and_that_of_few_is_not(monkeypatch):
    monkeypatch.setattr(Processor, "splits_vectors", False)  # the same vectors for both
    few, many = (gradient_program(widths(layers), "float32") for layers in (6, 16))
    assert not any(sharing(few))
    assert all(sharing(many))
    assert len(compile_program(many, processor()).text) < len(compile_program(few, processor()).text)
