"""A compiled program bound to arrays: the addresses of its data, and its threads."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np

from chains.backends.base import Arrays, Binding, aligned, caller_arrays
from chains.backends.native.compiled import CompiledProgram
from chains.backends.native.llvm.struct import ARGUMENTS, PREFETCH, ROW_POINTERS, THREAD
from chains.backends.native.memory_plan import MemoryPlan
from chains.backends.native.runtime.shared import runtime, worker_pool
from chains.program.program import Program
from chains.program.view import concrete
from chains.support.threads import processors

MAX_TEAM_OPERATIONS = 20_000_000  # of a step for which threads stay together: about fifty microseconds
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_NO_PREFETCH = PREFETCH.pack()


class BoundCode(Binding):
    """Machine code with the addresses of its data: a run is ``run_address(words_address)``."""

    threads: int
    work: int  # the approximate number of operations of a run
    addresses: dict[str, int]  # of the arrays
    run_address: int
    words_address: int

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array."""
        return concrete(self.program.buffers[name].shape, self.batch)

    @abstractmethod
    def slots(self, name: str) -> list[int]:
        """The places where machine code looks up a caller's array."""


class NativeBinding(BoundCode):
    """A compiled program with the addresses of its data."""

    def __init__(
        self, program: Program, native: CompiledProgram, batch: int, arrays: Arrays, threads: int, scratch: np.ndarray | None
    ) -> None:
        signature = native.signature
        plan = native.memory_plan(batch, threads)
        self.program = program
        self.batch = batch
        self.work = native.work * batch
        self.threads = plan.threads
        self.layout = plan.layout
        self.arrays = caller_arrays(program, batch, arrays)
        self.native = native
        self._scratch = aligned(plan.nbytes) if scratch is None else scratch
        if self._scratch.nbytes < plan.nbytes:
            raise ValueError(f"`scratch` has {self._scratch.nbytes} bytes, but {plan.nbytes} are needed")
        self.addresses = {slot.name: self.arrays[slot.name].ctypes.data for slot in signature.table if slot.given}
        self.prefetch = np.zeros((signature.parts, PREFETCH.size), np.int64)  # in tiles, only the first thread prefetches
        self.row_pointers = ROW_POINTERS.pack()
        tables, block_tables = self._make_tables(plan)
        self._tables = np.array(tables + block_tables, np.int64)
        first_table = self._tables.ctypes.data
        self._table_addresses = [first_table + thread * self._tables.strides[0] for thread in range(len(self._tables))]
        self.run_address = native.code.address("run")
        self.split = signature.parts > 1
        # More threads than processors would wait for each other at every step.
        self.stays_together = 1 < plan.threads <= processors() and self.work < MAX_TEAM_OPERATIONS
        self.thread_trial = plan.thread_trial
        self._words = self._make_words(plan, len(tables))
        self.words_address = self._words.ctypes.data
        self._call = partial(_RUN(self.run_address), self.words_address)
        self._released: dict[str, list[int]] = {}  # released arrays, with the positions of their addresses in the tables

    def _make_tables(self, plan: MemoryPlan) -> tuple[list[list[int]], list[list[int]]]:
        """The addresses for each thread: of the arrays, of its sums, of its rows; and those for blocks of sums."""
        signature, base = self.native.signature, self._scratch.ctypes.data
        addresses = [self.addresses[slot.name] if slot.given else 0 for slot in signature.table]
        for number, offset in plan.shared.items():
            addresses[number] = base + offset
        own = [[addresses[number] for number in signature.sums]]  # the first thread's sums are the results
        own += [[base + offset for offset in sums] for sums in plan.sums]
        of_blocks = [[base + offset for offset in sums] for sums in plan.block_sums]
        prefetch, row_pointers = self.prefetch.ctypes.data, self.row_pointers.ctypes.data
        tables, block_tables = [], []
        for thread, rows in enumerate(plan.rows):
            tile = min(thread, plan.sharing - 1)
            for number, offset in plan.packed[tile].items():
                addresses[number] = base + offset
            prefetched = prefetch + thread * self.prefetch.strides[0] if thread < signature.parts else _NO_PREFETCH.ctypes.data
            rest = prefetched, row_pointers, base + rows
            tables.append([*addresses, *own[tile], *rest])
            if of_blocks:
                block_tables.append([*addresses, *of_blocks[tile], *rest])
        return tables, block_tables

    def _make_words(self, plan: MemoryPlan, tables: int) -> np.ndarray:
        """The argument of the program: its words, then those of each thread, which has one of so many `tables`."""
        base = self._scratch.ctypes.data
        head = {"batch": self.batch, "tile": plan.tile, "threads": plan.threads, "sharing": plan.sharing, "block": plan.block}
        head["run"] = self.run_address
        if plan.threads > 1:
            functions = {name: runtime().address(name) for name in ("parallel", "barrier")}
            head |= {"pool": worker_pool().address, **functions, "member": self.native.code.address("member")}
        words = [ARGUMENTS.pack(**head)]
        for thread in range(plan.threads):
            table = self._table_addresses[min(thread, tables - 1)]
            words.append(THREAD.pack(table=table, scratch=base + plan.tiles[min(thread, len(plan.tiles) - 1)]))
        words += [THREAD.pack(table=table) for table in self._table_addresses[tables:]]
        return np.concatenate(words)

    def run(self) -> None:
        if self.threads > 1:
            worker_pool().ensure(self.threads)
        self._call()

    def release(self, names: Iterable[str]) -> bool:
        self._released = {name: self._positions(name) for name in names}
        for name in self._released:
            del self.arrays[name]
        return True

    def run_at(self, arrays: Arrays) -> bool:
        words = self._tables.reshape(-1)
        for name, positions in self._released.items():
            words[positions] = arrays[name].ctypes.data
        self.run()
        return True

    def place(self, name: str, address: int) -> None:
        """Let machine code look for a caller's array at another address."""
        self._tables.reshape(-1)[self._positions(name)] = address

    def _positions(self, name: str) -> list[int]:
        """The positions of an array's address in the tables."""
        first = self._table_addresses[0]
        return [(slot - first) // 8 for slot in self.slots(name)]

    def set_alone(self, alone: bool) -> None:
        """Let the caller alone do all parts of shared work, or share them with the workers."""
        ARGUMENTS.write(self._words, parallel=runtime().address("serial" if alone else "parallel"))

    def indexed_source(self, sources: Mapping[str, np.ndarray]) -> str | None:
        """The name of the input whose samples can be read from these data sets without a copy; None if there is none."""
        name = self.native.signature.indexed
        source = None if name is None else sources.get(name)
        if name is None or source is None or source.dtype != self.arrays[name].dtype:
            return None
        changed = [self.arrays[each.name] for each in self.program.buffers.values() if each.role in ("state", "output")]
        return None if any(np.may_share_memory(source, array) for array in changed) else name

    def gathers(self, name: str) -> None:
        """Note that an input is gathered anew for each step. A team synchronises first if other threads may still read it."""
        if name in self.native.signature.read_by_others:
            ARGUMENTS.write(self._words, gathers=1)

    def slots(self, name: str) -> list[int]:
        """The places of an array's address: in each table, and among the first thread's sums."""
        table, sums = self.native.signature.table, self.native.signature.sums
        number = next(number for number, slot in enumerate(table) if slot.given and slot.name == name)
        found = [each + 8 * number for each in self._table_addresses]
        first = self._table_addresses[0] + 8 * len(table)
        return found + [first + 8 * position for position, summed in enumerate(sums) if summed == number]
