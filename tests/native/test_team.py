"""Threads that stay together through the steps of a loop: the results, and teams that do not come together, or part."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from chains import SGD, Adam, L2Penalty
from chains.backends.numpy.backend import NumpyBackend
from tests.harness import CLIPPED, OPTIMIZERS

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import binding as native_module
from chains.backends.native import feed as native_feed
from chains.backends.native.runtime.shared import WorkerPool, worker_pool
from chains.backends.native.runtime.workers import DISBANDED, WORKER_POOL
from tests.native import team
from tests.native.support import EMULATED, INSTRUCTIONS, Fenced, Guarded, assert_equal_results, floats, native
from tests.native.team import KINDS, SPLIT, TILED, assert_same_bits, fed, problem, program_of, states, training, training_of

MEETINGS = WORKER_POOL.size  # of the first thread
BUSY, LATE, TEAM = (WORKER_POOL.positions[name] for name in ("busy", "late", "team_state"))


@pytest.mark.few(3)
@floats
@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize("name", SPLIT)
def test_split_products_equal_numpy_and_have_the_same_bits_alone(name, threads, kind, many):
    net = SPLIT[name]
    program = program_of(net, SGD(0.01), kind)
    for batch in (2 if "statistics" in name else 1, 3, 10, 15):
        sources, order = problem(net, batch, kind)
        arrays = states(program, batch)
        runner = native(threads)
        assert 2 <= runner.compile(program, batch).signature.parts <= threads
        alone = fed(runner, program, batch, arrays, sources, order)
        for _ in range(3):
            assert_same_bits(fed(runner, program, batch, arrays, sources, order, together=True), alone, f"batch {batch}")
        assert_equal_results(alone, fed(NumpyBackend(), program, batch, arrays, sources, order), kind, name, factor=100)


@pytest.mark.few(2)
@pytest.mark.parametrize("simd", INSTRUCTIONS)
@pytest.mark.parametrize("name", [*SPLIT, *(f"tiled {name}" for name in TILED)])
def test_every_width_of_vectors(name, simd, many):
    net = {**SPLIT, **{f"tiled {name}": net for name, net in TILED.items()}}[name]
    program, batch = program_of(net, Adam(0.01)), 101 if name.startswith("tiled") else 7
    sources, order = problem(net, batch, "float32", steps=9)
    arrays = states(program, batch)
    alone = fed(native(2, simd), program, batch, arrays, sources, order)
    assert_same_bits(fed(native(2, simd), program, batch, arrays, sources, order, together=True), alone)
    assert_equal_results(alone, fed(NumpyBackend(), program, batch, arrays, sources, order), np.float32, factor=100)


@pytest.mark.few(1)
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, *CLIPPED])
@pytest.mark.parametrize("name", ["deep", "statistics of the batch"])
def test_optimizers_of_split_products(name, optimizer, many):
    net = SPLIT[name]
    program = program_of(net, {**OPTIMIZERS, **CLIPPED}[optimizer], penalty=L2Penalty(0.01))
    sources, order = problem(net, 7, "float32", steps=12)
    arrays = states(program, 7)
    alone = fed(native(3), program, 7, arrays, sources, order)
    assert_same_bits(fed(native(3), program, 7, arrays, sources, order, together=True), alone)
    one = fed(native(1), program, 7, arrays, sources, order)
    assert_equal_results(alone, one, np.float32, factor=30)


@pytest.mark.parametrize("kind", ["float32", "float64", "uint8"])
def test_samples_that_are_gathered_are_not_gathered_too_early(kind, many):
    """Other threads may still read those of the step before."""
    net = SPLIT["narrow"]
    program = program_of(net, SGD(0.1), "float32")
    sources, order = problem(net, 10, "float32", steps=300)
    sources["x"] = (40 * abs(sources["x"])).astype(kind)
    arrays = states(program, 10)
    arrays["p"] = arrays["p"] / 40
    alone = fed(native(2), program, 10, arrays, sources, order)
    for _ in range(5):
        assert_same_bits(fed(native(2), program, 10, arrays, sources, order, together=True), alone)


@pytest.mark.few(2)
@floats
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Adam, clipped", "RMSProp"])
@pytest.mark.parametrize("name", TILED)
def test_tiles_have_the_same_bits_by_a_team(name, optimizer, kind, many):
    net = TILED[name]
    optimizers = {**OPTIMIZERS, "Adam, clipped": Adam(0.01, clip_norm=0.5)}
    program = program_of(net, optimizers[optimizer], kind, L2Penalty(0.01))
    for batch, threads in ((16, 2), (100, 2), (200, 2), (201, 3), (777, 4)):
        sources, order = problem(net, batch, kind, steps=9)
        arrays = states(program, batch)
        alone = fed(native(threads), program, batch, arrays, sources, order)
        for _ in range(2):
            together = fed(native(threads), program, batch, arrays, sources, order, together=True)
            assert_same_bits(together, alone, f"batch {batch}, {threads} threads")
        one = fed(native(1), program, batch, arrays, sources, order)
        assert_equal_results(alone, one, kind, f"batch {batch}", factor=30)


@pytest.mark.few(2)
@pytest.mark.parametrize("make", [Fenced, lambda: Guarded(True), lambda: Guarded(False)], ids=["fences", "behind", "before"])
@pytest.mark.parametrize("name", ["narrow", "deep", "without biases"])
def test_teams_stay_within_their_buffers(name, make, many):
    net, make = SPLIT[name], make()
    program = program_of(net, SGD(0.01))
    for batch in (1, 9, 15, 40):
        sources, order = problem(net, batch, "float32", steps=6)
        fenced = {name: make(a.shape, a.dtype, a.dtype.itemsize) for name, a in sources.items()}
        for key, array in sources.items():
            fenced[key][...] = array
        numbers = make(order.shape, order.dtype, order.dtype.itemsize)
        numbers[...] = order
        arrays = states(program, batch)
        wanted = fed(native(3), program, batch, arrays, sources, order)
        assert_same_bits(fed(native(3), program, batch, arrays, fenced, numbers, True, make), wanted, f"batch {batch}")
        if isinstance(make, Fenced):
            make.check()


@pytest.mark.skipif(EMULATED, reason="an emulator takes longer for a part of a step than threads of a team wait")
@KINDS
def test_a_team_comes_together(net, many):
    """On a busy machine not always, and not for all of the steps."""
    run, words = training_of(net, steps=50), worker_pool()._words
    wanted = run(False)
    for _ in range(1000):
        words[MEETINGS] = 0
        assert_same_bits(run(True), wanted)
        assert words[TEAM] == DISBANDED
        if words[MEETINGS] > 50:
            return
    raise AssertionError("there never was a team")


class Empty(WorkerPool):
    """Without workers, until somebody hires them."""

    def ensure(self, threads):
        pass

    def hire(self):
        super().ensure(2)


def with_pool(monkeypatch, pool):
    for place in (native_module, native_feed, team):
        monkeypatch.setattr(place, "worker_pool", lambda: pool)
    monkeypatch.setattr(native_feed, "PATIENCE_PAUSES", 10)


@KINDS
def test_a_team_may_come_together_later(net, many, monkeypatch):
    """The first steps are done alone, since there is no worker yet."""
    run = training_of(net, steps=20_000)
    wanted = run(False)
    for _ in range(50):  # on a busy machine it may come too late
        empty = Empty()
        with_pool(monkeypatch, empty)
        thread = threading.Timer(0.001, empty.hire)
        thread.start()
        assert_same_bits(run(True), wanted)
        thread.join()
        assert (empty._words[[TEAM, BUSY]] == [DISBANDED, 0]).all()
        if empty._words[MEETINGS]:
            return
    raise AssertionError("there never was a team")


@KINDS
@pytest.mark.parametrize("steps", [1, 3, 4, 100])
def test_workers_that_never_come_are_not_needed(steps, net, many, monkeypatch):
    run, empty = training_of(net, steps=steps), Empty()
    wanted = run(False)
    with_pool(monkeypatch, empty)
    assert_same_bits(run(True), wanted)
    assert (empty._words[[MEETINGS, BUSY, TEAM]] == [0, 0, DISBANDED]).all()


@KINDS
def test_a_pool_that_is_busy_is_not_waited_for(net, many):
    run, words = training_of(net), worker_pool()._words
    wanted = run(True)
    words[MEETINGS] = 0
    words[BUSY] = 1
    try:
        assert_same_bits(run(True), wanted)
    finally:
        words[BUSY] = 0
    assert words[MEETINGS] == 0
    assert_same_bits(run(True), wanted)


@KINDS
def test_a_team_that_is_late_parts(net, many):
    """The steps that remain are done without it, with the same results; and then there can be one again."""
    run, words, stop = training_of(net, steps=6000), worker_pool()._words, threading.Event()
    wanted = run(False)

    def disturb():
        while not stop.is_set():
            words[LATE] = 1
            time.sleep(0.001)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(100):  # on a busy machine it may be disturbed too late
            words[MEETINGS] = 0
            assert_same_bits(run(True), wanted)
            if words[MEETINGS] < 6000:
                break
        else:
            raise AssertionError("it never parted")
    finally:
        stop.set()
        thread.join()
    assert_same_bits(run(True), wanted)


def test_several_callers_at_once(many):
    """One has the team; the others do their steps alone."""
    runs = [training(net, optimizer) for net in (SPLIT["narrow"], SPLIT["deep"]) for optimizer in (SGD(0.01), Adam(0.001))]
    wanted = [run(False) for run in runs]
    results = [None] * len(runs)

    def work(k):
        results[k] = [runs[k](True) for _ in range(4)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for several, one in zip(results, wanted, strict=True):
        for result in several:
            assert_same_bits(result, one)


@pytest.mark.parametrize("patience", [0, 1 << 30])
def test_steps_end_at_a_loss_that_is_not_finite_with_a_team_too(patience, many, monkeypatch):
    monkeypatch.setattr(native_feed, "PATIENCE_PAUSES", patience)
    net = SPLIT["narrow"]
    program, runner = program_of(net, SGD(0.01)), native(2)
    sources, order = problem(net, 10, "float32")
    sources["t"][order[73]] = np.inf
    arrays = states(program, 10)
    first = next(k for k in range(40) if order[73] in order[10 * k : 10 * k + 10])
    results = []
    for together in (False, True):
        own = {name: array.copy() for name, array in arrays.items()}
        feed = runner.feed(runner.bind(program, 10, own), sources, order)
        values = np.full(40, -7.0)
        assert feed._run(0, values, together) == first + 1
        assert (values[first + 1 :] == -7.0).all()
        results.append(own["p"].tobytes())
    assert results[0] == results[1]
