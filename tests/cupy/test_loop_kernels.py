"""Loops as one launch each: recurrent networks and differential equations that are no kernel as a whole."""

from __future__ import annotations

import numpy as np
import pytest

from chains import GRU, LSTM, ODE, RNN, Adam, Chain, CrossEntropyLoss, Dense, Embedding, MSELoss, backends, tanh, train
from chains.backends.cupy import backend as choosing
from chains.backends.cupy.backend import DeviceBackend
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.fused import tiling_policy as policy
from chains.backends.cupy.fused.loops import LoopKernel, LoopShare
from chains.backends.cupy.fused_program import FusedProgram
from chains.network.network import network_of
from chains.network.record_derivatives import forward_jacobian
from tests.cupy import emulated, nvrtc, watched
from tests.cupy.resources import SHARED_BYTES, launches, too_much
from tests.cupy.support import EMULATED, needs_compiler, needs_nvrtc
from tests.harness import assert_close, run_program

NAMES = ("one-kernel", "one-kernel-backwards")
NETS = {
    "GRU 8 -> 16": ([GRU(8, 16), Dense(16, 2)], (100, 8)),
    "GRU 28 -> 32": ([GRU(28, 32), Dense(32, 2)], (28, 28)),
    "LSTM 28 -> 32": ([LSTM(28, 32), Dense(32, 2)], (28, 28)),
    "GRU 64 -> 128": ([GRU(64, 128), Dense(128, 2)], (50, 64)),
}


def step(name):
    layers, shape = NETS[name]
    return Chain(*layers, input_shape=shape).program(MSELoss(), Adam(1e-3))


@pytest.fixture
def kernels(monkeypatch):
    """Those of loops that were made: programs are none as a whole, and there are but two blocks."""
    made, launch = [], LoopKernel.launch
    monkeypatch.setattr(policy, "MAX_BLOCKS", 2)
    monkeypatch.setattr(choosing, "suits", lambda program: False)
    monkeypatch.setattr(backends.registry, "_loaded", {})
    monkeypatch.setattr(LoopKernel, "launch", lambda self, source: made.append(self) or launch(self, source))
    return made


LENGTHS = np.array([4, 1, 3, 2, 4])
CASES = {
    "both directions": ([GRU(3, 4, bidirectional=True, initial_state="parameter"), Dense(8, 2)], (4, 3), LENGTHS),
    "stack": ([RNN(3, 4, return_sequences=True), LSTM(4, 5), Dense(5, 2)], (3, 3), None),
    "checkpoints": ([GRU(3, 4, checkpoint_every=2), Dense(4, 2)], (3, 3), None),
    "one step": ([GRU(3, 33, reset_after=False), Dense(33, 2)], (1, 3), None),
    "equation": ([ODE(Chain(Dense(2, 5, "tanh"), Dense(5, 2)), np.array([0.0, 1.0]), "rk4", 2)], (2,), None),
}


@pytest.mark.few(1)
@needs_compiler
@pytest.mark.parametrize("room", [SHARED_BYTES["sm_90"], 9000, 1500])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_numpys(case, room, kernels):
    """In tiles of all samples of a block, or of fewer where there is little room; with weights that do not fit there, too."""
    layers, shape, lengths = CASES[case]
    rng = np.random.default_rng(0)
    x, given = rng.normal(size=(5, *shape)), {} if lengths is None else {"lengths": lengths}
    t, found = None, []
    for name in ("numpy", *NAMES):
        net = Chain(*layers, input_shape=shape, backend=name)
        if t is None:
            t = rng.normal(size=(5, *net.output_shape))
        else:
            backends.backend(name).on_device.device.shared_bytes = room
        found.append(net.value_and_grad(net.init(seed=0, dtype=np.float64), x, t, MSELoss(), **given))
    assert len(kernels) >= 2 * len(NAMES) or room < 2000
    for value, gradient in found[1:]:
        assert_close(value, found[0][0], 1e-12)
        assert_close(gradient, found[0][1], 1e-11)
    assert found[1][1].tobytes() == found[2][1].tobytes()


