"""Parts that all compiled programs share: worker threads, and the machine code of threads and of loops over batches."""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from typing import Any

import numpy as np

from chains.backends.native.llvm.jit import Code, machine_code
from chains.backends.native.llvm.target import processor
from chains.backends.native.runtime import workers
from chains.backends.native.runtime.epoch import MEMBERS, SOURCES, STEPS, gather
from chains.backends.native.runtime.workers import CLOSED, WORKER_POOL, WORKER_POOL_WORDS

_gatherers: list[Code] = []  # machine code lives as long as these objects
_making = {"once": threading.Lock()}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _making.update(once=threading.Lock()))


def runtime() -> Code:
    """The shared machine code, made once per process."""
    with _making["once"]:  # two threads must not make it at once: the copy that is dropped would release its code
        return _runtime()


@cache
def _runtime() -> Code:
    names = ["worker", "parallel", "serial", "barrier", "lead", "steps", "team_steps", "lane"]
    return machine_code(workers.POOL + workers.TEAM + STEPS + MEMBERS, names, processor(), vectorize=True)


def gatherer(source: np.dtype[Any], target: np.dtype[Any]) -> int:
    """The address of a function that copies rows by number from one of `SOURCES` to float32 or float64 (see `epoch.gather`)."""
    with _making["once"]:
        return _gatherer(source, target)


@cache
def _gatherer(source: np.dtype[Any], target: np.dtype[Any]) -> int:
    name = f"gather_{SOURCES[source]}_{SOURCES[target]}"
    code = machine_code(gather(SOURCES[source], SOURCES[target]), [name], processor(), vectorize=True)
    _gatherers.append(code)
    return code.address(name)


class WorkerPool:
    """Worker threads."""

    def __init__(self) -> None:
        self._words = np.zeros(WORKER_POOL_WORDS, np.int64)
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Begin without workers: a forked process inherits the memory but not the threads."""
        self._words[:] = 0
        WORKER_POOL.write(self._words, claim=CLOSED)
        self._starting = threading.Lock()
        self.workers = 0

    @property
    def address(self) -> int:
        return self._words.ctypes.data

    def ensure(self, threads: int) -> None:
        """Start workers until there are at least ``threads - 1``."""
        if self.workers >= threads - 1:
            return
        work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(runtime().address("worker"))
        with self._starting:
            while self.workers < threads - 1:
                name = f"chains-worker-{self.workers + 1}"
                threading.Thread(target=work, args=(self.address,), daemon=True, name=name).start()
                self.workers += 1


@cache
def _worker_pool() -> WorkerPool:
    return WorkerPool()


def worker_pool() -> WorkerPool:
    """The workers of this process."""
    with _making["once"]:
        return _worker_pool()
