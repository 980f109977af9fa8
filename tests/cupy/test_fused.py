"""Whole programs as one kernel over tiles of samples: the same results as NumPy's, however the batch is shared out."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import SGD, Adam, Chain, CrossEntropyLoss, Dense, Dropout, MSELoss, SquaredLoss, backends, tanh, train
from chains.backends import backend
from chains.backends.cupy import CupyBackend
from chains.backends.cupy.fused import tiling_policy as shares
from chains.backends.cupy.fused.block import THREADS, Block, Unit, phases, whole
from chains.backends.cupy.fused.block_operations import blocking
from chains.backends.cupy.fused.tiling_policy import Tiling, even, suits, tiling_of
from chains.backends.cupy.fused_program import FusedProgram, fused_program
from chains.lowering.tiling import whole_on_tiles
from chains.network import record
from chains.network.network import network_of
from chains.program.loop import Loop
from chains.program.recorder import Recorder
from tests.cupy import emulated, nvrtc
from tests.cupy.fusable import LOOPS, SUITED
from tests.cupy.resources import SHARED_BYTES, spilling, too_much
from tests.cupy.support import arrays_of, gradient_program, needs_compiler, needs_nvrtc, on_gpu
from tests.harness import CASES, CLIPPED, assert_close, assert_same_bits, run_program

pytestmark = pytest.mark.few(6)

DTYPES = {"sm_80": np.float64, "sm_90": np.float32, "sm_100": np.float32}
TOLERANCE = {np.float32: 1e-4, np.float64: 1e-11}

NAMES = ("one-kernel", "one-kernel-backwards")
SHARED_OUT = {  # how a batch is shared out, by the constants of `shares`
    "alone": {},
    "blocks": {"MAX_ONE_BLOCK_OPERATIONS": 0, "MIN_BLOCK_SAMPLES": 3},
    "tiles": {"MAX_ONE_BLOCK_OPERATIONS": 0, "MAX_BLOCKS": 2, "MAX_TILE_SAMPLES": 5},
    "alone-tiles": {"MAX_ONE_BLOCK_OPERATIONS": 0, "MAX_BLOCKS": 1, "MAX_TILE_SAMPLES": 7},
}


@pytest.fixture(params=SHARED_OUT)
def shared_out(request, monkeypatch):
    for name, value in SHARED_OUT[request.param].items():
        monkeypatch.setattr(shares, name, value)
    monkeypatch.setattr(backends.registry, "_loaded", {})  # what was compiled before was shared out otherwise
    return request.param


def agree(program, batch, arrays, dtype):
    wanted, found, backwards = (
        run_program(program, name, batch, arrays) for name in ("numpy", "one-kernel", "one-kernel-backwards")
    )
    assert_same_bits(found, backwards)
    assert_same_bits(found, run_program(program, "one-kernel", batch, arrays, fill=255, runs=2))
    for name in wanted:
        assert_close(found[name], wanted[name], TOLERANCE[dtype], name)


def test_most_networks_without_images_suit():
    names = {str(case) for case in SUITED}
    assert {"Dense", "LayerNorm", "Parallel-one", "Residual-deep", "Dropout", "penalty-L2-weights"} <= names
    assert not {"Conv", "MaxPool", "BatchNorm", "Residual-BatchNorm"} & names


def test_the_names_of_cases_are_those_that_suit():
    """Of `tests/cupy/fusable.py`, where a new case of many kernels, or of loops, must be named."""
    programs = {case: gradient_program(case, np.float64) for case in CASES}
    assert [case.name for case, program in programs.items() if suits(program)] == [case.name for case in SUITED]
    loops = [case for case, program in programs.items() if any(isinstance(each, Loop) for each in program.operations)]
    assert [case.name for case in loops] == [case.name for case in LOOPS]


@needs_compiler
@pytest.mark.parametrize("case", SUITED[::16], ids=str)
@pytest.mark.parametrize(("batch", "dtype"), [(70, np.float32), (1, np.float64)])
def test_gradients_are_numpys(case, batch, dtype):
    agree(gradient_program(case, dtype), batch, arrays_of(case.problem(batch)), dtype)


MIXED = (
    Dense(5, 12, tanh), Dropout(0.3), chains.Residual(Dense(12, 12, chains.gelu)), chains.LayerNorm(12),
    chains.Parallel(Dense(12, 3), Dense(12, 4, chains.relu)), Dense(7, 3),
)  # fmt: skip


@needs_compiler
def test_forward_and_pullback(shared_out):
    """Every way to share out a batch; random numbers do not depend on it."""
    net, batch, dtype = Chain(*MIXED), 19, np.float64 if "tiles" in shared_out else np.float32
    rng = np.random.default_rng(0)
    shapes = {"p": (net.n_params,), "x": (batch, 5), "dy": (batch, 3)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["random"] = np.array([3, 1], np.uint64)
    for program in (record.forward(network_of(net), dtype, True), record.vjp(network_of(net), dtype, True)):
        assert suits(program)
        agree(program, batch, arrays, dtype)


@needs_compiler
def test_steps_of_many_blocks(monkeypatch):
    """The penalty, the clipping and the optimiser after the sums, by kernels of their own."""
    monkeypatch.setattr(shares, "MAX_ONE_BLOCK_OPERATIONS", 0)
    net, loss = Chain(*MIXED), CrossEntropyLoss()
    program = net.program(loss, CLIPPED["Adam-clipped"], penalty=chains.L2Penalty(0.1), target_shape=())
    made = fused_program(program, tiling_of(program, 31), SHARED_BYTES["sm_90"])
    assert len(made.commands) > 2
    monkeypatch.setattr(backends.registry, "_loaded", {})
    x, t = np.random.default_rng(1).normal(size=(31, 5)), np.arange(31) % 3
    p = {name: net.init(dtype=np.float64) for name in ("numpy", "one-kernel", "one-kernel-backwards")}
    for name in p:
        settings = {"epochs": 3, "seed": 1, "penalty": chains.L2Penalty(0.1)}
        train(Chain(*MIXED, backend=name), p[name], x, t, loss, CLIPPED["Adam-clipped"], **settings)
    assert p["one-kernel"].tobytes() == p["one-kernel-backwards"].tobytes()
    assert_close(p["one-kernel"], p["numpy"], 1e-10)


# Training by one block


@pytest.mark.few(1)
@needs_compiler
@pytest.mark.parametrize(("optimizer", "dtype"), [("Adam-clipped", np.float32), ("Nesterov-clipped", np.float64)])
def test_many_steps_are_one_launch(optimizer, dtype):
    """An epoch's batches of 10, the last one of 7; data and targets of other types than the parameters."""
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(27, 5)), rng.integers(0, 3, 27)
    results = {}
    for name in ("numpy", "one-kernel", "one-kernel-backwards"):
        net = Chain(*MIXED, backend=name)
        p = net.init(dtype=dtype)
        history = train(net, p, x, t, CrossEntropyLoss(), CLIPPED[optimizer], epochs=2, batch_size=10, seed=2)
        results[name] = p, history.loss
    assert results["one-kernel"][0].tobytes() == results["one-kernel-backwards"][0].tobytes()
    for found, wanted in zip(results["one-kernel"], results["numpy"], strict=True):
        assert_close(found, wanted, 10 * TOLERANCE[dtype])


