"""The GPU, through CuPy and cuBLAS.

CuPy's own cuBLAS functions refuse to work while a graph is captured, so the library is called directly. All work goes to
one stream, which waits for CuPy's default stream and is waited for by it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from chains.backends.cupy import cudnn
from chains.backends.cupy.cublas import WORKSPACE_BYTES, Cublas, CublasLt, Plan
from chains.backends.cupy.device import Array, Device, Epilogue, Gemm, Work
from chains.backends.cupy.kernels import Kernel


class CudaDevice(Device):
    """The current CUDA device. `precision` says how float32 matrices are multiplied: "float32", "tf32" or "bf16".

    The last two round the factors to 10 or 7 bits and add in float32. `convolutions` says who does these (see
    `chains.backends.cupy.cudnn`). Raises ValueError where there is no GPU to use.
    """

    def __init__(self, precision: str = "float32", convolutions: str = "auto") -> None:
        self.cupy = usable_cupy()
        self.name = "cuda"
        self.precision = precision
        self.refused: Counter[str] = Counter()
        self.stream, self._capturing = _streams()
        self._modules: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._cublas = Cublas(precision)
        self._lt = CublasLt(precision)
        self._workspace = self.empty((WORKSPACE_BYTES,), np.uint8)
        self.convolutions = cudnn.chosen(self, precision, convolutions)

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
            target.set(np.ascontiguousarray(source, target.dtype).reshape(target.shape))
        elif self.owns(source):
            target[...] = source.get().reshape(target.shape)
        else:
            target[...] = source.reshape(target.shape)

    def contiguous(self, array: Any, dtype: Any = None) -> Array:
        if not self.owns(array):
            array = np.asarray(array, dtype)
        return self.cupy.ascontiguousarray(self.cupy.asarray(array, dtype)).reshape(array.shape)

    def address(self, array: Array) -> int:
        return int(array.data.ptr)

    def compile(self, text: str, kernels: Sequence[Kernel]) -> dict[str, Any]:
        with self._lock:
            if text not in self._modules:
                self._modules[text] = self.cupy.RawModule(code=text, options=("--std=c++17",), backend="nvrtc")
            module = self._modules[text]
            return {kernel.name: module.get_function(kernel.name) for kernel in kernels}

    def launch(self, kernel: Any, grid: tuple[int, int], block: tuple[int, int], arguments: Sequence[np.generic]) -> Work:
        return partial(kernel, grid, block, tuple(arguments))

    def product(self, gemm: Gemm) -> Work:
        return partial(self._multiply, self._cublas.call(gemm))

    def _multiply(self, call: Any) -> None:
        self._cublas.start(call, self.current_stream(), self._workspace.data.ptr, WORKSPACE_BYTES)

    def fused(self, gemm: Gemm, epilogue: Epilogue) -> Work | None:
        plan = self._lt.plan(gemm, epilogue)
        return None if plan is None else partial(self._multiply_on, plan)

    def _multiply_on(self, plan: Plan) -> None:
        self._lt.start(plan, self.current_stream(), self._workspace.data.ptr)

    def capture(self, work: Sequence[Work]) -> Work:
        with self._lock, self._capturing:
            self._capturing.begin_capture()
            try:
                for each in work:
                    each()
            finally:
                graph = self._capturing.end_capture()
        return partial(graph.launch, self.stream)

    def running(self) -> AbstractContextManager[object]:
        return self._on_stream()

    def current_stream(self) -> int:
        return int(self.cupy.cuda.get_current_stream().ptr)

    def seconds(self, work: Work) -> float:
        event, times = self.cupy.cuda.Event, []
        with self.running():
            work()
            for _ in range(5):
                start, stop = event(), event()
                start.record(self.stream)
                work()
                stop.record(self.stream)
                stop.synchronize()
                times.append(self.cupy.cuda.get_elapsed_time(start, stop) / 1e3)
        return float(min(times))

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        outer = self.cupy.cuda.get_current_stream()
        ordered = outer.ptr in (0, 1, self.stream.ptr)  # the default stream, which waits for ours by itself
        if not ordered:
            self.stream.wait_event(outer.record())
        with self.stream:
            yield
        if not ordered:
            outer.wait_event(self.stream.record())


@cache
def _streams() -> tuple[Any, Any]:
    """The stream for all work, whatever the precision, and one for capturing graphs, which nothing else waits for."""
    import cupy

    return cupy.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)


def usable_cupy() -> Any:
    """The module `cupy`. Raises ValueError, saying what is missing, where it is not installed or finds no GPU."""
    try:
        import cupy
    except ImportError as error:
        raise ValueError(
            f"`backend` (='cupy') needs CuPy, which cannot be imported: {error}; pip install cupy-cuda12x "
            "(or cupy-cuda13x, by the CUDA version that nvidia-smi shows)"
        ) from error
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise ValueError(f"`backend` (='cupy') finds no GPU: {_reason(runtime, error)}") from error
    if count == 0:
        raise ValueError("`backend` (='cupy') finds no GPU: CUDA_VISIBLE_DEVICES hides them, or there is none")
    return cupy


def _reason(runtime: Any, error: Exception) -> str:
    """What a person can do about CUDA's error."""
    driver, built = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if driver == 0:
        return "there is no NVIDIA driver on this computer"
    if driver // 1000 < built // 1000:
        return (
            f"the driver knows CUDA {driver // 1000}.{driver % 1000 // 10}, but this CuPy was built for CUDA {built // 1000}; "
            f"pip install cupy-cuda{driver // 1000}x, or a newer driver"
        )
    return str(error)
