"""Parts that all compiled programs share: worker threads, and the machine code of threads and of loops over batches."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np

from chains.backends.native.llvm.emit import Module
from chains.backends.native.llvm.jit import Code, machine_code
from chains.backends.native.llvm.target import processor
from chains.backends.native.runtime.epoch import SOURCES, gather, watch, write_lane, write_steps
from chains.backends.native.runtime.members import write_members
from chains.backends.native.runtime.workers import CLOSED, WORKER_POOL, WORKER_POOL_WORDS, write_threads

Maker = TypeVar("Maker", bound=Callable[..., Any])
_making = {"lock": threading.RLock()}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _making.update(lock=threading.RLock()))


def _once(make: Maker) -> Maker:
    """The function, whose results are kept. Two threads never make one twice: the dropped copy would release its code."""
    kept = cache(make)

    @wraps(make)
    def get(*arguments: Any) -> Any:
        with _making["lock"]:
            return kept(*arguments)

    return get  # type: ignore[return-value]


@_once
def runtime() -> Code:
    """The shared machine code, made once per process."""
    module = Module()
    for write in (write_threads, write_steps, write_lane, write_members):
        write(module)
    names = ["worker", "parallel", "serial", "barrier", "lead", "steps", "team_steps", "lane", "all_members"]
    return machine_code(module.text(), names, processor(), vectorize=True)


def gatherer(source: np.dtype[Any], target: np.dtype[Any]) -> int:
    """The address of a function that copies rows by number from one of `SOURCES` to float32 or float64 (see `epoch.gather`)."""
    return _gather_code(SOURCES[source], SOURCES[target]).address(f"gather_{SOURCES[source]}_{SOURCES[target]}")


@_once
def _gather_code(source: str, target: str) -> Code:
    return machine_code(gather(source, target), [f"gather_{source}_{target}"], processor(), vectorize=True)


def watcher(source: np.dtype[Any]) -> int:
    """The address of a function that looks for numbers of float32 or float64 that do not fit (see `epoch.watch`)."""
    return _watch_code(SOURCES[source]).address(f"watch_{SOURCES[source]}")


@_once
def _watch_code(source: str) -> Code:
    return machine_code(watch(source), [f"watch_{source}"], processor())


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


@_once
def worker_pool() -> WorkerPool:
    """The workers of this process."""
    return WorkerPool()
