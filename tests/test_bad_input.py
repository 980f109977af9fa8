"""What does not fit is refused before anything is written, in a sentence with the argument, its value and what was wanted."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import chains
from chains import SGD, Activation, Adam, BCEWithLogitsLoss, Chain, CrossEntropyLoss, Dense, Dropout, SquaredLoss, tanh, train
from chains.training.steps import Updater

REFUSED = (TypeError, ValueError)
NET = Chain(Dense(3, 4, tanh), Dense(4, 2))
CLASSIFIER = Chain(Dense(3, 5))
RNG = np.random.default_rng(0)
GOOD = {
    "x": RNG.normal(size=(6, 3)),
    "t": RNG.normal(size=(6, 2)),
    "dy": RNG.normal(size=(6, 2)),
    "p": NET.init(dtype=np.float64),
}
LABELS = np.array([0, 1, 2, 3, 4, 0])
WITH_NAN = np.where(np.arange(18).reshape(6, 3) == 7, np.nan, GOOD["x"])


class Calls:
    """Every call with arrays to fill, and these arrays' bits before."""

    def __init__(self, net=NET, loss=None, dtype=np.float64):
        self.net, self.loss = net, loss or SquaredLoss()
        self.p = net.init(dtype=dtype)
        self.y = RNG.normal(size=(6, *net.output_shape)).astype(dtype)
        self.g = RNG.normal(size=net.n_params).astype(dtype)
        self.dx = RNG.normal(size=(6, *net.input_shape)).astype(dtype)

    def forward(self, x=GOOD["x"], p=None, **rest):
        return self.net(x, self.p if p is None else p, **{"out": self.y, **rest})

    def gradient(self, x=GOOD["x"], t=GOOD["t"], p=None, loss=None, **rest):
        return self.net.value_and_grad(self.p if p is None else p, x, t, loss or self.loss, **{"out": self.g, **rest})

    def vjp(self, x=GOOD["x"], dy=GOOD["dy"], p=None, **rest):
        return self.net.vjp(self.p if p is None else p, x, dy, **{"out": (self.g, self.dx), **rest})

    def objective(self, x=GOOD["x"], t=GOOD["t"], loss=None, **rest):
        return self.net.objective(x, t, loss or self.loss, **rest)

    def value(self, x=GOOD["x"], t=GOOD["t"], p=None, loss=None, **rest):
        return self.net.loss(self.p if p is None else p, x, t, loss or self.loss, **rest)

    def train(self, x=GOOD["x"], t=GOOD["t"], p=None, loss=None, optimizer=None, **rest):
        optimizer = Adam() if optimizer is None else optimizer
        return train(self.net, self.p if p is None else p, x, t, loss or self.loss, optimizer, **rest)

    @property
    def bits(self):
        return [array.tobytes() for array in (self.p, self.y, self.g, self.dx)]


def assert_refused(call, *words, calls=None):
    """`call` raises with all the words in its sentence, and leaves the arrays of `calls` as they were."""
    before = calls.bits if calls else None
    with pytest.raises(REFUSED) as caught:
        call()
    text = str(caught.value)
    for word in words:
        assert str(word) in text, f"no {word!r} in: {text}"
    assert " " in text, text
    assert calls is None or calls.bits == before, "something was written"


METHODS = ["forward", "gradient", "vjp", "objective", "value", "train"]
WITH_P = ["forward", "gradient", "vjp", "value", "train"]
WITH_T = ["gradient", "objective", "value", "train"]


@pytest.fixture
def calls():
    return Calls()


# x


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.ones((6, 4)), ["`x`", "(6, 4)", "(batch, 3)"]),
        (np.ones(3), ["`x`", "(3,)", "(batch, 3)", "x[None]"]),
        (np.ones((6, 1, 3)), ["`x`", "(6, 1, 3)", "(batch, 3)"]),
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
def test_ragged_x(calls, method):
    assert_refused(lambda: getattr(calls, method)(x=[[1.0, 2.0, 3.0], [1.0]]), "`x`", calls=calls)


# p


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


# t, weights, dy


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
        (np.ones((6, 1)), ["`weights`", "(6, 1)", "(6,)"]),
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
    assert_refused(lambda: calls.gradient(out=np.ma.array(calls.g)), "`out` is a MaskedArray", calls=calls)


# NaN, by choice


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


# out=


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


# Objects of the wrong kind


@pytest.mark.parametrize("loss", ["mse", None, SquaredLoss, 3, np.subtract], ids=str)
def test_wrong_loss(calls, loss):
    x, t = GOOD["x"], GOOD["t"]
    for call in (
        lambda: NET.value_and_grad(calls.p, x, t, loss, out=calls.g), lambda: NET.objective(x, t, loss),
        lambda: NET.loss(calls.p, x, t, loss), lambda: train(NET, calls.p, x, t, loss, Adam()),
    ):  # fmt: skip
        assert_refused(call, "`loss`", "SquaredLoss()", calls=calls)


def test_wrong_loss_of_a_program():
    assert_refused(lambda: NET.program(SquaredLoss), "`loss`", "SquaredLoss")
    assert_refused(lambda: NET.program(optimizer=Adam()), "`loss` is missing", "`optimizer` (=Adam(")
    assert_refused(lambda: NET.program(penalty=chains.L2Penalty(0.1)), "`loss` is missing", "`penalty`")
    assert_refused(lambda: NET.program(SquaredLoss(), target_shape=2), "`target_shape` (=2)", "(3,)")
    assert_refused(lambda: NET.program(SquaredLoss(), target_shape=(3,)), "(3,)", "(2,)")


@pytest.mark.parametrize("at", ["0", 0.5, None, "0.weight"], ids=str)
def test_layers_are_counted(at):
    assert_refused(lambda: NET[at], f"`{at!r}`", "2 layers", "0.weight, 0.bias, 1.weight, 1.bias")
    with pytest.raises(IndexError, match="no layer 2"):
        NET[2]


