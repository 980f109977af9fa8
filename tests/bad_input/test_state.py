"""States that do not fit, are missing, or are where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from chains import (
    Adam,
    Chain,
    Dense,
    train,
)  # fmt: skip
from tests.bad_input.support import assert_refused
from tests.network.state import DY, LOSS, T, X, make_net, start


class Calls:
    """Every call that takes a state, with the arrays that must stay as they are."""

    def __init__(self, net=None):
        self.net = net or make_net("numpy")
        self.p, self.state = start(self.net)
        self.out = np.ones((8, 2))

    def forward(self, state, mode="eval", x=X, **rest):
        return self.net(x, self.p, state=state, mode=mode, out=self.out[: len(x)], **rest)

    def gradient(self, state, mode="train", x=X, t=T, **rest):
        return self.net.value_and_grad(self.p, x, t, LOSS, state=state, mode=mode, **rest)

    def vjp(self, state, mode="eval", x=X, dy=DY):
        return self.net.vjp(self.p, x, dy, state=state, mode=mode)

    def objective(self, state, mode="eval", x=X, t=T):
        return self.net.objective(x, t, LOSS, state=state, mode=mode)

    def loss(self, state):
        return self.net.loss(self.p, X, T, LOSS, state=state)

    def train(self, state, x=X, t=T, **rest):
        return train(self.net, self.p, x, t, LOSS, Adam(), state=state, **rest)

    @property
    def bits(self):
        return [array.tobytes() for array in (self.p, self.state, self.out, X, T)]


@pytest.fixture
def calls():
    return Calls()


METHODS = ["forward", "gradient", "vjp", "objective", "loss", "train"]


@pytest.mark.parametrize("method", METHODS)
def test_a_missing_state(calls, method):
    verb = "updates" if method in ("gradient", "train") else "reads"
    assert_refused(lambda: getattr(calls, method)(None), "`state`", "1.running_mean", verb, "net.init_state()", calls=calls)


def test_a_missing_state_in_the_other_mode(calls):
    assert_refused(lambda: calls.forward(None, mode="train"), "`state`", "updates", calls=calls)
    assert_refused(lambda: calls.gradient(None, mode="eval"), "`state`", "reads", calls=calls)


@pytest.mark.parametrize("method", METHODS)
def test_a_state_for_a_network_without(method):
    calls = Calls(Chain(Dense(3, 2), backend="numpy"))
    assert_refused(lambda: getattr(calls, method)(np.ones(8)), "`state` must be left out", calls=calls)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("state", "words"),
    [
        (np.ones(7), ["`state`", "(7,)", "8 numbers"]),
        (np.ones((8, 1)), ["`state`", "(8, 1)", "(8,)"]),
        (np.ones(8, int), ["`state`", "int64", "float"]),
        (np.ones(8, np.float16), ["`state`", "float16", "float"]),
        (np.ones(8, complex), ["`state`", "complex128", "real"]),
        (np.ones(16)[::2], ["`state`", "contiguous"]),
        ("last.npz", ["`state`"]),
    ],
    ids=lambda value: str(getattr(value, "dtype", "")) + str(getattr(value, "shape", "")),
)
def test_a_wrong_state(calls, method, state, words):
    assert_refused(lambda: getattr(calls, method)(state), *words, calls=calls)


@pytest.mark.parametrize("method", [method for method in METHODS if method != "objective"])
def test_a_state_of_another_type_than_the_parameters(calls, method):
    assert_refused(
        lambda: getattr(calls, method)(calls.net.init_state()), "`state`", "must be float64, as `p`, got float32", calls=calls
    )


@pytest.mark.parametrize("method", ["gradient", "train"])
def test_a_state_that_cannot_be_updated(calls, method):
    frozen = calls.state.copy()
    frozen.flags.writeable = False
    assert_refused(lambda: getattr(calls, method)(frozen), "`state`", "writable", calls=calls)
    assert_refused(lambda: getattr(calls, method)([1.0] * 8), "`state`", "list", "array", calls=calls)


@pytest.mark.parametrize("method", ["gradient", "train"])
def test_a_state_that_overlaps(calls, method):
    block = np.ones(24)
    assert_refused(lambda: getattr(calls, method)(block[:8], x=block.reshape(8, 3)), "`state`", "`x`", calls=calls)
    assert_refused(lambda: getattr(calls, method)(block[:8], t=block[:16].reshape(8, 2)), "`state`", "`t`", calls=calls)
    assert_refused(lambda: getattr(calls, method)(calls.p[:8]), "`state`", "`p`", calls=calls)
    assert_refused(lambda: getattr(calls, method)(block[:8], weights=block[:8]), "`state`", "`weights`", calls=calls)


def test_an_out_that_overlaps_the_state(calls):
    block = np.ones(64)
    state = block[:8]
    assert_refused(lambda: calls.net(X, calls.p, state=state, out=block[:16].reshape(8, 2)), "`out`", "`state`", calls=calls)
    for mode in ("eval", "train"):
        out = block[: calls.net.n_params]
        assert_refused(lambda: calls.gradient(state, mode, out=out), "`out`", "`state`", calls=calls)  # noqa: B023


@pytest.mark.parametrize("method", ["forward", "gradient", "vjp", "objective"])
def test_a_batch_of_one_while_training(calls, method):
    """As in PyTorch: the variance of a single number says nothing."""
    one = {"x": X[:1]} | {"gradient": {"t": T[:1]}, "objective": {"t": T[:1]}, "vjp": {"dy": DY[:1]}}.get(method, {})
    call = getattr(calls, method)
    assert_refused(lambda: call(calls.state, mode="train", **one), "batch of 1", "1, BatchNorm(4)", "at least 2", calls=calls)
    call(calls.state, mode="eval", **one)


def test_a_state_that_is_not_finite(calls):
    calls.state[5] = np.nan
    assert_refused(lambda: calls.train(calls.state), "`state`", "nan", "index (5,)", calls=calls)


def test_a_last_batch_of_one(calls):
    assert_refused(lambda: calls.train(calls.state, batch_size=7), "the last batch", "drop_last", "of 1", calls=calls)
    assert_refused(lambda: calls.train(calls.state, batch_size=1), "batch of 1", "BatchNorm(4)", calls=calls)
    assert_refused(lambda: calls.train(calls.state, x=X[:1], t=T[:1]), "batch of 1", calls=calls)
    calls.train(calls.state, batch_size=7, drop_last=True)
