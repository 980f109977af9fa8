"""One call of machine code for all members of an ensemble: the bits of a loop over them, whatever the arrays."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import chains
from chains import (
    GRU,
    ODE,
    BatchNorm,
    Chain,
    CrossEntropyLoss,
    Dense,
    Dropout,
    L2Penalty,
    MSELoss,
    member_seeds,
    num_threads,
    tanh,
)
from chains.network import member_calls
from chains.network.network import network_of

pytest.importorskip("llvmlite", reason="the native backend needs llvmlite")

from chains.backends.native import NativeBackend

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _no_loop(monkeypatch):
    """A call that takes one member after another fails."""

    def refused(member):
        raise AssertionError(f"member {member} is called by itself")

    monkeypatch.setattr(member_calls, "_named", refused)


@pytest.fixture(params=[1, 2, 3])
def threads(request, monkeypatch):
    """Threads are used for any amount of work."""
    monkeypatch.setattr("chains.backends.native.memory_plan.MIN_THREAD_OPERATIONS", 1)
    monkeypatch.setattr("chains.backends.native.backend.MIN_PART_OPERATIONS", 1)
    with num_threads(request.param):
        yield request.param


def fresh(*layers, **settings):
    """A network of its own, so that nothing is bound before."""
    net = Chain(*layers, backend="native", **settings)
    network_of(net).use(NativeBackend())
    return net


def assert_as_alone(net, P, x, t, loss=None, *, own=(), repeats=3, **given):
    """Outputs and gradients of all members equal those of each alone, also when calls are repeated."""
    loss = loss or MSELoss()
    alone = {name: given.pop(name) for name in ("penalty",) if name in given}
    rows = [{n: a[m] if n in own else a for n, a in {"x": x, "t": t, **given}.items()} for m in range(len(P))]
    outputs = [
        net(row["x"], p, **({"lengths": row["lengths"]} if "lengths" in row else {})) for p, row in zip(P, rows, strict=True)
    ]
    gradients = [net.value_and_grad(p, loss=loss, **row, **alone) for p, row in zip(P, rows, strict=True)]
    lengths = {name: array for name, array in given.items() if name == "lengths"}
    for _ in range(repeats):
        assert np.array_equal(net(x, P, **lengths), outputs)
        values, G = net.value_and_grad(P, x, t, loss, **given, **alone)
        assert values.dtype == np.float64
        assert np.array_equal(values, [value for value, _ in gradients])
        assert np.array_equal(G, [g for _, g in gradients])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("samples", [1, 7, 65])
@pytest.mark.parametrize("members", [1, 2, 3, 37])
def test_numbers_of_members_and_samples(members, samples, dtype, threads):
    net = fresh(Dense(3, 5, tanh), Dense(5, 2))
    P = net.init_many(members, dtype=dtype)
    x, t = RNG.normal(size=(samples, 3)).astype(dtype), RNG.normal(size=(samples, 2)).astype(dtype)
    assert_as_alone(net, P, x, t)


def test_a_thousand_members():
    net = fresh(Dense(2, 8, tanh), Dense(8, 8, tanh), Dense(8, 1))
    P = net.init_many(1000)
    assert_as_alone(net, P, RNG.normal(size=(1, 2)).astype(np.float32), np.ones((1, 1), np.float32))


@pytest.mark.parametrize("members", [1, 2, 3])
def test_few_large_members(members, threads):
    """All threads may share the samples of a member."""
    net = fresh(Dense(40, 48, tanh), Dense(48, 3))
    P = net.init_many(members)
    assert_as_alone(net, P, RNG.normal(size=(300, 40)).astype(np.float32), RNG.normal(size=(300, 3)).astype(np.float32))


def arrangements(array):
    """The same numbers in other memory layouts and types."""
    table = np.zeros((*array.shape[:-1], 2 * array.shape[-1] + 1), array.dtype)
    table[..., 1::2] = array
    return {
        "columns of a table": table[..., 1::2],
        "Fortran's order": np.asfortranarray(array),
        "backwards": np.ascontiguousarray(array[::-1])[::-1],
        "float64": array.astype(np.float64),
        "in steps": np.repeat(array, 2, axis=0)[::2],
        "big-endian": array.astype(">f4"),
    }


@pytest.mark.parametrize("own", [(), ("x", "t")], ids=["shared", "own"])
@pytest.mark.parametrize("kind", list(arrangements(np.zeros((2, 2), np.float32))))
def test_layouts(kind, own):
    net = fresh(Dense(3, 4, tanh), Dense(4, 2))
    P = net.init_many(5)
    rows = (5, 4) if own else (4,)
    x, t = RNG.normal(size=(*rows, 3)).astype(np.float32), RNG.normal(size=(*rows, 2)).astype(np.float32)
    wanted = net(x, P), *net.value_and_grad(P, x, t, MSELoss())
    xs, ts = arrangements(x)[kind], arrangements(t)[kind]
    for a, b in ((xs, t), (x, ts), (xs, ts)):
        for _ in range(3):
            found = net(a, P), *net.value_and_grad(P, a, b, MSELoss())
            assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_broadcast_data():
    net = fresh(Dense(3, 4, tanh), Dense(4, 1))
    P, x, t = net.init_many(4), RNG.normal(size=(6, 3)).astype(np.float32), np.float32(2.0)
    wanted = net.value_and_grad(P, np.array([x] * 4), np.full((4, 6, 1), t), MSELoss())
    for _ in range(3):
        found = net.value_and_grad(P, np.broadcast_to(x, (4, 6, 3)), np.broadcast_to(t, (4, 6, 1)), MSELoss())
        assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_columns_labels_and_weights(threads):
    one, many = fresh(Dense(3, 4, tanh), Dense(4, 1)), fresh(Dense(3, 4, tanh), Dense(4, 3))
    P, Q, x = one.init_many(5), many.init_many(5), RNG.normal(size=(6, 3)).astype(np.float32)
    t, labels = RNG.normal(size=(5, 6)).astype(np.float32), RNG.integers(0, 3, (5, 6))
    assert_as_alone(one, P, x, t[0], penalty=L2Penalty(0.1))
    assert_as_alone(one, P, x, t, own=("t",), weights=RNG.uniform(1, 2, 6))
    assert_as_alone(one, P, x, t, own=("t", "weights"), weights=RNG.uniform(1, 2, (5, 6)))
    assert_as_alone(many, Q, x, labels[0], CrossEntropyLoss())
    assert_as_alone(many, Q, x, labels, CrossEntropyLoss(), own=("t",))


def test_bad_labels_of_a_repeated_call():
    net = fresh(Dense(3, 4, tanh), Dense(4, 3))
    P, x, labels = net.init_many(2), np.ones((4, 3), np.float32), np.array([0, 1, 2, 0])
    for _ in range(3):
        net.value_and_grad(P, x, labels, CrossEntropyLoss())
    with pytest.raises(ValueError, match=r"3 at index \(1,\)"):
        net.value_and_grad(P, x, np.array([0, 3, 2, 0]), CrossEntropyLoss())


def test_sequences_of_several_lengths():
    net = fresh(GRU(3, 4), Dense(4, 2), input_shape=(5, 3))
    P, x, t = net.init_many(3), RNG.normal(size=(6, 5, 3)).astype(np.float32), RNG.normal(size=(6, 2)).astype(np.float32)
    assert_as_alone(net, P, x, t, lengths=RNG.integers(1, 6, 6))
    xs, ts = np.array([x, x[::-1], -x]), np.array([t, -t, t])
    assert_as_alone(net, P, xs, ts, own=("x", "t", "lengths"), lengths=RNG.integers(1, 6, (3, 6)))


@pytest.mark.parametrize("apart", [False, True], ids=["packed", "with gaps"])
def test_states_and_dropout(apart, threads):
    net = fresh(Dense(3, 6, tanh), BatchNorm(6), Dropout(0.5), Dense(6, 2))
    P, x, t = net.init_many(5), RNG.normal(size=(8, 3)).astype(np.float32), RNG.normal(size=(8, 2)).astype(np.float32)
    states = np.ones((5, net.n_state + 3 * apart), np.float32)
    S, alone = states[:, : net.n_state], np.ones((5, net.n_state), np.float32)
    for seed in range(3):
        Y = net(x, P, state=S, mode="train", seed=seed)
        values, G = net.value_and_grad(P, x, t, MSELoss(), state=S, seed=seed)
        for m, own in enumerate(member_seeds(5, seed)):
            assert np.array_equal(Y[m], net(x, P[m], state=alone[m], mode="train", seed=own))
            value, g = net.value_and_grad(P[m], x, t, MSELoss(), state=alone[m], seed=own)
            assert values[m] == value
            assert np.array_equal(G[m], g)
    assert np.array_equal(S, alone)
    assert (states[:, net.n_state :] == 1).all()


def test_results_in_given_arrays():
    net = fresh(Dense(3, 4, tanh), Dense(4, 2))
    P, x, t = net.init_many(5), np.ones((6, 3), np.float32), np.ones((6, 2), np.float32)
    y, g = np.empty((5, 6, 2), np.float32), np.empty_like(P)
    for _ in range(3):
        assert net(x, P, out=y) is y
        assert net.value_and_grad(P, x, t, MSELoss(), out=g)[1] is g
        for bad in (P, P.T, g[:4], g.astype(np.float64)):
            with pytest.raises(ValueError, match="`out`"):
                net.value_and_grad(P, x, t, MSELoss(), out=bad)
        with pytest.raises(ValueError, match="`state`"):
            net(x, P, state=np.ones((5, 3), np.float32))


def test_other_numbers_of_members_samples_and_threads(threads):
    """Each call has its own binding, also after the number of threads has changed."""
    net = fresh(Dense(3, 5, tanh), Dense(5, 2))
    P, x, t = net.init_many(9), RNG.normal(size=(8, 3)).astype(np.float32), RNG.normal(size=(8, 2)).astype(np.float32)
    for members, samples, number in ((9, 8, threads), (4, 8, 1), (9, 5, 2), (9, 8, 2), (1, 8, threads)):
        with chains.num_threads(number):
            assert_as_alone(net, P[:members], x[:samples], t[:samples])


def test_calls_from_several_threads():
    net = fresh(Dense(3, 5, tanh), Dense(5, 2))
    P, x, t = net.init_many(50), RNG.normal(size=(8, 3)), RNG.normal(size=(8, 2)).astype(np.float32)
    wanted, wrong = net.value_and_grad(P, x, t, MSELoss()), []

    def work(strided):
        for _ in range(50):
            values, G = net.value_and_grad(P, x[:, ::-1][:, ::-1] if strided else x, t, MSELoss(), check_finite=strided)
            if not (np.array_equal(values, wanted[0]) and np.array_equal(G, wanted[1])):
                wrong.append(strided)

    workers = [threading.Thread(target=work, args=(strided,)) for strided in (False, True, True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_an_equation_that_is_not_solved_names_its_member(monkeypatch):
    monkeypatch.undo()
    net = fresh(ODE(Dense(1, 1), (0.0, 1.0), rtol=1e-6, max_steps=20))
    P = np.zeros((3, net.n_params), np.float32)
    P[1, 0] = 3e4
    with pytest.raises(FloatingPointError, match="member 1: "):
        net(np.ones((2, 1), np.float32), P)
    with pytest.raises(FloatingPointError, match="member 1: "):
        net.value_and_grad(P, np.ones((2, 1), np.float32), np.ones((2, 2, 1), np.float32), MSELoss())
