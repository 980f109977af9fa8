"""Loss scaling: powers of two change no bit, and steps whose gradient is not finite are left out."""

from __future__ import annotations

import numpy as np
import pytest

from chains import (
    SGD,
    SWAG,
    Activation,
    Adam,
    AdamW,
    Chain,
    CrossEntropyLoss,
    Dense,
    L2Penalty,
    LossScale,
    SquaredLoss,
    tanh,
    train,
)
from chains.callbacks import find_learning_rate


def problem(backend="numpy"):
    rng = np.random.default_rng(0)
    net = Chain(Dense(5, 8, tanh), Dense(8, 3), backend=backend)
    return net, rng.normal(size=(48, 5)).astype(np.float32), rng.integers(0, 3, 48)


def trained(optimizer, backend="numpy", epochs=4, **settings):
    net, x, t = problem(backend)
    p = net.init(seed=0)
    history = train(net, p, x, t, CrossEntropyLoss(), optimizer, epochs=epochs, batch_size=16, seed=1, **settings)
    return p, history


def count(history):
    """The number that the scale is made of, behind the moments of the optimiser itself."""
    return history.optimizer_state["moments"][-problem()[0].n_params]


@pytest.mark.parametrize("backend", ["numpy", "native"])
@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), AdamW(lambda step: 0.01 / (1 + step), clip_norm=1.0)], ids=str)
def test_powers_of_two_change_no_bit(optimizer, backend):
    """While the scale grows every fifth step."""
    p, history = trained(optimizer, backend)
    q, scaled = trained(LossScale(optimizer, interval=5), backend)
    np.testing.assert_array_equal(p, q)
    assert history.loss == scaled.loss
    assert count(scaled) == 12


@pytest.mark.parametrize("backend", ["numpy", "native"])
def test_steps_that_are_not_finite_are_left_out(backend):
    """A scale beyond float32 is halved until it fits; then training is that of the steps that are left."""
    scaling = LossScale(Adam(0.01), initial=2.0**130, interval=1000)
    begun = problem()[0].init(seed=0)
    p, history = trained(scaling, backend, epochs=1)
    np.testing.assert_array_equal(p, begun)
    assert count(history) == -3 * 1000
    assert not history.optimizer_state["moments"][: 2 * p.size].any()
    assert history.optimizer_state["step"] == 3
    p, history = trained(scaling, backend)
    assert not np.array_equal(p, begun)
    assert np.isfinite(p).all()
    assert count(history) == -3 * 1000 + 9


def test_a_fixed_scale_stays():
    p, history = trained(LossScale(SGD(0.1), initial=3.0, interval=None))
    assert count(history) == 0
    np.testing.assert_allclose(p, trained(SGD(0.1))[0], rtol=1e-4, atol=1e-6)


def test_it_goes_on_where_it_ended():
    optimizer = LossScale(Adam(0.01), interval=4)
    p, _ = trained(optimizer)
    net, x, t = problem()
    q, history = trained(optimizer, epochs=2)
    train(net, q, x, t, CrossEntropyLoss(), optimizer, epochs=2, batch_size=16, seed=1, resume=history)
    np.testing.assert_array_equal(p, q)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_intervals_are_as_long_as_they_say(dtype):
    """Also where the quotients by them are rounded down, as by 49; one too large a scale is halved once."""
    net, optimizer = Chain(Dense(1, 1)), LossScale(SGD(0.0), initial=2.0 ** (np.finfo(dtype).maxexp - 4), interval=49)
    p = np.zeros(2, dtype)
    history = train(net, p, np.ones((1, 1)), np.full((1, 1), -0.75), SquaredLoss(), optimizer, epochs=300)
    assert history.optimizer_state["moments"][0] == 3 * 49 + 3  # 4 * 49 is left at steps 197, 247 and 297


@pytest.mark.parametrize("optimizer", [SGD(0.3), LossScale(SGD(0.3), initial=8.0)], ids=["alone", "scaled"])
def test_a_penalty_keeps_its_strength(optimizer):
    """Beside a learning rate of another value: both are numbers that one program is given."""
    net, x, t = problem()
    penalty, begun = L2Penalty(0.01), net.init(seed=0)
    p = begun.copy()
    train(net, p, x, t, CrossEntropyLoss(), optimizer, epochs=1, batch_size=48, penalty=penalty)
    _, g = net.value_and_grad(begun, x, t, CrossEntropyLoss(), penalty=penalty)
    np.testing.assert_allclose(p, begun - 0.3 * g, rtol=1e-4, atol=1e-6)


def test_networks_without_parameters():
    _, x, _ = problem()
    losses = []
    for optimizer in (SGD(0.1), LossScale(SGD(0.1))):
        net = Chain(Activation(tanh), input_shape=(5,))
        losses.append(train(net, net.init(), x, x, SquaredLoss(), optimizer, epochs=2).loss)
    assert losses[0] == losses[1]


def test_a_learning_rate_can_be_looked_for():
    net, x, t = problem()
    found = [
        find_learning_rate(net, net.init(seed=0), x, t, CrossEntropyLoss(), each, steps=9, batch_size=16)
        for each in (Adam(), LossScale(Adam()))
    ]
    np.testing.assert_array_equal(found[0].losses, found[1].losses)


def test_the_history_of_another_optimizer_is_refused():
    _, history = trained(LossScale(Adam(0.01)), epochs=1)
    with pytest.raises(ValueError, match=r"history of LossScale\(Adam\), which LossScale\(optimizer=AdamW"):
        trained(LossScale(AdamW(0.01)), epochs=2, resume=history)


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"optimizer": 0.1}, TypeError, r"`optimizer` \(=0\.1\) must be an optimiser such as Adam\(1e-3\)"),
        ({"optimizer": LossScale(SGD(0.1))}, ValueError, "scales the loss already"),
        ({"optimizer": Adam(sparse="lazy")}, ValueError, "updates single rows"),
        ({"optimizer": SWAG(0.1)}, ValueError, "counts every step, but a scaled loss may leave some out"),
        ({"optimizer": SGD(0.1), "initial": 0.0}, ValueError, r"`initial` \(=0\.0\) must be in \(0, inf\)"),
        ({"optimizer": SGD(0.1), "interval": 0}, ValueError, r"`interval` \(=0\) must be a positive whole number, or None"),
    ],
    ids=["type", "twice", "lazy", "moments", "initial", "interval"],
)
def test_what_is_refused(arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        LossScale(**arguments)
