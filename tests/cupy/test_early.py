"""Kernels that begin before the one in front of them has ended: on the emulated GPU, and as the driver is asked for it."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Adam, Chain, Conv, CrossEntropyLoss, Dense, Dropout, Flatten, backends, tanh, train
from chains.backends.cupy import binding
from chains.backends.cupy.device import cuda
from chains.backends.cupy.device.interface import Launched
from chains.backends.cupy.source.commands import Pointers, Source, each_element
from chains.program.view import Buffer
from tests.cupy import fake_cupy
from tests.cupy.emulated import EmulatedDevice
from tests.cupy.support import needs_compiler

FLOAT = np.dtype(np.float32)
IMAGES = np.random.default_rng(0).standard_normal((12, 1, 8, 8), np.float32)
LABELS = np.arange(12) % 3
LAYERS = Conv(1, 2, 3, tanh), Dropout(0.2), Flatten(), Dense(72, 3)


def steps(device, bodies: list[str], arrays, change=lambda text: text) -> list:
    """Kernels with these bodies, for each number i of arrays a, b, ..., launched later; `change` rewrites their text."""
    source, launches = Source(), []
    for body in bodies:
        pointers = Pointers()
        for name, array in zip("abc", arrays, strict=False):
            pointers.named(Buffer(name, "state", FLOAT, (len(array),)), name, write=True)
        launches.append(pointers.launch(source, "own", each_element("600", [body]), lambda batch: (2, 1)))
    functions = device.compile(change(source.text(False)), list(source.kernels.values()))
    given = [np.int32(1), *(np.uint64(device.address(array)) for array in arrays)]
    return [device.launch(functions[launch.kernel.name], (2, 1), (256, 1), given) for launch in launches]


CHAINS = {  # steps on a, b and c
    "what was written is read": ["b[i] = a[599 - i] + 1;", "c[i] = 2 * b[(i + 300) % 600];", "a[i] = c[599 - i] - 1;"],
    "what was read is overwritten": ["b[i] = a[599 - i];", "a[i] = 2 * a[i] + i % 5;", "c[i] = b[i] + a[(i + 7) % 600];"],
    "two launches ago": ["a[i] = a[i] + i;", "c[i] += 1;", "b[i] = a[599 - i];", "a[i] = b[i];"],
}


def done(bodies: list[str], backwards: bool, change=lambda text: text, graph: bool = True) -> tuple[list[np.ndarray], int]:
    """What the steps make of three arrays, done three times, later as a `graph`, and how many kernels began early."""
    device = EmulatedDevice(backwards)
    arrays = [device.array(np.arange(600, dtype=FLOAT) * k) for k in (1, 2, 3)]
    work = steps(device, bodies, arrays, change)
    for each in work * (1 if graph else 3):
        each()
    if graph:
        replay = device.capture(work)
        replay()
        replay()
    return [np.array(array) for array in arrays], device.early


def same(found: list[np.ndarray], wanted: list[np.ndarray]) -> bool:
    return all(np.array_equal(mine, its) for mine, its in zip(found, wanted, strict=True))


def without_waiting(text: str) -> str:
    return text.replace("WAIT_FOR_EARLIER;", "")


@needs_compiler
@pytest.mark.parametrize("what", CHAINS)
def test_kernels_that_begin_early_are_in_order_as_they_wait(what):
    wanted, early = done(CHAINS[what], False, graph=False)
    assert early == 0
    for backwards in (False, True):
        found, early = done(CHAINS[what], backwards)
        assert early >= len(CHAINS[what]) - 1
        assert same(found, wanted)


@needs_compiler
def test_a_kernel_that_does_not_wait_is_seen():
    """In no thread, or in some: a kernel behind it would take it for over."""
    body = CHAINS["two launches ago"]
    for begin in ("", "if (threadIdx.x % 2) WAIT_FOR_EARLIER;"):
        with pytest.raises(AssertionError, match="does not wait for the kernel before it"):
            done(body, False, lambda text, begin=begin: text.replace("WAIT_FOR_EARLIER;", begin))


@needs_compiler
@pytest.mark.parametrize("what", CHAINS)
def test_memory_touched_before_the_wait_gives_wrong_numbers(what):
    """All threads wait, but when their work is done."""

    def too_late(text: str) -> str:
        return without_waiting(text).replace("    }\n}\n", "    }\n    WAIT_FOR_EARLIER;\n}\n")

    assert not same(done(CHAINS[what], False, too_late)[0], done(CHAINS[what], False, graph=False)[0])


# What the driver is asked for


@pytest.fixture
def cupy(monkeypatch):
    return fake_cupy.install(monkeypatch)


def trained(name: str, cupy) -> tuple[np.ndarray, list[float]]:
    net = Chain(*LAYERS, input_shape=(1, 8, 8), backend=name)
    p = cupy.asarray(net.init(seed=0))
    history = train(
        net, p, cupy.asarray(IMAGES), cupy.asarray(LABELS), CrossEntropyLoss(), Adam(0.01), epochs=3, batch_size=4, seed=1
    )
    return p.get(), history.loss


@needs_compiler
def test_a_network_is_trained_with_kernels_that_begin_early(cupy):
    """The same bits as where each kernel waits for the one before it; kernels behind products and first ones do too."""
    found = trained("cupy", cupy)
    device = backends.backend("cupy").on_device.device
    assert device.overlaps
    assert cupy.inner.early > 20
    before = cupy.inner.early
    serial = trained("cupy-serial", cupy)
    assert not backends.backend("cupy-serial").on_device.device.overlaps
    assert cupy.inner.early == before
    assert found[0].tobytes() == serial[0].tobytes()
    assert found[1] == serial[1]


@needs_compiler
@pytest.mark.parametrize(("capability", "version"), [(8, 13000), (9, 12020)])
def test_older_devices_and_drivers_are_not_asked(cupy, capability, version):
    cupy.cuda.Device().attributes["ComputeCapabilityMajor"] = capability
    cupy.runtime.driverGetVersion = lambda: version
    assert not cuda.CudaDevice().overlaps
    assert not cupy.handles


@needs_compiler
def test_a_driver_that_refuses(cupy):
    """At the trial: a warning with its status, and kernels that wait for each other."""
    cupy.driver.status = 801
    device = cuda.CudaDevice()
    with pytest.warns(RuntimeWarning, match=r"(?s)which takes longer.*cuLaunchKernelEx failed with the status 801"):
        assert not device.overlaps
    assert not device.overlaps  # with no other warning
    x = device.array(np.ones(600, FLOAT))
    (work,) = steps(device, ["a[i] *= 2;"], [x])
    assert isinstance(work, Launched)
    assert work.early is None


@needs_compiler
def test_a_device_whose_numbers_are_wrong(cupy, monkeypatch):
    monkeypatch.setattr(fake_cupy.Graph, "launch", lambda self, stream: None)
    device = cuda.CudaDevice()
    with pytest.warns(RuntimeWarning, match="gave wrong numbers"):
        assert not device.overlaps


@needs_compiler
def test_a_driver_that_refuses_later(cupy):
    """The graph is captured again without, for good; an error that has nothing to do with it is raised as ever."""
    device = cuda.CudaDevice()
    assert device.overlaps
    x = device.array(np.ones(600, FLOAT))
    work = steps(device, ["a[i] *= 2;", "a[i] += 1;"], [x])
    with device.running():
        for each in work:
            each()
        with pytest.raises(RuntimeError, match="allocation of memory while a graph is captured"):
            device.capture([*work, lambda: device.empty((3,), FLOAT)])
        assert device.overlaps
        cupy.driver.status = 700
        with pytest.warns(RuntimeWarning, match="status 700"):
            graph = device.capture(work)
        assert not device.overlaps
        graph()
        device.capture(work)()
    assert x.get().tolist() == [15.0] * 600
    assert binding.as_graph(device, work) is not None
