"""Single steps of the GPU backend, from the import of CuPy to training, each in a new process.

What does not work on a machine shows here first, with its whole traceback. A step returns what it found, and raises where it
fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.gpu.backends import FLOAT, FUSED, PRECISIONS, backend_name, convolver, device_of, near, on_host
from benchmarks.gpu.problems import Result, Setting
from chains import GRU, Adam, Chain, Conv, Dense, Flatten, SquaredLoss, backends, relu, tanh, train
from chains.backends.cupy import backend as choosing
from chains.backends.cupy import streaming
from chains.backends.cupy.binding import DeviceBinding
from chains.backends.cupy.device.interface import Device, Gemm, Work
from chains.backends.cupy.source.commands import Pointers, Source, each_element
from chains.network import record
from chains.network.network import network_of
from chains.program.view import Buffer

TOLERANCE = {"float32": 1e-5, "tf32": 4e-3}  # of products of normal numbers, relative to the largest result


def imports(setting: Setting) -> Result:
    """CuPy, the libraries and the device."""
    device = device_of("float32", setting)
    versions = f"Python {sys.version.split()[0]}, NumPy {np.__version__}"
    return {"note": f"{versions}, {device.shared_bytes:,} bytes of shared memory; {convolver(device)}"}


def copies(setting: Setting) -> Result:
    """An array to the device and back; then through pinned memory, with an event."""
    device, source = device_of("float32", setting), np.arange(1 << 20, dtype=FLOAT)
    near(on_host(device, device.array(source)), source, 0.0)
    array, pinned, sent = device.empty(source.shape, FLOAT), device.pinned(source.shape, FLOAT), device.event()
    pinned[...] = source
    device.to_device.copy(array, pinned)
    device.to_device.record(sent)
    sent.wait()
    near(on_host(device, array), source, 0.0)
    return {}


def launches(kernels: int, products: int, precision: str, shared: bool, setting: Setting) -> Result:
    """Kernels that double numbers, and products, launch by launch, then captured and replayed.

    `shared`: with all the shared memory that a block may have.
    """
    device, rng, size = device_of(precision, setting), np.random.default_rng(0), 96
    a, b = (rng.standard_normal((size, size), FLOAT) for _ in range(2))
    x, left, right, out = device.array(np.ones(1000, FLOAT)), device.array(a), device.array(b), device.array(np.zeros_like(a))
    addresses = device.address(out), device.address(left), device.address(right)
    double = _doubling(device, x, 1000, device.shared_bytes if shared else 0)
    multiply = device.product(Gemm(FLOAT, (size,) * 3, addresses, (size,) * 3, (False, False), False))
    work = [double] * kernels + [multiply] * products
    with device.running():
        for each in work:  # the first run loads kernels and makes handles, which is not allowed in a capture
            each()
        graph = device.capture(work)
        for _ in range(3):
            graph()
    near(on_host(device, x), np.full(1000, 2.0 ** (4 * kernels)), 0.0)
    return {"value": near(on_host(device, out), a @ b if products else 0.0 * a, TOLERANCE[precision])}


def _doubling(device: Device, x: Any, count: int, shared: int) -> Work:
    """A kernel that doubles numbers, by way of the last of these bytes of shared memory, if any."""
    source, pointers = Source(), Pointers()
    numbers = pointers(Buffer("x", "state", FLOAT, (count,)), write=True)
    lines = each_element(str(count), [f"{numbers}[i] *= 2;"])
    if shared:
        last = f"((float*)shared_memory)[{shared // 4 - 256} + threadIdx.x]"
        lines = ["SHARED_MEMORY;", *each_element(str(count), [f"{last} = {numbers}[i];", f"{numbers}[i] += {last};"])]
    launch = pointers.launch(source, "double", lines, lambda batch: (4, 1), shared=shared)
    kernel = device.compile(source.text(False), list(source.kernels.values()))[launch.kernel.name]
    return device.launch(kernel, (4, 1), launch.block, [np.int32(1), np.uint64(device.address(x))], shared)


def network(name: str, setting: Setting) -> Result:
    """The gradient of a small dense network."""
    return _gradient(Chain(Dense(8, 32, tanh), Dense(32, 4)), name, setting, 1e-5)


def convolution(name: str, setting: Setting) -> Result:
    """The gradient of a network with a convolution."""
    net = Chain(Conv(8, 16, 3, relu, padding=1), Flatten(), Dense(16 * 64, 4), input_shape=(8, 8, 8))
    return _gradient(net, name, setting, 3e-3 if "tf32" in name else 1e-4)


def loops(setting: Setting) -> Result:
    """The gradient of a recurrent network whose loops are a launch each, with most of a block's shared memory."""
    net = Chain(GRU(8, 128), Dense(128, 4), input_shape=(4, 8))
    with mock.patch.object(choosing, "suits", return_value=False):  # the program as a whole is no kernel
        return _gradient(net, "one-kernel", setting, 1e-5)


