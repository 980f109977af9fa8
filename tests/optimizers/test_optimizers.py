"""Optimisers and schedules against plain NumPy loops, on every backend, poisoned, and through both doors."""

from __future__ import annotations

import math
import pickle
import re
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

import chains
from chains import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Chain,
    Dense,
    FrontLastPenalty,
    L1Penalty,
    L2Penalty,
    RMSProp,
    SquaredLoss,
    schedules,
    tanh,
    train,
)
from chains.expr import floor, log, where
from chains.network import record
from chains.network.network import network_of
from chains.program.recorder import Recorder
from chains.training.updater import Updater
from tests.harness import CLIPPED, OPTIMIZERS, ROUNDING, SCHEDULES, assert_close, assert_same_bits, run_program

ALL = OPTIMIZERS | CLIPPED
every_optimizer = pytest.mark.parametrize("optimizer", ALL.values(), ids=ALL)
SIZE, STEPS = 23, 10


def reference(optimizer, p, gradients, frozen=(), rate=None):
    """`p` after these gradients, in plain NumPy and float64, straight from the papers."""
    p, rate = p.astype(np.float64).copy(), rate or optimizer.learning_rate
    a, b = np.zeros_like(p), np.zeros_like(p)
    free = np.ones(p.size, bool)
    free[list(frozen)] = False
    for k, g in enumerate(gradients, 1):
        g = np.where(free, g, 0.0).astype(np.float64)
        if optimizer.clip_norm is not None:
            g = g * min(1.0, optimizer.clip_norm / (np.linalg.norm(g) + 1e-6))
        move = MOVES[type(optimizer).__name__](optimizer, p, g, a, b, k, rate(k - 1) if callable(rate) else rate)
        p = np.where(free, p + move, p)
    return p


def _sgd(o, p, g, a, b, k, rate):
    a[:] = o.momentum * a + g
    return -rate * (g + o.momentum * a if o.nesterov else a)


def _adam(o, p, g, a, b, k, rate):
    a[:] = o.beta1 * a + (1 - o.beta1) * g
    b[:] = o.beta2 * b + (1 - o.beta2) * g * g
    mean, square = a / (1 - o.beta1**k), b / (1 - o.beta2**k)
    return -rate * mean / (np.sqrt(square) + o.eps)


def _adamw(o, p, g, a, b, k, rate):
    return _adam(o, p, g, a, b, k, rate) - rate * o.weight_decay * p


def _rmsprop(o, p, g, a, b, k, rate):
    a[:] = o.decay * a + (1 - o.decay) * g * g
    return -rate * g / (np.sqrt(a) + o.eps)


def _adagrad(o, p, g, a, b, k, rate):
    a += g * g
    return -rate * g / (np.sqrt(a) + o.eps)


# By class: how the parameters move at step `k`, counted from 1; `a` and `b` are kept from step to step, and begin as zeros.
MOVES = {"SGD": _sgd, "SWAG": _sgd, "Adam": _adam, "AdamW": _adamw, "RMSProp": _rmsprop, "Adagrad": _adagrad}


def test_every_optimizer_has_a_move():
    assert {type(optimizer).__name__ for optimizer in OPTIMIZERS.values()} == MOVES.keys()


def start(dtype=np.float64):
    rng = np.random.default_rng(0)
    p, gradients = rng.normal(size=SIZE), rng.normal(size=(STEPS, SIZE)) * 0.3
    return p.astype(np.float32).astype(dtype), gradients.astype(np.float32).astype(dtype)


@pytest.mark.few(16)
@every_optimizer
def test_updater_is_the_papers_formula(optimizer, dtype):
    p, gradients = start(dtype)
    wanted = reference(optimizer, p, gradients)
    update = Updater(optimizer, p)
    for g in gradients:
        before = g.copy()
        update(g)
        np.testing.assert_array_equal(g, before)
    assert update.p is p
    assert_close(p, wanted, 10 * ROUNDING[np.dtype(dtype)])
    assert "after 10 steps" in repr(update)


