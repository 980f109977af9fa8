"""The GPU, through CuPy and cuBLAS.

CuPy's own cuBLAS functions refuse to work while a graph is captured, so the library is called directly. All work goes to
one stream, which waits for CuPy's default stream and is waited for by it.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, partial
from typing import Any

import numpy as np

from chains.backends.base import UnsupportedOperationError
from chains.backends.cupy.device import cudnn, nccl
from chains.backends.cupy.device.cublas import WORKSPACE_BYTES, Cublas
from chains.backends.cupy.device.interface import Device, Event, Gemm, Queue, Uncaptured, Work
from chains.backends.cupy.device.packages import VERSIONS, extra
from chains.backends.cupy.source.commands import Kernel
from chains.backends.cupy_settings import Cupy
from chains.support.memory import Array


class CudaDevice(Device):
    """The current CUDA device, with the settings of its backend. Raises ValueError if there is no GPU."""

    _lock = threading.Lock()  # of all devices, which share the stream for capturing

    def __init__(self, settings: Cupy) -> None:
        self.cupy = usable_cupy()
        self.name = "cuda"
        self.refused: Counter[str] = Counter()
        attributes = self.cupy.cuda.Device().attributes
        self.shared_bytes = int(attributes["MaxSharedMemoryPerBlockOptin"])
        self.stream, self._capturing, copying = _streams(self.cupy.cuda.Device().id)
        self.main, self.to_device = CudaQueue(self.cupy, self.stream), CudaQueue(self.cupy, copying)
        self._modules: dict[str, Any] = {}
        self._cublas = Cublas(settings.precision)
        self._workspace = self.empty((WORKSPACE_BYTES,), np.uint8)
        self.convolutions = cudnn.chosen(self, settings)

    def owns(self, array: Any) -> bool:
        return isinstance(array, self.cupy.ndarray)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        try:
            return self.cupy.empty(shape, dtype)
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            free, total = self.cupy.cuda.runtime.memGetInfo()
            nbytes = int(np.prod(shape, dtype=np.float64)) * np.dtype(dtype).itemsize
            raise MemoryError(
                f"the GPU has no room for {nbytes:,} more bytes ({free:,} of {total:,} are free): take smaller batches"
            ) from error

    def assign(self, target: Any, source: Any) -> None:
        if self.owns(target) and self.owns(source):
            target[...] = source.reshape(target.shape)
        elif self.owns(target):
            host = np.ascontiguousarray(source, target.dtype).reshape(target.shape)
            target.set(host)
            self._wait_for_pinned(host)
        elif self.owns(source):
            target[...] = source.get().reshape(target.shape)
        else:
            target[...] = source.reshape(target.shape)

    def contiguous(self, array: Any, dtype: Any = None) -> Array:
        given = array if self.owns(array) else np.asarray(array)
        kind = np.dtype(given.dtype if dtype is None else dtype)
        if self.owns(given) and given.flags.c_contiguous and given.dtype == kind:
            return given
        result = self.empty(given.shape, kind)
        self.assign(result, given)
        return result

    def _wait_for_pinned(self, host: np.ndarray) -> None:
        """Wait for the copy of an array in pinned memory. It is still under way when CuPy's functions return."""
        runtime = self.cupy.cuda.runtime
        if host.nbytes and runtime.pointerGetAttributes(host.ctypes.data).type == runtime.memoryTypeHost:
            self.cupy.cuda.get_current_stream().synchronize()

    def address(self, array: Array) -> int:
        return int(array.data.ptr)

    def compile(self, text: str, kernels: Sequence[Kernel]) -> dict[str, Any]:
        with self._lock:
            if text not in self._modules:
                self._modules[text] = raw_module(self.cupy, text)
            module = self._modules[text]
            try:
                return {kernel.name: module.get_function(kernel.name) for kernel in kernels}
            except MemoryError:
                raise
            except Exception as error:  # of NVRTC, of the driver, or of loading them: CuPy has many
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                raise UnsupportedOperationError(f"backend 'cupy' cannot compile its kernels: {reason}") from error

    def launch(
        self, kernel: Any, grid: tuple[int, int], block: tuple[int, int], arguments: Sequence[np.generic], shared: int = 0
    ) -> Work:
        if shared:  # more than 48 kB, including those of the text, must be requested
            kernel.max_dynamic_shared_size_bytes = shared
        return partial(kernel, grid, block, tuple(arguments), shared_mem=shared)

    def product(self, gemm: Gemm) -> Work:
        return partial(self._multiply, self._cublas.call(gemm))

    def _multiply(self, call: Any) -> None:
        self._cublas.start(call, self.current_stream(), self._workspace.data.ptr, WORKSPACE_BYTES)

    def join(self, comm: Any) -> None:
        nccl.join(self.cupy, comm)

    def all_reduce(self, words: np.ndarray, dtype: np.dtype[Any], count: int, source: int, target: int) -> Work:
        return Uncaptured(partial(self._sum, words, dtype, count, source, target))

    def _sum(self, words: np.ndarray, dtype: np.dtype[Any], count: int, source: int, target: int) -> None:
        nccl.all_reduce(self.cupy, words, dtype, count, source, target, self.current_stream())

    def capture(self, work: Sequence[Work]) -> Work:
        with self._lock, self._capturing:
            self._capturing.begin_capture()
            try:
                for each in work:
                    each()
            except BaseException:
                with suppress(Exception):  # fails too, as the capture is invalid: the first error says why
                    self._capturing.end_capture()
                raise
            graph = self._capturing.end_capture()
        return partial(graph.launch, self.stream)

    def running(self) -> AbstractContextManager[object]:
        return self._on_stream()

    def current_stream(self) -> int:
        return int(self.cupy.cuda.get_current_stream().ptr)

    def seconds(self, work: Work, repeats: int = 5) -> float:
        event, times = self.cupy.cuda.Event, [np.inf]
        with self.running():
            work()
            self.stream.synchronize()
            for _ in range(repeats):
                start, stop = event(), event()
                start.record(self.stream)
                work()
                stop.record(self.stream)
                stop.synchronize()
                times.append(self.cupy.cuda.get_elapsed_time(start, stop) / 1e3)
        return float(min(times))

    def event(self) -> Event:
        return CudaEvent(self.cupy.cuda.Event(disable_timing=True))

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        count = math.prod(shape)
        nbytes = max(1, count) * np.dtype(dtype).itemsize
        try:
            memory = self.cupy.cuda.alloc_pinned_memory(nbytes)
        except (self.cupy.cuda.runtime.CUDARuntimeError, MemoryError) as error:
            raise MemoryError(f"no {nbytes:,} bytes of the computer's memory can be pinned for copies: {error}") from error
        return np.frombuffer(memory, dtype, count).reshape(shape)

    def room(self) -> int:
        return int(self.cupy.cuda.runtime.memGetInfo()[0]) + int(self.cupy.get_default_memory_pool().free_bytes())

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        outer = self.cupy.cuda.get_current_stream()
        ordered = outer.ptr in (0, 1, self.stream.ptr)  # the default stream waits for ours anyway
        if not ordered:
            self.stream.wait_event(outer.record())
        try:
            with self.stream:
                yield
        finally:
            if not ordered:
                outer.wait_event(self.stream.record())


