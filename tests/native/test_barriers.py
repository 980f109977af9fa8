"""Orders of threads that are forced: what one needs of another too early is missing."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

from chains import BatchNorm, Chain, Dense, tanh
from tests.harness import CLIPPED, OPTIMIZERS

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native.llvm.struct import ARGUMENTS
from chains.backends.native.runtime.epoch import JOB
from tests.native.support import native
from tests.native.team import SPLIT, TILED, assert_same_bits, fed, problem, program_of, states


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

    def wait_for_all(self, thread):
        interval = self._interval
        self.leave()
        self.wait(thread, interval + 1)


def in_turns(runner, program, batch, arrays, sources, order, backwards):
    """As `fed`, by threads that go one after another."""
    own = {name: array.copy() for name, array in arrays.items()}
    binding = runner.bind(program, batch, own, np.zeros(runner.scratch_bytes(program, batch), np.uint8))
    turns, over = Turns(binding.threads, backwards), []
    barrier = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        lambda _, thread, __: turns.wait_for_all(thread)
    )
    member = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(runner.compile(program, batch).code.address("member"))
    ARGUMENTS.write(binding._words, barrier=ctypes.cast(barrier, ctypes.c_void_p).value)
    words = binding.words_address

    def lead(_):
        turns.wait_for_all(0)
        member(words, 0)

    def serve(thread):
        turns.wait(thread)
        while True:
            turns.wait_for_all(thread)
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
    turns.wait_for_all(0)
    turns.leave()
    for thread in threads:
        thread.join()
    return {"values": values, **{name: own[name] for name, b in program.buffers.items() if b.role == "state"}}


FROZEN = Chain(Dense(2, 70), BatchNorm(70), Dense(70, 300, tanh), Dense(300, 3)).with_frozen("1.weight", "1.bias")


@pytest.mark.few(1)
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
