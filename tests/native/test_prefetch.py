"""The samples of the next step are asked for while this one is computed."""

from __future__ import annotations

import ctypes
import itertools
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from chains import SGD, Adam, Chain, Dense, SquaredLoss, tanh, σ

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native.backend import NativeBackend
from chains.backends.native.compiler import compile_program
from chains.backends.native.feed import row_shares
from chains.backends.native.kernels import samples
from chains.backends.native.llvm.struct import ARGUMENTS
from chains.backends.native.llvm.target import Processor, processor
from chains.backends.native.runtime.epoch import JOB
from chains.backends.native.runtime.workers import WORKER_POOL_WORDS

LINE = samples.CACHE_LINE_BYTES
LEFT, NEXT, ROWS, NUMBERS = (samples.PREFETCH.positions[name] for name in ("left", "next", "rows", "numbers"))


@pytest.mark.parametrize(("width", "batch"), [(784, 10), (130, 3), (1000, 24)])
def test_a_step_goes_through_all_the_lines_of_the_next_rows(width, batch):
    program = Chain(Dense(width, 30, σ), Dense(30, 4)).program(SquaredLoss(), SGD(0.1))
    binding = NativeBackend(threads=1).bind(program, batch, {})
    for array in binding.arrays.values():
        array[...] = 0
    data, numbers = np.zeros((50, width), np.float32), np.array([7, 49, 0, 3] * 6)[:batch]
    lines = -(-width * 4 // LINE)
    words = {"rows": batch, "numbers": numbers.ctypes.data, "data": data.ctypes.data, "nbytes": 4 * width, "lines": lines}
    samples.PREFETCH.write(binding.prefetch[0], **words)
    runs = 0
    while binding.prefetch[0, ROWS] or binding.prefetch[0, LEFT] > 0:
        binding.run()
        runs += 1
        assert runs < 5
    assert runs == 1 or width != 784  # mnist's rows are fetched by the blocks of one step
    assert binding.prefetch[0, NUMBERS] == numbers.ctypes.data + numbers.nbytes
    last = data[numbers[-1]].ctypes.data
    assert 4 * width <= binding.prefetch[0, NEXT] - last < 4 * width + LINE * (samples.LINES_AT_ONCE + 1)


def test_nothing_is_asked_for_where_samples_are_small():
    programs = [Chain(Dense(n, 8)).program(SquaredLoss(), SGD(0.1)) for n in (100, 200)]
    code = [compile_program(program, processor()).text for program in programs]
    fetch = re.compile(r"call void @llvm\.prefetch\.p0\(ptr \S+, i32 0,")
    assert [bool(fetch.search(text)) for text in code] == [False, True]


def test_what_a_thread_is_about_to_change_is_asked_for_to_be_written():
    small, large = (program_of_steps(inputs) for inputs in (32, 300))
    assert [asked(text, to_write=1) for text in (small, large)] == [1, 0]  # parameters that all read; moments nobody else has


def test_threads_ask_for_what_they_exchange():
    network = Chain(Dense(784, 30, σ), Dense(30, 10, σ)), Chain(Dense(784, 300, σ), Dense(300, 10, σ))
    programs = [net.program(SquaredLoss(), SGD(3.0)) for net in network]
    text, wide = (compile_program(program, processor(), parts=2).text for program in programs)
    assert [asked(text, to_write) for to_write in (1, 0)] == [2, 2]  # a sum of the second thread, a gradient of the first
    assert [asked(wide, to_write) for to_write in (1, 0)] == [0, 0]


def test_weights_beyond_the_first_cache_are_asked_for_before_they_are_updated():
    programs = [Chain(Dense(n, 30, σ), Dense(30, 10, σ)).program(SquaredLoss(), SGD(3.0)) for n in (784, 200)]
    avx2 = Processor("avx2", 32, 16, "haswell", "")
    counts = [compile_program(program, avx2).text.count("i32 1, i32 3, i32 1") for program in programs]
    assert counts[0] > counts[1] == 0


def asked(text, to_write):
    """How many runs of memory a thread of a team asks for between its functions."""
    return text.split("define  void @member(")[1].split("\n}")[0].count(f"i32 {to_write}, i32 3")


def program_of_steps(inputs):
    """The assembly of Adam's steps of a network with so many inputs."""
    return compile_program(Chain(Dense(inputs, 16, tanh), Dense(16, 4)).program(SquaredLoss(), Adam(0.1)), processor()).text


def test_threads_share_the_lines_of_every_sample():
    source = np.zeros((5, 784), np.float32)
    for count in (1, 2, 3, 4):
        found = row_shares(source, count)
        assert [nbytes for _, nbytes, _ in found] == [4 * 784] * count
        assert sum(lines for *_, lines in found) == 49
        assert found[0][0] == source.ctypes.data
        assert all(end == begin + LINE * lines for (begin, _, lines), (end, *_) in itertools.pairwise(found))


def test_each_thread_of_a_team_fetches_its_share(monkeypatch):
    """The team are threads of this test: workers do not always come on a busy machine, and part when one is late."""
    monkeypatch.setattr("chains.backends.native.binding.processors", lambda: 2)
    runner, rng = NativeBackend(threads=2), np.random.default_rng(0)
    program = Chain(Dense(784, 30, tanh), Dense(30, 10)).program(SquaredLoss(), SGD(0.1))
    sources = {"x": rng.random((60, 784), np.float32), "t": rng.random((60, 10), np.float32)}
    order = rng.permutation(60)
    binding = runner.bind(program, 10, {"p": np.zeros(23860, np.float32)})
    meetings = np.zeros(WORKER_POOL_WORDS, np.int64)
    ARGUMENTS.write(binding._words, pool=meetings.ctypes.data)
    member = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(binding.native.code.address("member"))
    with ThreadPoolExecutor(1) as other:

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def step(words):
            second = other.submit(member, words, 1)
            member(words, 0)
            second.result()

        feed, values = runner.feed(binding, sources, order), np.zeros(6)
        JOB.write(feed._job, run=ctypes.cast(step, ctypes.c_void_p).value)
        assert feed._run(0, values, True) == 6
    last = sources["x"][order[-1]].ctypes.data
    behind = binding.prefetch[:, NEXT] - (last + LINE * np.array([24, 49]))  # where the shares of a sample end
    assert ((behind >= 0) & (behind < LINE * samples.LINES_AT_ONCE)).all()
    wanted = {"p": np.zeros(23860, np.float32)}
    alone = NativeBackend(threads=1)
    alone.feed(alone.bind(program, 10, wanted), sources, order)(0, values)
    np.testing.assert_allclose(binding.arrays["p"], wanted["p"], atol=1e-6)
