"""The GPU backend without a GPU: its kernels compiled by a C compiler and run thread by thread on the processor.

The text of the kernels is C as it stands. Each thread of a block is a coroutine, and a barrier lets the next one go on.
Threads and blocks may run in either order: results that depend on it show a missing barrier or a race. So may the work
of queues: at once, or as late as events allow, which shows where one is missing.

While a graph is captured, the device refuses what the driver refuses or what would not be part of the graph: memory, loading
of kernels, copies by the host, waiting, other queues and their events. What is captured is done by replays alone.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np

from chains.backends import Backend
from chains.backends.cupy import CupyBackend
from chains.backends.cupy.device.cublas import Cublas
from chains.backends.cupy.device.cudnn import Cudnn
from chains.backends.cupy.device.interface import Device, Event, Gemm, Queue, Uncaptured, Work
from chains.backends.cupy.source.commands import Kernel
from chains.backends.cupy_settings import Cupy
from chains.support.communicator import all_reduce
from chains.support.memory import add_memory
from tests.cupy import fake_cublas, fake_cudnn

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
FLAGS = ("-O1", "-fPIC", "-w", "-ffp-contract=off", "-fno-strict-aliasing")
OWN = Cupy(convolutions="own")
SHARED_BYTES = 227 << 10  # that a block may have on sm_90
DECLARED_BYTES = 48 << 10  # of shared memory that a kernel may declare
ROOM = 256  # bytes: how CUDA aligns memory

RUNTIME = r"""
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
struct place { unsigned x, y, z; } threadIdx, blockIdx, blockDim, gridDim;
enum { THREADS = 1024, STACK = 65536, CHIP = 232448 };
unsigned char shared_memory[CHIP] __attribute__((aligned(64)));
static ucontext_t scheduler, fibers[THREADS]; /* of a block */
static char* stacks;
static int done[THREADS], current, block;
static unsigned passed[THREADS]; /* barriers */
static void (*function)(void**);
static void** arguments;

static void body(void) { function(arguments); done[current] = 1; swapcontext(&fibers[current], &scheduler); }
void barrier(void) { ++passed[current]; swapcontext(&fibers[current], &scheduler); }

static void at_thread(int t) { threadIdx.x = t % blockDim.x; threadIdx.y = t / blockDim.x; threadIdx.z = 0; }

/* The threads of a block, each up to the next barrier. Returns whether some came to one that others never came to. */
static int in_turn(int threads, int backwards)
{
    int left = threads, apart = 0;
    if (!stacks) stacks = malloc((size_t)THREADS * STACK);
    for (int t = 0; t < threads; ++t) {
        getcontext(&fibers[t]);
        fibers[t].uc_stack.ss_sp = stacks + (size_t)t * STACK;
        fibers[t].uc_stack.ss_size = STACK;
        fibers[t].uc_link = 0;
        makecontext(&fibers[t], body, 0);
        done[t] = 0;
    }
    while (left) {
        left = 0;
        for (int k = 0; k < threads; ++k) {
            current = backwards ? threads - 1 - k : k;
            if (done[current]) continue;
            at_thread(current);
            swapcontext(&scheduler, &fibers[current]);
            left += !done[current];
        }
        apart |= left && left < threads;
    }
    return apart;
}

