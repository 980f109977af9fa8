"""Optimisers' steps done to blocks of the gradient while these are in registers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chains import SGD, Adam, Chain, Dense, L1Penalty, L2Penalty, SquaredLoss, relu, tanh
from chains.backends.numpy.backend import NumpyBackend
from tests.harness import CLIPPED, OPTIMIZERS

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native.kernels import block_shapes
from chains.backends.native.llvm.target import processor
from chains.backends.native.plan import fused_update, passes
from chains.backends.native.plan.fused_update import fuse_update_into_large_products, fuse_update_of_one_sample
from chains.backends.native.plan.passes import plan_of
from tests.native.support import (
    INSTRUCTIONS,
    Fenced,
    assert_equal_results,
    floats,
    native,
    random_arrays,
    run_fenced,
    run_on,
)

NETWORKS = {
    "two layers": Chain(Dense(300, 61, tanh), Dense(61, 5)),
    "of narrow layers": Chain(Dense(784, 30, tanh), Dense(30, 10)),
    "of wide layers": Chain(Dense(130, 120, relu), Dense(120, 100, tanh), Dense(100, 33)),
    "without biases": Chain(Dense(150, 130, tanh, bias=False), Dense(130, 3, bias=False)),
    "one column": Chain(Dense(17000, 1)),
    "one row": Chain(Dense(1, 17000)),
    "with narrow ends": Chain(Dense(20, 2), Dense(2, 300, tanh), Dense(300, 80, relu), Dense(80, 7)),
}
LARGE = Chain(Dense(600, 410, relu), Dense(410, 520, relu), Dense(520, 20))
PENALTIES = {"no penalty": None, "L2": L2Penalty(0.02), "L1": L1Penalty(0.003)}


def finished(program):
    """The shapes of the weights whose gradients' products do the optimiser's step, and the elements that are left."""
    (segment,) = plan_of(program, processor()).segments
    found = segment.fused_update
    if found is None or found.alone:
        return [], None
    shapes = [step.operation.outs[0].shape for step in segment.tiled_steps if step.update]
    return shapes, sum(stop - start for start, stop in found.rest)


def step(net, optimizer, penalty=None, dtype=np.float32):
    return net.program(SquaredLoss(), optimizer, penalty=penalty, dtype=dtype)


def test_which_products_do_the_step():
    assert finished(step(NETWORKS["of narrow layers"], SGD(0.1))) == ([(784, 30)], 30 + 310)
    assert finished(step(NETWORKS["of wide layers"], SGD(0.1))) == ([(100, 33), (120, 100), (130, 120)], 33 + 100 + 120)
    assert finished(step(NETWORKS["without biases"], SGD(0.1), L2Penalty(0.1))) == ([(150, 130)], 390)
    assert finished(step(NETWORKS["of wide layers"], SGD(0.1, momentum=0.9))) == ([], None)  # it would take more registers
    assert finished(step(NETWORKS["one column"], SGD(0.1))) == ([], None)  # which is computed as a row


def test_a_small_share_of_the_gradient_is_left_with_the_rest():
    assert finished(step(Chain(Dense(200, 200, tanh), Dense(200, 200, tanh), Dense(200, 20)), SGD(0.1)))[0] != []


def large(program):
    """The shapes of large products' results, and how many maps are done to them, in order; and whether they are kept."""
    plan = plan_of(program, processor())
    assert not any(segment.fused_update for segment in plan.segments if segment.product)
    kernels = [step.fused_product for step in plan.products]
    return [(kernel.out.sample_shape, len(kernel.maps), not kernel.transient) for kernel in kernels]


def test_which_large_products_do_the_step():
    """The second gradient goes behind the product that reads the same weights."""
    program = step(LARGE, SGD(0.1), L2Penalty(0.1))
    after = [((520,), 1, True), ((410, 520), 2, False), ((600, 410), 2, False)]
    assert large(program) == [((410,), 1, True), ((520,), 1, True), ((410,), 1, True), *after[1:]]
    kept = [((410,), 1, True), ((520,), 1, True), ((410, 520), 0, True), ((410,), 1, True), ((600, 410), 0, True)]
    for optimizer in (SGD(0.1, momentum=0.9), SGD(0.1, clip_norm=1.0), None):
        assert large(step(LARGE, optimizer)) == kept
    mostly_small = Chain(Dense(400, 400), *(Dense(400, 300), Dense(300, 400)) * 2)
    assert all(kept for _, _, kept in large(step(mostly_small, SGD(0.1))))


@pytest.mark.few(1)
@floats
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("optimizer", ["SGD", "momentum"])
def test_large_products_give_the_same_bits_as_afterwards(optimizer, penalty, kind, changed_compiler, monkeypatch):
    for registers, shapes in block_shapes.SHAPES.items():
        monkeypatch.setitem(block_shapes.SHAPES, registers, replace(shapes, gemm=replace(shapes.gemm, inner=96)))
    program = step(LARGE, OPTIMIZERS[optimizer], PENALTIES[penalty], kind)
    arrays = {batch: random_arrays(program, batch) for batch in (1, 96, 230)}
    results = {(batch, n): run_on(native(n), program, batch, a, runs=2) for batch, a in arrays.items() for n in (1, 2)}
    monkeypatch.setattr(passes, "PASSES", [each for each in passes.PASSES if each is not fuse_update_into_large_products])
    changed_compiler()
    assert all(kept for *_, kept in large(program))
    for (batch, threads), result in results.items():
        for name, array in run_on(native(threads), program, batch, arrays[batch], runs=2).items():
            assert array.tobytes() == result[name].tobytes(), f"{name}, batch {batch}, {threads} threads"


