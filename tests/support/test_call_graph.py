"""Functions that are pickled as the calls they make: schedules and initializers that are lambdas."""

from __future__ import annotations

import copy
import math
import pickle
from functools import partial

import numpy as np
import pytest

from chains import Adam, Chain, Dense, SquaredLoss, Updater, schedules, train
from chains.expr import minimum
from chains.support.call_graph import record

LOWEST = 1e-4
SHAPE = (6, 4)


def named(rng, shape):
    return rng.normal(size=shape) / math.sqrt(shape[0])


INITIALIZERS = {
    "normal": lambda rng, shape: rng.normal(0.0, 0.1, shape),
    "keyword": lambda rng, shape: 0.1 * rng.standard_normal(size=shape) + 0.5,
    "fan-in": lambda rng, shape: rng.uniform(-1, 1, shape) / np.sqrt(shape[0]),
    "fans": lambda rng, shape: rng.normal(size=shape) * (2 / (shape[0] + shape[1])) ** 0.5,
    "negative-power": lambda rng, shape: rng.normal(size=shape) * shape[0] ** -1,
    "orthogonal": lambda rng, shape: np.linalg.qr(rng.normal(size=shape))[0],
    "two-draws": lambda rng, shape: rng.normal(size=shape) * (rng.random(shape) < 0.5),
    "clipped": lambda rng, shape: np.clip(rng.normal(size=shape), -1, 1),
    "transposed": lambda rng, shape: rng.normal(size=shape[::-1]).T.copy(),
    "joined": lambda rng, shape: rng.normal(size=(1,) + shape)[0],  # noqa: RUF005 - a sum of tuples
    "sum": lambda rng, shape: rng.normal(size=shape) - np.add.reduce(rng.normal(size=shape)),
    "left": lambda rng, shape: np.arange(4.0) * rng.normal(size=shape),
    "flat": lambda rng, shape: np.abs(rng.normal(size=shape[0] * shape[1])).reshape(shape),
    "whole": lambda rng, shape: -abs(rng.integers(0, 5, shape)) % 3,
    "choice": lambda rng, shape: rng.choice([-1.0, 1.0], shape),
    "concatenated": lambda rng, shape: np.concatenate([rng.normal(size=(2, 4)), rng.normal(size=(4, 4))]),
    "global": lambda rng, shape: LOWEST + 0 * rng.normal(size=shape),
    "named": named,
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers_again(name):
    """The same bits from the same seed."""
    net = Chain(Dense(6, 4, weight_init=INITIALIZERS[name]))
    wanted = net.init(seed=3)
    for twin in (
        pickle.loads(pickle.dumps(net)),
        pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(net)))),
        copy.deepcopy(net),
    ):
        assert twin.init(seed=3).tobytes() == wanted.tobytes()


def test_another_shape():
    """Shapes are arguments too."""
    init = pickle.loads(pickle.dumps(Dense(6, 4, weight_init=INITIALIZERS["fans"]))).weight_init
    for shape in ((6, 4), (2, 30)):
        wanted = INITIALIZERS["fans"](np.random.default_rng(1), shape)
        assert init(np.random.default_rng(1), shape).tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    "function",
    [
        lambda rng, shape: rng.normal(size=shape) / math.sqrt(shape[0]),
        lambda rng, shape: rng.normal(size=shape) if len(shape) > 1 else np.zeros(shape),
        lambda rng, shape: np.zeros(shape),
        lambda rng, shape: rng.normal(size=shape) if shape[0] > 3 else 0.0,
        lambda rng, shape: [rng.normal(size=shape[1]) for _ in range(shape[0])],
        lambda rng, shape: np.eye(*shape),
    ],
)
def test_what_cannot_be_told_is_said(function):
    """While it works where it is."""
    net = Chain(Dense(6, 4, weight_init=function))
    net.init()
    copy.deepcopy(net).init()
    with pytest.raises(pickle.PicklingError, match=r"the initializer <function <lambda> .* define it with def in a module"):
        pickle.dumps(net)


def test_layers_show_what_they_were_given():
    layer = Dense(6, 4, weight_init=named, bias_init=lambda rng, shape: rng.normal(size=shape))
    assert "function named" in repr(layer)
    assert repr(pickle.loads(pickle.dumps(layer))).endswith("bias_init=<a function of rng, shape in 1 calls>)")
    assert copy.copy(layer.weight_init) == layer.weight_init == Dense(6, 4, weight_init=named).weight_init


def test_what_a_tape_has():
    tape = record(lambda a, b: {"x": [a + 1, (b, 2)], "y": slice(a, None)}, "a", "b")
    assert tape(1, 2) == {"x": [2, (2, 2)], "y": slice(1, None)}
    assert record(lambda a: a.real, "a")(3 + 4j) == 3
    with pytest.raises(TypeError, match="Python would have to know"):
        record(lambda a: a in [1], "a")


# Schedules

SCHEDULES = {
    "lambda": lambda step: 0.1 * 0.99**step,
    "partial": partial(lambda factor, step: factor / (1 + step), 0.1),
    "warmup": schedules.warmup(lambda step: minimum(0.1, 1 / (step + 1)), 3),
    "closure": (lambda rate: lambda step: rate / (step + 1))(0.2),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_again(name):
    optimizer = Adam(SCHEDULES[name])
    twin = pickle.loads(pickle.dumps(optimizer))
    assert twin == optimizer
    assert hash(twin) == hash(optimizer)
    assert copy.deepcopy(optimizer) == optimizer
    net, x, t = Chain(Dense(3, 2), backend="numpy"), np.ones((5, 3)), np.zeros((5, 2))
    p, q = net.init(), net.init()
    train(net, p, x, t, SquaredLoss(), optimizer, epochs=6)
    train(net, q, x, t, SquaredLoss(), twin, epochs=6)
    assert p.tobytes() == q.tobytes() != net.init().tobytes()
    update = Updater(optimizer, np.ones(3))
    again = pickle.loads(pickle.dumps(update))
    for one in (update, again):
        one(np.arange(3.0))
    assert update.p.tobytes() == again.p.tobytes()


def test_equal_schedules_are_equal():
    """Wherever they were written."""
    assert Adam(lambda step: 0.1 / (step + 1)) == Adam(lambda step: 0.1 / (step + 1))
    assert Adam(lambda step: 0.1 / (step + 1)) != Adam(lambda step: 0.1 / (step + 2))
    assert repr(Adam(lambda step: 0.1 / (step + 1)).learning_rate) == "<step -> 0.1 / (step + 1)>"


class Halving:
    """A schedule with a name of its own stays what it is."""

    def __call__(self, step):
        return 0.5 ** (step + 1)


def test_objects_are_kept():
    schedule = Halving()
    assert Adam(schedule).learning_rate is schedule
    assert isinstance(pickle.loads(pickle.dumps(Adam(schedule))).learning_rate, Halving)


def test_a_schedule_within_warmup_that_is_none():
    with pytest.raises(TypeError, match=r"`schedule` \(=<function .* must be a number or a formula of the step"):
        schedules.warmup(lambda step: "fast", 3)