@needs_compiler
def test_a_loss_that_is_not_finite_ends_the_launch():
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(40, 3)).astype(np.float32), rng.normal(size=(40, 2)).astype(np.float32)
    found = {}
    for name in ("numpy", "one-kernel"):
        net = Chain(Dense(3, 8), Dense(8, 2), backend=name)
        with pytest.raises(FloatingPointError, match="at step") as error:
            train(net, net.init(seed=0), x, t, SquaredLoss(), SGD(50.0), epochs=40, batch_size=10)
        found[name] = str(error.value).split("at step")[1]
    assert found["one-kernel"] == found["numpy"]


@needs_compiler
def test_one_launch_a_call_and_no_allocation():
    device = backend("one-kernel").on_device.device
    net = Chain(Dense(3, 8, tanh), Dense(8, 2), backend="one-kernel")
    x, t = np.ones((40, 3), np.float32), np.ones((40, 2), np.float32)
    program = net.program(SquaredLoss(), Adam(1e-3))
    state = {"moments": np.zeros(2 * net.n_params, np.float32), "step": np.zeros(())}
    binding = backend("one-kernel").bind(program, 10, {"p": net.init(), **state, **program.tuned([1e-3, 0.9, 0.999, 1e-8])})
    feed = backend("one-kernel").feed(binding, backend("one-kernel").sources({"x": x, "t": t}), np.arange(40))
    values = np.empty(4)
    feed(0, values[:1])
    launches, allocations = device.launches, device.allocations
    with backend("one-kernel").running():
        assert feed(0, values) == 4
    assert device.launches == launches + 1
    assert device.allocations == allocations
    assert (values > 0).all()


