"""Networks of Keras as networks of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chains import layers
from chains.activations import elu, leaky_relu
from chains.backends import Cupy
from chains.chain import Chain
from chains.interop.parts import Part, assembled
from chains.support.messages import shown

ACTIVATIONS = {
    "linear": "identity", "relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid", "silu": "silu", "swish": "silu", "mish": "mish",
    "selu": "selu", "softplus": "softplus", "softsign": "softsign", "gelu": "gelu", "elu": "elu",
}  # fmt: skip


def from_keras(model: Any, *, backend: str | Cupy = "auto") -> tuple[Chain, np.ndarray, np.ndarray | None]:
    """A network with the structure and the weights of a Sequential model of Keras.

    Parameters
    ----------
    model : keras.Sequential
        A model that has been built, with channels last, Keras's default.
    backend : str or backends.Cupy
        That of the network; see `chains.Chain`.

    Returns
    -------
    net : Chain
        The network. Its images are channels first: pass ``np.moveaxis(x, -1, 1)``. Kernels (height, width, in, out) become
        (out, in, height, width), and weights after a Flatten are reordered to channels first.
    p, state
        As of `from_torch`.

    Raises
    ------
    TypeError, ValueError
        For layers and settings without a counterpart here, by name.
    """
    if not hasattr(model, "layers") or not hasattr(model, "input_shape"):
        raise TypeError(f"`model` (={shown(model)}) must be a Sequential model of Keras")
    if type(model).__name__ != "Sequential":
        raise TypeError(f"`model` (a {type(model).__name__}) must be a Sequential model")
    reader = _Reader(model.input_shape[1:])
    for layer in model.layers:
        reader.add(layer)
    kinds = {weight.dtype for layer in model.layers for weight in layer.get_weights()}
    dtype = np.float64 if np.dtype(np.float64) in kinds else np.float32
    return assembled(reader.parts, _channels_first(tuple(model.input_shape[1:])), backend, dtype)


def _channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[-1], *shape[:-1])


class _Reader:
    """Goes through the layers; `shape` is that of a sample in Keras, with the channels last."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = tuple(shape)
        self.parts: list[Part] = []
        self.flattened: tuple[int, ...] | None = None  # the shape of images whose elements are in Keras's order

    def add(self, layer: Any) -> None:
        name = type(layer).__name__
        if name not in MAKERS:
            raise TypeError(f"there is no layer like keras.layers.{name} here")
        if getattr(layer, "data_format", "channels_last") != "channels_last":
            raise ValueError(f"`data_format` (={layer.data_format!r}) of {name} must be 'channels_last'")
        self.parts += MAKERS[name](self, layer)
        if hasattr(layer, "compute_output_shape"):
            self.shape = tuple(layer.compute_output_shape((None, *self.shape)))[1:]

    def _dense(self, m: Any) -> list[Part]:
        weight, *bias = m.get_weights()
        if len(self.shape) != 1:
            raise ValueError(
                f"Dense on samples of shape {self.shape} cannot be had with channels first: put a Flatten before it"
            )
        if self.flattened is not None:  # rows (height, width, channels) become (channels, height, width)
            weight = np.moveaxis(weight.reshape(*self.flattened, -1), -2, 0).reshape(weight.shape)
            self.flattened = None
        return [Part(layers.Dense(*weight.shape, bias=bool(bias)), [weight, *bias]), *self._activations(m)]

    def _convolution(self, m: Any) -> list[Part]:
        kernel, *bias = m.get_weights()
        *size, inputs, outputs = kernel.shape
        layer = layers.Conv(
            inputs * m.groups, outputs, tuple(size), stride=tuple(m.strides), dilation=tuple(m.dilation_rate), groups=m.groups,
            padding=self._padding(m, m.strides), bias=bool(bias),
        )  # fmt: skip
        return [Part(layer, [np.moveaxis(kernel, (-1, -2), (0, 1)), *bias]), *self._activations(m)]

    def _pool(self, m: Any) -> list[Part]:
        kind = layers.MaxPool if type(m).__name__.startswith("Max") else layers.AvgPool
        size, stride = tuple(np.ravel(m.pool_size).tolist()), tuple(np.ravel(m.strides).tolist())
        if m.padding != "valid":
            raise ValueError(f"`padding` (={m.padding!r}) of {type(m).__name__} must be 'valid' here")
        return [Part(kind(size, stride=stride))]

    def _global_pool(self, m: Any) -> list[Part]:
        if m.keepdims:
            raise ValueError(f"`keepdims` (=True) of {type(m).__name__} must be False here")
        return [Part(layers.GlobalAvgPool())]

    def _batch_norm(self, m: Any) -> list[Part]:
        if m.axis not in (-1, len(self.shape)):
            raise ValueError(f"`axis` (={m.axis}) of BatchNormalization must be the last one")
        weights = list(m.get_weights())
        channels = self.shape[-1]
        scale = weights.pop(0) if m.scale else np.ones(channels)
        shift = weights.pop(0) if m.center else np.zeros(channels)
        layer = layers.BatchNorm(channels, momentum=1.0 - m.momentum, eps=m.epsilon)
        return [Part(layer, [*map(self._reordered, (scale, shift))], [*map(self._reordered, weights)])]

    def _reordered(self, vector: np.ndarray) -> np.ndarray:
        if self.flattened is None:
            return vector
        return np.moveaxis(vector.reshape(self.flattened), -1, 0).reshape(-1)

    def _flatten(self, m: Any) -> list[Part]:
        if len(self.shape) > 1:
            self.flattened = self.shape
        return [Part(layers.Flatten())]

    def _activations(self, m: Any) -> list[Part]:
        name = getattr(m.activation, "__name__", str(m.activation))
        if name in ("softmax", "log_softmax"):
            if len(self.shape) > 1 and len(m.compute_output_shape((None, *self.shape))) > 2:
                raise ValueError(f"`activation` (={name!r}) of {type(m).__name__} is along the channels, which come first here")
            return [Part(layers.Softmax() if name == "softmax" else layers.LogSoftmax())]
        if name not in ACTIVATIONS:
            raise ValueError(f"`activation` (={name!r}) of {type(m).__name__} is not among those here")
        return [] if name == "linear" else [Part(layers.Activation(ACTIVATIONS[name]))]

    def _padding(self, m: Any, strides: Any) -> Any:
        if m.padding == "same" and set(strides) != {1}:
            raise ValueError(f"`padding` (='same') of {type(m).__name__} needs strides of 1 here")
        if m.padding not in ("same", "valid"):
            raise ValueError(f"`padding` (={m.padding!r}) of {type(m).__name__} must be 'same' or 'valid' here")
        return m.padding


MAKERS: dict[str, Callable[[_Reader, Any], list[Part]]] = {
    "InputLayer": lambda reader, m: [],
    "Dense": _Reader._dense,
    **{f"Conv{ndim}D": _Reader._convolution for ndim in (1, 2)},
    **{f"{kind}Pooling{ndim}D": _Reader._pool for kind in ("Max", "Average") for ndim in (1, 2)},
    **{f"GlobalAveragePooling{ndim}D": _Reader._global_pool for ndim in (1, 2)},
    "BatchNormalization": _Reader._batch_norm,
    "Flatten": _Reader._flatten,
    "Dropout": lambda reader, m: [Part(layers.Dropout(m.rate))],
    **{f"SpatialDropout{ndim}D": lambda reader, m: [Part(layers.SpatialDropout(m.rate))] for ndim in (1, 2)},
    "Activation": _Reader._activations,
    "ReLU": lambda reader, m: [Part(layers.Activation("relu"))],
    "LeakyReLU": lambda reader, m: [Part(layers.Activation(leaky_relu(slope=m.negative_slope)))],
    "ELU": lambda reader, m: [Part(layers.Activation(elu(alpha=m.alpha)))],
}