@needs_compiler
def test_training_is_that_of_numpy(kernels):
    """Of a network that is no kernel as a whole, since rows of its table are found by number; in graphs."""
    rng = np.random.default_rng(0)
    x, t, p = rng.integers(0, 7, (12, 4)), rng.integers(0, 2, 12), {}
    for name in ("numpy", "one-kernel"):
        net = Chain(Embedding(7, 3), GRU(3, 4), Dense(4, 2), input_shape=(4,), backend=name)
        p[name] = net.init(seed=1)
        train(net, p[name], x, t, CrossEntropyLoss(), Adam(0.01), epochs=1, batch_size=3, seed=3)
    assert [kernel.tile for kernel in kernels] == [2, 2]
    assert_close(p["one-kernel"], p["numpy"], 1e-4)


@pytest.mark.skipif(not watched.available(), reason="the compiler has no calls of a thread sanitizer")
def test_memory_is_used_as_it_may_be(kernels, monkeypatch):
    """By two blocks with two tiles each, the last of which has fewer samples."""
    made = watched.WatchedBackend(fused=True)
    made.on_device.device.shared_bytes = 480
    monkeypatch.setitem(backends.registry._BACKENDS, "watched", lambda: made)
    monkeypatch.setitem(backends.registry._loaded, "watched", made)
    net = Chain(LSTM(3, 4), Dense(4, 2), input_shape=(3, 3), backend="watched")
    net.value_and_grad(net.init(seed=0), np.ones((7, 3, 3)), np.ones((7, 2)), MSELoss())
    made.on_device.device.finish()
    assert [kernel.tile < 4 for kernel in kernels] == [True, True]


def test_programs_that_do_not_fit_are_few_commands():
    """All samples of the batch go through a loop in one launch, a block's with the weights beside them."""
    backend = DeviceBackend(emulated.EmulatedDevice())
    for name, count in {"GRU 8 -> 16": 721, "GRU 64 -> 128": 371}.items():
        program = step(name)
        made = backend.commands(program, 64)
        assert not isinstance(made, FusedProgram)
        assert len(list(Compiled(program).at(64))) == count
        assert len(list(made.at(64))) == 23
        loops = [launch for launch in launches(made, 64) if launch.kernel.name.startswith("loop")]
        assert [launch.grid(64) for launch in loops] == [(64, 1)] * 2


def test_which_loops_are_kernels():
    """Not those whose weights fill many blocks' memory, nor those with so many samples that the library is quicker."""
    backend = DeviceBackend(emulated.EmulatedDevice())
    assert backend.compile(step("GRU 64 -> 128"), 64).barriers > 0
    assert backend.compile(step("GRU 64 -> 128"), 10_000).barriers == 0
    wide = Chain(LSTM(8, 512), input_shape=(20, 8)).program(MSELoss())
    assert backend.compile(wide, 64).barriers == 0
    forced = Compiled(wide, loops=LoopShare(1, SHARED_BYTES["sm_90"], forced=True))
    assert forced.barriers > 0
    assert DeviceBackend(emulated.EmulatedDevice(), fused=False).compile(step("GRU 8 -> 16"), 64).barriers == 0


@pytest.mark.few(1)
@needs_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
@pytest.mark.parametrize("name", NETS)
def test_kernels_spill_nothing(name, architecture):
    made = Compiled(step(name), loops=LoopShare(1, SHARED_BYTES[architecture], forced=True))
    made.source.kernels = {key: kernel for key, kernel in made.source.kernels.items() if kernel.name.startswith("loop")}
    usages = nvrtc.compiled(made.text(64), architecture)[1]
    made.commands = [launch for launch in launches(made, 64) if launch.kernel.name in usages]
    assert len(usages) == len(made.commands) == 2
    assert too_much([made], (1, 64), usages, architecture) == []
    assert {kernel: used.spills for kernel, used in usages.items() if used.spills} == {}


@needs_compiler
@pytest.mark.parametrize("backend", EMULATED)
@pytest.mark.parametrize(
    "net", [Chain(ODE(Dense(2, 2, tanh), (0.0, 0.5, 1.0), "rk4", 2)), Chain(GRU(2, 3), input_shape=(4, 2))]
)
def test_jacobians_forward_are_those_of_numpy(net, backend):
    p, x = net.init(0, np.float64), np.random.default_rng(0).normal(size=(3, *net.input_shape))
    program = forward_jacobian(network_of(net), np.dtype(np.float64))
    wanted, found = (run_program(program, name, 3, {"p": p, "x": x}) for name in ("numpy", backend))
    assert_close(found["j"], wanted["j"], 1e-12)
