"""The emulated GPU with its memory watched: what is read and written out of order, unwritten or outside of arrays is reported.

Kernels are compiled with the compiler's calls for a thread sanitizer, and with its checks of alignment, shifts, overflows and
conversions. What these call is `watch.c`, which knows blocks and barriers, and the clocks of queues: work that neither the
order of a queue nor an event puts before other work may run beside it. Copies and libraries say what they touch. Arrays have
room around them, and no address is ever used again. Work is done as late as it may be; what a copy has brought to the host is
no number before it is waited for.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from chains.backends.base import Arrays
from chains.backends.cupy import CupyBackend
from chains.backends.cupy.backend import DeviceBackend
from chains.backends.cupy.binding import DeviceBinding
from chains.backends.cupy.compiler import Compiled
from chains.backends.cupy.device.interface import Event, Work
from chains.backends.cupy.source.commands import Command, unrolled, untiled
from chains.program.view import Buffer
from tests.cupy import emulated
from tests.cupy.emulated import DeviceArray, EmulatedDevice, EmulatedEvent, EmulatedQueue, PinnedArray, Task

SANITIZERS = "thread,alignment,shift,signed-integer-overflow,bounds,float-cast-overflow,integer-divide-by-zero"
RENAMED = ("barrier", "launch", "threadIdx", "blockIdx", "blockDim", "gridDim", "shared_memory")
NAMES = ["-DWATCHED", *(f"-D{name}=watched_{name}" for name in RENAMED)]
SECTION = """
static char first_on_chip[4] __attribute__((section("on_chip"), used));
extern char __start_on_chip[] __attribute__((visibility("hidden"))), __stop_on_chip[] __attribute__((visibility("hidden")));
void* watch_start(void) { return __start_on_chip; }
long long watch_bytes(void) { return __stop_on_chip - __start_on_chip; }
"""
ADDRESSES = 1 << 36  # bytes
PAGE = 4096
BEGIN = 256  # bytes into a page: so CUDA aligns memory, and no more
QUEUES = ("main", "to_device", "host")
OUTSIDE, UNWRITTEN, RACE, MISALIGNED, UNDEFINED, UNDECLARED = range(1, 7)
Clock = list[int]


class Report(ctypes.Structure):
    """What `watch.c` found."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        *(
            (name, ctypes.c_uint32)
            for name in ("kind", "write", "bytes", "block", "thread", "barriers", "other", "other_write")
        ),
        *((f"other_{name}", ctypes.c_uint32) for name in ("block", "thread", "barriers")),
    )


@dataclass
class KernelTask(Task):
    """A launch: from where to where its command has said that memory is touched, and whether it is written."""

    ranges: Sequence[tuple[int, int, int]] | None = None


class MisuseError(AssertionError):
    """Memory was used as it must not be."""


@cache
def available() -> bool:
    """Whether the compiler has what kernels are watched with."""
    try:
        _runtime()
    except Exception:  # whatever is missing
        return False
    return True


@cache
def _runtime() -> ctypes.PyDLL:
    text = "\n".join([emulated.RUNTIME, Path(__file__).with_name("watch.c").read_text()])
    library = ctypes.PyDLL(str(emulated.built("watched", text, NAMES)), mode=ctypes.RTLD_GLOBAL)
    emulated.built("probe", "int probe(int* a, int k) { return a[k] << k; }", [f"-fsanitize={SANITIZERS}"])
    for name in ("memory", "work"):
        getattr(library, f"watch_{name}").restype = ctypes.c_uint64
    library.watch_reports.restype = ctypes.POINTER(Report)
    return library


class Memory:
    """Some of the watched memory, which is never used again."""

    _lock = threading.Lock()
    first = _next = 0

    def __init__(self, nbytes: int) -> None:
        with Memory._lock:
            if not Memory.first:
                Memory.first = Memory._next = _runtime().watch_memory()
                assert Memory.first, "there is no address space to watch memory in"
            self.pages = Memory._next + PAGE
            self.page_bytes = (BEGIN + nbytes + PAGE - 1) // PAGE * PAGE
            Memory._next = self.pages + self.page_bytes
            assert Memory._next < Memory.first + ADDRESSES, "the watched memory is used up"
        self.address, self.nbytes = self.pages + BEGIN, nbytes
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}


class WatchedArray(DeviceArray):
    """An array in watched memory."""

    watched = True

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        for start, rows, length, leading in areas(self[key]):
            for row in range(rows):
                _runtime().watch_written(ctypes.c_int64(start + row * leading), ctypes.c_int64(length))


