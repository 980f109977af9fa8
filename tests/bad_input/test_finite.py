"""Numbers that are not finite: refused where they come in, unless one asks for them."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import SGD, Chain, CrossEntropyLoss, Dense, SquaredLoss, train
from tests.bad_input.support import GOOD, WITH_NAN, assert_refused


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["x", "t", "p", "weights"])
@pytest.mark.parametrize("method", ["gradient", "train"])
def test_data_that_are_not_finite(calls, method, name, bad):
    array = {"x": GOOD["x"], "t": GOOD["t"], "p": calls.p, "weights": np.ones(6)}[name].copy()
    array[(3,) if array.ndim == 1 else (3, 1)] = bad
    where = "3," if array.ndim == 1 else "3, 1"
    before = array.tobytes()
    assert_refused(
        lambda: getattr(calls, method)(**{name: array, "check_finite": True}),
        f"`{name}`",
        str(bad),
        where,
        "finite",
        calls=calls,
    )
    assert array.tobytes() == before


def test_data_that_are_not_finite_may_pass(calls):
    value, _ = calls.gradient(x=WITH_NAN)
    assert np.isnan(value)


def test_training_refuses_nan_unless_told(calls):
    assert_refused(lambda: calls.train(x=WITH_NAN), "`x`", "nan", "2, 1", calls=calls)
    with pytest.raises(FloatingPointError, match="step 1"):
        calls.train(x=WITH_NAN, check_finite=False)


def test_validation_data_are_checked(calls):
    good = (GOOD["x"], GOOD["t"])
    assert_refused(lambda: calls.train(validation=(GOOD["x"][:, :2], GOOD["t"])), "validation[0]", "(6, 2)", calls=calls)
    assert_refused(lambda: calls.train(validation=(GOOD["x"], GOOD["t"][:3])), "validation[1]", "(3, 2)", calls=calls)
    assert_refused(lambda: calls.train(validation=(GOOD["x"][:0], GOOD["t"][:0])), "validation[0]", "empty", calls=calls)
    assert_refused(lambda: calls.train(validation=good[:1]), "`validation`", calls=calls)
    assert_refused(lambda: calls.train(validation=GOOD["x"]), "`validation`", calls=calls)
    assert_refused(lambda: calls.train(metrics=[chains.accuracy]), "`metrics`", "validation", calls=calls)


def test_the_batch_of_validation_targets_is_told_apart(calls):
    """The sentence is about the validation data, not about `x`."""
    with pytest.raises(ValueError, match="validation") as caught:
        calls.train(validation=(GOOD["x"], GOOD["t"][:3]))
    assert "`x`" not in str(caught.value)


def test_a_last_step_that_leaves_the_numbers_is_told():
    """No loss is computed after it."""
    net = Chain(Dense(2, 3), Dense(3, 1))
    p = net.init(0, np.float32)
    with pytest.raises(
        FloatingPointError, match=r"`p` holds (nan|-?inf) at index \d+ after step 1: the step was too large"
    ) as caught:
        train(net, p, 100 * np.ones((5, 2), np.float32), np.ones((5, 1), np.float32), SquaredLoss(), SGD(1e38))
    assert caught.value.history.steps == 1


def test_targets_that_are_nan():
    for loss, outputs, message in (
        (chains.BCEWithLogitsLoss(), 1, "targets must be from 0 to 1, got nan"),
        (CrossEntropyLoss(), 2, "probabilities must not be negative, got nan"),
    ):
        net = Chain(Dense(3, outputs))
        with pytest.raises(ValueError, match=message):
            net.value_and_grad(net.init(), np.ones((4, 3)), np.full((4, outputs), np.nan), loss)
