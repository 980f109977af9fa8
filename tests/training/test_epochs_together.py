"""Short epochs are done together in one call, with the bits and the history of one after another."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from chains import SGD, Adam, BatchNorm, Chain, Dense, Dropout, SquaredLoss, num_threads, tanh, train
from chains.training import steps
from tests import harness

RNG = np.random.default_rng(0)
SAMPLES, EPOCHS, MEMBERS = 23, 150, 3
X, T = RNG.normal(size=(SAMPLES, 3)).astype(np.float32), RNG.normal(size=(SAMPLES, 2)).astype(np.float32)


@pytest.fixture(params=harness.BACKENDS)
def net(request):
    return Chain(Dense(3, 6, tanh), BatchNorm(6), Dropout(0.2), Dense(6, 2), backend=request.param)


@pytest.fixture
def calls(monkeypatch):
    """The numbers of epochs that were done together."""
    found, do = [], steps.ArraySteps._do_together
    monkeypatch.setattr(steps.ArraySteps, "_do_together", lambda self, epochs: found.append(epochs) or do(self, epochs))
    return found


def trained(net, members, together, monkeypatch, *, x=X, t=T, **settings):
    """All that a run leaves: parameters, state, history and how it ended. Runs twice, since the first one measures times."""
    monkeypatch.setattr(steps, "MAX_SAMPLES_AHEAD", 1 << 15 if together else 1)
    settings = {"epochs": EPOCHS, "batch_size": 10, "drop_last": True, "optimizer": Adam(0.01), **settings}
    for _ in range(2):
        p = net.init_many(members) if members else net.init()
        state = np.ones((members, net.n_state) if members else net.n_state, p.dtype)
        try:
            history, error = train(net, p, x, t, SquaredLoss(), state=state, **settings), ""
        except FloatingPointError as caught:
            history, error = caught.history, str(caught)
    losses = np.array(history.loss).tobytes()
    ends = history.ended if members else {}
    at = history.position
    return p.tobytes(), state.tobytes(), losses, history.steps, ends, error, at.step, at.losses.tobytes(), len(history.seconds)


def assert_same(net, members, monkeypatch, calls, **settings):
    alone = trained(net, members, False, monkeypatch, **settings)
    assert not calls
    assert trained(net, members, True, monkeypatch, **settings) == alone
    assert bool(calls) == (net.backend != "numpy")
    calls.clear()


def test_epochs_done_together_share_their_time(calls):
    net = Chain(Dense(3, 6, tanh), Dense(6, 2), backend="native")
    for _ in range(2):
        history = train(net, net.init(), X, T, SquaredLoss(), Adam(0.01), epochs=EPOCHS, batch_size=10, drop_last=True)
    assert calls
    assert min(np.diff(history.seconds)) > 0.0


@pytest.mark.parametrize("members", [0, MEMBERS])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_same_bits(net, members, shuffle, monkeypatch, calls):
    assert_same(net, members, monkeypatch, calls, shuffle=shuffle)
    assert_same(net, members, monkeypatch, calls, shuffle=shuffle, batch_size=2, epochs=60)
    if members:
        assert_same(net, members, monkeypatch, calls, shuffle=shuffle, seed=[3] * members)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads(net, threads, monkeypatch, calls):
    monkeypatch.setattr("chains.backends.native.memory_plan.MIN_THREAD_OPERATIONS", 1)
    with num_threads(threads):
        assert_same(net, 0, monkeypatch, calls)
        assert_same(net, MEMBERS, monkeypatch, calls)


@pytest.mark.parametrize("members", [0, MEMBERS])
def test_a_loss_that_is_not_finite(net, members, monkeypatch, calls):
    assert_same(net, members, monkeypatch, calls, optimizer=SGD(lambda step: 0.01 * 3.0 ** (step / 10)))


def test_a_learning_rate_that_is_refused(net, monkeypatch, calls):
    """All steps before it are done, also those of an epoch that is not finished."""
    for bad in (200, 201, 203):
        assert_same(net, 0, monkeypatch, calls, optimizer=SGD(lambda step, bad=bad: 0.01 * (bad - step)))


def test_further_epochs(net, monkeypatch, calls):
    monkeypatch.setattr(steps, "MAX_SAMPLES_AHEAD", 200)
    found = []
    for parts in ([EPOCHS], [7, 1, EPOCHS - 8]):
        p, state, history = net.init(), net.init_state(), None
        for epochs in parts:
            history = train(
                net,
                p,
                X,
                T,
                SquaredLoss(),
                Adam(0.01),
                state=state,
                epochs=epochs,
                batch_size=5,
                drop_last=True,
                resume=history,
            )
        found.append((p.tobytes(), state.tobytes(), history.optimizer_state["epoch"].tolist()))
    assert found[0] == found[1]


def test_callbacks_are_called_after_as_many_epochs(net, monkeypatch, calls):
    seen = []

    def look(state):
        seen.append(state.epoch)

    look.epochs_at_once = 7
    train(
        net,
        net.init(),
        X,
        T,
        SquaredLoss(),
        Adam(0.01),
        state=net.init_state(),
        epochs=EPOCHS,
        batch_size=23 // 2,
        drop_last=True,
        callbacks=[look],
    )
    assert all(later - earlier <= 7 for earlier, later in itertools.pairwise(seen))
    assert seen[-1] == EPOCHS
    assert max(calls, default=0) <= 7
