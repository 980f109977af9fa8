"""Programs compiled, bound to arrays, and run on one or more threads."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from chains.backends.base import Arrays, Backend, Binding, Feed, aligned, caller_arrays
from chains.backends.native import ahead, picked
from chains.backends.native.calls import python_function
from chains.backends.native.compiler import Compiled, compile_program
from chains.backends.native.driver import ARGUMENTS, PLACE
from chains.backends.native.epoch import GATHER, JOB, SOURCES
from chains.backends.native.machine import Code, machine_code
from chains.backends.native.pace import Pace
from chains.backends.native.runtime import default_threads, pool, processors, runtime
from chains.backends.native.split import MOST_PARTS, MOST_SAMPLES
from chains.backends.native.target import Processor, processor
from chains.backends.native.workers import MOST_THREADS
from chains.program import Program
from chains.progress import notice
from chains.view import Buffer

# Below this many operations a second thread costs more than it saves (a hand-over takes about a microsecond).
THREADED_WORK = 400_000
QUICK_WORK = 4_000_000  # up to so many operations a call keeps the interpreter's lock: some ten microseconds
BLOCK = 12  # rows that kernels take at once
SPLIT_WORK = 300_000  # operations of a batch, each part's, from which on products of one tile are split
FEW, UNEVEN = 8, 1.02  # samples of a thread from which on its share may be no more than this of an even one
# Threads stay together for steps of less work than this, some fifty microseconds, if there are enough of them. The first
# one begins alone where others do not come within so many pauses, about a microsecond.
TEAM_WORK = 20_000_000
TEAM_STEPS = 50  # fewer take less time than workers to wake
PATIENCE = 400
KEPT_PLANS = 16
_PER_CALL = [list(JOB).index(name) for name in ("order", "steps", "values")]
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_STEPS = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_TOGETHER = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_NOTHING_AHEAD = np.zeros(ahead.WORDS, np.int64)


_backends: WeakSet[NativeBackend] = WeakSet()


def _renew_locks() -> None:
    """In a forked process: another thread may have held them."""
    for each in _backends:
        each._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class NativeBackend(Backend):
    """Compiles programs through llvmlite and runs them in machine code.

    `threads` is the most threads to use: by default CHAINS_NUM_THREADS, else the processors there are. `simd` is
    the instruction set: by default CHAINS_SIMD, else the widest there is. Raises ValueError for others.
    """

    name = "native"
    has_functions = True

    def __init__(self, *, threads: int | None = None, simd: str | None = None) -> None:
        if threads is not None and (not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS):
            raise ValueError(f"`threads` (={threads!r}) must be a whole number from 1 to {MOST_THREADS}")
        self.threads = threads or default_threads()
        self.processor = processor(simd)
        self._compiled: WeakKeyDictionary[Program, dict[int, CompiledProgram]] = WeakKeyDictionary()  # by parts
        self._work: WeakKeyDictionary[Program, int] = WeakKeyDictionary()
        self._lock = threading.Lock()
        _backends.add(self)

    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> NativeBinding:
        return NativeBinding(program, self.compile(program, batch), batch, arrays, self.threads, scratch)

    def prepare(self, program: Program) -> None:
        self.compile(program)

    def listing(self, program: Program) -> str:
        """LLVM's assembly as it is written, then the processor's."""
        code = self.compile(program).code
        return f"{program}\n\n{code.text}\n{code.assembly()}"

    def scratch_bytes(self, program: Program, batch: int) -> int:
        return self.compile(program, batch).plan(batch, self.threads).nbytes

    def feed(self, binding: Binding, sources: Mapping[str, np.ndarray], order: np.ndarray) -> Feed:
        if not isinstance(binding, NativeBinding) or any(str(a.dtype) not in SOURCES for a in sources.values()):
            return super().feed(binding, sources, order)
        return NativeFeed(binding, sources, order)

    def function(self, program: Program, batch: int, ins: Sequence[str], outs: Sequence[str], known: Arrays) -> Callable | None:
        if self.compile(program).work * batch > QUICK_WORK:
            return None
        binding = self.bind(program, batch, known)
        pool().ensure(binding.threads)
        return python_function(binding, ins, outs)

    def compile(self, program: Program, batch: int | None = None) -> CompiledProgram:
        """A program compiled for a batch size, or for any; made the first time, its machine code when it is first asked for."""
        with self._lock:
            if program not in self._compiled:
                self._compiled[program] = {}
                self._work[program] = _work(program)
            parts = self._parts(self._work[program] * batch) if batch and batch <= MOST_SAMPLES else 1
            made = self._compiled[program]
            if parts not in made:
                with notice(_announcement(program)):
                    native = CompiledProgram(program, self.processor, parts, self._work[program])
                made[parts] = made[native.compiled.parts] = native
            return made[parts]

    def _parts(self, work: int) -> int:
        """Into how many parts products are split."""
        return max(1, min(self.threads, MOST_PARTS, work // SPLIT_WORK))

    def __repr__(self) -> str:
        return f"<native backend: {self.processor.kind}, {self.threads} threads>"


class CompiledProgram:
    """A program as assembly, then as machine code; `work` is about how many operations a sample takes."""

    def __init__(self, program: Program, processor: Processor, parts: int, work: int) -> None:
        self.compiled: Compiled = compile_program(program, processor, parts)
        self.work = work
        self._announcement = _announcement(program)
        self._processor = processor
        self._code: Code | None = None
        self.paces: dict[int, Pace] = {}  # by the size of a batch
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


def _announcement(program: Program) -> str:
    return f"compiling '{program.name}' for this processor: {len(program.operations):,} operations"


def _work(program: Program) -> int:
    return program.flops() + 50 * sum(out.sample_size for op in program.operations for out in op.outs if out.batched)


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
        self.threads = plan.threads
        self.arrays = caller_arrays(program, batch, arrays)
        self._native = native
        self._scratch = aligned(plan.nbytes) if scratch is None else scratch
        if self._scratch.nbytes < plan.nbytes:
            raise ValueError(f"`scratch` has {self._scratch.nbytes} bytes, but {plan.nbytes} are needed")
        base = self._scratch.ctypes.data
        addresses = {buffer: base + offset for buffer, offset in plan.shared.items()}
        addresses |= {buffer: self.arrays[buffer.name].ctypes.data for buffer in compiled.table if buffer.role != "scratch"}
        own = [[addresses[buffer] for buffer in compiled.sums]]  # the first thread's sums are the results
        own += [[base + sums[buffer] for buffer in compiled.sums] for sums in plan.sums]
        self.ahead = np.zeros((compiled.parts, ahead.WORDS), np.int64)  # of tiles, the first thread fetches what is wanted
        self.picked = np.zeros(picked.WORDS, np.int64)
        self._tables = []
        for number, rows in enumerate(plan.rows):
            tile = min(number, plan.sharing - 1)
            addresses |= {buffer: base + offset for buffer, offset in plan.packed[tile].items()}
            table = [addresses[buffer] for buffer in compiled.table]
            fetched = self.ahead[number] if number < compiled.parts else _NOTHING_AHEAD
            more = [fetched.ctypes.data, self.picked.ctypes.data, base + rows]
            self._tables.append(np.array([*table, *own[tile], *more], np.int64))
        self.run_address = native.code.address("run")
        self.split = native.compiled.parts > 1
        # More threads than processors would wait for each other at every step.
        self.stays_together = 1 < plan.threads <= processors() and native.work * batch < TEAM_WORK
        self.pace = native.paces.setdefault(batch, Pace()) if plan.threads > 1 else None
        head = {"batch": batch, "tile": plan.tile, "threads": plan.threads, "sharing": plan.sharing, "run": self.run_address}
        if plan.threads > 1:
            functions = {name: runtime().address(name) for name in ("parallel", "meet")}
            head |= {"pool": pool().address, **functions, "member": native.code.address("member")}
        words = [head.get(name, 0) for name in ARGUMENTS]
        for number in range(plan.threads):
            words += [self._tables[min(number, len(self._tables) - 1)].ctypes.data]
            words += [base + plan.tiles[min(number, len(plan.tiles) - 1)]]
        self._words = np.array(words, np.int64)
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
        position = PLACE["parallel"]
        before = self._words[position]
        self._words[position] = runtime().address("serial")
        try:
            yield
        finally:
            self._words[position] = before

    def picks(self, sources: Mapping[str, np.ndarray]) -> str | None:
        """The name of the input whose samples can be read where they lie in these data sets."""
        buffer = self._native.compiled.picked
        source = sources.get(buffer.name) if buffer else None
        if buffer is None or source is None or source.dtype != buffer.dtype:
            return None
        changed = [self.arrays[each.name] for each in self.program.buffers.values() if each.role in ("state", "output")]
        return None if any(np.may_share_memory(source, array) for array in changed) else buffer.name

    @property
    def late(self) -> frozenset[str]:
        """The inputs that other threads than the first one may still read when this is done with a step."""
        return self._native.compiled.late

    def gathers_late(self) -> None:
        """Have a team meet behind each step."""
        self._words[PLACE["gathers"]] = 1

    def slots(self, buffer: Buffer) -> list[int]:
        """Where machine code looks up the address of a caller's buffer: in each table, and among the first thread's sums."""
        table, sums = self._native.compiled.table, self._native.compiled.sums
        found = [each.ctypes.data + 8 * k for each in self._tables for k, known in enumerate(table) if known is buffer]
        first = self._tables[0].ctypes.data + 8 * len(table)
        return found + [first + 8 * k for k, known in enumerate(sums) if known is buffer]


class NativeFeed(Feed):
    """Many steps in one call of machine code: it gathers each batch, runs the step and notes the loss."""

    def __init__(self, binding: NativeBinding, sources: Mapping[str, np.ndarray], order: np.ndarray) -> None:
        self._binding = binding
        self._keep = [dict(sources), order]
        gathers: list[int] = []
        code = runtime()
        direct = binding.picks(sources)
        self._picked = sources[direct].ctypes.data if direct else 0
        self._widest = np.zeros((len(binding.ahead), 3), np.int64)  # the samples to ask for ahead: address, bytes and lines
        for name, source in sources.items():
            if name == direct:
                continue
            target = binding.arrays[name]
            kind = f"gather_{SOURCES[str(source.dtype)]}_{SOURCES[str(target.dtype)]}"
            width = source[0].size
            gathers += [code.address(kind), source.ctypes.data, target.ctypes.data, width]
            if name in binding.late:
                binding.gathers_late()
        self._gathers = np.array(gathers, np.int64)
        if sources:
            fetchers = len(self._widest) if direct else 1  # all threads read samples that are picked, the first one gathers
            self._widest[:fetchers] = ahead.parts(max(sources.values(), key=lambda source: source[0].nbytes), fetchers)
        value, random = binding.arrays["value"], binding.arrays.get("random")
        self._orders = order.ctypes.data
        job = {
            "run": code.address("lead") if binding.stays_together else binding.run_address,
            "words": binding.words_address,
            "batch": binding.batch,
            "gathers": len(gathers) // GATHER,
            "list": self._gathers.ctypes.data,
            "value": value.ctypes.data,
            "bytes": value.itemsize,
            "random": random.ctypes.data + 8 if random is not None else 0,
            "ahead": binding.ahead.ctypes.data,
            "fetched": binding.batch if sources else 0,
            "picked": binding.picked.ctypes.data,
            "picks": direct is not None,
        }
        self._job = np.array([job.get(name, 0) for name in JOB], np.int64)
        self._job_address = self._job.ctypes.data
        self._steps, self._team = _STEPS(code.address("steps")), _TOGETHER(code.address("team_steps"))
        self._pace = binding.pace

    def __call__(self, first: int, values: np.ndarray) -> int:
        pace = self._pace
        if self._binding.threads > 1:
            pool().ensure(self._binding.threads)
        if pace is None:
            return self._run(first, values, True)
        trial = pace.trial(len(values))
        done = self._timed(pace, first, values[:trial], not pace.together) if trial else 0
        if done == len(values) or (trial and (done < trial or not np.isfinite(values[done - 1]))):
            return done
        return done + self._timed(pace, first + done, values[done:], pace.together)

    def _timed(self, pace: Pace, first: int, values: np.ndarray, together: bool) -> int:
        start = time.perf_counter()
        done = self._run(first, values, together)
        pace.note(together, done, time.perf_counter() - start)
        return done

    def _run(self, first: int, values: np.ndarray, together: bool) -> int:
        self._binding.picked[picked.DATA] = self._picked
        self._binding.ahead[:, [ahead.DATA, ahead.BYTES, ahead.LINES]] = self._widest
        self._job[_PER_CALL] = self._orders + 8 * first * self._binding.batch, len(values), values.ctypes.data
        binding, job = self._binding, self._job_address
        if together and binding.stays_together and len(values) >= TEAM_STEPS:
            with binding.alone():  # when the team has parted
                return int(self._team(job, binding.words_address, PATIENCE))
        if together and not binding.split:
            return int(self._steps(job))
        with binding.alone():
            return int(self._steps(job))
