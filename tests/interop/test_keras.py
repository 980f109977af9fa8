"""Networks from Keras."""

from __future__ import annotations

import numpy as np
import pytest

from chains.interop import from_keras

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


def compared(model, x):
    shaken(model)
    net, p, state = from_keras(model)
    expected = np.asarray(model(x, training=False))
    own = net(np.moveaxis(x, -1, 1), p, state=state)
    if expected.ndim > 2:
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
    net = compared(model, np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32))
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
    compared(model, np.random.default_rng(0).normal(size=(3, 8, 6, 2)).astype(np.float32))


def test_signals_and_global_means(keras, layers):
    x = np.random.default_rng(0).normal(size=(3, 9, 2)).astype(np.float32)
    compared(keras.Sequential([keras.Input((9, 2)), layers.Conv1D(4, 3, dilation_rate=2), layers.AveragePooling1D(2)]), x)
    compared(keras.Sequential([keras.Input((9, 2)), layers.Conv1D(4, 3), layers.GlobalAveragePooling1D(), layers.Dense(2)]), x)


def test_what_there_is_not_is_refused(keras, layers):
    for layer, reason in (
        (layers.SeparableConv2D(2, 2), "no layer like keras.layers.SeparableConv2D"),
        (layers.Conv2D(2, 3, strides=2, padding="same"), "`padding`"),
        (layers.MaxPooling2D(2, padding="same"), "`padding`"),
        (layers.Dense(3), "put a Flatten before it"),
        (layers.Conv2D(2, 3, activation="hard_sigmoid"), "`activation`"),
    ):
        with pytest.raises((TypeError, ValueError), match=reason):
            from_keras(keras.Sequential([keras.Input((6, 6, 2)), layer]))


def test_other_things_are_refused():
    with pytest.raises(TypeError, match="must be a Sequential model of Keras"):
        from_keras(3)
