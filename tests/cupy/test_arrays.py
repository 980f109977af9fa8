"""Arrays on the GPU: what goes in decides where work is done."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Adam, BatchNorm, Chain, CrossEntropyLoss, Dense, SquaredLoss, train
from chains.backends import backend
from chains.support.memory import memory_of
from tests.cupy.support import data, needs_compiler
from tests.harness import assert_close


def test_arrays_of_the_gpu_in_and_out(net, device):
    p, (x, t), loss = net.init(), data(), CrossEntropyLoss()
    q, xd, td = device.array(p), device.array(x), device.array(t)
    y = net(xd, q)
    value, g = net.value_and_grad(q, xd, td, loss, seed=5)
    dp, dx = net.vjp(q, xd, y)
    assert all(device.owns(array) for array in (y, g, dp, dx))
    wanted_value, wanted_g = net.value_and_grad(p, x, t, loss, seed=5)
    assert_close(y, net(x, p), 1e-6)
    assert_close([value, net.loss(q, xd, td, loss)], [wanted_value, net.loss(p, x, t, loss)], 1e-6)
    assert_close(g, wanted_g, 1e-6)
    for found, wanted in zip((dp, dx), net.vjp(p, x, net(x, p)), strict=True):
        assert_close(found, wanted, 1e-5)
    out = device.empty(y.shape, y.dtype)
    assert net(xd, q, out=out) is out
    assert out.tobytes() == y.tobytes()
    assert net(xd[:7], q).tobytes() == y[:7].tobytes()


def test_large_arrays_are_bound_where_they_lie(net, device, monkeypatch):
    """No copies of arguments beyond a size: results are written into the caller's arrays by the kernels themselves."""
    monkeypatch.setattr(type(backend("emulated").on_device), "copied_bytes", 0)
    x, t = data()
    p, q = net.init(), net.init(device="emulated")
    for _ in range(2):
        out = device.empty(q.shape, q.dtype)
        value, g = net.value_and_grad(q, device.array(x), device.array(t), CrossEntropyLoss(), seed=5, out=out)
        wanted = net.value_and_grad(p, x, t, CrossEntropyLoss(), seed=5)
        assert g is out
        assert_close(value, wanted[0], 1e-6)
        assert_close(g, wanted[1], 1e-6)


def test_host_data_go_to_the_parameters(net, device):
    x, t = data()
    q = net.init(device="emulated")
    assert memory_of(q) is device
    assert q.tobytes() == net.init().tobytes()
    y = net(x, q)
    assert device.owns(y)
    value, g = net.value_and_grad(q, x, t.tolist(), CrossEntropyLoss(), weights=np.ones(30), seed=1)
    assert device.owns(g)
    assert value == pytest.approx(net.value_and_grad(np.asarray(q), x, t, CrossEntropyLoss(), seed=1)[0], rel=1e-6)
    assert {name: view.shape for name, view in net.views(q).items()}["0.weight"] == (3, 8)


def test_mixed_devices_are_refused(net, device):
    p, (x, t) = net.init(), data()
    xd = device.array(x)
    sentence = r"`x` is on the GPU and `p` in the computer's memory: pass cupy\.asarray\(p\)"
    with pytest.raises(TypeError, match=sentence):
        net(xd, p)
    with pytest.raises(TypeError, match=sentence):
        net.value_and_grad(p, xd, t, CrossEntropyLoss())
    with pytest.raises(TypeError, match=sentence):
        train(net, p, xd, t, CrossEntropyLoss(), Adam())
    with pytest.raises(TypeError, match="an array to fill on the GPU"):
        net(xd, device.array(p), out=np.empty((30, 4), np.float32))
    with pytest.raises(TypeError, match="`out` must be a NumPy array to fill, got a DeviceArray"):
        net(x, p, out=device.empty((30, 4), np.float32))
    wide = device.array(np.zeros((30, 4), np.float32))
    with pytest.raises(ValueError, match="`out` overlaps `x`"):
        net(wide.reshape(-1)[:90].reshape(30, 3), device.array(p), out=wide)
    with pytest.raises(TypeError, match="make the objective with"):
        net.objective(x, t, CrossEntropyLoss())(device.array(p))
    with pytest.raises(ValueError, match=r"`device` \(='tpu'\) must be 'cpu' or 'cuda'"):
        net.init(device="tpu")
    with pytest.raises(ValueError, match="labels must be whole numbers from 0 to 3"):
        net.value_and_grad(device.array(p), xd, device.array(t + 1), CrossEntropyLoss())


@needs_compiler
def test_a_state_lies_beside_the_parameters(device):
    net, (x, _) = Chain(Dense(3, 8), BatchNorm(8)), data()
    p, q, t, loss = net.init(), net.init(device="emulated"), np.ones((30, 8), np.float32), SquaredLoss()
    for place, other, move in ((q, np.array, "asarray"), (p, device.array, "asnumpy")):
        state = other(net.init_state())
        sentence = rf"`state` and `p` are on different devices: pass cupy\.{move}\(state\)"
        for mode in ("train", "eval"):
            with pytest.raises(TypeError, match=sentence):
                net(x, place, state=state, mode=mode)
            with pytest.raises(TypeError, match=sentence):
                net.value_and_grad(place, x, t, loss, state=state, mode=mode)
        with pytest.raises(TypeError, match=sentence):
            train(net, place, x, t, loss, Adam(), state=state)
    with pytest.raises(TypeError, match=r"`state` and `x` are on different devices: pass cupy\.asarray\(state\)"):
        net.objective(device.array(x), device.array(t), loss, state=net.init_state())


def test_objective_with_data_on_the_gpu(net, device):
    x, t = data()
    p = net.init(dtype=np.float64)
    wanted = net.objective(x, t, CrossEntropyLoss())(p)
    objective = net.objective(device.array(x), device.array(t), CrossEntropyLoss())
    for place in (np.asarray, device.array):
        value, g = objective(place(p))
        assert type(g) is type(place(p))
        assert value == pytest.approx(wanted[0], rel=1e-12)
        assert_close(g, wanted[1], 1e-12)