def _gradient(net: Chain, name: str, setting: Setting, tolerance: float) -> Result:
    device, rng, samples = device_of(name, setting), np.random.default_rng(0), 12
    program = record.gradient(network_of(net), record.Criterion(SquaredLoss(), net.output_shape), FLOAT.type, True)
    shapes = {"x": net.input_shape, "t": net.output_shape}
    arrays = {key: rng.standard_normal((samples, *shape), FLOAT) for key, shape in shapes.items()} | {"p": net.init(seed=0)}
    reference = backends.backend("numpy").bind(program, samples, dict(arrays))
    binding = backends.backend(backend_name(name, setting)).bind(program, samples, dict(arrays))
    reference()
    error = 0.0
    for _ in range(3):  # launch by launch, captured, replayed
        binding()
        error = max(error, *(near(binding.arrays[key], reference.arrays[key], tolerance) for key in ("value", "g")))
    inner = binding.inner  # type: ignore[attr-defined]
    assert isinstance(inner, DeviceBinding)
    assert not device.refused["graph"], "the commands cannot be captured: see the warnings"
    return {"value": error, "note": f"{len(inner.work)} commands; {type(inner.compiled).__name__}"}


def training(name: str, setting: Setting) -> Result:
    """Steps of training on data on the GPU, streamed there, and from a source of batches; a call on data of the host."""
    device, rng = device_of(name, setting), np.random.default_rng(0)
    x, t = rng.standard_normal((40, 5), FLOAT), rng.standard_normal((40, 3), FLOAT)
    batches = [(x[k : k + 8], t[k : k + 8]) for k in range(0, 40, 8)], None
    nets = {key: Chain(Dense(5, 8, tanh), Dense(8, 3), backend=key) for key in ("numpy", backend_name(name, setting))}
    reference, net = nets.values()

    def trained(net: Chain, p: Any, *data: Any, **settings: Any) -> Any:
        train(net, p, *data, SquaredLoss(), Adam(0.01), epochs=3, **settings)
        return p

    def error(*data: Any, **settings: Any) -> float:
        return near(on_host(device, trained(net, device.array(net.init(seed=0)), *data, **settings)), wanted, 1e-4)

    arrays: dict[str, Any] = {"batch_size": 8, "shuffle": False}
    wanted = trained(reference, net.init(seed=0), x, t, **arrays)
    errors = [error(x, t, **arrays), error(*batches)]
    with mock.patch.object(streaming, "MEMORY_SHARE", -1.0):
        errors.append(error(x, t, **arrays))
    y = net(x, device.array(wanted), out=np.empty((40, 3), FLOAT))
    return {"value": max(*errors, near(y, reference(x, wanted), 1e-4))}


STEPS: Mapping[str, Callable[[Setting], Result]] = {
    "import": imports,
    "copies, pinned, events": copies,
    "kernels": partial(launches, 2, 0, "float32", False),
    "all shared memory": partial(launches, 1, 0, "float32", True),
    **{f"product, {precision}": partial(launches, 0, 1, precision, False) for precision in PRECISIONS},
    "kernels and a product": partial(launches, 2, 1, "float32", False),
    **{f"network, {name}": partial(network, name) for name in FUSED},
    **{f"convolution, {name}": partial(convolution, name) for name in ("float32", "cudnn", "tf32-cudnn", "tuned")},
    **{f"training, {name}": partial(training, name) for name in FUSED},
    "loops": loops,
}
