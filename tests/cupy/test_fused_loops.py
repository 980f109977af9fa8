"""Programs with loops as one kernel: recurrent networks and differential equations, all of whose steps a block does."""

from __future__ import annotations

import numpy as np
import pytest

from chains import GRU, Adam, Chain, Dense, MSELoss, SquaredLoss, backends, tanh, train
from chains.backends import backend
from chains.backends.cupy.backend import DeviceBackend
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.fused import tiling_policy as shares
from chains.backends.cupy.fused.block import Repetition
from chains.backends.cupy.fused.tiling_policy import suits, tiling_of
from chains.backends.cupy.fused_program import FusedProgram, fused_program
from tests.cupy import emulated, nvrtc, watched
from tests.cupy.fusable import LOOPS
from tests.cupy.fusable import SUITED_LOOPS as SUITED
from tests.cupy.resources import SHARED_BYTES, SPILL_BYTES, too_much
from tests.cupy.support import arrays_of, gradient_program, needs_compiler, needs_nvrtc
from tests.harness import assert_close, assert_same_bits, run_program

NAMES = ("one-kernel", "one-kernel-backwards")


def test_which_loops_suit():
    """Not those of checkpoints, whose bodies sum over samples or are loops; nor those that draw numbers."""
    assert {str(case) for case in SUITED} >= {
        "RNN",
        "LSTM-bidirectional",
        "GRU-seven-steps",
        "ODE-forced",
        "Recurrent-both-ways",
    }
    assert {str(case) for case in LOOPS} - {str(case) for case in SUITED} >= {"GRU-checkpoints", "ODE-leapfrog"}


@pytest.mark.few(4)
@needs_compiler
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("case", SUITED, ids=str)
def test_gradients_are_numpys(case, blocks, monkeypatch):
    """By one block, and by some with a tile each or more; in both orders of threads and blocks."""
    if blocks > 1:
        monkeypatch.setattr(shares, "MAX_ONE_BLOCK_OPERATIONS", 0)
        monkeypatch.setattr(shares, "MIN_BLOCK_SAMPLES", 3)
        monkeypatch.setattr(backends.registry, "_loaded", {})
    program, arrays = gradient_program(case, np.float64), arrays_of(case.problem(7))
    wanted, found, backwards = (run_program(program, name, 7, arrays) for name in ("numpy", *NAMES))
    assert_same_bits(found, backwards)
    for name in wanted:
        assert_close(found[name], wanted[name], 1e-11, name)


@needs_compiler
def test_training_by_one_block_is_that_of_numpy():
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(12, 6, 3)), rng.normal(size=(12, 2))
    p = {}
    for name in ("numpy", *NAMES):
        net = Chain(GRU(3, 5), Dense(5, 2), input_shape=(6, 3), backend=name)
        p[name] = net.init(seed=1)
        train(net, p[name], x, t, SquaredLoss(), Adam(0.01), epochs=1, batch_size=5, seed=3)
    made = backend("one-kernel").on_device.commands(net.program(SquaredLoss(), Adam(0.01)), 5)
    assert made.tiling.alone
    assert p[NAMES[0]].tobytes() == p[NAMES[1]].tobytes()
    assert_close(p[NAMES[0]], p["numpy"], 1e-4)


@pytest.mark.skipif(not watched.available(), reason="the compiler has no calls of a thread sanitizer")
def test_threads_meet_where_steps_depend(monkeypatch):
    """Without a race, and with one where a barrier of the body is left out."""
    case = next(case for case in SUITED if str(case) == "GRU-seven-steps")
    program, arrays = gradient_program(case, np.float32), arrays_of(case.problem(3))

    def run():
        made = watched.WatchedBackend(fused=True)
        monkeypatch.setitem(backends.registry._BACKENDS, "watched", lambda: made)
        monkeypatch.setitem(backends.registry._loaded, "watched", made)
        run_program(program, "watched", 3, arrays)
        made.on_device.device.finish()

    run()
    lines = Repetition.lines

    def without(self, first):
        text = lines(self, first)
        first = next(k for k, line in enumerate(text) if "__syncthreads" in line)
        return [*text[:first], *text[first + 1 :]]

    monkeypatch.setattr(Repetition, "lines", without)
    with pytest.raises(watched.MisuseError, match=r"behind \d+ barriers"):
        run()


def test_what_does_not_fit_goes_step_by_step():
    """All that steps save for the pullback lies in shared memory, at least of one sample."""
    made = []
    for units in (16, 64):
        net = Chain(GRU(8, units), Dense(units, 2), input_shape=(100, 8))
        program = net.program(MSELoss(), Adam(1e-3))
        assert suits(program)
        made.append(fused_program(program, tiling_of(program, 64), SHARED_BYTES["sm_90"]))
    assert made[0] is not None
    assert made[1] is None


def test_programs_with_loops_are_one_kernel_where_that_takes_fewer_turns():
    """A tile of few samples after another takes longer than kernels for loops alone, and launches around them."""
    device, chosen = emulated.EmulatedDevice(), {}
    for units, batch in ((8, 64), (8, 10_000), (32, 64)):
        net = Chain(GRU(units, units), Dense(units, 2), input_shape=(20, units))
        program = net.program(MSELoss(), Adam(1e-3))
        assert len(list(Compiled(program).at(batch))) == 161
        chosen[units, batch] = DeviceBackend(device).commands(program, batch)
        assert isinstance(DeviceBackend(device, fused=True).commands(program, batch), FusedProgram)
    assert [isinstance(made, FusedProgram) for made in chosen.values()] == [True, False, False]
    assert len(chosen[8, 64].commands) == 4


@pytest.mark.few(1)
@needs_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_kernels_compile(architecture):
    net = Chain(GRU(4, 8), Dense(8, 2, tanh), input_shape=(20, 4))
    program = net.program(MSELoss(), Adam(1e-3))
    many = fused_program(program, tiling_of(program, 5_000), SHARED_BYTES[architecture])
    usages = nvrtc.compiled(many.source.text(wide=False), architecture)[1]
    assert too_much([many], (5_000,), usages, architecture) == []
    assert all(used.spills <= SPILL_BYTES and used.registers <= 128 for used in usages.values())
