"""Training on the GPU, on the emulated one."""

from __future__ import annotations

import numpy as np
import pytest

from chains import SGD, Adam, Chain, Dense, SquaredLoss
from chains.backends import backend
from chains.training.updater import Updater
from tests.cupy.support import data, needs_compiler, trained
from tests.harness import assert_close


@needs_compiler
@pytest.mark.parametrize("batch_size", [7, 30])
def test_training_is_that_of_numpy(net, device, batch_size):
    x, t = data()
    places = {"numpy": net.init(), "host": net.init(), "device": net.init(device="emulated")}
    histories = {
        name: trained(Chain(*net.layers, backend="emulated" if name == "host" else "numpy"), p, x, t, batch_size=batch_size)
        for name, p in places.items()
    }
    assert places["host"].tobytes() == places["device"].tobytes()
    assert histories["host"].loss == histories["device"].loss
    assert_close(places["host"], places["numpy"], 1e-5)
    assert_close(histories["host"].loss, histories["numpy"].loss, 1e-5)
    assert device.owns(histories["device"].optimizer_state["moments"])
    resumed = net.init(device="emulated")
    first = trained(net, resumed, x, t, batch_size=batch_size, epochs=2)
    trained(net, resumed, x, t, batch_size=batch_size, epochs=1, resume=first)
    assert resumed.tobytes() == places["device"].tobytes()


@needs_compiler
def test_training_goes_on_elsewhere(net, device):
    x, t = data()
    wanted = net.init()
    trained(Chain(*net.layers, backend="numpy"), wanted, x, t)
    for begin, end in ((np.array, device.array), (device.array, np.array)):
        p = begin(net.init())
        history = trained(net, p, x, t, epochs=2)
        q = end(p)
        trained(net, q, x, t, epochs=1, resume=history)
        assert_close(q, wanted, 1e-5)


@needs_compiler
def test_a_training_step_is_a_graph_and_allocates_nothing(net, device):
    x, t = data(70)
    q, counts = net.init(device="emulated"), []
    device.graphs = 0
    trained(net, q, device.array(x), device.array(t), epochs=4, callbacks=[lambda state: counts.append(device.allocations)])
    assert device.graphs == 1  # for the one batch size
    assert counts[1] == counts[2] == counts[3]


@needs_compiler
def test_calls_of_more_steps_need_neither_memory_nor_another_graph(device):
    """On the same batch, where how many steps a call does goes by the time they take."""
    program, runner = Chain(Dense(3, 2)).program(SquaredLoss(), SGD(0.01)), backend("emulated")
    given = {"p": np.zeros(8, np.float32), "x": np.ones((4, 3), np.float32), "t": np.ones((4, 2), np.float32)}
    feed = runner.feed(runner.bind(program, 4, given | program.tuned([0.01])), {}, np.arange(4))
    counts = []
    with runner.running():
        for steps in (2, 3, 5, 40):
            losses = np.empty(steps)
            assert feed(0, losses) == steps
            assert (losses[1:] < losses[:-1]).all()
            counts.append((device.allocations, device.graphs))
    assert len(set(counts)) == 1


@needs_compiler
def test_updater_on_the_gpu(device):
    rng = np.random.default_rng(0)
    p = rng.normal(size=9).astype(np.float32)
    q = device.array(p)
    one, other = Updater(Adam(0.1), p), Updater(Adam(0.1), q)
    for _ in range(3):
        g = rng.normal(size=9).astype(np.float32)
        one(g)
        other(device.array(g))
    assert_close(q, p, 1e-6)


@needs_compiler
def test_data_too_large_for_the_gpu_are_sent_batch_by_batch(net, device, monkeypatch):
    x, t = data()
    p, wanted = net.init(), net.init()
    trained(Chain(*net.layers, backend="emulated"), wanted, x, t)
    contiguous = type(device).contiguous

    def full(self, array, dtype=None):
        if getattr(array, "shape", ())[:1] == (30,):
            raise MemoryError("the GPU has no room")
        return contiguous(self, array, dtype)

    monkeypatch.setattr(type(device), "contiguous", full)
    trained(Chain(*net.layers, backend="emulated"), p, x, t)
    assert_close(p, wanted, 1e-6)
