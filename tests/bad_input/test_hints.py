"""What messages say beyond what is wrong: which argument it is, which names there are, what may have been meant."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc

import numpy as np
import pytest

import chains
from chains import Adam, Chain, Conv, CrossEntropyLoss, Dense, EarlyStopping, Layer, SquaredLoss, accuracy, train
from chains.activations import ACTIVATIONS
from chains.data import Augment, Batches, prefetch
from chains.initializers import INITIALIZERS
from chains.support.messages import SYNONYMS, counted, listed, meant
from chains.training.updater import Updater

X, T = np.ones((6, 3)), np.zeros((6, 2))
LABELS = np.array([0, 1, 2, 3, 4, 0])


def refusal(call, kind=(TypeError, ValueError)):
    """The sentence a call is refused with."""
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


# Words


def test_numbers_and_lists():
    assert [counted(number, "step") for number in (0, 1, 2, 1000)] == ["0 steps", "1 step", "2 steps", "1,000 steps"]
    assert listed(["a", "b"]) == "a, b"
    assert listed([]) == "none"
    assert listed(str(k) for k in range(300)).endswith("18, 19, ... (300 in all)")
    assert meant("wieght", ["weight", "bias"]) == "; did you mean `weight`?"
    assert meant("other", ["weight", "bias"]) == ""
    assert meant("bgfs", ["LM", "BFGS"]) == "; did you mean `BFGS`?"


def test_one_is_no_plural():
    p = np.zeros(1)
    update = Updater(Adam(), p)
    update(np.ones(1))
    assert repr(update).endswith("of 1 parameter after 1 step>")
    history = chains.History(loss=[1.0], stopped="enough")
    assert "stopped after 1 epoch: enough" in str(history)
    assert "shape (1,), a vector of 1 parameter of" in refusal(lambda: Chain(Dense(1, 1, bias=False)).views(np.ones(2)))


def test_long_lists_are_cut():
    net = Chain(*(Dense(2, 2) for _ in range(50)))
    for call in (lambda: net.with_frozen("x"), lambda: net.layout["0.wieght"]):
        text = refusal(call, (KeyError, ValueError))
        assert "(100 in all)" in text
        assert len(text) < 500
    assert "did you mean `0.weight`?" in refusal(lambda: net.layout["0.wieght"], KeyError)


# Activations


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_tell_their_formulas(name):
    f = ACTIVATIONS[name]
    text = pydoc.render_doc(f, renderer=pydoc.plaintext)
    for shown in (text, repr(f)):
        assert f.formula in shown
        assert f.slope_formula in shown
    names = {"x": 0.3, "y": float(f(0.3)), **{f: getattr(chains.expr, f) for f in ("exp", "expm1", "log1p", "tanh", "erf")}}
    names |= {"where": chains.expr.where, "max": max, "min": min, "sin": np.sin, "cos": np.cos}
    for formula, wanted in ((f.formula, f(0.3)), (f.slope_formula, f.slope(0.3, f(0.3)))):
        assert eval(formula.split(" = ")[1], names) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "elu", "selu"])
def test_activations_tell_what_happens_at_a_kink(name):
    f = ACTIVATIONS[name]
    at_zero = float(f.slope(0.0, float(f(0.0))))
    assert "x = 0" in f.__doc__
    if name == "selu":
        assert "from below" in f.__doc__
        assert at_zero == pytest.approx(float(f.slope(-1e-9, float(f(-1e-9)))))
    else:
        assert f"taken as {at_zero:g}." in f.__doc__


def test_networks_show_activations_by_name():
    assert repr(Chain(Dense(2, 3, "relu"), chains.Activation("elu"))) == "Chain(Dense(2, 3, relu), Activation(elu))"
    assert "did you mean `sigmoid`?" in refusal(lambda: Dense(2, 3, "sigmiod"))


# Training


def test_a_quantity_that_is_not_recorded_is_refused_before_the_first_step():
    net = Chain(Dense(3, 2))
    p = net.init()
    before = p.copy()
    for settings, words in (
        ({}, ["`monitor` (='validation loss')", "loss, seconds", "need `validation=(x, t)`"]),
        ({"validation": (X, T)}, ["`monitor` (='accuracy')", "loss, validation loss, seconds"]),
    ):
        stop = EarlyStopping(monitor="accuracy") if settings else EarlyStopping()
        text = refusal(lambda stop=stop, s=settings: train(net, p, X, T, SquaredLoss(), Adam(), callbacks=[stop], **s))
        assert all(word in text for word in words), text
        np.testing.assert_array_equal(p, before)


def test_a_metric_that_does_not_fit_is_refused_before_the_first_step():
    net = Chain(chains.Flatten(), Dense(4, 6), chains.Reshape(3, 2), input_shape=(2, 2))
    p = net.init()
    x, t = np.ones((5, 2, 2)), np.zeros((5, 3), np.int64)
    train(net, p, x, t, CrossEntropyLoss(), Adam(), validation=(x, t), metrics=[accuracy])
    before = p.copy()

    class Odd(CrossEntropyLoss):  # takes targets that `accuracy` does not
        def check_target(self, output, target):
            pass

        def check_values(self, t, output):
            pass

        def record(self, ops, y, t, w, value, dy):
            ops.sum(value, y)
            ops.fill(dy, 1.0)

    with pytest.raises(ValueError, match="`t` must have shape") as caught:
        train(net, p, x, np.zeros((5, 7)), Odd(), Adam(), validation=(x, np.zeros((5, 7))), metrics=[accuracy])
    assert "in the metric accuracy" in caught.value.__notes__[0]
    np.testing.assert_array_equal(p, before)


@pytest.mark.parametrize("kind", [ValueError, TypeError, RuntimeError, ZeroDivisionError, KeyError])
def test_a_metric_of_ones_own_is_named_where_it_fails(kind):
    def odd(t, y):
        raise kind("no")

    net = Chain(Dense(3, 2))
    with pytest.raises(kind, match="no") as caught:
        train(net, net.init(), X, T, SquaredLoss(), Adam(), validation=(X, T), metrics=[odd])
    assert caught.value.__notes__ == ["in the metric odd, of targets of shape (6, 2) and outputs of shape (6, 2)"]


@pytest.mark.parametrize("value", [None, "0.5", (0.5,), np.ones(1), np.ones(6), 1j], ids=repr)
def test_a_metric_that_gives_no_number_is_named(value):
    def odd(t, y):
        return value

    net = Chain(Dense(3, 2))
    with pytest.raises(TypeError, match=r"the metric odd must return a number, got "):
        train(net, net.init(), X, T, SquaredLoss(), Adam(), validation=(X, T), metrics=[odd])


@pytest.mark.parametrize("value", [1, True, np.float32(1.0), np.array(1.0)], ids=repr)
def test_numbers_that_metrics_may_give(value):
    def one(t, y):
        return value

    net = Chain(Dense(3, 2))
    history = train(net, net.init(), X, T, SquaredLoss(), Adam(), validation=(X, T), metrics=[one])
    assert history.metrics == {"one": [1.0]}


def test_an_optimizer_in_the_place_of_the_loss():
    net = Chain(Dense(3, 2))
    assert "`loss` (=Adam(" in refusal(lambda: train(net, net.init(), X, T, Adam(), SquaredLoss()))


def test_arguments_that_need_their_names():
    net = Chain(Dense(3, 2))
    text = refusal(lambda: net.jacobian(net.init(), X, "forward"), TypeError)
    assert text.startswith("jacobian() takes `p`, `x` by position: name what 'forward' is, one of lengths=, direction=")
    text = refusal(lambda: train(net, net.init(), X, T, SquaredLoss(), Adam(), 10), TypeError)
    assert "`loss`, `optimizer` by position: name what 10 is, one of epochs=, " in text, text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Adam(lr=1e-3), ["Adam: ", "'lr'", "its settings are learning_rate, ", "beta1, beta2, eps"]),
        (lambda: chains.SGD(lr=0.1), ["SGD: ", "learning_rate"]),
        (lambda: chains.SGD(clip_norm=1.0), ["SGD: missing a required argument: 'learning_rate'"]),
        (lambda: chains.AdamW(weigth_decay=0.1), ["AdamW: ", "did you mean `weight_decay`?"]),
        (lambda: chains.RMSProp(1e-3, 0.9, 1e-8, 0.1), ["RMSProp: too many positional arguments"]),
    ],
)
def test_settings_of_optimizers_of_other_names(make, words):
    text = refusal(make, TypeError)
    assert all(word in text for word in words), text


def test_an_optimizer_s_signature_is_its_own():
    assert [*inspect.signature(chains.SGD).parameters] == ["learning_rate", "momentum", "nesterov", "clip_norm", "sparse"]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"patience": "3"}, "`patience` (='3')"),
        ({"patience": 1.5}, "`patience` (=1.5)"),
        ({"monitor": None}, "`monitor` (=None)"),
        ({"min_delta": -1.0}, "`min_delta` (=-1.0)"),
        ({"restore": "yes"}, "`restore` (='yes')"),
    ],
)
def test_settings_of_early_stopping(settings, word):
    assert word in refusal(lambda: EarlyStopping(**settings))


def test_targets_for_validation_are_named():
    net = Chain(Dense(3, 5))
    for t, word in (
        (LABELS + 1, "labels must be whole numbers from 0 to 4, got 5 at index"),
        (np.zeros((6, 2)), "(2,)"),
        (LABELS + 0.5, "whole numbers"),
    ):
        p = net.init()
        text = refusal(lambda t=t, p=p: train(net, p, X, LABELS, CrossEntropyLoss(), Adam(), validation=(X, t)))
        assert text.startswith("`validation[1]`: ")
        assert word in text
        assert refusal(lambda t=t, p=p: net.loss(p, X, t, CrossEntropyLoss())).startswith("`t`: ")


def test_class_labels_as_targets():
    text = refusal(lambda: Chain(Dense(3, 5)).loss(np.zeros(20), X, LABELS, SquaredLoss()))
    assert "data.one_hot(t, 5)" in text
    assert "CrossEntropyLoss()" in text
    text = refusal(lambda: Chain(Dense(3, 5)).loss(np.zeros(20), X, LABELS[:, None], CrossEntropyLoss()))
    assert "t[..., 0]" in text


# The input


@pytest.mark.parametrize(
    ("shape", "given", "hint"),
    [
        ((1, 8, 8), (5, 64), "x.reshape(len(x), 1, 8, 8)"),
        ((1, 8, 8), (5, 8, 8), "x[:, None]"),
        ((3,), (3, 7), "x.T"),
        ((1, 8, 8), (1, 8, 8), "x[None]"),
        ((1, 8, 8), (8, 8), "x[None, None]"),
        ((3, 8, 8), (3, 8, 8), "x[None]"),
        ((3, 8, 8), (5, 8, 8, 3), "np.moveaxis(x, -1, 1)"),
        ((3, 8, 8), (8, 8, 3), "np.moveaxis(x[None], -1, 1)"),
        ((3, 8, 8), (5, 192), "x.reshape(len(x), 3, 8, 8)"),
        ((64,), (5, 8, 8), "x.reshape(len(x), 64)"),
    ],
)
def test_images_of_another_shape(shape, given, hint):
    """The hint is there, and following it helps."""
    net = Chain(chains.Flatten(), Dense(int(np.prod(shape)), 2), input_shape=shape)
    x = np.ones(given)
    text = refusal(lambda: net(x, net.init()))
    assert f" {hint}" in text
    assert net(eval(hint, {"x": x, "np": np, "len": len}), net.init()).shape[1:] == (2,)


def test_no_hint_where_nothing_helps():
    assert refusal(lambda: Chain(Dense(3, 2))(np.ones((6, 4)), np.zeros(8))).endswith("inputs, got (6, 4)")


@pytest.mark.parametrize("make", [chains.models.resnet50, chains.models.densenet121])
def test_channels_at_the_end_of_a_model_s_input(make):
    text = refusal(lambda: make(10, (32, 64, 3)))
    assert "`input_shape` (=(32, 64, 3))" in text
    assert "(3, 32, 64)" in text
    assert "`input_shape` (=(32, 32))" in refusal(lambda: make(10, (32, 32)))


def test_models_of_few_pixels_or_many_channels():
    net = chains.models.resnet((1,), 2, (6, 4, 4), width=2)
    assert net.input_shape == (6, 4, 4)


# Layers


def test_lengths_in_a_tuple():
    assert "Reshape(3, 2)" in refusal(lambda: chains.Reshape((3, 2)))
    assert "Reshape(3, -1)" in refusal(lambda: chains.Reshape([3, -1]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Conv(1, 2, kernel_size=3), ["Conv: ", "'kernel'", "inputs, outputs, kernel", "did you mean `kernel`?"]),
        (lambda: Conv(1, 2, 3, strides=2), ["Conv: ", "'strides'", "did you mean `stride`?"]),
        (lambda: Conv(1), ["Conv: missing a required argument: 'outputs'"]),
        (lambda: chains.ConvTranspose(1, 2, 3, output_pad=1), ["ConvTranspose: ", "did you mean `output_padding`?"]),
        (lambda: Conv(1, 2, 3, "same"), ["`activation` (='same')", "write padding='same'"]),
        (lambda: chains.ConvTranspose(1, 2, 3, "valid"), ["`activation` (='valid')", "write padding='valid'"]),
        (lambda: Dense(3, 4, use_bias=False), ["Dense: ", "'use_bias'", "did you mean `bias`?"]),
        (lambda: Dense(3, 4, "tanh", True), ["Dense: too many positional arguments"]),
        (lambda: Dense(in_features=3, outputs=4), ["Dense: ", "its settings are inputs, outputs, activation"]),
    ],
)
def test_settings_of_other_names(make, words):
    text = refusal(make)
    assert all(word in text for word in words), text
    assert "_Convolution" not in text


def test_a_layer_s_signature_is_its_own():
    assert "kernel" in pydoc.render_doc(Conv, renderer=pydoc.plaintext)
    assert repr(Conv(1, 2, 3)) == "Conv(1, 2, 3)"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Dense(3, 4, weight_init="he"), ["`weight_init` (='he')", "he_normal"]),
        (lambda: Conv(1, 2, 3, bias_init="zero"), ["`bias_init` (='zero')", "did you mean `zeros`?"]),
        (lambda: chains.Scale(scale_init="one"), ["`scale_init` (='one')", "did you mean `ones`?"]),
        (lambda: chains.Shift(shift_init=None), ["`shift_init` (=None)"]),
        (lambda: Dense(3, 4, weight_init=chains.initializers.Normal), ["`weight_init`", "Normal(...)"]),
        (lambda: Chain(Own("unknown"), input_shape=(3,)), ["`init` (='unknown') of the parameter `weight`", "glorot_normal"]),
    ],
)
def test_initializers_that_there_are_not(make, words):
    text = refusal(make)
    assert all(word in text for word in words), text


class Own(Layer):
    """y = weight * x, or what a custom `forward` makes of it."""

    def __init__(self, init="ones", forward=None):
        self.init, self.own = init, forward

    def declare(self, d):
        d.param("weight", d.input, self.init)
        d.output(d.input)
        d.saved("product", d.input)

    def forward(self, ops, x, y, p, s):
        if self.own is not None:
            self.own(ops, x, y, p, s)
        ops.map(y, lambda x, w: x * w, x, p.weight)

    def pullback(self, ops, x, y, dy, dx, p, g, s):
        raise NotImplementedError


def assign(ops, x, y, p, s):
    p.weight = x


def read_more(ops, x, y, p, s):
    s.y = ops


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda ops, x, y, p, s: p.wieght, ["`p.wieght`", "Own.declare", "parameters", "weight", "did you mean `weight`?"]),
        (lambda ops, x, y, p, s: s.produkt, ["`s.produkt`", "scratch arrays", "product"]),
        (assign, ["`p.weight = ...`", "ops.copy(p.weight, ...)"]),
        (read_more, ["`s.y = ...`"]),
    ],
)
def test_names_that_are_not_declared(forward, words):
    net = Chain(Own(forward=forward), input_shape=(3,))
    text = refusal(lambda: net(X, net.init()), AttributeError)
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    "forward",
    [
        lambda ops, x, y, p, s: x + y,
        lambda ops, x, y, p, s: 1.0 - x,
        lambda ops, x, y, p, s: x @ p.weight,
        lambda ops, x, y, p, s: -x,
        lambda ops, x, y, p, s: x > 0,
        lambda ops, x, y, p, s: x**2,
        lambda ops, x, y, p, s: np.ones(3) * x,
        lambda ops, x, y, p, s: np.tanh(x),
        lambda ops, x, y, p, s: np.add.reduce(x),
        lambda ops, x, y, p, s: x[0],
        lambda ops, x, y, p, s: float(x),
    ],
)
def test_arithmetic_on_views(forward):
    net = Chain(Own(forward=forward), input_shape=(3,))
    text = refusal(lambda: net(X, net.init()), TypeError)
    assert "`x`" in text
    assert "ops.map(" in text


class Failing(Layer):
    """y = x, but for what goes wrong on the way."""

    def __init__(self, where):
        self.where = where

    def declare(self, d):
        self.fail("declare")
        d.output(d.input)

    def forward(self, ops, x, y, p, s):
        self.fail("forward")
        ops.copy(y, x)

    def pullback(self, ops, x, y, dy, dx, p, g, s):
        self.fail("pullback")
        if self.where != "filling":
            ops.copy(dx, dy)

    def fail(self, function):
        if function == self.where:
            raise KeyError("no")


@pytest.mark.parametrize("where", ["declare", "forward", "pullback", "filling"])
def test_a_layer_in_which_something_fails_is_named(where):
    """By its place in the network, once."""

    def gradient():
        net = Chain(Dense(3, 3), chains.Residual(Dense(3, 3), Failing(where)), Dense(3, 2))
        net.value_and_grad(net.init(), X, T, SquaredLoss())

    with pytest.raises((KeyError, ValueError)) as caught:
        gradient()
    function = "pullback" if where == "filling" else where
    assert caught.value.__notes__ == [f"in Failing.{function}, of layer 1.inner.1, Failing()"]


def test_layers_that_do_not_fit_are_named_in_the_message():
    with pytest.raises(ValueError, match=r"layer 1, Dense\(3, 2\), does not take") as caught:
        Chain(Dense(3, 2), Dense(3, 2))
    assert not hasattr(caught.value, "__notes__")


def test_views_can_still_be_compared():
    view = chains.program.Recorder("a", np.float32).scratch("s", (3,))
    assert view == view.named("other")
    assert view != view.slice(1, 0, 2)


# Data


def test_settings_of_batches_and_augmentation():
    assert "`flip` (='yes')" in refusal(lambda: Augment(flip="yes"))
    assert "`shuffle` (='no')" in refusal(lambda: Batches(X, batch_size=2, shuffle="no"))
    assert "`drop_last` (=1)" in refusal(lambda: Batches(X, batch_size=2, drop_last=1))


def test_an_array_is_no_source_of_batches():
    text = refusal(lambda: prefetch(X))
    assert "(6, 3)" in text
    assert "Batches(x, t" in text


# Names of other frameworks


class Watcher:
    def __call__(self, state):
        return True


OTHER_NAMES = {
    "swish": (lambda: Dense(3, 2, "swish"), "did you mean `silu`?"),
    "linear": (lambda: Dense(3, 2, "linear"), "did you mean `identity`?"),
    "lr": (lambda: Adam(lr=0.1), "did you mean `learning_rate`?"),
    "lr of SGD": (lambda: chains.SGD(lr=0.1), "did you mean `learning_rate`?"),
    "kernel_size": (lambda: Conv(1, 2, kernel_size=3), "did you mean `kernel`?"),
    "use_bias": (lambda: Dense(3, 2, use_bias=False), "did you mean `bias`?"),
    "kaiming_normal": (lambda: Dense(3, 2, weight_init="kaiming_normal"), "did you mean `he_normal`?"),
    "val_loss": (
        lambda: EarlyStopping(monitor="val_loss").begin(["loss", "validation loss"]),
        "did you mean `validation loss`?",
    ),
    "gpu": (lambda: Chain(Dense(3, 2), backend="gpu"), "did you mean `cupy`?"),
    "bgfs": (lambda: chains.minimize(lambda p: (0.0, p), np.zeros(2), "bgfs"), "did you mean `BFGS`?"),
    "history.val_loss": (lambda: chains.History().val_loss, "did you mean `validation_loss`?"),
    "callback": (lambda: run_with(Watcher()), "returned True: return a string to stop, or None"),
    "layer": (lambda: Dense(3, 2)(X), "layers are not callable; use Chain(Dense(3, 2))"),
    "layers": (lambda: Chain(chains.tanh), "is an activation function, not a layer: write chains.Activation(tanh)"),
    "index": (lambda: Chain(Dense(3, 2))["0"], "is not a layer index: this network has 1 layer, numbered from 0"),
    "lengths": (lambda: chains.Reshape((2, 3)), "pass lengths as separate arguments, Reshape(2, 3)"),
    "float": (
        lambda: chains.activation("a", lambda x: float(x), derivative=lambda x: 1.0),
        "cannot convert a traced expression",
    ),
    "type": (
        lambda: Chain(Dense(3, 2)).views(np.ones(8, int)),
        "must be float32 or float64, got int64; try p.astype(np.float32)",
    ),
    "no batches": (lambda: train(Chain(Dense(3, 2)), np.zeros(8), [], None, SquaredLoss(), Adam()), "`x` yielded no batches"),
}


def run_with(callback):
    net = Chain(Dense(3, 2))
    train(net, net.init(), X, T, SquaredLoss(), Adam(), callbacks=[callback])


@pytest.mark.parametrize(("call", "words"), OTHER_NAMES.values(), ids=OTHER_NAMES)
def test_what_was_probably_meant(call, words):
    assert words in refusal(call, (TypeError, ValueError, AttributeError))


def test_synonyms_are_of_names_that_there_are():
    layers = [getattr(chains.layers, name) for name in chains.layers.__all__] + [Adam, chains.SGD, chains.RMSProp]
    settings = {name for made in (*layers, chains.train) for name in inspect.signature(made).parameters}
    known = {*settings, *ACTIVATIONS, *INITIALIZERS, "validation loss", "accuracy", "cupy"}
    assert set(SYNONYMS.values()) <= known
    assert not set(SYNONYMS) & (known - {"alpha", "p", "units"})


def test_histories_have_no_other_attributes():
    history = chains.History(loss=[1.0])
    assert not hasattr(history, "val_loss")
    assert not hasattr(history, "__array__")
    assert copy.deepcopy(history).loss == pickle.loads(pickle.dumps(history)).loss == [1.0]


@pytest.mark.parametrize(
    "penalty",
    [chains.L2Penalty(0.1), chains.L1Penalty(0.1, "*.weight"), chains.L2Penalty(0.1) + chains.L1Penalty(0.1)],
    ids=str,
)
def test_a_penalty_on_a_network_without_parameters_is_zero(penalty):
    net, p = Chain(chains.Softmax(), input_shape=(3,)), np.zeros(0)
    t = np.zeros((6, 3))
    value, g = net.value_and_grad(p, X, t, SquaredLoss(), penalty=penalty)
    assert (value, g.shape) == (net.loss(p, X, t, SquaredLoss()), (0,))
    assert net.objective(X, t, SquaredLoss(), penalty)(p)[0] == pytest.approx(value)


def test_arguments_can_be_passed_by_name():
    net = Chain(Dense(3, 2))
    p, loss = net.init(), SquaredLoss()
    assert net(x=X, p=p).tobytes() == net(X, p).tobytes()
    assert net.value_and_grad(loss=loss, t=T, x=X, p=p)[0] == net.loss(t=T, x=X, p=p, loss=loss)
    assert net.vjp(dy=T, x=X, p=p)[0].shape == p.shape
    objective = net.objective(loss=loss, t=T, x=X)
    assert objective(p=p)[0] == objective.value(p=p)
    Updater(p=p, optimizer=Adam())(g=np.ones(8))
    train(optimizer=Adam(), loss=loss, t=T, x=X, p=p, net=net)
    for name in [*chains.__all__, "train", "accuracy", "minimize", "loss", "activation", "Updater", "Series", "Parallel"]:
        thing = getattr(chains, name)
        if inspect.isroutine(thing) or inspect.isclass(thing):
            calls = [thing, *(value for key, value in vars(thing).items() if inspect.isfunction(value) and key[0] != "_")]
            for call in calls:
                kinds = {parameter.kind for parameter in inspect.signature(call).parameters.values()}
                assert inspect.Parameter.POSITIONAL_ONLY not in kinds, (name, call)
