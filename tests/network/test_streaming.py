"""Recurrent networks step by step, against the same networks on whole sequences."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from chains import GRU, LSTM, RNN, BatchNorm, Chain, Dense, Flatten, Recurrent, Series
from tests.harness import assert_close
from tests.own import Decay, Stacked

STEPS = 5
NETWORKS = {
    "GRU": (GRU(3, 8), Dense(8, 2)),
    "paper": (GRU(3, 4, reset_after=False, initial_state="parameter"),),
    "stacked": (LSTM(3, 4, return_sequences=True, initial_state="parameter"), Series(Dense(4, 3), RNN(3, 2, "gelu"))),
    "custom": (Recurrent(Decay(), return_sequences=True), Recurrent(Stacked())),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_end_where_the_sequence_does(name, backend_name, dtype):
    net = Chain(*NETWORKS[name], input_shape=(STEPS, 3), backend=backend_name)
    rng = np.random.default_rng(0)
    p, x = rng.normal(0.0, 0.5, net.n_params).astype(dtype), rng.normal(size=(4, STEPS, 3)).astype(dtype)
    carried = None
    for t in range(STEPS):  # from the third call on by the quick way, where there is one
        y, after = net.step(np.ascontiguousarray(x[:, t]), p, carried)
        assert after.shape == (4, net.n_carried)
        assert after.dtype == y.dtype == dtype
        assert carried is None or not np.shares_memory(after, carried)
        carried = after
    assert_close(y, net(x, p), 1e-6 if dtype is np.float32 else 1e-14)


def test_steps_fill_what_is_given_and_allocate_nothing(backend_name):
    net = Chain(GRU(3, 8), Dense(8, 2), input_shape=(STEPS, 3), backend=backend_name)
    p, x = net.init(), np.ones((2, 3), np.float32)
    first, second = (tuple(each.copy() for each in net.step(x, p)) for _ in range(2))
    for _ in range(9):
        found = net.step(x, p, first[1], out=second)
        assert found[0] is second[0]
        assert found[1] is second[1]
        first, second = second, first
    tracemalloc.start()
    for _ in range(100):
        net.step(x, p, first[1], out=second)
        first, second = second, first
    assert tracemalloc.get_traced_memory()[1] < 1 << 14  # Python's own objects
    tracemalloc.stop()


def test_what_is_refused():
    net = Chain(GRU(3, 8), input_shape=(STEPS, 3))
    p, x = net.init(), np.ones((2, 3), np.float32)
    y, carried = net.step(x, p)
    untouched = carried.copy()
    with pytest.raises(ValueError, match=r"`x` must have shape \(batch, 3\)"):
        net.step(np.ones((2, STEPS, 3)), p)
    with pytest.raises(ValueError, match=r"`carried` must have shape \(batch, 8\)"):
        net.step(x, p, np.ones((2, 7)))
    with pytest.raises(ValueError, match="`carried` is of 1 samples, but `x` is a batch of 2"):
        net.step(x, p, carried[:1])
    with pytest.raises(ValueError, match=r"`out\[1\]` overlaps `carried` in memory"):
        net.step(x, p, carried, out=(y, carried))
    with pytest.raises(TypeError, match="`out` must be a pair of arrays"):
        net.step(x, p, carried, out=y)
    assert np.array_equal(carried, untouched)
    for layers, text in (
        ((GRU(3, 2, bidirectional=True),), "goes through a sequence from its end too"),
        ((GRU(3, 2, return_sequences=True), Flatten(), Dense(10, 1)), "`inputs` (=10)"),
        ((GRU(3, 2), BatchNorm(2)), "depend on the number of steps"),
    ):
        with pytest.raises(ValueError, match=text.replace("(", r"\(").replace(")", r"\)")):
            Chain(*layers, input_shape=(STEPS, 3)).step(x, p)
    with pytest.raises(ValueError, match="has no recurrent layer"):
        Chain(Dense(3, 2)).step(x, p)
