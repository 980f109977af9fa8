"""Networks from Keras."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import chains
from chains.interop import from_keras
from chains.interop.parts import Part

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Keras itself


@pytest.fixture(scope="module")
def keras():
    return pytest.importorskip("keras")


@pytest.fixture(scope="module")
def layers(keras):
    keras.utils.set_random_seed(0)
    return keras.layers


def shaken(model):
    """Other numbers than those that biases and statistics begin with."""
    rng = np.random.default_rng(0)
    for layer in model.layers:
        layer.set_weights([abs(w + rng.normal(0.0, 0.2, w.shape)) for w in layer.get_weights()])


def compared(keras, model, x, sequences=False):
    shaken(model)
    net, p, state = from_keras(model)
    expected = keras.ops.convert_to_numpy(model(x, training=False))
    own = net(x if sequences else np.moveaxis(x, -1, 1), p, state=state)
    if expected.ndim > 2 and not sequences:
        own = np.moveaxis(own, 1, -1)
    np.testing.assert_allclose(own, expected, rtol=2e-5, atol=2e-6)
    return net


def test_dense_networks(keras, layers):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8, "gelu"),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(6, use_bias=False),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Dense(3, "softmax"),
        ]
    )
    net = compared(keras, model, np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32))
    assert "BatchNorm(8, momentum=0.01, eps=0.001)" in repr(net)


def test_images_become_channels_first(keras, layers):
    model = keras.Sequential(
        [
            keras.Input((8, 6, 2)),
            layers.Conv2D(4, (3, 2), activation="relu", padding="same"),
            layers.BatchNormalization(scale=False),
            layers.MaxPooling2D(2),
            layers.Conv2D(6, 2, strides=(2, 1), groups=2, use_bias=False),
            layers.Activation("tanh"),
            layers.Flatten(),
            layers.BatchNormalization(),
            layers.Dense(5, "silu"),
            layers.Dense(3),
        ]
    )
    compared(keras, model, np.random.default_rng(0).normal(size=(3, 8, 6, 2)).astype(np.float32))


def test_signals_and_global_means(keras, layers):
    x = np.random.default_rng(0).normal(size=(3, 9, 2)).astype(np.float32)
    compared(
        keras, keras.Sequential([keras.Input((9, 2)), layers.Conv1D(4, 3, dilation_rate=2), layers.AveragePooling1D(2)]), x
    )
    compared(
        keras, keras.Sequential([keras.Input((9, 2)), layers.Conv1D(4, 3), layers.GlobalAveragePooling1D(), layers.Dense(2)]), x
    )

    strided = [layers.Conv1D(4, 4, strides=3, padding="same"), layers.Conv1D(3, 2, strides=2, padding="same")]
    compared(keras, keras.Sequential([keras.Input((9, 2)), *strided]), x)


def test_images_with_strides_that_are_padded(keras, layers):
    strided = layers.Conv2D(3, (3, 2), strides=(2, 3), padding="same")
    compared(keras, keras.Sequential([keras.Input((8, 7, 2)), strided]), np.random.default_rng(0).normal(size=(2, 8, 7, 2)))


def recurrent_models(layers):
    yield [layers.SimpleRNN(3, "relu", return_sequences=True), layers.Dense(2, "softmax")]
    yield [layers.LSTM(4, return_sequences=True), layers.Dropout(0.3), layers.LSTM(3, use_bias=False), layers.Dense(2)]
    yield [layers.GRU(4, return_sequences=True), layers.GRU(3, reset_after=False)]
    yield [layers.GRU(3, use_bias=False)]
    yield [layers.Bidirectional(layers.GRU(3, return_sequences=True)), layers.Bidirectional(layers.LSTM(2)), layers.Dense(2)]
    yield [layers.SimpleRNN(3, return_sequences=True), layers.Flatten(), layers.Dense(2)]


def test_recurrent_layers(keras, layers):
    x = np.random.default_rng(0).normal(size=(3, 6, 2)).astype(np.float32)
    for model in recurrent_models(layers):
        compared(keras, keras.Sequential([keras.Input((6, 2)), *model]), x, sequences=True)


def test_embeddings(keras, layers):
    ids = np.random.default_rng(0).integers(0, 7, (4, 5)).astype(np.int32)
    for rest in ([layers.GRU(2)], [layers.Flatten(), layers.Dense(3)]):
        compared(
            keras, keras.Sequential([keras.Input((5,), dtype="int32"), layers.Embedding(7, 3), *rest]), ids, sequences=True
        )


def test_recurrent_layers_that_cannot_be_read(keras, layers):
    for model, reason in (
        ([layers.GRU(2, activation="relu")], "'tanh' and 'sigmoid', got 'relu'"),
        ([layers.LSTM(2, go_backwards=True)], "`go_backwards` of LSTM"),
        ([layers.LSTM(2, recurrent_dropout=0.5)], "`recurrent_dropout` 0"),
        ([layers.Bidirectional(layers.GRU(2), merge_mode="sum")], "`merge_mode`"),
        ([layers.Conv1D(3, 2), layers.GRU(2)], "Conv1D cannot be read in a model with recurrent layers"),
    ):
        with pytest.raises(ValueError, match=reason):
            from_keras(keras.Sequential([keras.Input((6, 2)), *model]))
    with pytest.raises(ValueError, match="`mask_zero`"):
        from_keras(keras.Sequential([keras.Input((5,), dtype="int32"), layers.Embedding(7, 3, mask_zero=True), layers.GRU(2)]))


def test_what_there_is_not_is_refused(keras, layers):
    for layer, reason in (
        (layers.SeparableConv2D(2, 2), "keras.layers.SeparableConv2D cannot be read; the layers that can are Activation, "),
        (layers.MaxPooling2D(2, padding="same"), "`padding`"),
        (layers.Dense(3), "put a Flatten before it"),
        (layers.Conv2D(2, 3, activation="sparse_plus"), "`activation`"),
    ):
        with pytest.raises((TypeError, ValueError), match=reason):
            from_keras(keras.Sequential([keras.Input((6, 6, 2)), layer]))


def test_relus_with_slopes_and_ends(keras, layers):
    x = np.random.default_rng(0).normal(0.0, 4.0, (6, 5)).astype(np.float32)
    for settings in ({"max_value": 6.0}, {"negative_slope": 0.1}, {"max_value": 2.0, "negative_slope": 0.2, "threshold": 0.5}):
        model = keras.Sequential([keras.Input((5,)), layers.Dense(4), layers.ReLU(**settings), layers.Dense(3)])
        compared(keras, model, x)


@pytest.mark.parametrize("name", ["leaky_relu", "relu6", "exponential", "hard_sigmoid", "hard_silu"])
def test_activations_by_their_formulas(keras, layers, name):
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    compared(keras, keras.Sequential([keras.Input((5,)), layers.Dense(8, name), layers.Dense(3)]), x)


def test_softmax_as_a_layer(keras, layers):
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    compared(keras, keras.Sequential([keras.Input((5,)), layers.Dense(4), layers.Softmax()]), x)
    with pytest.raises(ValueError, match="along the channels"):
        from_keras(keras.Sequential([keras.Input((4, 4, 2)), layers.Softmax()]))


def test_an_output_that_is_flattened_has_the_order_of_keras(keras, layers):
    x = np.random.default_rng(0).normal(size=(2, 5, 4, 2)).astype(np.float32)
    compared(keras, keras.Sequential([keras.Input((5, 4, 2)), layers.Conv2D(3, 2), layers.Flatten()]), x)


def test_a_wrong_reader_is_found_out(keras, layers, monkeypatch):
    from chains.interop import from_keras as module

    reading = sys.modules[module.__module__]
    monkeypatch.setitem(reading.LAYERS, "ReLU", lambda reader, m: [Part(chains.layers.Activation("relu"))])
    model = keras.Sequential(
        [keras.Input((5,)), layers.Dense(8), layers.ReLU(negative_slope=0.2, name="bent"), layers.Dense(3)]
    )
    shaken(model)
    with pytest.raises(ValueError, match=r"what the model does: by .* differs is 0, Dense\(5, 8, relu\), read from 'bent'"):
        from_keras(model)
    net, _, _ = from_keras(model, check=False)
    assert len(net.layers) == 2


def test_other_things_are_refused():
    with pytest.raises(TypeError, match="must be a Sequential model of Keras"):
        from_keras(3)


def test_layers_that_cannot_be_read_are_named():
    reader = sys.modules[from_keras.__module__]._Reader((3,), False)
    with pytest.raises(TypeError, match=r"keras\.layers\.object cannot be read; the layers that can are Activation, "):
        reader.add(object())