@every_optimizer
def test_training_steps_are_updates(optimizer, dtype, backend_name):
    """`train` equals gradients of `value_and_grad` handed to the plain loop."""
    net = Chain(Dense(3, 4, tanh), Dense(4, 2), backend=backend_name)
    rng = np.random.default_rng(0)
    x, t, p = rng.normal(size=(6, 3)), rng.normal(size=(6, 2)), net.init(seed=0, dtype=dtype)
    wanted = p.astype(np.float64)
    gradients = []
    for _ in range(STEPS):
        gradients.append(net.value_and_grad(wanted, x, t, SquaredLoss())[1])
        wanted = reference(optimizer, p, gradients)
    train(net, p, x, t, SquaredLoss(), optimizer, epochs=STEPS)
    assert_close(p, wanted, 30 * ROUNDING[np.dtype(dtype)])


@every_optimizer
def test_a_step_reads_nothing_unwritten(optimizer, dtype, backend_name):
    net = Chain(Dense(3, 4, tanh), Dense(4, 2)).with_frozen("0.bias")
    program = record.training_step(network_of(net), record.Criterion(SquaredLoss(), (2,)), optimizer, np.dtype(dtype))
    rng = np.random.default_rng(0)
    arrays = {"p": net.init(seed=0), "x": rng.normal(size=(6, 3)), "t": rng.normal(size=(6, 2)), "step": np.zeros(()),
              "moments": np.zeros(optimizer.n_states * net.n_params)}  # fmt: skip
    clean, poisoned = (run_program(program, backend_name, 6, arrays, fill, runs=3) for fill in (0x00, 0xFF))
    assert_same_bits(clean, poisoned)
    assert clean["step"] == 3.0
    assert all(np.isfinite(array).all() for array in clean.values())


@every_optimizer
def test_frozen_parameters_do_not_move(optimizer, backend_name):
    """Not even by weight decay or momentum; nor do they count in the norm that is clipped."""
    net = Chain(Dense(3, 4, tanh), Dense(4, 2), backend=backend_name).with_frozen("0.weight", "1.bias")
    rng = np.random.default_rng(0)
    x, t, p = rng.normal(size=(6, 3)), rng.normal(size=(6, 2)), net.init(seed=0, dtype=np.float64)
    p[-2:] = 0.5
    fixed = [k for name in net.frozen for k in range(net.layout[name].start, net.layout[name].stop)]
    before, wanted, gradients = p.copy(), p.copy(), []
    for _ in range(5):
        gradients.append(net.value_and_grad(wanted, x, t, SquaredLoss())[1])
        assert not gradients[-1][fixed].any()
        wanted = reference(optimizer, before, gradients, frozen=fixed)
    train(net, p, x, t, SquaredLoss(), optimizer, epochs=5)
    assert p[fixed].tobytes() == before[fixed].tobytes()
    assert_close(p, wanted, 1e-11)


@every_optimizer
def test_everything_frozen(optimizer):
    net = Chain(Dense(3, 2)).with_frozen("*")
    p = net.init()
    before = p.copy()
    train(net, p, np.ones((4, 3)), np.ones((4, 2)), SquaredLoss(), optimizer, epochs=2)
    assert p.tobytes() == before.tobytes()


@every_optimizer
def test_a_network_without_parameters(optimizer):
    net, p = Chain(chains.Flatten(), input_shape=(3,)), np.empty(0)
    history = train(net, p, np.ones((4, 3)), np.zeros((4, 3)), SquaredLoss(), optimizer, epochs=2)
    assert history.loss == [1.5, 1.5]


def test_clipping_only_shortens():
    p, gradients = start()
    for factor, largest in ((1.0, 1e9), (1e-3, 0.4)):
        plain, clipped = p.copy(), p.copy()
        Updater(SGD(0.1), plain)(gradients[0] * factor)
        Updater(SGD(0.1, clip_norm=largest), clipped)(gradients[0] * factor)
        np.testing.assert_array_equal(plain, clipped)
    clipped = p.copy()
    Updater(SGD(1.0, clip_norm=0.4), clipped)(gradients[0] * 1e3)
    assert np.linalg.norm(p - clipped) == pytest.approx(0.4, rel=1e-6)


