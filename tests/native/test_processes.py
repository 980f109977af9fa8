"""Processes: workers that sleep, interpreters that exit, forks at any moment."""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import signal
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest

from chains import Chain, Dense, expr, tanh

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import NativeBackend
from tests.native.support import (
    all_finished,
    gradient_program,
    in_process,
    map_program,
    native,
    random_arrays,
    run_on,
    small_program,
)


def idle():
    """Prints the processor time of half a second in which nothing is to be done, with two workers parked."""
    program = small_program()
    run_on(native(3), program, 5000, random_arrays(program, 5000))
    before = time.process_time()
    time.sleep(0.5)
    print(json.dumps(time.process_time() - before))


def test_idle_workers_sleep():
    assert in_process(idle) < 0.05


def leave(how):
    """Leave the interpreter in various ways right after, or while, workers are busy."""
    program = small_program()
    binding = native(3).bind(program, 5000, random_arrays(program, 5000))
    binding()
    if how == "busy":  # another thread goes on calling
        threading.Thread(target=lambda: [binding() for _ in range(10**9)], daemon=True).start()
        time.sleep(0.05)
    if how == "late":
        import atexit

        atexit.register(binding)
    if how == "parked":
        time.sleep(0.05)


def test_the_interpreter_exits():
    """Several times at once, since a crash at exit may be rare."""
    all_finished([in_process(leave, how, popen=True) for how in ("return", "parked", "busy", "busy", "late")])


def forks(rounds):
    """Fork while workers are parked, while another thread computes; parent and children go on computing."""
    import multiprocessing

    program = small_program()
    arrays = random_arrays(program, 5000)
    wanted = run_on(native(3), program, 5000, arrays)

    def right():
        return all(a.tobytes() == b.tobytes() for a, b in zip(run_on(native(3), program, 5000, arrays).values(),
                                                             wanted.values(), strict=True))  # fmt: skip

    def child():
        fresh = gradient_program(Chain(Dense(3, 2)), "float32")
        run_on(native(3), fresh, 100, random_arrays(fresh, 100))
        sys.exit(0 if right() and right() else 1)

    stop = threading.Event()
    busy = threading.Thread(target=lambda: [right() for _ in iter(stop.is_set, True)])
    for k in range(rounds):
        if k == rounds // 2:
            busy.start()
        pid = os.fork()
        if pid == 0:
            signal.alarm(200)
            os._exit(0 if right() and right() else 1)
        assert right()
        assert os.waitpid(pid, 0)[1] == 0, f"the child of round {k} failed"
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(200)
    stop.set()
    busy.join()
    assert process.exitcode == 0
    print(json.dumps("done"))


def forks_while_compiling(rounds):
    """Fork again and again while other threads compile; every child compiles and computes too."""
    stop, failed = threading.Event(), []

    def compiling(k):
        try:
            for width in itertools.count(k, 2):
                if stop.is_set():
                    return
                program = gradient_program(Chain(Dense(3, width), Dense(width, 2, tanh)), "float32")
                NativeBackend(threads=1).compile(program)
        except Exception as error:
            failed.append(repr(error))

    x = np.linspace(-1, 1, 33, dtype=np.float32)
    busy = [threading.Thread(target=compiling, args=(k,)) for k in (3, 4)]
    for thread in busy:
        thread.start()
    for round_number in range(rounds):
        time.sleep(0.003 * (round_number % 17))  # at other moments of the others' work
        pid = os.fork()
        if pid == 0:
            signal.alarm(200)  # rather than hang
            faulthandler.dump_traceback_later(190)
            scale = 1.0 + round_number / 64
            scaled = partial(lambda scale, x: expr.exp(scale * x), scale)
            program = map_program("float32", scaled)
            y = run_on(NativeBackend(threads=2), program, 33, {"x0": x, "y0": np.empty_like(x)})["y0"]
            os._exit(0 if np.allclose(y, np.exp(scale * x), rtol=1e-5) else 1)
        status = os.waitpid(pid, 0)[1]
        assert status == 0, f"the child of round {round_number} ended with {status}"
    stop.set()
    for thread in busy:
        thread.join(200)
    assert not failed
    print(json.dumps("done"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_while_another_thread_compiles():
    assert in_process(forks_while_compiling, 12, env={"CHAINS_CACHE": "off"}) == "done"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_in_the_middle():
    assert in_process(forks, 12) == "done"