/* Whether some threads of a block came to a barrier that others never came to. */
int launch(void (*f)(void**), void** a, int gx, int gy, int bx, int by, int shared, int barriers, int backwards)
{
    int grid = gx * gy, threads = bx * by, apart = 0;
    function = f; arguments = a;
    gridDim.x = gx; gridDim.y = gy; blockDim.x = bx; blockDim.y = by; gridDim.z = blockDim.z = 1;
    for (int g = 0; g < grid; ++g) {
        block = backwards ? grid - 1 - g : g;
        memset(shared_memory, 0xAB, shared);
        memset(passed, 0, sizeof passed);
        blockIdx.x = block % gx; blockIdx.y = block / gx; blockIdx.z = 0;
        if (barriers) { apart |= in_turn(threads, backwards); continue; }
        for (int k = 0; k < threads; ++k) {
            current = backwards ? threads - 1 - k : k;
            at_thread(current);
            f(a);
        }
    }
    return apart;
}
"""
SHIM = r"""
#define KERNEL static void
#define KERNEL_OF(threads, resident) static void
#define DEVICE static inline
#ifdef WATCHED
#define SHARED static __attribute__((section("on_chip")))
#else
#define SHARED static
#endif
#define SHARED_MEMORY extern unsigned char shared_memory[]
#define ALIGNED(bytes) __attribute__((aligned(bytes)))
#ifdef WATCHED
#define SIXTEEN ALIGNED(16)
#else
#define SIXTEEN
#endif
typedef struct { float x, y, z, w; } SIXTEEN float4;
typedef struct { double x, y; } SIXTEEN double2;
double exp(double), log(double), log1p(double), expm1(double), sqrt(double), tanh(double), sin(double), cos(double);
double erf(double), pow(double, double), floor(double), fabs(double);
float expf(float), logf(float), log1pf(float), expm1f(float), sqrtf(float), tanhf(float), sinf(float), cosf(float);
float erff(float), powf(float, float), floorf(float), fabsf(float);
extern struct place { unsigned x, y, z; } threadIdx, blockIdx, blockDim, gridDim;
void barrier(void);
#define __syncthreads barrier
static inline double __longlong_as_double(long long bits) { union { long long i; double d; } both = { bits }; return both.d; }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{ return (unsigned long long)(((unsigned __int128)a * b) >> 64); }
"""


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="chains-emulated-")
    atexit.register(shutil.rmtree, folder, True)
    return Path(folder)


def built(name: str, text: str, compiled: Sequence[str] = (), linked: Sequence[str] = ()) -> Path:
    """The shared library of a C text, with more flags to compile it and to link it."""
    assert COMPILER is not None
    source, unlinked, library = (_folder() / f"{name}.{end}" for end in ("c", "o", "so"))
    if not library.exists():
        source.write_text(text)
        if compiled:
            subprocess.run([COMPILER, *FLAGS, *compiled, "-c", str(source), "-o", str(unlinked)], check=True)
        command = [COMPILER, *FLAGS, "-shared", *linked, str(unlinked if compiled else source), "-o", str(library), "-lm"]
        subprocess.run(command, check=True)
    return library


@cache
def _runtime() -> ctypes.PyDLL:
    return ctypes.PyDLL(str(built("runtime", RUNTIME)), mode=ctypes.RTLD_GLOBAL)


class DeviceArray(np.ndarray):
    """An array in the memory of the GPU that there is none of."""

    watched = False

    def item(self, *index: Any) -> Any:
        finish_main()
        return super().item(*index)

    def __int__(self) -> int:
        return int(self.item())

    def __setitem__(self, key: Any, value: Any) -> None:
        finish_main()
        super().__setitem__(key, value)


class PinnedArray(np.ndarray):
    """An array of the host that queues may copy."""


class EmulatedEvent(Event):
    """A place in a queue, or nowhere yet."""

    def __init__(self, device: EmulatedDevice) -> None:
        self.device = device
        self.queue: EmulatedQueue | None = None
        self.place = 0

    def wait(self) -> None:
        self.device.refuse("waiting of the host")
        if self.queue is not None and self.device.deaf != "host":
            self.queue.run_to(self.place)


@dataclass
class Task:
    """Work of a queue: what it is called, and what it reads and writes, as arrays there, where that is known."""

    work: Work
    what: str = ""
    reads: Sequence[np.ndarray] = ()
    writes: Sequence[np.ndarray] = ()


class EmulatedQueue(Queue):
    """Work that is done as soon as it may be; in one of the `device.late` queues not before something waits for it.

    Nothing waits for an event where `device.deaf` names who is to.
    """

    def __init__(self, device: EmulatedDevice, name: str) -> None:
        self.device, self.name = device, name
        self.left: deque[Task] = deque()
        self.asked = self.done = 0

    def add(self, work: Work, what: str = "", reads: Sequence[np.ndarray] = (), writes: Sequence[np.ndarray] = ()) -> None:
        self.put(Task(work, what, reads, writes))

    def put(self, task: Task) -> None:
        if self.device.captured is not None:
            if self.name != "main":
                self.device.refuse(f"work in the queue {self.name}")
            self.device.captured.append(task)
            return
        with _running:
            self.left.append(task)
            self.asked += 1
            if self.name not in self.device.late:
                self.run_to(self.asked)

    def drop(self) -> None:
        """Forget what has not been done."""
        self.left.clear()
        self.done = self.asked

    def run_to(self, place: int) -> None:
        if self.done >= place:  # whoever asks may be a finaliser, called within NumPy's own handling of such a state
            return
        with _running, np.errstate(all="ignore"):
            while self.done < place:
                self.done += 1
                self.left.popleft().work()

    def copy(self, target: Any, source: Any) -> None:
        assert isinstance(target, PinnedArray) == isinstance(source, DeviceArray) == (not isinstance(target, DeviceArray))
        assert target.dtype == source.dtype
        assert target.nbytes == source.nbytes
        assert target.flags.c_contiguous
        assert source.flags.c_contiguous
        self.device.copies += 1
        owners = [_owner(array) for array in (target, source)]
        ends = [_unowned(np.asarray(array).reshape(-1)) for array in (target, source)]
        held = owners if self.device.deaf else []  # where waiting is left out, memory may be given back too early
        work = partial(self._copy, [weakref.ref(owner) for owner in owners], held, *ends)
        self.add(work, f"the copy {self.name}", ends[1:], ends[:1])

    def _copy(self, owners: list[Any], held: list[Any], target: np.ndarray, source: np.ndarray) -> None:
        """Copy by addresses alone, as a GPU does; by now, somebody may have let go of the memory."""
        assert all(owner() is not None for owner in owners), "memory was given back while a copy was under way"
        np.copyto(target, source)

    def record(self, event: Event) -> None:
        assert isinstance(event, EmulatedEvent)
        self.device.refuse("recording of an event")
        event.queue, event.place = self, self.asked

    def wait(self, event: Event) -> None:
        assert isinstance(event, EmulatedEvent)
        self.device.refuse("waiting for an event that was recorded outside")
        if event.queue is not None and self.device.deaf != self.name:
            self.add(partial(event.queue.run_to, event.place))


def _owner(array: np.ndarray) -> np.ndarray:
    """The array that a view's memory belongs to."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _unowned(array: np.ndarray) -> np.ndarray:
    """The same memory, which the result does not keep."""
    memory = (ctypes.c_char * max(1, array.nbytes)).from_address(array.ctypes.data)
    return np.frombuffer(memory, array.dtype, array.size)