def test_names_that_there_are_not():
    for views in (NET.views(GOOD["p"]), NET.layout):
        with pytest.raises(KeyError, match=r"named '0.weights'; the names are 0.weight, .*; did you mean `0.weight`\?"):
            views["0.weights"]
    with pytest.raises(KeyError, match="running_mean"):
        Chain(Dense(2, 3), chains.BatchNorm(3)).state_views(np.zeros(6))["0.mean"]


@pytest.mark.parametrize("device", ["gpu", 0, None, ["cuda"]], ids=str)
def test_unknown_device(device):
    for make in (NET.init, NET.init_state):
        assert_refused(lambda make=make: make(device=device), f"`device` (={device!r})", "'cpu' or 'cuda'")


@pytest.mark.parametrize("method", WITH_T)
@pytest.mark.parametrize("penalty", ["l2", 0.1, chains.L2Penalty], ids=str)
def test_wrong_penalty(calls, method, penalty):
    assert_refused(lambda: getattr(calls, method)(penalty=penalty), "`penalty`", "L2Penalty", calls=calls)


@pytest.mark.parametrize("method", WITH_T)
def test_a_penalty_on_nothing(calls, method):
    assert_refused(lambda: getattr(calls, method)(penalty=chains.L2Penalty(0.1, "9.*")), "'9.*'", "0.weight", calls=calls)


@pytest.mark.parametrize("optimizer", ["adam", 0.1, Adam], ids=str)
def test_wrong_optimizer(calls, optimizer):
    assert_refused(lambda: calls.train(optimizer=optimizer), "`optimizer`", calls=calls)
    assert_refused(lambda: NET.program(SquaredLoss(), optimizer), "`optimizer`")


@pytest.mark.parametrize("mode", ["training", "", None, True])
@pytest.mark.parametrize("method", ["forward", "gradient", "vjp", "objective"])
def test_wrong_mode(calls, method, mode):
    assert_refused(lambda: getattr(calls, method)(mode=mode), "`mode`", repr(mode), "'train' or 'eval'", calls=calls)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "a", None], ids=str)
@pytest.mark.parametrize("method", ["forward", "gradient", "vjp", "objective", "train"])
def test_wrong_seed(method, seed):
    calls = Calls(Chain(Dense(3, 4, tanh), chains.Dropout(0.5), Dense(4, 2)))
    mode = {} if method == "train" else {"mode": "train"}
    assert_refused(lambda: getattr(calls, method)(seed=seed, **mode), "`seed`", seed, calls=calls)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": -1}, ["`epochs`", "-1"]), ({"epochs": 1.5}, ["`epochs`", "1.5"]), ({"epochs": "2"}, ["`epochs`", "'2'"]),
        ({"epochs": None}, ["`epochs`", "None"]), ({"batch_size": 0}, ["`batch_size`", "0"]),
        ({"batch_size": -3}, ["`batch_size`", "-3"]), ({"batch_size": 2.5}, ["`batch_size`", "2.5"]),
        ({"batch_size": 7, "drop_last": True}, ["`batch_size`", "7", "6"]),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_counts(calls, settings, words):
    assert_refused(lambda: calls.train(**settings), *words, calls=calls)


def test_resuming_something_else(calls):
    other = Calls()
    history = other.train(optimizer=chains.SGD(0.1))
    assert_refused(lambda: calls.train(resume=history), "`resume`", "Adam", "26", calls=calls)
    assert_refused(lambda: calls.train(resume=Calls(CLASSIFIER).train(t=np.ones((6, 5)))), "`resume`", calls=calls)
    assert_refused(lambda: calls.train(resume="last.npz"), "`resume`", calls=calls)


def test_resuming_with_nothing_done(calls):
    """A history that never trained carries no state, which is no reason to start one silently from zero."""
    assert_refused(lambda: calls.train(resume=chains.History()), "`resume`", calls=calls)


# Layers


def test_layers_that_do_not_fit_are_both_named():
    assert_refused(lambda: Chain(Dense(3, 4), Dense(5, 2)), "Dense(3, 4)", "Dense(5, 2)", "(4,)", "`inputs` (=5)")
    assert_refused(lambda: Chain(Dense(3, 4), chains.Reshape(3, 2)), "Dense(3, 4)", "Reshape(3, 2)", "(4,)")
    assert_refused(lambda: Chain(Dense(3, 4), Chain(Dense(4, 2), Dense(3, 1))), "Dense(4, 2)", "Dense(3, 1)")
    assert_refused(lambda: Chain(Dense(3, 4), input_shape=(2,)), "Dense(3, 4)", "(2,)")
    assert_refused(lambda: Chain(chains.Residual(Dense(3, 4))), "`inner`", "Dense(3, 4)", "(3,)", "(4,)")
    wrong = chains.Residual(Dense(3, 4), shortcut=Dense(3, 5))
    assert_refused(lambda: Chain(wrong), "`inner`", "Dense(3, 4)", "(4,)", "`shortcut`", "Dense(3, 5)", "(5,)")
    assert_refused(lambda: Chain(chains.Parallel(Dense(3, 4), Dense(3, 2), join="sum")), "Parallel", "(4,)", "(2,)")
    assert_refused(lambda: Chain(chains.Parallel(Dense(3, 4), Dense(2, 4))), "Dense(2, 4)", "Dense(3, 4)")
    assert_refused(lambda: Chain(chains.Parallel(Dense(3, 4), axis=1)), "`axis` (=1)", "(4,)")
    assert_refused(lambda: Chain(chains.Flatten(), chains.Reshape(-1, 4), input_shape=(2, 3)), "Reshape(-1, 4)", "6")
    assert_refused(lambda: Chain(chains.Softmax(), input_shape=()), "Softmax()", "axis")
    assert_refused(
        lambda: Chain(chains.Parallel(Dense(3, 4), chains.Shift(), axis=0), input_shape=(2, 3)),
        "concatenated",
        "(2, 4)",
        "(2, 3)",
    )


