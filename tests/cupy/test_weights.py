"""Weights of single targets on the emulated GPU: those of weight 0 may be NaN."""

from __future__ import annotations

import numpy as np
import pytest

from chains import Adam, BCEWithLogitsLoss, Chain, CrossEntropyLoss, Dense, MSELoss, loss, tanh, train
from chains.expr import exp, log
from chains.losses import GaussianNLLLoss, QuantileLoss
from tests.cupy.support import EMULATED, needs_compiler
from tests.harness import assert_close, targets

pytestmark = needs_compiler

LOSSES = [
    (MSELoss(), "real"),
    (BCEWithLogitsLoss(), "fractions"),
    (CrossEntropyLoss(), "labels"),
    (CrossEntropyLoss(), "probabilities"),
    (loss("poisson", lambda y, t: exp(y) - t * y + t * log(t)), "fractions"),
    (GaussianNLLLoss(log_variance=True), "halves"),
    (QuantileLoss([0.1, 0.7]), "halves"),
]


@pytest.mark.parametrize("name", EMULATED)
@pytest.mark.parametrize(("criterion", "kind"), LOSSES, ids=str)
def test_targets_of_weight_zero_count_nothing(criterion, kind, name, device):
    rng, net = np.random.default_rng(0), Chain(Dense(3, 5, tanh), Dense(5, 4), input_shape=(2, 3), backend=name)
    x, t = rng.normal(size=(9, 2, 3)).astype("f4"), targets(kind, rng, 9, (2, 4)).astype("f4")
    w = (rng.uniform(0.5, 2.0, t.shape) * (rng.uniform(size=t.shape) > 0.4)).astype("f4")
    bad, one = np.where(w == 0, np.float32(np.nan), t), np.array([1, 0, 2] * 3, "f4")
    without = np.where((one == 0).reshape(9, *[1] * (t.ndim - 1)), np.float32(np.nan), t)
    p = net.init(seed=1)
    for weights, spoilt in ((w, bad), (one, without)):
        wanted = Chain(*net, input_shape=(2, 3), backend="numpy").value_and_grad(p, x, t, criterion, weights=weights)
        for found in (
            net.value_and_grad(p, x, spoilt, criterion, weights=weights, check_finite=True),
            net.value_and_grad(
                device.array(p), device.array(x), device.array(spoilt), criterion, weights=device.array(weights)
            ),
            net.value_and_grad(device.array(p), x, device.array(spoilt), criterion, weights=weights, check_finite=True),
            net.value_and_grad(device.array(p), x, spoilt, criterion, weights=device.array(weights), check_finite=True),
            net.objective(device.array(x), device.array(spoilt), criterion, weights=device.array(weights))(p),
        ):
            assert_close(found[0], wanted[0], 1e-6)
            assert_close(np.asarray(found[1]), wanted[1], 1e-5)


@pytest.mark.parametrize("name", EMULATED)
@pytest.mark.parametrize("source", [False, True], ids=["arrays", "batches"])
def test_training(source, name, device):
    rng, net = np.random.default_rng(0), Chain(Dense(3, 5, tanh), Dense(5, 4), backend=name)
    x, t = rng.normal(size=(10, 3)).astype("f4"), rng.normal(size=(10, 4)).astype("f4")
    w = rng.uniform(size=t.shape) > 0.4
    bad, ends = np.where(w, t, np.nan), []
    for targets_, p in ((t, net.init()), (bad, net.init()), (bad, device.array(net.init()))):
        given = ([(x[k : k + 5], targets_[k : k + 5], w[k : k + 5]) for k in (0, 5)], None) if source else (x, targets_)
        more = {} if source else {"weights": w, "batch_size": 5, "shuffle": False}
        history = train(net, p, *given, MSELoss(), Adam(0.02), epochs=3, validation=(x, targets_, None, w), **more)
        ends.append((np.asarray(p), history.loss, history.validation_loss))
    for found in ends[1:]:
        for k in range(3):
            assert_close(found[k], ends[0][k], 1e-5)


def test_members(device):
    rng, net = np.random.default_rng(0), Chain(Dense(3, 5, tanh), Dense(5, 4), backend="emulated")
    x, t = rng.normal(size=(10, 3)).astype("f4"), rng.normal(size=(10, 4)).astype("f4")
    w = (rng.uniform(size=(3, *t.shape)) > 0.4).astype("f4")
    bad, P = np.where(w == 0, np.float32(np.nan), t), net.init_many(3)
    trained = P.copy()
    train(net, trained, x, bad, MSELoss(), Adam(0.02), epochs=2, weights=w, batch_size=5, shuffle=False)
    for m, p in enumerate(P):
        train(net, p, x, bad[m], MSELoss(), Adam(0.02), epochs=2, weights=w[m], batch_size=5, shuffle=False)
        assert_close(trained[m], p, 1e-5)
