"""Data of the host streamed through a GPU, on the emulated one, whose queues work as early or as late as events allow."""

from __future__ import annotations

import itertools
import time
import tracemalloc
import types

import numpy as np
import pytest

from chains import SGD, Adam, BatchNorm, Chain, CrossEntropyLoss, Dense, Dropout, SquaredLoss, backends, tanh, train
from chains.backends import backend
from chains.backends.cupy import streaming
from chains.backends.cupy.device import cuda
from chains.data import Batches
from chains.network import executables, record
from chains.network.network import network_of
from tests.cupy import emulated
from tests.cupy.support import on_gpu
from tests.harness import assert_close

pytestmark = pytest.mark.skipif(emulated.COMPILER is None, reason="no C compiler on this computer")

QUEUES = ("main", "to_device")
LATE = [frozenset(names) for n in range(3) for names in itertools.combinations(QUEUES, n)]
RNG = np.random.default_rng(0)
X, T = RNG.integers(0, 4, (50, 3), np.uint8), RNG.integers(0, 4, 50)


@pytest.fixture
def device(monkeypatch):
    """The emulated GPU as good as new, without room for data sets."""
    result = backend("emulated").on_device.device
    monkeypatch.setattr(result, "free", 0)
    result.kept = []
    yield result
    for queue in (result.main, result.to_device):
        queue.drop()
    result.late, result.deaf, result.kept = frozenset(), "", None


@pytest.fixture(params=LATE, ids=lambda names: "+".join(sorted(names)) or "none")
def late(request, device):
    """Each choice of queues that work as late as they may."""
    device.late = request.param
    return request.param


def network(name="numpy"):
    return Chain(Dense(3, 6, tanh), Dropout(0.3), Dense(6, 4), backend=name)


def trained(p, x, t, name="numpy", **settings):
    settings = {"epochs": 3, "seed": 2} | ({"batch_size": 7} if t is not None else {}) | settings
    return train(network(name), p, x, t, CrossEntropyLoss(), Adam(0.02), **settings)


def on_numpy(x, t, **settings):
    p = network().init()
    return p, trained(p, x, t, **settings)


def parameters(device, p=None):
    """As a copy on the host, once all work is done."""
    result = np.empty(p.shape, p.dtype)
    device.assign(result, p)
    return result


# Training


@pytest.mark.few(16)
@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("settings", [{}, {"weights": np.linspace(0.5, 2.0, 50)}, {"batch_size": 25}], ids=["", "weights", "2"])
def test_streamed_training_is_that_of_numpy(device, late, place, settings):
    wanted, whole = on_numpy(X, T, **settings)
    p = network().init() if place == "host" else network().init(device="emulated")
    before = device.copies
    history = trained(p, X, T, "emulated" if place == "host" else "numpy", **settings)
    assert device.copies - before > history.steps  # through pinned memory
    assert_close(p if place == "host" else parameters(device, p), wanted, 1e-5)
    assert_close(history.loss, whole.loss, 1e-5)


@pytest.mark.few(4)
@pytest.mark.parametrize("place", ["host", "device"])
def test_batches_of_a_source_are_streamed(device, late, place):
    """The last one is smaller; their arrays are overwritten as soon as the next one is asked for."""

    class Reused(Batches):
        def __iter__(self):
            own = [np.empty_like(X), np.empty_like(T)]
            for batch in super().__iter__():
                views = [array[: len(part)] for array, part in zip(own, batch, strict=True)]
                for view, part in zip(views, batch, strict=True):
                    view[...] = part
                yield tuple(views)
                for view in views:
                    view[...] = 3

    wanted, whole = on_numpy(X, T, shuffle=False)
    p = network().init() if place == "host" else network().init(device="emulated")
    history = trained(p, Reused(X, T, batch_size=7, shuffle=False), None, "emulated" if place == "host" else "numpy")
    assert_close(p if place == "host" else parameters(device, p), wanted, 1e-5)
    assert_close(history.loss, whole.loss, 1e-5)
    assert history.steps == whole.steps


