"""Single steps of the GPU backend, from importing CuPy to a captured convolution: each in a process of its own.

Whatever does not work on a machine shows here first, with its whole traceback and nothing else around it. Each step gives what
it found, and fails by an exception.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.gpu_chains import backend_name, device_of, near, on_host
from benchmarks.gpu_problems import Setting
from chains import GRU, Adam, Chain, Conv, Dense, Flatten, SquaredLoss, backends, relu, tanh, train
from chains.backends.cupy import backend as choosing
from chains.backends.cupy.binding import DeviceBinding
from chains.backends.cupy.device.interface import Device, Gemm, Work
from chains.backends.cupy.source.commands import Pointers, Source, each_element
from chains.network import record
from chains.program.view import Buffer

Result = dict[str, Any]
FLOAT = np.dtype(np.float32)
TOLERANCE = {"float32": 1e-5, "tf32": 4e-3}  # of products of normal numbers, relative to the largest result


def imports(setting: Setting) -> Result:
    """CuPy, the libraries and the device."""
    device = device_of("float32", setting)
    note = [f"Python {sys.version.split()[0]}, NumPy {np.__version__}, {device.shared_bytes:,} bytes of shared memory"]
    note.append(f"convolutions by {device.convolutions or 'products and kernels of our own'}")
    return {"note": "; ".join(note)}


def copies(setting: Setting) -> Result:
    """An array to the device and back; then through pinned memory, with events."""
    device, source = device_of("float32", setting), np.arange(1 << 20, dtype=FLOAT)
    near(on_host(device, device.array(source)), source, 0.0)
    there = device.empty(source.shape, FLOAT)
    first, second = (device.pinned(source.shape, FLOAT) for _ in range(2))
    first[...] = source
    sent, received = device.event(), device.event()
    device.to_device.copy(there, first)
    device.to_device.record(sent)
    device.to_device.wait(sent)
    device.to_device.copy(second, there)
    device.to_device.record(received)
    received.wait()
    near(second, source, 0.0)
    return {}


def _doubling(device: Device, x: Any, count: int, shared: int = 0) -> Work:
    """A kernel of our own that doubles numbers, by way of the last of so many bytes of shared memory, if any."""
    source, pointers = Source(), Pointers()
    there = pointers(Buffer("x", "state", FLOAT, (count,)), write=True)
    lines = each_element(str(count), [f"{there}[i] *= 2;"])
    if shared:
        last = f"((float*)shared_memory)[{shared // 4 - 256} + threadIdx.x]"
        lines = ["SHARED_MEMORY;", *each_element(str(count), [f"{last} = {there}[i];", f"{there}[i] += {last};"])]
    launch = pointers.launch(source, "double", lines, lambda batch: (4, 1), shared=shared)
    kernel = device.compile(source.text(False), list(source.kernels.values()))[launch.kernel.name]
    return device.launch(kernel, (4, 1), launch.block, [np.int32(1), np.uint64(device.address(x))], shared)


def kernel(shared: bool, setting: Setting) -> Result:
    """One compile and one launch; with all the shared memory that a block may have."""
    device = device_of("float32", setting)
    x = device.array(np.ones(1000, FLOAT))
    work = _doubling(device, x, 1000, device.shared_bytes if shared else 0)
    with device.running():
        work()
    near(on_host(device, x), np.full(1000, 2.0), 0.0)
    return {"note": f"{device.shared_bytes:,} bytes"} if shared else {}


def _product(device: Device, count: int = 96) -> tuple[Work, Any, np.ndarray]:
    """A product by cuBLAS, its result, and what that must be."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((count, count), FLOAT) for _ in range(2))
    left, right, out = device.array(a), device.array(b), device.empty((count, count), FLOAT)
    addresses = (device.address(out), device.address(left), device.address(right))
    work = device.product(Gemm(FLOAT, (count,) * 3, addresses, (count,) * 3, (False, False), False))
    return lambda kept=(left, right): work(), out, a @ b


def product(precision: str, setting: Setting) -> Result:
    device = device_of(precision, setting)
    work, out, wanted = _product(device)
    with device.running():
        work()
    return {"value": near(on_host(device, out), wanted, TOLERANCE[precision])}


