"""Formulas as functions again: the same formula, the same numbers, and nothing that cannot be pickled."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import chains
from chains import expr
from chains.expr import BINARY, TERNARY, UNARY, trace
from chains.expr.formulas import FUNCTIONS, Replay

FORMULAS = {
    "arithmetic": lambda x, y: (x + y) * (x - 2 * y) / (1.5 - y) ** 3 - (-x) ** 4 + 2.0**y,
    "functions": lambda x, y: expr.exp(x) + expr.log(x) + expr.log1p(y) + expr.expm1(x) + expr.sqrt(y) + expr.tanh(x),
    "more": lambda x, y: expr.sin(x) * expr.cos(y) + expr.erf(x) + expr.sign(y - x) + expr.floor(3 * x) + abs(x - y),
    "choices": lambda x, y: expr.where((x < y) & ~(x >= 0.7) | (y == 0.3), expr.minimum(x, y), expr.maximum(x, y)),
    "comparisons": lambda x, y: (x > y) + 2 * (x <= y) + 4 * (x != y) + 8 * (x == y),
    "two": lambda x, y: (x * y, x - y),
    "copy": lambda x, y: y,
    "constant": lambda x, y: 3.0,
}


def test_every_operation_can_be_replayed():
    assert set(FUNCTIONS) >= {*UNARY, *BINARY, *TERNARY, "not"}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_replayed_formula_is_the_same(name):
    function, formula = FORMULAS[name], trace(FORMULAS[name])
    for twin in (Replay(formula), pickle.loads(pickle.dumps(Replay(formula))), copy.deepcopy(Replay(formula))):
        assert trace(twin) == formula
        assert twin == Replay(trace(function))
    x, y = np.random.default_rng(0).uniform(0.1, 0.9, (2, 50))
    if name != "comparisons":  # NumPy's truth values are no numbers
        np.testing.assert_allclose(Replay(formula)(x, y), function(x, y), rtol=1e-14)


def test_equal_losses_of_ones_own_are_equal():
    def make(factor):
        return chains.loss("a", lambda y, t: factor * (y - t) ** 2, derivative=lambda y, t: 2 * factor * (y - t))

    assert make(2.0) == make(2.0)
    assert make(2.0) != make(3.0)


def test_an_activation_of_ones_own_goes_to_other_processes():
    f = chains.activation("snake", lambda x: x + np.sin(x) ** 2, derivative=lambda x: 1 + np.sin(2 * x))
    net = chains.Chain(chains.Dense(3, 4, f), chains.Dense(4, 1))
    p, x = net.init(), np.ones((2, 3))
    twin = pickle.loads(pickle.dumps(net))
    assert twin(x, p).tobytes() == net(x, p).tobytes()
    assert twin.layers[0].activation.needs_input
    assert repr(twin.layers[0].activation) == repr(f)
    assert float(f(0.5)) == pytest.approx(0.5 + np.sin(0.5) ** 2)
