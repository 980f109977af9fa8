"""Networks as JSON: what is read back is the network that was written."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import chains
from chains import GRU, LSTM, RNN, Activation, Chain, Dense, Recurrent, activation, tanh
from chains.expr import maximum, where
from chains.files.architecture import LAYERS, _built, built, described
from chains.initializers import Constant, Normal, Uniform, VarianceScaling
from chains.layers import GRUCell, LSTMCell, RNNCell
from chains.network.network import network_of
from chains.network.structure import value_of
from tests import harness
from tests.own import Decay, Double

OTHERS = (  # which have no layer of the public ones
    "Residual-shortcut-reads-dy", "Recurrent", "Recurrent-layers", "Recurrent-checkpoints",
    "Recurrent-both-ways", "Shooting", "Within",
)  # fmt: skip
CELLS = (RNNCell, LSTMCell, GRUCell)
BUILT_IN = [case for case in harness.CASES if not case.name.startswith("own-") and case.name not in OTHERS]


def again(net: Chain) -> Chain:
    """The network after a way through a text."""
    return built(json.loads(json.dumps(described(net), allow_nan=False)))


def starting(net: Chain) -> list[object]:
    return [entry.init for entry in (*net.layout, *net.state_layout)]


@pytest.mark.parametrize("case", BUILT_IN, ids=str)
def test_built_in_layers_come_back(case):
    net = case.net("auto")
    other = again(net)
    assert network_of(net).structure() == network_of(other).structure()  # equal to every setting, and to its type
    assert list(net.layout) == list(other.layout)
    assert list(net.state_layout) == list(other.state_layout)
    assert starting(net) == starting(other)
    assert net.frozen == other.frozen
    assert repr(net) == repr(other)


def test_every_layer_is_among_them():
    others = {"Chain", *(kind.__name__ for kind in CELLS), "Recurrent"}
    assert {type(layer).__name__ for case in BUILT_IN for layer in case.layers} | others >= set(LAYERS)


@pytest.mark.parametrize("kind", [*CELLS, RNN, LSTM, GRU])
def test_recurrences_come_back_with_all_their_settings(kind):
    settings = {"weight_init": Normal(0.5), "recurrent_init": Uniform(-1, 1), "bias_init": 0.25}
    settings |= {RNN: {"activation": "relu"}, GRU: {"reset_after": False}}.get(kind, {})
    how = {"return_sequences": True, "bidirectional": True, "initial_state": "parameter"}
    layer = Recurrent(kind(3, 2, **settings), **how) if kind in CELLS else kind(3, 2, **settings, **how)
    net = Chain(layer, input_shape=(4, 3), backend="numpy")
    other = again(net)
    assert network_of(net).structure() == network_of(other).structure()
    assert starting(net) == starting(other)
    np.testing.assert_array_equal(other.init(seed=1), net.init(seed=1))


def test_a_cell_that_a_file_cannot_hold_is_named():
    with pytest.raises(ValueError, match=r"custom layer tests\.own\.Decay, which a file cannot hold"):
        again(Chain(Recurrent(Decay()), input_shape=(4, 3)))


@pytest.mark.parametrize(
    "init",
    [
        Normal(2.0, mean=0.1),
        Uniform(-0.5, 0.25),
        Constant(3),
        VarianceScaling(1.5, "out", "uniform"),
        "ones",
        0.25,
        [1.0, -2.0],
    ],
)
def test_initializers_come_back(init):
    net = Chain(Dense(3, 2, weight_init=init, bias_init=init))
    np.testing.assert_array_equal(again(net).init(seed=1), net.init(seed=1))


def test_an_initializer_of_an_older_file_keeps_its_meaning():
    assert _built({"initializer": "Normal", "mean": 0.1, "std": 2.0}) == Normal(2.0, mean=0.1)
    assert _built({"initializer": "Uniform", "low": -1.0, "high": 1.0}) == Uniform(-1.0, 1.0)


def test_a_custom_initializer_is_said_to_be_missing():
    net = again(Chain(Dense(3, 2, weight_init=lambda rng, shape: rng.normal(size=shape))))
    assert net(np.ones((1, 3)), np.ones(8)).tolist() == [[4.0, 4.0]]
    with pytest.raises(TypeError, match="a file cannot hold the custom initializer <function"):
        net.init()


@pytest.mark.parametrize(
    "f",
    [
        chains.elu(alpha=0.3), chains.leaky_relu(slope=0.2), chains.elu, chains.gelu,
        activation("bent", lambda x: where(x > 1.0, 2.0 * x, maximum(x, -1.5) ** 3)),
        activation("soft", lambda x: x / (1 + abs(x)), derivative=lambda y, x: (1 - abs(y)) ** 2 + 0 * x),
        activation("cut", lambda x: where(x > np.inf, 0.0, x)),
        chains.activations.Activation("twice", lambda x: 2 * x, lambda y: 2.0),
    ],
    ids=lambda f: f.name,
)  # fmt: skip
def test_activations_come_back(f):
    net = Chain(Dense(3, 4, f), Activation(f), backend="numpy")
    other = again(net)
    p, x = net.init(seed=2, dtype=np.float64), np.linspace(-3.0, 3.0, 12).reshape(4, 3)
    dy = np.cos(net(x, p))
    for one, two in zip(net.vjp(p, x, dy), other.vjp(p, x, dy), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-12)
    assert (str(other[1]), other[1].f.formula, other[1].f.slope_formula) == (str(net[1]), f.formula, f.slope_formula)
    if f._recipe is not None:
        assert network_of(net).structure() == network_of(other).structure()


def test_parts_and_frozen_networks_come_back():
    whole = Chain(Dense(2, 3), Dense(3, 4, tanh), Dense(4, 1)).with_frozen("1.bias", "2.*")
    for net in (whole, whole[1:], Chain(whole[1:], Dense(1, 1))):
        assert network_of(again(net)).structure() == network_of(net).structure()
        assert again(net).frozen == net.frozen


def test_a_chain_within_that_takes_any_front_comes_back():
    net = Chain(Chain(Dense(3, 2)), input_shape=(5, 3))
    assert again(net).output_shape == (5, 2)


def test_custom_layers_are_refused_with_their_name():
    description = json.loads(json.dumps(described(Chain(Dense(2, 2), Double()))))
    with pytest.raises(ValueError, match=r"custom layer tests\.own\.Double, which a file cannot hold: pass the network"):
        built(description)


class Loud(Dense):
    """As Dense, but somebody else's class."""


