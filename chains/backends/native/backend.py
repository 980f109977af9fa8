"""The native backend: it compiles programs to machine code and keeps them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import llvmlite.binding as llvm
import numpy as np

from chains.backends.base import Arrays, Backend, Binding, Feed, MemberFeed, Single
from chains.backends.native.binding import BoundCode, NativeBinding
from chains.backends.native.compiled import CompiledProgram, compiled_program, listing_of
from chains.backends.native.feed import NativeFeed, NativeMemberFeed
from chains.backends.native.fits import NativeFitter, matrix_shape
from chains.backends.native.following import Following, FollowingBinding, FollowingFeed, following_function
from chains.backends.native.llvm import cache
from chains.backends.native.llvm.target import processor
from chains.backends.native.members import FollowingMembers, MembersBinding
from chains.backends.native.operations import LOWERED
from chains.backends.native.runtime.epoch import SOURCES
from chains.backends.native.runtime.fastcall import python_function
from chains.backends.native.runtime.shared import worker_pool
from chains.backends.native.runtime.symmetric import SymmetricMatrix
from chains.backends.native.single import single
from chains.backends.native.support import gathers, is_straight, per_program, unsupported
from chains.program.program import Program
from chains.support.threads import MAX_THREADS, get_num_threads

MAX_PARTS, MAX_PARTITIONED_SAMPLES = 4, 15  # of products partitioned among threads (`plan/teams.py`)
MAX_LOCKED_MEMBERS = 32_000_000  # of the members of an ensemble together: about three hundred microseconds
MAX_LOCKED_OPERATIONS = 10_000_000  # in a call that keeps the interpreter's lock: about thirty microseconds
MIN_PART_OPERATIONS = 300_000  # of a batch, per part: with fewer, products of one tile are not partitioned


class NativeBackend(Backend):
    """Compiles programs through llvmlite and runs them in machine code.

    `threads` is the largest number of threads to use, by default the result of `chains.get_num_threads` at each call. `simd`
    is the instruction set, by default CHAINS_SIMD, else the widest available. Raises ValueError for other values.
    """

    name = "native"
    lowered = LOWERED
    has_functions = has_member_calls = takes_long_orders = True

    def __init__(self, *, threads: int | None = None, simd: str | None = None) -> None:
        if threads is not None and (not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS):
            raise ValueError(f"`threads` (={threads!r}) must be a whole number from 1 to {MAX_THREADS}")
        self._threads = threads
        if threads is None:
            get_num_threads()  # reads and checks CHAINS_NUM_THREADS now
        self.processor = processor(simd)
        self._compiled: WeakKeyDictionary[Program, dict[tuple[int, bool, bool], CompiledProgram]] = WeakKeyDictionary()

    @property
    def threads(self) -> int:
        """The largest number of threads to use at present."""
        return self._threads or get_num_threads()

    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> Binding:
        if self._threads is None:
            return FollowingBinding(program, batch, arrays, partial(self.compile, program, batch), scratch)
        return NativeBinding(program, self.compile(program, batch), batch, arrays, self._threads, scratch)

    def bind_members(self, program: Program, batch: int, members: int, own: Collection[str], arrays: Arrays) -> Binding:
        def bind(threads: int, given: Arrays) -> MembersBinding:
            native = self.compile(program, batch, threads)
            return MembersBinding(program, native, batch, members, own, given, threads)

        return FollowingMembers(bind, arrays) if self._threads is None else bind(self._threads, arrays)

    def symmetric_matrix(self, matrix: np.ndarray) -> SymmetricMatrix:
        return SymmetricMatrix(matrix)

    def unsupported(self, program: Program) -> str | None:
        return unsupported(program)

    def listing(self, program: Program, *, passes: bool = False, batch: int | None = None) -> str:
        """LLVM's assembly before optimisation, then the processor's assembly; with `passes`, the plan after each pass."""
        parts = _parts(self.threads, _work(program), batch)
        return listing_of(program, self.processor, parts, gathers(program, batch), passes, self._is_straight(program, batch))

    def about(self) -> dict[str, str]:
        each = self.processor
        return {
            self.name: f"{each.kind}, vectors of {each.width} bytes, {each.registers} registers, {each.cpu}",
            "LLVM": ".".join(map(str, llvm.llvm_version_info)),
            "threads": str(self.threads),
            "cache": cache.about(),
        }

    def scratch_bytes(self, program: Program, batch: int) -> int:
        threads = self.threads
        return self.compile(program, batch, threads).memory_plan(batch, threads).nbytes

    def feed(self, binding: Binding, sources: Mapping[str, np.ndarray], order: np.ndarray) -> Feed:
        known = all(a.dtype in SOURCES for a in sources.values())
        if known and isinstance(binding, FollowingBinding):
            return FollowingFeed(binding, lambda bound: NativeFeed(bound, sources, order))
        if known and isinstance(binding, NativeBinding):
            return NativeFeed(binding, sources, order)
        return super().feed(binding, sources, order)

    def member_feed(
        self, program: Program, batch: int, arrays: Arrays, sources: Arrays, orders: np.ndarray, own: Collection[str]
    ) -> MemberFeed:
        if not all(source.dtype in SOURCES for source in sources.values()):
            return super().member_feed(program, batch, arrays, sources, orders, own)

        def bind(given: Arrays) -> NativeBinding:
            threads = self.threads
            return NativeBinding(program, self.compile(program, batch, threads), batch, given, threads, None)

        return NativeMemberFeed(bind, lambda: self.threads, program, arrays, sources, orders, own)

    def matrix_shape(self, n: int) -> tuple[int, int] | None:
        return matrix_shape(n)

    def fitter(self, model: Program, value: Program, batch: int, shared: Arrays, own: Arrays) -> NativeFitter:
        def bind(threads: int, program: Program, arrays: Arrays) -> NativeBinding:
            return NativeBinding(program, self.compile(program, batch, threads), batch, arrays, threads, None)

        return NativeFitter(bind, lambda: self.threads, model, value, shared, own)

    def function(self, binding: Binding, ins: Mapping[str, np.dtype[Any]], outs: Sequence[str]) -> Callable[..., Any] | None:
        most = MAX_LOCKED_MEMBERS if isinstance(binding, (FollowingMembers, MembersBinding)) else MAX_LOCKED_OPERATIONS
        if isinstance(binding, Following) and binding.work <= most:
            return following_function(binding, ins, outs)
        if isinstance(binding, BoundCode) and binding.work <= most:
            worker_pool().ensure(binding.threads)
            return python_function(binding, ins, outs)
        return None

    def single(self, program: Program, arrays: Arrays, ins: Sequence[str], outs: Sequence[str]) -> Single:
        return single(NativeBinding(program, self.compile(program, 1, 1), 1, arrays, 1, None), ins, outs)

    def compile(self, program: Program, batch: int | None = None, threads: int | None = None) -> CompiledProgram:
        """A program compiled for a batch size, or for any size. It is compiled once, then reused."""
        made, work = self._compiled.setdefault(program, {}), _work(program)
        parts, kind = _parts(threads or self.threads, work, batch), (gathers(program, batch), self._is_straight(program, batch))
        if (parts, *kind) not in made:  # two threads that find nothing get the same program
            native = compiled_program(program, self.processor, parts, work, *kind)
            made[parts, *kind] = made[native.signature.parts, *kind] = native
        return made[parts, *kind]

    def _is_straight(self, program: Program, batch: int | None) -> bool:
        """Whether a batch has straight code: one sample. LLVM's order of instructions was tried on x86 only."""
        return batch == 1 and self.processor.is_x86 and is_straight(program)

    def __repr__(self) -> str:
        return f"<native backend: {self.processor.kind}, {self.threads} threads>"


def _parts(threads: int, work: int, batch: int | None) -> int:
    """The largest number of parts for products, in a program that takes `work` operations per sample."""
    if batch is None or batch > MAX_PARTITIONED_SAMPLES:
        return 1
    return max(1, min(threads, MAX_PARTS, work * batch // MIN_PART_OPERATIONS))


@per_program
def _work(program: Program) -> int:
    """The approximate number of operations per sample."""
    return program.flops() + 50 * sum(out.sample_size for op in program.operations for out in op.outs if out.batched)
