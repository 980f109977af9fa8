"""Layers that do not fit, and custom layers that record or declare what they may not."""

from __future__ import annotations

import re

import numpy as np
import pytest

import chains
from chains import Adam, Chain, CrossEntropyLoss, Dense, Dropout, SquaredLoss, tanh, train
from chains.program import Recorder
from chains.program.operations import Window
from tests.bad_input.support import NET, REFUSED, RNG, WITH_T, Calls, assert_refused


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


def test_layers_that_take_ids_come_first():
    ids = chains.Embedding(5, 3)
    assert_refused(lambda: Chain(Dense(3, 4), ids), "layer 1", "Embedding(5, 3)", "ids", "first")
    two = chains.Parallel(chains.Series(ids, chains.Flatten()), chains.Flatten())
    assert_refused(lambda: Chain(two, input_shape=(3,)), "Embedding(5, 3)", "Flatten()", "take ids")
    assert_refused(lambda: Chain(chains.Residual(ids), input_shape=(3, 3)), "Embedding(5, 3)", "(3, 3)")


def test_ids_where_a_layer_of_ones_own_passes_them_on():
    class Wrapped(chains.Layer):
        def declare(self, d):
            d.output(d.child("inner", chains.Embedding(5, 3), d.input))

        def forward(self, ops, x, y, p, s):
            s.children[0].forward(ops, x, y)

        def pullback(self, ops, x, y, dy, dx, p, g, s):
            s.children[0].pullback(ops, x, y, dy, dx)

    net = Chain(Wrapped(), input_shape=(2,))
    assert_refused(lambda: net(np.zeros((1, 2)), net.init()), "Embedding(5, 3)", "takes ids", "real numbers")


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
    "name": (lambda d: d.temporary(3, (3,)), "(=3) must be a string"),
    "twice": (lambda d: (d.saved("a", (3,)), d.temporary("a", (3,))), "names the scratch array 'a' twice"),
    "init": (
        lambda d: d.param("a", (3,), np.ones(4)),
        "`init` of the parameter `a` in Mine.declare must have shape (3,)",
        "got (4,)",
    ),
    "nan": (lambda d: d.param("a", (3,), np.nan), "`init` (=nan) of the parameter `a`"),
    "function": (lambda d: d.state("a", (3,), lambda: 1), "of the state `a` in Mine.declare must take two arguments"),
    "batch": (lambda d: d.batch_at_least("two"), "`samples` (='two')"),
    "child": (lambda d: d.child("a", Dense(3, 2), 3), "`input` (=3) of the part `a` in Mine.declare", "(3,)"),
    "frozen": (lambda d: d.freeze("wieght"), "0.wieght", "0.weight"),
}


RECORDED = {
    "number": (lambda ops, x, y: ops.map(y, lambda a, b: a * b, x, 3), "map: `3` is not an array of this program"),
    "array": (lambda ops, x, y: ops.map(y, lambda a, b: a * b, x, np.ones(3)), "shape (3,)` is not an array", "ops.constant"),
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
    assert_refused(lambda: net(x, p), "got (4, 8, 6, 3); here the channels are the last axis", "np.moveaxis(x, -1, 1)")
    assert net(np.moveaxis(x, -1, 1), p).shape == (4, 2, 6, 4)
    dy = RNG.normal(size=(4, 6, 4, 2))
    assert_refused(lambda: net.vjp(p, np.moveaxis(x, -1, 1), dy), "`dy`", "last axis")


def test_patterns_that_match_nothing():
    for method in (NET.with_frozen, NET.with_trained):
        assert_refused(lambda method=method: method("0.*", "7.weight"), "'7.weight'", "0.weight")


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


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"padding": (1, 1)}, "`padding` (=(1, 1)) of a Window must be a pair of pairs, for rows and for columns: the entries"),
        ({"padding": ((1, 1), (-1, 0))}, "must be a pair of pairs"),
        ({"stride": 2}, "`stride` (=2) of a Window must be a pair of whole numbers from 1, for rows and for columns"),
        ({"dilation": (1, 0)}, "`dilation` (=(1, 0)) of a Window must be a pair"),
        ({"size": (3.5, 3)}, "`size` (=(3.5, 3)) of a Window must be a pair"),
    ],
    ids=str,
)
def test_windows_name_what_is_wrong(given, wanted):
    with pytest.raises(ValueError, match=re.escape(wanted)):
        Window(**{"size": (3, 3), **given})


def test_a_view_with_gaps_says_what_to_do():
    view = Recorder("gaps", np.float64).scratch("s", (2, 3)).swap(1, 2)
    with pytest.raises(ValueError, match=r"cannot be reshaped to \(6B,\): its elements are not together in memory; copy it"):
        _ = view.flat
