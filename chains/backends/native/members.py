"""A compiled program bound for all members of an ensemble: threads take the members, one after another."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterable
from functools import partial

import numpy as np

from chains.backends.base import Arrays
from chains.backends.native.binding import BoundCode, NativeBinding
from chains.backends.native.compiled import CompiledProgram
from chains.backends.native.following import Following
from chains.backends.native.memory_plan import suitable_threads
from chains.backends.native.runtime.epoch import PLACE
from chains.backends.native.runtime.members import ENSEMBLE, TAKER
from chains.backends.native.runtime.shared import runtime, worker_pool
from chains.program.program import Program
from chains.support.threads import get_num_threads

WAKING = 4  # times the work of a hand-over: between calls the threads fall asleep
MAX_GRAIN, CLAIMS = 16, 8  # members that a thread takes together, and how often it comes for more if they are few
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
MAX_IDLE_SHARE = 0.1  # of the threads' time, if each takes whole members


class MembersBinding(BoundCode):
    """Machine code with the addresses of the data of all members; `own` names the arrays that have a row for each.

    A thread computes a member alone, so that its bits are those of a call for this member. A few large members are computed
    one after another by all threads together, with these bits too.
    """

    def __init__(
        self, program: Program, native: CompiledProgram, batch: int, members: int, own: Collection[str], arrays: Arrays,
        threads: int,
    ) -> None:  # fmt: skip
        self.program, self.batch, self.members = program, batch, members
        self._own = {*own}
        self.work = native.work * batch * members
        self._lanes, alone = [], self._takers(native.work * batch, threads)
        for _ in range(alone or 1):
            lane = NativeBinding(program, native, batch, {}, threads, None)
            lane.set_alone(alone > 0)
            self._lanes.append(lane)
        self.threads = alone or self._lanes[0].threads
        self._ranges: dict[str, slice] = {}  # of the places of an array, for each thread
        self._make_words()
        self.arrays = {name: self._checked(name, array) for name, array in arrays.items()}
        for name, array in self._lanes[0].arrays.items():
            if name not in arrays:
                self.arrays[name] = np.empty((members, *array.shape), array.dtype) if name in self._own else array
        self.addresses = {name: array.ctypes.data for name, array in self.arrays.items()}
        self._place(self.arrays)

    def _takers(self, work: int, threads: int) -> int:
        """The number of threads that take members alone; 0 if all threads compute each member together."""
        count = min(suitable_threads(work * self.members // WAKING, threads), self.members)
        rounds = -(-self.members // count)
        uneven = 1 - self.members / (rounds * count) > MAX_IDLE_SHARE
        return 0 if suitable_threads(work, threads) > 1 and (count == 1 or uneven) else count

    def _make_words(self) -> None:
        places = []
        for lane in self._lanes:
            words: list[np.ndarray] = []
            for name in sorted(self._own):
                slots = lane.slots(name)
                self._ranges[name] = slice(len(words), len(words) + len(slots))
                words += [PLACE.pack(word=slot) for slot in slots]
            places.append(words)
        self._places = np.array(places, np.int64)  # (threads, places, PLACE.size)
        count = len(self._lanes)
        self._ensemble = ENSEMBLE.pack(
            share=runtime().address("parallel" if count > 1 else "serial"), pool=worker_pool().address, taker_count=count
        )
        following = self._ensemble.ctypes.data + 8 * ENSEMBLE.positions["next"]
        grain = max(1, min(MAX_GRAIN, self.members // (CLAIMS * count)))
        shared = {"next": following, "count": self.members, "grain": grain, "place_count": self._places.shape[1]}
        self._takers_words = np.array(
            [
                TAKER.pack(run=lane.run_address, words=lane.words_address, places=own.ctypes.data, **shared)
                for lane, own in zip(self._lanes, self._places, strict=True)
            ]
        )
        ENSEMBLE.write(self._ensemble, takers=self._takers_words.ctypes.data)
        self.run_address, self.words_address = runtime().address("all_members"), self._ensemble.ctypes.data
        self._call = partial(_RUN(self.run_address), self.words_address)

    def shape(self, name: str) -> tuple[int, ...]:
        one = super().shape(name)
        return (self.members, *one) if name in self._own else one

    def slots(self, name: str) -> list[int]:
        """The places where machine code looks up the address of an array, or of the first row of one with rows."""
        if name not in self._own:
            return [slot for lane in self._lanes for slot in lane.slots(name)]
        first = 8 * PLACE.positions["first"]
        return [words.ctypes.data + first for own in self._places for words in own[self._ranges[name]]]

    def _checked(self, name: str, array: np.ndarray) -> np.ndarray:
        """The array. Raises ValueError if it does not fit its buffer: machine code would read and write out of bounds."""
        buffer, row = self.program.buffers[name], array[0, ...] if name in self._own else array
        size = buffer.size * (self.batch if buffer.batched else 1)
        rows = len(array) == self.members if name in self._own else True
        if not rows or row.size != size or row.dtype != buffer.dtype or not row.flags.c_contiguous:
            raise ValueError(
                f"`{name}` must be {size} contiguous {buffer.dtype} numbers for each member, not {array.dtype} of shape "
                f"{array.shape}"
            )
        return array

    def _place(self, arrays: Arrays) -> None:
        for name, array in arrays.items():
            address = array.ctypes.data
            if name in self._own:
                PLACE.write(self._places[:, self._ranges[name]], first=address, stride=array.strides[0])
            else:
                for lane in self._lanes:
                    lane.place(name, address)

    def run(self) -> None:
        worker_pool().ensure(self.threads)
        self._call()

    def release(self, names: Iterable[str]) -> bool:
        for name in names:
            del self.arrays[name]
        return True

    def run_at(self, arrays: Arrays) -> bool:
        self._place({name: self._checked(name, array) for name, array in arrays.items()})
        self.run()
        return True


class FollowingMembers(Following[MembersBinding]):
    """The members bound for the present number of threads; `bind` binds given arrays for a number of threads."""

    def __init__(self, bind: Callable[[int, Arrays], MembersBinding], arrays: Arrays) -> None:
        super().__init__(bind(get_num_threads(), arrays))
        self._make = bind

    def _bind(self, number: int) -> MembersBinding:
        found = self._make(number, self.arrays)
        self._by_number = {number: found}
        return found