class CudaEvent(Event):
    """CuPy's event."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def wait(self) -> None:
        self.event.synchronize()


class CudaQueue(Queue):
    """A stream of CUDA."""

    def __init__(self, cupy: Any, stream: Any) -> None:
        self._runtime, self._stream = cupy.cuda.runtime, stream

    def copy(self, target: Any, source: Any) -> None:
        ends = [array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr for array in (target, source)]
        self._runtime.memcpyAsync(*ends, source.nbytes, self._runtime.memcpyDefault, self._stream.ptr)

    def record(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        event.event.record(self._stream)

    def wait(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        self._stream.wait_event(event.event)


@cache
def _streams(number: int) -> tuple[Any, ...]:
    """The streams of the current device, which has this number: one for all work in any precision, and two that nothing else
    waits for: for capturing graphs, and for copies to the GPU.
    """
    import cupy

    return cupy.cuda.Stream(), *(cupy.cuda.Stream(non_blocking=True) for _ in range(2))


def raw_module(cupy: Any, text: str) -> Any:
    """The module of a text, which CuPy compiles when a function of it is first asked for."""
    return cupy.RawModule(code=text, options=("--std=c++17",), backend="nvrtc")


def usable_cupy() -> Any:
    """The module `cupy`. If it is not installed or finds no GPU, raises ValueError with the missing part."""
    try:
        import cupy
    except ImportError as error:
        raise ValueError(f"`backend` (='cupy') needs CuPy, which cannot be imported: {error}; {extra('cuda')}") from error
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise ValueError(f"`backend` (='cupy') finds no GPU: {_reason(runtime, error)}") from error
    if count == 0:
        raise ValueError("`backend` (='cupy') finds no GPU: CUDA_VISIBLE_DEVICES hides them, or there is none")
    return cupy


def _reason(runtime: Any, error: Exception) -> str:
    """The text of CUDA's error, with the remedy."""
    driver, built = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if driver == 0:
        return "there is no NVIDIA driver on this computer"
    known, needed = driver // 1000, built // 1000
    if known < needed:
        other = f"the extra cuda{known} instead of cupy-cuda{needed}x, or " if known in VERSIONS else ""
        return (
            f"the driver knows CUDA {known}.{driver % 1000 // 10}, but this CuPy was built for CUDA {needed}; "
            f"install {other}a newer driver"
        )
    return str(error)