devices: WeakSet[EmulatedDevice] = WeakSet()
_running = threading.RLock()  # of all queues, which several threads of the host may use


def finish_main() -> None:
    """What looking at an array of the GPU waits for: the main queues, and no other."""
    for device in devices:
        device.finish()


_COMPILING = threading.Lock()


class EmulatedDevice(Device):
    """A GPU made of a C compiler, and cuBLAS of NumPy. `backwards` runs threads and blocks from the last to the first.

    Its cuDNN is `fake_cudnn`, where the settings allow one.
    """

    watched = False  # its memory

    def __init__(self, backwards: bool = False, settings: Cupy = OWN) -> None:
        self.name, self.settings = "emulated", settings
        self.refused: Counter[str] = Counter()
        self.cublas = fake_cublas.FakeCublas()
        self._cublas = Cublas(settings.precision, self.cublas)
        self.shared_bytes = SHARED_BYTES
        self.backwards = backwards
        self.late: frozenset[str] = frozenset()
        self.deaf = ""
        self.free = 1 << 40  # bytes
        self.copies = 0
        self.joined = 0  # communicators
        self.kept: list[np.ndarray] | None = None  # all memory, for late kernels, which know addresses alone
        self.main, self.to_device = (EmulatedQueue(self, name) for name in ("main", "to_device"))
        devices.add(self)
        self.allocations = 0
        self.launches = 0  # of kernels
        self.graphs = 0
        self.captured: list[Task] | None = None  # the work of the graph that is being captured
        self._loaded: set[int] = set()  # kernels that were launched
        self.library = fake_cudnn.FrontEnd()
        self.library.queue = self.main.add
        self.convolutions = None if settings.convolutions == "own" else Cudnn(self, self.library, settings)
        self._modules: dict[str, ctypes.PyDLL] = {}

    def refuse(self, what: str) -> None:
        """Raise RuntimeError while a graph is captured."""
        if self.captured is not None:
            raise RuntimeError(f"cudaErrorStreamCaptureUnsupported: {what} while a graph is captured")

    def owns(self, array: Any) -> bool:
        return isinstance(array, DeviceArray) and array.watched == self.watched

    def finish(self) -> None:
        """Wait for the main queue."""
        self.main.run_to(self.main.asked)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        self.refuse("allocation of memory")
        self.allocations += 1
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        block = np.full(nbytes + ROOM, 0xAB, np.uint8)  # what has not been written is seen
        if self.kept is not None:
            self.kept.append(block)
        start = -block.ctypes.data % ROOM
        return block[start : start + nbytes].view(dtype).reshape(shape).view(DeviceArray)

    def assign(self, target: Any, source: Any) -> None:
        self.refuse("a copy by the host")
        there, from_there = self.owns(target), self.owns(source)
        to, start = np.asarray(target), (np.asarray(source) if from_there else np.array(source)).reshape(target.shape)
        work = partial(np.copyto, to, start, casting="unsafe")
        self.main.add(work, "the copy of an array", [start] if from_there else [], [to] if there else [])
        if not there:
            self.finish()

    def event(self) -> EmulatedEvent:
        return EmulatedEvent(self)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> PinnedArray:
        self.refuse("allocation of pinned memory")
        self.allocations += 1
        array = np.empty(shape, dtype).view(PinnedArray)
        array.reshape(-1).view(np.uint8)[:] = 0xAB
        return array

    def room(self) -> int:
        return self.free

    def contiguous(self, array: Any, dtype: Any = None) -> DeviceArray:
        if self.owns(array) and array.flags.c_contiguous and (dtype is None or dtype == array.dtype):
            return array
        finish_main()
        return self.array(np.array(array, dtype, subok=False))

    def address(self, array: DeviceArray) -> int:
        return array.ctypes.data

    def compile(self, text: str, kernels: Sequence[Kernel]) -> dict[str, Any]:
        with _COMPILING:  # a second thread would load what the first one has half written
            if text not in self._modules:
                self.refuse("compilation of a module")
                self._modules[text] = self.loaded("\n".join([SHIM, text, *map(_entry, kernels)]))
            module = self._modules[text]
        return {kernel.name: (module[f"call_{kernel.name}"], kernel) for kernel in kernels}

    def runtime(self) -> ctypes.PyDLL:
        """What runs kernels."""
        return _runtime()

    def loaded(self, text: str) -> ctypes.PyDLL:
        """The kernels of a C text."""
        self.runtime()
        return ctypes.PyDLL(str(built(hashlib.sha256(text.encode()).hexdigest()[:16], text)))

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, int],
        block: tuple[int, int],
        arguments: Sequence[np.generic],
        shared: int = 0,
    ) -> Work:
        function, description = kernel
        assert len(arguments) == len(description.parameters)
        bounds = re.search(rf"KERNEL(?:_OF\((\d+), \d\))? {description.name}\(", description.text)
        assert block[0] * block[1] <= int(bounds[1] or 256)
        declared = declared_bytes(description.text)
        assert declared <= DECLARED_BYTES
        assert not shared or shared + declared <= self.shared_bytes
        assert 1 <= grid[0] < 1 << 31
        assert 1 <= grid[1] < 1 << 16
        boxes = [np.array(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(boxes))(*(box.ctypes.data for box in boxes))
        given = function, pointers, boxes, *grid, *block, shared, int("__syncthreads" in description.text)
        task = Task(partial(self._launch, *given), f"the kernel {description.name}")
        number = ctypes.cast(function, ctypes.c_void_p).value or 0
        return partial(self.started_kernel, number, task)

    def started_kernel(self, function: int, task: Task) -> None:
        if function not in self._loaded:
            self.refuse("loading of a kernel by its first launch")
            self._loaded.add(function)
        self.main.put(task)

    def _launch(self, function: Any, pointers: Any, boxes: Any, *numbers: int) -> None:
        self.launches += 1
        apart = self.runtime().launch(function, pointers, *numbers, int(self.backwards))
        assert not apart, "some threads of a block came to a barrier that others never came to"

    def product(self, gemm: Gemm) -> Work:
        call = self._cublas.call(gemm)
        return partial(self.main.put, Task(lambda: self.cublas.cublasGemmEx(None, *call), *_touched(gemm)))

    def join(self, comm: Any) -> None:
        self.refuse("making a communicator")
        self.joined += 1

    def all_reduce(self, words: np.ndarray, dtype: np.dtype[Any], count: int, source: int, target: int) -> Work:
        """What sums through MPI on the host, in the order of the main queue."""
        return Uncaptured(lambda: self._sum(words.copy(), dtype, count, source, target))

    def _sum(self, words: np.ndarray, dtype: np.dtype[Any], count: int, source: int, target: int) -> None:
        self.refuse("a sum over processes")
        a, out = (
            np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(place), dtype) for place in (source, target)
        )
        self.main.add(partial(all_reduce, words, out if source == target else a, out), "a sum over processes", [a], [out])

    def capture(self, work: Sequence[Work]) -> Work:
        self.refuse("another capture")
        self.graphs += 1
        self.captured = []
        try:
            for each in work:
                each()
        finally:
            captured, self.captured = self.captured, None
        return partial(self.replay, captured)

    def replay(self, graph: Sequence[Task]) -> None:
        """Do the work of a graph."""
        for task in graph:
            self.main.put(task)

    def running(self) -> AbstractContextManager[object]:
        return np.errstate(all="ignore")

    def current_stream(self) -> int:
        return fake_cudnn.STREAM

    def seconds(self, work: Work, repeats: int = 5) -> float:
        self.refuse("timing")
        before = self.library.seconds
        with self.running():
            work()
        return self.library.seconds - before


