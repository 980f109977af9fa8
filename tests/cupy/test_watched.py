"""Memory of the emulated GPU, watched: kernels and queues as they are touch it in order; without a barrier or an event
they do not, and each is told apart.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from chains import (
    Adam,
    AvgPool,
    Chain,
    Conv,
    CrossEntropyLoss,
    Dense,
    Dropout,
    Flatten,
    MaxPool,
    backends,
    relu,
    tanh,
    train,
)
from chains.backends import Cupy
from chains.backends.cupy import streaming
from chains.backends.cupy.fused import tiling_policy
from chains.backends.cupy.source.commands import Pointers, Source
from chains.data import Batches
from chains.program.view import Buffer
from chains.support import memory as places
from tests.cupy import emulated, watched
from tests.cupy.support import CONVOLUTIONS
from tests.cupy.watched import MisuseError
from tests.harness import assert_close

pytestmark = pytest.mark.skipif(not watched.available(), reason="the compiler has no calls of a thread sanitizer")

FLOAT = np.dtype(np.float32)
RNG = np.random.default_rng(0)
X, T = RNG.integers(0, 4, (50, 3), np.uint8), RNG.integers(0, 4, 50)


@pytest.fixture
def gpu(monkeypatch):
    """Makes a watched GPU, which is the backend "watched"."""
    made = []

    def make(**settings):
        made.append(watched.WatchedBackend(**settings))
        monkeypatch.setitem(backends.registry._BACKENDS, "watched", watched.WatchedBackend)
        monkeypatch.setitem(backends.registry._loaded, "watched", made[-1])
        monkeypatch.setattr(places, "_OTHERS", [(made[-1].on_device.device, made[-1].on_device)])
        return made[-1].on_device.device

    yield make
    for each in made:  # what is left there was meant to be wrong
        device = each.on_device.device
        emulated.devices.discard(device)
        for queue in (device.main, device.to_device):
            queue.drop()


# Kernels

ME = "threadIdx.x"
MIRRORED = ["SHARED float s[64];", f"s[{ME}] = b0[{ME}];", "__syncthreads();", f"b1[{ME}] = s[63 - {ME}];"]
IN_PLACE = f"const float v = s[63 - {ME}]; s[{ME}] = v; b1[{ME}] = v;"
PLACE = r"an array of \(256,\) float32, byte"
KERNELS = {  # by what is said of it: the kernel, and its blocks
    "": (MIRRORED, 1),
    "reads shared memory by thread 32 of block 0 behind 1 barriers, written by thread 31": ([*MIRRORED[:3], IN_PLACE], 1),
    "some threads of a block came to a barrier": ([*MIRRORED[:2], f"if ({ME} < 32) __syncthreads();", f"b1[{ME}] = 1;"], 1),
    "reads shared memory, which nothing has written": ([MIRRORED[0], f"if ({ME} < 32)", *MIRRORED[1:]], 1),
    f"reads {PLACE} 0, which nothing has written": ([f"b0[{ME}] = b1[{ME}];"], 1),
    r"writes an array of .*, behind the end, byte 1,040, which is no memory of its own": ([f"b1[{ME} * 5] = 1;"], 1),
    f"writes {PLACE} 0 by thread 0 of block 1 behind 0 barriers, written by thread 0": ([f"b1[{ME}] = blockIdx.x;"], 2),
    f"writes {PLACE} 0 by thread 0 of block 1 behind 0 barriers, read by thread 0 of block 0": (
        [f"if (blockIdx.x) b0[{ME}] = 1;", f"else b1[{ME}] = b0[{ME}];"], 2,
    ),
    f"uses {PLACE} 4 as more than it is aligned for": ([f"float4 v = *(float4*)(b0 + {ME} % 8 * 4 + 1); b1[{ME}] = v.y;"], 1),
    "does what C does not define, in line": ([f"const int most = 2147483647; b1[{ME}] = most + batch;"], 1),
}  # fmt: skip


def run_kernel(device, body, blocks):
    """Run a kernel of 64 threads a block on two arrays: numbers, and nothing yet."""
    source, pointers = Source(), Pointers()
    arrays = [device.array(np.arange(256, dtype=FLOAT)), device.empty((256,), FLOAT)]
    for k, array in enumerate(arrays):
        pointers.named(Buffer(f"b{k}", "state", array.dtype, (array.size,)), f"b{k}", write=True)
    step = pointers.launch(source, "own", body, lambda batch: (blocks, 1), block=(64, 1))
    kernel = device.compile(source.text(False), list(source.kernels.values()))[step.kernel.name]
    numbers = [np.int32(64), *(np.uint64(device.address(array)) for array in arrays)]
    device.launch(kernel, (blocks, 1), step.block, numbers)()
    device.finish()


@pytest.mark.few(4)
@pytest.mark.parametrize("said", KERNELS)
def test_what_kernels_must_not_do_is_told(said, gpu):
    if said.strip():
        with pytest.raises(MisuseError, match=f"the kernel own_0:? {said}"):
            run_kernel(gpu(), *KERNELS[said])
    else:
        run_kernel(gpu(), *KERNELS[said])


# Programs


def network(name="numpy"):
    return Chain(Dense(3, 6, tanh), Dropout(0.3), Dense(6, 4), backend=name)


def trained(name="watched", x=X, t=T, **settings):
    p = network().init()
    settings = {"epochs": 2, "seed": 2} | ({"batch_size": 7} if t is not None else {}) | settings
    train(network(name), p, x, t, CrossEntropyLoss(), Adam(0.02, clip_norm=1.0), **settings)
    return p


@pytest.mark.parametrize("settings", [{}, {"fused": True}, {"fused": True, "backwards": True}], ids=["kernels", "one", "back"])
def test_training_touches_memory_in_order(settings, gpu):
    gpu(**settings)
    assert_close(trained(), trained("numpy"), 1e-5)


@pytest.fixture
def several(monkeypatch):
    """Several blocks, of three samples or a few more."""
    monkeypatch.setattr(tiling_policy, "MAX_ONE_BLOCK_OPERATIONS", 0)
    monkeypatch.setattr(tiling_policy, "MIN_BLOCK_SAMPLES", 3)


def test_training_by_several_blocks_touches_memory_in_order(several, gpu):
    gpu(fused=True)
    assert_close(trained(), trained("numpy"), 1e-5)


@pytest.mark.parametrize(
    "layers",
    [(CONVOLUTIONS["settings"], Flatten(), Dense(105, 2)),
     (Conv(2, 3, 2, relu), MaxPool(2), AvgPool(2, stride=1), MaxPool(2, stride=1), Flatten(), Dense(6, 2))],
    ids=["settings", "pools"],
)  # fmt: skip
@pytest.mark.parametrize("library", ["own", "cudnn"])
def test_convolutions_touch_memory_in_order(layers, library, gpu):
    """Those of cuDNN by its stand-in, which says what it reads and writes."""
    gpu(settings=Cupy(convolutions=library))
    results, images = [], RNG.normal(size=(3, 2, 9, 8))
    for name in ("watched", "numpy"):
        net = Chain(*layers, input_shape=(2, 9, 8), backend=name)
        results.append(net.value_and_grad(net.init(), images, np.arange(3) % 2, CrossEntropyLoss())[1])
    assert_close(*results, 1e-5)


LESS = {  # what is left out of the kernels of a step by several blocks
    "the barrier behind what is loaded": r"(KERNEL_OF\(512, 1\) network_0.*?)__syncthreads\(\);",
    "a barrier in the sum of parts": r"(sums_1\(.*?)__syncthreads\(\);",
}


@pytest.mark.parametrize("less", LESS)
def test_a_barrier_that_is_left_out_is_missed(less, several, gpu, monkeypatch):
    device = gpu(fused=True)
    loaded, changed = device.loaded, []

    def without(text):
        text, count = re.subn(LESS[less], r"\1", text, count=1, flags=re.S)
        changed.append(count)
        return loaded(text)

    monkeypatch.setattr(device, "loaded", without)
    with pytest.raises(MisuseError, match=r"the kernel (network|sums|training)_\d.* (reads|writes) .* by thread"):
        trained(epochs=1, batch_size=10)
    assert any(changed)


@pytest.mark.parametrize("named", ["reads", "writes"])
def test_commands_name_what_they_touch(named, gpu, monkeypatch):
    """Where scratch lies follows from that. What lay there before is as good as never written."""
    gpu()
    launch = Pointers.launch
    less = {"reads": "read", "writes": "written"}[named]

    def wrong(self, *given, **settings):
        setattr(self, less, set())
        return launch(self, *given, **settings | {"apart": False})  # what is not named as written would be `const`

    monkeypatch.setattr(Pointers, "launch", wrong)
    with pytest.raises(MisuseError, match=f"{named} .*, which its command does not name"):
        trained(epochs=1)


# Queues


def streamed(device, data):
    """Training on streamed arrays or batches, or a call in pieces with results on the host, is NumPy's."""
    device.free = 0
    given = (X, T) if data == "arrays" else (Batches(X, T, batch_size=7, shuffle=False), None)
    settings = {"shuffle": False} if data == "arrays" else {}
    found = trained("watched", *given, **settings)
    device.end()
    return found, trained("numpy", X, T, shuffle=False)