def test_batches_on_the_gpu(device, late):
    """Their inputs there already, or both; and types that change on the way."""
    wanted, _ = on_numpy(X, T, shuffle=False)
    kinds = [(device.array, np.array), (device.array, device.array), (np.float64, np.array), (np.array, np.int16)]

    def source():
        for k, start in enumerate(range(0, 50, 7)):
            make, made = kinds[k % 4]
            yield make(X[start : start + 7]), made(T[start : start + 7])

    p = network().init(device="emulated")
    trained(p, [*source()], None)
    assert_close(parameters(device, p), wanted, 1e-5)


@pytest.mark.few(3)
def test_a_network_with_state(device, late):
    def run(p, state, x, t, **settings):
        net = Chain(Dense(3, 6, tanh), BatchNorm(6), Dense(6, 4), backend="numpy")
        return train(net, p, x, t, CrossEntropyLoss(), SGD(0.1), state=state, epochs=2, **settings)

    net = Chain(Dense(3, 6, tanh), BatchNorm(6), Dense(6, 4))
    wanted, wanted_state = net.init(), net.init_state()
    run(wanted, wanted_state, X, T, batch_size=10, shuffle=False)
    for data in ((X, T), (Batches(X, T, batch_size=10, shuffle=False), None)):
        p, state = net.init(device="emulated"), device.array(net.init_state())
        run(p, state, *data, **({"batch_size": 10, "shuffle": False} if data[1] is not None else {}))
        assert_close(parameters(device, p), wanted, 1e-5)
        assert_close(parameters(device, state), wanted_state, 1e-5)


def test_members_take_turns(device, late):
    """Each in pieces of an epoch: what was fetched ahead for one is not taken by the next, whose order is another."""

    def run(name):
        net = network(name)
        p = net.init_many(2, seed=0)
        data = X.astype(np.float32), T
        for _ in range(3):  # calls of one step, which grow
            train(net, p, *data, CrossEntropyLoss(), SGD(0.1), epochs=1, batch_size=4, seed=[0, 1])
        return p

    assert_close(run("emulated"), run("numpy"), 1e-5)


def deafness(device, run):
    """Who must wait for the numbers to be right: those without whose waiting some choice of late queues goes wrong."""
    needed = set()
    for deaf, late in itertools.product(("host", *QUEUES), LATE):
        device.deaf, device.late = deaf, late
        try:
            if not run():
                needed.add(deaf)
        except (FloatingPointError, IndexError):
            needed.add(deaf)
    return needed


def test_calls_are_of_as_many_steps_on_a_slow_computer(device, monkeypatch):
    """Else, waiting for the losses of short calls would hide that nothing else waits."""
    clock, run, lengths = itertools.count(), streaming.StreamedFeed.__call__, []
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))

    def noted(self, first, values):
        lengths.append(len(values))
        return run(self, first, values)

    monkeypatch.setattr(streaming.StreamedFeed, "__call__", noted)
    trained(network().init(device="emulated"), X, T, epochs=1)
    assert lengths == [1, 6, 1]  # seven batches, and one that is smaller


@pytest.mark.few(1)
@pytest.mark.parametrize("data", ["arrays", "batches"])
def test_a_missing_event_makes_wrong_numbers(device, data):
    wanted, whole = on_numpy(X, T, shuffle=False, epochs=2)

    def right():
        p = network().init(device="emulated")
        source = (X, T) if data == "arrays" else (Batches(X, T, batch_size=7, shuffle=False), None)
        history = trained(p, *source, **({"shuffle": False} if data == "arrays" else {}), epochs=2)
        close = np.allclose(history.loss, whole.loss, rtol=1e-4)
        return close and np.allclose(parameters(device, p), wanted, rtol=1e-3, atol=1e-4)

    assert right()
    assert deafness(device, right) == {"host", "main", "to_device"}


def test_a_steady_step_allocates_nothing(device):
    counts, p = [], network().init(device="emulated")
    trained(p, X[:49], T[:49], epochs=5, callbacks=[lambda state: counts.append(device.allocations)])
    assert counts[1] == counts[4]
    counts.clear()
    source = Batches(X[:49], T[:49], batch_size=7, shuffle=False)
    trained(p, source, None, epochs=5, callbacks=[lambda state: counts.append(device.allocations)])
    assert counts[1] == counts[4]


