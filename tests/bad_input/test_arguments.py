"""Losses, penalties, optimisers, modes, seeds, counts and devices that make no sense."""

from __future__ import annotations

import numpy as np
import pytest

import chains
from chains import Adam, Chain, Dense, SquaredLoss, tanh, train
from tests.bad_input.support import CLASSIFIER, GOOD, NET, REFUSED, WITH_T, Calls, assert_refused


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: train(epoch=3), r"train\(\) got .* 'epoch'; did you mean `epochs`\?"),
        (lambda: train(validation_data=3), r"'validation_data'; did you mean `validation`\?"),
        (lambda: chains.minimize(max_iter=3), "'max_iter'; did you mean `maxiter`"),
        (lambda: chains.solve(iteration=3), "'iteration'; did you mean `iterations`"),
        (lambda: chains.sample(warm_up=3), "'warm_up'; did you mean `warmup`"),
        (lambda: chains.export(derivates=3), r"'derivates'; did you mean `derivatives`\?"),
        (lambda: train(something=3), "'something'; its arguments are net, p, x, t, "),
    ],
)  # fmt: skip
def test_misspelled_arguments(call, error):
    with pytest.raises(TypeError, match=error):
        call()


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


@pytest.mark.parametrize("backend", ["cuda", "", None, 3])
def test_unknown_backend(backend):
    assert_refused(lambda: Chain(Dense(3, 2), backend=backend), "`backend`", repr(backend), "'numpy'", "'auto'")


@pytest.mark.parametrize("dtype", [np.float16, int, complex])
def test_wrong_dtype(dtype):
    assert_refused(lambda: NET.init(dtype=dtype), "`dtype`", "float32 or float64")
    assert_refused(lambda: NET.program(dtype=dtype), "`dtype`", "float32 or float64")


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
    with pytest.raises(REFUSED, match=rf"`{option}` (\(=|must hold )") as refusal:
        train(
            NET, p, GOOD["x"], GOOD["t"], SquaredLoss(), Adam(), validation=(GOOD["x"], GOOD["t"]), **{option: TRAINING[name]}
        )
    value = TRAINING[name][0] if isinstance(TRAINING[name], list) else TRAINING[name]
    assert repr(value) in str(refusal.value)
    np.testing.assert_array_equal(p, GOOD["p"])


def test_training_something_else():
    with pytest.raises(TypeError, match=r"`net` \(=3\)"):
        train(3, GOOD["p"], GOOD["x"], GOOD["t"], SquaredLoss(), Adam())