def test_a_nan_gradient_is_not_hidden_by_clipping():
    p, gradients = start()
    gradients[0, 3] = np.nan
    Updater(SGD(0.1, clip_norm=0.4), p)(gradients[0])
    assert np.isnan(p).all()


def test_updaters_take_any_vector():
    p, gradients = start(np.float32)
    other = p.copy()
    Updater(Adam(0.1), p)(gradients[0].astype(np.float64))
    Updater(Adam(0.1), other)(list(gradients[0]))
    assert p.tobytes() == other.tobytes()


# Schedules


@pytest.mark.parametrize(("schedule", "wanted"), SCHEDULES.values(), ids=SCHEDULES)
def test_schedule_is_its_formula(schedule, wanted):
    """With numbers, and in an update, where SGD shows the rate."""
    p = np.zeros(1)
    update = Updater(SGD(schedule), p)
    for step in range(12):
        assert schedule(step) == pytest.approx(wanted(step), abs=1e-15)
        before = p[0]
        update(np.ones(1))
        assert before - p[0] == pytest.approx(wanted(step), abs=1e-12)


WRONG_RATES = {
    "negative": (lambda step: 0.1 - 0.01 * floor(step / 3), 33, "-0.01"),
    "negative-at-once": (lambda step: -0.1, 0, "-0.1"),
    "nan": (lambda step: log(step - 5.0) / log(step - 5.0), 0, "nan"),
    "infinite": (lambda step: 1.0 / abs(step - 7.0), 7, "inf"),
    "infinite-at-once": (lambda step: 1.0 / step, 0, "inf"),
    "late": (lambda step: where(step < 1234, 1e-3, -1.0), 1234, "-1"),
    "truth": (lambda step: (step < 3) - 1e-9, 3, "-1e-09"),
    "grows": (schedules.exponential(1.0, 1e100), 4, "inf"),
}


@pytest.mark.parametrize(("schedule", "step", "value"), WRONG_RATES.values(), ids=WRONG_RATES)
def test_rates_that_are_none_are_told_before_the_step(schedule, step, value, backend_name):
    """In training on arrays and on batches, in one run and resumed, and in updates."""
    told = re.escape(f") must be finite, zero or positive, got {value} at step {step}, counted from 0")
    optimizer = SGD(schedule)
    net = Chain(Dense(3, 2), backend=backend_name)
    x, t = np.zeros((6, 3)), np.zeros((6, 2))  # with a loss of 0, whatever the rate
    for x_given, t_given, settings in ((x, t, {}), (x, t, {"batch_size": 2}), ([(x, t)] * 3, None, {})):
        p = np.zeros(net.n_params)
        with pytest.raises(FloatingPointError, match=r"`learning_rate` \(=.*" + told) as caught:
            train(net, p, x_given, t_given, SquaredLoss(), optimizer, epochs=2000, **settings)
        assert caught.value.history.steps == step
        assert not p.any()
    if 0 < step < 100:
        history = train(net, np.zeros(net.n_params), x, t, SquaredLoss(), optimizer, epochs=step)
        with pytest.raises(FloatingPointError, match=told):
            train(net, np.zeros(net.n_params), x, t, SquaredLoss(), optimizer, resume=history)
    p = np.ones(3)
    update = Updater(optimizer, p)
    for _ in range(step):
        update(np.ones(3))
    before = p.copy()
    with pytest.raises(FloatingPointError, match=told):
        update(np.ones(3))
    np.testing.assert_array_equal(p, before)


@pytest.mark.parametrize("kind", [RuntimeError, ZeroDivisionError, KeyError])
def test_a_schedule_that_fails_is_named(kind):
    def failing(step):
        raise kind("no")

    with pytest.raises(kind) as caught:
        Adam(failing)
    assert caught.value.__notes__ == [f"`learning_rate` (={failing!r}) must be a number or a formula of the step"]


