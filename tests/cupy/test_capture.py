"""What the emulated GPU refuses while a graph is captured, as the driver does; copies whose memory is given back too early."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from chains import Chain, Dense, tanh
from chains.backends.cupy.source.commands import Pointers, Source, each_element
from chains.program.view import Buffer
from tests.cupy.emulated import EmulatedBackend, EmulatedDevice
from tests.cupy.support import needs_compiler
from tests.harness import assert_close

FLOAT = np.dtype(np.float32)


def doubling(device: EmulatedDevice, x, factor: int = 2):
    """What multiplies an array by a kernel of its own."""
    source, pointers = Source(), Pointers()
    there = pointers(Buffer("x", "state", FLOAT, (len(x),)), write=True)
    launch = pointers.launch(source, "own", each_element(str(len(x)), [f"{there}[i] *= {factor};"]), lambda batch: (1, 1))
    kernel = device.compile(source.text(False), list(source.kernels.values()))[launch.kernel.name]
    return device.launch(kernel, (1, 1), launch.block, [np.int32(1), np.uint64(device.address(x))])


@needs_compiler
def test_what_is_captured_is_done_by_replays_alone():
    device = EmulatedDevice()
    x = device.array(np.ones(5, FLOAT))
    double = doubling(device, x)
    double()
    graph = device.capture([double, double])
    assert np.asarray(x).tolist() == [2.0] * 5
    for _ in range(2):
        graph()
    assert np.asarray(x).tolist() == [32.0] * 5


REFUSED = {
    "allocation of memory": lambda device, x: device.empty((3,), FLOAT),
    "allocation of pinned memory": lambda device, x: device.pinned((3,), FLOAT),
    "a copy by the host": lambda device, x: device.assign(x, np.zeros(5, FLOAT)),
    "compilation of a module": lambda device, x: doubling(device, x, 7),
    "loading of a kernel": lambda device, x: device.late_kernel(),
    "waiting of the host": lambda device, x: device.event().wait(),
    "recording of an event": lambda device, x: device.main.record(device.event()),
    "waiting for an event": lambda device, x: device.main.wait(device.event()),
    "work in the queue to_device": lambda device, x: device.to_device.copy(x, device.pinned_array),
    "timing": lambda device, x: device.seconds(lambda: None),
    "another capture": lambda device, x: device.capture([]),
}


@needs_compiler
@pytest.mark.parametrize("what", REFUSED)
def test_what_the_driver_refuses_is_refused(what):
    """The error is the first one, and the device goes on as before."""
    device = EmulatedDevice()
    x = device.array(np.ones(5, FLOAT))
    device.pinned_array, device.late_kernel, double = device.pinned((5,), FLOAT), doubling(device, x, 3), doubling(device, x)
    device.pinned_array[...] = 4.0
    double()
    with pytest.raises(RuntimeError, match=f"cudaErrorStreamCaptureUnsupported: {what}.* while a graph is captured"):
        device.capture([double, partial(REFUSED[what], device, x)])
    assert np.asarray(x).tolist() == [2.0] * 5
    device.capture([double])()
    REFUSED[what](device, x)
    assert np.asarray(x)[0] in (0.0, 4.0, 12.0)


@needs_compiler
@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_step_with_work_that_cannot_be_captured(fails_at):
    """Run after run, a network that asks for memory in each of them gives NumPy's numbers, with one warning."""
    net = Chain(Dense(3, 8, tanh), Dense(8, 2))
    p, x = net.init(seed=0), np.random.default_rng(0).normal(size=(6, 3)).astype(FLOAT)
    program = net.program(dtype=FLOAT, mode="eval")
    backend = EmulatedBackend("fresh")
    device = backend.on_device.device
    binding = backend.on_device.bind(program, 6, {"p": device.array(p), "x": device.array(x)})
    binding.work.insert(fails_at, lambda: device.empty((4,), FLOAT))
    binding()
    with pytest.warns(RuntimeWarning, match="allocation of memory while a graph is captured"):
        binding()
    binding()
    assert_close(np.asarray(binding.arrays["y"]), net(x, p), 1e-6)
    assert device.refused["graph"] == 1


def test_memory_that_is_given_back_while_a_copy_is_under_way_is_seen():
    device = EmulatedDevice()
    device.late = frozenset({"to_device"})
    x, source, event = device.empty((5,), FLOAT), device.pinned((5,), FLOAT), device.event()
    source[...] = 1.0
    device.to_device.copy(x, source)
    device.to_device.record(event)
    event.wait()
    assert np.asarray(x).tolist() == [1.0] * 5
    device.to_device.copy(x, source)
    device.to_device.record(event)
    del source
    with pytest.raises(AssertionError, match="given back while a copy was under way"):
        event.wait()