def test_a_class_derived_from_a_built_in_one_is_custom():
    with pytest.raises(ValueError, match=r"custom layer tests\.files\.test_architecture\.Loud"):
        built(described(Chain(Loud(2, 2))))


def _dense(**settings):
    return {"layer": "Chain", "layers": [{"layer": "Dense", "inputs": 2, "outputs": 1, **settings}], "input_shape": None}


FORMULA = {"inputs": ["x"], "instructions": [["mul", [0, 0], 0.0]], "outputs": [1]}


def _activated(**parts):
    return _dense(activation={"activation": {"name": "f", "function": FORMULA, "derivative": FORMULA} | parts})


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        (None, "it is None"),
        ([], r"it is \(\)"),
        ({"layer": "Dense", "inputs": 2, "outputs": 1}, r"it is Dense\(2, 1\)"),
        ({"layer": "Chain", "layers": [{"layer": "exec"}], "input_shape": None}, "there is no layer 'exec'"),
        ({"layer": "Chain", "layers": [{"layer": "Layer"}], "input_shape": None}, "there is no layer 'Layer'"),
        ({"layer": "Chain", "layers": [{"code": "1"}], "input_shape": None}, "there is nothing like"),
        ({"layer": "Chain", "layers": [], "input_shape": None}, "`input_shape` is needed"),
        ({"layer": "Chain", "layers": []}, "'input_shape'"),
        (_dense(colour=1), "Dense has no setting colour"),
        (_dense(bias=3), "`bias` .=3. must be True or False"),
        (_dense(activation={"activation": "no"}), "there is no activation 'no'"),
        (
            _dense(activation={"activation": {"make": "eval", "arguments": ["1"]}}),
            "there is no function for act",
        ),
        (_dense(weight_init={"initializer": "system"}), "there is no initializer 'system'"),
        (_dense(weight_init={"array": {"dtype": "O", "shape": [1], "bytes": ""}}), "expected an array of numbers"),
        ({**_dense(), "frozen": ["0.weights"]}, "no parameter is named '0.weights'"),
        (_activated(function={**FORMULA, "instructions": [["mul", [0], 0.0]]}), "`mul` has 1 operands"),
        (_activated(function={**FORMULA, "instructions": [["mul", [0, 1], 0.0]]}), "has an operand that comes after it"),
        (_activated(function={**FORMULA, "instructions": [["system", [0], 0.0]]}), "'system'"),
        (_activated(function={**FORMULA, "outputs": [2]}), "a formula has one output"),
        (_activated(function={**FORMULA, "outputs": [0, 1]}), "a formula has one output"),
        (_activated(derivative={**FORMULA, "inputs": ["z"]}), "must be among x"),
    ],
)
def test_what_makes_no_sense_is_refused(description, reason):
    with pytest.raises(ValueError, match=f"its architecture makes no sense here: .*{reason}"):
        built(description)


