"""Worker threads: they wake as many as are needed, and let the thread that waits for them run."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from pathlib import Path

import pytest

from chains import SGD, Chain, Dense, SquaredLoss, tanh

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")


from chains.backends.native.llvm.struct import PADDED_WORDS
from chains.backends.native.runtime.shared import WorkerPool, runtime, worker_pool
from chains.backends.native.runtime.workers import WORKER_POOL
from tests.native.support import LINUX, native
from tests.waiting import eventually

_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def test_what_different_threads_write_is_in_different_pairs_of_cache_lines():
    written = ("generation", "sleepers", "claim", "finished", "busy", "team_state", "joined")
    assert len({WORKER_POOL.positions[name] // PADDED_WORDS for name in written}) == len(written)


def wait_for_sleep(made):
    assert eventually(lambda: made._words[WORKER_POOL.positions["sleepers"]] >= made.workers)


kept: list[WorkerPool] = []  # workers go on reading the words of their pool


@pytest.fixture
def sleeping():
    """A pool of its own, and its five workers, which sleep."""
    made, others = WorkerPool(), set(threading.enumerate())
    kept.append(made)
    made.ensure(6)
    wait_for_sleep(made)
    return made, [thread for thread in threading.enumerate() if thread not in others]


def switches(workers):
    """How often these threads have gone to sleep."""
    texts = [(Path("/proc/self/task") / str(worker.native_id) / "status").read_text() for worker in workers]
    return sum(int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", text, re.MULTILINE)[1]) for text in texts)


@pytest.mark.skipif(not LINUX, reason="elsewhere workers wake by themselves")
def test_a_task_wakes_no_more_workers_than_it_has_parts(sleeping):
    made, workers = sleeping
    done = []
    function = _TASK(lambda _, part: done.append(part))
    parallel = _PARALLEL(runtime().address("parallel"))
    before, tasks = switches(workers), 20
    for _ in range(tasks):
        parallel(made.address, ctypes.cast(function, ctypes.c_void_p), None, 1)
        time.sleep(0.01)  # until those that were woken have noticed
        wait_for_sleep(made)
    assert done == tasks * [0]
    assert switches(workers) - before < 3 * tasks  # each of five, were all woken, and each at least once


@pytest.fixture
def one_processor():
    """All threads of the process on one processor, as the system may put them where others are busy."""
    worker_pool().ensure(2)
    threads = {int(thread): os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")}
    for thread, allowed in threads.items():
        os.sched_setaffinity(thread, {min(allowed)})
    yield
    for thread, allowed in threads.items():
        os.sched_setaffinity(thread, allowed)


def seconds(work):
    """Processor time, which does not depend on what else the computer does."""
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.skipif(not LINUX, reason="cannot say which processor a thread is to run on")
def test_a_worker_on_the_callers_processor_does_not_stop_it(one_processor, eager):
    """It once looked for its next task for fifty microseconds at every call, while the caller could not run."""
    program, batch, calls = Chain(Dense(4, 32, tanh), Dense(32, 4)).program(SquaredLoss(), SGD(1e-3)), 100, 2000
    binding = native(2).bind(program, batch, {})
    for array in binding.arrays.values():
        array[...] = 0
    assert binding.threads == 2

    def run():
        for _ in range(calls):
            binding.run()

    together, alone = [], []
    for _ in range(5):
        together.append(seconds(run))
        binding.set_alone(True)
        alone.append(seconds(run))
        binding.set_alone(False)
    assert min(together) < 1.5 * min(alone)