def test_the_host_allocates_no_batches(device):
    """A batch is 800 kB here; products of the emulation take 160 kB."""
    net = Chain(Dense(20_000, 1), backend="numpy")
    program = executables.training_step(
        network_of(net), net.init(device="emulated"), record.Criterion(SquaredLoss(), (1,)), SGD(1e-9)
    )
    p, x, t = net.init(device="emulated"), np.ones((200, 20_000), np.float32), np.ones((200, 1), np.float32)
    own = {"p": p, "value": device.array(np.zeros((), np.float32)), "step": device.array(np.zeros(()))}
    shared = {name: array for name, array in {**own, **program.settings}.items() if name in program.program.buffers}
    binding = program.backend.bind(program.program, 10, shared)
    feed = program.backend.feed(binding, {"x": x, "t": t}, np.arange(200))
    values = np.empty(20)
    feed(0, values)
    tracemalloc.start()
    try:
        feed(0, values)
        assert tracemalloc.get_traced_memory()[1] < 600_000
    finally:
        tracemalloc.stop()
    assert np.isfinite(values).all()


@pytest.mark.parametrize("data", ["arrays", "batches"])
def test_two_steps_are_under_way_at_most(device, monkeypatch, data):
    """With a GPU that does nothing before it must: the host goes on at once, and then waits."""
    device.late = frozenset({"main"})
    left, start = [], streaming.StreamedStep.start

    def watched(self):
        start(self)
        done = int(np.asarray(self._step.own["cursor"])[0])
        left.append(self.batches.done - (done if 0 <= done < 8 else 0))  # before anything is done, it holds nothing

    monkeypatch.setattr(streaming.StreamedStep, "start", watched)
    p = network().init(device="emulated")
    if data == "arrays":
        trained(p, X[:49], T[:49], epochs=1)
        assert max(left) == 2
    else:
        trained(p, Batches(X[:49], T[:49], batch_size=7, shuffle=False), None, epochs=1)
        assert left == [1, 2, 2, 2, 2, 2, 2]


@pytest.mark.few(2)
def test_losses_that_are_not_finite(device, late):
    x = X.astype(np.float32)
    x[30] = np.inf
    for name in ("emulated", "numpy"):
        for data in ((x, T), (Batches(x, T, batch_size=7, shuffle=False), None)):
            p = network().init() if name == "emulated" else network().init(device="emulated")
            settings = {"shuffle": False} if data[1] is not None else {}
            with pytest.raises(FloatingPointError, match="loss is nan at step") as caught:
                trained(p, *data, name, check_finite=False, **settings)
            assert 5 <= caught.value.history.steps <= 5 + streaming.MAX_UNREAD
            assert device.to_device.done == device.to_device.asked  # nothing is written behind the caller's back


def test_data_that_fit_are_copied_whole(device, monkeypatch):
    nbytes = X.nbytes + T.nbytes
    for free, streamed in ((2 * nbytes, False), (2 * nbytes - 1, True)):
        monkeypatch.setattr(device, "free", free)
        before, p = device.copies, network().init(device="emulated")
        trained(p, X, T)
        assert (device.copies > before) is streamed


def test_interrupted_training_leaves_the_parameters_of_whole_steps(device):
    """Ctrl-C between two batches: `p` is what so many steps make of it."""

    def interrupted():
        yield from itertools.islice(Batches(X, T, batch_size=7, shuffle=False), 5)
        raise KeyboardInterrupt

    for name in ("emulated", "numpy"):
        p = network().init() if name == "emulated" else network().init(device="emulated")
        history = trained(p, interrupted(), None, name, epochs=1)
        wanted, _ = on_numpy(X[:35], T[:35], shuffle=False, epochs=1)
        assert history.steps == 5
        assert "interrupted" in history.stopped
        assert_close(parameters(device, p) if name == "numpy" else p, wanted, 1e-5)


# Calls