class WatchedEvent(EmulatedEvent):
    """A place in a queue, and all that is done there."""

    clock: Clock = [0] * len(QUEUES)

    def wait(self) -> None:
        assert isinstance(self.device, WatchedDevice)
        super().wait()
        if self.device.deaf != "host":
            self.device.seen(self.clock)


class WatchedQueue(EmulatedQueue):
    """A queue that knows what is done before its work."""

    def __init__(self, device: WatchedDevice, name: str) -> None:
        super().__init__(device, name)
        self.watched, self.number = device, QUEUES.index(name)
        self.clock: Clock = [0] * len(QUEUES)

    def put(self, task: Task) -> None:
        if self.device.captured is None:
            number = self.watched.issued(self, task)
            task = Task(partial(self.watched.doing, number, task), task.what)
        super().put(task)

    def copy(self, target: Any, source: Any) -> None:
        super().copy(target, source)
        if isinstance(source, PinnedArray):
            self.watched.sent.append((self.clock.copy(), self.number, source, source.tobytes()))
        elif self.name in self.watched.late and self.done < self.asked:
            target.reshape(-1).view(np.uint8)[:] = 0xAB

    def _copy(self, owners: list[Any], held: list[Any], target: np.ndarray, source: np.ndarray) -> None:
        np.copyto(target, source)  # whether the memory is still there is known otherwise

    def record(self, event: Event) -> None:
        super().record(event)
        assert isinstance(event, WatchedEvent)
        event.clock = self.clock.copy()

    def wait(self, event: Event) -> None:
        super().wait(event)
        assert isinstance(event, WatchedEvent)
        if self.device.deaf != self.name:
            self.clock = later(self.clock, event.clock)