def test_a_chain_inside_takes_only_its_own_input():
    inner = Chain(chains.Activation(tanh), input_shape=(3,))
    assert_refused(lambda: Chain(inner, input_shape=(4,)), "(3,)", "(4,)")
    assert_refused(lambda: Chain(Dense(2, 4), inner), "(3,)", "(4,)")


@pytest.mark.parametrize("thing", [tanh, "Dense", None, Dense, 3], ids=str)
def test_what_is_no_layer(thing):
    assert_refused(lambda: Chain(Dense(3, 4), thing), "layer 1", "not a layer")
    for make in (chains.Residual, chains.Series, chains.Parallel):
        assert_refused(lambda make=make: make(Dense(3, 4), thing), "layer 1", "not a layer")


def test_layers_in_a_list_or_generator():
    for layers in ([Dense(3, 3)], (Dense(3, 3) for _ in range(2))):
        assert_refused(lambda layers=layers: Chain(layers), "layer 0", "write Chain(*layers)")


def test_an_unknown_input_shape():
    for call in ("init", "summary", "program"):
        assert_refused(getattr(Chain(chains.Flatten(), Dense(6, 2)), call), "`input_shape`", "Flatten()")


@pytest.mark.parametrize("shape", [(0,), (-1, 3), (2.5,), ("3",), 3, "3"], ids=str)
def test_wrong_input_shape(shape):
    assert_refused(lambda: Chain(chains.Scale(), input_shape=shape), "`input_shape`", shape)


def test_a_layer_that_declares_no_output():
    class Forgetful(chains.Layer):
        def declare(self, d): ...
        def forward(self, ops, x, y, p, s): ...
        def pullback(self, ops, x, y, dy, dx, p, g, s): ...

    assert_refused(lambda: Chain(Forgetful(), input_shape=(3,)), "Forgetful.declare", "d.output")


OWN = {
    "number": (lambda d: d.param("a", 3, "zeros"), "`shape` (=3) of the parameter `a` in Mine.declare", "(3,)"),
    "fraction": (lambda d: d.param("a", (2.5,), "zeros"), "`shape` (=(2.5,)) of the parameter `a`"),
    "negative": (lambda d: d.state("a", (-1,), "zeros"), "`shape` (=(-1,)) of the state `a`"),
    "output": (lambda d: d.output(3), "`shape` (=3) of the output in Mine.declare", "(3,)"),
    "scratch": (lambda d: d.saved("a", 3), "`shape` (=3) of the scratch array `a`"),
    "name": (lambda d: d.temporary(3, (3,)), "(=3) must be a text"),
    "twice": (lambda d: (d.saved("a", (3,)), d.temporary("a", (3,))), "names the scratch array 'a' twice"),
    "init": (lambda d: d.param("a", (3,), np.ones(4)), "`init` of the parameter `a` in Mine.declare has shape (4,)", "(3,)"),
    "nan": (lambda d: d.param("a", (3,), np.nan), "`init` (=nan) of the parameter `a`"),
    "function": (lambda d: d.state("a", (3,), lambda: 1), "of the state `a` in Mine.declare must take two arguments"),
    "batch": (lambda d: d.batch_at_least("two"), "`samples` (='two')"),
    "child": (lambda d: d.child("a", Dense(3, 2), 3), "`input` (=3) of the part `a` in Mine.declare", "(3,)"),
    "frozen": (lambda d: d.freeze("wieght"), "0.wieght", "0.weight"),
}


RECORDED = {
    "number": (lambda ops, x, y: ops.map(y, lambda a, b: a * b, x, 3), "map: `3` is no array of this program"),
    "array": (lambda ops, x, y: ops.map(y, lambda a, b: a * b, x, np.ones(3)), "shape (3,)` is no array", "ops.constant"),
    "swapped": (lambda ops, x, y: ops.map(lambda a: a, y, x), "map: `<function"),
    "function": (lambda ops, x, y: ops.map(y, None, x), "`function` (=None) must be a formula"),
    "matmul": (lambda ops, x, y: ops.matmul(y, x, np.ones((3, 3))), "matmul: `an array of float64, shape (3, 3)`"),
    "sum": (lambda ops, x, y: ops.sum(y, 3), "sum: `3`"),
    "copy": (lambda ops, x, y: ops.copy(y, None), "copy: `None`"),
    "fill": (lambda ops, x, y: ops.fill(y, "a"), "`value` (='a')"),
    "random": (lambda ops, x, y: ops.random("y"), "random: `'y'`"),
    "convolve": (lambda ops, x, y: ops.convolve(y, x, None, None), "convolve: `None`"),
    "pool": (lambda ops, x, y: ops.pool("max", y, 3, None), "max pool: `3`"),
    "scratch": (lambda ops, x, y: ops.scratch("a", 3), "`a` (=3) must be a tuple"),
    "slice": (lambda ops, x, y: ops.copy(y, x.slice(2, 0, 1)), "no axis 2 of a view of shape (B, 3)"),
}


@pytest.mark.parametrize("case", RECORDED.values(), ids=RECORDED)
def test_what_a_layer_of_ones_own_may_not_record(case):
    record, *words = case

    class Mine(chains.Layer):
        def declare(self, d):
            d.output(d.input)

        def forward(self, ops, x, y, p, s):
            record(ops, x, y)

        def pullback(self, ops, x, y, dy, dx, p, g, s): ...

    assert_refused(lambda: Chain(Mine(), input_shape=(3,)).program(), *words)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (lambda ops, y, value, dy: None, "Mine.record does not fill `value`"),
        (lambda ops, y, value, dy: ops.fill(value, 0.0), "Mine.record does not fill `dy`"),
        (lambda ops, y, value, dy: (ops.fill(value, 0.0), ops.fill(dy, 0.0), ops.fill(y, 0.0)), "Mine.record writes to `y`"),
    ],
    ids=["nothing", "no gradient", "output"],
)
def test_what_a_loss_of_ones_own_may_not_record(record, words):
    class Mine(chains.Loss):
        def record(self, ops, y, t, w, value, dy):
            record(ops, y, value, dy)

    calls = Calls(loss=Mine())
    for method in WITH_T:
        assert_refused(getattr(calls, method), words, calls=calls)


