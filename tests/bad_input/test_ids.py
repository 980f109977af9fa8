"""Inputs that should be ids and are none."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import Chain, Dense, Embedding, Flatten
from tests.bad_input.support import METHODS, RNG, Calls, assert_refused

NET = Chain(Embedding(7, 3), Flatten(), Dense(6, 2), input_shape=(2,))
IDS = RNG.integers(0, 7, (6, 2))
WRONG = [
    (IDS.astype(float), ("`x`", "ids", "float64", "astype")),
    (IDS.astype(np.float32).tolist(), ("`x`", "ids", "float64")),
    (IDS.astype(np.uint8), ("`x`", "ids", "uint8")),
    (IDS > 3, ("`x`", "ids", "bool")),
    (np.where(np.arange(12).reshape(6, 2) == 5, 7, IDS), ("`x`", "from 0 to 6", "7", "(2, 1)")),
    (np.where(np.arange(12).reshape(6, 2) == 4, -1, IDS).astype(np.int32), ("`x`", "from 0 to 6", "-1", "(2, 0)")),
    (IDS[:, :1], ("`x`", "(batch, 2)", "(6, 1)")),
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("x", "words"), WRONG, ids=lambda each: str(getattr(each, "dtype", type(each).__name__)))
def test_wrong_ids(method, x, words):
    calls = Calls(NET)
    getattr(calls, method)(x=IDS)
    assert_refused(lambda: getattr(calls, method)(x=x), *words, calls=calls)


def test_a_function_of_small_calls_looks_at_ids_too():
    calls = Calls(NET)
    for _ in range(4):
        calls.forward(IDS)
        calls.gradient(IDS)
    for call in (calls.forward, calls.gradient):
        assert_refused(lambda call=call: call(IDS + 7), "`x`", "from 0 to 6", calls=calls)


def test_wrong_ids_in_a_batch_and_in_validation_data():
    calls = Calls(NET)
    batches = [(IDS, np.ones((6, 2))), (IDS + 7, np.ones((6, 2)))]
    before = calls.p.copy()
    with pytest.raises(ValueError, match="from 0 to 6") as caught:
        calls.train(batches, None)
    assert any("batch 1" in note for note in caught.value.__notes__)
    calls.p[:] = before
    validation = IDS - 7, np.ones((6, 2))
    assert_refused(lambda: calls.train(IDS, validation=validation), "`validation[0]`", "from 0 to 6", calls=calls)


def test_nothing_is_derived_by_ids():
    p = NET.init(dtype=np.float64)
    for name in ("derivatives", "laplacian", "input_jacobian"):
        assert_refused(lambda name=name: getattr(NET, name)(p, IDS), "ids", "derived")
    problem = chains.ResidualProblem(("x",), ("u",), [chains.Term(lambda u: u.x, np.zeros((1, 1)))])
    net = Chain(Embedding(3, 1), Flatten(), input_shape=(1,))
    t = np.ones((2, 1))
    assert_refused(lambda: net.loss(net.init(), np.zeros((2, 1), int), t, problem.loss), "ids")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Embedding(0, 3), ("`count` (=0)",)),
        (lambda: Embedding(3, 2.5), ("`features` (=2.5)",)),
        (lambda: Embedding(3, 2, padding=3), ("`padding` (=3)", "0 to 2")),
        (lambda: Embedding(3, 2, padding=-1), ("`padding` (=-1)",)),
        (lambda: Embedding(3, 2, padding=True), ("`padding` (=True)",)),
        (lambda: Embedding(3, 2, weight_init=np.ones((2, 3))), ("`weight_init`", "(3, 2)")),
    ],
)
def test_wrong_settings(make, words):
    assert_refused(make, *words)