def _area(address: int, rows: int, length: int, leading: int) -> np.ndarray:
    """The bytes of a matrix: so many rows of a length, and how far one begins after the other."""
    span = max(0, (rows - 1) * leading + length)
    return np.ndarray((rows, length), np.uint8, fake_cublas.memory(address, span), 0, (leading, 1))


def _touched(gemm: Gemm) -> tuple[str, list[np.ndarray], list[np.ndarray]]:
    """What a product is called, what it reads and what it writes."""
    (rows, columns, inner), size = gemm.sizes, gemm.dtype.itemsize
    lengths = [(rows, columns), (rows, inner), (inner, columns)]
    lengths[1:] = [each[::-1] if turned else each for each, turned in zip(lengths[1:], gemm.transposed, strict=True)]
    out, *reads = (
        _area(address, many, length * size, leading * size)
        for address, (many, length), leading in zip(gemm.addresses, lengths, gemm.leading, strict=True)
    )
    reads += [out] if gemm.accumulate else []
    return f"the product of {rows} x {inner} and {inner} x {columns}", reads, [out]


def declared_bytes(text: str) -> int:
    """The shared memory that a kernel declares."""
    found = re.findall(r"SHARED (\w+) ([^;]+);", text)
    counts = [(kind, [int(count or 1) for count in re.findall(r"\w+(?:\[(\d+)\])?", names)]) for kind, names in found]
    return sum({"Index": 8, "double": 8}.get(kind, 4) * sum(each) for kind, each in counts)