@pytest.mark.parametrize("case", OWN.values(), ids=OWN)
def test_what_a_layer_of_ones_own_may_not_declare(case):
    declare, *words = case

    class Mine(chains.Layer):
        def declare(self, d):
            d.param("weight", d.input, "ones")
            d.output(d.input)
            declare(d)

        def forward(self, ops, x, y, p, s): ...
        def pullback(self, ops, x, y, dy, dx, p, g, s): ...

    with pytest.raises((*REFUSED, KeyError)) as caught:
        Chain(Mine(), input_shape=(3,))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("backend", ["cuda", "", None, 3])
def test_unknown_backend(backend):
    assert_refused(lambda: Chain(Dense(3, 2), backend=backend), "`backend`", repr(backend), "'numpy'", "'auto'")


@pytest.mark.parametrize("dtype", [np.float16, int, complex])
def test_wrong_dtype(dtype):
    assert_refused(lambda: NET.init(dtype=dtype), "`dtype`", "float32 or float64")
    assert_refused(lambda: NET.program(dtype=dtype), "`dtype`", "float32 or float64")


@pytest.mark.parametrize("loss", [CrossEntropyLoss(), chains.BCEWithLogitsLoss()], ids=str)
@pytest.mark.parametrize(
    "layers",
    [(chains.Softmax(),), (chains.LogSoftmax(),), (chains.Series(chains.Softmax()),), (Chain(Dense(3, 3), chains.Softmax()),)],
    ids=str,
)
def test_softmax_under_a_logits_loss(layers, loss):
    calls = Calls(Chain(Dense(3, 3), *layers), loss)
    for method in WITH_T:
        assert_refused(
            lambda method=method: getattr(calls, method)(t=np.eye(3)[[0, 1, 2, 0, 1, 2]]), "logits", "Softmax()", calls=calls
        )


@pytest.mark.parametrize(
    "layers",
    [
        (chains.Conv(1, 2, 3), chains.Flatten(), chains.Softmax()),
        (chains.Conv(1, 2, 3), chains.Softmax()),
        (chains.Conv(1, 2, 3), chains.Softmax(), chains.Flatten()),
        (chains.Conv(1, 2, 3), chains.GlobalAvgPool(), chains.Series(chains.LogSoftmax(), chains.Reshape(1, 2))),
    ],
    ids=str,
)
def test_softmax_after_images_under_a_logits_loss(layers):
    net = Chain(*layers, input_shape=(1, 5, 4))
    x, t = RNG.normal(size=(6, 1, 5, 4)), np.zeros((6, *net.output_shape))
    p = net.init(dtype=np.float64)
    before = p.tobytes()
    for loss in (CrossEntropyLoss(), chains.BCEWithLogitsLoss()):
        assert_refused(lambda loss=loss: net.value_and_grad(p, x, t, loss), "logits", "oftmax()")
        assert_refused(lambda loss=loss: train(net, p, x, t, loss, Adam()), "logits", "oftmax()")
    assert p.tobytes() == before
    net.value_and_grad(p, x, t, SquaredLoss())


# Images


def images(*layers, shape=(3, 8, 6)):
    return Chain(*layers, input_shape=shape)


LAYERS_OF_IMAGES = {
    "channels-last": (lambda: images(chains.Conv(3, 2, 3), shape=(8, 6, 3)), "`inputs` (=3)", "(8, 6, 3)", "last axis"),
    "channels-last-transpose": (lambda: images(chains.ConvTranspose(3, 2, 3), shape=(8, 6, 3)), "(8, 6, 3)", "last axis"),
    "other-channels": (lambda: images(chains.Conv(4, 2, 3)), "`inputs` (=4)", "(3, 8, 6)"),
    "no-channels": (lambda: images(chains.Conv(1, 2, 3), shape=(8, 6)), "(8, 6)", "(1, 8, 6)", "channel axis"),
    "flat": (lambda: images(chains.Conv(1, 2, 3), shape=(48,)), "(channels, height, width)", "(48,)"),
    "image-for-signal": (lambda: images(chains.Conv(3, 2, (3,))), "(channels, length)", "(3, 8, 6)"),
    "large-kernel": (lambda: images(chains.Conv(3, 2, 7)), "`kernel` (=(7, 7))", "padded input", "(8, 6)"),
    "large-kernel-padded": (lambda: images(chains.Conv(3, 2, 9, padding=1)), "`kernel` (=(9, 9))", "(10, 8)"),
    "large-kernel-dilated": (lambda: images(chains.Conv(3, 2, 4, dilation=2)), "`kernel` (=(4, 4))", "spans (7, 7)", "(8, 6)"),
    "large-kernel-signal": (lambda: images(chains.Conv(3, 2, (9,)), shape=(3, 8)), "`kernel` (=(9,))", "(8,)"),
    "large-pool": (lambda: images(chains.MaxPool(7)), "`kernel` (=(7, 7))", "(8, 6)"),
    "large-average": (lambda: images(chains.AvgPool((1, 8))), "`kernel` (=(1, 8))", "(8, 6)"),
    "pool-of-features": (lambda: images(chains.MaxPool(2), shape=(8,)), "(channels, height, width)", "(8,)"),
    "global-pool-of-features": (lambda: images(chains.GlobalAvgPool(), shape=(8,)), "channels", "(8,)"),
    "nothing-left": (lambda: images(chains.ConvTranspose(3, 2, 2, padding=4), shape=(3, 2, 2)), "`padding`", "(3, 2, 2)"),
    "upsampling-axes": (lambda: images(chains.Upsample((2, 2, 2))), "`factor` (=(2, 2, 2))", "(3, 8, 6)"),
    "upsampling-features": (lambda: images(chains.Upsample(2), shape=(3,)), "`factor`", "(3,)"),
    "padding-axes": (lambda: images(chains.Pad((1, 2)), shape=(3, 8)), "`padding`", "(3, 8)"),
    "inside": (lambda: images(chains.MaxPool(2), chains.Conv(3, 2, 5)), "layer 1", "(3, 4, 3)", "`kernel` (=(5, 5))"),
}


