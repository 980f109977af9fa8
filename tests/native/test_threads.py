"""Threads: the same bits each time, calls from several Python threads, memory that stays flat."""

from __future__ import annotations

import gc
import json
import mmap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from chains import Chain, Dense, tanh
from chains.backends import Executable
from tests import harness

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import NativeBackend, memory_plan
from chains.backends.native.memory_plan import (
    GAP_BYTES,
    MAX_THREADS_PER_PROCESSOR,
    MIN_THREAD_OPERATIONS,
    MemoryPlan,
    suitable_threads,
)
from tests.native.support import (
    LINUX,
    all_finished,
    assert_equal_results,
    floats,
    gradient_program,
    in_process,
    make_net,
    map_program,
    native,
    random_arrays,
    run_on,
    small_program,
)


@floats
def test_thread_counts_agree_to_rounding(kind, eager):
    program = small_program(kind)
    for batch in (1, 5, 47, 48, 49, 95, 96, 97, 1000, 4001):
        arrays = random_arrays(program, batch)
        one = run_on(native(1), program, batch, arrays)
        for threads in (2, 3, 8, 16, 64):
            several = run_on(native(threads), program, batch, arrays)
            assert_equal_results(several, one, kind, f"batch {batch}, {threads} threads")


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_bits_each_time(threads):
    program, batch = small_program(), 5003
    arrays = random_arrays(program, batch)
    assert native(threads).bind(program, batch, {}).threads == threads
    first = run_on(native(threads), program, batch, arrays)
    for _ in range(20):
        harness.assert_same_bits(run_on(native(threads), program, batch, arrays), first)


def test_small_work_stays_on_one_thread():
    assert native(2).bind(small_program(), 1, {}).threads == 1
    assert native(2).bind(small_program(), 10, {}).threads == 1
    assert native(2).bind(small_program(), 10_000, {}).threads == 2


def test_more_threads_come_with_more_work(monkeypatch):
    """As many as take the least time: operations / n, and for each thread an eighth of a hand-over."""
    monkeypatch.setattr(memory_plan, "processors", lambda: 64)
    ratios = {0.5: 1, 1.9: 1, 2: 2, 8: 8, 32: 16, 200: 40, 5000: 64}
    assert {ratio: suitable_threads(int(ratio * MIN_THREAD_OPERATIONS), 64) for ratio in ratios} == ratios
    assert suitable_threads(5000 * MIN_THREAD_OPERATIONS, 8) == 8
    monkeypatch.setattr(memory_plan, "processors", lambda: 2)
    assert suitable_threads(5000 * MIN_THREAD_OPERATIONS, 64) == 2 * MAX_THREADS_PER_PROCESSOR


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_from_several_python_threads(threads):
    """Different programs and one program, several batch sizes, all at once."""
    runner, nets = native(threads), [make_net(), Chain(Dense(4, 9, "gelu"), Dense(9, 3))]
    jobs = []
    for k in range(4):
        program = gradient_program(nets[k % 2], "float32") if k < 2 else jobs[k - 2][0]
        batch = [3, 700, 2500, 64][k]
        jobs.append((program, batch, random_arrays(program, batch, k)))
    wanted = [run_on(runner, *job) for job in jobs]
    barrier = threading.Barrier(4)

    def work(k):
        program, batch, arrays = jobs[k]
        executable, own = Executable(runner, program), {name: array.copy() for name, array in arrays.items()}
        barrier.wait()
        for _ in range(300):
            own["g"][...] = np.nan
            executable(batch, own)
            for name in ("g", "value"):
                assert own[name].tobytes() == wanted[k][name].tobytes()
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_one_net_from_several_python_threads(eager):
    net = Chain(Dense(4, 32, tanh), Dense(32, 4), backend="native")
    x, p = np.random.default_rng(0).normal(size=(333, 4)), net.init()
    wanted = net(x, p).tobytes()
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: all(net(x, p).tobytes() == wanted for _ in range(200)), range(4)))


def first_use():
    """Several threads are the first to use the worker threads, all at once."""
    program, barrier = small_program(), threading.Barrier(8)
    arrays = random_arrays(program, 2000)
    native(2).compile(program)

    def work(_):
        barrier.wait()
        binding = native(2).bind(program, 2000, {name: array.copy() for name, array in arrays.items()})
        for _ in range(50):
            binding()
        return binding.arrays["g"].tobytes()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(8)))) == 1
    print(json.dumps("done"))


def test_the_first_use_from_several_python_threads():
    """Nothing that was made twice may be dropped while another thread runs it."""
    assert all_finished([in_process(first_use, popen=True) for _ in range(2)]) == ["done"] * 2


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def many_calls():
    """100,000 calls from four threads; prints how much the resident memory grew after the first 20,000."""
    net = Chain(Dense(4, 32, tanh), Dense(32, 4), backend="native")
    x, p = np.random.default_rng(0).normal(size=(8, 4)).astype("f4"), net.init()
    big = small_program()
    arrays = random_arrays(big, 2000)
    wanted = net(x, p).tobytes()
    native(2).bind(big, 2000, {})()

    def work(calls):
        binding = native(2).bind(big, 2000, {name: array.copy() for name, array in arrays.items()})
        for k in range(calls):
            y = net(x, p)
            if k % 50 == 0:
                binding()
                assert y.tobytes() == wanted

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [5_000] * 4))
        before = resident()
        list(pool.map(work, [20_000] * 4))
    print(json.dumps(resident() - before))


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_memory_is_flat_over_many_calls():
    assert in_process(many_calls) < 2 << 20


def binding_many():
    """Prints how much the resident memory grew by binding a program again and again, and by compiling programs and
    dropping them."""
    program = small_program()
    arrays = random_arrays(program, 2000)

    def bind(count):
        for _ in range(count):
            native(2).bind(program, 2000, arrays)()

    def compile_(count):
        for k in range(count):
            small = map_program("float32", lambda x, k=k: x * (k % 10 + 0.5))
            run_on(NativeBackend(), small, 3, random_arrays(small, 3))

    growth = []
    for work, warm, count in ((bind, 200, 2000), (compile_, 100, 300)):
        work(warm)
        gc.collect()
        before = resident()
        work(count)
        gc.collect()
        growth.append(resident() - before)
    print(json.dumps(growth))


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_memory_is_flat_over_many_bindings_and_programs():
    bound, compiled = in_process(binding_many)
    assert bound < 2 << 20
    assert compiled < 300 * 16 << 10  # LLVM keeps some 9 kB of each


def test_what_threads_write_is_not_adjacent():
    """Processors fetch the lines that follow those in use: another thread would lose them."""
    compiled = native(2).compile(gradient_program(Chain(Dense(4, 32, tanh), Dense(32, 4)), "float32"))
    plan = MemoryPlan(compiled.signature, 200_000, 2, compiled.work)
    assert plan.threads == 2
    sizes = [compiled.signature.table[number].nbytes for number in compiled.signature.sums]
    pairs = [(*plan.tiles, compiled.signature.tile_bytes), *zip(*plan.block_sums, sizes, strict=True)]
    assert all(second - first >= nbytes + GAP_BYTES for first, second, nbytes in pairs)
    assert MemoryPlan(compiled.signature, 200_000, 1, compiled.work).nbytes < plan.nbytes / 2
