"""Checkpoints: the same numbers as without, from less memory, whatever the steps between them."""

from __future__ import annotations

import numpy as np
import pytest

from chains import GRU, LSTM, RNN, Chain, Dense, MSELoss, Recurrent
from chains.layers import GRUCell
from chains.layers.segments import Segments
from chains.program.loop import Loop
from chains.program.operations import MatMul
from chains.program.recorder import Recorder
from tests.harness import SEED

pytestmark = pytest.mark.few(6)

KINDS = {"RNN": RNN, "LSTM": LSTM, "GRU": GRU, "paper": lambda n, m, **how: Recurrent(GRUCell(n, m, reset_after=False), **how)}


def twins(rng, backend, **settings):
    """Two equal networks, the second one with checkpoints; and samples of theirs, more than fit into a tile."""
    steps, inputs, units = (int(rng.integers(1, most)) for most in (15, 4, 7))
    kind = KINDS[str(rng.choice(list(KINDS)))]
    how = {"bidirectional": bool(rng.integers(2)), "initial_state": str(rng.choice(["zeros", "parameter"])), **settings}

    def net(every, backend):
        width = 2 * units if how["bidirectional"] else units
        layers = [kind(inputs, units, return_sequences=True, checkpoint_every=every, **how)]
        last = kind(width, units, return_sequences=bool(sequences), checkpoint_every=every, **how)
        return Chain(*layers, last, Dense(width, 2), input_shape=(steps, inputs), backend=backend)

    sequences, every = rng.integers(2), int(rng.integers(1, steps + 2))
    return net(None, "numpy"), net(every, backend), rng.normal(size=(int(rng.integers(1, 150)), steps, inputs))


@pytest.mark.few(3)
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("draw", range(6))
def test_outputs_and_gradients_are_those_without_checkpoints(draw, lengths, backend_name):
    rng = np.random.default_rng([SEED, draw, lengths])
    plain, net, x = twins(rng, backend_name)
    p, how = rng.normal(0.0, 0.4, net.n_params), {}
    if lengths:
        how["lengths"] = rng.integers(1, x.shape[1] + 1, len(x))
    y = plain(x, p, **how)
    dy = rng.normal(size=y.shape)
    np.testing.assert_allclose(net(x, p, **how), y, rtol=1e-12, atol=1e-12, err_msg=repr(net))
    for found, wanted in zip(net.vjp(p, x, dy, **how), plain.vjp(p, x, dy, **how), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-11, err_msg=repr(net))


def test_memory_is_that_of_a_segment_and_of_a_state_for_each():
    def memory(every, steps=100):
        net = Chain(GRU(4, 32, checkpoint_every=every), Dense(32, 1), input_shape=(steps, 4), backend="numpy")
        program = net.program(MSELoss())
        return program.scratch.bytes_per_sample, sum(isinstance(each, Loop) for each in program.operations)

    every_step, loops = memory(None)
    assert loops == 2
    assert memory(100) == memory(1000) == (every_step, 2)  # nothing lies between checkpoints
    assert memory(50)[0] < 0.7 * every_step
    assert memory(25)[0] < 0.4 * every_step
    assert memory(10)[0] < 0.25 * every_step
    assert memory(10, 1000)[0] - memory(10, 500)[0] == 50 * 32 * 4  # a state for each segment


def test_products_of_segments_add_to_the_gradient():
    net = Chain(GRU(3, 4, checkpoint_every=3), input_shape=(11, 3))
    program = net.program(MSELoss())
    loops = [operation for operation in program.operations if isinstance(operation, Loop)]
    products = [each for each in loops[-1].body if isinstance(each, MatMul) and each.sums_over_batch]
    assert len(products) == 3
    assert all(each.accumulate and each.outs[0].buffer.name == "g" for each in products)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("steps", "every"), [(7, 3), (6, 3), (5, 1), (4, 4), (3, None)])
def test_each_step_is_in_one_segment(steps, every, backwards):
    ops, segments = Recorder("segments", np.float64), Segments(steps, every, backwards)
    ways = {}
    for way in ("forward", "backward"):
        ways[way] = found = []
        view = ops.scratch("numbers", (steps,), batched=False)
        for segment in getattr(segments, way)(ops):
            times = range(segments.before_last) if segment.at else [0]
            for time in times:
                part = segment.part(view, 0).at(0, time)
                found.append(list(range(part.offset, part.offset + int(part.shape[0]))))
    assert ways["backward"] == ways["forward"][::-1]
    order = [number for part in ways["forward"] for number in (part[::-1] if backwards else part)]
    assert order == list(range(steps))[:: -1 if backwards else 1]