class WatchedDevice(EmulatedDevice):
    """An emulated GPU that raises `MisuseError`. One at a time: the clocks of several are not compared."""

    watched = True

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.names = {0: "nothing"}
        self._sections: dict[int | None, tuple[int, int]] = {}  # of shared memory, by kernel
        self.arrays: dict[int, tuple[int, str]] = {}  # by address: bytes, and what it is
        self.sent: list[tuple[Clock, int, PinnedArray, bytes]] = []  # what copies of the host's memory may not have read yet
        self.owed: list[str] = []  # what was found where nothing could be raised
        self.host: Clock = [0] * len(QUEUES)
        self.ranges: Sequence[tuple[int, int, int]] | None = None  # of what is bound
        self.running_ranges = self.ranges
        self.main, self.to_device = (WatchedQueue(self, name) for name in QUEUES[:2])
        self.library.queue = self.main.add
        self.late = frozenset(QUEUES[:2])

    # Order

    def issued(self, queue: WatchedQueue | None, task: Task) -> int:
        """The number of new work, which comes after what the host and the queue have waited for."""
        number = QUEUES.index("host") if queue is None else queue.number
        clock = self.host if queue is None else later(queue.clock, self.host)
        clock[number] += 1
        if queue is not None:
            queue.clock = clock
        work = int(_runtime().watch_work(number, (ctypes.c_uint32 * len(QUEUES))(*clock)))
        self.names[work] = task.what
        return work

    def doing(self, number: int, task: Task) -> None:
        for arrays, write in ((task.reads, 0), (task.writes, 1)):
            for area in (area for array in arrays for area in areas(array)):
                _runtime().watch_area(ctypes.c_uint32(number), *map(ctypes.c_int64, area), write)
        self.working, self.running_ranges = number, task.ranges if isinstance(task, KernelTask) else None
        task.work()
        self.told()

    def seen(self, clock: Clock) -> None:
        """The host knows that all this is done."""
        self.host = later(self.host, clock)
        over = [each for each in self.sent if self.host[each[1]] >= each[0][each[1]]]
        self.sent = [each for each in self.sent if self.host[each[1]] < each[0][each[1]]]
        for _, number, array, content in over:
            if array.tobytes() != content:
                raise MisuseError(f"pinned memory was written while the copy {QUEUES[number]} could be reading it")

    def finish(self) -> None:
        super().finish()
        self.seen(self.main.clock)

    def end(self) -> None:
        """Wait for all queues, and for what was given back meanwhile."""
        for queue in (self.to_device, self.main):
            assert isinstance(queue, WatchedQueue)
            queue.run_to(queue.asked)
            self.seen(queue.clock)
        self.told()

    # Memory

    def empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        self.refuse("allocation of memory")
        self.allocations += 1
        array = self._made(shape, dtype, self.main, f"an array of {shape} {np.dtype(dtype)}")
        array.reshape(-1).view(np.uint8)[:] = 0xAB
        return array.view(WatchedArray)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> PinnedArray:
        self.refuse("allocation of pinned memory")
        self.allocations += 1
        array = self._made(shape, dtype, None, f"pinned memory of {shape} {np.dtype(dtype)}")
        array.reshape(-1).view(np.uint8)[:] = 0xAB
        return array.view(PinnedArray)

    def _made(self, shape: tuple[int, ...], dtype: Any, queue: WatchedQueue | None, what: str) -> np.ndarray:
        dtype = np.dtype(dtype)
        memory = Memory(math.prod(shape) * dtype.itemsize)
        work = self.issued(queue, Task(lambda: None, f"the allocation of {what}"))
        _runtime().watch_made(work, *map(ctypes.c_int64, (memory.address, memory.nbytes)), int(queue is None))
        self.arrays[memory.address] = memory.nbytes, what
        over = weakref.finalize(memory, self._freed, queue, memory.address, memory.nbytes, memory.pages, memory.page_bytes)
        over.atexit = False
        return np.asarray(memory).view(dtype).reshape(shape)

    def _freed(self, queue: WatchedQueue | None, address: int, nbytes: int, pages: int, page_bytes: int) -> None:
        """Memory of the GPU is given back in the order of the main queue, that of the host at once."""
        bytes_there = np.ndarray((nbytes,), np.uint8, (ctypes.c_char * max(1, nbytes)).from_address(address))
        nbytes, what = self.arrays[address]
        self.arrays[address] = nbytes, f"{what}, which has been given back"
        gone = partial(_runtime().watch_gone, ctypes.c_int64(pages), ctypes.c_int64(page_bytes))
        task = Task(gone, f"giving back {what}", (), [bytes_there])
        if queue is None:
            try:
                self.doing(self.issued(None, task), task)
            except MisuseError as error:  # whoever is interrupted by this has nothing to do with it
                self.owed.append(str(error))
        elif self.captured is None:
            queue.put(task)
        else:
            gone()

    def event(self) -> WatchedEvent:
        return WatchedEvent(self)

    # Kernels

    def runtime(self) -> ctypes.PyDLL:
        return _runtime()

    def loaded(self, text: str) -> ctypes.PyDLL:
        name = f"watched-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        _runtime()
        module = ctypes.PyDLL(str(emulated.built(name, text + SECTION, [*NAMES, f"-fsanitize={SANITIZERS}"])))
        module.watch_start.restype = module.watch_bytes.restype = ctypes.c_int64
        return module

    def launch(self, *given: Any, **settings: Any) -> Work:
        work = super().launch(*given, **settings)
        assert isinstance(work, partial)
        function, task = work.args
        return partial(self.started_kernel, function, KernelTask(task.work, task.what, ranges=self.ranges))

    def _launch(self, function: Any, pointers: Any, boxes: Any, *numbers: int) -> None:
        self.launches += 1
        start, nbytes = self._sections[ctypes.cast(function, ctypes.c_void_p).value]
        ranges = np.array(self.running_ranges or [], np.uint64).reshape(-1, 3)
        given = map(ctypes.c_int64, (start, nbytes, ranges.ctypes.data, len(ranges)))
        run = _runtime().watch_launch
        if run(ctypes.c_uint32(self.working), *given, function, pointers, *numbers, int(self.backwards)):
            self.owed.append(f"{self.names[self.working]}: some threads of a block came to a barrier, others never did")

    def compile(self, text: str, kernels: Sequence[Any]) -> dict[str, Any]:
        functions = super().compile(text, kernels)
        module = self._modules[text]
        section = module.watch_start(), module.watch_bytes()
        for function, _ in functions.values():
            self._sections[ctypes.cast(function, ctypes.c_void_p).value] = section
        return functions

    # What was found

    def told(self) -> None:
        """Raise `MisuseError` for what was found."""
        count = ctypes.c_uint32()
        found = _runtime().watch_reports(ctypes.byref(count))
        texts = self.owed + [self._text(found[k]) for k in range(count.value)]
        self.owed = []
        if texts:
            raise MisuseError("; ".join(texts))

    def _text(self, found: Report) -> str:
        me = self.names[self.working]
        verb = "writes" if found.write else "reads"
        place = self._place(found.address)
        if found.kind != RACE:
            return (
                f"{me} "
                + {
                    OUTSIDE: f"{verb} {place}, which is no memory of its own",
                    UNWRITTEN: f"reads {place}, which nothing has written",
                    MISALIGNED: f"uses {place} as more than it is aligned for",
                    UNDECLARED: f"{verb} {place}, which its command does not name",
                    UNDEFINED: f"does what C does not define, in line {found.address} of its text",
                }[found.kind]
            )
        other = "written" if found.other_write else "read"
        if found.other == self.working:
            here, there = (
                f"thread {thread} of block {block} behind {barriers} barriers"
                for thread, block, barriers in (
                    (found.thread, found.block, found.barriers), (found.other_thread, found.other_block, found.other_barriers),
                )
            )  # fmt: skip
            return f"{me} {verb} {place} by {here}, {other} by {there}"
        return f"{me} {verb} {place}, {other} by {self.names[found.other]}, which nothing puts before it"

    def _place(self, address: int) -> str:
        if not Memory.first <= address < Memory.first + ADDRESSES:
            return "shared memory"
        start = max(start for start in self.arrays if start <= max(address, min(self.arrays)))
        nbytes, what = self.arrays[start]
        where = "byte" if address - start < nbytes else "behind the end, byte"
        return f"{what}, {where} {address - start:,}"


