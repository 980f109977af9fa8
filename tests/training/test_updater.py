"""The optimiser for custom loops: what it remembers can be seen, kept and given back."""

from __future__ import annotations

import copy
import pickle
import re

import numpy as np
import pytest

from chains import SGD, Adam, Updater
from tests.harness import OPTIMIZERS

G = np.random.default_rng(0).normal(size=(8, 5))


def after(update, gradients):
    for g in gradients:
        update(g)
    return update


@pytest.mark.few(8)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_that_is_given_back(name, dtype):
    """The same bits as without a break, wherever it is."""
    optimizer = OPTIMIZERS[name]
    whole = after(Updater(optimizer, np.ones(5, dtype)), G)
    for k in range(len(G)):
        first = after(Updater(optimizer, np.ones(5, dtype)), G[:k])
        second = after(Updater(optimizer, first.p.copy(), first.state), G[k:])
        assert second.p.tobytes() == whole.p.tobytes()
        assert second.state == whole.state
        assert first.state["step"] == k  # it was copied


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda update: pickle.loads(pickle.dumps(update))], ids=["copy", "deepcopy", "pickle"]
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_copies_go_on(name, again):
    whole = after(Updater(OPTIMIZERS[name], np.ones(5)), G)
    update = after(Updater(OPTIMIZERS[name], np.ones(5)), G[:3])
    twin = again(update)
    assert (twin.optimizer, twin.state) == (update.optimizer, update.state)
    assert (twin.p is update.p) == (again is copy.copy)
    assert after(twin, G[3:]).p.tobytes() == whole.p.tobytes()
    assert update.state["step"] == 3


def test_p_and_updater_stay_together():
    """In one pickle, or one deep copy, they share memory as before."""
    p = np.ones(5)
    update = Updater(Adam(0.1), p)
    for q, twin in (pickle.loads(pickle.dumps((p, update))), copy.deepcopy((p, update))):
        assert twin.p is q


def test_a_state_is_a_copy():
    update = Updater(Adam(0.1), np.ones(5))
    before = update.state
    update(G[0])
    assert (before["step"], update.state["step"]) == (0, 1)
    assert not before["moments"].any()
    assert before != update.state
    assert repr(update.state) == "<an optimiser's state after 1 step: 10 moments in float64>"
    twin = pickle.loads(pickle.dumps(update.state))
    assert twin == update.state
    assert list(twin) == ["moments", "step", "epoch"]


def test_nothing_is_written_in_vain():
    update = after(Updater(Adam(0.1), np.ones(5)), G[:2])
    saved = update.state
    with pytest.raises(AttributeError, match=re.escape("given when an updater is made: Updater(optimizer, p, state)")):
        update.state = saved
    with pytest.raises(TypeError, match=re.escape("read-only: give one back as Updater(optimizer, p, state)")):
        update.state.update(saved)
    with pytest.raises(TypeError, match="read-only"):
        update.state["moments"] = saved["moments"]
    with pytest.raises(ValueError, match="read-only"):
        update.state["moments"][...] = saved["moments"]
    assert update.state == saved


def test_states_that_do_not_fit():
    state = Updater(Adam(0.1), np.ones(5)).state
    for optimizer, p, words in [
        (SGD(0.1), np.ones(5), r"`state\['moments'\]` must be float64 \(0,\) for SGD\(.*, got float64 \(10,\)"),
        (Adam(0.1), np.ones(6), r"must be float64 \(12,\) for .* on 6 parameters of float64, got"),
        (Adam(0.1), np.ones(5, np.float32), r"must be float32 \(10,\) for .* on 5 parameters of float32, got float64"),
    ]:
        with pytest.raises(ValueError, match=words):
            Updater(optimizer, p, state)
    for given, error, words in [
        (3, TypeError, "`state` must be an optimiser's state, .*got 3"),
        ({**state, "step": 3}, TypeError, r"`state\['step'\]` must be an array, float64 \(\), got 3"),
        ({**state, "step": np.array(-1.0)}, ValueError, r"`state\['step'\]` must be a whole number, zero or positive, got -1"),
        ({**state, "step": np.array(1)}, ValueError, r"`state\['step'\]` must be float64 \(\) for .*, got int64"),
        ({"step": np.array(1.0)}, ValueError, "`state` must hold 'moments', 'step', 'epoch', got 'step'"),
    ]:
        with pytest.raises(error, match=words):
            Updater(Adam(0.1), np.ones(5), given)
