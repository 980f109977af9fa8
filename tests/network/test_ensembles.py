"""Many networks at once: every member has the bits that it has alone."""

from __future__ import annotations

import numpy as np
import pytest

from chains import (
    GRU,
    BatchNorm,
    BCEWithLogitsLoss,
    Chain,
    CrossEntropyLoss,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    L2Penalty,
    SquaredLoss,
    member_seeds,
    tanh,
)
from tests import harness
from tests.bad_input.support import assert_refused

MEMBERS, SAMPLES = 3, 5
RNG = np.random.default_rng(0)
X, T = RNG.normal(size=(SAMPLES, 3)), RNG.normal(size=(SAMPLES, 2))
XS, TS = RNG.normal(size=(MEMBERS, SAMPLES, 3)), RNG.normal(size=(MEMBERS, SAMPLES, 2))
WS = RNG.uniform(0.5, 2.0, (MEMBERS, SAMPLES))


@pytest.fixture(params=[*harness.BACKENDS, "emulated"])
def backend_name(request):
    return request.param


@pytest.fixture
def net(backend_name):
    return Chain(Dense(3, 4, tanh), Dense(4, 2), backend=backend_name)


@pytest.mark.parametrize("dtype", harness.DTYPES)
def test_rows_are_single_networks(net, dtype):
    P = net.init_many(4, seed=7, dtype=dtype)
    assert P.shape == (4, net.n_params)
    assert P.dtype == dtype
    for i, p in enumerate(P):
        assert np.array_equal(p, net.init(member_seeds(4, 7)[i], dtype))
    assert np.array_equal(net.init_many(2, seed=7, dtype=dtype), P[:2])
    assert len(np.unique(np.concatenate([P, net.init_many(4, seed=8, dtype=dtype)]), axis=0)) == 8


@pytest.mark.parametrize("x", [X, XS], ids=["shared", "own"])
def test_outputs(net, x):
    P = net.init_many(MEMBERS, dtype=np.float64)
    Y = net(x, P)
    assert Y.shape == (MEMBERS, SAMPLES, 2)
    for m, p in enumerate(P):
        assert np.array_equal(Y[m], net(XS[m] if x is XS else X, p))
    out = np.empty_like(Y)
    assert net(x, P, out=out) is out
    assert np.array_equal(out, Y)


@pytest.mark.parametrize("own", [(), ("x", "t"), ("t",), ("weights",), ("x", "t", "weights")], ids="-".join)
def test_gradients(net, own):
    P = net.init_many(MEMBERS, dtype=np.float64)
    every = {"x": XS, "t": TS, "weights": WS}
    given = {name: array if name in own else array[0] for name, array in every.items()}
    settings = {"penalty": L2Penalty(0.1)}
    out = np.empty_like(P)
    values, G = net.value_and_grad(P, loss=SquaredLoss(), out=out, **given, **settings)
    assert values.shape == (MEMBERS,)
    assert G is out
    for m, p in enumerate(P):
        data = {name: array[m] if name in own else array[0] for name, array in every.items()}
        value, g = net.value_and_grad(p, loss=SquaredLoss(), **data, **settings)
        assert values[m] == value
        assert np.array_equal(G[m], g)


def test_states_and_seeds(backend_name):
    net = Chain(Dense(3, 4, tanh), BatchNorm(4), Dropout(0.5), Dense(4, 2), backend=backend_name)
    P = net.init_many(MEMBERS, dtype=np.float64)
    S = RNG.uniform(1.0, 2.0, (MEMBERS, net.n_state))
    alone = S.copy()
    Y = net(X, P, state=S, mode="train", seed=3)
    values, G = net.value_and_grad(P, XS, TS, SquaredLoss(), state=S, seed=4)
    calls, gradients = (member_seeds(MEMBERS, seed) for seed in (3, 4))
    for m, p in enumerate(P):
        assert np.array_equal(Y[m], net(X, p, state=alone[m], mode="train", seed=calls[m]))
        value, g = net.value_and_grad(p, XS[m], TS[m], SquaredLoss(), state=alone[m], seed=gradients[m])
        assert values[m] == value
        assert np.array_equal(G[m], g)
    assert np.array_equal(S, alone)


def test_sequences(backend_name):
    net = Chain(Embedding(9, 3), GRU(3, 2), input_shape=(4,), backend=backend_name)
    P = net.init_many(MEMBERS, dtype=np.float64)
    ids, lengths = RNG.integers(0, 9, (MEMBERS, SAMPLES, 4)), RNG.integers(1, 5, (MEMBERS, SAMPLES))
    Y = net(ids, P, lengths=lengths)
    shared = net(ids[0], P, lengths=lengths[0])
    for m, p in enumerate(P):
        assert np.array_equal(Y[m], net(ids[m], p, lengths=lengths[m]))
        assert np.array_equal(shared[m], net(ids[0], p, lengths=lengths[0]))


