"""Metrics of what cannot be compared."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import Activation, BCEWithLogitsLoss, Chain, CrossEntropyLoss, Dense
from tests.bad_input.support import assert_refused


def test_accuracy_of_what_cannot_be_compared():
    with pytest.raises(ValueError, match="`y` holds NaN"):
        chains.accuracy(np.zeros(3, int), np.full((3, 2), np.nan))
    with pytest.raises(ValueError, match=r"`y` must have shape .* at least one sample, got \(0, 2\); targets come first"):
        chains.accuracy(np.zeros(0, int), np.zeros((0, 2)))
    with pytest.raises(ValueError, match=r"`t` must have shape \(5,\) or \(5, 1\), to go with the outputs, got \(4,\)"):
        chains.accuracy(np.zeros(4), np.zeros((5, 1)))
    for outputs, labels, words in (
        (3, [0, 1, 3], r"`t` must be whole numbers from 0 to 2, got 3 at index \(2,\)"),
        (3, [0, -1, 1], "`t` must .*, got -1 at"),
        (1, [0, 1, 2], "`t` must be whole numbers from 0 to 1, got 2"),
        (1, [0.0, 0.3, 1.0], "`t` must .*, got 0.3 at"),
    ):
        with pytest.raises(ValueError, match=words):
            chains.accuracy(np.array(labels), np.zeros((3, outputs)))


def test_losses_of_logits_that_mean_nothing():
    x, labels = np.ones((4, 2)), np.ones((4, 1))
    one = Chain(Dense(2, 1))
    with pytest.raises(ValueError, match=r"of one class, whose cross-entropy is always 0; .* BCEWithLogitsLoss"):
        one.value_and_grad(one.init(), x, labels, CrossEntropyLoss())
    net = Chain(Dense(2, 1), Activation("sigmoid"))
    with pytest.raises(ValueError, match=r"takes logits, but the last layer is .*: leave its sigmoid out"):
        net.value_and_grad(net.init(), x, labels, BCEWithLogitsLoss())


@pytest.mark.parametrize(
    ("y", "t", "words"),
    [
        (3.0, 3.0, "at least one sample, got ()"),
        (np.full((3, 2), "a"), np.zeros(3), "`y` must be real, got <U1"),
        (np.ones((3, 2)) * 1j, np.zeros(3), "`y` must be real, got complex128"),
        (np.ones((3, 2)), np.full(3, np.nan), "`t` holds NaN"),
        (np.ones((3, 2)), None, "`t` (=None) must be an array of real numbers"),
    ],
    ids=str,
)
def test_accuracy_of_what_are_no_numbers(y, t, words):
    assert_refused(lambda: chains.accuracy(t, y), words)
    assert_refused(lambda: chains.accuracy(np.ones((3, 1)), np.ones(3), threshold="a"), "`threshold` (='a')")
