"""`out=` and other arrays that are written to: they fit, and overlap nothing."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import Adam, Chain, Dense, SquaredLoss, train
from tests.bad_input.support import GOOD, NET, RNG, assert_refused

WRONG_OUTS = [
    (lambda a: a[:-1].copy(), "shape"),
    (lambda a: a.astype(np.float32), "float32"),
    (lambda a: a.astype(int), "int64"),
    (lambda a: np.stack([a, a], axis=-1)[..., 0], "contiguous"),
    (lambda a: np.lib.stride_tricks.as_strided(a, writeable=False), "writable"),
    (lambda a: a.tolist(), "list"),
    (lambda a: 1.0, "float"),
]


@pytest.mark.parametrize(("change", "word"), WRONG_OUTS, ids=[word for _, word in WRONG_OUTS])
def test_wrong_out(calls, change, word):
    assert_refused(lambda: calls.forward(out=change(calls.y)), "`out`", word, calls=calls)
    assert_refused(lambda: calls.gradient(out=change(calls.g)), "`out`", word, calls=calls)
    assert_refused(lambda: calls.vjp(out=(change(calls.g), calls.dx)), "`out[0]`", word, calls=calls)
    assert_refused(lambda: calls.vjp(out=(calls.g, change(calls.dx))), "`out[1]`", word, calls=calls)


@pytest.mark.parametrize(
    "out", [(), (np.empty(26),), np.empty(26), (1, 2, 3), (np.empty(26), None)], ids=["none", "one", "array", "three", "half"]
)
def test_out_of_vjp_is_a_pair(calls, out):
    assert_refused(lambda: calls.vjp(out=out), "`out", calls=calls)


def test_out_that_overlaps(calls):
    block = RNG.normal(size=100)
    p, x, y = block[:26], block[20:38].reshape(6, 3), block[30:42].reshape(6, 2)
    before = block.tobytes()
    assert_refused(lambda: calls.forward(x=x, out=y), "`out`", "`x`", "overlap")
    assert_refused(
        lambda: calls.forward(x=block[:18].reshape(6, 3), p=block[50:76], out=block[70:82].reshape(6, 2)), "`p`", "overlap"
    )
    assert_refused(lambda: calls.gradient(p=p, out=p), "`out`", "`p`", "overlap")
    assert_refused(lambda: calls.gradient(t=y, out=block[40:66]), "`out`", "`t`", "overlap")
    assert_refused(lambda: calls.gradient(x=x, out=block[37:63]), "`out`", "`x`", "overlap")
    assert_refused(lambda: calls.gradient(weights=block[:6], out=block[5:31]), "`out`", "`weights`", "overlap")
    assert_refused(lambda: calls.vjp(dy=y, out=(block[41:67], calls.dx)), "`out[0]`", "`dy`", "overlap")
    assert_refused(lambda: calls.vjp(out=(block[:26], block[20:38].reshape(6, 3))), "`out[1]`", "`out[0]`", "overlap")
    assert block.tobytes() == before


@pytest.mark.parametrize("name", ["x", "t", "weights", "validation[0]", "validation[1]"])
def test_training_in_the_memory_of_the_data(name):
    """`p` changes under way, and with it what is learnt."""
    block = RNG.normal(size=100)
    part = {"x": block[20:38].reshape(6, 3), "t": block[20:32].reshape(6, 2), "weights": block[20:26]}
    part |= {"validation[0]": part["x"], "validation[1]": part["t"]}
    given = {"x": GOOD["x"], "t": GOOD["t"], name: part[name]}
    x, t, weights = given["x"], given["t"], given.get("weights")
    validation = given.get("validation[0]", x), given.get("validation[1]", t)
    before = block.tobytes()
    assert_refused(
        lambda: train(NET, block[:26], x, t, SquaredLoss(), Adam(), weights=weights, validation=validation),
        "`p` overlaps", name, "pass a copy",
    )  # fmt: skip
    if "validation" not in name:
        batches = [(x, t) if weights is None else (x, t, weights)]
        assert_refused(lambda: train(NET, block[:26], batches, None, SquaredLoss(), Adam()), "`p` overlaps", name)
    assert block.tobytes() == before
    train(NET, block[50:76], x, t, SquaredLoss(), Adam(), weights=weights, validation=validation)  # beside, not over them


def test_training_a_state_in_the_memory_of_the_data():
    net = Chain(Dense(3, 2), chains.BatchNorm(2))
    block = RNG.uniform(1.0, 2.0, size=40)
    state, x = block[:4], block[2:20].reshape(6, 3)
    for data, validation in (((x, GOOD["t"]), None), ((GOOD["x"], GOOD["t"]), (x, GOOD["t"]))):
        assert_refused(
            lambda data=data, v=validation: train(
                net, net.init(dtype=np.float64), *data, SquaredLoss(), Adam(), state=state, validation=v
            ),
            "`state` overlaps",
        )