@pytest.mark.parametrize("case", LAYERS_OF_IMAGES.values(), ids=LAYERS_OF_IMAGES)
def test_layers_of_images_that_do_not_fit(case):
    make, *words = case
    assert_refused(make, *words)


def test_a_batch_of_images_with_channels_last():
    net = images(chains.Conv(3, 2, 3))
    x, p = RNG.normal(size=(4, 8, 6, 3)), net.init(dtype=np.float64)
    assert_refused(lambda: net(x, p), "`x` has shape (4, 8, 6, 3)", "last axis", "np.moveaxis(x, -1, 1)")
    assert net(np.moveaxis(x, -1, 1), p).shape == (4, 2, 6, 4)
    dy = RNG.normal(size=(4, 6, 4, 2))
    assert_refused(lambda: net.vjp(p, np.moveaxis(x, -1, 1), dy), "`dy`", "last axis")


def test_patterns_that_match_nothing():
    for method in (NET.freeze, NET.train_only):
        assert_refused(lambda method=method: method("0.*", "7.weight"), "'7.weight'", "0.weight")


# Settings


SETTINGS = {
    "Dense-inputs": (lambda: Dense(0, 2), "`inputs` (=0)"),
    "Dense-outputs": (lambda: Dense(3, -1), "`outputs` (=-1)"),
    "Dense-fraction": (lambda: Dense(3, 2.5), "`outputs` (=2.5)"),
    "Dense-True": (lambda: Dense(True, 2), "`inputs` (=True)"),
    "Dense-text": (lambda: Dense("3", 2), "`inputs` (='3')"),
    "Dense-array": (lambda: Dense(np.ones(3), 2), "`inputs` (=an array of float64, shape (3,))"),
    "Dense-bias": (lambda: Dense(3, 2, bias="no"), "`bias` (='no')"),
    "Conv-bias": (lambda: chains.Conv(1, 2, 3, bias=1), "`bias` (=1)"),
    "ConvTranspose-bias": (lambda: chains.ConvTranspose(1, 2, 3, bias=None), "`bias` (=None)"),
    "BatchNorm-affine": (lambda: chains.BatchNorm(3, affine="no"), "`affine` (='no')"),
    "BatchNorm-momentum": (lambda: chains.BatchNorm(3, momentum="a"), "`momentum` (='a')"),
    "BatchNorm-momentum-range": (lambda: chains.BatchNorm(3, momentum=1.5), "`momentum` (=1.5)"),
    "BatchNorm-eps": (lambda: chains.BatchNorm(3, eps=None), "`eps` (=None)"),
    "LayerNorm-affine": (lambda: chains.LayerNorm(affine=0), "`affine` (=0)"),
    "LayerNorm-eps": (lambda: chains.LayerNorm(eps="1e-5"), "`eps` (='1e-5')"),
    "GroupNorm-affine": (lambda: chains.GroupNorm(2, 4, affine=np.ones(2)), "`affine` (=an array of float64, shape (2,))"),
    "AvgPool-count": (lambda: chains.AvgPool(2, count_padding="no"), "`count_padding` (='no')"),
    "Conv-inputs": (lambda: chains.Conv(0, 2, 3), "`inputs` (=0)"),
    "Conv-outputs": (lambda: chains.Conv(1, 2.5, 3), "`outputs` (=2.5)"),
    "Conv-kernel": (lambda: chains.Conv(1, 2, 0), "`kernel` (=0)"),
    "Conv-kernel-fraction": (lambda: chains.Conv(1, 2, (3, 1.5)), "`kernel` (=(3, 1.5))"),
    "Conv-kernel-axes": (lambda: chains.Conv(1, 2, (3, 3, 3)), "`kernel` (=(3, 3, 3))"),
    "Conv-kernel-text": (lambda: chains.Conv(1, 2, "3"), "`kernel` (='3')"),
    "Conv-stride": (lambda: chains.Conv(1, 2, 3, stride=0), "`stride` (=0)"),
    "Conv-stride-pair": (lambda: chains.Conv(1, 2, 3, stride=(1, 0)), "`stride` (=(1, 0))"),
    "Conv-stride-axes": (lambda: chains.Conv(1, 2, (3,), stride=(1, 1)), "`stride` (=(1, 1))"),
    "Conv-dilation": (lambda: chains.Conv(1, 2, 3, dilation=-1), "`dilation` (=-1)"),
    "Conv-padding": (lambda: chains.Conv(1, 2, 3, padding=-1), "`padding` (=-1)"),
    "Conv-padding-text": (lambda: chains.Conv(1, 2, 3, padding="full"), "`padding` (='full')"),
    "Conv-padding-sides": (lambda: chains.Conv(1, 2, 3, padding=((1, 2), 1, 1)), "`padding` (=((1, 2), 1, 1))"),
    "Conv-same-stride": (lambda: chains.Conv(1, 2, 3, padding="same", stride=2), "`stride` 1, not 2"),
    "Conv-same-stride-pair": (lambda: chains.Conv(1, 2, 3, padding="same", stride=(1, 2)), "`stride` 1, not (1, 2)"),
    "Conv-groups": (lambda: chains.Conv(3, 4, 3, groups=2), "`inputs` (=3)"),
    "Conv-groups-outputs": (lambda: chains.Conv(4, 3, 3, groups=2), "`outputs` (=3)"),
    "Conv-groups-zero": (lambda: chains.Conv(4, 3, 3, groups=0), "`groups` (=0)"),
    "Conv-activation": (lambda: chains.Conv(4, 3, 3, "rely"), "'rely'"),
    "ConvTranspose-output-padding": (lambda: chains.ConvTranspose(1, 2, 3, output_padding=1), "`output_padding` (=1)"),
    "ConvTranspose-output-padding-axes": (
        lambda: chains.ConvTranspose(1, 2, 3, stride=2, output_padding=(1, 1, 1)),
        "`output_padding` (=(1, 1, 1))",
    ),
    "MaxPool-padding": (lambda: chains.MaxPool(3, padding=2), "`padding` (=2)"),
    "MaxPool-stride": (lambda: chains.MaxPool(3, stride=0), "`stride` (=0)"),
    "AvgPool-kernel": (lambda: chains.AvgPool(0), "`kernel` (=0)"),
    "Upsample-factor": (lambda: chains.Upsample(0), "`factor` (=0)"),
    "Upsample-factor-fraction": (lambda: chains.Upsample(1.5), "`factor` (=1.5)"),
    "Pad-negative": (lambda: chains.Pad(-1), "`padding` (=-1)"),
    "Pad-sides": (lambda: chains.Pad(((1, 2, 3), 1)), "`padding` (=(1, 2, 3))"),
    "Dense-activation": (lambda: Dense(3, 2, "tanhh"), "'tanhh'"),
    "Dense-function": (lambda: Dense(3, 2, np.tanh), "`activation`"),
    "Activation": (lambda: chains.Activation(None), "`activation` (=None)"),
    "Dropout-1": (lambda: chains.Dropout(1.0), "`rate` (=1.0)"),
    "Dropout-negative": (lambda: chains.Dropout(-0.1), "`rate` (=-0.1)"),
    "Dropout-nan": (lambda: chains.Dropout(np.nan), "`rate` (=nan)"),
    "Reshape-two": (lambda: chains.Reshape(-1, -1), "`shape` (=(-1, -1))"),
    "Reshape-true": (lambda: chains.Reshape(True), "`shape` (=(True,))"),
    "Reshape-array": (lambda: chains.Reshape(np.ones(2)), "`shape` (=(array"),
    "Reshape-zero": (lambda: chains.Reshape(0, 3), "`shape` (=(0, 3))"),
    "Reshape-fraction": (lambda: chains.Reshape(1.5, 2), "`shape` (=(1.5, 2))"),
    "Parallel-none": (lambda: chains.Parallel(), "`layers`"),
    "Parallel-join-list": (lambda: chains.Parallel(Dense(3, 2), join=["sum"]), "`join` (=['sum'])"),
    "Parallel-axis": (lambda: chains.Parallel(Dense(3, 2), axis="0"), "`axis` (='0')"),
    "Residual-shortcut": (lambda: chains.Residual(Dense(3, 2), shortcut=3), "`shortcut` (=3)"),
    "Parallel-join": (lambda: chains.Parallel(Dense(3, 2), join="add"), "`join` (='add')"),
    "leaky_relu-text": (lambda: chains.make_leaky_relu("a"), "`slope` (='a')"),
    "elu-list": (lambda: chains.make_elu([1.0]), "`alpha` (=[1.0])"),
    "leaky_relu": (lambda: chains.make_leaky_relu(0.0), "`slope` (=0.0)"),
    "elu": (lambda: chains.make_elu(-1.0), "`alpha` (=-1.0)"),
    "activation-arguments": (lambda: chains.activation("a", lambda x: x, derivative=lambda z: 1.0), "z"),
    "activation-if": (lambda: chains.activation("a", lambda x: x if x > 0 else 0, derivative=lambda x: 1.0), "where"),
    "activation-name": (lambda: chains.activation(3, lambda x: x, derivative=lambda y: 1.0), "`name` (=3)"),
    "loss-name": (lambda: chains.loss(3, lambda y, t: y - t, derivative=lambda y, t: 1.0), "`name` (=3)"),
    "loss-average": (lambda: chains.loss("a", lambda y, t: y, derivative=lambda y, t: 1.0, average="no"), "`average` (='no')"),
    "loss": (lambda: chains.loss("a", lambda y, t: None, derivative=lambda y, t: 1.0), "None"),
    "Huber": (lambda: chains.HuberLoss(0.0), "`delta` (=0.0)"),
    "L1": (lambda: chains.L1Penalty(-0.1), "`strength` (=-0.1)"),
    "L2": (lambda: chains.L2Penalty(np.nan), "`strength` (=nan)"),
    "rate": (lambda: Adam(-0.1), "`learning_rate` (=-0.1)"),
    "rate-nan": (lambda: chains.SGD(np.nan), "`learning_rate` (=nan)"),
    "clip": (lambda: Adam(clip_norm=0.0), "`clip_norm` (=0.0)"),
    "momentum": (lambda: chains.SGD(0.1, momentum=1.0), "`momentum` (=1.0)"),
    "nesterov": (lambda: chains.SGD(0.1, nesterov=True), "`nesterov`"),
    "beta1": (lambda: Adam(beta1=1.0), "`beta1` (=1.0)"),
    "beta2": (lambda: chains.AdamW(beta2=-0.1), "`beta2` (=-0.1)"),
    "eps": (lambda: Adam(eps=0.0), "`eps` (=0.0)"),
    "weight_decay": (lambda: chains.AdamW(weight_decay=-0.1), "`weight_decay` (=-0.1)"),
    "decay": (lambda: chains.RMSProp(decay=1.5), "`decay` (=1.5)"),
    "Adagrad-eps": (lambda: chains.Adagrad(eps=-1.0), "`eps` (=-1.0)"),
    "schedule-every": (lambda: chains.schedules.exponential(0.1, 0.5, 0), "`every` (=0)"),
    "schedule-stepwise": (lambda: chains.schedules.stepwise(0.1, 0.5, -1), "`every` (=-1)"),
    "schedule-steps": (lambda: chains.schedules.cosine(0.1, 0), "`steps` (=0)"),
    "schedule-warmup": (lambda: chains.schedules.warmup(0.1, 0), "`steps` (=0)"),
    "schedule-if": (lambda: Adam(lambda step: 0.1 if step < 3 else 0.01), "where"),
    "schedule-text": (lambda: chains.schedules.exponential("a", 0.5), "`rate` (='a')"),
    "schedule-decay": (lambda: chains.schedules.exponential(0.1, -0.5), "`decay` (=-0.5)"),
    "schedule-every-text": (lambda: chains.schedules.stepwise(0.1, 0.5, "3"), "`every` (='3')"),
    "schedule-none": (lambda: chains.schedules.cosine(0.1, None), "`steps` (=None)"),
    "schedule-final": (lambda: chains.schedules.cosine(0.1, 5, final=-1.0), "`final` (=-1.0)"),
    "schedule-of-text": (lambda: chains.schedules.warmup("a", 3), "`schedule` (='a')"),
    "rate-text": (lambda: Adam("1e-3"), "`learning_rate` (='1e-3')"),
    "rate-none": (lambda: Adam(None), "`learning_rate` (=None)"),
    "rate-list": (lambda: Adam([0.1]), "`learning_rate` (=[0.1])"),
    "rate-true": (lambda: Adam(True), "`learning_rate` (=True)"),
    "rate-infinite": (lambda: Adam(np.inf), "`learning_rate` (=inf)"),
    "rate-class": (lambda: Adam(chains.SGD), "`learning_rate` (=<class"),
    "rate-without-step": (lambda: Adam(lambda: 1.0), "`learning_rate`"),
    "rate-gives-two": (lambda: Adam(lambda step: (step, 1.0)), "the formula gives 2 numbers"),
    "activation-gives-two": (lambda: chains.activation("a", lambda x: (x, x), derivative=lambda x: 1.0), "activation 'a'"),
    "seed-array": (lambda: NET(GOOD["x"], GOOD["p"], seed=np.ones(2)), "`seed` (=an array of float64, shape (2,))"),
    "rate-gives-text": (lambda: Adam(lambda step: "x"), "'x'"),
    "clip-text": (lambda: Adam(clip_norm="1"), "`clip_norm` (='1')"),
    "momentum-list": (lambda: chains.SGD(0.1, momentum=[0.9]), "`momentum` (=[0.9])"),
    "nesterov-text": (lambda: chains.SGD(0.1, momentum=0.9, nesterov="yes"), "`nesterov` (='yes')"),
    "beta-text": (lambda: Adam(beta1="0.9"), "`beta1` (='0.9')"),
    "eps-none": (lambda: Adam(eps=None), "`eps` (=None)"),
    "weight_decay-text": (lambda: chains.AdamW(weight_decay="x"), "`weight_decay` (='x')"),
    "L2-text": (lambda: chains.L2Penalty("1e-3"), "`strength` (='1e-3')"),
    "L2-patterns": (lambda: chains.L2Penalty(0.1, 3), "`patterns` (=3)"),
    "L2-none": (lambda: chains.L2Penalty(0.1, ()), "`patterns` (=())"),
    "L2-list": (lambda: chains.L2Penalty(0.1, ["*"]), "`patterns` (=['*'])"),
    "L2-plus": (lambda: chains.L2Penalty(0.1) + 3, "not 3"),
    "FrontLast": (lambda: chains.FrontLastPenalty(0.1, None), "`front` (=0.1)"),
    "Huber-text": (lambda: chains.HuberLoss("a"), "`delta` (='a')"),
    "Dropout-text": (lambda: chains.Dropout("a"), "`rate` (='a')"),
    "freeze": (lambda: NET.freeze(3), "(=3)"),
    "backend-list": (lambda: Chain(Dense(3, 3), backend=[]), "`backend` (=[])"),
    "dtype-unknown": (lambda: NET.init(dtype="float99"), "`dtype` (='float99')"),
    "dtype-number": (lambda: NET.init(dtype=3), "`dtype` (=3)"),
    "seed-text": (lambda: NET.init(seed="a"), "`seed` (='a')"),
    "check_finite": (lambda: Calls().gradient(check_finite="a"), "`check_finite` (='a')"),
    "listing": (lambda: NET.listing(3), "`program` (=3)"),
    "mode-array": (lambda: NET(GOOD["x"], GOOD["p"], mode=np.ones(2)), "`mode`"),
    "patience": (lambda: chains.EarlyStopping(0), "`patience` (=0)"),
    "stopping-mode": (lambda: chains.EarlyStopping(mode="low"), "`mode` (='low')"),
}