# What fits


def made(net, loss, optimizer, batch, architecture="sm_90", **rest):
    program = net.program(loss, optimizer)
    return fused_program(program, tiling_of(program, batch), SHARED_BYTES[architecture], **rest)


def test_what_lies_in_shared_memory():
    """The figures of two networks: all of mnist_mlp's step lies there, on sm_80 too."""
    mnist = Chain(Dense(784, 30, chains.σ), Dense(30, 10, chains.σ)), SquaredLoss(), SGD(3.0), 10
    large, small = made(*mnist), made(*mnist, "sm_80")
    assert large.shared_bytes == small.shared_bytes <= SHARED_BYTES["sm_80"]
    assert len(large.commands) == len(small.commands) == 1
    assert large.scratch_plan(10).nbytes(10) == small.scratch_plan(10).nbytes(10) == 0
    matrix_exp = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4)), MSELoss(), Adam(1e-3)
    assert len(made(*matrix_exp, 200).commands) == 1
    many = made(*matrix_exp, 10_000)
    assert [step.grid(10_000) for step in many.commands] == [(132, 1), (24, 1), (1, 1), (3, 1)]
    assert many.shared_bytes < 48 << 10


def test_parameters_that_do_not_fit_are_for_cublas():
    wide = Chain(Dense(300, 300, tanh), Dense(300, 10)), SquaredLoss(), SGD(0.1), 64
    assert made(*wide) is None
    assert made(*wide, forced=True) is not None
    assert made(Chain(Dense(100_000, 1)), SquaredLoss(), SGD(0.1), 4, forced=True) is not None  # read where they lie
    net = Chain(Dense(3, 70_000))
    assert made(net, SquaredLoss(), SGD(0.1), 4, forced=True) is None  # not even one sample's


@needs_compiler
def test_a_switch_forces_either_way():
    net = Chain(Dense(3, 8, tanh), Dense(8, 2))
    program = net.program(SquaredLoss(), Adam(1e-3))
    wide = Chain(Dense(300, 300)).program(SquaredLoss(), Adam(1e-3))
    images = Chain(chains.Conv(1, 2, 3), input_shape=(1, 8, 8)).program(SquaredLoss())
    for switch, chosen in {None: [True, False, False], True: [True, True, False], False: [False] * 3}.items():
        runner = CupyBackend(emulated.EmulatedDevice(), switch).on_device
        assert [isinstance(runner.commands(each, 10), FusedProgram) for each in (program, wide, images)] == chosen


def test_batch_sizes_share_kernels():
    assert all(samples <= even(samples) <= 1.25 * samples for samples in range(1, 2000))
    assert {even(samples) for samples in range(65, 129)} == {80, 96, 112, 128}


def test_what_waits_for_the_whole_batch():
    tiled, once = whole_on_tiles(Chain(Dense(3, 2)).program(SquaredLoss(), Adam(1e-3)).operations)
    assert [operation.label for operation in once][-1] == "Adam"
    assert all(any(view.batched for view in operation.views) for operation in tiled)
    normed = Chain(Dense(3, 2), chains.BatchNorm(2))
    objective = record.Criterion(SquaredLoss(), (2,))
    assert whole_on_tiles(record.gradient(network_of(normed), objective, np.float32, True).operations) is None