def _entry(kernel: Kernel) -> str:
    """A function that takes a kernel's arguments by their addresses, as a launch does."""
    kinds = [kind.replace("const ", "") for kind in kernel.parameters]
    arguments = ", ".join(f"*({kind}*)a[{k}]" for k, kind in enumerate(kinds))
    return f"void call_{kernel.name}(void** a) {{ {kernel.name}({arguments}); }}"


class EmulatedBackend(CupyBackend):
    """The GPU backend on `EmulatedDevice`."""

    def __init__(self, name: str = "emulated", backwards: bool = False, settings: Cupy = OWN, fused: bool = False) -> None:
        super().__init__(EmulatedDevice(backwards, settings), fused)
        self.name = name
        if name == "emulated":
            add_memory(self.on_device.device, self.on_device)


def register(backends: dict[str, Callable[[], Backend]]) -> None:
    """Make these names of backends: "emulated", "backwards" with its threads in the other order, others.

    "one-kernel" and "one-kernel-backwards" run programs as one kernel wherever that is possible; the others never do.
    """
    backends["emulated"] = EmulatedBackend
    backends["backwards"] = partial(EmulatedBackend, "backwards", True)
    backends["emulated-cudnn"] = partial(EmulatedBackend, "emulated-cudnn", settings=Cupy(convolutions="cudnn"))
    backends["emulated-tf32"] = partial(EmulatedBackend, "emulated-tf32", settings=Cupy("tf32", "own"))
    backends["one-kernel"] = partial(EmulatedBackend, "one-kernel", fused=True)
    backends["one-kernel-backwards"] = partial(EmulatedBackend, "one-kernel-backwards", True, fused=True)
