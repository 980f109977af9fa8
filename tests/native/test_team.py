"""Threads that stay together through the steps of a loop, and products split among them."""

from __future__ import annotations

import ctypes
import sys
import threading
import time

import numpy as np
import pytest

from chains import SGD, Adam, BatchNorm, Chain, Dense, Dropout, L2Penalty, SquaredLoss, relu, sigmoid, tanh
from chains.backends.numpy.backend import NumpyBackend
from tests.harness import CLIPPED, OPTIMIZERS

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import backend as native_backend
from chains.backends.native import binding as native_module
from chains.backends.native import feed as native_feed
from chains.backends.native.driver import ARGUMENTS
from chains.backends.native.llvm.target import processor
from chains.backends.native.plan import row_partition as split_module
from chains.backends.native.plan.barriers import Work, meetings
from chains.backends.native.plan.schedule import Blueprint
from chains.backends.native.plan.segments import Step
from chains.backends.native.runtime.epoch import JOB
from chains.backends.native.runtime.shared import Pool, pool
from chains.backends.native.runtime.team import DISBANDED
from chains.backends.native.runtime.thread_trial import CALM, EVERY, LEAST, LONGEST, Pace
from chains.backends.native.runtime.workers import POOL
from chains.expr import trace
from chains.program.operations import Map
from chains.program.view import Buffer, View, c_strides
from tests.native.support import INSTRUCTIONS, Fenced, Guarded, assert_equal_results, floats, native, random_arrays

MEETINGS = POOL.size  # of the first thread
BUSY, LATE, TEAM = (POOL.positions[name] for name in ("busy", "late", "team_state"))

SPLIT = {
    "narrow": Chain(Dense(784, 30, sigmoid), Dense(30, 10, sigmoid)),
    "deep": Chain(Dense(130, 120, relu), Dense(120, 101, tanh), Dense(101, 97, tanh), Dense(97, 3)),
    "without biases": Chain(Dense(150, 130, tanh, bias=False), Dense(130, 64, bias=False)),
    "statistics of the batch": Chain(Dense(300, 40), BatchNorm(40), Dense(40, 5, tanh)),
    "dropout": Chain(Dense(200, 90, relu), Dropout(0.4), Dense(90, 7)),
}
TILED = {
    "three layers": Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4)),
    "statistics of the batch": Chain(Dense(9, 21), BatchNorm(21), Dense(21, 17, tanh), BatchNorm(17), Dense(17, 3)),
    "dropout": Chain(Dense(7, 50, relu), Dropout(0.4), Dense(50, 3)),
}


@pytest.fixture
def many(monkeypatch):
    """As if there were four processors, and any amount of work were worth them."""
    monkeypatch.setattr(native_module, "processors", lambda: 4)
    monkeypatch.setattr(native_module, "THREADED_WORK", 1)
    monkeypatch.setattr(native_backend, "SPLIT_WORK", 1)
    monkeypatch.setattr(native_feed, "TEAM_STEPS", 1)
    monkeypatch.setattr(native_feed, "PATIENCE", 1 << 30)


