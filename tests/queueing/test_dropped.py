"""Queues that nobody closes."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import chains
from tests.waiting import eventually


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("chains-queue")}


def check_gone(before: set[threading.Thread], number: int) -> None:
    """Raise AssertionError unless all workers that have come meanwhile go soon, and give back their share of the processors."""
    gc.collect()
    assert eventually(lambda: workers() <= before)
    assert chains.get_num_threads() == number


@pytest.mark.parametrize("in_a_circle", [False, True])
def test_workers_of_a_queue_that_nobody_holds_end(in_a_circle):
    before, gate = workers(), threading.Event()
    with chains.num_threads(4):
        q = chains.Queue(workers=2)
        first = q.call(gate.wait)
        second = q.call(lambda waited: 2 * waited, first)
        if in_a_circle:
            q.itself = q
        assert chains.get_num_threads() == 2
        del q
        gc.collect()
        assert workers() - before
        gate.set()
        assert second.wait() == 2  # what was queued runs
        check_gone(before, 4)


def test_queues_that_are_dropped_by_their_last_call():
    before, net = workers(), chains.Chain(chains.Dense(3, 2))
    number, p = chains.get_num_threads(), net.init(0)
    results = [chains.Queue(workers=1 + k % 2)(net, np.full((5, 3), k), p) for k in range(20)]
    for k, result in enumerate(results):
        np.testing.assert_array_equal(result.array, net(np.full((5, 3), k), p))
    for _ in range(20):
        chains.Queue()  # never used
    check_gone(before, number)
