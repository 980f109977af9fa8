"""Programs that are bound follow the number of threads, with the same bits for the same number."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest

import chains
from chains import SGD, Adam, Chain, Dense, SquaredLoss, num_threads, set_num_threads, tanh, train
from chains.network.network import network_of

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import NativeBackend
from chains.backends.native.following import KEPT_NUMBERS, FollowingBinding, _followers

pytestmark = pytest.mark.usefixtures("number")
NUMBERS = (1, 2, 3)


@pytest.fixture
def eager(monkeypatch):
    """Threads are used for any amount of work, also to split products."""
    monkeypatch.setattr("chains.backends.native.memory_plan.MIN_THREAD_OPERATIONS", 1)
    monkeypatch.setattr("chains.backends.native.backend.MIN_PART_OPERATIONS", 1)


def problem(batch, dtype=np.float32):
    """A network of its own, so that nothing is bound before."""
    net, rng = Chain(Dense(130, 48, tanh), Dense(48, 5), backend="native"), np.random.default_rng(0)
    network_of(net).use(NativeBackend())
    x, t = rng.normal(size=(batch, 130)).astype(dtype), rng.normal(size=(batch, 5)).astype(dtype)
    return net, net.init(seed=1, dtype=dtype), x, t


def value_and_grad(batch, dtype=np.float32):
    net, p, x, t = problem(batch, dtype)

    def call():
        value, g = net.value_and_grad(p, x, t, SquaredLoss())
        return np.float64(value).tobytes() + g.tobytes()

    return call


def forward(batch):
    net, p, x, _ = problem(batch)
    return lambda: net(x, p).tobytes()


def objective(batch):
    net, p, x, t = problem(batch)
    f = net.objective(x, t, SquaredLoss())

    def call():
        value, g = f(p)
        return np.float64(value).tobytes() + g.tobytes()

    return call


def training(batch):
    net, p, x, t = problem(3 * batch)

    def call():
        own = p.copy()
        train(net, own, x, t, SquaredLoss(), Adam(0.01), epochs=2, batch_size=batch)
        return own.tobytes()

    return call


CALLS = {
    "forward": forward,
    "value_and_grad": value_and_grad,
    "in double precision": lambda batch: value_and_grad(batch, np.float64),
    "objective": objective,
    "training": training,
}


def bits_by_number(make):
    """What fresh networks give, each for one number of threads alone."""
    found = {}
    for n in NUMBERS:
        with num_threads(n):
            call = make()
            found[n] = call()
            assert call() == found[n]
    return found


@pytest.mark.parametrize("batch", [10, 150])
@pytest.mark.parametrize("name", CALLS)
def test_programs_follow_with_the_same_bits_for_the_same_number(name, batch, eager):
    wanted = bits_by_number(lambda: CALLS[name](batch))
    call = CALLS[name](batch)
    for n in (1, 2, 1, 3, 2, 2, 3, 1):
        set_num_threads(n)
        assert [call() for _ in range(3)] == 3 * [wanted[n]], f"{n} threads"


def test_the_numbers_tested_have_bits_of_their_own(eager):
    """Otherwise the tests above say nothing."""
    found = bits_by_number(lambda: CALLS["value_and_grad"](150))
    assert len(set(found.values())) == len(NUMBERS)


def test_large_arrays_follow(eager):
    """Programs bound anew at each call, in scratch memory that is kept."""
    net = Chain(Dense(5, 9, tanh), Dense(9, 2), backend="native")
    rng = np.random.default_rng(0)
    p, x = net.init(dtype=np.float64), rng.normal(size=(30_000, 5))
    t, wanted = np.zeros((30_000, 2)), {}
    for n in (1, 2, 3, 2, 1, 3):
        set_num_threads(n)
        found = [net.value_and_grad(p, x, t, SquaredLoss())[1].tobytes() for _ in range(2)]
        assert found == 2 * [wanted.setdefault(n, found[0])]
    assert len(set(wanted.values())) == 3


def test_a_run_of_training_follows(eager):
    """An epoch on each number, and every one with the bits of a run that goes on from there."""
    net, p, x, t = problem(60)
    numbers = iter([1, 3, 2, 1])

    own, one_by_one, history = p.copy(), p.copy(), None
    set_num_threads(2)
    train(
        net, own, x, t, SquaredLoss(), SGD(0.1), epochs=4, batch_size=20, callbacks=[lambda _: set_num_threads(next(numbers))]
    )
    for n in (2, 1, 3, 2):
        set_num_threads(n)
        history = train(net, one_by_one, x, t, SquaredLoss(), SGD(0.1), epochs=1, batch_size=20, resume=history)
    assert own.tobytes() == one_by_one.tobytes()


def test_an_updater_follows(eager):
    rng = np.random.default_rng(0)
    p, steps = rng.normal(size=5000).astype(np.float32), [rng.normal(size=5000).astype(np.float32) for _ in range(6)]
    wanted, own = p.copy(), p.copy()
    update = chains.Updater(Adam(0.1), wanted)
    for g in steps:
        update(g)
    update = chains.Updater(Adam(0.1), own)
    for n, g in zip((1, 2, 3, 1, 2, 3), steps, strict=True):
        set_num_threads(n)
        update(g)
    assert own.tobytes() == wanted.tobytes()  # each number is its own thread's, so that they do not differ


def test_memory_is_kept_for_few_numbers(eager):
    net, _, x, _ = problem(100)
    binding = network_of(net).backend.bind(net.program(), 100, {"x": x})
    assert isinstance(binding, FollowingBinding)
    first = binding.present()
    for n in (2, 3, 4, 5, 4, 5):
        set_num_threads(n)
        assert binding.present().threads == n
        assert len(binding._by_number) <= KEPT_NUMBERS
    last = binding.present()
    with num_threads(4):
        assert binding.present() is not last
    assert binding.present() is last
    assert first is not last


def test_small_programs_stay_as_they_are():
    """What one thread does alone is not bound again."""
    binding = NativeBackend().bind(Chain(Dense(2, 2)).program(), 3, {})
    set_num_threads(1)
    first = binding.present()
    for n in (2, 3, 1):
        set_num_threads(n)
        assert binding.present() is first


def test_a_backend_of_its_own_number_does_not_follow():
    runner = NativeBackend(threads=2)
    set_num_threads(1)
    assert runner.threads == 2
    assert NativeBackend().threads == 1
    assert "1 threads" in repr(NativeBackend())


def test_scratch_of_another_number_is_taken_if_it_is_large_enough(eager):
    """Another Python thread may change the number between the two calls."""
    net, p, x, _ = problem(100)
    program, runner = net.program(), network_of(net).backend
    wanted = net(x, p)
    for asked, bound in ((1, 3), (3, 1), (2, 2)):
        set_num_threads(asked)
        scratch = np.empty(runner.scratch_bytes(program, 100), np.uint8)
        set_num_threads(bound)
        y = np.empty((100, 5), np.float32)
        runner.bind(program, 100, {"x": x, "p": p, "y": y}, scratch)()
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="scratch"):
        runner.bind(program, 100, {"x": x, "p": p}, np.empty(8, np.uint8))


@pytest.mark.parametrize("name", ["value_and_grad", "objective", "training"])
def test_the_number_changes_under_calls_from_several_threads(name, eager):
    wanted = set(bits_by_number(lambda: CALLS[name](60)).values())
    calls, stop, found = [CALLS[name](60) for _ in range(2)], threading.Event(), []
    calls.append(calls[0])  # one network in two threads

    def work(call):
        while not stop.is_set():
            found.append(call())

    workers = [threading.Thread(target=work, args=(call,)) for call in calls]
    for worker in workers:
        worker.start()
    for k in range(30):
        with num_threads(NUMBERS[k % 3]):
            time.sleep(0.002)
        set_num_threads(NUMBERS[k % 2])
    stop.set()
    for worker in workers:
        worker.join()
    assert len(found) >= len(calls)
    if name == "training":  # which may meet several numbers in one run
        reference = np.frombuffer(next(iter(wanted)), np.float32)
        assert all(np.allclose(np.frombuffer(p, np.float32), reference, rtol=1e-3, atol=1e-4) for p in found)
    else:
        assert set(found) <= wanted


def test_functions_that_nobody_holds_are_forgotten():
    gc.collect()
    before = len(_followers)
    for _ in range(3):
        net = Chain(Dense(3, 2), backend="native")
        net(np.zeros((4, 3), np.float32), net.init())
        net(np.zeros((4, 3), np.float32), net.init())
        assert len(_followers) > before
        del net
        gc.collect()
    assert len(_followers) == before
