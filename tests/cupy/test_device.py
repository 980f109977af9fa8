"""What is asked of cuBLAS and CuPy, and what is said where they are missing."""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
import threading
import types
import warnings
from functools import partial

import numpy as np
import pytest

from chains import Chain, Dense, backends, tanh
from chains.backends import Cupy
from chains.backends.cupy.device.cublas import Cublas, loaded
from chains.backends.cupy.device.cuda import CudaDevice, _streams, usable_cupy
from chains.backends.cupy.device.interface import Gemm
from tests.cupy import emulated
from tests.cupy.fake_cublas import FakeCublas
from tests.cupy.support import data, needs_compiler, trained
from tests.harness import assert_close


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_arguments_of_cublas(dtype, transposed, accumulate):
    rng = np.random.default_rng(0)
    a, b, out = (rng.normal(size=shape).astype(dtype) for shape in ((5, 7), (7, 3), (5, 3)))
    wanted = a @ b + (out if accumulate else 0)
    stored = [np.ascontiguousarray(m.T if turned else m) for m, turned in zip((a, b), transposed, strict=True)]
    place = np.full((5, 6), np.nan, dtype)
    place[:, :3] = out
    addresses = tuple(array.ctypes.data for array in (place, *stored))
    gemm = Gemm(np.dtype(dtype), (5, 3, 7), addresses, (6, stored[0].shape[1], stored[1].shape[1]), transposed, accumulate)
    library = FakeCublas()
    library.cublasGemmEx(None, *Cublas("float32", library).call(gemm))
    assert_close(place[:, :3], wanted, 1e-6)
    assert np.isnan(place[:, 3:]).all()


def test_threads_share_a_handle_of_cublas():
    """It takes memory and time to make one, which is not for a thread that captures a graph."""
    made, calls = [], []

    class Library:
        def cublasCreate_v2(self, pointer):
            made.append(threading.get_ident())
            pointer._obj.value = 7
            return 0

        def __getattr__(self, name):
            return lambda *arguments: (
                calls.append((name, *(a.value for a in arguments if isinstance(a, ctypes._SimpleCData)))) or 0
            )

    cublas = Cublas("float32", Library())
    cublas.start((), 1, 512, 32)
    for stream in (1, 2):
        thread = threading.Thread(target=cublas.start, args=((), stream, 512, 32))
        thread.start()
        thread.join()
    assert len(made) == 1
    ways = [[("cublasSetStream_v2", 7, stream), ("cublasSetWorkspace_v2", 7, 512, 32)] for stream in (1, 2)]
    product = ("cublasGemmEx", 7)
    assert calls == [*ways[0], product, product, *ways[1], product]


def cuda_device(**attributes):
    device = CudaDevice.__new__(CudaDevice)
    device.__dict__.update(attributes)
    return device


def test_shared_memory_is_asked_for():
    """Whatever its size: what the text of a kernel declares counts too, and more than 48 kB in all must be asked for."""
    asked, plain = (lambda *arguments: None for _ in range(2))
    cuda_device().launch(asked, (1, 1), (512, 1), [], 47_000)
    cuda_device().launch(plain, (1, 1), (512, 1), [])
    assert asked.max_dynamic_shared_size_bytes == 47_000
    assert not hasattr(plain, "max_dynamic_shared_size_bytes")


@pytest.mark.parametrize("pointer", [0, 1, 2, 9])
@pytest.mark.parametrize("fails", [False, True])
def test_streams_wait_for_each_other(pointer, fails):
    """The default stream does so by itself; another one, or a thread's own default (2), by events, after an error too."""
    done = []

    class Stream:
        def __init__(self, name, ptr):
            self.name, self.ptr = name, ptr

        def record(self):
            return self.name

        def wait_event(self, event):
            done.append(f"{self.name} waits for {event}")

        def __enter__(self):
            done.append("begin")

        def __exit__(self, *error):
            done.append("end")

    current = types.SimpleNamespace(get_current_stream=lambda: Stream("user", pointer))
    device = cuda_device(stream=Stream("main", 5), cupy=types.SimpleNamespace(cuda=current))
    with contextlib.suppress(KeyboardInterrupt), device.running():
        if fails:
            raise KeyboardInterrupt
    waiting = pointer not in (0, 1)
    assert done == [*["main waits for user"] * waiting, "begin", "end", *["user waits for main"] * waiting]