UNORDERED = r".*, which (nothing has written|nothing puts before it)"
WAITS = {  # by who does not wait: what is said
    "": "",
    "host": "pinned memory was written while the copy to_device could be reading it",
    "main": rf"the (kernel \w+|copy of an array) (reads|writes) {UNORDERED}",
    "to_device": f"the copy to_device writes {UNORDERED}",
}


@pytest.mark.few(4)
@pytest.mark.parametrize("data", ["arrays", "batches"])
@pytest.mark.parametrize("deaf", WAITS)
def test_a_queue_that_does_not_wait_is_told(deaf, data, gpu):
    device = gpu()
    device.deaf = deaf
    if deaf:
        with pytest.raises(MisuseError, match=WAITS[deaf]):
            streamed(device, data)
    else:
        assert_close(*streamed(device, data), 1e-5)


def test_memory_is_not_filled_before_what_used_it_last_is_done(gpu, monkeypatch):
    """Memory that is made may have been given back by work that is still to be done."""
    device, record = gpu(), watched.WatchedQueue.record
    monkeypatch.setattr(streaming.HostToDevice, "release", lambda self: setattr(self, "done", self.done + 1))
    monkeypatch.setattr(
        watched.WatchedQueue, "record", lambda self, event: record(self, event) if self.name != "main" else None
    )
    with pytest.raises(MisuseError, match=r"the copy to_device writes .* by the allocation of .*, which nothing puts"):
        streamed(device, "arrays")


