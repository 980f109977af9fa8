"""Training in machine code equals NumPy's, on data of any type, and can be resumed and interrupted."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time

import numpy as np
import pytest

import chains
from chains import SGD, Adam, Chain, Dense, Dropout, SquaredLoss, tanh, train
from tests.harness import OPTIMIZERS, SCHEDULES, assert_close

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from tests.native.support import FLOATS, Fenced, all_finished, in_process, native
from tests.waiting import eventually


def train_net(name):
    return Chain(Dense(5, 7, tanh), Dropout(0.25), Dense(7, 3), backend=name)


def run_training(name, dtype, optimizer, *, epochs=3, batch_size=16, x=None, t=None, net=None, loss=None, **rest):
    net, rng = net(name) if net else train_net(name), np.random.default_rng(0)
    x = rng.normal(size=(75, *net.input_shape)) if x is None else x
    t = rng.normal(size=(75, *net.output_shape)) if t is None else t
    p = net.init(seed=1, dtype=dtype)
    history = train(net, p, x, t, loss or SquaredLoss(), optimizer, epochs=epochs, batch_size=batch_size, seed=4, **rest)
    return p, history


TRAINERS = {
    **OPTIMIZERS,
    "SGD-clipped": SGD(0.05, momentum=0.9, clip_norm=0.2),
    "Adam-clipped": Adam(0.01, clip_norm=0.3),
    **{f"schedule-{name}": Adam(SCHEDULES[name][0]) for name in ("cosine", "warmup-then", "own")},
}


@pytest.mark.few(6)
@pytest.mark.parametrize("name", TRAINERS)
def test_training_equals_numpy(name):
    """Shuffled, with dropout and a smaller last batch."""
    optimizer = TRAINERS[name]
    (p, history), (wanted, reference) = (run_training(on, "float64", optimizer) for on in ("native", "numpy"))
    assert history.steps == reference.steps == 15
    assert_close(history.loss, reference.loss, 1e-10, "losses")
    assert_close(p, wanted, 1e-9, "p")
    for key, array in reference.optimizer_state.items():
        assert_close(history.optimizer_state[key], array, 1e-9, key)


@pytest.mark.parametrize("settings", [{"batch_size": None}, {"batch_size": 1}, {"batch_size": 74}, {"drop_last": True},
                                      {"shuffle": False}, {"weights": np.linspace(0.5, 2, 75)},
                                      {"penalty": chains.L2Penalty(0.01)}], ids=str)  # fmt: skip
def test_training_otherwise_equals_numpy(settings):
    results = [run_training(on, "float64", Adam(0.01), **settings) for on in ("native", "numpy")]
    (p, history), (wanted, reference) = results
    assert history.steps == reference.steps
    assert_close(history.loss, reference.loss, 1e-10)
    assert_close(p, wanted, 1e-9)


@pytest.mark.parametrize("p_kind", FLOATS)
@pytest.mark.parametrize("x_kind", ["uint8", "float64", "float32", "int64", "int32", "bool", "float16", ">f4"])
def test_data_of_any_type(x_kind, p_kind):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2 if x_kind == "bool" else 200, (75, 5)).astype(x_kind)
    data = {"x": x, "t": rng.integers(0, 3, 75), "loss": chains.CrossEntropyLoss()}
    for batch_size in (16, None):
        (p, history), (wanted, reference) = (
            run_training(on, p_kind, SGD(1e-3), batch_size=batch_size, **data) for on in ("native", "numpy")
        )
        assert_close(history.loss, reference.loss, 1e-4 if p_kind == "float32" else 1e-10)
        assert_close(p, wanted, 1e-4 if p_kind == "float32" else 1e-10)


def test_data_with_gaps():
    x = np.random.default_rng(1).normal(size=(150, 10))[::2, ::2]
    (p, _), (wanted, _) = (run_training(on, "float64", Adam(0.01), x=x) for on in ("native", "numpy"))
    assert_close(p, wanted, 1e-9)


@pytest.mark.parametrize("threads", [1, 2])
def test_training_gives_the_same_bits(threads, eager, monkeypatch):
    monkeypatch.setattr("chains.backends.registry._loaded", {"native": native(threads)})
    runs = [run_training("native", "float32", Adam(0.01), batch_size=70)[0].tobytes() for _ in range(4)]
    assert len(set(runs)) == 1


@pytest.mark.parametrize("threads", [2, 3])
def test_training_on_threads_equals_one(threads, eager, monkeypatch):
    results = []
    for count in (1, threads):
        monkeypatch.setattr("chains.backends.registry._loaded", {"native": native(count)})
        results.append(run_training("native", "float64", Adam(0.01), x=np.ones((500, 5)), t=np.zeros((500, 3)), batch_size=150))
    assert_close(results[1][0], results[0][0], 1e-10)
    assert_close(results[1][1].loss, results[0][1].loss, 1e-10)


def test_training_does_not_depend_on_the_chunks(monkeypatch):
    """However many steps are done between two looks at the clock."""
    wanted = run_training("native", "float32", Adam(0.01), batch_size=2)[0]
    ticks = iter(np.cumsum(np.tile([1e-7, 5.0, 1e-3], 10_000)))
    monkeypatch.setattr("chains.training.steps.time.perf_counter", lambda: float(next(ticks)))
    assert run_training("native", "float32", Adam(0.01), batch_size=2)[0].tobytes() == wanted.tobytes()


def test_a_second_training_knows_how_long_steps_take(monkeypatch):
    """Short runs do not begin anew with a look at the clock after each of their first steps."""
    net, clock, looks = train_net("native"), itertools.count(), []
    monkeypatch.setattr("chains.training.steps.time.perf_counter", lambda: 1e-6 * next(clock))
    for _ in range(2):
        train(net, net.init(seed=1), np.ones((8, 5)), np.zeros((8, 3)), SquaredLoss(), SGD(0.1), epochs=2000)
        looks.append(next(clock))
    first, second = np.diff([-1, *looks])
    assert second < first / 2


@pytest.mark.parametrize("batch_size", [16, None])
def test_resuming_goes_on(batch_size):
    whole, _ = run_training("native", "float32", Adam(0.01), epochs=5, batch_size=batch_size)
    net, rng = train_net("native"), np.random.default_rng(0)
    x, t, p, history = rng.normal(size=(75, 5)), rng.normal(size=(75, 3)), net.init(seed=1), None
    for epochs in (2, 1, 2):
        rest = {"epochs": epochs, "batch_size": batch_size, "seed": 4, "resume": history}
        history = train(net, p, x, t, SquaredLoss(), Adam(0.01), **rest)
    assert p.tobytes() == whole.tobytes()


@pytest.mark.parametrize("position", [0, 15, 16, 50, 74])
def test_a_loss_that_is_not_finite_names_its_step(position):
    """One sample overflows: the step that meets it is the one named, on every backend."""
    x = np.random.default_rng(0).normal(size=(75, 5)).astype(np.float32)
    x[position] = 3e38
    t = np.zeros((75, 3), np.float32)
    net = lambda name: Chain(Dense(5, 3), backend=name)  # noqa: E731
    for on in ("native", "numpy"):
        with pytest.raises(FloatingPointError, match=f"at step {position // 16 + 1}:"):
            run_training(on, "float32", SGD(1e-6), x=x, t=t, net=net, shuffle=False)


def test_steps_end_at_a_loss_that_is_not_finite():
    """What is left of the values is not written."""
    net = Chain(Dense(5, 3), backend="native")
    runner, p = native(), np.ones(net.n_params, np.float32)
    program = net.program(SquaredLoss(), SGD(1e-3))
    x = np.ones((64, 5), np.float32)
    x[37] = np.inf
    shared = {"p": p, "value": np.zeros((), np.float32), "step": np.zeros(())}
    binding = runner.bind(program, 8, {name: array for name, array in shared.items() if name in program.buffers})
    sources = {"x": x, "t": np.zeros((64, 3), np.float32)}
    values = np.full(8, -7.0)
    feed = runner.feed(binding, sources, np.arange(64))
    assert feed(0, values) == 5
    assert np.isfinite(values[:4]).all()
    assert not np.isfinite(values[4])
    assert (values[5:] == -7.0).all()
    assert shared["step"] == 5.0


def test_a_feed_stays_within_its_arrays():
    """Gathering, with fences: the last batch, rows of one number, every type."""
    for kind in ("float32", "float64"):
        net = Chain(Dense(1, 3), backend="native")
        program = net.program(SquaredLoss(), SGD(1e-3), dtype=kind)
        for source in ("uint8", "int64", "float32", "float64"):
            for batch in (1, 3, 17):
                fences, rng = Fenced(), np.random.default_rng(batch)
                samples = 3 * batch + 1
                make = lambda shape, dtype: fences(shape, dtype, np.dtype(dtype).itemsize)  # noqa: B023, E731
                x, t = make((samples, 1), source), make((samples, 3), kind)
                x[...], t[...] = rng.integers(0, 9, x.shape), rng.normal(size=t.shape)
                own = {"p": make((net.n_params,), kind), "value": make((), kind), "step": make((), "float64"),
                       "x": make((batch, 1), kind), "t": make((batch, 3), kind)}  # fmt: skip
                own["p"][...], own["step"][...] = 0.1, 0.0
                order, values = make((3 * batch,), "int64"), make((3,), "float64")
                order[:] = rng.permutation(samples)[: 3 * batch]
                binding = native().bind(program, batch, {n: a for n, a in own.items() if n in program.buffers})
                assert native().feed(binding, {"x": x, "t": t}, order)(0, values) == 3
                fences.check(f"{source} to {kind}, batch {batch}")
                np.testing.assert_array_equal(own["x"], x[order[-batch:]])
                np.testing.assert_array_equal(own["t"], t[order[-batch:]])


def interrupted(batch_size):
    """Train for ever; say when it began; then say how it ended. A shell may have put the tests into the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    net, rng = Chain(Dense(5, 7, tanh), Dense(7, 3), backend="native"), np.random.default_rng(0)
    x, t, p = rng.normal(size=(300, 5)), rng.normal(size=(300, 3)), net.init()
    first = p.copy()

    def watch():
        eventually(lambda: (p != first).any())
        time.sleep(0.1)
        print(json.dumps("ready"), flush=True)

    threading.Thread(target=watch, daemon=True).start()
    history = train(net, p, x, t, SquaredLoss(), Adam(1e-3), epochs=10**7, batch_size=batch_size)
    steps = history.steps
    again = train(net, p, x, t, SquaredLoss(), Adam(1e-3), epochs=2, batch_size=batch_size, resume=history)
    counted = int(history.optimizer_state["step"])
    print(json.dumps([history.stopped, bool(np.isfinite(p).all()), steps, counted, again.epochs]), flush=True)


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("batch_size", [10, 300])
def test_an_interrupt_is_heard(batch_size):
    process = in_process(interrupted, batch_size, popen=True)
    assert json.loads(process.stdout.readline()) == "ready"
    process.send_signal(signal.SIGINT)
    ((stopped, finite, steps, counted, epochs),) = all_finished([process])
    assert "interrupted" in stopped
    assert finite
    assert steps == counted > 0
    assert epochs == 2


def test_bytes_are_numbers_from_0_to_255():
    x, t = np.arange(236, 256, dtype=np.uint8).reshape(10, 2), np.ones((10, 1), np.float32)
    ends = []
    for name, samples in (("native", x), ("native", x.astype(np.float32))):
        net = Chain(Dense(2, 1), backend=name)
        p = net.init(seed=0)
        train(net, p, samples, t, SquaredLoss(), SGD(1e-6), epochs=1, batch_size=5)
        ends.append(p)
    np.testing.assert_array_equal(*ends)
