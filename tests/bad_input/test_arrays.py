"""Arrays that do not fit: `x`, `p`, `t`, `weights`, `dy`, and what is no array."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import Adam, CrossEntropyLoss
from chains.training.updater import Updater
from tests.bad_input.support import CLASSIFIER, GOOD, LABELS, METHODS, NET, WITH_P, WITH_T, Calls, assert_refused


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.ones((6, 4)), ["`x`", "(6, 4)", "(batch, 3)"]),
        (np.ones(3), ["`x`", "(3,)", "(batch, 3)", "x[None]"]),
        (np.ones((6, 1, 1, 3)), ["`x`", "(6, 1, 1, 3)", "(batch, 3)"]),
        (np.float64(1.0), ["`x`", "()", "(batch, 3)"]),
        (np.ones((0, 3)), ["`x`", "(0, 3)", "empty"]),
        (np.ones((6, 3), complex), ["`x`", "complex128", "real"]),
        (np.ones((6, 3), object), ["`x`", "object", "real"]),
        (np.full((6, 3), "a"), ["`x`", "U1", "real"]),
        (np.ones((6, 3), "datetime64[s]"), ["`x`", "datetime64", "real"]),
        (None, ["`x` (=None)", "an array of real numbers"]),
    ],
    ids=lambda value: str(getattr(value, "dtype", "")) + str(getattr(value, "shape", "")),
)
def test_wrong_x(calls, method, x, words):
    assert_refused(lambda: getattr(calls, method)(x=x), *words, calls=calls)


@pytest.mark.parametrize("method", METHODS)
def test_x_of_members(calls, method):
    """Objectives take inputs of each member: the targets are those that do not fit then."""
    words = ["`t`", "(6, 1, ...)", "6 members"] if method == "objective" else ["(batch, 3)"]
    assert_refused(lambda: getattr(calls, method)(x=np.ones((6, 1, 3))), "`x`", "(6, 1, 3)", *words, calls=calls)


@pytest.mark.parametrize("method", METHODS)
def test_ragged_x(calls, method):
    assert_refused(lambda: getattr(calls, method)(x=[[1.0, 2.0, 3.0], [1.0]]), "`x`", calls=calls)


@pytest.mark.parametrize("method", WITH_P)
@pytest.mark.parametrize(
    ("p", "words"),
    [
        (np.ones(25), ["`p`", "(25,)", "26"]),
        (np.ones(27), ["`p`", "(27,)", "26"]),
        (np.ones((26, 1)), ["`p`", "(26, 1)", "26"]),
        (np.ones((2, 13)), ["`p`", "(2, 13)", "(26,)"]),
        (np.ones(26, int), ["`p`", "int64", "float32 or float64"]),
        (np.ones(26, np.float16), ["`p`", "float16", "float32 or float64"]),
        (np.ones(26, ">f8"), ["`p`", ">f8", "float32 or float64"]),
        (np.ones(26, complex), ["`p`", "complex128", "real"]),
        (np.ones(26, object), ["`p`", "object", "real"]),
        (np.ones(52)[::2], ["`p`", "contiguous", "ascontiguousarray"]),
        (np.ones(26)[::-1], ["`p`", "contiguous"]),
    ],
    ids=lambda value: str(getattr(value, "dtype", "")) + str(getattr(value, "shape", "")),
)
def test_wrong_p(calls, method, p, words):
    before = p.tobytes()
    assert_refused(lambda: getattr(calls, method)(p=p), *words, calls=calls)
    assert p.tobytes() == before


def test_wrong_p_elsewhere():
    assert_refused(lambda: NET.views(np.ones(25)), "`p`", "(25,)", "26")
    objective = Calls().objective()
    assert_refused(lambda: objective(np.ones(25)), "`p`", "(25,)", "26")
    assert_refused(lambda: objective(np.ones(26, complex)), "`p`", "complex128")
    assert_refused(lambda: objective(np.full(26, "a")), "`p`", "U1")


@pytest.mark.parametrize("method", ["forward", "gradient", "vjp", "value"])
def test_what_is_no_array(calls, method):
    """What was passed is shown."""
    for name, given in (("p", NET.views(calls.p)), ("p", {"0.weight": 1}), ("p", len), ("x", "a"), ("x", [None])):
        assert_refused(
            lambda name=name, given=given: getattr(calls, method)(**{name: given}),
            f"`{name}` (={repr(given)[:40]}",
            "must be an array of real numbers",
            calls=calls,
        )
    assert_refused(lambda: calls.gradient(t={"t": 1}), "`t` (={'t': 1}) must be an array of real numbers", calls=calls)
    assert_refused(lambda: calls.vjp(dy=object), "`dy` (=<class 'object'>) must be an array", calls=calls)
    assert_refused(lambda: calls.gradient(weights={}), "`weights` (={}) must be an array", calls=calls)
    assert_refused(lambda: calls.objective()(None), "`p` (=None) must be an array")


def test_what_cannot_be_trained(calls):
    p = NET.init()
    p.flags.writeable = False
    assert_refused(lambda: calls.train(p=p), "`p`", "read-only")
    assert_refused(lambda: calls.train(p=[0.0] * 26), "`p`", "list", "array")  # which would train a copy in vain


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (np.ones((2, 3)), ["`p`", "(2, 3)"]),
        (np.ones(4, int), ["`p`", "int64"]),
        (np.ones(8)[::2], ["`p`", "contiguous"]),
        ([1.0, 2.0], ["`p`", "list"]),
        (np.broadcast_to(np.ones(1), 4), ["`p`"]),
    ],
    ids=str,
)
def test_wrong_p_of_an_updater(p, words):
    assert_refused(lambda: Updater(Adam(), p), *words)


def test_a_read_only_p_of_an_updater():
    p = np.ones(4)
    p.flags.writeable = False
    assert_refused(lambda: Updater(Adam(), p), "`p`", "read-only")


@pytest.mark.parametrize("g", [np.ones(3), np.ones((4, 1)), np.ones(4, complex), np.full(4, "a"), 1.0])
def test_wrong_g_of_an_updater(g):
    p = np.ones(4)
    update = Updater(Adam(), p)
    assert_refused(lambda: update(g), "`g`")
    assert np.all(p == 1.0)
    assert update.state["step"] == 0


def test_no_optimizer_of_an_updater():
    assert_refused(lambda: Updater("adam", np.ones(4)), "`optimizer`", "'adam'")


@pytest.mark.parametrize("method", WITH_T)
@pytest.mark.parametrize(
    ("t", "words"),
    [
        (np.ones((5, 2)), ["`t`", "(5, 2)", "6"]),
        (np.ones((6, 3)), ["`t`", "(3,)", "(2,)"]),
        (np.ones(6), ["`t`", "()", "(2,)"]),
        (np.ones((6, 2, 1)), ["`t`", "(2, 1)", "(2,)"]),
        (1.0, ["`t`", "()", "6"]),
        (np.ones((6, 2), complex), ["`t`", "complex128"]),
        (np.full((6, 2), "a"), ["`t`", "U1"]),
        (None, ["`t`"]),  # "object", and in training "None", where batches in place of `x` need no `t`
    ],
    ids=lambda value: str(getattr(value, "dtype", "")) + str(getattr(value, "shape", "")),
)
def test_wrong_t(calls, method, t, words):
    assert_refused(lambda: getattr(calls, method)(t=t), *words, calls=calls)


@pytest.mark.parametrize("method", WITH_T)
@pytest.mark.parametrize(
    ("t", "words"),
    [
        (LABELS + 1, ["`t`", "0 to 4", "5"]),
        (LABELS - 1, ["`t`", "0 to 4", "-1"]),
        (LABELS + 0.5, ["`t`", "whole numbers"]),
        (np.where(LABELS == 2, np.nan, LABELS), ["`t`", "nan"]),
        (np.where(LABELS == 2, np.inf, LABELS), ["`t`", "inf"]),
        (np.ones((6, 4)), ["`t`", "(4,)", "(5,)"]),
        (LABELS[:, None], ["`t`", "(1,)", "(5,)"]),
        (LABELS[:5], ["`t`", "(5,)", "6"]),
    ],
    ids=["too high", "too low", "fractions", "nan", "inf", "classes", "column", "batch"],
)
def test_wrong_labels(method, t, words):
    calls = Calls(CLASSIFIER, CrossEntropyLoss())
    assert_refused(lambda: getattr(calls, method)(t=t), *words, calls=calls)


@pytest.mark.parametrize("method", WITH_T)
@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones(5), ["`weights`", "(5,)", "6"]),
        (np.ones((6, 3)), ["`weights`", "(6, 3)", "(6,)", "(6, 2)"]),
        (np.ones((5, 2)), ["`weights`", "(5, 2)", "(6,)", "(6, 2)"]),
        (np.ones((6, 2, 1)), ["`weights`", "(6, 2, 1)", "(6, 2)"]),
        (2.0, ["`weights`", "()"]),
        (np.ones(6, complex), ["`weights`", "complex128"]),
    ],
    ids=lambda value: str(getattr(value, "dtype", "")) + str(getattr(value, "shape", "")),
)
def test_wrong_weights(calls, method, weights, words):
    assert_refused(lambda: getattr(calls, method)(weights=weights), *words, calls=calls)


@pytest.mark.parametrize(
    ("dy", "words"),
    [
        (np.ones((5, 2)), ["`dy`", "(5, 2)", "6"]),
        (np.ones((6, 3)), ["`dy`", "(6, 3)", "(batch, 2)"]),
        (np.ones(6), ["`dy`", "(6,)", "(batch, 2)"]),
        (np.ones((6, 2), complex), ["`dy`", "complex128"]),
    ],
    ids=lambda value: str(getattr(value, "dtype", "")) + str(getattr(value, "shape", "")),
)
def test_wrong_dy(calls, dy, words):
    assert_refused(lambda: calls.vjp(dy=dy), *words, calls=calls)


MASKED = [("x", "gradient"), ("t", "gradient"), ("weights", "value"), ("p", "forward"), ("dy", "vjp"), ("t", "objective"),
          ("x", "train"), ("weights", "train"), ("p", "train")]  # fmt: skip


@pytest.mark.parametrize(("name", "method"), MASKED)
def test_masked_entries_are_not_silently_used(calls, name, method):
    array = np.ma.array({**GOOD, "weights": np.ones(6)}[name])
    getattr(calls, method)(**{name: array})  # nothing is masked
    array[2] = np.ma.masked
    assert_refused(lambda: getattr(calls, method)(**{name: array}), f"`{name}` has masked entries", "filled", calls=calls)


def test_masked_entries_elsewhere(calls):
    masked = np.ma.masked_less(GOOD["p"], 0)
    assert_refused(lambda: calls.objective().minimize(masked), "`p` has masked entries")
    assert_refused(lambda: chains.minimize(calls.objective(), masked), "`p` has masked entries")
    assert_refused(lambda: Updater(Adam(), calls.p)(masked), "`g` has masked entries", calls=calls)
    assert_refused(lambda: chains.accuracy(np.ma.array([0, 1, 2], mask=[0, 0, 1]), np.eye(3)), "`t` has masked entries")
    assert_refused(
        lambda: calls.gradient(out=np.ma.array(calls.g)), "`out` must be a NumPy array to fill, got a MaskedArray", calls=calls
    )
