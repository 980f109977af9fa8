"""The backends for GPUs, and the compiled programs that they keep."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np

from chains.backends.base import Arrays, Backend, BatchStream, Binding, Feed, MemberFeed, UnsupportedOperationError
from chains.backends.cupy.binding import DeviceBinding, HostBinding
from chains.backends.cupy.compiler import LOWERINGS, Compiled
from chains.backends.cupy.device.cudnn import ALIGNMENT
from chains.backends.cupy.device.interface import Device
from chains.backends.cupy.feed import DeviceFeed, DeviceMemberFeed, HostFeed, HostMemberFeed
from chains.backends.cupy.fused.loops import LoopShare, has_loops
from chains.backends.cupy.fused.tiling_policy import Tiling, loop_samples, suits, tiling_of
from chains.backends.cupy.fused_program import FusedProgram, fused_program
from chains.backends.cupy.source.c_source import readable
from chains.backends.cupy.source.maps import ELEMENTWISE
from chains.backends.cupy.streaming import DeviceBatchStream, HostBatchStream, StreamedFeed, fit
from chains.program.program import Program
from chains.support.callers import levels_outside
from chains.support.memory import Array, on_host


class DeviceBackend(Backend):
    """Runs programs on arrays in a GPU's memory.

    `fused`: whether to run a program as one kernel over tiles of samples. None: if its parameters fit into a block's shared
    memory. True: wherever possible. False: nowhere.
    """

    name = "cupy"
    lowered = LOWERINGS.keys() | ELEMENTWISE.keys()
    copied_bytes = 1 << 28
    binding = DeviceBinding

    def __init__(self, device: Device, fused: bool | None = None) -> None:
        self.device = device
        self.fused = fused
        self._tiled: WeakKeyDictionary[Program, dict[tuple[Tiling, bool], FusedProgram | None] | None] = WeakKeyDictionary()
        self._compiled: WeakKeyDictionary[Program, dict[tuple[bool, int], Compiled]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> DeviceBinding:
        given = [*arrays.values(), *([] if scratch is None else [scratch])]
        aligned = not any(self.device.owns(array) and self.device.address(array) % ALIGNMENT for array in given)
        return self.binding(self.device, self.commands(program, batch, aligned), batch, arrays, scratch)

    def compile(self, program: Program, batch: int = 1, aligned: bool = True) -> Compiled:
        """The commands of a program and the source of its kernels, compiled the first time.

        There are separate commands, without vectors and without a library for convolutions, for arrays that do not begin at
        multiples of 16 bytes, and for loops with more samples in a block.
        """
        samples = loop_samples(batch) if self.fused is not False and has_loops(program) else 0
        key = aligned, samples
        with self._lock:
            known = self._compiled.setdefault(program, {})
            if key not in known:
                share = LoopShare(samples, self.device.shared_bytes, forced=self.fused is True) if samples else None
                known[key] = Compiled(
                    program, None, self.device.convolutions if aligned else None, aligned=aligned, loops=share
                )
            return known[key]

    def commands(self, program: Program, batch: int, aligned: bool = True) -> Compiled:
        """The commands to run at a batch size: a few fused kernels, or the commands of `compile`."""
        compiled = self.compile(program, batch, aligned)
        if self.fused is False:
            return compiled
        with self._lock:
            if program not in self._tiled:
                self._tiled[program] = {} if suits(program) else None
            kept = self._tiled[program]
            if kept is None:
                return compiled
            tiling = tiling_of(program, batch)
            key = tiling, aligned
            if key not in kept:
                kept[key] = fused_program(program, tiling, self.device.shared_bytes, forced=self.fused is True, aligned=aligned)
            made = kept[key]
        if made is None or not (self.fused or made.is_worth(sum(1 for _ in compiled.at(batch)), compiled.barriers, batch)):
            return compiled
        return made

    def listing(self, program: Program, *, passes: bool = False, batch: int | None = None) -> str:
        """The program, and the kernels in CUDA C. There is only one pass."""
        return f"{program}\n\n{self.compile(program).text(1)}"

    def scratch_bytes(self, program: Program, batch: int) -> int:
        return self.commands(program, batch).scratch_plan(batch).nbytes(batch)

    def adopted(self, array: np.ndarray) -> Array:
        return self.device.contiguous(array)

    def allocate(self, nbytes: int) -> Array:
        return self.device.empty((nbytes,), np.uint8)

    def feed(self, binding: Binding, sources: Arrays, order: np.ndarray) -> Feed:
        """A feed; data sets in host memory are streamed."""
        assert isinstance(binding, DeviceBinding)
        streamed = not all(self.device.owns(array) for array in sources.values())
        return StreamedFeed(binding, sources, order) if streamed else DeviceFeed(binding, sources, order)

    def member_feed(
        self, program: Program, batch: int, arrays: Arrays, sources: Arrays, orders: np.ndarray, own: Collection[str]
    ) -> MemberFeed:
        compiled = self.of_one_block(program, batch, sources)
        if compiled is None:
            return super().member_feed(program, batch, arrays, sources, orders, own)
        return DeviceMemberFeed(self.device, compiled, batch, arrays, sources, orders, own)

    def of_one_block(self, program: Program, batch: int, sources: Arrays) -> FusedProgram | None:
        """The program as the kernel of one block on data in the GPU's memory, or None."""
        compiled = self.commands(program, batch)
        here = all(self.device.owns(array) for array in sources.values())
        return compiled if here and isinstance(compiled, FusedProgram) and compiled.tiling.alone else None

    def sources(self, data: Arrays) -> dict[str, np.ndarray]:
        """The data sets, copied to the GPU if they fit there with room to spare."""
        if fit(self.device, data):
            kinds = {name: None if readable(array.dtype) else np.float32 for name, array in data.items()}
            try:
                return {name: self.device.contiguous(array, kinds[name]) for name, array in data.items()}
            except MemoryError:
                pass
        return {name: array if self.device.owns(array) else np.ascontiguousarray(array) for name, array in data.items()}

    def batch_stream(self, binding: Binding, like: Arrays) -> BatchStream:
        assert isinstance(binding, DeviceBinding)
        return DeviceBatchStream(binding, like)

    def join(self, comm: object) -> None:
        self.device.join(comm)

    def running(self) -> AbstractContextManager[object]:
        return self.device.running()


