"""Queued calls: their results and dependencies, workers that run them, errors that no caller has seen."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from chains.queueing.hazards import Entry, Extent, Hazards, extent
from chains.support.arrays import as_array
from chains.support.messages import counted
from chains.support.progress import Progress
from chains.support.threads import get_num_threads, num_threads
from chains.training import interrupts

MAX_HELD = 32 << 20  # bytes of arguments that only the queue holds
NEWEST = 16  # arguments of the last calls that are checked again for other references
HELD = 3  # references to an argument that only the queue holds: its call, the loop over the newest ones, getrefcount
# Seconds. On Windows Ctrl-C is answered between two waits, not within one.
LONGEST_WAIT = 0.1 if sys.platform == "win32" else threading.TIMEOUT_MAX
_working = threading.local()  # `.scheduler` is that of the worker that runs here
# A function, its arguments, further arrays that it reads, and those that it changes.
Work = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Iterable[Any], list[Any]]


class Pending:
    """A value that may not be ready yet; reading it waits, and raises the error of a failed call.

    It may be an argument of further calls in the same queue, which then wait for it.
    """

    def wait(self, timeout: float | None = None) -> Any:
        """The value, once it is ready.

        Parameters
        ----------
        timeout : float, optional
            The seconds to wait at most.

        Returns
        -------
        object
            The result of the call.

        Raises
        ------
        TimeoutError
            If the call has not ended by then.
        Exception
            The error of the call, with a note of the place that queued it.
        """
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Whether the call has ended, with or without an error; does not wait."""
        raise NotImplementedError

    @property
    def array(self) -> np.ndarray:
        """The value, which must be an array; waits for it. Raises TypeError for any other value."""
        value = self.wait()
        if not hasattr(value, "shape"):
            more = _PARTS if isinstance(value, tuple) else "; try result.wait()"
            raise TypeError(f"the result is a {type(value).__name__}, not an array" + more)
        return value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.array, dtype, copy=copy)

    def __float__(self) -> float:
        value = self.wait()
        if isinstance(value, tuple):
            raise TypeError("the result is a tuple, not a number" + _PARTS)
        return float(value)

    def __str__(self) -> str:
        return str(self.wait())


_PARTS = "; take a part of it, such as result[0]"


class Result(Pending):
    """The result of a queued call, such as ``q(net, x, p)``. Made by a `Queue`."""

    def __init__(self, owner: Scheduler, name: str, place: tuple[str, int], work: Work, *, fresh: bool) -> None:
        self.owner = owner
        self.fresh = fresh  # whether the value has separate memory
        self.name, self.place = name, place
        self.work: Work | None = work  # None once it has begun
        self.value: Any = None
        self.error: BaseException | None = None
        self.held = 0  # bytes of arguments that only the queue holds
        self.ended = False
        self.waits = 0  # calls before it that have not ended
        self.followers: list[tuple[Result, bool]] = []  # those that wait for it, and whether they need its value
        self.readers: list[Result] = []  # those that have it among their arguments, until it has ended
        self.accesses: list[tuple[tuple[int, int], Entry[Result]]] = []

    def wait(self, timeout: float | None = None) -> Any:
        if not self.ended:
            self.owner.wait_for(self, timeout)
        if self.error is not None:
            self.owner.seen(self.error)
            raise self.error
        return self.value

    @property
    def done(self) -> bool:
        return self.ended

    def __getitem__(self, k: int) -> Part:
        if not isinstance(k, int) or isinstance(k, bool):
            raise TypeError(f"parts of a result have whole numbers, got {k!r}; try result.array")
        return Part(self, k)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.wait())

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a pending result has no attribute {name!r}; that of the value is result.wait().{name}")

    def __repr__(self) -> str:
        file, line = self.place
        state = "pending" if not self.ended else "done" if self.error is None else f"failed: {type(self.error).__name__}"
        return f"<Result of {self.name}, {state}, queued at {file}:{line}>"


class Part(Pending):
    """A part of a result that is a tuple, such as the gradient ``r[1]`` of ``r = q.value_and_grad(...)``."""

    def __init__(self, result: Result, k: int) -> None:
        self.result, self.k = result, k

    def wait(self, timeout: float | None = None) -> Any:
        return self.result.wait(timeout)[self.k]

    @property
    def done(self) -> bool:
        return self.result.ended

    def __repr__(self) -> str:
        return f"<part {self.k} of {self.result!r}>"