def copy_under_way(device):
    there, source, event = device.empty((5,), FLOAT), device.pinned((5,), FLOAT), device.event()
    device.main.record(event)
    device.to_device.wait(event)
    source[...] = 1.0
    device.to_device.copy(there, source)
    device.to_device.record(event)
    return there, source, event


def test_pinned_memory_while_a_copy_is_under_way(gpu):
    device = gpu()
    there, source, event = copy_under_way(device)
    event.wait()
    source[...] = 2.0  # it is over
    device.to_device.copy(there, source)
    source[3] = 7.0
    device.to_device.record(event)
    with pytest.raises(MisuseError, match="pinned memory was written while the copy to_device could be reading it"):
        event.wait()
    back = device.pinned((5,), FLOAT)
    device.main.wait(event)
    device.main.copy(back, there)
    assert not np.isfinite(back).all() or (back != 2.0).all()  # what has not been waited for is no number
    device.main.record(event)
    event.wait()
    assert back[0] == 2.0


def test_memory_that_is_given_back_too_early(gpu):
    device = gpu()
    there, _source, _event = copy_under_way(device)
    del there
    device.to_device.run_to(device.to_device.asked)
    with pytest.raises(
        MisuseError, match=r"giving back an array of \(5,\) float32 writes .* the copy to_device, which nothing puts"
    ):
        device.finish()
    array = device.array(np.ones(5, FLOAT))
    address = device.address(array)
    del array
    device.finish()
    again = np.ndarray((5,), FLOAT, emulated.fake_cublas.memory(address, 20))
    device.main.add(lambda: None, "the product", [again])
    with pytest.raises(
        MisuseError, match=r"the product reads an array .*, which has been given back, byte 0, which is no memory of its own"
    ):
        device.finish()
