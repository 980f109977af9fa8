"""A compiled program bound to arrays: the scratch memory it needs, the addresses it works on, and the threads it uses."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import numpy as np

from chains.backends.base import Arrays, Binding, aligned, caller_arrays
from chains.backends.native.compiler import Compiled, compile_program
from chains.backends.native.driver import ARGUMENTS, THREAD
from chains.backends.native.kernels.prefetch import PREFETCH
from chains.backends.native.kernels.row_pointers import ROW_POINTERS
from chains.backends.native.llvm.jit import Code, machine_code
from chains.backends.native.llvm.target import Processor
from chains.backends.native.runtime.shared import pool, runtime
from chains.backends.native.runtime.thread_trial import ThreadTrial
from chains.processors import processors
from chains.program.program import Program
from chains.program.view import Buffer
from chains.progress import notice

# Below this many operations a second thread costs more than it saves (a hand-over takes about a microsecond).
THREADED_WORK = 400_000
BLOCK = 12  # rows that kernels take at once
FEW, UNEVEN = 8, 1.02  # samples of a thread from which on its share may be no more than this of an even one
TEAM_WORK = 20_000_000  # threads stay together for steps of less work than this, some fifty microseconds
KEPT_PLANS = 16
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_NOTHING_AHEAD = PREFETCH.pack()


class CompiledProgram:
    """A program as assembly, then as machine code; `work` is about how many operations a sample takes."""

    def __init__(self, program: Program, processor: Processor, parts: int, work: int) -> None:
        self.compiled: Compiled = compile_program(program, processor, parts)
        self.work = work
        self._announcement = announcement(program)
        self._processor = processor
        self._code: Code | None = None
        self.thread_trials: dict[tuple[int, int], ThreadTrial] = {}  # by the size of a batch and the number of threads
        self._plans: dict[tuple[int, int], MemoryPlan] = {}

    def plan(self, batch: int, threads: int) -> MemoryPlan:
        """How its scratch memory is divided; kept for the sizes asked for last, since a run may be short."""
        plan = self._plans.get((batch, threads))
        if plan is None:
            if len(self._plans) >= KEPT_PLANS:
                self._plans = {}
            plan = self._plans[batch, threads] = MemoryPlan(self, batch, threads)
        return plan

    @property
    def code(self) -> Code:
        """The machine code, made the first time."""
        if self._code is None:
            with notice(self._announcement):
                self._code = machine_code(self.compiled.text, ["run", "member"], self._processor)
        return self._code


def announcement(program: Program) -> str:
    return f"compiling '{program.name}' for this processor: {len(program.operations):,} operations"


class MemoryPlan:
    """How the scratch memory of a program is divided at a batch size: the buffers that are no part of tiles, then each
    thread's tile and its own sums. No two threads write to one cache line.
    """

    def __init__(self, native: CompiledProgram, batch: int, threads: int) -> None:
        compiled = native.compiled
        split = compiled.parts > 1
        self.threads = compiled.parts if split else max(1, min(threads, native.work * batch // THREADED_WORK))
        self.tile = compiled.tile if split else _tile(compiled, batch, self.threads)
        tiles = -(-batch // self.tile)
        self.sharing = min(self.threads, tiles)  # threads that have tiles
        if not (compiled.products or split):
            self.threads = self.sharing
        self.layout = self.threads, self.sharing, self.tile
        self.nbytes = 0
        samples = {True: tiles * compiled.tile, False: batch}  # laned buffers hold whole tiles
        self.shared = {
            buffer: self._reserve(buffer.nbytes * (samples[buffer in compiled.laned] if buffer.batched else 1))
            for buffer in compiled.table
            if buffer.role == "scratch" and buffer not in compiled.packed
        }
        self.packed = [{buffer: self._reserve(buffer.nbytes) for buffer in compiled.packed} for _ in range(self.sharing)]
        self.tiles = [self._reserve(compiled.tile_bytes) for _ in range(1 if split else self.threads)]
        self.rows = [self._reserve(8 * compiled.room) for _ in range(self.threads if split else self.sharing)]
        self.sums = [{buffer: self._reserve(buffer.nbytes) for buffer in compiled.sums} for _ in range(1, self.sharing)]

    def _reserve(self, nbytes: int) -> int:
        start = self.nbytes
        self.nbytes += -(-nbytes // 128) * 128
        return start


def _tile(compiled: Compiled, batch: int, threads: int) -> int:
    """The samples of a tile: whole blocks of rows; but an even share of the batch where the most that a thread gets were
    otherwise much more.
    """
    if threads == 1 or compiled.laned:
        return compiled.tile
    share = -(-batch // threads)
    tile = min(compiled.tile, -(-share // BLOCK) * BLOCK)
    tiles = -(-batch // tile)
    bounds = [min(batch, tiles * thread // threads * tile) for thread in range(threads + 1)]
    most = max(end - begin for begin, end in pairwise(bounds))
    return tile if share < FEW or most <= UNEVEN * share else -(-share // -(-share // compiled.room))


class NativeBinding(Binding):
    """Machine code with the addresses it works on."""

    def __init__(
        self, program: Program, native: CompiledProgram, batch: int, arrays: Arrays, threads: int, scratch: np.ndarray | None
    ) -> None:
        compiled = native.compiled
        plan = native.plan(batch, threads)
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
        base = self._scratch.ctypes.data
        addresses = {buffer: base + offset for buffer, offset in plan.shared.items()}
        outside = [buffer for buffer in compiled.table if buffer.role != "scratch"]
        self.addresses = {buffer.name: self.arrays[buffer.name].ctypes.data for buffer in outside}
        addresses |= {buffer: self.addresses[buffer.name] for buffer in outside}
        own = [[addresses[buffer] for buffer in compiled.sums]]  # the first thread's sums are the results
        own += [[base + sums[buffer] for buffer in compiled.sums] for sums in plan.sums]
        self.ahead = np.zeros((compiled.parts, PREFETCH.size), np.int64)  # of tiles, the first thread fetches what is wanted
        self.picked = ROW_POINTERS.pack()
        ahead, picked = self.ahead.ctypes.data, self.picked.ctypes.data
        tables = []
        for number, rows in enumerate(plan.rows):
            tile = min(number, plan.sharing - 1)
            addresses |= {buffer: base + offset for buffer, offset in plan.packed[tile].items()}
            fetched = ahead + number * self.ahead.strides[0] if number < compiled.parts else _NOTHING_AHEAD.ctypes.data
            tables.append([*(addresses[buffer] for buffer in compiled.table), *own[tile], fetched, picked, base + rows])
        self._tables = np.array(tables, np.int64)
        first_table = self._tables.ctypes.data
        self._table_addresses = [first_table + number * self._tables.strides[0] for number in range(len(tables))]
        self.run_address = native.code.address("run")
        self.split = native.compiled.parts > 1
        # More threads than processors would wait for each other at every step.
        self.stays_together = 1 < plan.threads <= processors() and self.work < TEAM_WORK
        self.thread_trial = native.thread_trials.setdefault((batch, plan.threads), ThreadTrial()) if plan.threads > 1 else None
        head = {"batch": batch, "tile": plan.tile, "threads": plan.threads, "sharing": plan.sharing, "run": self.run_address}
        if plan.threads > 1:
            functions = {name: runtime().address(name) for name in ("parallel", "meet")}
            head |= {"pool": pool().address, **functions, "member": native.code.address("member")}
        words = [ARGUMENTS.pack(**head)]
        for number in range(plan.threads):
            table = self._table_addresses[min(number, len(tables) - 1)]
            words.append(THREAD.pack(table=table, scratch=base + plan.tiles[min(number, len(plan.tiles) - 1)]))
        self._words = np.concatenate(words)
        self.words_address = self._words.ctypes.data
        self._call = partial(_RUN(self.run_address), self.words_address)

    def run(self) -> None:
        if self.threads > 1:
            pool().ensure(self.threads)
        self._call()

    def __call__(self) -> None:
        self.run()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have the caller do all parts of what threads share."""
        position = ARGUMENTS.positions["parallel"]
        before = self._words[position]
        self._words[position] = runtime().address("serial")
        try:
            yield
        finally:
            self._words[position] = before

    def picks(self, sources: Mapping[str, np.ndarray]) -> str | None:
        """The name of the input whose samples can be read where they lie in these data sets."""
        buffer = self.native.compiled.indexed
        source = sources.get(buffer.name) if buffer else None
        if buffer is None or source is None or source.dtype != buffer.dtype:
            return None
        changed = [self.arrays[each.name] for each in self.program.buffers.values() if each.role in ("state", "output")]
        return None if any(np.may_share_memory(source, array) for array in changed) else buffer.name

    @property
    def late(self) -> frozenset[str]:
        """The inputs that other threads than the first one may still read when this is done with a step."""
        return self.native.compiled.read_by_others

    def gathers_late(self) -> None:
        """Have a team meet behind each step."""
        ARGUMENTS.write(self._words, gathers=1)

    def slots(self, buffer: Buffer) -> list[int]:
        """Where machine code looks up the address of a caller's buffer: in each table, and among the first thread's sums."""
        table, sums = self.native.compiled.table, self.native.compiled.sums
        found = [each + 8 * k for each in self._table_addresses for k, known in enumerate(table) if known is buffer]
        first = self._table_addresses[0] + 8 * len(table)
        return found + [first + 8 * k for k, known in enumerate(sums) if known is buffer]
