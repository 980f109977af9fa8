"""`CudaDevice` as it is, on a stand-in for CuPy that refuses NumPy's arrays as CuPy does: users get NumPy's numbers."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import (
    Adam,
    BatchNorm,
    Chain,
    Conv,
    CrossEntropyLoss,
    Dense,
    Dropout,
    Flatten,
    MaxPool,
    SquaredLoss,
    relu,
    tanh,
    train,
)
from chains.backends import Cupy, backend
from chains.backends.cupy.source.commands import Source
from chains.data import Batches
from tests.cupy import fake_cupy
from tests.cupy.support import needs_compiler
from tests.harness import assert_close

RNG = np.random.default_rng(0)
X, Y, T = RNG.normal(size=(30, 3)).astype(np.float32), RNG.normal(size=(30, 4)).astype(np.float32), RNG.integers(0, 4, 30)
IMAGES = RNG.normal(size=(10, 2, 8, 8)).astype(np.float32)
NET = Chain(Dense(3, 8, tanh), Dense(8, 4))
LOSS = SquaredLoss()


@pytest.fixture
def cupy(monkeypatch):
    return fake_cupy.install(monkeypatch)


def trained(put, net, x, t, loss=LOSS, **settings):
    p = put(net.init(seed=0))
    own = {"state": put(net.init_state())} if net.n_state else {}
    settings = {"epochs": 2, "seed": 1} | ({} if t is None else {"batch_size": 7}) | settings
    history = train(net, p, x, t, loss, Adam(1e-2, clip_norm=1.0), **settings, **own)
    return p, np.array(history.loss)


def minimized(put, method):
    net = Chain(Dense(3, 1))
    objective = net.objective(put(X.astype(np.float64)), put(Y[:, :1].astype(np.float64)), LOSS)
    return chains.minimize(objective, put(net.init(dtype=np.float64)), method).x


def members(put, **settings):
    p = put(NET.init_many(2, seed=0))
    train(NET, p, put(X), put(Y), LOSS, Adam(1e-2), epochs=2, batch_size=7, seed=[1, 2], **settings)
    return p


def stopped(put):
    judged = {"validation": (put(X), put(Y)), "metrics": [lambda t, y: float(np.abs(t - y).mean())]}
    return trained(put, NET, put(X), put(Y), callbacks=[chains.EarlyStopping(patience=1)], **judged)


def resumed(put):
    p = put(NET.init(seed=0))
    first = train(NET, p, put(X), put(Y), LOSS, Adam(1e-2), epochs=1, batch_size=7, seed=1)
    train(NET, p, put(X), put(Y), LOSS, Adam(1e-2), epochs=2, batch_size=7, seed=1, resume=first)
    return p


P, V = NET.init(seed=0), np.linspace(-1.0, 1.0, NET.n_params, dtype=np.float32)
IMAGE_NET = Chain(
    Conv(2, 5, 3, relu), MaxPool(2), Conv(5, 7, 3, relu, padding=1), Flatten(), Dense(63, 4), input_shape=(2, 8, 8)
)
DROPPING = Chain(Dense(3, 8, tanh), Dropout(0.3), Dense(8, 4))
CALLS = {
    "a call": lambda put: NET(put(X), put(P)),
    "a call on the host's data": lambda put: NET(X, put(P)),
    "a gradient": lambda put: NET.value_and_grad(put(P), put(X), put(Y), LOSS, weights=put(np.ones(30, np.float32))),
    "a pullback": lambda put: NET.vjp(put(P), put(X), put(Y)),
    "hvp": lambda put: NET.hvp(put(P), put(X), put(Y), LOSS, put(V)),
    "the Gauss-Newton product": lambda put: NET.gauss_newton(put(P), put(X), put(Y), LOSS, put(V)),
    "gradients of samples": lambda put: NET.sample_gradients(put(P), put(X), put(Y), LOSS),
    "the Jacobian": lambda put: NET.jacobian(put(P), put(X)),
    "the Jacobian by inputs": lambda put: NET.input_jacobian(put(P), put(X)),
    "the Laplacian": lambda put: NET.laplacian(put(P), put(X)),
    "derivatives": lambda put: NET.derivatives(put(P), put(X), 3),
    "the Hessian by inputs": lambda put: NET.derivatives(put(P), put(X), 2, full=True),
    "derivatives along directions": lambda put: NET.derivatives(put(P), put(X), 2, put(X[:2])),
    "training": lambda put: trained(put, DROPPING, put(X), put(T), CrossEntropyLoss()),
    "training with a state": lambda put: trained(put, Chain(Dense(3, 4, bias=False), BatchNorm(4)), put(X), put(Y)),
    "training on batches": lambda put: trained(put, NET, Batches(X, Y, batch_size=7, shuffle=False), None),
    "training on images": lambda put: trained(put, IMAGE_NET, put(IMAGES), put(T[:10]), CrossEntropyLoss()),
    "training that is stopped": stopped,
    "training that is resumed": resumed,
    "members": members,
    "members that are judged": lambda put: members(put, validation=(put(X), put(Y))),
    "BFGS": lambda put: minimized(put, "BFGS"),
    "L-BFGS": lambda put: minimized(put, "L-BFGS"),
}  # fmt: skip


def numbers(found):
    """As NumPy's arrays."""
    if isinstance(found, tuple):
        return [number for each in found for number in numbers(each)]
    return [found.get() if isinstance(found, fake_cupy.ndarray) else np.asarray(found)]


