"""Many steps in one launch by blocks that wait for each other: the bits of a graph a step, or that where they cannot."""

from __future__ import annotations

import re
from contextlib import suppress

import numpy as np
import pytest

import chains
from chains import SGD, Adam, Chain, CrossEntropyLoss, Dense, Dropout, SquaredLoss, backends, tanh, train
from chains.backends import backend
from chains.backends.cupy.fused import grid
from chains.backends.cupy.fused import tiling_policy as shares
from chains.backends.cupy.fused.fused import fused_program
from chains.backends.cupy.fused.many_steps import for_many_steps
from chains.backends.cupy.fused.tiling_policy import tiling_of
from chains.backends.cupy.source.commands import Source
from tests.cupy import nvrtc
from tests.cupy.emulated import EmulatedDevice
from tests.cupy.resources import SHARED_BYTES, SPILL_BYTES, excess
from tests.cupy.support import needs_compiler, needs_nvrtc
from tests.harness import CLIPPED, assert_close

NAMES = ("one-kernel", "one-kernel-backwards")
WAYS = {"grid": 132, "graphs": 1}  # blocks that may run at the same time


SHARED_OUT = {"blocks": {"LEAST_BLOCK_SAMPLES": 4}, "tiles": {"MOST_BLOCKS": 2, "MOST_TILE_SAMPLES": 3}}


@pytest.fixture
def several(request, monkeypatch):
    """Blocks of a few samples, or of a few tiles."""
    monkeypatch.setattr(shares, "MOST_ONE_BLOCK_OPERATIONS", 0)
    for name, value in SHARED_OUT[getattr(request, "param", "blocks")].items():
        monkeypatch.setattr(shares, name, value)
    monkeypatch.setattr(backends, "_loaded", {})


def trained(name, together, dtype=np.float32, optimizer="Adam-clipped", batch_size=None):
    """Parameters and losses, and how many launches, graphs and refusals that took."""
    device = EmulatedDevice() if name == "numpy" else backend(name).on_device.device
    device.blocks_together = together
    before = device.launches
    net = Chain(Dense(5, 9, tanh), Dropout(0.3), Dense(9, 3), backend=name)
    p = net.init(seed=1, dtype=dtype)
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(21, 5)), rng.integers(0, 3, 21)
    settings = {"epochs": 2, "seed": 2}
    if batch_size:
        settings["penalty"] = chains.L2Penalty(0.1)
        settings["batch_size"] = batch_size
    history = train(net, p, x, t, CrossEntropyLoss(), CLIPPED[optimizer], **settings)
    return p, np.array(history.loss), device.launches - before, device.refused["together"]


@pytest.mark.few(1)
@needs_compiler
@pytest.mark.parametrize(
    ("several", "dtype", "optimizer", "batch_size"),
    [("blocks", np.float32, "Adam-clipped", 10), ("tiles", np.float64, "Nesterov-clipped", None)],
    indirect=["several"],
)
def test_the_bits_are_those_of_a_graph_a_step(several, dtype, optimizer, batch_size):
    """Batches by numbers with a smaller last one and a penalty, or all samples at each step; clipping and dropout."""
    ways = [("one-kernel", "grid"), ("one-kernel-backwards", "grid"), ("one-kernel", "graphs")]
    results = {(name, way): trained(name, WAYS[way], dtype, optimizer, batch_size) for name, way in ways}
    p, loss, launches, _ = results["one-kernel", "grid"]
    for other, losses, _, refused in results.values():
        assert p.tobytes() == other.tobytes()
        assert loss.tobytes() == losses.tobytes()
        assert not refused
    assert 2 * launches <= results["one-kernel", "graphs"][2]  # two kernels a step
    wanted, losses, *_ = trained("numpy", 0, dtype, optimizer, batch_size)
    for found, one in ((p, wanted), (loss, losses)):
        assert_close(found, one, 1e-3 if dtype == np.float32 else 1e-10)


@pytest.mark.few(1)
@needs_compiler
@pytest.mark.parametrize("missing", [0, 1])
def test_each_barrier_is_needed(missing, several, monkeypatch):
    """Without either of them, some order of blocks gives other numbers."""
    wanted = trained("one-kernel", 1)[0]
    between = grid.GridProgram._between

    def without(self, layout, far):
        text = "\n".join(between(self, layout, far))
        barrier = "\n".join(grid.BARRIER)
        assert text.count(barrier) == 2
        at = text.index(barrier) if missing == 0 else text.rindex(barrier)
        return (text[:at] + "__syncthreads();" + text[at + len(barrier) :]).splitlines()

    monkeypatch.setattr(grid.GridProgram, "_between", without)
    found = []
    for name in NAMES:
        with suppress(FloatingPointError):  # what was never written may be no number
            found.append(trained(name, 132)[0].tobytes())
    assert found != [wanted.tobytes()] * len(NAMES)


