"""Training steps fed from data sets in memory, for one network or for members: a run of steps is one call of machine code."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from chains.backends.base import Arrays, Feed, MemberFeed, aligned, updated
from chains.backends.native.binding import NativeBinding
from chains.backends.native.llvm.struct import CACHE_LINE_BYTES, PREFETCH, ROW_POINTERS
from chains.backends.native.runtime.epoch import COPY, GATHER, JOB, LANE, PLACE, WATCH
from chains.backends.native.runtime.shared import gatherer, runtime, watcher, worker_pool
from chains.backends.native.runtime.thread_trial import TURNS
from chains.program.program import Program

# The fewest steps for which threads form a team: fewer steps take less time than the workers need to wake. If the workers do
# not come within `PATIENCE_PAUSES`, about five microseconds, the first thread begins alone.
MIN_TEAM_STEPS = 50
PATIENCE_PAUSES = 400
_STEPS = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_TEAM_STEPS = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def row_shares(source: np.ndarray, count: int) -> list[tuple[int, int, int]]:
    """The share of each row of a data set that each of `count` threads prefetches: address, bytes of a row, lines of it."""
    nbytes = source[0].nbytes
    lines = -(-nbytes // CACHE_LINE_BYTES)
    cuts = [lines * k // count for k in range(count + 1)]
    return [(source.ctypes.data + begin * CACHE_LINE_BYTES, nbytes, end - begin) for begin, end in pairwise(cuts)]


class NativeFeed(Feed):
    """Many steps in one call of machine code: it gathers each batch, runs the step and stores the loss."""

    def __init__(self, binding: NativeBinding, sources: Mapping[str, np.ndarray], order: np.ndarray) -> None:
        self._binding = binding
        self._sources, self._order = dict(sources), order
        gathers = []
        code = runtime()
        self._direct = direct = binding.indexed_source(sources)
        self._gathered = [name for name in sources if name != direct]
        self._indexed_data = sources[direct].ctypes.data if direct else 0
        for name in self._gathered:
            source, target = sources[name], binding.arrays[name]
            places = {"source": source.ctypes.data, "target": target.ctypes.data}
            gathers.append(GATHER.pack(function=gatherer(source.dtype, target.dtype), width=source[0].size, **places))
            binding.gathers(name)
        self._gathers = np.array(gathers, np.int64)
        self._watches: np.ndarray | None = None
        widest = np.zeros((len(binding.prefetch), 3), np.int64)  # the samples to prefetch
        self._widest = max(sources, key=lambda name: sources[name][0].nbytes, default=None)
        if self._widest is not None:
            fetchers = len(widest) if direct else 1  # with row pointers all threads read samples; otherwise the first gathers
            widest[:fetchers] = row_shares(sources[self._widest], fetchers)
        self._prefetched = dict(zip(("data", "nbytes", "lines"), widest.T, strict=True))
        value, random = binding.arrays["value"], binding.arrays.get("random")
        self._orders = order.ctypes.data
        self._job = JOB.pack(
            run=code.address("lead") if binding.stays_together else binding.run_address, words=binding.words_address,
            batch=binding.batch, gathers=len(gathers), list=self._gathers.ctypes.data,
            value=value.ctypes.data, value_bytes=value.itemsize,
            random=random.ctypes.data + 8 if random is not None else 0,
            prefetch=binding.prefetch.ctypes.data, prefetched=binding.batch if sources else 0,
            row_pointers=binding.row_pointers.ctypes.data, takes_rows=direct is not None,
        )  # fmt: skip
        self._job_address = self._job.ctypes.data
        self._steps, self._team = _STEPS(code.address("steps")), _TEAM_STEPS(code.address("team_steps"))
        self._thread_trial = binding.thread_trial

    def __call__(self, first: int, values: np.ndarray) -> int:
        trial = self._thread_trial
        if self._binding.threads > 1:
            worker_pool().ensure(self._binding.threads)
        if trial is None:
            return self._run(first, values, True)
        done = 0
        if steps := trial.trial(len(values)):
            least = dict.fromkeys((True, False), math.inf)
            for together, counts in TURNS:
                did, seconds = self._timed(first + done, values[done : done + steps], together)
                done += did
                if did < steps or not np.isfinite(values[done - 1]):
                    return done
                least[together] = min(least[together], seconds) if counts else least[together]
            trial.decide(least[True], least[False])
        if done == len(values):
            return done
        did, seconds = self._timed(first + done, values[done:], trial.together)
        trial.note(did, seconds)
        return done + did

    def watch(self, names: Collection[str], largest: float) -> bool:
        if any(self._sources[name].dtype.kind != "f" for name in names):
            return False
        kept = self._gathers[: len(self._gathered)].reshape(-1, GATHER.size)
        self._watches = np.array([_watch(self._sources[name].dtype, largest) for name in names]).reshape(-1, WATCH.size)
        looks = [
            GATHER.pack(
                function=watcher(source.dtype), source=source.ctypes.data, target=watch.ctypes.data, width=source[0].size
            )
            for source, watch in zip((self._sources[name] for name in names), self._watches, strict=True)
        ]
        self._gathers = np.concatenate([kept, np.array(looks, np.int64).reshape(-1, GATHER.size)])
        JOB.write(self._job, gathers=len(self._gathers), list=self._gathers.ctypes.data)
        return True

    @property
    def spoiled(self) -> bool:
        return self._watches is not None and bool(self._watches[:, WATCH.positions["found"]].any())

    def job_alone(self) -> np.ndarray:
        """The `JOB` of a thread that does all parts alone, without the words that change from run to run."""
        self._begin()
        JOB.write(self._job, run=self._binding.run_address)
        return self._job

    def places(self, name: str) -> list[int]:
        """The places where machine code looks up the address of a data set."""
        if name == self._direct:
            places = [self._binding.row_pointers.ctypes.data + 8 * ROW_POINTERS.positions["data"]]
        else:
            places = [self._gathers[self._gathered.index(name)].ctypes.data + 8 * GATHER.positions["source"]]
        if name == self._widest:
            places += [words.ctypes.data + 8 * PREFETCH.positions["data"] for words in self._binding.prefetch]
        return places

    def _begin(self) -> None:
        """Set the data sets to read and prefetch: another feed may have used the binding meanwhile."""
        ROW_POINTERS.write(self._binding.row_pointers, data=self._indexed_data)
        PREFETCH.write(self._binding.prefetch, **self._prefetched)

    def _timed(self, first: int, values: np.ndarray, together: bool) -> tuple[int, float]:
        """The number of steps of a run, and its seconds."""
        start = time.perf_counter()
        done = self._run(first, values, together)
        return done, time.perf_counter() - start

    def _run(self, first: int, values: np.ndarray, together: bool) -> int:
        binding, job = self._binding, self._job_address
        self._begin()
        order = self._orders + 8 * first * binding.batch
        JOB.write(self._job, order=order, steps=len(values), values=values.ctypes.data)
        team = together and binding.stays_together and len(values) >= MIN_TEAM_STEPS
        if together and not (team or binding.split):
            return int(self._steps(job))
        binding.set_alone(True)  # a team too, once it is disbanded
        try:
            return int(self._team(job, binding.words_address, PATIENCE_PAUSES) if team else self._steps(job))
        finally:
            binding.set_alone(False)


def _watch(source: np.dtype[Any], largest: float) -> np.ndarray:
    """The `WATCH` of a data set of this type."""
    bits = np.array(min(largest, np.finfo(source).max), source).view(f"u{source.itemsize}")
    return WATCH.pack(largest=int(bits))


_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class NativeMemberFeed(MemberFeed):
    """One compiled program for all members. `bind` binds it to arrays, for the present number of threads.

    A thread does all parts of a step alone, so that the results are identical to those of a network trained alone.
    """

    def __init__(
        self, bind: Callable[[Arrays], NativeBinding], threads: Callable[[], int], program: Program, arrays: Arrays,
        sources: Arrays, orders: np.ndarray, own: Collection[str],
    ) -> None:  # fmt: skip
        self._bind, self._threads = bind, threads
        self._arrays, self._sources, self._orders = arrays, sources, orders
        self._own = {*own} & {*arrays, *sources}
        self._updated = updated(program, self._own)
        self._number = 0  # number of threads, each with a lane
        self._lanes: list[_Lane] = []
        self._words = np.empty((0, LANE.size), np.int64)
        self._run = _PARALLEL(runtime().address("parallel"))

    def __call__(self, first: int, values: np.ndarray, members: np.ndarray) -> np.ndarray:
        number = self._threads()
        if number != self._number:
            self._lanes = [_Lane(self, self._arrays, self._sources, self._orders) for _ in range(number)]
            self._words = np.array([lane.words for lane in self._lanes])
            self._number = number
        done, following = np.zeros(len(members), np.int64), np.zeros(1, np.int64)
        for lane in self._lanes:
            lane.prepare(first, values)
        places = {"next": following.ctypes.data, "members": members.ctypes.data, "done": done.ctypes.data}
        LANE.write(self._words, count=len(members), **places)
        worker_pool().ensure(number)
        lanes = min(number, len(members))
        self._run(worker_pool().address, runtime().address("lane"), self._words.ctypes.data, lanes)
        return done


class _Lane:
    """A thread's binding, and the places in it for the rows of a member."""

    def __init__(self, feed: NativeMemberFeed, arrays: Arrays, sources: Arrays, orders: np.ndarray) -> None:
        rows_of = {name: rows for name, rows in arrays.items() if name in feed._own}
        here = {name: _copied(rows[0, ...]) if name in feed._updated else rows[0, ...] for name, rows in rows_of.items()}
        binding = feed._bind({**arrays, **here})
        binding.set_alone(True)
        self._orders, self._batch = orders, binding.batch
        self._feed = NativeFeed(binding, {n: a[0] if n in feed._own else a for n, a in sources.items()}, orders[0])
        self.job = self._feed.job_alone()
        moved = [(word, arrays[name]) for name in rows_of.keys() - {*feed._updated} for word in binding.slots(name)]
        moved += [(word, rows) for name, rows in sources.items() if name in feed._own for word in self._feed.places(name)]
        places = [PLACE.pack(word=word, first=_at(word), stride=rows.strides[0]) for word, rows in moved]
        per_run = [PLACE.pack(word=self.job.ctypes.data + 8 * JOB.positions[name]) for name in ("order", "values")]
        copied = [(here[name], arrays[name]) for name in feed._updated]
        copies = [COPY.pack(target=row.ctypes.data, rows=rows.ctypes.data, nbytes=row.nbytes) for row, rows in copied]
        self._keep = here
        self._places, self._copies = np.array(per_run + places), np.array(copies).reshape(-1, COPY.size)
        self.words = LANE.pack(
            job=self.job.ctypes.data, places=self._places.ctypes.data, place_count=len(self._places),
            copies=self._copies.ctypes.data, copy_count=len(copies),
        )  # fmt: skip

    def prepare(self, first: int, values: np.ndarray) -> None:
        """Set the words of a run of steps."""
        order, orders = self._orders.ctypes.data + 8 * first * self._batch, self._orders
        PLACE.write(self._places[0], first=order, stride=orders.strides[0] if len(orders) > 1 else 0)
        PLACE.write(self._places[1], first=values.ctypes.data, stride=values.strides[0])
        JOB.write(self.job, steps=values.shape[1])


def _copied(row: np.ndarray) -> np.ndarray:
    """A copy that begins at a cache line."""
    copy = aligned(row.nbytes).view(row.dtype).reshape(row.shape)
    copy[...] = row
    return copy


def _at(word: int) -> int:
    """The word at an address."""
    return ctypes.c_int64.from_address(word).value
