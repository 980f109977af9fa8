"""How many threads compiled programs use: chosen, limited for a while, or by default; in workers of process pools too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import chains
from chains import SGD, Adam, Chain, Dense, SquaredLoss, get_num_threads, num_threads, set_num_threads, tanh, threads, train

MOST = threads.MOST_THREADS


@pytest.fixture(autouse=True)
def number():
    """What the tests change is as before afterwards."""
    state = threads._number
    before = state.chosen, state.default, state.blocks
    yield state
    state.chosen, state.default, state.blocks = before
    state.settle()


@pytest.fixture
def forgotten(number, monkeypatch):
    """As at the start of a process with no variable set, on a computer of five processors."""
    for name in ("CHAINS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "processors", lambda: 5)
    monkeypatch.setattr(threads, "_is_worker", lambda: False)
    number.chosen = number.default = number.current = None
    return number


# Choosing


def test_a_number_that_is_set_is_there():
    for n in (3, 1, np.int64(2), MOST):
        set_num_threads(n)
        assert get_num_threads() == n
        assert type(get_num_threads()) is int


@pytest.mark.parametrize("n", [0, -1, True, False, 1.5, 2.0, "2", None, np.float64(2), [2], MOST + 1, 10**30])
@pytest.mark.parametrize("function", [set_num_threads, num_threads])
def test_other_numbers_are_refused(n, function):
    set_num_threads(2)
    kind = ValueError if isinstance(n, int) and not isinstance(n, bool) else TypeError
    with pytest.raises(kind, match=r"`n` \(=.*\) must be a (positive )?whole number"):
        function(n)
    assert get_num_threads() == 2


def test_blocks():
    set_num_threads(4)
    with num_threads(2):
        assert get_num_threads() == 2
        with num_threads(3):
            assert get_num_threads() == 3
        assert get_num_threads() == 2
    assert get_num_threads() == 4


def test_a_number_that_is_set_within_a_block_ends_with_it():
    set_num_threads(4)
    with num_threads(2):
        set_num_threads(3)
        assert get_num_threads() == 3
    assert get_num_threads() == 4


def test_a_block_that_fails_ends_too():
    set_num_threads(4)
    with pytest.raises(KeyError), num_threads(2):
        raise KeyError
    assert get_num_threads() == 4


def test_blocks_may_overlap():
    """As in two Python threads: each takes back its own."""
    set_num_threads(4)
    first, second = num_threads(1), num_threads(2)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert get_num_threads() == 2
    second.__exit__(None, None, None)
    assert get_num_threads() == 4


# By default


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, 5),
        ({"CHAINS_NUM_THREADS": "3"}, 3),
        ({"CHAINS_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"}, 3),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "4,2"}, 4),
        ({"OMP_NUM_THREADS": " 4 , 2"}, 4),
        ({"OMP_NUM_THREADS": "1000"}, MOST),
        ({"OMP_NUM_THREADS": "0"}, 5),
        ({"OMP_NUM_THREADS": "-2"}, 5),
        ({"OMP_NUM_THREADS": "many"}, 5),
        ({"OMP_NUM_THREADS": ""}, 5),
        ({"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}, 5),  # which speak of NumPy's library
    ],
)
def test_variables(variables, wanted, forgotten, monkeypatch):
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert get_num_threads() == wanted


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "", "100000", " 2", "²"])
def test_nonsense_in_our_own_variable_is_refused(text, forgotten, monkeypatch):
    monkeypatch.setenv("CHAINS_NUM_THREADS", text)
    with pytest.raises(ValueError, match=r"CHAINS_NUM_THREADS \(=.*\) must be a whole number from 1 to 64"):
        get_num_threads()
    set_num_threads(2)  # who chooses needs no variable
    assert get_num_threads() == 2
    set_num_threads(1)


def test_large_computers(forgotten, monkeypatch):
    monkeypatch.setattr(threads, "processors", lambda: 256)
    assert get_num_threads() == MOST


def test_variables_are_read_once_and_at_first_use(forgotten, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert get_num_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert get_num_threads() == 2
    code = "import chains, os; os.environ['CHAINS_NUM_THREADS'] = '7'; print(chains.get_num_threads())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "7\n"


def test_a_worker_of_multiprocessing_has_one(forgotten, monkeypatch):
    monkeypatch.setattr(threads, "_is_worker", lambda: True)
    assert get_num_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    forgotten.default = forgotten.current = None
    assert get_num_threads() == 2


# Programs that are bound follow


pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import NativeBackend  # noqa: E402
from chains.backends.native.following import KEPT_NUMBERS, FollowingBinding  # noqa: E402

NUMBERS = (1, 2, 3)


@pytest.fixture
def eager(monkeypatch):
    """Threads are used for any amount of work, also to split products."""
    monkeypatch.setattr("chains.backends.native.binding.THREADED_WORK", 1)
    monkeypatch.setattr("chains.backends.native.backend.SPLIT_WORK", 1)


def problem(batch, dtype=np.float32):
    """A network of its own, so that nothing is bound before."""
    net, rng = Chain(Dense(130, 48, tanh), Dense(48, 5), backend="native"), np.random.default_rng(0)
    net.runner = NativeBackend()
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
    binding = net.runner.bind(net.program(), 100, {"x": x})
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
    program, runner = net.program(), net.runner
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
    import gc

    from chains.backends.native.following import _followers

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


# threadpoolctl


def test_threadpoolctl_sees_and_limits():
    tool = pytest.importorskip("threadpoolctl")
    set_num_threads(3)
    ours = [info for info in tool.threadpool_info() if info["user_api"] == "chains"]
    assert [info["num_threads"] for info in ours] == [3]
    with tool.threadpool_limits(1):
        assert get_num_threads() == 1
        with tool.threadpool_limits(2, user_api="chains"):
            assert get_num_threads() == 2
        assert get_num_threads() == 1
    assert get_num_threads() == 3
    with tool.threadpool_limits(1, user_api="blas"):
        assert get_num_threads() == 3
    with tool.threadpool_limits(1000):
        assert get_num_threads() == MOST
    assert get_num_threads() == 3


def test_a_limit_that_ends_leaves_the_default_a_default(forgotten):
    tool = pytest.importorskip("threadpoolctl")
    with tool.threadpool_limits(1):
        assert get_num_threads() == 1
    assert get_num_threads() == 5
    assert forgotten.chosen is None


# Process pools

POOLS = '''
import json, multiprocessing, os, sys, threading
import numpy as np
from chains import Chain, Dense, SquaredLoss, get_num_threads, set_num_threads, tanh

NET = Chain(Dense(64, 256, tanh), Dense(256, 64), backend="native")

def task(k):
    """How many threads a process says it uses, and how many it has started."""
    x, t = np.full((300, 64), 0.1 * k, np.float32), np.zeros((300, 64), np.float32)
    for _ in range(3):
        NET.value_and_grad(NET.init(seed=0), x, t, SquaredLoss())
    alive = {int(each) for each in os.listdir("/proc/self/task")}  # as the system counts them
    workers = [thread for thread in threading.enumerate() if thread.name.startswith("chains-worker")]
    assert {thread.native_id for thread in workers} <= alive
    return get_num_threads(), len(workers), os.getpid()

def run(kind, used_before):
    parent = task(1) if used_before else None
    if kind == "loky":
        import joblib
        found = joblib.Parallel(n_jobs=2)(joblib.delayed(task)(k) for k in range(4))
    else:
        with multiprocessing.get_context(kind).Pool(2) as pool:
            found = pool.map(task, range(4), chunksize=1)
    print(json.dumps([parent, found]))

if __name__ == "__main__":
    if len(sys.argv) > 3:
        set_num_threads(int(sys.argv[3]))
    run(sys.argv[1], sys.argv[2] == "used")
'''


def in_pool(tmp_path, *arguments, **variables):
    script = tmp_path / "pools.py"
    script.write_text(POOLS)
    free = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "CHAINS_NUM_THREADS", "LOKY_MAX_CPU_COUNT")}
    path = str(Path(chains.__file__).parents[1])
    ignored = ["-W", "ignore::DeprecationWarning"]  # multiprocessing's, of forks where there are threads
    done = subprocess.run(
        [sys.executable, *ignored, str(script), *arguments],
        capture_output=True, text=True, check=False, timeout=300, env=free | {"PYTHONPATH": path} | variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


linux = pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")


@linux
@pytest.mark.parametrize(
    ("kind", "used"), [("spawn", "used"), ("fork", "used"), ("fork", "fresh"), ("forkserver", "fresh"), ("loky", "used")]
)
def test_workers_of_process_pools_have_one_thread_each(kind, used, tmp_path):
    """Not as many as there are processors, whether or not their parent has threads."""
    if kind == "loky":
        pytest.importorskip("joblib")
    parent, found = in_pool(tmp_path, kind, used)
    most = threads.processors()
    if parent:
        assert parent[:2] == [most, most - 1]
    assert all(number == max(1, most // 2 if kind == "loky" else 1) for number, *_ in found)  # joblib divides processors
    assert all(started == number - 1 for number, started, *_ in found)
    assert len({process for *_, process in found}) <= 2


@linux
@pytest.mark.parametrize(("kind", "name"), [("spawn", "CHAINS_NUM_THREADS"), ("fork", "OMP_NUM_THREADS")])
def test_workers_take_what_is_asked_for(kind, name, tmp_path):
    _, found = in_pool(tmp_path, kind, "used", **{name: "3"})
    assert all(each[:2] == [3, 2] for each in found)


@linux
def test_a_number_that_was_chosen_goes_along_with_a_fork(tmp_path):
    parent, found = in_pool(tmp_path, "fork", "used", "3")
    assert parent[:2] == [3, 2]
    assert all(each[:2] == [3, 2] for each in found)
