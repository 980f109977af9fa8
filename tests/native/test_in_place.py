"""Large arrays, on which programs run where they lie: one binding serves calls with other arrays, and holds on to none."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from chains import Chain, Dense, L2Penalty, SquaredLoss, num_threads, relu, tanh
from chains.backends.native.backend import NativeBackend

SAMPLES = 50_000  # of which outputs take 1.2 MB


@pytest.fixture
def network(monkeypatch):
    """A network, its parameters, and the list of bindings made for it."""
    bound, bind = [], NativeBackend.bind

    def counting(self, *arguments):
        bound.append(bind(self, *arguments))
        return bound[-1]

    monkeypatch.setattr(NativeBackend, "bind", counting)
    net = Chain(Dense(3, 8, tanh), Dense(8, 6, relu), backend="native")
    return net, net.init(seed=0), bound


def points(seed, dtype=np.float32, samples=SAMPLES):
    return np.random.default_rng(seed).normal(size=(samples, 3)).astype(dtype)


def wanted(net, p, x):
    pieces = [net(part, p) for part in np.array_split(x, 50)]  # which are copied
    return np.concatenate(pieces)


def test_one_binding_serves_calls_on_other_arrays(network):
    net, p, bound = network
    for seed in range(3):
        x = points(seed)
        np.testing.assert_array_equal(net(x, p), net(x.copy(), p.copy()))
    assert len(bound) == 2  # one of them to see whether calls could have a function
    x = points(3)
    y = net(x, p)
    np.testing.assert_allclose(y, wanted(net, p, x), rtol=1e-5, atol=1e-6)


def test_nothing_holds_on_to_the_arrays(network):
    net, p, _ = network
    x = points(0)
    for _ in range(2):
        x = x.copy()
        y = net(x, p)
        gone = weakref.ref(x), weakref.ref(y)
        del y
        x = x.copy()
        assert [each() for each in gone] == [None, None]


def test_another_number_of_samples_or_threads_or_a_type_to_convert(network):
    net, p, bound = network
    small, x = points(0, samples=SAMPLES - 7), points(1)
    with num_threads(1):
        first = net(x, p)
        np.testing.assert_array_equal(net(small, p), net(small, p))
        np.testing.assert_array_equal(net(x.astype(np.float64), p), first)
        np.testing.assert_array_equal(net(x, p), first)
        before = len(bound)
        net(x, p)
        assert len(bound) == before
    with num_threads(2):
        np.testing.assert_array_equal(net(x, p), first)


def test_settings_and_sums_are_those_of_the_call(network):
    net, p, _ = network
    x, t = points(0), np.zeros((SAMPLES, 6), np.float32)
    values = {}
    for strength in (0.0, 0.1, 0.2):
        for scale in (1.0, 2.0):
            values[strength, scale], g = net.value_and_grad(scale * p, x, t, SquaredLoss(), penalty=L2Penalty(strength))
            again, g2 = net.value_and_grad(scale * p, x.copy(), t.copy(), SquaredLoss(), penalty=L2Penalty(strength))
            assert again == values[strength, scale]
            np.testing.assert_array_equal(g, g2)
    for scale in (1.0, 2.0):
        assert values[0.2, scale] - values[0.0, scale] == pytest.approx(2 * (values[0.1, scale] - values[0.0, scale]), rel=1e-3)


def test_calls_from_several_threads(network):
    net, p, _ = network
    arrays = [points(seed) for seed in range(4)]
    alone = [net(x, p) for x in arrays]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for found, y in zip(pool.map(lambda x: net(x, p), arrays), alone, strict=True):
                np.testing.assert_array_equal(found, y)