def test_what_is_not_finite_in_a_gradient_goes_on_into_the_parameters():
    p = np.zeros(3)
    Updater(SGD(1.0), p)(np.array([1.0, np.nan, np.inf]))
    np.testing.assert_array_equal(p, [-1.0, np.nan, -np.inf])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("schedule", ["exponential", "warmup-then"])
def test_every_optimizer_takes_a_schedule(name, schedule):
    optimizer = replace(OPTIMIZERS[name], learning_rate=SCHEDULES[schedule][0])
    p, gradients = start()
    wanted = reference(optimizer, p, gradients, rate=SCHEDULES[schedule][1])
    update = Updater(optimizer, p)
    for g in gradients:
        update(g)
    assert_close(p, wanted, 1e-11)


def test_settings_that_are_equal_are_equal():
    assert Adam(1e-3) == Adam(0.001) != AdamW(1e-3)
    assert len({Adam(1e-3), Adam(1e-3), SGD(1e-3)}) == 2
    assert "beta1=0.9" in repr(Adam(1e-3))


# Settings: one program for all of their values


def tuned(rate, k=1):
    """Optimisers, schedules and penalties that differ in their settings alone, for each `rate`."""
    return {
        "SGD": (SGD(rate, momentum=0.5 * k, clip_norm=1.0 / k), L2Penalty(rate)),
        "Adam": (Adam(rate, beta1=0.5 * k, beta2=0.6 * k, eps=1e-8 / k), L1Penalty(rate) + L2Penalty(0.1 * rate)),
        "AdamW": (AdamW(schedules.cosine(rate, 10 * k, final=0.1 * rate), weight_decay=rate), None),
        "RMSProp": (RMSProp(schedules.warmup(schedules.exponential(rate, 0.9, k), k), decay=0.5 * k), None),
        "Adagrad": (Adagrad(schedules.stepwise(rate, 0.5 * k, k), eps=1e-9 * k), FrontLastPenalty(None, L2Penalty(rate))),
    }


def trained(net, optimizer, penalty, dtype="f8"):
    rng = np.random.default_rng(0)
    x, t, p = rng.normal(size=(12, 3)), rng.normal(size=(12, 2)), net.init(seed=0, dtype=dtype)
    history = train(net, p, x, t, SquaredLoss(), optimizer, epochs=3, batch_size=5, penalty=penalty)
    return p, history.loss


def counting(monkeypatch):
    """A list that grows with each program that is recorded."""
    recorded = []
    finish = Recorder.finish
    monkeypatch.setattr(Recorder, "finish", lambda ops: recorded.append(ops.name) or finish(ops))
    return recorded


@pytest.mark.parametrize("name", tuned(0.1))
def test_one_program_serves_all_settings(name, dtype, backend_name, monkeypatch):
    net = Chain(Dense(3, 4, tanh), Dense(4, 2), backend=backend_name)
    recorded, results = counting(monkeypatch), []
    for k in range(20):
        optimizer, penalty = tuned(0.01 * (k + 1), 1 + k / 40)[name]
        results.append(trained(net, optimizer, penalty, dtype))
    assert recorded == ["training step"]
    for k in (0, 7, 19):  # each as in a network of its own
        optimizer, penalty = tuned(0.01 * (k + 1), 1 + k / 40)[name]
        p, loss = trained(Chain(*net.layers, backend=backend_name), optimizer, penalty, dtype)
        np.testing.assert_array_equal(p, results[k][0])
        assert loss == results[k][1]
    assert len({p.tobytes() for p, _ in results}) == 20


def test_zero_and_none_are_other_programs(monkeypatch):
    net, recorded = Chain(Dense(3, 2), backend="numpy"), counting(monkeypatch)
    for optimizer in (SGD(0.1), SGD(0.2), SGD(0.1, momentum=0.9), SGD(0.1, clip_norm=1.0), SGD(0.3, momentum=0.8), SGD(0.0)):
        trained(net, optimizer, None)
    assert len(recorded) == 4