@needs_compiler
def test_blocks_that_wait_for_ever_are_seen(several, monkeypatch):
    monkeypatch.setattr(grid, "BARRIER", [line.replace("+= gridDim.x", "+= gridDim.x + 1") for line in grid.BARRIER])
    with pytest.raises(AssertionError, match="all blocks wait for others, for ever"):
        trained("one-kernel", 132)


@needs_compiler
def test_where_blocks_cannot_run_at_the_same_time(several, monkeypatch):
    """As many as have to are not started; and where the driver refuses some after all, each step is a graph."""
    wanted = trained("one-kernel", 1)
    device = backend("one-kernel").on_device.device
    launch = device.launch

    def refusing(*given, **settings):
        work = launch(*given, **settings)
        together = given[5] if len(given) > 5 else settings.get("together", False)

        def refuse():
            raise RuntimeError("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE")

        return refuse if together else work

    monkeypatch.setattr(device, "launch", refusing)
    with pytest.warns(RuntimeWarning, match="cannot run at the same time; each step is a graph.*(?s:.)*TOO_LARGE"):
        found = trained("one-kernel", 132)
    assert found[0].tobytes() == wanted[0].tobytes()
    assert (found[3], device.blocks_together) == (1, 1)


@needs_compiler
def test_a_loss_that_is_not_finite_ends_all_blocks(several):
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(40, 3)).astype(np.float32), rng.normal(size=(40, 2)).astype(np.float32)
    found = []
    for name in ("numpy", "one-kernel"):
        net = Chain(Dense(3, 8), Dense(8, 2), backend=name)
        with pytest.raises(FloatingPointError, match="at step") as error:
            train(net, net.init(seed=0), x, t, SquaredLoss(), SGD(50.0), epochs=40, batch_size=20)
        found.append(str(error.value).split("at step")[1])
    assert found[0] == found[1]


@needs_compiler
def test_the_loss_is_a_mean_without_a_penalty(several):
    rng = np.random.default_rng(0)
    x, t, losses = rng.normal(size=(9, 3)), rng.normal(size=(9, 2)), []
    for name in ("numpy", "one-kernel"):
        net = Chain(Dense(3, 4), Dense(4, 2), backend=name)
        losses.append(train(net, net.init(seed=0, dtype=np.float64), x, t, SquaredLoss(), SGD(0.1), epochs=2).loss)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-12)


def matrix_exp():
    net = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))
    return net, net.program(SquaredLoss(), Adam(1e-3))


def test_which_programs_do_many_steps_together():
    """As many blocks as there are multiprocessors, with all that a step changes in the memory of each."""
    _, program = matrix_exp()
    made = fused_program(program, tiling_of(program, 10_000), SHARED_BYTES["sm_90"])
    assert isinstance(for_many_steps(made, 10_000, SHARED_BYTES["sm_90"], 132), grid.GridProgram)
    assert for_many_steps(made, 10_000, SHARED_BYTES["sm_90"], 131) is None
    alone = fused_program(program, tiling_of(program, 100), SHARED_BYTES["sm_90"])
    assert for_many_steps(alone, 100, SHARED_BYTES["sm_90"], 1) is alone
    large = Chain(Dense(128, 64, tanh), Dense(64, 4)).program(SquaredLoss(), Adam(1e-3))  # a vector of 8,516 elements
    made = fused_program(large, tiling_of(large, 10_000), SHARED_BYTES["sm_90"])
    assert made is not None
    assert for_many_steps(made, 10_000, SHARED_BYTES["sm_90"], 132) is None


def test_memory_that_kernels_declare_is_no_room_for_buffers():
    """A GPU refuses more than its bound for both."""
    _, program = matrix_exp()
    tiling, room = tiling_of(program, 10_000), SHARED_BYTES["sm_90"]
    most = grid.GridProgram(program, tiling, room)
    declared = grid.adding_bytes(program.dtype)
    assert most.possible
    assert most.chip_bytes + declared <= room
    assert grid.GridProgram(program, tiling, most.chip_bytes + declared).possible
    assert not grid.GridProgram(program, tiling, most.chip_bytes + declared - 1).possible


@pytest.mark.few(1)
@needs_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_what_matrix_exp_takes(architecture):
    """With 512 threads, a block may have 128 registers each."""
    _, program = matrix_exp()
    room, source = SHARED_BYTES[architecture], Source()
    whole = grid.GridProgram(program, fused_program(program, tiling_of(program, 10_000), room).tiling, room)
    launch = whole.training(source, {})
    batched = whole.training(source, {"x": np.dtype(np.float32), "t": np.dtype(np.float32)})
    usages = nvrtc.compiled(source.text(wide=False), architecture)[1]
    for each in (launch, batched):
        assert each.together
        assert excess(each, 10_000, usages[each.kernel.name], architecture) == []
        assert usages[each.kernel.name].registers <= 128
        assert usages[each.kernel.name].spills <= SPILL_BYTES
    assert len(re.findall("WAIT_FOR_OTHERS", launch.kernel.text)) == 2