def test_graphs_are_captured_one_after_another():
    """Whatever the thread and the precision: there is one stream for it."""
    done = []

    class Capturing(contextlib.nullcontext):
        def begin_capture(self):
            done.append("begin")

        def end_capture(self):
            done.append("end")
            return types.SimpleNamespace(launch=print)

    stream = Capturing()
    devices = [cuda_device(_capturing=stream, stream=None) for _ in range(2)]
    other = threading.Thread(target=devices[1].capture, args=([],))
    devices[0].capture([other.start, partial(other.join, 0.1)])
    other.join()
    assert done == ["begin", "end"] * 2


def test_the_first_error_under_capture_is_the_one_that_is_told():
    """The end of a capture that is no longer valid fails too, and hides nothing."""
    ended = []

    class Capturing(contextlib.nullcontext):
        def begin_capture(self):
            pass

        def end_capture(self):
            ended.append(True)
            raise RuntimeError("cudaErrorStreamCaptureInvalidated")

    device = cuda_device(_capturing=Capturing(), stream=None)

    def refuses():
        raise MemoryError("no memory while a graph is captured")

    with pytest.raises(MemoryError, match="no memory while a graph is captured") as caught:
        device.capture([refuses])
    assert ended == [True]
    assert caught.traceback[-1].name == "refuses"
    with pytest.raises(RuntimeError, match="Invalidated"):  # the lock is free again, and an error of the end alone is told
        device.capture([])


@needs_compiler
@pytest.mark.parametrize("fused", [False, True])
def test_what_cannot_be_captured_goes_on_command_by_command(fused, monkeypatch):
    """A call, and training: the same numbers, one warning with the whole traceback for each list of commands."""
    x, t = data(30)
    made = emulated.EmulatedBackend("fresh", fused=fused)
    monkeypatch.setitem(backends.registry._BACKENDS, "fresh", lambda: made)
    monkeypatch.setattr(backends.registry, "_loaded", {})
    nets = {name: Chain(Dense(3, 8, tanh), Dense(8, 4), backend=name) for name in ("numpy", "fresh")}
    device = made.on_device.device

    def capture(work):
        raise KeyError("a kernel that was not loaded")

    monkeypatch.setattr(device, "capture", capture)
    results = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, net in nets.items():
            p = net.init(seed=0)
            trained(net, p, x, t, batch_size=30)
            for _ in range(3):
                results[name] = p, net(x, p)
    assert_close(results["fresh"][0], results["numpy"][0], 1e-5)
    assert_close(results["fresh"][1], results["numpy"][1], 1e-5)
    texts = [str(each.message) for each in caught if each.category is RuntimeWarning]
    assert len(texts) == device.refused["graph"] == (1 if fused else 2)  # where one block trains, there is no graph to make
    assert all("cannot be captured as a CUDA graph" in text for text in texts)
    assert all("Traceback" in text and "KeyError: 'a kernel that was not loaded'" in text for text in texts)


