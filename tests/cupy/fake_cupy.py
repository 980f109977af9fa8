"""CuPy without a GPU, on the emulated one: as strict as CuPy 14 is with NumPy's arrays, streams, captures and arguments.

What chains asks of the module `cupy` is here, and nothing else: `CudaDevice` runs on it as it is. Its arrays are no arrays of
NumPy. They refuse to become such by themselves, and to be computed with together with such; where NumPy has numbers, they have
arrays without axes.
"""

from __future__ import annotations

import ctypes
import operator
import re
import sys
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from chains import backends
from chains.backends.cupy.device import cublas, cuda
from chains.backends.cupy.device import cudnn as cudnn_module
from chains.backends.cupy.source.commands import Kernel
from chains.support import memory as places
from tests.cupy.emulated import EmulatedDevice, EmulatedEvent, EmulatedQueue

IMPLICIT = "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly."
FUNCTIONS = (
    "all",
    "any",
    "array_equal",
    "concatenate",
    "isfinite",
    "maximum",
    "stack",
    "shape",
    "shares_memory",
    "where",
    "zeros_like",
)


class ndarray:  # noqa: N801 - CuPy's name
    """An array on the GPU."""

    __slots__ = ("__weakref__", "_memory")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory

    def __repr__(self) -> str:
        return f"array({self.get()!r})"

    shape = property(lambda self: self._memory.shape)
    dtype = property(lambda self: self._memory.dtype)
    size = property(lambda self: self._memory.size)
    ndim = property(lambda self: self._memory.ndim)
    nbytes = property(lambda self: self._memory.nbytes)
    itemsize = property(lambda self: self._memory.itemsize)
    strides = property(lambda self: self._memory.strides)
    flags = property(lambda self: self._memory.flags)
    data = property(lambda self: types.SimpleNamespace(ptr=self._memory.ctypes.data))
    T = property(lambda self: ndarray(self._memory.T))

    def get(self) -> np.ndarray:
        finish()
        return np.array(self._memory, subok=False)

    def set(self, host: np.ndarray) -> None:
        assert type(host) is np.ndarray
        assert host.dtype == self.dtype, f"{self.dtype} array cannot be set to {host.dtype} array"
        assert host.shape == self.shape
        assert host.flags.c_contiguous
        on_current(partial(np.copyto, np.asarray(self._memory), host.copy()))

    def item(self, *index: int) -> Any:
        return self.get().item(*index)

    def tolist(self) -> Any:
        return self.get().tolist()

    def tobytes(self) -> bytes:
        return self.get().tobytes()

    def __array__(self, *given: Any, **settings: Any) -> np.ndarray:
        raise TypeError(IMPLICIT)

    def __array_ufunc__(self, function: Any, method: str, *given: Any, **settings: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        return computed(function, *given, **settings)

    def __array_function__(self, function: Any, kinds: Any, given: Any, settings: Any) -> Any:
        if function.__name__ not in FUNCTIONS:
            return NotImplemented
        return function(*map(plain, given)) if function is np.shape else computed(function, *given, **settings)

    def __getitem__(self, key: Any) -> ndarray:
        return ndarray(np.asarray(self._memory)[view_key(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        part = np.asarray(self._memory)[view_key(key)]
        on_current(partial(np.copyto, part, plain(value), casting="unsafe"))

    def __len__(self) -> int:
        return len(self._memory)

    def __iter__(self) -> Any:
        return (self[k] for k in range(len(self)))

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __bool__(self) -> bool:
        return bool(self.get())

    def reshape(self, *shape: Any) -> ndarray:
        return ndarray(np.asarray(self._memory).reshape(*shape))

    def ravel(self) -> ndarray:
        return self.reshape(-1)

    def transpose(self, *axes: Any) -> ndarray:
        return ndarray(np.asarray(self._memory).transpose(*axes))

    def view(self, dtype: Any) -> ndarray:
        return ndarray(np.asarray(self._memory).view(dtype))

    def copy(self) -> ndarray:
        return computed(np.copy, self)

    def astype(self, dtype: Any, copy: bool = True) -> ndarray:
        return self if not copy and self.dtype == dtype else computed(lambda a: a.astype(dtype), self)


def view_key(key: Any) -> tuple[Any, ...]:
    """The key as one that gives NumPy a view, even of a single number."""
    key = key if isinstance(key, tuple) else (key,)
    return key if any(each is Ellipsis for each in key) else (*key, ...)


def plain(value: Any) -> Any:
    """What is computed with instead: arrays of the GPU as their memory. Raises TypeError for NumPy's arrays."""
    if isinstance(value, ndarray):
        return np.asarray(value._memory)
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    return value


def computed(function: Callable[..., Any], *given: Any, out: Any = None, **settings: Any) -> Any:
    """What NumPy's function gives, as an array of the GPU; numbers too, as arrays without axes."""
    finish()
    into = {} if out is None else {"out": plain(out)}
    result = function(*map(plain, given), **{name: plain(value) for name, value in settings.items()}, **into)
    if out is not None:
        return out[0] if isinstance(out, tuple) else out
    return own(np.asarray(result))


def own(array: np.ndarray) -> ndarray:
    """A copy on the GPU."""
    result = ndarray(MODULE.inner.empty(array.shape, array.dtype))
    np.asarray(result._memory)[...] = array
    return result


for _name in ("add", "sub", "mul", "truediv", "matmul", "pow", "eq", "ne", "lt", "le", "gt", "ge", "neg", "abs"):
    _function = getattr(operator, _name)
    setattr(ndarray, f"__{_name}__", lambda *given, f=_function: computed(f, *given))
    if _name in ("add", "sub", "mul", "truediv", "matmul", "pow"):
        setattr(ndarray, f"__r{_name}__", lambda a, b, f=_function: computed(f, b, a))
        setattr(ndarray, f"__i{_name}__", lambda a, b, f=_function: (a.__setitem__(..., computed(f, a, b)), a)[1])


def _reduction(name: str) -> Callable[..., Any]:
    """A method with the arguments that CuPy's has, which are fewer than NumPy's."""
    taken = {"axis", "dtype", "out", "keepdims"} if name in ("sum", "mean") else {"axis", "out", "keepdims"}

    def method(self: ndarray, *given: Any, **settings: Any) -> Any:
        if unknown := settings.keys() - taken:
            raise TypeError(f"{name}() got an unexpected keyword argument '{min(unknown)}'")
        return computed(lambda a: getattr(a, name)(*given, **settings), self)

    return method


for _name in ("sum", "max", "min", "mean", "any", "all", "argmax", "argmin"):
    setattr(ndarray, _name, _reduction(_name))


# Streams


class Stream:
    """A stream. The first one made waits for the default stream, which is of no queue here; others stand by themselves."""

    def __init__(self, non_blocking: bool = False) -> None:
        self.number, self.non_blocking = len(MODULE.streams), non_blocking
        MODULE.streams.append(self)
        self.ptr = 0x57EA if self.number == 0 else 0x5000 + self.number
        queues = {0: MODULE.inner.main, 2: MODULE.inner.to_device}
        self.queue: EmulatedQueue | None = queues.get(self.number)  # the second one captures, and nothing else

    def __enter__(self) -> Stream:
        MODULE.stack.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        assert MODULE.stack.pop() is self

    def begin_capture(self) -> None:
        assert MODULE.stack[-1] is self, "what is captured goes to the current stream"
        MODULE.inner.refuse("another capture")
        MODULE.inner.captured = []

    def end_capture(self) -> Graph:
        captured, MODULE.inner.captured = MODULE.inner.captured, None
        assert captured is not None, "cudaErrorStreamCaptureInvalidated"
        MODULE.graphs += 1
        return Graph(tuple(captured))

    def wait_event(self, event: Event) -> None:
        assert self.queue is not None
        self.queue.wait(event.place)

    def synchronize(self) -> None:
        assert self.queue is not None
        MODULE.inner.refuse("waiting of the host")
        self.queue.run_to(self.queue.asked)


class Default:
    """The default stream, whose work waits for that of the main queue, and is waited for by it."""

    ptr = 0

    @property
    def queue(self) -> EmulatedQueue:
        return MODULE.inner.main

    def synchronize(self) -> None:
        finish()


class Graph:
    """What was captured."""

    def __init__(self, tasks: Sequence[Any]) -> None:
        self.tasks = tasks

    def launch(self, stream: Stream) -> None:
        assert stream.queue is MODULE.inner.main
        MODULE.inner.replay(self.tasks)


class Event:
    """An event."""

    def __init__(self, disable_timing: bool = False) -> None:
        self.place = EmulatedEvent(MODULE.inner)

    def record(self, stream: Stream) -> None:
        assert stream.queue is not None
        stream.queue.record(self.place)

    def synchronize(self) -> None:
        self.place.wait()


def finish() -> None:
    MODULE.inner.finish()


def on_current(work: Callable[[], object]) -> None:
    """Work of CuPy itself, which it refuses to do while a graph is captured."""
    MODULE.inner.refuse("work of CuPy")
    MODULE.inner.main.add(work, "work of CuPy")


# Kernels


class RawModule:
    """A text, compiled when a function of it is first asked for."""

    def __init__(self, *, code: str, options: tuple[str, ...], backend: str) -> None:
        assert options == ("--std=c++17",)
        assert backend == "nvrtc"
        found = re.findall(r"^(KERNEL(?:_OF\(\d+, \d\))? (\w+)\((.*?)\)\n\{\n.*?^\}\n)", code, re.S | re.M)
        kernels = [Kernel(name, tuple(_types(parameters)), text) for text, name, parameters in found]
        self._made = partial(MODULE.inner.compile, code, kernels)
        self._index = 8 if "typedef long long Index" in code else 4

    def get_function(self, name: str) -> RawKernel:
        return RawKernel(self._made()[name], self._index)


def _types(parameters: str) -> list[str]:
    return [parameter.rpartition(" ")[0].strip() for parameter in parameters.split(",")]


class RawKernel:
    """A kernel. An `Index` of its text has so many bytes."""

    def __init__(self, made: Any, index: int) -> None:
        self.made, self.index = made, index
        self.max_dynamic_shared_size_bytes = 0  # beyond 48 kB, what a launch may ask for

    def __call__(
        self, grid: tuple[int, int], block: tuple[int, int], arguments: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        assert shared_mem <= max(48 << 10, self.max_dynamic_shared_size_bytes), "CUDA_ERROR_INVALID_VALUE"
        for kind, argument in zip(self.made[1].parameters, arguments, strict=True):  # CuPy passes their bytes as they are
            size = 8 if "*" in kind else {"const Index": self.index}[kind]
            assert argument.nbytes == size, f"{kind} is given {argument.nbytes} bytes of {size}"
        assert current().ptr in (MODULE.streams[0].ptr, MODULE.streams[1].ptr), "a launch on another stream"
        MODULE.inner.launch(self.made, grid, block, arguments, shared_mem)()


def current() -> Any:
    return MODULE.stack[-1] if MODULE.stack else MODULE.default


# The module


class FakeCupy(types.ModuleType):
    """The module `cupy`, on an emulated GPU `inner`."""

    __version__ = "14.2.0"
    ndarray, RawModule = ndarray, RawModule

    def __init__(self) -> None:
        super().__init__("cupy")
        self.inner = EmulatedDevice()
        self.streams: list[Stream] = []
        self.stack: list[Stream] = []  # of current streams
        self.default = Default()
        self.host_memory: list[np.ndarray] = []
        self.total = 1 << 40  # bytes of the GPU
        self.copies = self.graphs = 0
        memory = types.SimpleNamespace(OutOfMemoryError=type("OutOfMemoryError", (MemoryError,), {}))
        self.runtime = types.SimpleNamespace(
            CUDARuntimeError=type("CUDARuntimeError", (RuntimeError,), {}), getDeviceCount=lambda: 1, memcpyDefault=4,
            memoryTypeHost=1, memcpyAsync=self._copy, memGetInfo=lambda: (self.inner.free, self.total),
            pointerGetAttributes=self._attributes, driverGetVersion=lambda: 13000,
        )  # fmt: skip
        attributes = {"MaxSharedMemoryPerBlockOptin": self.inner.shared_bytes}
        device = types.SimpleNamespace(id=0, attributes=attributes)
        self.cuda = types.SimpleNamespace(
            Stream=Stream, Event=Event, Device=lambda: device, runtime=self.runtime, memory=memory,
            get_current_stream=current, alloc_pinned_memory=self._pinned, get_elapsed_time=lambda start, stop: 1.0,
        )  # fmt: skip

    def empty(self, shape: tuple[int, ...], dtype: Any) -> ndarray:
        return ndarray(self.inner.empty(shape, dtype))

    def asarray(self, array: Any, dtype: Any = None) -> ndarray:
        if isinstance(array, ndarray):
            return array if dtype is None or dtype == array.dtype else array.astype(dtype)
        MODULE.inner.refuse("work of CuPy")
        return own(np.asarray(array, dtype))

    def ascontiguousarray(self, array: ndarray) -> ndarray:
        return array if array.flags.c_contiguous else array.copy()

    def asnumpy(self, array: ndarray) -> np.ndarray:
        return array.get()

    def get_default_memory_pool(self) -> Any:
        return types.SimpleNamespace(free_bytes=lambda: 0)

    def _copy(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        assert kind == self.runtime.memcpyDefault
        (queue,) = (each.queue for each in self.streams if each.ptr == stream)
        self.copies += 1
        queue.add(partial(ctypes.memmove, target, source, nbytes), "a copy")

    def _pinned(self, nbytes: int) -> np.ndarray:
        self.inner.refuse("allocation of pinned memory")
        self.host_memory.append(np.full(nbytes, 0xAB, np.uint8))
        return self.host_memory[-1]

    def _attributes(self, address: int) -> Any:
        inside = any(a.ctypes.data <= address < a.ctypes.data + a.nbytes for a in self.host_memory)
        return types.SimpleNamespace(type=self.runtime.memoryTypeHost if inside else 0)


class Library:
    """cuBLAS, whose products go to the stream that it was given."""

    def __init__(self, module: FakeCupy) -> None:
        self._module = module

    def cublasCreate_v2(self, pointer: Any) -> int:
        self._module.inner.refuse("making a handle")
        pointer._obj.value = 7
        return 0

    def cublasSetStream_v2(self, handle: Any, stream: Any) -> int:
        assert stream.value == current().ptr
        return 0

    def cublasSetWorkspace_v2(self, handle: Any, workspace: Any, nbytes: Any) -> int:
        assert workspace.value % 256 == 0
        return 0

    def cublasGemmEx(self, *given: Any) -> int:
        self._module.inner.main.add(partial(self._module.inner.cublas.cublasGemmEx, *given), "a product")
        return 0


MODULE: Any = None


def install(monkeypatch: Any, cudnn: bool = False) -> FakeCupy:
    """Make this the module `cupy`, with nothing left of another one; and with `cudnn` its stand-in the module `cudnn`."""
    global MODULE
    MODULE = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", MODULE)
    monkeypatch.setattr(cublas, "loaded", lambda name: library)
    monkeypatch.setattr(cudnn_module, "load_for_cudnn", lambda: None)
    monkeypatch.setattr(
        backends.registry,
        "_loaded",
        {name: each for name, each in backends.registry._loaded.items() if name in ("auto", "native", "numpy")},
    )
    monkeypatch.setattr(places, "_OTHERS", [])
    library = Library(MODULE)
    front = MODULE.inner.library
    front.stream = lambda: current().ptr
    monkeypatch.setitem(sys.modules, "cudnn", front if cudnn else None)
    cuda._streams.cache_clear()
    return MODULE