def of_one(program, parts=1):
    """The shapes of the gradients that maps compute and use at once where the batch is one sample."""
    segments = plan_of(program, processor(), parts).segments
    steps = [step for segment in segments for step in segment.tiled_steps if step.alone]
    assert not steps or all(segment.fused_update.alone for segment in segments)
    return [step.operation.outs[0].shape for step in steps]


def test_which_gradients_of_one_sample_are_used_at_once():
    net = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))
    every = [(16, 4), (4,), (32, 16), (16,), (4, 32), (32,)]
    assert of_one(step(net, Adam(0.1))) == of_one(step(net, SGD(0.1, momentum=0.9))) == every
    assert of_one(step(net, Adam(0.1, clip_norm=1.0))) == of_one(step(net, Adam(0.1), L2Penalty(0.1))) == []
    assert of_one(step(NETWORKS["of narrow layers"], Adam(0.1)), parts=2) == []  # threads share the products


@pytest.mark.few(2)
@floats
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("net", ["two layers", "of narrow layers", "without biases", "with narrow ends", "one column"])
def test_one_sample_gives_the_same_bits_as_afterwards(net, optimizer, kind, changed_compiler, monkeypatch):
    program = step(NETWORKS[net], OPTIMIZERS[optimizer], dtype=kind)
    arrays = {batch: random_arrays(program, batch) for batch in (1, 2)}
    results = {(batch, n): run_on(native(n), program, batch, a, runs=3) for batch, a in arrays.items() for n in (1, 2)}
    monkeypatch.setattr(passes, "PASSES", [each for each in passes.PASSES if each is not fuse_update_of_one_sample])
    changed_compiler()
    assert of_one(program) == []
    for (batch, threads), result in results.items():
        for name, array in run_on(native(threads), program, batch, arrays[batch], runs=3).items():
            assert array.tobytes() == result[name].tobytes(), f"{name}, batch {batch}, {threads} threads"


@pytest.mark.parametrize("optimizer", [SGD(0.1, clip_norm=1.0), None], ids=["clipped", "none"])
def test_a_gradient_that_is_wanted_whole_is_stored(optimizer):
    assert finished(step(NETWORKS["of wide layers"], optimizer)) == ([], None)


def test_weights_that_are_still_to_be_read_are_not_changed(monkeypatch):
    """Where the gradient of the input reads the weights themselves, and no packed copy, after their own gradient."""
    monkeypatch.setattr("chains.backends.native.kernels.products.needs_packing", lambda *_: False)
    assert finished(step(NETWORKS["of wide layers"], SGD(0.1))) == ([(130, 120)], 33 * 101 + 100 * 121 + 120)


@pytest.mark.few(2)
@floats
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, *CLIPPED])
@pytest.mark.parametrize("net", ["two layers", "of wide layers"])
def test_the_same_bits_as_afterwards(net, optimizer, penalty, kind, changed_compiler, monkeypatch):
    program = step(NETWORKS[net], {**OPTIMIZERS, **CLIPPED}[optimizer], PENALTIES[penalty], kind)
    arrays = {batch: random_arrays(program, batch) for batch in (1, 10, 47)}
    results = {batch: run_on(native(), program, batch, a, runs=3) for batch, a in arrays.items()}
    assert (finished(program)[0] == []) == (optimizer != "SGD" or penalty == "L1")
    monkeypatch.setattr(fused_update, "MIN_ELEMENTS", 1 << 60)
    changed_compiler()
    assert finished(program) == ([], None)
    for batch, a in arrays.items():
        for name, array in run_on(native(), program, batch, a, runs=3).items():
            assert array.tobytes() == results[batch][name].tobytes(), f"{name}, batch {batch}"


@pytest.mark.few(2)
@floats
@pytest.mark.parametrize("simd", INSTRUCTIONS)
@pytest.mark.parametrize("net", NETWORKS)
def test_steps_equal_numpy_within_their_buffers(net, simd, kind):
    """At sizes of one tile, where products do the step, and of more, where they do not."""
    program = step(NETWORKS[net], SGD(0.01), dtype=kind)
    for batch in (1, 3, 10, 48, 49, 300):
        arrays = random_arrays(program, batch)
        fences = Fenced()
        actual = run_fenced(native(1, simd), program, batch, arrays, fences, runs=2)
        fences.check(f"batch {batch}")
        wanted = run_on(NumpyBackend(), program, batch, arrays, runs=2)
        assert_equal_results(actual, wanted, kind, f"batch {batch}", factor=4)


@pytest.mark.few(1)
@floats
@pytest.mark.parametrize("simd", INSTRUCTIONS)
def test_steps_of_large_products_equal_numpy_within_their_buffers(simd, kind):
    program = step(LARGE, SGD(0.01), dtype=kind)
    for batch in (1, 13, 120):
        arrays = random_arrays(program, batch)
        fences = Fenced()
        actual = run_fenced(native(1, simd), program, batch, arrays, fences, runs=2)
        fences.check(f"batch {batch}")
        assert_equal_results(actual, run_on(NumpyBackend(), program, batch, arrays, runs=2), kind, f"batch {batch}", factor=20)


@pytest.mark.few(1)
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_leave_a_tile_to_one(threads, monkeypatch):
    monkeypatch.setattr("chains.backends.native.memory_plan.MIN_THREAD_OPERATIONS", 1)
    program = step(NETWORKS["of wide layers"], SGD(0.01))
    for batch in (1, 10, 200):
        arrays = random_arrays(program, batch)
        results = [run_on(native(count), program, batch, arrays, runs=2) for count in (1, threads, threads)]
        assert_equal_results(results[1], results[0], np.float32, f"batch {batch}")
        assert all(results[1][name].tobytes() == results[2][name].tobytes() for name in results[0])