def capture(what: str, setting: Setting) -> Result:
    """Kernels, or a product, done once, then captured as a graph that is replayed."""
    device = device_of("float32", setting)
    x = device.array(np.ones(1000, FLOAT))
    products, out, wanted = _product(device)
    double = _doubling(device, x, 1000)
    work = {"kernels": [double, double], "product": [products], "both": [double, products, double]}[what]
    with device.running():
        for each in work:  # the first run loads kernels and makes handles, which a capture cannot do
            each()
        graph = device.capture(work)
        for _ in range(3):
            graph()
    doubled = 4 * sum(each is double for each in work)
    near(on_host(device, x), np.full(1000, 2.0**doubled), 0.0)
    if products in work:
        near(on_host(device, out), wanted, 1e-5)
    return {}


def convolution(way: str, setting: Setting) -> Result:
    """The gradient of a network with a convolution, run by run and as a graph, against NumPy."""
    net = Chain(Conv(8, 16, 3, relu, padding=1), Flatten(), Dense(16 * 64, 4), input_shape=(8, 8, 8))
    return _gradient(net, way, setting, 3e-3 if "tf32" in way else 1e-4)


def network(way: str, setting: Setting) -> Result:
    """The gradient of a small dense network, as one kernel or kernel by kernel."""
    return _gradient(Chain(Dense(8, 32, tanh), Dense(32, 4)), way, setting, 1e-5)


def loops(setting: Setting) -> Result:
    """The gradient of a recurrent network whose loops are a launch each, with most of a block's shared memory."""
    net = Chain(GRU(8, 128), Dense(128, 4), input_shape=(4, 8))
    with mock.patch.object(choosing, "suits", return_value=False):  # the program as a whole is no kernel
        return _gradient(net, "one-kernel", setting, 1e-5)


def _gradient(net: Chain, way: str, setting: Setting, tolerance: float) -> Result:
    device_of(way, setting)
    rng, samples = np.random.default_rng(0), 12
    objective = record.Criterion(SquaredLoss(), net.output_shape)
    program = record.gradient(net.network, objective, np.float32, True)
    arrays = {
        "p": net.init(seed=0), "x": rng.standard_normal((samples, *net.input_shape), FLOAT),
        "t": rng.standard_normal((samples, *net.output_shape), FLOAT),
    }  # fmt: skip
    runner = backends.backend(backend_name(way, setting))
    reference = backends.backend("numpy").bind(program, samples, dict(arrays))
    binding = runner.bind(program, samples, dict(arrays))
    reference()
    error = 0.0
    for _ in range(3):  # launch by launch, captured, replayed
        binding()
        error = max(error, *(near(binding.arrays[name], reference.arrays[name], tolerance) for name in ("value", "g")))
    inner = binding.inner  # type: ignore[attr-defined]
    assert isinstance(inner, DeviceBinding)
    refused = inner.device.refused
    assert not refused["graph"], "the commands cannot be captured: see the warnings"
    return {"value": error, "note": f"{len(inner.work)} commands; {type(inner.compiled).__name__}"}


def training(way: str, setting: Setting) -> Result:
    """Some steps of training on data on the device, and on data that are streamed there."""
    device, rng = device_of(way, setting), np.random.default_rng(0)
    x, t = rng.standard_normal((40, 5), FLOAT), rng.standard_normal((40, 3), FLOAT)
    results = {}
    for name in ("numpy", "there", "streamed"):
        net = Chain(Dense(5, 8, tanh), Dense(8, 3), backend="numpy" if name == "numpy" else backend_name(way, setting))
        p = net.init(seed=0) if name == "numpy" else device.array(net.init(seed=0))
        source = [(x[k : k + 8], t[k : k + 8]) for k in range(0, 40, 8)], None
        data = source if name == "streamed" else (x, t)
        rest = {} if name == "streamed" else {"batch_size": 8, "shuffle": False}
        train(net, p, *data, SquaredLoss(), Adam(0.01), epochs=3, **rest)
        results[name] = p if name == "numpy" else on_host(device, p)
    return {"value": max(near(results[name], results["numpy"], 1e-4) for name in ("there", "streamed"))}


STEPS: Mapping[str, Callable[[Setting], Result]] = {
    "import": imports,
    "copies, pinned, events": copies,
    "one kernel": partial(kernel, False),
    "all shared memory": partial(kernel, True),
    **{f"product, {precision}": partial(product, precision) for precision in TOLERANCE},
    **{f"capture: {what}": partial(capture, what) for what in ("kernels", "product", "both")},
    **{f"network, {way}": partial(network, way) for way in ("kernel-by-kernel", "one-kernel")},
    **{f"convolution, {way}": partial(convolution, way) for way in ("own", "cudnn", "tf32-cudnn", "cudnn-tuned")},
    **{f"training, {way}": partial(training, way) for way in ("kernel-by-kernel", "one-kernel")},
    "loops": loops,
}