def fed(runner, program, batch, arrays, sources, order, together=False, make=None):
    """The values of steps on batches of data sets, and what they make of the states."""
    own = {}
    for name, array in arrays.items():
        own[name] = make(array.shape, array.dtype, array.dtype.itemsize) if make else array.copy()
        own[name][...] = array
    scratch = make((runner.scratch_bytes(program, batch),), np.uint8, 64) if make else None
    binding = runner.bind(program, batch, own, scratch)
    values = np.full(len(order) // batch, np.nan)
    feed = runner.feed(binding, sources, order)
    if isinstance(runner, NumpyBackend):
        feed(0, values)
    else:
        pool().ensure(binding.threads)
        assert feed._run(0, values, together) == len(values)
    return {"values": values, **{name: own[name] for name, b in program.buffers.items() if b.role == "state"}}


def problem(net, batch, kind, steps=40, seed=0):
    rng = np.random.default_rng(seed)
    samples = 3 * batch + 5
    x = 0.3 * rng.normal(size=(samples, *net.input_shape)).astype(kind)
    t = rng.normal(size=(samples, *net.output_shape)).astype(kind)
    order = np.concatenate([rng.permutation(samples)[: 3 * batch] for _ in range(-(-steps // 3))])[: steps * batch]
    return {"x": x, "t": t}, order


def program_of(net, optimizer, kind="float32", penalty=None):
    return net.program(SquaredLoss(), optimizer, penalty=penalty, dtype=kind)


def states(program, batch):
    """Parameters small enough to be trained, and states that might have come from training."""
    arrays = random_arrays(program, batch)
    found = {name: np.array(abs(array)) for name, array in arrays.items() if program.buffers[name].role == "state"}
    return {name: a for name, a in arrays.items() if name in ("random", "value")} | found | {"p": 0.1 * arrays["p"]}


def assert_same_bits(a, b, what=""):
    for name, array in b.items():
        assert a[name].tobytes() == array.tobytes(), f"{name} {what}"


# What is split


def parts_of(net, optimizer=SGD(0.1), parts=2):  # noqa: B008 - it has no state
    """The shapes of the products' operands, and whose they are, where any are split."""
    blueprint = Blueprint(program_of(net, optimizer), processor(), parts)
    steps = [step for segment in blueprint.segments for step in segment.tiled]
    return [(step.owner, *(view.shape for view in step.operation.ins)) for step in steps if step.owner is not None]


def test_products_are_split_along_the_rows_of_their_weights():
    found = parts_of(SPLIT["narrow"])
    rows = [shapes[1][0] for owner, *shapes in found[:2]]
    assert [owner for owner, *_ in found] == [0, 1, 0, 1]
    assert sum(rows) == 784
    assert rows[0] % 16 == 0
    assert 0.85 < rows[0] / rows[1] < 1  # the first thread has other things to do
    assert [shapes[0][0] for _, *shapes in found[2:]] == rows  # of the gradient: x.T @ dy


def test_which_products_are_split():
    assert parts_of(Chain(Dense(30, 30, tanh), Dense(30, 30))) == []  # small ones
    assert parts_of(Chain(Dense(600, 600, tanh), Dense(600, 600))) == []  # large ones see the whole batch
    assert parts_of(SPLIT["narrow"], optimizer=None) == []  # what is run once
    assert len(parts_of(SPLIT["deep"])) == 2 * (3 + 3 + 2)  # layers, their weights' gradients, and their inputs'
    assert {owner for owner, *_ in parts_of(SPLIT["narrow"], parts=4)} == {0, 1, 2, 3}


def test_few_samples_are_split_and_more_shared_out():
    program, runner = program_of(SPLIT["narrow"], SGD(0.1)), native(2)
    for batch, parts in ((1, 1), (10, 2), (split_module.MOST_SAMPLES, 2), (split_module.MOST_SAMPLES + 1, 1)):
        wanted = min(parts, native_module.processors())
        assert runner.compile(program, batch).compiled.parts == wanted, batch
    assert native(1).compile(program, 10).compiled.parts == 1


# When threads meet


def vector(name, length=1000, role="scratch"):
    return View(Buffer(name, role, np.dtype(np.float32), (length,)), (length,), (1,))


def work(out, *ins, thread=0, length=0):
    formula = trace(lambda *xs: sum(xs[1:], xs[0]), len(ins))
    return Work([Step(Map((out,), ins, formula))], thread=thread, length=length)


def test_threads_meet_where_one_needs_what_another_has_done():
    a, b, c, d = (vector(name) for name in "abcd")
    own = work(a, b), work(c, d, thread=1)
    assert meetings([*own, work(b, a), work(d, c, thread=1)]) == (False,) * 4
    assert meetings([*own, work(b, a, c)]) == (False, False, True)
    assert meetings([*own, work(d, b)]) == (False, False, True)  # which the second one still reads
    assert meetings([*own, work(c, b)]) == (False, False, True)  # which the second one may still write


def test_they_meet_as_early_as_they_may():
    a, b, c, d = (vector(name) for name in "abcd")
    # The second one needs what comes first: it should not wait for what the first one does meanwhile.
    assert meetings([work(a, b), work(c, b), work(d, a, thread=1)]) == (False, True, False)


def test_parts_of_the_same_vectors_need_no_meeting():
    a, b, c = (vector(name) for name in "abc")
    scalar = View(Buffer("s", "scratch", np.dtype(np.float32), ()), (), ())
    assert meetings([work(a, b, length=1000), work(c, a, length=1000)]) == (False, False)
    assert meetings([work(a, b, length=1000), work(scalar, a)]) == (False, True)
    assert meetings([work(scalar, b), work(a, scalar, length=1000)]) == (False, True)
    half = View(a.buffer, (500,), (1,), 250)
    assert meetings([work(a, b, length=1000), work(vector("d", 500), half, length=500)]) == (False, True)


def test_sums_are_added_by_those_that_need_them():
    a, b = vector("a"), vector("b")
    value = View(Buffer("value", "output", np.dtype(np.float32), ()), (), ())
    sums = [(a.buffer, 0, 1000, "sum"), (value.buffer, 0, 1, "sum")]
    assert meetings([work(value, value), work(b, a, length=1000)], sums) == (False, False)
    assert meetings([work(b, a)], sums) == (True,)  # the first thread needs what others have added
    assert meetings([work(b, a, value, length=1000)], sums) == (True,)
    assert meetings([work(b, View(a.buffer, (1000,), (1,), 0), length=1000)], [(a.buffer, 0, 2000, "sum")]) == (True,)


def test_columns_of_a_matrix_are_apart():
    matrix = Buffer("m", "scratch", np.dtype(np.float32), SPLIT["narrow"].program(SquaredLoss()).buffers["x"].shape)
    whole = View(matrix, matrix.shape, c_strides(matrix.shape))
    left, right = whole.slice(1, 0, 384), whole.slice(1, 384, 784)
    assert meetings([work(left, left), work(right, right, thread=1)]) == (False, False)
    assert meetings([work(left, left), work(whole, whole, thread=1)]) == (False, True)


# Results


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
        assert 2 <= runner.compile(program, batch).compiled.parts <= threads
        alone = fed(runner, program, batch, arrays, sources, order)
        for _ in range(3):
            assert_same_bits(fed(runner, program, batch, arrays, sources, order, together=True), alone, f"batch {batch}")
        assert_equal_results(alone, fed(NumpyBackend(), program, batch, arrays, sources, order), kind, name, factor=100)


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


# Forced orders: between two meetings the threads go one after another, so that what one needs of another too early is missing


class Turns:
    """The threads of a team, one at a time; `backwards` tells which one goes first."""

    def __init__(self, threads, backwards):
        self._order = list(range(threads))[:: -1 if backwards else 1]
        self._turn, self._interval = 0, 0
        self._changed = threading.Condition()

    def wait(self, thread, interval=0):
        with self._changed:
            self._changed.wait_for(lambda: self._interval == interval and self._order[self._turn] == thread, timeout=60)

    def leave(self):
        """Have the next one go."""
        with self._changed:
            self._turn += 1
            if self._turn == len(self._order):
                self._turn, self._interval = 0, self._interval + 1
            self._changed.notify_all()

    def meet(self, thread):
        interval = self._interval
        self.leave()
        self.wait(thread, interval + 1)


def in_turns(runner, program, batch, arrays, sources, order, backwards):
    """As `fed`, by threads that go one after another."""
    own = {name: array.copy() for name, array in arrays.items()}
    binding = runner.bind(program, batch, own, np.zeros(runner.scratch_bytes(program, batch), np.uint8))
    turns, over = Turns(binding.threads, backwards), []
    meet = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(lambda _, thread, __: turns.meet(thread))
    member = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(runner.compile(program, batch).code.address("member"))
    ARGUMENTS.write(binding._words, meet=ctypes.cast(meet, ctypes.c_void_p).value)
    words = binding.words_address

    def lead(_):
        turns.meet(0)
        member(words, 0)

    def serve(thread):
        turns.wait(thread)
        while True:
            turns.meet(thread)
            if over:
                return turns.leave()
            member(words, thread)

    feed, values = runner.feed(binding, sources, order), np.full(len(order) // batch, np.nan)
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lead)
    JOB.write(feed._job, run=ctypes.cast(run, ctypes.c_void_p).value)
    threads = [threading.Thread(target=serve, args=(thread,)) for thread in range(1, binding.threads)]
    for thread in threads:
        thread.start()
    turns.wait(0)
    feed._run(0, values, False)
    over.append(True)
    turns.meet(0)
    turns.leave()
    for thread in threads:
        thread.join()
    return {"values": values, **{name: own[name] for name, b in program.buffers.items() if b.role == "state"}}


FROZEN = Chain(Dense(2, 70), BatchNorm(70), Dense(70, 300, tanh), Dense(300, 3)).freeze("1.weight", "1.bias")


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Adam-clipped"])
@pytest.mark.parametrize("name", [*SPLIT, "frozen", *(f"tiled {name}" for name in TILED)])
def test_nobody_needs_what_has_not_been_done(name, optimizer, backwards, many):
    net = {**SPLIT, "frozen": FROZEN, **{f"tiled {name}": net for name, net in TILED.items()}}[name]
    program = program_of(net, {**OPTIMIZERS, **CLIPPED}[optimizer])
    for batch, threads in ((7, 2), (12, 3)) if not name.startswith("tiled") else ((100, 2), (300, 4)):
        sources, order = problem(net, batch, "float32", steps=4)
        arrays = states(program, batch)
        alone = fed(native(threads), program, batch, arrays, sources, order)
        assert_same_bits(in_turns(native(threads), program, batch, arrays, sources, order, backwards), alone, f"batch {batch}")


# Teams that do not come together, or part


def training(net, optimizer, threads=2, batch=10, steps=2000):
    program = program_of(net, optimizer)
    sources, order = problem(net, batch, "float32", steps)
    arrays = states(program, batch)
    return lambda together: fed(native(threads), program, batch, arrays, sources, order, together)


KINDS = pytest.mark.parametrize("net", [SPLIT["narrow"], TILED["three layers"]], ids=["split", "tiled"])


def training_of(net, steps=2000):
    return training(net, SGD(0.01), batch=10 if net is SPLIT["narrow"] else 200, steps=steps)


@KINDS
def test_a_team_comes_together(net, many):
    """On a busy machine not always, and not for all of the steps."""
    run, words = training_of(net, steps=50), pool()._words
    wanted = run(False)
    for _ in range(1000):
        words[MEETINGS] = 0
        assert_same_bits(run(True), wanted)
        assert words[TEAM] == DISBANDED
        if words[MEETINGS] > 50:
            return
    raise AssertionError("there never was a team")


class Empty(Pool):
    """Without workers, until somebody hires them."""

    def ensure(self, threads):
        pass

    def hire(self):
        super().ensure(2)


def with_pool(monkeypatch, pool):
    for place in (native_module, native_feed, sys.modules[__name__]):
        monkeypatch.setattr(place, "pool", lambda: pool)
    monkeypatch.setattr(native_feed, "PATIENCE", 10)


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
    run, words = training_of(net), pool()._words
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
    run, words, stop = training_of(net, steps=6000), pool()._words, threading.Event()
    wanted = run(False)

    def disturb():
        while not stop.is_set():
            words[LATE] = 1
            time.sleep(0.001)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(3):
            words[MEETINGS] = 0
            assert_same_bits(run(True), wanted)
            assert words[MEETINGS] < 6000
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
    monkeypatch.setattr(native_feed, "PATIENCE", patience)
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


# How fast they are


def test_the_faster_way_is_taken():
    pace = Pace()
    pace.note(True, 5000, EVERY / 2)
    assert pace.together
    assert pace.trial(5000) == 0
    pace.note(True, 5000, EVERY / 2)
    assert pace.trial(1) == 0  # too few steps for a trial
    count = pace.trial(5000)
    assert 0 < count <= 5000
    pace.note(False, count, 2 * count * EVERY / 10000)  # twice as long
    assert pace.together
    assert pace.trial(5000) == 0
    pace.note(True, 10000, CALM)
    assert pace.trial(5000)
    pace.note(False, count, 0.5 * count * CALM / 10000)
    assert not pace.together
    pace.note(False, 10000, EVERY)
    count = pace.trial(5000)
    pace.note(True, count, 0.99 * count * EVERY / 10000)  # not worth a change
    assert not pace.together


def test_threads_that_do_not_pay_are_tried_less_and_less_often():
    pace, waits = Pace(), []
    for _ in range(8):
        waited = 0.0
        while not pace.trial(10**6):
            pace.note(pace.together, 1000, 0.01)
            waited += 0.01
        waits.append(waited)
        pace.note(not pace.together, 100, 0.0001 if pace.together else 0.01)  # threads are always slower
    assert not pace.together
    assert waits[-1] > LONGEST - 0.1
    assert waits == sorted(waits)


def test_a_trial_takes_a_small_share_of_the_time():
    pace = Pace()
    pace.note(True, LEAST - 1, 80.0)  # long steps: one alone may take twice as long
    assert pace.trial(100) == 0
    pace.note(True, 1, 0.4)
    assert pace.trial(100) == 1


def test_callers_may_share_a_pace():
    pace = Pace()
    pace.note(True, 1000, EVERY)
    counts = [pace.trial(1000), pace.trial(1000)]
    for count in counts:
        pace.note(False, count, 1.0)
    assert pace.together


def test_trials_do_not_change_what_is_done(many, monkeypatch):
    monkeypatch.setattr("chains.backends.native.runtime.thread_trial.EVERY", 1e-4)
    monkeypatch.setattr("chains.backends.native.runtime.thread_trial.TRIAL", 1e-4)
    net = SPLIT["narrow"]
    program = program_of(net, SGD(0.01, momentum=0.9))
    sources, order = problem(net, 10, "float32", steps=3000)
    arrays = states(program, 10)
    wanted = fed(native(2), program, 10, arrays, sources, order)
    runner, own = native(2), {name: array.copy() for name, array in arrays.items()}
    feed, values = runner.feed(runner.bind(program, 10, own), sources, order), np.full(3000, np.nan)
    for first in range(0, 3000, 150):
        assert feed(first, values[first : first + 150]) == 150
    assert_same_bits({"values": values, **own}, wanted)
