"""Gradient and update in one pass: the bits of both one after the other, and what of the gradient is still stored."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import SGD, Adam, AdamW, Chain, Dense, FrontLastPenalty, L1Penalty, L2Penalty, SquaredLoss, backends, tanh, train
from chains.backends.cupy import fused_program as module
from chains.backends.cupy.fused.tiling_policy import tiling_of
from chains.backends.cupy.fused.updates import in_one_pass
from chains.backends.cupy.fused_program import fused_program
from chains.program.operations import Map
from tests.cupy.resources import SHARED_BYTES
from tests.cupy.support import needs_compiler
from tests.harness import CLIPPED, assert_close

LAYERS = (  # the vector's parts: of products, sums, and one that is first multiplied, so that its sum has a run in front
    Dense(5, 12, tanh), chains.Residual(Dense(12, 12, chains.gelu)), chains.LayerNorm(12),
    chains.Parallel(Dense(12, 3), Dense(12, 4, chains.relu)), Dense(7, 3),
)  # fmt: skip
ONE_PASS = {
    "SGD": (SGD(0.1), None),
    "Nesterov": (SGD(0.1, momentum=0.9, nesterov=True), L2Penalty(0.1)),
    "AdamW": (AdamW(0.01), L1Penalty(0.1)),
    "clipped": (CLIPPED["Adam-clipped"], FrontLastPenalty(L2Penalty(0.1), L1Penalty(0.2))),
}


@pytest.mark.few(1)
@needs_compiler
@pytest.mark.parametrize("way", ONE_PASS)
def test_the_bits_are_those_of_two_passes(way, monkeypatch):
    optimizer, penalty = ONE_PASS[way]
    rng = np.random.default_rng(0)
    x, t, found = rng.normal(size=(16, 5)), rng.normal(size=(16, 3)), {}
    for name in ("numpy", "one-kernel", "one-kernel-backwards", "two passes"):
        if name == "two passes":
            monkeypatch.setattr(module, "in_one_pass", list)
            monkeypatch.setattr(backends.registry, "_loaded", {})
        net = Chain(*LAYERS, backend="one-kernel" if name == "two passes" else name)
        found[name] = net.init(seed=1)
        train(net, found[name], x, t, SquaredLoss(), optimizer, epochs=1, batch_size=8, seed=2, penalty=penalty)
    assert found["one-kernel"].tobytes() == found["two passes"].tobytes() == found["one-kernel-backwards"].tobytes()
    assert_close(found["one-kernel"], found["numpy"], 1e-3)


@needs_compiler
def test_a_vector_whose_gradient_is_two_sums_is_updated_once():
    """A midpoint step uses the vector twice, and its parameters are that vector alone."""
    rng, found = np.random.default_rng(0), {}
    x, t = rng.normal(size=(16, 3)), rng.normal(size=(16, 2, 3))
    for name in ("numpy", "one-kernel", "one-kernel-backwards"):
        net = Chain(chains.ODE(chains.Shift(), (0.0, 0.5), "midpoint", 2), input_shape=(3,), backend=name)
        found[name] = net.init(seed=1)
        train(net, found[name], x, t, SquaredLoss(), SGD(0.1), epochs=1, batch_size=8, seed=2)
    assert_close(found["one-kernel"], found["numpy"], 1e-5)
    assert_close(found["one-kernel-backwards"], found["numpy"], 1e-5)


def made(optimizer, penalty=None, width=6, batch=8):
    program = Chain(Dense(width, 9, tanh), Dense(9, 3)).program(SquaredLoss(), optimizer, penalty=penalty)
    return fused_program(program, tiling_of(program, batch), SHARED_BYTES["sm_90"])


@pytest.mark.parametrize(
    ("optimizer", "penalty", "stored"),
    [
        (SGD(0.1), None, False),
        (SGD(0.1, momentum=0.9), L2Penalty(0.1), False),
        (Adam(0.01), L1Penalty(0.1), False),
        (SGD(0.1), FrontLastPenalty(L2Penalty(0.1), L1Penalty(0.2)), True),  # which adds to parts of the gradient
        (SGD(0.1, clip_norm=1.0), None, True),
    ],
    ids=str,
)
def test_what_is_stored_of_the_gradient(optimizer, penalty, stored):
    """None of it, unless something stands between the sums and the update."""
    program = made(optimizer, penalty)
    assert any(buffer.name == "gradient" for buffer in program._layout({}).names) == stored
    assert program.scratch_plan(8).nbytes(8) == 0


def test_parts_that_are_a_single_number_are_not_read_before_they_are_known():
    """The bias of one output, and weights of one input."""
    for layers in ([Dense(6, 9, tanh), Dense(9, 1)], [Dense(4, 1), Dense(1, 1)]):
        program = Chain(*layers).program(SquaredLoss(), SGD(0.1))
        whole = fused_program(program, tiling_of(program, 8), SHARED_BYTES["sm_90"])
        assert not any(buffer.name == "gradient" for buffer in whole._layout({}).names)


def test_the_rest_of_a_vector_is_updated_too():
    """A sum whose result is no single number's, and a gap: parameters that have no sum of their own."""
    program = Chain(Dense(6, 1, bias=False), chains.LayerNorm(1), Dense(1, 3)).program(SquaredLoss(), SGD(0.1))
    operations = in_one_pass(program.operations)
    updates = [operation for operation in operations if operation.label == "SGD" and isinstance(operation, Map)]
    places = sorted(
        place for each in updates for out in each.outs if out.buffer.name == "p"
        for start, stop in out.runs for place in range(start, stop)
    )  # fmt: skip
    assert places == list(range(program.buffers["p"].size))


def test_tiles_one_after_another_store_sums():
    """Each adds to those before it."""
    wide = made(SGD(0.1), width=40, batch=400)
    assert not wide.tiling.single
    assert any(buffer.name == "gradient" for buffer in wide._layout({}).names)
