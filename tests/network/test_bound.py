"""Networks as functions of one sample: results, solvers, functions of C, bad input."""

from __future__ import annotations

import ctypes
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from chains import BatchNorm, Chain, Conv, Dense, Embedding, Flatten, tanh
from tests.harness import BACKENDS, assert_close

NETS = {
    "dense": Chain(Dense(3, 5, tanh), Dense(5, 2)),
    "images": Chain(Conv(2, 3, 2, tanh), Flatten(), Dense(18, 4), input_shape=(2, 3, 4)),
    "scalar": Chain(Dense(1, 1)),
    "ids": Chain(Embedding(4, 2), Flatten(), Dense(6, 2), input_shape=(3,)),
}
native = pytest.mark.skipif("native" not in BACKENDS, reason="needs machine code")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", NETS)
def test_results_are_those_of_a_batch_of_one(kind, dtype, backend_name):
    net = Chain(*NETS[kind].layers, input_shape=NETS[kind].input_shape, backend=backend_name)
    rng = np.random.default_rng(1)
    p = net.init(seed=0, dtype=dtype)
    f = net.bound(p)
    for _ in range(3):
        x = rng.normal(size=net.input_shape).astype(dtype) if kind != "ids" else rng.integers(0, 4, net.input_shape)
        dy, out = rng.normal(size=net.output_shape).astype(dtype), np.full(net.output_shape, np.nan, dtype)
        wanted = net(x[None], p)[0]
        for found in (f(x), f(x, out), out, f(x.tolist()), pickle.loads(pickle.dumps(f))(x)):
            np.testing.assert_array_equal(found, wanted)
        for found, whole in zip(f.vjp(x, dy), net.vjp(p, x[None], dy[None]), strict=True):
            assert_close(found, whole.reshape(found.shape), 1e-6 if dtype == np.float32 else 1e-14)


def test_parameters_and_state_are_copied(backend_name):
    net = Chain(Dense(3, 2), BatchNorm(2), backend=backend_name)
    p, state, x = net.init(), net.init_state() + 0.5, np.ones(3)
    f = net.bound(p, state=state)
    before = net(x[None], p, state=state)[0]
    p[...], state[...] = np.nan, np.nan
    assert_close(f(x), before, 1e-6)


def test_a_network_in_solve_ivp(backend_name):
    solve_ivp = pytest.importorskip("scipy.integrate").solve_ivp
    net = Chain(Dense(3, 16, tanh), Dense(16, 3), backend=backend_name)
    f = net.bound(net.init(seed=0, dtype=np.float64))
    found = solve_ivp(lambda t, y: f(y), (0, 2), [0.1, 0.2, 0.3], rtol=1e-8)
    again = solve_ivp(lambda t, y: net(y[None], f.p)[0], (0, 2), [0.1, 0.2, 0.3], rtol=1e-8)
    assert_close(found.y, again.y, 1e-13)


@native
def test_a_call_makes_its_result_alone():
    f = NETS["dense"].bound(NETS["dense"].init(dtype=np.float64))
    x, out = np.ones(3), np.empty(2)
    f(x, out)
    tracemalloc.start()
    for _ in range(100):
        f(x, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1000


def test_calls_from_several_threads(backend_name):
    net = Chain(Dense(3, 5, tanh), Dense(5, 2), backend=backend_name)
    f, xs = net.bound(net.init(dtype=np.float64)), np.random.default_rng(2).normal(size=(300, 3))
    with ThreadPoolExecutor(4) as pool:
        found = np.stack(list(pool.map(f, xs)))
    assert_close(found, net(xs, f.p), 1e-13)


@native
def test_derivatives_as_a_function_of_c():
    kind = ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    for inputs in (2, 3):
        net = Chain(Dense(inputs, 7, tanh), Dense(7, 2), backend="native")
        f = net.bound(net.init(seed=1, dtype=np.float64))
        address, data = f.c_function()
        y, dy = np.array([0.3, -0.2]), np.empty(2)
        for t in (0.5, 1.5):
            kind(address)(t, y.ctypes.data, dy.ctypes.data, data)
            np.testing.assert_array_equal(dy, f(np.array([*y, t][:inputs])))


@native
def test_integrands_as_low_level_callables():
    integrate = pytest.importorskip("scipy.integrate")
    quad, nquad = integrate.quad, integrate.nquad
    net = Chain(Dense(1, 6, tanh), Dense(6, 1), backend="native")
    f = net.bound(net.init(seed=1, dtype=np.float64))
    wanted = quad(lambda x: f(np.array([x]))[0], -1.0, 2.0)[0]
    assert_close(np.array(quad(f.low_level_callable(), -1.0, 2.0)[0]), np.array(wanted), 1e-14)
    net = Chain(Dense(2, 6, tanh), Dense(6, 1), backend="native")
    f = net.bound(net.init(seed=1, dtype=np.float64))
    found = nquad(f.low_level_callable(), [[0, 1], [0, 2]])[0]
    assert_close(np.array(found), np.array(nquad(lambda x, y: f(np.array([x, y]))[0], [[0, 1], [0, 2]])[0]), 1e-12)


def test_bad_input(backend_name):
    net = Chain(Dense(3, 5, tanh), Dense(5, 2), backend=backend_name)
    p = net.init(dtype=np.float64)
    f, out = net.bound(p), np.zeros(3)
    for call, word in (
        (lambda: f(np.ones(2)), r"`x` has shape \(2,\), but one sample has \(3,\)"),
        (lambda: f(0.0, np.ones(3)), r"`x` has shape \(\), .* solve_ivp takes lambda t, y: f\(y\)"),
        (lambda: f(np.ones((1, 3))), r"`x` has shape \(1, 3\)"),
        (lambda: f(np.ones(3), out), r"`out` has shape \(3,\), but one sample has \(2,\)"),
        (lambda: f(np.ones(3), [0.0, 0.0]), r"`out` \(=\[0.0, 0.0\]\) must be an array to be filled"),
        (lambda: f.vjp(np.ones(3), np.ones(3)), r"`dy` has shape \(3,\)"),
        (lambda: net.bound(p[1:]), "`p` must have shape"),
        (lambda: f.c_function("hessian"), r"`kind` \(='hessian'\)"),
        (lambda: f.c_function("integrand"), "wants a network of one output"),
        (lambda: Chain(Dense(4, 2)).bound(np.ones(10)).c_function(), "as many outputs as inputs, or one less"),
        (lambda: net.bound(p.astype(np.float32)).c_function(), "but functions of C take float64"),
        (lambda: Chain(Dense(3, 2), BatchNorm(2)).bound(np.ones(12)), "`state` is missing"),
    ):
        with pytest.raises((TypeError, ValueError), match=word):
            call()
    assert not out.any()
    if backend_name == "numpy":
        with pytest.raises(ValueError, match="the backend 'numpy' has no machine code"):
            f.c_function()