def test_targets_of_one_output_and_labels():
    one, two = Chain(Dense(3, 1)), Chain(Dense(3, 4))
    P, Q = one.init_many(MEMBERS, dtype=np.float64), two.init_many(MEMBERS, dtype=np.float64)
    fractions, labels = RNG.uniform(size=(MEMBERS, SAMPLES)), RNG.integers(0, 4, (MEMBERS, SAMPLES))
    for net, R, t, loss in ((one, P, fractions, BCEWithLogitsLoss()), (two, Q, labels, CrossEntropyLoss())):
        for x in (X, XS):
            values, _ = net.value_and_grad(R, x, t, loss)
            for m, p in enumerate(R):
                assert values[m] == net.value_and_grad(p, x[m] if x is XS else x, t[m], loss)[0]


def test_as_many_members_as_samples():
    """Targets of shared inputs are shared where they can be."""
    net, both = Chain(Dense(3, 1)), Chain(Dense(3, SAMPLES))
    P, t = net.init_many(SAMPLES), RNG.normal(size=(SAMPLES, SAMPLES))
    assert net.value_and_grad(P, X, t, SquaredLoss())[0][1] == net.value_and_grad(P[1], X, t[1], SquaredLoss())[0]
    Q = both.init_many(SAMPLES)
    assert both.value_and_grad(Q, X, t, SquaredLoss())[0][1] == both.value_and_grad(Q[1], X, t, SquaredLoss())[0]


def test_bad_input():
    net = Chain(Dense(3, 4, tanh), Dense(4, 2))
    P = net.init_many(MEMBERS, dtype=np.float64)
    Y, G, before = np.zeros((MEMBERS, SAMPLES, 2)), np.zeros_like(P), P.copy()
    gradient = net.value_and_grad
    refused = [
        (lambda: net.init_many(0), ["n", "0"]),
        (lambda: net.init_many(2.5), ["n", "2.5"]),
        (lambda: net.init_many(2, seed=-1), ["seed", "-1"]),
        (lambda: net(X, P[:, :-1]), ["p", "members", "(3, 25)"]),
        (lambda: net(X, P[:0]), ["p", "members", "(0, 26)"]),
        (lambda: net(X, P.T.copy().T), ["p", "contiguous"]),
        (lambda: net(X, P.astype(int)), ["p", "float32"]),
        (lambda: net(XS[:2], P, out=Y), ["x", "members", "3"]),
        (lambda: net(XS[..., :2], P, out=Y), ["x", "(batch, 3)"]),
        (lambda: net(XS, P, out=Y[:2]), ["out", "(3, 5, 2)"]),
        (lambda: net(X, P, state=np.zeros((3, 2)), out=Y), ["state", "(3, 0)"]),
        (lambda: gradient(P, XS, T, SquaredLoss(), out=G), ["t", "(3, 5, ...)"]),
        (lambda: gradient(P, X, TS[:2], SquaredLoss(), out=G), ["t", "batch of 5"]),
        (lambda: gradient(P, X, T, SquaredLoss(), weights=WS[:, :3], out=G), ["weights[0]", "(3,)", "batch of 5"]),
        (lambda: gradient(P, X, T, SquaredLoss(), weights=WS[0, :3], out=G), ["weights", "5"]),
        (lambda: gradient(P, XS, np.full_like(TS, np.nan), SquaredLoss(), check_finite=True, out=G), ["t", "nan"]),
        (lambda: gradient(P, XS, TS, "loss", out=G), ["loss"]),
        (lambda: gradient(P, X, T, SquaredLoss(), out=P), ["out", "p"]),
        (lambda: gradient(P, X, T, SquaredLoss(), mode="test", out=G), ["mode", "test"]),
        (lambda: net.loss(P, X, T, SquaredLoss()), ["p", "(26,)"]),
    ]
    for call, words in refused:
        assert_refused(call, *words)
    assert not Y.any()
    assert not G.any()
    assert np.array_equal(P, before)


def test_bad_ids_and_labels_of_a_later_member():
    net = Chain(Embedding(9, 3), Flatten(), Dense(12, 2), input_shape=(4,))
    P, ids = net.init_many(MEMBERS), RNG.integers(0, 9, (MEMBERS, SAMPLES, 4))
    G, labels = np.zeros_like(P), RNG.integers(0, 2, (MEMBERS, SAMPLES))
    ids[2, 1, 1], later = 9, labels.copy()
    later[2, 1] = 2
    assert_refused(lambda: net(ids, P), "x", "9")
    assert_refused(lambda: net.value_and_grad(P, ids % 9, later, CrossEntropyLoss(), out=G), "t", "2")
    assert not G.any()
