"""Ensembles on a GPU: a block of threads for each member, which has the bits that it has alone."""

from __future__ import annotations

import numpy as np
import pytest

from chains import SGD, Adam, Chain, Dense, SquaredLoss, backends, member_seeds, tanh, train
from chains.backends import backend, base
from tests.cupy.support import needs_compiler
from tests.training.test_ensembles import MEMBERS, OWN, Training

pytestmark = needs_compiler
NAMES = ("one-kernel", "one-kernel-backwards")


@pytest.fixture
def together(monkeypatch):
    """Members are not trained one after another."""

    def refuse(*given):
        raise AssertionError("the members are trained one after another")

    monkeypatch.setattr(base, "OneByOne", refuse)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["own", "own-targets", "bootstrap", "shared-batches"])
def test_members_are_trained_as_alone(kind, together):
    trainings = [Training(kind, name) for name in NAMES]
    for training in trainings:
        training.go_on(epochs=1)
        training.go_on()
        training.assert_as_alone()
    one, other = (training.p.tobytes() for training in trainings)  # whichever block comes first
    assert one == other


def test_scratch_that_does_not_fit_on_the_chip_is_separate(together, monkeypatch):
    """A tile of all samples takes more shared memory than there is, and each member has scratch in the GPU's memory."""
    results = []
    for room in (227 << 10, 3072):
        monkeypatch.setattr(backends.registry, "_loaded", {})
        backend("one-kernel").on_device.device.shared_bytes = room
        net = Chain(Dense(3, 40, tanh), Dense(40, 2), backend="one-kernel")
        P, x, t = net.init_many(4), OWN["x"].reshape(-1, 3), OWN["t"].reshape(-1, 2)
        train(net, P, x, t, SquaredLoss(), Adam(0.01), epochs=5)
        for m, p in enumerate(net.init_many(4)):
            train(net, p, x, t, SquaredLoss(), Adam(0.01), epochs=5)
            assert np.array_equal(P[m], p)
        results.append(P)
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-6)


def test_parameters_on_the_device(together, device, monkeypatch):
    """The same bits as from NumPy arrays; the rows stay where they are."""
    monkeypatch.setattr(backend("emulated").on_device, "fused", True)
    data, results = {name: OWN[name].astype(np.float32) for name in ("x", "t")}, []
    for place in ("cpu", "emulated"):
        net = Chain(Dense(3, 4, tanh), Dense(4, 2), backend="auto" if place == "emulated" else "emulated")
        P = net.init_many(MEMBERS, device=place)
        history = train(net, P, **data, loss=SquaredLoss(), optimizer=Adam(0.01), epochs=4, batch_size=4)
        assert device.owns(P) == (place == "emulated")
        results.append((np.array(P), np.array(history.loss)))
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)


def test_a_member_that_diverges_ends_alone(together):
    net = Chain(Dense(3, 8), Dense(8, 2), backend="one-kernel")
    rates = [SGD(0.01), SGD(50.0), SGD(0.02)]
    P = net.init_many(3)
    history = train(net, P, OWN["x"][0], OWN["t"][0], SquaredLoss(), rates, epochs=40, batch_size=4)
    assert list(history.ended) == [1]
    for m in (0, 2):
        p = net.init_many(3)[m]
        train(net, p, OWN["x"][0], OWN["t"][0], SquaredLoss(), rates[m], epochs=40, batch_size=4, seed=member_seeds(3)[m])
        assert np.array_equal(P[m], p)


def test_all_members_are_one_launch(together):
    device = backend("one-kernel").on_device.device
    net = Chain(Dense(3, 4, tanh), Dense(4, 2), backend="one-kernel")
    before = device.launches
    P, data = net.init_many(50), {"x": OWN["x"][0], "t": OWN["t"][0]}
    history = train(net, P, **data, loss=SquaredLoss(), optimizer=Adam(0.01), epochs=3, batch_size=4)
    assert history.steps == 9
    assert device.launches - before <= 9


def test_others_go_one_after_another():
    """Convolutions are no kernel of one block."""
    training = Training("bytes", "one-kernel")
    training.go_on()
    training.assert_as_alone()