def later(a: Clock, b: Clock) -> Clock:
    return [max(pair) for pair in zip(a, b, strict=True)]


def areas(array: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    """An array's memory as matrices of bytes: address, rows, length of a row, and how far one begins after the other."""
    array = np.asarray(array)
    if array.size == 0:
        return
    lower, upper = np.lib.array_utils.byte_bounds(array)
    if upper - lower == array.nbytes:
        yield lower, 1, array.nbytes, 0
        return
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    array = array.transpose(order)
    inner, length = array.ndim, array.itemsize
    while inner and array.strides[inner - 1] == length:
        inner -= 1
        length *= array.shape[inner]
    rows, leading = (array.shape[inner - 1], array.strides[inner - 1]) if inner else (1, 0)
    for index in np.ndindex(*array.shape[: max(0, inner - 1)]):
        yield array[index].ctypes.data, rows, length, leading


class WatchedBinding(DeviceBinding):
    """A binding whose kernels may touch what their commands name alone, and whose scratch holds nothing of former use."""

    def __init__(self, device: Any, compiled: Compiled, batch: int, arrays: Arrays, scratch: Any = None) -> None:
        begun: set[Buffer] = set()
        self._fresh: list[list[Buffer]] = []  # by step: scratch that is used from then on
        for command in compiled.commands:
            buffers = [b for b in dict.fromkeys((*command.reads, *command.writes)) if b.role == "scratch" and b not in begun]
            begun |= set(buffers)
            steps = len(list(unrolled(untiled([command], batch))))
            self._fresh += [buffers, *([] for _ in range(steps - 1))] if steps else []
        super().__init__(device, compiled, batch, arrays, scratch)

    def _bound(self, step: Command, functions: dict[str, Any]) -> list[Work]:
        device = self.device
        assert isinstance(device, WatchedDevice)
        outer = device.ranges
        places = {buffer: self._range(buffer) for buffer in (*step.reads, *step.writes)}
        device.ranges = [(start, start + nbytes, int(b in step.writes)) for b, (start, nbytes) in places.items()]
        try:
            work = super()._bound(step, functions)
        finally:
            device.ranges = outer
        if outer is None:
            unwritten = _runtime().watch_unwritten
            fresh = [partial(unwritten, *map(ctypes.c_int64, self._range(buffer))) for buffer in self._fresh.pop(0)]
            work = [*(partial(device.main.add, each, "the end of what lay in scratch") for each in fresh), *work]
        return work

    def _range(self, buffer: Buffer) -> tuple[int, int]:
        """Where a buffer lies, and its bytes; of a stand-in in a loop the whole buffer."""
        buffer = self.compiled.real(buffer)
        return self.address(buffer), self.compiled.elements(buffer, self.batch) * buffer.dtype.itemsize


class WatchedOnDevice(DeviceBackend):
    """Runs programs on watched arrays."""

    binding = WatchedBinding


class WatchedBackend(CupyBackend):
    """The GPU backend on a `WatchedDevice`."""

    def __init__(self, name: str = "watched", fused: bool = False, **settings: Any) -> None:
        super().__init__(WatchedDevice(**settings), fused)
        self.on_device = WatchedOnDevice(self.on_device.device, fused)
        self.name = name