def test_barriers_stand_between_what_depends():
    ops = Recorder("views", np.float32)
    a, b, c = (whole(ops.scratch(name, (4,)).buffer) for name in "abc")
    block = Block(8, (), {})
    for out, ins in ((b, [a]), (c, [a]), (a, [b]), (c, [c])):
        pointers = block.pointers()
        pointers(out.buffer, write=True)
        for view in ins:
            pointers(view.buffer)
        block.add(Unit("1", 1, []), pointers, [out, *ins])
    first, second = phases(block.units)
    assert [first, second] == [block.units[:2], block.units[2:]]


def test_products_use_the_threads_there_are():
    for sizes in ((10, 30, 784), (784, 30, 10), (80, 32, 4), (16, 4, 80), (1, 1, 1)):
        tall, wide, parts = blocking(*sizes)
        assert parts <= sizes[2]
        assert tall * wide <= 16
    tall, wide, parts = blocking(10, 30, 784)
    assert parts > 1  # a long sum of few results
    assert -(-10 // tall) * -(-30 // wide) * parts <= 2 * THREADS


# The kernels compile


@pytest.mark.few(2)
@needs_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_kernels_compile(architecture, monkeypatch):
    """Those of one type for each architecture: a step of many blocks, many steps of one block, and of one for each member."""
    monkeypatch.setattr(shares, "MIN_BLOCK_SAMPLES", 4)
    net = Chain(Dense(5, 12, tanh), Dropout(0.3), Dense(12, 8))
    program = net.program(SquaredLoss(), Adam(0.1, clip_norm=1.0), dtype=DTYPES[architecture])
    alone = fused_program(program, tiling_of(program, 10), SHARED_BYTES[architecture])
    monkeypatch.setattr(shares, "MAX_ONE_BLOCK_OPERATIONS", 0)
    many = fused_program(program, tiling_of(program, 10), SHARED_BYTES[architecture])
    source = many.source
    alone.training(source, {"x": np.dtype(np.uint8), "t": np.dtype(np.float32)})
    alone.training(source, {"x": np.dtype(np.uint8)}, {"p", "moments", "step", "all x", "t"})
    code, usages = nvrtc.compiled(source.text(wide=architecture == "sm_80"), architecture)
    assert all(name in code for name in (b"network_", b"sums_", b"training_"))
    assert too_much([many], (10, 4_000), usages, architecture) == []
    assert all(used.registers <= 128 for used in usages.values())
    assert spilling(source.kernels.values(), usages) == {}


def test_more_blocks_than_samples_are_not_asked_for(monkeypatch):
    monkeypatch.setattr(shares, "MAX_ONE_BLOCK_OPERATIONS", 0)
    program = Chain(Dense(3, 2)).program(SquaredLoss(), SGD(0.1))
    assert tiling_of(program, 5) == Tiling(5, alone=True, single=True)
    assert tiling_of(program, 9) == Tiling(8, alone=False, single=False)
    assert fused_program(program, tiling_of(program, 1000), SHARED_BYTES["sm_90"]).blocks(1000) == 125


# On a GPU


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("switch", [True, False], ids=["one", "many"])
@pytest.mark.parametrize("case", SUITED, ids=str)
def test_both_ways_on_the_gpu(case, dtype, switch, monkeypatch):
    from chains.backends.cupy.device.cuda import CudaDevice

    monkeypatch.setitem(backends.registry._loaded, "way", CupyBackend(CudaDevice(), switch))
    monkeypatch.setitem(backends.registry._BACKENDS, "way", CupyBackend)
    program, arrays = gradient_program(case, dtype), arrays_of(case.problem(70))
    wanted, found, again = (
        run_program(program, name, 70, arrays, runs=n) for name, n in (("numpy", 1), ("way", 1), ("way", 3))
    )
    assert_same_bits(found, again)
    for name in wanted:
        assert_close(found[name], wanted[name], TOLERANCE[dtype], name)
