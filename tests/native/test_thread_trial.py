"""Steps are tried with one thread and with several, and the faster way is taken."""

from __future__ import annotations

import numpy as np
import pytest

from chains import SGD

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native.runtime.thread_trial import (
    FIRST_WAIT_SECONDS,
    LONGEST_WAIT_ALONE_SECONDS,
    LONGEST_WAIT_TOGETHER_SECONDS,
    STEPS_BEFORE_TRIAL,
    TURNS,
    ThreadTrial,
)
from tests.native.support import native
from tests.native.team import SPLIT, assert_same_bits, fed, problem, program_of, states


def test_the_faster_way_is_taken():
    trial = ThreadTrial()
    trial.note(5000, FIRST_WAIT_SECONDS / 2)
    assert trial.together
    assert trial.trial(5000) == 0
    trial.note(5000, FIRST_WAIT_SECONDS / 2)
    assert trial.trial(1) == 0  # too few steps for a trial
    assert 0 < len(TURNS) * trial.trial(5000) <= 5000
    trial.decide(1.0, 2.0)
    assert trial.together
    assert trial.trial(5000) == 0
    trial.note(10000, LONGEST_WAIT_TOGETHER_SECONDS)
    assert trial.trial(5000)
    trial.decide(1.0, 0.5)
    assert not trial.together
    trial.note(10000, FIRST_WAIT_SECONDS)
    assert trial.trial(5000)
    trial.decide(0.99, 1.0)  # not worth a change
    assert not trial.together
    trial.decide(0.9, 1.0)
    assert trial.together


def test_threads_that_do_not_pay_are_tried_less_and_less_often():
    trial, waits = ThreadTrial(), []
    for _ in range(8):
        waited = 0.0
        while not trial.trial(10**6):
            trial.note(1000, 0.01)
            waited += 0.01
        waits.append(waited)
        trial.decide(2.0, 1.0)  # threads are always slower
    assert not trial.together
    assert waits[-1] > LONGEST_WAIT_ALONE_SECONDS - 0.1
    assert waits == sorted(waits)


def test_a_trial_takes_a_small_share_of_the_time():
    trial = ThreadTrial()
    trial.note(STEPS_BEFORE_TRIAL - 1, 80.0)  # long steps: one alone may take twice as long
    assert trial.trial(100) == 0
    trial.note(1, 0.4)
    assert trial.trial(100) == 1
    short = ThreadTrial()
    short.note(1000, 0.1)
    assert [short.trial(steps) for steps in (6, 18, 60, 600)] == [0, 3, 10, 10]  # of a tenth of a millisecond


def test_callers_may_share_a_trial():
    trial = ThreadTrial()
    trial.note(1000, FIRST_WAIT_SECONDS)
    assert trial.trial(1000) == trial.trial(1000) > 0
    for _ in range(2):
        trial.decide(1.0, 2.0)
    assert trial.together


@pytest.mark.parametrize("begins", [True, False])
def test_interruptions_and_sleep_do_not_decide(begins, many, monkeypatch):
    """Two threads take .6 of the time; workers wake in 1 ms, and one run in ten takes 2 ms longer."""
    net, steps = SPLIT["narrow"], 300
    program = program_of(net, SGD(0.01, momentum=0.9))
    sources, order = problem(net, 10, "float32", steps=steps)
    runner = native(2)
    feed = runner.feed(runner.bind(program, 10, states(program, 10)), sources, order)
    trial = feed._thread_trial = ThreadTrial()
    trial.together = begins
    rng, asleep, chosen = np.random.default_rng(0), False, []

    def timed(first, values, together):
        nonlocal asleep
        values[...] = 1.0
        seconds = len(values) * (3e-4 if together else 5e-4) + 2e-3 * (rng.random() < 0.1) + 1e-3 * (together and asleep)
        asleep = not together
        return len(values), seconds

    monkeypatch.setattr(feed, "_timed", timed)
    for _ in range(60):
        assert feed(0, np.empty(steps)) == steps
        chosen.append(trial.together)
    assert sum(chosen[5:]) > 50, chosen


def test_trials_do_not_change_what_is_done(many, monkeypatch):
    monkeypatch.setattr("chains.backends.native.runtime.thread_trial.FIRST_WAIT_SECONDS", 1e-4)
    monkeypatch.setattr("chains.backends.native.runtime.thread_trial.TRIAL_SECONDS", 1e-4)
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