@pytest.mark.parametrize(("make", "word"), SETTINGS.values(), ids=SETTINGS)
def test_settings_out_of_range(make, word):
    assert_refused(make, word)


TRAINING = {
    "epochs": 2.5, "epochs-text": "3", "epochs-true": True, "batch_size": 0.5, "batch_size-text": "4", "batch_size-true": True,
    "shuffle": "no", "drop_last": 2, "check_finite": "a", "progress": "x", "callbacks": 3, "callbacks-function": print,
    "callbacks-arguments": [lambda: None], "metrics-arguments": [lambda y: 0.0],
    "metrics": 3, "metrics-function": chains.accuracy, "metrics-text": ["accuracy"], "penalty": 0.1, "resume": 3, "seed": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINING)
def test_options_of_training(name):
    """The argument and its value are named, and nothing is written."""
    p, option = GOOD["p"].copy(), name.split("-")[0]
    with pytest.raises(REFUSED, match=rf"`{option}` (\(=|holds )") as refusal:
        train(
            NET, p, GOOD["x"], GOOD["t"], SquaredLoss(), Adam(), validation=(GOOD["x"], GOOD["t"]), **{option: TRAINING[name]}
        )
    value = TRAINING[name][0] if isinstance(TRAINING[name], list) else TRAINING[name]
    assert repr(value) in str(refusal.value)
    np.testing.assert_array_equal(p, GOOD["p"])


