"""Signals to every thread of a process that computes on several threads, stops and continuations included: the bits stay."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import threading
from functools import cache

import numpy as np

from chains import Adam, Chain, Dense, SquaredLoss, tanh, train
from chains.backends.native import NativeBackend
from tests.campaign import running
from tests.native.support import random_arrays, small_program

SIGNALS = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGWINCH, signal.SIGCHLD]
CALLS = 150
_caught = 0


def _catch(*_: object) -> None:
    global _caught
    _caught += 1


def _ignore() -> None:
    """Of signals that are still to come, for threads that block them, none may end the process while it ends by itself."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@cache
def _prepared() -> tuple[list, list[bytes]]:
    """Work on several threads, and the bits of its results with no signal about."""
    for number in SIGNALS:
        signal.signal(number, _catch)
    atexit.register(_ignore)
    program, runner = small_program(), NativeBackend(threads=3)
    works = []
    for batch in (1000, 5003):
        binding = runner.bind(program, batch, random_arrays(program, batch))
        works.append(lambda binding=binding: _results(binding))
    works.append(_training)
    return works, [work() for work in works]


def _results(binding: object) -> bytes:
    binding()
    return b"".join(binding.arrays[name].tobytes() for name in ("value", "g"))


def _training() -> bytes:
    net, rng = Chain(Dense(100, 64, tanh), Dense(64, 3)), np.random.default_rng(0)
    p, x, t = net.init(), rng.normal(size=(400, 100)).astype(np.float32), rng.normal(size=(400, 3)).astype(np.float32)
    train(net, p, x, t, SquaredLoss(), Adam(), epochs=3, batch_size=20)
    return p.tobytes()


def attempt(seed: int, number: int) -> str:
    rng = running.draws(seed, number)
    works, wanted = _prepared()
    ended, sent = threading.Event(), [0]
    pause = float(rng.choice([0.0, 1e-5, 1e-4, 1e-3]))

    def bombard() -> None:
        tgkill, process = ctypes.CDLL(None).tgkill, os.getpid()
        draws = np.random.default_rng([seed, number, 1])
        while not ended.wait(pause):
            threads = os.listdir("/proc/self/task")
            chosen = SIGNALS[int(draws.integers(len(SIGNALS)))]
            tgkill(process, int(threads[int(draws.integers(len(threads)))]), int(chosen))
            sent[0] += 1

    sender = threading.Thread(target=bombard)
    sender.start()
    stops = rng.random() < 0.2
    if stops:  # the whole process, a few times
        script = f"for k in 1 2 3 4 5; do sleep 0.02; kill -STOP {os.getpid()}; sleep 0.01; kill -CONT {os.getpid()}; done"
        stopper = subprocess.Popen(["sh", "-c", script])
    try:
        for _ in range(CALLS):
            k = 2 if rng.random() < 0.03 else int(rng.integers(2))
            assert works[k]() == wanted[k], f"work {k} has other bits"
    finally:
        ended.set()
        sender.join()
        if stops:
            stopper.wait()
    assert sent[0] > 0
    return "signals and stops: the same bits" if stops else "signals: the same bits"


def notes() -> list[str]:
    return [f"{_caught:,} signals heard"]


if __name__ == "__main__":
    sys.exit(running.main(attempt, notes))
