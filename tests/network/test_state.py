"""The state: a second flat vector, passed to every call, which training updates and nothing else does."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import chains
from chains import (
    SGD,
    Adam,
    BatchNorm,
    Chain,
    Dense,
    Dropout,
    EarlyStopping,
    L2Penalty,
    Parallel,
    Residual,
    Series,
    tanh,
    train,
)  # fmt: skip
from chains.network.network import network_of
from tests.bad_input.support import assert_refused
from tests.harness import OPTIMIZERS, assert_close
from tests.network.state import DY, LOSS, RNG, T, X, make_net, start
from tests.network.test_threads import in_threads


@pytest.fixture
def net(backend_name):
    return make_net(backend_name)


# What it is


def test_the_vector_and_its_names(net, dtype):
    state = net.init_state(dtype)
    assert (net.n_state, state.shape, state.dtype) == (8, (8,), dtype)
    views = net.state_views(state)
    assert {name: view.shape for name, view in views.items()} == {"1.running_mean": (4,), "1.running_var": (4,)}
    assert not views["1.running_mean"].any()
    assert np.all(views["1.running_var"] == 1.0)
    views["1.running_var"][...] = 3.0
    assert np.all(state[4:] == 3.0)
    assert net.state_layout["1.running_var"].start == 4
    assert net.init_state().dtype == np.float32
    assert net.n_params == 12 + 4 + 8 + 8 + 2


def test_most_networks_have_none():
    net = Chain(Dense(3, 2))
    assert (net.n_state, net.init_state().shape, net.state_views(net.init_state())) == (0, (0,), {})
    assert str(net.state_layout) == "no state arrays"
    p = net.init()
    assert net(X, p, state=net.init_state()).tobytes() == net(X, p).tobytes()  # so that one loop does for all networks


def test_names_follow_the_nesting():
    net = Chain(
        Residual(Dense(3, 3), BatchNorm(3)),
        Parallel(BatchNorm(3), Series(BatchNorm(3))),
        Chain(Chain(BatchNorm(6))),
        BatchNorm(6),
    )
    names = ["0.inner.1", "1.0", "1.1.0", "2.0.0", "3"]
    assert [entry.name for entry in net.state_layout] == [f"{n}.running_{kind}" for n in names for kind in ("mean", "var")]
    assert net.n_state == 2 * (3 + 3 + 3 + 6 + 6)


def test_one_layer_object_in_two_places_has_two_states(backend_name):
    layer = BatchNorm(3, momentum=1.0)
    net = Chain(layer, Dense(3, 3), layer, input_shape=(3,), backend=backend_name)
    p, state = net.init(dtype=np.float64), net.init_state(np.float64)
    net(X, p, state=state, mode="train")
    views = net.state_views(state)
    assert_close(views["0.running_mean"], X.mean(0), 1e-14)
    hidden = (X - X.mean(0)) / np.sqrt(X.var(0) + 1e-5) @ net.views(p)["1.weight"]
    assert_close(views["2.running_var"], hidden.var(0, ddof=1), 1e-13)


def test_the_summary_shows_it(net):
    lines = net.summary().splitlines()
    assert lines[0].split() == ["layer", "output", "parameters", "state"]
    assert lines[3].split() == ["1", "BatchNorm(4)", "(4,)", "8", "8"]
    assert lines[2].split()[-1] == "16"
    assert lines[-1].split()[-2:] == ["34", "8"]
    assert "state" not in Chain(Dense(3, 2)).summary()


class Counter(chains.Layer):
    """Counts its training calls, a custom layer with state: y = x + count."""

    def declare(self, d):
        d.output(d.input)
        d.state("count", (), 0.0)

    def forward(self, ops, x, y, p, s):
        ops.map(y, lambda x, count: x + count, x, s.state.count)
        if ops.training:
            ops.map(s.new_state.count, lambda count: count + 1.0, s.state.count)

    def pullback(self, ops, x, y, dy, dx, p, g, s):
        ops.copy(dx, dy)


def test_a_layer_of_ones_own(backend_name):
    net = Chain(Counter(), Dense(3, 2), input_shape=(3,), backend=backend_name)
    p, state = net.init(), net.init_state()
    for mode in ("train", "eval", "train"):
        net(X, p, state=state, mode=mode)
    net.value_and_grad(p, X, T, LOSS, state=state)
    train(net, p, X, T, LOSS, SGD(0.0), epochs=2, batch_size=3, state=state)
    assert state == 3 + 2 * 3
    assert_close(net.vjp(p, X, DY, state=state, mode="train")[1], DY @ net.views(p)["1.weight"].T, 1e-6)
    assert_refused(lambda: net.vjp(p, X, DY, mode="train"), "`state` is missing")  # it is read while training too


def test_a_name_twice_is_refused():
    class Twice(Counter):
        def declare(self, d):
            super().declare(d)
            super().declare(d)

    assert_refused(lambda: Chain(Twice(), input_shape=(3,)), "Twice.declare", "'count'", "twice")


# Who reads it, who updates it


def test_training_calls_update_it_alike(net, dtype):
    states = []
    for call in (
        lambda p, state: net(X, p, state=state, mode="train"),
        lambda p, state: net.value_and_grad(p, X, T, LOSS, state=state),
        lambda p, state: train(net, p, X, T, LOSS, SGD(0.0), state=state),
    ):
        p, state = start(net, dtype)
        call(p, state)
        states.append(state)
    hidden = np.tanh(X.astype(dtype) @ net.views(p)["0.weight"] + net.views(p)["0.bias"])
    old = net.state_views(start(net)[1])
    wanted = [0.9 * old["1.running_mean"] + 0.1 * hidden.mean(0), 0.9 * old["1.running_var"] + 0.1 * hidden.var(0, ddof=1)]
    for state in states:
        assert_close(state, np.concatenate(wanted), 1e-5 if dtype == np.float32 else 1e-14)


def test_all_else_leaves_it_alone(net, dtype):
    p, state = start(net, dtype)
    before = state.tobytes()
    state.flags.writeable = False
    net(X, p, state=state)
    net.loss(p, X, T, LOSS, state=state)
    for mode in ("train", "eval"):
        net.vjp(p, X, DY, state=state, mode=mode)
        objective = net.objective(X, T, LOSS, state=state, mode=mode)
        first, second = objective(p), objective(p)
        assert first[0] == second[0]
        assert first[1].tobytes() == second[1].tobytes()
    net.value_and_grad(p, X, T, LOSS, state=state, mode="eval")
    assert state.tobytes() == before


def test_an_objective_keeps_the_state_it_was_given(net):
    p, state = start(net)
    objective = net.objective(X, T, LOSS, state=state)
    value, g = objective(p)
    assert value == pytest.approx(net.loss(p, X, T, LOSS, state=state), rel=1e-14)
    state[...] = 7.0
    assert objective(p)[0] == value
    assert_close(net.objective(X, T, LOSS, state=start(net)[1].astype(np.float32))(p)[1], g, 1e-6)


def test_evaluation_reads_it(net):
    p, state = start(net)
    views, hidden = net.state_views(state), np.tanh(X @ net.views(p)["0.weight"] + net.views(p)["0.bias"])
    normal = (hidden - views["1.running_mean"]) / np.sqrt(views["1.running_var"] + 1e-5)
    y = normal * net.views(p)["1.weight"] + net.views(p)["1.bias"]
    assert_close(net(X, p, state=state), y @ net.views(p)["2.weight"] + net.views(p)["2.bias"], 1e-13)


def test_training_does_not_read_it(net):
    """Batch statistics are those of the batch, whatever the running ones are; pure calls may leave the state out."""
    p, state = start(net)
    wanted = net.vjp(p, X, DY, mode="train")
    for other in (state, np.full_like(state, np.nan)):
        assert [a.tobytes() for a in net.vjp(p, X, DY, state=other, mode="train")] == [a.tobytes() for a in wanted]
    value, g = net.objective(X, T, LOSS, mode="train")(p)
    actual, actual_g = net.value_and_grad(p, X, T, LOSS, state=state)
    assert value == pytest.approx(actual, rel=1e-14)
    assert_close(g, actual_g, 1e-14)


def test_frozen_parameters_leave_the_statistics_running(net):
    p, state = start(net)
    other = state.copy()
    frozen = net.with_frozen("*")
    frozen.value_and_grad(p, X, T, LOSS, state=state)
    net.value_and_grad(p, X, T, LOSS, state=other)
    assert state.tobytes() == other.tobytes()
    before = p.copy()
    train(net.with_frozen("1.*"), p, X, T, LOSS, Adam(0.1), state=state)
    moved = net.views(p - before)
    assert {name for name, view in moved.items() if view.any()} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert state.tobytes() != other.tobytes()


def test_copies_of_a_network_take_the_same_state(net):
    p, state = start(net)
    y = net(X, p, state=state)
    for twin in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net), net.with_frozen("1.*"), Chain(net, backend=net.backend)):
        assert twin(X, p, state=state).tobytes() == y.tobytes()
        assert twin.n_state == net.n_state


def test_penalties_know_parameters_only(net):
    p, state = start(net)
    plain = net.loss(p, X, T, LOSS, state=state)
    assert net.loss(p, X, T, LOSS, state=state, penalty=L2Penalty(0.5)) == pytest.approx(plain + 0.5 * np.sum(p * p))


def test_large_batches(net, dtype):
    """Arrays too large to be copied are bound as they are, the state among them."""
    p, state = start(net, dtype)
    x = np.random.default_rng(4).normal(size=(100_000, 3)).astype(dtype)
    t = np.zeros((100_000, 2), dtype)
    net.value_and_grad(p, x, t, LOSS, state=state)
    hidden = np.tanh(x.astype(np.float64) @ net.views(p)["0.weight"] + net.views(p)["0.bias"])
    old = net.state_views(start(net)[1])["1.running_var"]
    assert_close(state[4:], 0.9 * old + 0.1 * hidden.var(0, ddof=1), 1e-5 if dtype == np.float32 else 1e-12)


def test_tensors_are_states(net):
    torch = pytest.importorskip("torch")
    p, state = start(net)
    tensor = torch.tensor(state)
    net.value_and_grad(p, X, T, LOSS, state=state)
    net.value_and_grad(p, X, T, LOSS, state=tensor)
    assert tensor.numpy().tobytes() == state.tobytes()


# Training


def run(net, state, epochs=4, seed=3, **settings):
    p = net.init(seed=1, dtype=state.dtype)
    return p, train(net, p, X, T, LOSS, Adam(0.02), epochs=epochs, seed=seed, batch_size=3, state=state, **settings)


def test_training_is_the_loop_one_would_write(net):
    p, state = start(net)
    own_p, own_state = start(net)
    train(net, p, X, T, LOSS, SGD(0.05), epochs=3, batch_size=3, shuffle=False, state=state)
    for _ in range(3):
        for begin in (0, 3, 6):
            piece = slice(begin, begin + 3)
            own_p -= 0.05 * net.value_and_grad(own_p, X[piece], T[piece], LOSS, state=own_state)[1]
    assert_close(p, own_p, 1e-12)
    assert_close(state, own_state, 1e-12)


def test_the_same_seed_gives_the_same_bits(net, dtype):
    states = [net.init_state(dtype) for _ in range(3)]
    results = [run(net, state, seed=seed)[0].tobytes() for state, seed in zip(states, (3, 3, 4), strict=True)]
    assert results[0] == results[1] != results[2]
    assert states[0].tobytes() == states[1].tobytes() != states[2].tobytes()


def test_validation_evaluates_with_the_state_as_of_then(net):
    state, seen = net.init_state(np.float64), []

    def mean_output(t, y):
        return float(np.mean(y))

    def note(now):
        assert now.state is state
        seen.append((net.loss(now.p, X, T, LOSS, state=state), mean_output(T, net(X, now.p, state=state))))

    _, history = run(net, state, validation=(X, T), metrics=[mean_output], callbacks=[note])
    assert history.validation_loss == [loss for loss, _ in seen]
    assert history.metrics["mean_output"] == [mean for _, mean in seen]


def test_early_stopping_restores_the_state_too(net):
    kept, state = [], net.init_state(np.float64)
    scores = iter([3.0, 1.0, 2.0, 2.0, 2.0])

    def score(t, y):
        return next(scores)

    note = lambda now: kept.append((now.p.copy(), now.state.copy()))  # noqa: E731
    stop = EarlyStopping(2, monitor="score")
    p, history = run(net, state, epochs=9, validation=(X, T), metrics=[score], callbacks=[note, stop])
    assert history.epochs == 4
    assert p.tobytes() == kept[1][0].tobytes()
    assert state.tobytes() == kept[1][1].tobytes() != kept[3][1].tobytes()


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_resuming_equals_one_long_run(name, backend_name):
    net = Chain(Dense(3, 6, tanh), BatchNorm(6), Dropout(0.3), Dense(6, 2), backend=backend_name)
    p, state = net.init(dtype=np.float64), net.init_state(np.float64)
    whole_p, whole = p.copy(), state.copy()
    data, rest = (X, T, LOSS, OPTIMIZERS[name]), {"batch_size": 4, "seed": 5}
    history = train(net, p, *data, epochs=2, state=state, **rest)
    train(net, p, *data, epochs=3, state=state, resume=history, **rest)
    train(net, whole_p, *data, epochs=5, state=whole, **rest)
    assert p.tobytes() == whole_p.tobytes()
    assert state.tobytes() == whole.tobytes()


def test_ctrl_c_leaves_the_state_as_of_then(net):
    def interrupt(now):
        if now.epoch == 2:
            raise KeyboardInterrupt

    state, wanted = net.init_state(np.float64), net.init_state(np.float64)
    p, _ = run(net, state, callbacks=[interrupt])
    assert p.tobytes() == run(net, wanted, epochs=2)[0].tobytes()
    assert state.tobytes() == wanted.tobytes()


# Threads


def test_calls_at_once_with_states_of_their_own(net):
    def job(k):
        p, state = start(net)
        x = np.random.default_rng(k).normal(size=(5 + k, 3))
        for _ in range(20):
            net.value_and_grad(p, x, np.zeros((5 + k, 2)), LOSS, state=state)
        return state.tobytes() + net(x, p, state=state).tobytes()

    wanted = [job(k) for k in range(4)]
    assert in_threads([lambda k=k: job(k) for k in range(4)]) == wanted


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_of_the_native_backend(threads, monkeypatch):
    """Tiles of a batch on several threads: the same statistics to rounding, and the same bits each time."""
    native = pytest.importorskip("chains.backends.native.backend")
    monkeypatch.setattr("chains.backends.native.memory_plan.MIN_THREAD_OPERATIONS", 1)
    net, reference = make_net("numpy"), make_net("numpy")
    network_of(net).use(native.NativeBackend(threads=threads))
    x = np.random.default_rng(1).normal(size=(500, 3))
    t = np.random.default_rng(2).normal(1.0, 1.0, (500, 2))
    runs = []
    for each in (reference, net, net):
        p, state = start(each)
        history = train(each, p, x, t, LOSS, SGD(0.1), epochs=2, batch_size=200, state=state)
        runs.append((p, state, np.array(history.loss)))
    for wanted, first, second in zip(*runs, strict=True):
        assert_close(first, wanted, 1e-11)
        assert first.tobytes() == second.tobytes()


def test_one_image_has_statistics(backend_name):
    net = Chain(BatchNorm(2, momentum=1.0), input_shape=(2, 3, 4), backend=backend_name)
    x, state = RNG.normal(size=(1, 2, 3, 4)), net.init_state(np.float64)
    net(x, net.init(dtype=np.float64), state=state, mode="train")
    assert_close(state, np.concatenate([x.mean((0, 2, 3)), x.var((0, 2, 3), ddof=1)]), 1e-13)


def test_wrong_state_views(net):
    assert_refused(lambda: net.state_views(np.ones(7)), "`state`", "(7,)", "8 numbers")
    assert_refused(lambda: net.init_state(np.float16), "`dtype`", "float16")
    with pytest.raises(KeyError, match=r"no state array is named '1\.mean'; the names are 1\.running_mean"):
        net.state_layout["1.mean"]
