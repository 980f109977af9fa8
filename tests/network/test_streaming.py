"""Networks along time step by step, against the same networks on whole sequences."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from chains import (
    GRU,
    LSTM,
    RNN,
    Activation,
    BatchNorm,
    CausalConv,
    Chain,
    Dense,
    Embedding,
    Flatten,
    GroupNorm,
    LayerNorm,
    Parallel,
    Recurrent,
    Reshape,
    Residual,
    Series,
)
from chains.layers.stepwise import joined
from chains.network.network import network_of
from chains.network.stepping import Stepping
from chains.testing import check_gradients
from tests.harness import assert_close
from tests.own import Decay, Stacked

STEPS = 5
NETWORKS = {
    "GRU": (GRU(3, 8), Dense(8, 2)),
    "paper": (GRU(3, 4, reset_after=False, initial_state="parameter"),),
    "stacked": (LSTM(3, 4, return_sequences=True, initial_state="parameter"), Series(Dense(4, 3), RNN(3, 2, "gelu"))),
    "custom": (Recurrent(Decay(), return_sequences=True), Recurrent(Stacked())),
    "beside": (Parallel(RNN(3, 2), LSTM(3, 4)), Dense(6, 2)),
}
CONVOLUTIONS = {  # with an output at every step
    "one": (CausalConv(3, 4, 3),),
    "dilated": (CausalConv(3, 4, 3, "gelu", dilation=3, bias=False), Dense(4, 2, "tanh")),
    "several": tuple(CausalConv(3, 3, k, "relu", dilation=d) for k, d in ((2, 1), (2, 2), (1, 5), (3, 4))),
    "residual": tuple(Residual(CausalConv(3, 3, 2, "tanh", dilation=d), LayerNorm(3), activation="relu") for d in (1, 2)),
    "projected": (Residual(CausalConv(3, 2, 2), Activation("tanh"), CausalConv(2, 4, 4), shortcut=CausalConv(3, 4, 2)),),
    "mixed": (CausalConv(3, 4, 2, "tanh"), GRU(4, 5, return_sequences=True), CausalConv(5, 2, 3, dilation=2), LayerNorm(2)),
    "joined": (Parallel(CausalConv(3, 2, 2), Dense(3, 2), LSTM(3, 4, return_sequences=True), axis=1), CausalConv(8, 2, 2)),
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


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_steps_of_convolutions_are_those_of_the_sequence(name, backend_name, dtype):
    net = Chain(*CONVOLUTIONS[name], input_shape=(9, 3), backend=backend_name)
    rng = np.random.default_rng(0)
    p, x = rng.normal(0.0, 0.5, net.n_params).astype(dtype), rng.normal(size=(4, 9, 3)).astype(dtype)
    carried, outputs = None, []
    for t in range(9):
        y, carried = net.step(np.ascontiguousarray(x[:, t]), p, carried)
        outputs.append(y)
    assert carried.shape == (4, net.n_carried)
    assert_close(np.stack(outputs, axis=1), net(x, p), 2e-6 if dtype is np.float32 else 1e-14)


def test_the_pullback_of_a_step():
    """Of all that is carried too, but for where a sequence begins: a step does not read it."""
    layers = CausalConv(1, 1, 2), RNN(1, 1, return_sequences=True, initial_state="parameter")
    one = Stepping(network_of(Chain(*layers, input_shape=(2, 1)))).network
    check_gradients(Chain(joined(one.declaration.layer, one.input_shape), input_shape=(1 + 2,)), backends=["numpy"])


def test_carried_are_the_last_inputs_and_begin_as_zeros():
    net = Chain(CausalConv(2, 3, 3, dilation=2), input_shape=(4, 2), backend="numpy")
    p, x = net.init(), np.arange(12, dtype=np.float32).reshape(1, 6, 2)
    assert net.n_carried == 4 * 2
    first, carried = net.step(x[:, 0], p)
    assert_close(first, net.step(x[:, 0], p, np.zeros((1, 8), np.float32))[0], 0.0)
    assert np.array_equal(carried.reshape(4, 2), [[0, 0], [0, 0], [0, 0], [0, 1]])
    for t in range(1, 6):  # more steps than a sample has, and than are carried
        _, carried = net.step(x[:, t], p, carried)
    assert np.array_equal(carried.reshape(4, 2), x[0, 2:])


def test_a_convolution_reads_the_output_of_a_table_of_ids():
    net = Chain(Embedding(5, 3), CausalConv(3, 2, 2), input_shape=(4,), backend="numpy")
    p, ids, carried = net.init(), np.array([[1, 4, 0, 2], [3, 3, 1, 0]]), None
    for t in range(4):
        y, carried = net.step(ids[:, t], p, carried)
        assert_close(y, net(ids, p)[:, t], 1e-6)


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
        ((CausalConv(3, 4, 2), Flatten()), "Flatten() has shape (20,) for all steps and (4,) for one"),
        ((GRU(3, 4, return_sequences=True), Flatten()), "Flatten() has shape (20,) for all steps and (4,) for one"),
        ((CausalConv(3, 5, 2), GroupNorm(5, 5)), "takes the steps for channels"),
        ((GRU(3, 6), Reshape(3, 2), CausalConv(2, 3, 2)), "needs (features,) at one step, not shape (3, 2)"),
        ((CausalConv(3, 4, 2), GRU(4, 2, bidirectional=True)), "goes through a sequence from its end too"),
        ((Parallel(CausalConv(3, 4, 2), Dense(3, 4)), Flatten()), "`axis` (=-2) must be an axis"),
    ):
        with pytest.raises(ValueError, match=text.replace("(", r"\(").replace(")", r"\)")):
            Chain(*layers, input_shape=(STEPS, 3)).step(x, p)
    for net in (Chain(Dense(3, 2)), Chain(CausalConv(3, 2, 1), input_shape=(STEPS, 3))):
        assert net.n_carried == 0
        with pytest.raises(ValueError, match="has no recurrent layer and no causal convolution of several steps"):
            net.step(x, p)


def test_wrong_shapes_are_refused_by_convolutions():
    net = Chain(CausalConv(3, 4, 3, dilation=2), input_shape=(STEPS, 3), backend="numpy")
    p, x = net.init(), np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"`x` must have shape \(batch, 3\)"):
        net.step(np.ones((2, STEPS, 3)), p)
    for wrong in (np.ones((2, 6)), np.ones((2, 4, 3))):
        with pytest.raises(ValueError, match=r"`carried` must have shape \(batch, 12\)"):
            net.step(x, p, wrong)
    with pytest.raises(ValueError, match="`carried` is of 1 samples, but `x` is a batch of 2"):
        net.step(x, p, np.ones((1, 12)))
