"""Old names of arguments: they work with one warning, which names the new name and the version in which they go."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import chains
from chains import SWAG, Chain, Dense, Laplace, SquaredLoss, train
from chains.support.deprecation import RENAMED, renamed_argument


@renamed_argument("old", "new", end="2.0")
def twice(new, more=0):
    return 2 * new + more


def test_the_new_name_warns_of_nothing():
    assert twice(3) == twice(new=3) == 6


def test_the_old_name_warns_at_the_line_that_has_it():
    with pytest.warns(DeprecationWarning, match=r"`old` of twice\(\) is now called `new`; version 2.0 no longer") as caught:
        assert twice(old=3, more=1) == 7
    (warning,) = caught
    assert warning.filename == __file__


@pytest.mark.parametrize(("args", "given"), [((), {"new": 3}), ((3,), {})], ids=["by name", "by position"])
def test_both_names_are_refused(args, given):
    with pytest.raises(TypeError, match=r"twice\(\) takes `new`, whose old name is `old`: pass one of them"):
        twice(*args, **given, old=3)


def test_draws_were_called_n():
    """Of both classes that draw from a normal distribution; `sample` and `simulate` always said `draws`."""
    net, rng = Chain(Dense(2, 1), backend="numpy"), np.random.default_rng(0)
    p, x, t = net.init(0, dtype=np.float64), rng.normal(size=(8, 2)), rng.normal(size=(8, 1))
    found, optimizer = Laplace(net, p, x, t, SquaredLoss()), SWAG(0.1)
    state = train(net, p, x, t, SquaredLoss(), optimizer, epochs=4, progress=False).optimizer_state
    for draw in (lambda **given: found.draw(seed=1, **given), lambda **given: optimizer.draw(state, seed=1, **given)):
        with pytest.warns(DeprecationWarning, match=r"`n` of \w+\.draw\(\) is now called `draws`"):
            old = draw(n=3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.array_equal(old, draw(draws=3))


def test_old_names_go_when_their_time_is_over():
    """The house takes them out before it has the version that they name."""
    own = int(chains.__version__.split(".")[0])
    assert all(int(each.end.split(".")[0]) > own for each in RENAMED), "take out old names whose version has come"
    assert {each.function for each in RENAMED} >= {"Laplace.draw", "SWAG.draw"}