def test_nests_too_deep_are_refused():
    inner = {"layer": "Flatten"}
    for _ in range(3000):
        inner = {"layer": "Series", "layers": [inner]}
    with pytest.raises(ValueError, match="its architecture makes no sense here"):
        built({"layer": "Chain", "layers": [inner], "input_shape": [2]})


def test_settings_of_earlier_versions_get_their_defaults():
    net = built(_dense())
    assert value_of(net.layers) == value_of(Chain(Dense(2, 1)).layers)


def test_activations_of_files_and_pickles_of_earlier_versions_load():
    description = described(Chain(Dense(1, 2, chains.elu(alpha=0.3)), input_shape=(1,)))
    text = json.dumps(description).replace('"Elu"', '"make_elu"')
    assert str(built(json.loads(text))) == "Chain(Dense(1, 2, elu(alpha=0.3)))"
    for name, f in (("make_elu", chains.elu(alpha=0.5)), ("make_leaky_relu", chains.leaky_relu(slope=0.5))):
        pickled = b"cchains.activations\n" + name.encode() + b"\n(F0.5\ntR."
        assert repr(pickle.loads(pickled)) == repr(f)


def test_an_activation_with_a_number_makes_others_and_gives_values():
    assert chains.elu(-1.0) == pytest.approx(np.expm1(-1.0))
    assert chains.elu(-1.0, alpha=0.5) == pytest.approx(0.5 * np.expm1(-1.0))
    assert str(chains.elu(alpha=0.5)) == "elu(alpha=0.5)"
    assert chains.leaky_relu(slope=0.5)(-1.0) == -0.5
    with pytest.raises(TypeError, match=r"`activation` \(=array\(0.5\)\) .* another number by elu\(alpha=0.5\)"):
        Dense(1, 2, chains.elu(0.5))


@pytest.mark.parametrize(
    ("old", "name"),
    [("layers.select", "Select"), ("layers.append", "Append"), ("layers.resample", "Pad"), ("layers.batch_norm", "BatchNorm"),
     ("layers.causal_conv", "CausalConv"), ("layers.cells", "GRUCell"), ("layers.ode", "ODE"), ("program.window", "Window"),
     ("expr.replay", "Replay")],
)  # fmt: skip
def test_classes_of_earlier_pickles_are_found_by_their_former_modules(old, name):
    assert pickle.loads(f"cchains.{old}\n{name}\n.".encode()).__name__ == name