@pytest.mark.parametrize("pinned", [False, True])
def test_copies_from_pinned_memory_are_waited_for(pinned):
    """CuPy's `set` returns while such a copy is under way: whoever filled the array may fill it again."""
    waited = []
    stream = types.SimpleNamespace(synchronize=lambda: waited.append(True))
    runtime = types.SimpleNamespace(
        memoryTypeHost=1, pointerGetAttributes=lambda address: types.SimpleNamespace(type=int(pinned))
    )

    class Array(np.ndarray):
        def set(self, source):
            self.view(np.ndarray)[...] = source

    cupy = types.SimpleNamespace(
        ndarray=Array, empty=lambda shape, dtype: np.empty(shape, dtype).view(Array),
        cuda=types.SimpleNamespace(runtime=runtime, get_current_stream=lambda: stream),
    )  # fmt: skip
    device, target = cuda_device(cupy=cupy), np.zeros(3).view(Array)
    device.assign(target, np.arange(3.0))
    assert device.contiguous(np.arange(3.0)).tolist() == target.tolist() == [0, 1, 2]
    device.contiguous(target)  # which is there already
    assert waited == [True, True] * pinned


def test_each_device_has_its_own_streams(monkeypatch):
    made = []
    cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(Stream=lambda **settings: made.append(settings) or len(made)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    _streams.cache_clear()
    first, again, other = _streams(0), _streams(0), _streams(1)
    _streams.cache_clear()
    assert first == again
    assert not set(first) & set(other)
    assert made == [{}, *[{"non_blocking": True}] * 2] * 2


def fake_cupy(driver, built, count=None):
    class CUDARuntimeError(RuntimeError):
        pass

    def devices():
        if count is None:
            raise CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")
        return count

    runtime = types.SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=devices,
        driverGetVersion=lambda: driver,
        runtimeGetVersion=lambda: built,
    )
    return types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime), ndarray=type("ndarray", (), {}))


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (None, "needs CuPy, which cannot be imported: .*; install the extra cuda"),
        (fake_cupy(0, 12090), "finds no GPU: there is no NVIDIA driver on this computer"),
        (
            fake_cupy(11080, 12090),
            r"the driver knows CUDA 11\.8, but this CuPy was built for CUDA 12; install a newer driver",
        ),
        (
            fake_cupy(12090, 13000),
            r"12\.9, but this CuPy was built for CUDA 13; install the extra cuda12 instead of cupy-cuda13x, or a newer",
        ),
        (fake_cupy(12040, 12090), "finds no GPU: cudaErrorInsufficientDriver"),
        (fake_cupy(12090, 12090, 0), "CUDA_VISIBLE_DEVICES hides them"),
    ],
)
def test_without_a_gpu_a_sentence_says_why(monkeypatch, module, sentence):
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(backends.registry, "_loaded", {})
    with pytest.raises(ValueError, match=sentence):
        usable_cupy()
    for name in ("cupy", Cupy("tf32")):
        with pytest.raises(ValueError, match=sentence):
            Chain(Dense(3, 2), backend=name)
    net, x = Chain(Dense(3, 2)), np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match=sentence):
        net.init(device="cuda")
    assert net(x, net.init()).shape == (2, 2)  # "auto" goes on with the processor


@pytest.mark.parametrize(("name", "called"), [("cublas", "cuBLAS"), ("nvrtc", "nvrtc")])
def test_cublas_that_is_missing(monkeypatch, name, called):
    pathfinder = types.ModuleType("cuda.pathfinder")

    def missing(name):
        raise RuntimeError(f"lib{name}.so was not found")

    pathfinder.load_nvidia_dynamic_lib = missing
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    loaded.cache_clear()
    with pytest.raises(ValueError, match=re.escape(f"needs the library {called}, which cannot be loaded: lib{name}.so")):
        loaded(name)
    loaded.cache_clear()


def test_the_benchmark_says_that_nothing_was_measured(monkeypatch, capsys):
    from benchmarks.gpu import __main__ as script

    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(backends.registry, "_loaded", {})
    monkeypatch.setattr(backends.registry, "_BACKENDS", dict(backends.registry._BACKENDS))
    monkeypatch.setenv("CUPY_CACHE_DIR", "")  # which the benchmark sets
    monkeypatch.setattr(script, "Worker", script.Here)
    assert script.main([]) == 0
    assert capsys.readouterr().out.startswith("nothing was measured: `backend` (='cupy') needs CuPy")