class CupyBackend(Backend):
    """Runs programs on a GPU for arrays in host memory, which are copied there and back at every run.

    `on_device` is the backend for arrays that are on the GPU; `fused` is passed to it. `others` make slower backends: the first
    one that can be used runs the programs whose kernels are refused.
    """

    name = "cupy"
    lowered = DeviceBackend.lowered

    def __init__(self, device: Device, fused: bool | None = None, others: Sequence[Callable[[], Backend]] = ()) -> None:
        self.on_device = DeviceBackend(device, fused)
        self._others = others
        self._other: Backend | None = None
        self._lock = threading.Lock()

    def bind(self, program: Program, batch: int, arrays: Arrays, scratch: np.ndarray | None = None) -> Binding:
        device = self.on_device.device
        if scratch is not None and not device.owns(scratch):
            scratch = device.array(scratch)
        try:
            return HostBinding(self.on_device.bind(program, batch, {}, scratch), arrays)
        except UnsupportedOperationError as reason:
            return self._instead(reason).bind(program, batch, arrays)

    def _instead(self, reason: UnsupportedOperationError) -> Backend:
        """The backend for programs that are refused; warns of the reason the first time, raises it if there is no backend."""
        with self._lock:
            if self._other is None:
                self._other = _first_usable(self._others)
                if self._other is None:
                    raise reason
                text = f"{self._other.name} runs what the GPU backend cannot, which is slower: {reason}"
                warnings.warn(text, RuntimeWarning, stacklevel=levels_outside())
            return self._other

    def listing(self, program: Program, *, passes: bool = False, batch: int | None = None) -> str:
        return self.on_device.listing(program, passes=passes, batch=batch)

    def scratch_bytes(self, program: Program, batch: int) -> int:
        return self.on_device.scratch_bytes(program, batch)

    def allocate(self, nbytes: int) -> Array:
        return self.on_device.allocate(nbytes)

    def feed(self, binding: Binding, sources: Arrays, order: np.ndarray) -> Feed:
        if not isinstance(binding, HostBinding):
            assert self._other is not None
            return self._other.feed(binding, {name: on_host(source) for name, source in sources.items()}, order)
        return HostFeed(binding, self.on_device.feed(binding.inner, sources, order), sources)

    def member_feed(
        self, program: Program, batch: int, arrays: Arrays, sources: Arrays, orders: np.ndarray, own: Collection[str]
    ) -> MemberFeed:
        one_by_one = partial(super().member_feed, program, batch, arrays, sources, orders, own)
        compiled = self.on_device.of_one_block(program, batch, sources)
        if compiled is None:
            return one_by_one()
        return HostMemberFeed(self.on_device.device, compiled, batch, arrays, sources, orders, own, one_by_one)

    def sources(self, data: Arrays) -> dict[str, np.ndarray]:
        return self.on_device.sources(data)

    def batch_stream(self, binding: Binding, like: Arrays) -> BatchStream:
        return HostBatchStream(binding, like) if isinstance(binding, HostBinding) else super().batch_stream(binding, like)

    def join(self, comm: object) -> None:
        self.on_device.join(comm)

    def running(self) -> AbstractContextManager[object]:
        return self.on_device.running()


def _first_usable(makers: Sequence[Callable[[], Backend]]) -> Backend | None:
    for make in makers:
        with suppress(ValueError):  # its library is missing, or cannot compute either
            return make()
    return None
