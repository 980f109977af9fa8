"""Bindings, feeds and functions for Python that follow the number of threads.

Machine code works on memory that is divided among a number of threads. If that number has changed, a program is bound anew
to the same arrays before its next run. Users of a binding, a feed or a function need not care.
"""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakSet, ref

import llvmlite
import numpy as np

from chains.backends.base import Arrays, Binding, Feed
from chains.backends.native.binding import BoundCode, NativeBinding
from chains.backends.native.compiled import CompiledProgram
from chains.backends.native.runtime.fastcall import decline_all, move, python_function
from chains.backends.native.runtime.shared import worker_pool
from chains.program.program import Program
from chains.support.threads import follow, get_num_threads, known_num_threads, limit_num_threads

KEPT_NUMBERS = 2  # numbers of threads for which a binding keeps memory
Compiled = Callable[[int], CompiledProgram]
Inputs = Mapping[str, np.dtype[Any]]
Bound = TypeVar("Bound", bound=BoundCode)


class Following(Binding, Generic[Bound]):
    """A program bound for recent numbers of threads, first for the present number."""

    def __init__(self, first: Bound) -> None:
        self.program, self.batch, self.arrays, self.work = first.program, first.batch, first.arrays, first.work
        self._by_number = {get_num_threads(): first}

    def present(self) -> Bound:
        """The binding for the present number of threads."""
        number = get_num_threads()
        return self._by_number.get(number) or self._bind(number)

    @abstractmethod
    def _bind(self, number: int) -> Bound:
        """Bind the program for a number of threads."""

    def run(self) -> None:
        self.present().run()

    __call__ = run

    def release(self, names: Iterable[str]) -> bool:
        return self.present().release(names)

    def run_at(self, arrays: Arrays) -> bool:
        bound = self._by_number.get(get_num_threads())  # a new binding would need the released arrays
        return bound is not None and bound.run_at(arrays)


class FollowingBinding(Following[NativeBinding]):
    """A program bound for recent numbers of threads; `compiled` returns its code for a number of threads.

    `scratch` is used if it is large enough for the present number of threads.
    """

    def __init__(self, program: Program, batch: int, arrays: Arrays, compiled: Compiled, scratch: np.ndarray | None) -> None:
        self._compiled, self.batch = compiled, batch
        number = get_num_threads()
        if scratch is not None and self._nbytes(1) <= scratch.nbytes < self._nbytes(number):
            scratch = None  # the number of threads has changed since the caller asked for the size
        super().__init__(NativeBinding(program, compiled(number), batch, arrays, number, scratch))

    def _nbytes(self, number: int) -> int:
        return self._compiled(number).memory_plan(self.batch, number).nbytes

    def _bind(self, number: int) -> NativeBinding:
        """Bind the program for a number of threads, or reuse a binding with the same division of memory."""
        native = self._compiled(number)
        layout = native.memory_plan(self.batch, number).layout
        others = [(other, bound) for other, bound in self._by_number.items() if other != number]
        fitting = (bound for _, bound in others if bound.native is native and bound.layout == layout)
        found = next(fitting, None) or NativeBinding(self.program, native, self.batch, self.arrays, number, None)
        self._by_number = dict(others[1 - KEPT_NUMBERS :]) | {number: found}
        return found


class FollowingFeed(Feed):
    """A feed of the binding for the present number of threads; `make` makes the feed of a binding."""

    def __init__(self, binding: FollowingBinding, make: Callable[[NativeBinding], Feed]) -> None:
        self._binding, self._make = binding, make
        self._bound = binding.present()
        self._feed = make(self._bound)
        self._watched: tuple[Collection[str], float] = (), 0.0
        self._spoiled = False  # as an earlier feed found

    def __call__(self, first: int, values: np.ndarray) -> int:
        bound = self._binding.present()
        if bound is not self._bound:
            self._spoiled = self.spoiled
            self._bound, self._feed = bound, self._make(bound)
            self._feed.watch(*self._watched)
        return self._feed(first, values)

    def watch(self, names: Collection[str], largest: float) -> bool:
        self._watched, self._spoiled = (names, largest), False
        return self._feed.watch(names, largest)

    @property
    def spoiled(self) -> bool:
        return self._spoiled or self._feed.spoiled


def following_function(binding: Following[Any], ins: Inputs, outs: Sequence[str]) -> Callable[..., Any] | None:
    """As `python_function`, always for the present number of threads."""
    bound = binding.present()
    worker_pool().ensure(bound.threads)
    function = python_function(bound, ins, outs)
    if function is not None:
        follower = _Follower(binding, bound, function.__self__, ins, outs)  # type: ignore[attr-defined]
        with _lock["functions"]:
            _followers.add(follower)
            follower.update()  # the number of threads may have changed meanwhile
    return function


class _Follower:
    """Keeps a function up to date, and lives as long as the function."""

    def __init__(self, binding: Following[Any], bound: BoundCode, words: Any, ins: Inputs, outs: Sequence[str]) -> None:
        self._binding, self._ins, self._outs = binding, ins, outs
        self._bound: BoundCode | None = bound
        words.keep.append(self)
        self._words = ref(words)

    def update(self) -> None:
        words = self._words()
        if words is None:
            return
        if known_num_threads() is None:  # in a forked process: the slow path of the next call asks for the number
            if self._bound is not None and self._bound.threads > 1:
                self._bound = None
                decline_all(words)
            return
        bound = self._binding.present()
        if bound is not self._bound:
            worker_pool().ensure(bound.threads)
            function: Any = python_function(bound, self._ins, self._outs)
            function.__self__.keep.append(self)
            move(function.__self__, words)
            self._bound = bound


_followers: WeakSet[_Follower] = WeakSet()
_lock = {"functions": threading.RLock()}


def _update_all() -> None:
    with _lock["functions"]:
        for follower in list(_followers):
            follower.update()


def _after_fork() -> None:
    _lock.update(functions=threading.RLock())  # another thread may have held the lock
    if known_num_threads() is None:
        _update_all()


follow(_update_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def register_controller() -> None:
    """Let threadpoolctl, if it is installed, show the threads (``threadpool_info``) and limit them (``threadpool_limits``).

    threadpoolctl finds shared libraries by name. Compiled programs are none; llvmlite's library represents them.
    """
    try:
        from threadpoolctl import LibController, register
    except ImportError:  # or older than 3.2
        return

    class ChainsController(LibController):
        user_api = internal_api = "chains"
        filename_prefixes = ("libllvmlite", "llvmlite")

        def get_num_threads(self) -> int:
            return get_num_threads()

        def set_num_threads(self, num_threads: int) -> None:
            limit_num_threads(num_threads)

        def get_version(self) -> str:
            return str(llvmlite.__version__)

    register(ChainsController)
