"""Histories: joined, pickled, in JSON."""

from __future__ import annotations

import copy
import json
import math
import pickle

import numpy as np
import pytest

from chains import SGD, Adam, Chain, Dense, History, SquaredLoss, tanh, train
from chains.training.history import Position

RNG = np.random.default_rng(0)
X, T = RNG.normal(size=(20, 3)), RNG.normal(size=(20, 2))
NET = Chain(Dense(3, 4, tanh), Dense(4, 2), backend="numpy")
AGAIN = {
    "pickled": lambda history: pickle.loads(pickle.dumps(history)),
    "copied": copy.deepcopy,
    "json": lambda history: History.from_dict(json.loads(json.dumps(history.to_dict(), allow_nan=False))),
}


def run(p=None, net=NET, optimizer=None, **settings):
    p = net.init(dtype=settings.pop("dtype", np.float32)) if p is None else p
    settings = {"epochs": 2, "batch_size": 6, **settings}
    return p, train(net, p, X, T, SquaredLoss(), optimizer or Adam(0.01), **settings)


def same(a, b):
    """Whether two histories are the same to the bit, infinities and NaN included."""
    assert np.array_equal(a.position.losses, b.position.losses)
    for name in ("step", "source_epoch", "data", "seconds"):
        assert getattr(a.position, name) == getattr(b.position, name)
    assert {k: v.tobytes() for k, v in a.optimizer_state.items()} == {k: v.tobytes() for k, v in b.optimizer_state.items()}
    assert [np.array(values).tobytes() for values in a.columns().values()] == [
        np.array(values).tobytes() for values in b.columns().values()
    ]
    assert list(a.columns()) == list(b.columns())
    return all(getattr(a, name) == getattr(b, name) for name in ("steps", "optimizer", "stopped", "layout"))


@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
def test_a_history_again(again, dtype):
    history = run(dtype=dtype, validation=(X, T), metrics=[lambda t, y: 0.25], callbacks=[lambda state: "enough"])[1]
    twin = again(history)
    assert same(history, twin)
    assert (twin.epochs, twin.stopped) == (1, "enough")
    assert type(twin.loss[0]) is float


@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
def test_numbers_that_are_none(again):
    history = History([1.0, math.inf], [-math.inf, math.nan], {"m": [math.nan, 1e-320]}, [0.1, 0.2])
    assert same(history, again(history))


@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
@pytest.mark.parametrize("optimizer", [Adam(0.01), SGD(0.05), SGD(0.05, momentum=0.5)], ids=str)
def test_it_goes_on_from_a_copy(again, optimizer):
    wanted = run(optimizer=optimizer, epochs=5)[0]
    p, history = run(optimizer=optimizer, epochs=3)
    run(p, optimizer=optimizer, epochs=2, resume=again(history))
    assert p.tobytes() == wanted.tobytes()


def test_a_diverged_history_is_json():
    with pytest.raises(FloatingPointError) as caught:
        run(optimizer=SGD(1e8), epochs=50, batch_size=None)
    history = caught.value.history
    assert not np.isfinite(history.loss[-1])
    assert same(history, AGAIN["json"](history))
    assert json.loads(json.dumps(history.to_dict()))["loss"][-1] in ("inf", "nan")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: [],
        lambda data: "text",
        lambda data: {},
        lambda data: {**data, "loss": 3},
        lambda data: {**data, "loss": ["infinite"]},
        lambda data: {**data, "loss": [None]},
        lambda data: {**data, "steps": -1},
        lambda data: {**data, "steps": 1.5},
        lambda data: {**data, "metrics": [1]},
        lambda data: {**data, "position": None},
        lambda data: {**data, "position": {**data["position"], "step": -1}},
        lambda data: {**data, "layout": [["a"]]},
        lambda data: {**data, "layout": 3},
        lambda data: {**data, "optimizer_state": {"moments": {"dtype": "object", "shape": [1], "bytes": ""}}},
        lambda data: {**data, "optimizer_state": {"moments": {"dtype": "float64", "shape": [10**12], "bytes": ""}}},
        lambda data: {**data, "optimizer_state": {"moments": {"dtype": "float64", "shape": [1], "bytes": "!!"}}},
        lambda data: {**data, "optimizer_state": {"moments": {"dtype": "nonsense", "shape": [1], "bytes": ""}}},
        lambda data: {**data, "optimizer_state": {"moments": {"dtype": ["O"], "shape": [1], "bytes": ""}}},
    ],
)
def test_what_is_no_history(damage):
    data = damage(run()[1].to_dict())
    with pytest.raises(ValueError, match=r"`data` .* is not what History.to_dict gives"):
        History.from_dict(data)


def test_two_are_one():
    settings = {"validation": (X, T), "metrics": [lambda t, y: float(t.sum())]}
    whole = run(epochs=5, **settings)[1]
    p, first = run(epochs=3, **settings)
    second = run(p, epochs=2, resume=first, **settings)[1]
    both = first + second
    assert (first.epochs, second.epochs, both.epochs, both.steps) == (3, 2, 5, 20)
    assert both.loss == whole.loss
    assert both.validation_loss == whole.validation_loss
    assert both.metrics == {"<lambda>": whole.metrics["<lambda>"]}
    assert both.seconds[:3] == first.seconds
    assert sorted(both.seconds) == both.seconds
    assert both.optimizer_state == whole.optimizer_state
    run(p, epochs=1, resume=both, **settings)
    assert p.tobytes() == run(epochs=6, **settings)[0].tobytes()


def test_nothing_and_something():
    first = run(epochs=0)[1]
    second = run(resume=first)[1]
    assert (first + second).loss == second.loss
    third = run(resume=second, epochs=0)[1]
    assert (second + third).loss == second.loss


def test_what_does_not_follow():
    p, first = run()
    second = run(p, resume=first)[1]
    with pytest.raises(ValueError, match="the later history began after 8 steps, but the first one ended after 16"):
        second + second
    with pytest.raises(ValueError, match="began after 0 steps, but the first one ended after 16"):
        second + first
    with pytest.raises(ValueError, match="a history of SGD does not continue one of Adam"):
        first + run(optimizer=SGD(0.1))[1]
    with pytest.raises(ValueError, match=r"another network, with 0.weight \(3, 4\) in the place of 0.weight \(3, 2\)"):
        first + run(net=Chain(Dense(3, 2)))[1]
    looked_at = run(p, resume=first, validation=(X, T))[1]
    with pytest.raises(ValueError, match="one history records validation loss and the other does not"):
        first + looked_at
    with pytest.raises(TypeError):
        first + 3


def test_a_position_is_that_of_an_end():
    history = run()[1]
    assert history.position.step == 0
    assert history.position.data == {"samples": 20, "batch_size": 6, "drop_last": False, "shuffle": True, "seed": 0}
    assert Position().step == 0
    assert history.layout == (("0.weight", (3, 4)), ("0.bias", (4,)), ("1.weight", (4, 2)), ("1.bias", (2,)))
