"""Many steps by a cluster of blocks that share a wide first layer: NumPy's numbers, or one block's where there is none."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import SGD, Adam, AdamW, Chain, CrossEntropyLoss, Dense, Dropout, L2Penalty, SquaredLoss, backends, tanh, train
from chains.backends import backend
from chains.backends.cupy.fused import cluster, exchange
from chains.backends.cupy.fused.fused import fused_program
from chains.backends.cupy.fused.tiling_policy import tiling_of
from chains.backends.cupy.source.commands import Source
from tests.cupy import nvrtc, sass
from tests.cupy.resources import SHARED_BYTES, excess
from tests.cupy.support import needs_compiler, needs_nvrtc
from tests.harness import assert_close

NAMES = ("one-kernel", "one-kernel-backwards")


def trained(name, optimizer=None, dtype=np.float32, blocks=8):
    """Parameters and losses of three steps in one launch, on 4 samples each; inputs of another type than the parameters."""
    net = Chain(Dense(24, 9, tanh), Dropout(0.3), Dense(9, 3), backend=name)
    program, runner = net.program(CrossEntropyLoss(), optimizer or SGD(0.1), target_shape=(), dtype=dtype), backend(name)
    if name != "numpy":
        runner.on_device.device.cluster_blocks = blocks
    rng, p = np.random.default_rng(0), net.init(seed=1, dtype=dtype)
    state = {each: np.zeros(b.shape, b.dtype) for each, b in program.buffers.items() if b.role == "state" and each != "p"}
    state["random"] = np.array([3, 0], np.uint64)
    data = {"x": rng.normal(size=(12, 24)), "t": rng.integers(0, 3, 12)}
    binding = runner.bind(program, 4, {"p": p, **state, **program.tuned(SETTINGS[type(optimizer)])})
    losses = np.empty(3)
    with runner.running():
        assert runner.feed(binding, runner.sources(data), rng.permutation(12))(0, losses) == 3
    return p, losses


SETTINGS = {type(None): [0.1], SGD: [0.1, 0.9], AdamW: [0.01, 0.9, 0.999, 1e-8, 0.01]}


@pytest.mark.few(1)
@needs_compiler
@pytest.mark.parametrize(
    ("optimizer", "dtype"), [(SGD(0.1, momentum=0.9), np.float32), (AdamW(0.01), np.float64)], ids=["momentum", "AdamW"]
)
def test_the_numbers_are_numpys(optimizer, dtype, any_size):
    """By eight blocks, in both orders of blocks and threads, and by one."""
    wanted = trained("numpy", optimizer, dtype)
    found = [trained(name, optimizer, dtype, blocks) for name, blocks in ((NAMES[0], 8), (NAMES[1], 8), (NAMES[0], 1))]
    assert found[0][0].tobytes() == found[1][0].tobytes()
    assert found[0][0].tobytes() != found[2][0].tobytes()  # sums in another order
    for p, losses in found:
        assert_close(p, wanted[0], 1e-4 if dtype == np.float32 else 1e-12)
        assert_close(losses, wanted[1], 1e-4 if dtype == np.float32 else 1e-12)


@needs_compiler
def test_several_products_of_the_inputs(any_size):
    """Of branches side by side; the same samples at every step, which no order names."""
    rng, found = np.random.default_rng(0), {}
    x, t = rng.normal(size=(6, 8)), rng.normal(size=(6, 7))
    for name in ("numpy", NAMES[0]):
        net = Chain(chains.Parallel(Dense(8, 3, tanh), Dense(8, 4, chains.relu)), Dense(7, 7), backend=name)
        found[name] = net.init(seed=1, dtype=np.float64)
        train(net, found[name], x, t, SquaredLoss(), Adam(0.1), epochs=2)
    assert_close(found[NAMES[0]], found["numpy"], 1e-12)
    device = backend(NAMES[0]).on_device.device
    assert any("KERNEL_OF_CLUSTER(256, 8)" in text for text in device._modules)


@pytest.mark.few(1)
@needs_compiler
@pytest.mark.parametrize("missing", ["meeting", "turns", "parting"])
def test_what_blocks_wait_for(missing, any_size, monkeypatch):
    """Without a barrier, or without room for the parts of two steps, some order of blocks gives other numbers or none."""
    wanted = trained(NAMES[0])[0]
    if missing == "meeting":
        monkeypatch.setattr(exchange, "CLUSTER_MEETING", "__syncthreads();")
    elif missing == "parting":
        monkeypatch.setattr(cluster.ClusterProgram, "_last_barrier", "__syncthreads();")
    else:
        step = cluster.ClusterProgram._step
        monkeypatch.setattr(cluster.ClusterProgram, "_step", lambda *given: ["const Index now0 = 0;", *step(*given)[1:]])
    monkeypatch.setattr(backends, "_loaded", {})
    if missing == "parting":
        with pytest.raises(AssertionError, match="a block reads the shared memory of one that is over"):
            trained(NAMES[0])
    else:
        assert [trained(name)[0].tobytes() for name in NAMES] != [wanted.tobytes()] * 2


@needs_compiler
@pytest.mark.parametrize("at", ["start", "binding"])
def test_where_the_driver_refuses_a_cluster(at, any_size, monkeypatch):
    """One block does all of it, from then on without a word."""
    wanted = trained(NAMES[0], blocks=1)
    monkeypatch.setattr(backends, "_loaded", {})
    device = backend(NAMES[0]).on_device.device

    def refusing(*given):
        raise RuntimeError("CUDA_ERROR_TOO_LARGE")

    if at == "start":
        monkeypatch.setattr(device, "_launch_together", refusing)
    else:
        device.blocks_together = 4
    with pytest.warns(RuntimeWarning, match="one block does all of it instead.*(?s:.)*TOO_LARGE"):
        found = trained(NAMES[0])
    assert found[0].tobytes() == wanted[0].tobytes()
    assert found[1].tobytes() == wanted[1].tobytes()
    assert trained(NAMES[0], blocks=device.cluster_blocks)[0].tobytes() == wanted[0].tobytes()
    assert (device.refused["together"], device.cluster_blocks) == (1, 1)


@needs_compiler
def test_a_loss_that_is_not_finite_ends_all_blocks(any_size):
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(40, 8)).astype(np.float32), rng.normal(size=(40, 2)).astype(np.float32)
    found = []
    for name in ("numpy", NAMES[0]):
        net = Chain(Dense(8, 8), Dense(8, 2), backend=name)
        with pytest.raises(FloatingPointError, match="at step") as error:
            train(net, net.init(seed=0), x, t, SquaredLoss(), SGD(50.0), epochs=2, batch_size=4)
        found.append(str(error.value).split("at step")[1])
    assert found[0] == found[1]


def mnist(dtype=np.float32, penalty=None, optimizer=None, width=784, hidden=30):
    net = Chain(Dense(width, hidden, chains.σ), Dense(hidden, 10, chains.σ))
    return net.program(SquaredLoss(), optimizer or SGD(3.0), penalty=penalty, dtype=dtype)


def shared(program, blocks=8, batch=10, architecture="sm_90"):
    room = SHARED_BYTES[architecture]
    return cluster.in_cluster(fused_program(program, tiling_of(program, batch), room), batch, room, blocks)


def test_which_programs_a_cluster_does():
    """Those of wide inputs that only a first layer reads, where nothing reads all of its weights or their gradient."""
    made = shared(mnist())
    assert (made.cluster, made.chip_bytes) == (8, 25_088)
    assert made.program.buffers["p"].size == 784 // 8 * 30 + 30 + 310
    assert shared(mnist(), blocks=1) is None
    assert shared(mnist(width=788)).cluster == 4
    assert shared(mnist(width=787)) is None
    assert shared(mnist(width=787), blocks=2) is None  # not a cluster of one block
    assert shared(mnist(width=64)) is None  # too little work
    assert shared(mnist(penalty=L2Penalty(0.1))) is None
    assert shared(mnist(optimizer=SGD(3.0, clip_norm=1.0))) is None
    assert shared(mnist(optimizer=Adam(1e-3))).program.buffers["moments"].size == 2 * made.program.buffers["p"].size
    skipping = Chain(chains.Residual(Dense(200, 200)), Dense(200, 2)).program(SquaredLoss(), SGD(0.1))
    assert cluster.in_cluster(fused_program(skipping, tiling_of(skipping, 1), SHARED_BYTES["sm_90"]), 1, 1 << 18, 8) is None


@pytest.mark.few(1)
@needs_nvrtc
@pytest.mark.parametrize("architecture", [each for each in nvrtc.ARCHITECTURES if each != "sm_80"])
def test_what_mnist_takes(architecture):
    source, made = Source(), shared(mnist())
    launch = made.training(source, {"x": np.dtype(np.float32), "t": np.dtype(np.float32)})
    code, usages = nvrtc.compiled(source.text(wide=False), architecture)
    usage = usages[launch.kernel.name]
    assert excess(launch, 10, usage, architecture) == []
    assert launch.grid(10) == (8, 1)
    assert usage.registers <= 128
    assert usage.spills == 0
    if sass.disassembler() is not None:
        lines = sass.listing(code)[launch.kernel.name]
        assert sum("UCGABAR_ARV" in line for line in lines) == sum("UCGABAR_WAIT" in line for line in lines) == 2