def test_settings_of_two_penalties_of_one_kind_are_told_apart(backend_name):
    net = Chain(Dense(3, 4, tanh), Dense(4, 2), backend=backend_name)
    p, x, t = net.init(dtype=np.float64), np.ones((2, 3)), np.zeros((2, 2))
    value, g = net.value_and_grad(p, x, t, SquaredLoss())
    for a, b in ((0.1, 0.7), (0.3, 0.2)):
        both = L2Penalty(a, "0.weight") + L2Penalty(b, "1.weight")
        sums = [np.sum(net.views(p)[name] ** 2) for name in ("0.weight", "1.weight")]
        penalised, slope = net.value_and_grad(p, x, t, SquaredLoss(), penalty=both)
        assert penalised == pytest.approx(value + a * sums[0] + b * sums[1], rel=1e-14)
        for name, strength in (("0.weight", a), ("1.weight", b)):
            np.testing.assert_allclose(net.views(slope - g)[name], 2 * strength * net.views(p)[name], rtol=1e-12)
        assert net.loss(p, x, t, SquaredLoss(), penalty=both) == pytest.approx(penalised, rel=1e-14)
        objective = net.objective(x, t, SquaredLoss(), penalty=both)
        np.testing.assert_allclose(objective(p)[1], slope, rtol=1e-12)
    assert "L2Penalty.strength 2" in str(net.program(SquaredLoss(), penalty=both))


def test_a_program_by_itself_has_the_settings_it_was_recorded_with(backend_name):
    net = Chain(Dense(3, 2), backend=backend_name)
    program, rng = net.program(SquaredLoss(), SGD(0.5), dtype="f8"), np.random.default_rng(0)
    p = rng.normal(size=8)
    arrays = {"p": p.copy(), "x": rng.normal(size=(4, 3)), "t": np.zeros((4, 2)), "value": np.zeros(()), "step": np.zeros(())}
    binding = network_of(net).backend.bind(program, 4, arrays)
    _, g = net.value_and_grad(p, arrays["x"], arrays["t"], SquaredLoss())
    binding()
    np.testing.assert_allclose(arrays["p"], p - 0.5 * g, rtol=1e-13)
    binding.arrays["SGD.learning_rate"][...] = 123.0  # its own copy
    assert program.buffers["SGD.learning_rate"].data == 0.5


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "own"])
def test_schedules_are_equal_by_value_and_can_be_pickled(name):
    schedule = SCHEDULES[name][0]
    twin = pickle.loads(pickle.dumps(schedule))
    assert twin == schedule
    assert hash(twin) == hash(schedule)
    assert replace(schedule, **{fields(schedule)[0].name: 0.7}) != schedule
    assert repr(schedule).startswith(type(schedule).__name__ + "(")


def test_own_optimizers_may_read_their_numbers_while_recording():
    """What a class does not name as a setting stays a number."""

    @dataclass(frozen=True)
    class Halving(SGD):
        power: float = 2.0

        def update(self, ops, p, g, states, scalars):
            factor = math.exp(-self.power) if self.power > 1.0 else 1.0
            ops.map(p, lambda p, g, rate: p - factor * rate * g, p, g, scalars[0])

    for power in (2.0, 0.5):
        p = np.ones(3)
        Updater(Halving(0.5, power=power), p)(np.ones(3))
        np.testing.assert_allclose(p, 1 - 0.5 * (math.exp(-2) if power > 1 else 1))


def test_a_schedule_of_the_user_can_be_pickled():
    """It is kept as a formula."""
    made = schedules.warmup(lambda step: 0.1 / (1.0 + step), 3)
    assert [pickle.loads(pickle.dumps(made))(step) for step in (0.0, 3.0, 5.0)] == [made(step) for step in (0.0, 3.0, 5.0)]