def test_training_something_else():
    with pytest.raises(TypeError, match=r"`net` \(=3\)"):
        train(3, GOOD["p"], GOOD["x"], GOOD["t"], SquaredLoss(), Adam())


@pytest.mark.parametrize(
    "wrong", [lambda x: np.sinc(x), lambda x: math.exp(x), lambda x: x if x > 0 else 0, lambda x: x[0], lambda x: None]
)
def test_formulas_that_cannot_be_traced_name_what_they_belong_to(wrong):
    with pytest.raises((TypeError, ValueError), match="activation 'mine'"):
        chains.activation("mine", wrong, derivative=lambda x: x)
    with pytest.raises((TypeError, ValueError), match="activation 'mine', derivative"):
        chains.activation("mine", lambda x: x, derivative=wrong)
    with pytest.raises((TypeError, ValueError), match="loss 'mine'"):
        chains.loss("mine", lambda y, t: wrong(y), derivative=lambda y, t: y - t)
    with pytest.raises((TypeError, ValueError), match="loss 'mine', derivative"):
        chains.loss("mine", lambda y, t: y - t, derivative=lambda y: y)


def test_numbers_beyond_the_range_of_the_parameters_type():
    net = Chain(Dense(2, 3), Dense(3, 1))
    p, x, t = net.init(0, np.float32), np.ones((5, 2)), np.ones((5, 1))
    x[3, 1] = -1e39
    before = p.copy()
    wanted = re.escape("`x` holds -1e+39 at index (3, 1), but numbers within the range of float32, the type of `p`, are wanted")
    with pytest.raises(ValueError, match=wanted):
        train(net, p, x, t, SquaredLoss(), SGD(0.1))
    with pytest.raises(ValueError, match=wanted):
        train(net, p, [(x, t)], None, SquaredLoss(), SGD(0.1))
    assert p.tobytes() == before.tobytes()
    train(net, net.init(0, np.float64), x * 1e-30, t, SquaredLoss(), SGD(0.1))