def result_of(value: Pending) -> Result:
    """The result that a value is, or is a part of."""
    return value.result if isinstance(value, Part) else value  # type: ignore[return-value]


class LeftOutError(RuntimeError):
    """The error of a call that did not run because its queue was closed."""


class Scheduler:
    """Runs calls on `workers` threads; at most `most` calls are pending."""

    def __init__(self, workers: int, most: int) -> None:
        self._count, self._most = workers, most
        self._lock = threading.RLock()  # the garbage collector may drop a queue while this thread has the lock
        self._work, self._ended = threading.Condition(self._lock), threading.Condition(self._lock)
        self._incoming: deque[Result] = deque()  # in the order of the calls
        self._ready: deque[Result] = deque()  # those that wait for nothing
        self._hazards: Hazards[Result] = Hazards()
        self.pending: dict[Result, None] = {}
        self._failed: list[Result] = []  # in the order of their ends, until a caller has seen the error
        self._newest: deque[tuple[Result, np.ndarray]] = deque(maxlen=NEWEST)  # arguments that others have held so far
        self._held = 0  # bytes of arguments that only the queue holds
        self._threads: list[threading.Thread] = []
        self._share: Any = None  # of the processors, while open
        self.closed = ""  # why no further call can be queued
        self._dropped = False  # whether the queue was collected, so that there are no further calls
        self._staying = 0  # workers
        self._stop = threading.Event()
        _SCHEDULERS.add(self)

    def add(self, name: str, place: tuple[str, int], work: Work, *, fresh: bool) -> Result:
        """Queue a call; a worker finds its dependencies. Unless `fresh`, its value may be a view of arrays of the call."""
        result = Result(self, name, place, work, fresh=fresh)
        with self._lock:
            if self.closed:
                raise RuntimeError(f"the queue {self.closed}: no further call can be queued")
            if not self._threads:
                self._begin()
            self._make_room()
            self._newest.extend((result, value) for value in work[1] if type(value) is np.ndarray and value.base is None)
            self._incoming.append(result)
            self.pending[result] = None
            self._work.notify()
        return result

    def wait_for_all(self, progress: bool | None) -> None:
        """Wait until all calls have ended."""
        self._not_within("wait for its queue")
        with self._lock:
            left = len(self.pending)
        with Progress(progress, left, "call") as bar, self._lock:
            while self.pending:
                self._wait(0.1 if bar.begun else None)
                bar.update(max(0, left - len(self.pending)))
                left = min(left, len(self.pending))
            bar.update(left)

    def wait_for(self, result: Result, timeout: float | None) -> None:
        """Wait until a call has ended. Raises TimeoutError if it has not by then."""
        self._not_within("wait for another one")
        end = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while not result.ended:
                if self.closed:
                    raise RuntimeError(f"the queue {self.closed}: {result!r} never ends")
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0.0:
                    raise TimeoutError(f"{result!r} has not ended within {timeout} s")
                self._wait(left)

    def _wait(self, timeout: float | None = None) -> None:
        """Wait until a call ends, or sooner."""
        self._ended.wait(LONGEST_WAIT if timeout is None else min(timeout, LONGEST_WAIT))

    def close(self, cancel: bool) -> None:
        """Wait until all calls have ended, with `cancel` only those that have begun; end the workers."""
        self._not_within("close its queue")
        if cancel:
            self._cancel("the queue was closed before it ran")
        try:
            with self._lock:
                while self.pending:
                    self._wait()
        except BaseException:
            self._cancel("the queue was closed before it ran")
            raise
        finally:
            with self._lock:
                self.closed = self.closed or "is closed"
                self._work.notify_all()
            for thread in self._threads:
                thread.join()
            self._threads = []
            if self._share is not None:
                self._share.__exit__(None, None, None)
                self._share = None

    def drop(self) -> None:
        """Let the workers end after all calls: the queue was collected."""
        with self._lock:
            self._dropped = True
            self._work.notify_all()

    def _make_room(self) -> None:
        """Wait while too many calls are pending, or arguments that only the queue holds take too much memory."""
        self._count_held()
        if getattr(_working, "scheduler", None) is self:
            return  # a worker that waited for itself would wait for ever
        while len(self.pending) >= self._most or self._held > MAX_HELD:
            self._wait()
            if self.closed:
                raise RuntimeError(f"the queue {self.closed}: no further call can be queued")

    def _count_held(self) -> None:
        """Look for arguments that only the queue still holds, such as the last batch of a loop."""
        newest = self._newest
        for _ in range(len(newest)):
            result, array = newest.popleft()
            if sys.getrefcount(array) == HELD:
                result.held += array.nbytes
                self._held += array.nbytes
            else:
                newest.append((result, array))

    def _sort(self) -> None:
        """Mark each new call as ready, or as waiting for the calls that it depends on."""
        while self._incoming:
            result = self._incoming.popleft()
            try:
                self._note(result)
            except Exception as error:  # of an argument that is not what it seems
                result.error = error
            if not result.waits:
                self._ready.append(result)
                self._work.notify()

    def _note(self, result: Result) -> None:
        """Find the calls that a call waits for."""
        assert result.work is not None
        _, args, options, reads, writes = result.work
        arrays: list[Any] = []
        given: set[Result] = set()
        _collect(args, arrays, given)
        _collect((*options.values(), *reads), arrays, given)
        changed = [extent(as_array("writes", array)) for array in writes if array is not None]
        read = {*map(extent, arrays)}
        for before in given:
            if before.ended:
                read.update(_memory(before.value))
            elif not before.fresh:  # the value may be a view of any array of the call
                read.update(each for each, _ in before.accesses)
        writers, overwritten = self._hazards.add(result, read, changed)
        sources, others = given | writers, overwritten | _readers_of_values(overwritten)
        for before in given:
            if not before.ended:
                before.readers.append(result)
        for before in sources | others:
            needed = before in sources
            if not before.ended and before.owner is not self:
                result.error = ValueError(f"{before!r} is of another queue; wait for it before it is an argument here")
            elif not before.ended:
                before.followers.append((result, needed))
                result.waits += 1
            elif needed and result.error is None:
                result.error = before.error

    def _begin(self) -> None:
        """Start the workers."""
        if self._count > 1:
            self._share = num_threads(max(1, get_num_threads() // self._count))
            self._share.__enter__()
        for number in range(self._count):
            thread = threading.Thread(target=self._run, name=f"chains-queue-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
            self._staying += 1

    def _run(self) -> None:
        """The loop of a worker."""
        _working.scheduler = self
        interrupts.stop_by(self._stop)
        while True:
            with self._lock:
                self._sort()
                while not self._ready:
                    if self.closed or (self._dropped and not self.pending):
                        self._leave()
                        return
                    self._work.wait()
                    self._sort()
                result = self._ready.popleft()
                work, result.work = result.work, None
            if result.error is None and work is not None:
                try:
                    result.value = _call(*work[:3])
                except BaseException as error:
                    error.add_note("queued at {}, line {}".format(*result.place))
                    result.error = error
            if result.error is not None:
                result.work = work  # while it counts as failed, its arguments keep their memory
            del work
            with self._lock:
                self._end(result)
            del result

    def _leave(self) -> None:
        """End a worker; with the last one of a queue that was dropped, its share of the processors."""
        self._staying -= 1
        if not self._staying and not self.closed and self._share is not None:
            self._share.__exit__(None, None, None)
            self._share = None

    def _end(self, result: Result) -> None:
        """Release the calls that wait for one that has ended."""
        result.ended = True
        self._held -= result.held
        self._newest = deque((each for each in self._newest if each[0] is not result), NEWEST)
        self.pending.pop(result, None)
        if result.error is None:
            self._hazards.end(result)
            memory = _memory(result.value) if result.readers else []
            for reader in result.readers:
                self._hazards.read(reader, memory)
        else:
            self._failed.append(result)
        result.readers.clear()
        for follower, needed in result.followers:
            follower.waits -= 1
            if needed and follower.error is None:
                follower.error = result.error
            if not follower.waits:
                self._ready.append(follower)
                self._work.notify()
        result.followers.clear()
        self._ended.notify_all()
        if self._dropped and not self.pending:
            self._work.notify_all()

    def _cancel(self, why: str) -> None:
        """Leave out the calls that have not begun, and ask a running training to end."""
        self._stop.set()
        with self._lock:
            for result in self.pending:
                if result.work is not None and result.error is None:
                    result.error = LeftOutError(f"{result!r} was left out: {why}")

    def seen(self, error: BaseException) -> None:
        """A caller has seen an error: other calls may use the memory of the calls that failed because of it."""
        with self._lock:
            self._forgive([result for result in self._failed if result.error is error])

    def take_errors(self) -> list[BaseException]:
        """Take the errors that no caller has seen, each once; those of calls left out only if there are no others."""
        with self._lock:
            errors = list({id(result.error): result.error for result in self._failed if result.error is not None}.values())
            self._forgive(self._failed)
        return [error for error in errors if not isinstance(error, LeftOutError)] or errors[:1]

    def raise_unseen(self) -> None:
        """Raise the error that no caller has seen; of several, a group."""
        errors = self.take_errors()
        if len(errors) > 1:
            raise BaseExceptionGroup(f"{len(errors)} queued calls failed", errors)
        if errors:
            raise errors[0]

    def report(self) -> None:
        """Print the errors that no caller has seen, and now never will."""
        errors = [error for error in self.take_errors() if not isinstance(error, LeftOutError)]
        if errors and sys.stderr is not None:
            print(f"chains.Queue: {counted(len(errors), 'queued call')} failed, and nobody waited for it:", file=sys.stderr)
            for error in errors:
                traceback.print_exception(error)

    def end(self) -> None:
        """Leave out the calls that have not begun, since the process ends, and say so."""
        with self._lock:
            first, count = next(iter(self.pending), None), len(self.pending)
        self.close(cancel=True)
        if first is not None and sys.stderr is not None:
            place = "{}queued at {}, line {}".format("the first " * (count > 1), *first.place)
            print(
                f"chains.Queue: the program ended before {counted(count, 'queued call')} ({place}): "
                "what had not begun was left out. Wait with q.wait(), or in a block `with chains.Queue() as q`.",
                file=sys.stderr,
            )

    def __del__(self) -> None:
        self.report()

    def _forgive(self, failed: list[Result]) -> None:
        for result in failed:
            self._hazards.end(result)
            result.work = None
        self._failed = [result for result in self._failed if result not in failed]

    def _not_within(self, what: str) -> None:
        """Raise RuntimeError in a worker of this queue."""
        if getattr(_working, "scheduler", None) is self:
            raise RuntimeError(f"a queued function cannot {what}: that might never end; pass results as arguments")


def _call(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return function(*map(_ready, args), **{name: _ready(value) for name, value in options.items()})


def _ready(value: Any) -> Any:
    """A value with pending results replaced by their values."""
    if isinstance(value, Pending):
        return value.wait()
    if type(value) in (list, tuple) and any(isinstance(each, Pending) for each in value):
        return type(value)(map(_ready, value))
    return value


def _collect(values: Iterable[Any], arrays: list[Any], sources: set[Result]) -> None:
    """The arrays and the results among values, and among those in lists and tuples."""
    for value in values:
        kind = type(value)
        if kind is np.ndarray:
            arrays.append(value)
        elif kind is list or kind is tuple:
            _collect(value, arrays, sources)
        elif isinstance(value, Pending):
            sources.add(result_of(value))
        elif isinstance(value, np.ndarray):
            arrays.append(value)
        elif hasattr(value, "__dlpack__"):
            arrays.append(as_array("an argument", value))


def _memory(value: Any) -> list[Extent]:
    """The memory of the arrays in the value of a call."""
    arrays: list[Any] = []
    try:
        _collect((value,), arrays, set())
        return list(map(extent, arrays))
    except Exception:  # of an object without a known memory
        return []


def _readers_of_values(overwritten: Iterable[Result]) -> set[Result]:
    """For calls whose memory is written again: the calls that read their values, which may be views of it, and so on."""
    found: set[Result] = set()
    left = [before for before in overwritten if not before.fresh]
    while left:
        new = set(left.pop().readers) - found
        found |= new
        left += [reader for reader in new if not reader.fresh]
    return found


_SCHEDULERS: weakref.WeakSet[Scheduler] = weakref.WeakSet()


def _close_all() -> None:
    """At the end of the process: no worker may run machine code that is unloaded."""
    for scheduler in list(_SCHEDULERS):
        if not scheduler.closed:
            scheduler.end()
        scheduler.report()


def _after_fork() -> None:
    """In a forked process, which has none of the workers."""
    for scheduler in list(_SCHEDULERS):
        if not scheduler.closed and scheduler._threads:
            scheduler.closed, scheduler._threads = "was made by another process", []
            scheduler._lock = threading.RLock()
            scheduler._work, scheduler._ended = threading.Condition(scheduler._lock), threading.Condition(scheduler._lock)
            scheduler.pending, scheduler._failed = {}, []
            if scheduler._share is not None:
                scheduler._share.__exit__(None, None, None)


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
