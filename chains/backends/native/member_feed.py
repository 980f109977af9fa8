"""Training steps of the members of an ensemble, divided among threads: one thread does a member's whole run of steps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection

import numpy as np

from chains.backends.base import Arrays, MemberFeed, aligned
from chains.backends.member_feed import updated
from chains.backends.native.binding import NativeBinding
from chains.backends.native.feed import NativeFeed
from chains.backends.native.runtime.epoch import JOB
from chains.backends.native.runtime.members import COPY, LANE, PLACE
from chains.backends.native.runtime.shared import runtime, worker_pool
from chains.program.program import Program

_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class NativeMemberFeed(MemberFeed):
    """One compiled program for all members. `bind` binds it to arrays, for the present number of threads.

    A thread does all parts of a step alone, so that the results are the same, to the bit, as for a network trained alone.
    """

    def __init__(
        self,
        bind: Callable[[Arrays], NativeBinding],
        threads: Callable[[], int],
        program: Program,
        arrays: Arrays,
        sources: Arrays,
        orders: np.ndarray,
        own: Collection[str],
    ) -> None:
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
    """A thread's own binding, and the places in it for the rows of a member."""

    def __init__(self, feed: NativeMemberFeed, arrays: Arrays, sources: Arrays, orders: np.ndarray) -> None:
        rows_of = {name: rows for name, rows in arrays.items() if name in feed._own}
        here = {name: _copied(rows[0, ...]) if name in feed._updated else rows[0, ...] for name, rows in rows_of.items()}
        binding = feed._bind({**arrays, **here})
        binding.stay_alone()
        self._orders, self._batch = orders, binding.batch
        self._feed = NativeFeed(binding, {n: a[0] if n in feed._own else a for n, a in sources.items()}, orders[0])
        self.job = self._feed.job_alone()
        moved = [(word, arrays[name]) for name in rows_of.keys() - {*feed._updated} for word in binding.slots(name)]
        moved += [(word, rows) for name, rows in sources.items() if name in feed._own for word in self._feed.places(name)]
        places = [PLACE.pack(word=word, first=_at(word), stride=rows.strides[0]) for word, rows in moved]
        per_run = [PLACE.pack(word=self.job.ctypes.data + 8 * JOB.positions[name]) for name in ("order", "values")]
        copies = [
            COPY.pack(target=here[name].ctypes.data, rows=arrays[name].ctypes.data, nbytes=here[name].nbytes)
            for name in feed._updated
        ]
        self._keep = here
        self._places, self._copies = np.array(per_run + places), np.array(copies).reshape(-1, COPY.size)
        self.words = LANE.pack(
            job=self.job.ctypes.data,
            places=self._places.ctypes.data,
            place_count=len(self._places),
            copies=self._copies.ctypes.data,
            copy_count=len(copies),
        )

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