@pytest.mark.parametrize("layer", [NET, chains.Series(Dense(2, 2)), chains.Parallel(Dense(2, 2))], ids=str)
def test_layers_are_fixed_once_a_network_is_made(layer):
    Chain(layer)
    with pytest.raises(AttributeError, match=r"`layers` .* cannot become"):
        layer.layers = ()


def test_settings_are_fixed_once_a_network_is_made():
    layer = Dropout(0.3)
    layer.rate = 0.4
    Chain(Dense(2, 3), layer)
    with pytest.raises(AttributeError, match=r"`rate` \(=0.4\) of Dropout\(0.4\) cannot become 0.5: a network was made of it"):
        layer.rate = 0.5
    assert layer.rate == 0.4


def test_a_last_step_that_leaves_the_numbers_is_told():
    """No loss is computed after it."""
    net = Chain(Dense(2, 3), Dense(3, 1))
    p = net.init(0, np.float32)
    with pytest.raises(
        FloatingPointError, match=r"`p` holds (nan|-?inf) at index \d+ after step 1: the step was too large"
    ) as caught:
        train(net, p, 100 * np.ones((5, 2), np.float32), np.ones((5, 1), np.float32), SquaredLoss(), SGD(1e38))
    assert caught.value.history.steps == 1


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
    with pytest.raises(ValueError, match=r"of one class, whose cross-entropy is always 0: .* BCEWithLogitsLoss"):
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


def test_targets_that_are_nan():
    for loss, outputs, message in (
        (chains.BCEWithLogitsLoss(), 1, "targets must be from 0 to 1, but there is nan"),
        (CrossEntropyLoss(), 2, "probabilities must not be negative, but there is nan"),
    ):
        net = Chain(Dense(3, outputs))
        with pytest.raises(ValueError, match=message):
            net.value_and_grad(net.init(), np.ones((4, 3)), np.full((4, outputs), np.nan), loss)


NUMBERS = {
    "learning_rate": Adam, "clip_norm": lambda value: Adam(clip_norm=value), "eps": lambda value: Adam(eps=value),
    "momentum": lambda value: SGD(0.1, momentum=value), "weight_decay": lambda value: chains.AdamW(weight_decay=value),
    "strength": chains.L2Penalty, "delta": chains.HuberLoss, "slope": chains.make_leaky_relu, "alpha": chains.make_elu,
    "rate": lambda value: chains.schedules.exponential(value, 0.5), "steps": lambda value: chains.schedules.cosine(0.1, value),
    "every": lambda value: chains.schedules.stepwise(0.1, 0.5, value), "mean": chains.Normal,
    "threshold": lambda value: chains.accuracy(np.arange(3), np.eye(3), threshold=value),
    "scale": lambda value: chains.data.Batches(GOOD["x"], batch_size=2, scale=value),
}  # fmt: skip


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 10**400, -(10**400), np.float32(np.inf)], ids=str)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_beyond_the_range_of_floats(name, value):
    with pytest.raises(ValueError, match=rf"`{name}` \(=[^`]*\) must be ") as refusal:
        NUMBERS[name](value)
    assert len(str(refusal.value)) < 250


@pytest.mark.parametrize(("value", "text"), [(np.array(0.1), "an array of float64, shape ()"), (np.True_, "np.True_")])
def test_numbers_of_numpy_that_are_none(value, text):
    for name, make in (("momentum", chains.BatchNorm), ("eps", chains.BatchNorm), ("learning_rate", chains.Adam)):
        channels = (3,) if make is chains.BatchNorm else ()
        with pytest.raises(TypeError, match=re.escape(f"`{name}` (={text}) must be a number")):
            make(*channels, **{name: value})