@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.float16])
def test_a_call_on_data_of_the_host(device, late, kind, monkeypatch):
    net, x = network(), X.astype(kind)
    p = net.init()
    q, wanted = device.array(p), net(x, p)
    monkeypatch.setattr(device, "free", 1 << 40)
    y = net(x, q)
    assert device.owns(y)
    assert_close(parameters(device, y), wanted, 1e-6)
    for out in (np.full((50, 4), np.nan, np.float32), device.empty((50, 4), np.float32)):
        assert net(x, q, out=out) is out
        assert_close(parameters(device, out) if device.owns(out) else out, wanted, 1e-6)


def test_outputs_of_the_wrong_kind_are_refused(device):
    net = network()
    p, x = device.array(net.init()), X.astype(np.float32)
    with pytest.raises(ValueError, match=r"`out` must have shape .*, got \(50, 3\)"):
        net(x, p, out=np.empty((50, 3), np.float32))
    wide = np.zeros((50, 4), np.float32)
    with pytest.raises(ValueError, match="`out` overlaps `x`"):
        net(wide.reshape(-1)[:150].reshape(50, 3), p, out=wide)
    with pytest.raises(TypeError, match="an array to fill on the GPU"):
        net(device.array(x), p, out=wide)


# What is asked of CuPy


def test_calls_of_cupy():
    """A queue is a stream: copies by address, size and direction as the pointers have it, events recorded and waited for."""
    calls = []
    runtime = types.SimpleNamespace(memcpyDefault=4, memcpyAsync=lambda *given: calls.append(("copy", *given)))
    stream = types.SimpleNamespace(ptr=77, wait_event=lambda event: calls.append(("wait", event)))
    inner = types.SimpleNamespace(
        record=lambda on: calls.append(("record", on)), synchronize=lambda: calls.append(("synchronize",))
    )
    queue, event = (
        cuda.CudaQueue(types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime)), stream),
        cuda.CudaEvent(inner),
    )
    host = np.zeros(3, np.float32)
    there = types.SimpleNamespace(data=types.SimpleNamespace(ptr=4096), nbytes=12)
    queue.copy(there, host)
    queue.copy(host, there)
    queue.record(event)
    queue.wait(event)
    event.wait()
    own = host.ctypes.data
    assert calls == [
        ("copy", 4096, own, 12, 4, 77), ("copy", own, 4096, 12, 4, 77), ("record", stream), ("wait", inner), ("synchronize",),
    ]  # fmt: skip


def test_pinned_memory_that_there_is_none_of():
    class CUDARuntimeError(RuntimeError):
        pass

    def full(nbytes):
        raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")

    device = cuda.CudaDevice.__new__(cuda.CudaDevice)
    runtime = types.SimpleNamespace(CUDARuntimeError=CUDARuntimeError)
    device.cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(alloc_pinned_memory=bytearray, runtime=runtime))
    array = device.pinned((3, 2), np.float64)
    assert array.shape == (3, 2)
    assert array.dtype == np.float64
    device.cupy.cuda.alloc_pinned_memory = full
    with pytest.raises(MemoryError, match="no 48 bytes of the computer's memory can be pinned for copies: cudaErrorMem"):
        device.pinned((3, 2), np.float64)


# On a GPU


@pytest.mark.gpu
@on_gpu
def test_streaming_on_the_gpu(monkeypatch):
    """Large enough for copies and steps to run at once: the same numbers as with all data there."""
    import cupy

    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(40_000, 512)).astype(np.float32), rng.normal(size=(40_000, 8)).astype(np.float32)
    net = Chain(Dense(512, 256, tanh), Dense(256, 8))
    results = []
    for share in (streaming.MEMORY_SHARE, 0.0):
        monkeypatch.setattr(streaming, "MEMORY_SHARE", share)
        p = net.init(device="cuda")
        train(net, p, x, t, SquaredLoss(), Adam(1e-3), epochs=3, batch_size=4096)
        results.append(cupy.asnumpy(p))
    np.testing.assert_array_equal(*results)
    assert backends.backend("cupy").on_device.device.room() > 0