@needs_compiler
@pytest.mark.few(3)
@pytest.mark.parametrize("name", CALLS)
def test_what_users_call_gives_numpys_numbers(name, cupy):
    found = CALLS[name](cupy.asarray)
    assert any(isinstance(each, fake_cupy.ndarray) for each in (found if isinstance(found, tuple) else (found,)))
    for mine, wanted in zip(numbers(found), numbers(CALLS[name](np.array)), strict=True):
        assert_close(mine, wanted, 1e-3 if "state" in name else 2e-5)


@needs_compiler
def test_streams_and_graphs(cupy):
    """Data of the host go by copies of their own; steps are graphs from the third on, cuDNN's among them."""
    cupy.inner.free = 0
    p, wanted = trained(cupy.asarray, NET, X, Y)[0], trained(np.array, NET, X, Y)[0]
    assert_close(p.get(), wanted, 1e-5)
    cupy.inner.free = 1 << 40
    out = np.empty((30, 4), np.float32)
    assert NET(X, p, out=out) is out
    assert_close(out, NET(X, wanted), 1e-5)
    assert cupy.copies > 10


@needs_compiler
def test_cudnn_is_captured(monkeypatch):
    cupy = fake_cupy.install(monkeypatch, cudnn=True)
    settings = Cupy(convolutions="cudnn")
    net = Chain(*IMAGE_NET.layers, input_shape=IMAGE_NET.input_shape, backend=settings)
    p = trained(cupy.asarray, net, cupy.asarray(IMAGES), cupy.asarray(T[:10]), CrossEntropyLoss(), batch_size=5)
    wanted = trained(np.array, IMAGE_NET, IMAGES, T[:10], CrossEntropyLoss(), batch_size=5)
    assert_close(p[0].get(), wanted[0], 1e-5)
    assert {result for result, _ in cupy.inner.library.executed} == {"w", "x", "y"}
    assert len(cupy.inner.library.executed) >= 4 * 5
    assert cupy.graphs >= 1
    assert backend(settings).on_device.device.refused["graph"] == 0


@needs_compiler
@pytest.mark.parametrize("put", [np.asarray, lambda x: backend("cupy").on_device.device.array(x.T).T], ids=["host", "gaps"])
def test_data_without_room_say_what_to_do(cupy, put, monkeypatch):
    """CuPy's own error names no remedy."""
    p, t, empty = cupy.asarray(NET.init(seed=0)), cupy.asarray(np.ones((1000, 4), np.float32)), cupy.inner.empty
    x = put(np.ones((1000, 3), np.float32))

    def full(shape, dtype):
        if (shape, dtype) == (x.shape, x.dtype):
            raise cupy.cuda.memory.OutOfMemoryError("Out of memory allocating 12,000 bytes")
        return empty(shape, dtype)

    monkeypatch.setattr(cupy.inner, "empty", full)
    with pytest.raises(MemoryError, match=r"the GPU has no room for 12,000 more bytes .*: take smaller batches"):
        train(NET, p, x, t, LOSS, Adam())


@needs_compiler
def test_the_stand_in_refuses_what_cupy_refuses(cupy):
    a, b = cupy.asarray(X), X.copy()
    for wrong in (
        lambda: np.asarray(a), lambda: a + b, lambda: b + a, lambda: np.add(a, b), lambda: np.concatenate([a, b]),
        lambda: a.__setitem__(..., b), lambda: b.__setitem__(..., a), lambda: np.linalg.norm(a), lambda: memoryview(a),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            wrong()
    assert not hasattr(a, "ctypes")
    assert isinstance(a.sum(), fake_cupy.ndarray)
    assert float(a.sum()) == float(X.sum())
    text = "KERNEL own(const Index batch, float* b0, const Index k)\n{\n    b0[0] = k;\n}\n"
    function = cupy.RawModule(code=Source().text(False) + text, options=("--std=c++17",), backend="nvrtc").get_function("own")
    with pytest.raises(AssertionError, match="const Index is given 8 bytes of 4"):
        function((1, 1), (1, 1), (np.int32(1), np.uint64(cupy.asarray(X).data.ptr), np.int64(3)))
    with pytest.raises(AssertionError, match="CUDA_ERROR_INVALID_VALUE"):
        function((1, 1), (1, 1), (), shared_mem=50_000)


def test_what_the_stand_in_has_cupy_has():
    real = pytest.importorskip("cupy", reason="CuPy is not installed")
    public = {name for name in vars(fake_cupy.ndarray) if not name.startswith("_")}
    assert public <= set(dir(real.ndarray))
    special = {
        "__array__",
        "__array_ufunc__",
        "__array_function__",
        "__float__",
        "__int__",
        "__bool__",
        "__matmul__",
    }
    assert special <= set(dir(real.ndarray)) & set(dir(fake_cupy.ndarray))
    assert not {"ctypes", "__array_interface__", "__index__"} & set(dir(real.ndarray))  # its buffer is for managed memory
    assert all(hasattr(real, name) for name in (*fake_cupy.FUNCTIONS, "asarray", "asnumpy", "ascontiguousarray", "RawModule"))
    for name in ("Stream", "Event", "Device", "get_current_stream", "alloc_pinned_memory", "get_elapsed_time"):
        assert hasattr(real.cuda, name)
    for name in (
        "memcpyAsync",
        "memcpyDefault",
        "memoryTypeHost",
        "pointerGetAttributes",
        "memGetInfo",
        "getDeviceCount",
        "driverGetVersion",
    ):
        assert hasattr(real.cuda.runtime, name)
    for name in ("begin_capture", "end_capture", "wait_event", "record", "synchronize"):
        assert hasattr(real.cuda.Stream, name)
