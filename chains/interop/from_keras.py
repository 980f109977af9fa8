"""Networks of Keras as networks of this package."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from chains import layers
from chains.activations import Activation, activation, elu, leaky_relu, relu
from chains.backends import Backend, Cupy
from chains.chain import Chain
from chains.expr import exp, maximum, minimum, where
from chains.interop.comparison import Source
from chains.interop.parts import Part, assembled
from chains.support.checks import check_flags
from chains.support.messages import shown

ACTIVATIONS: dict[str, Activation | str] = {
    "linear": "identity", "relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid", "silu": "silu", "swish": "silu", "mish": "mish",
    "selu": "selu", "softplus": "softplus", "softsign": "softsign", "gelu": "gelu", "elu": "elu",
    "leaky_relu": leaky_relu(slope=0.2),
    "relu6": activation("relu6", lambda x: minimum(maximum(x, 0.0), 6.0)),
    "exponential": activation("exponential", exp),
    "hard_sigmoid": activation("hard_sigmoid", lambda x: minimum(maximum(x / 6.0 + 0.5, 0.0), 1.0)),
    "hard_silu": activation("hard_silu", lambda x: x * minimum(maximum(x / 6.0 + 0.5, 0.0), 1.0)),
}  # fmt: skip


def from_keras(
    model: Any, *, backend: str | Cupy | Backend = "auto", check: bool = True
) -> tuple[Chain, np.ndarray, np.ndarray | None]:
    """A network with the structure and the weights of a Sequential model of Keras.

    Parameters
    ----------
    model : keras.Sequential
        A model that has been built, with channels last, Keras's default. `LAYERS` names the layers that it may have.
    backend : str or backends.Cupy
        That of the network; see `chains.Chain`.
    check : bool
        Whether to compare the network with the model on two small random batches. A model that cannot be run on them gives a
        warning.

    Returns
    -------
    net : Chain
        The network. Its images are channels first: pass ``np.moveaxis(x, -1, 1)``. Kernels (height, width, in, out) become
        (out, in, height, width), and weights after a Flatten are reordered to channels first. A model with recurrent layers or
        an Embedding takes sequences (batch, steps, features) or ids (batch, steps), as in Keras.
    p, state
        As of `from_torch`.

    Raises
    ------
    TypeError, ValueError
        For layers and settings without a counterpart here, by name. ValueError if the network does not compute what the model
        does; it names the first layer that differs.
    """
    if not hasattr(model, "layers") or not hasattr(model, "input_shape"):
        raise TypeError(f"`model` (={shown(model)}) must be a Sequential model of Keras")
    if type(model).__name__ != "Sequential":
        raise TypeError(f"`model` (a {type(model).__name__}) must be a Sequential model")
    check_flags(check=check)
    shape = tuple(model.input_shape[1:])
    reader = _Reader(shape, any(type(layer).__name__ in OF_SEQUENCES for layer in model.layers))
    for layer in model.layers:
        reader.add(layer)
    reader.end()
    kinds = {weight.dtype for layer in model.layers for weight in layer.get_weights()}
    dtype = np.float64 if np.dtype(np.float64) in kinds else np.float32
    source = Source("the model", partial(_results, model, reader.sequences), 1e-5) if check else None
    return assembled(reader.parts, shape if reader.sequences else (shape[-1], *shape[:-1]), backend, dtype, source)


def _results(model: Any, sequences: bool, x: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The output of a model, and those of its layers by name, with channels first."""

    def moved(y: Any, source: int, target: int) -> np.ndarray:
        array = y.detach().cpu().numpy() if hasattr(y, "detach") else np.asarray(y)
        return array if sequences or array.ndim < 3 else np.moveaxis(array, source, target)

    data = np.ascontiguousarray(moved(x, 1, -1))
    found, y = {}, data
    for layer in model.layers:
        y = layer(y)
        found[layer.name] = moved(y, -1, 1)
    return moved(model(data, training=False), -1, 1), found


class _Reader:
    """Goes through the layers; `shape` is that of a sample in Keras, with the channels last, which `sequences` keep."""

    def __init__(self, shape: tuple[int, ...], sequences: bool) -> None:
        self.shape, self.sequences = shape, sequences
        self.parts: list[Part] = []
        self.flattened: tuple[int, ...] | None = None  # the shape of images whose elements are in Keras's order

    def add(self, layer: Any) -> None:
        name = type(layer).__name__
        if name not in LAYERS:
            raise TypeError(f"keras.layers.{name} cannot be read; the layers that can are {', '.join(sorted(LAYERS))}")
        if self.sequences and len(self.shape) > 1 and name in OF_CHANNELS:
            raise ValueError(
                f"{name} cannot be read in a model with recurrent layers or an Embedding, whose features come last"
            )
        if getattr(layer, "data_format", "channels_last") != "channels_last":
            raise ValueError(f"`data_format` (={layer.data_format!r}) of {name} must be 'channels_last'")
        made = LAYERS[name](self, layer)
        if made and self.flattened is None:  # else its result is in another order
            made[-1].name = layer.name
        self.parts += made
        if hasattr(layer, "compute_output_shape"):
            self.shape = tuple(layer.compute_output_shape((None, *self.shape)))[1:]

    def end(self) -> None:
        """Reorder an output that has channels first to Keras's order."""
        if self.flattened is not None:
            places = np.arange(math.prod(self.flattened)).reshape(self.flattened[-1], *self.flattened[:-1])
            self.parts.append(Part(layers.Select(np.moveaxis(places, 0, -1).reshape(-1).tolist())))

    def _dense(self, m: Any) -> list[Part]:
        weight, *bias = m.get_weights()
        if len(self.shape) != 1 and not self.sequences:
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
            padding=self._padding(m), bias=bool(bias),
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
        if len(self.shape) > 1 and not self.sequences:
            self.flattened = self.shape
        return [Part(layers.Flatten())]

    def _activations(self, m: Any) -> list[Part]:
        name = getattr(m.activation, "__name__", str(m.activation))
        if name in ("softmax", "log_softmax"):
            self._check_softmax(m, f"`activation` (={name!r}) of {type(m).__name__}")
            return [Part(layers.Softmax() if name == "softmax" else layers.LogSoftmax())]
        f = self._function(m)
        return [] if f == "identity" else [Part(layers.Activation(f))]

    def _softmax(self, m: Any) -> list[Part]:
        if m.axis not in (-1, len(self.shape)):
            raise ValueError(f"`axis` (={m.axis!r}) of Softmax must be the last one")
        self._check_softmax(m, "Softmax")
        return [Part(layers.Softmax())]

    def _check_softmax(self, m: Any, what: str) -> None:
        if len(self.shape) > 1 and not self.sequences and len(m.compute_output_shape((None, *self.shape))) > 2:
            raise ValueError(f"{what} is along the channels, which come first here")

    def _function(self, m: Any) -> Activation | str:
        name = getattr(m.activation, "__name__", str(m.activation))
        if name not in ACTIVATIONS:
            raise ValueError(f"`activation` (={name!r}) of {type(m).__name__} is not among those here")
        return ACTIVATIONS[name]

    def _padding(self, m: Any) -> Any:
        if m.padding == "valid" or (m.padding == "same" and set(m.strides) == {1}):
            return m.padding
        if m.padding != "same":
            raise ValueError(f"`padding` (={m.padding!r}) of {type(m).__name__} must be 'same' or 'valid' here")
        sizes = zip(self.shape, m.kernel_size, m.strides, m.dilation_rate, strict=False)
        totals = [max(((n - 1) // step) * step + (size - 1) * spread + 1 - n, 0) for n, size, step, spread in sizes]
        return tuple((total // 2, total - total // 2) for total in totals)

    def _embedding(self, m: Any) -> list[Part]:
        if m.mask_zero:
            raise ValueError("`mask_zero` of Embedding must be False: pass `lengths` to the network here")
        return [Part(layers.Embedding(m.input_dim, m.output_dim), m.get_weights())]

    def _recurrent(self, m: Any) -> list[Part]:
        both = type(m).__name__ == "Bidirectional"
        if both and m.merge_mode != "concat":
            raise ValueError(f"`merge_mode` (={m.merge_mode!r}) of Bidirectional must be 'concat'")
        cells = [m.forward_layer, m.backward_layer] if both else [m]
        first, name = cells[0], type(cells[0]).__name__
        if name not in RECURRENT:
            raise TypeError(f"keras.layers.{name} cannot be read within Bidirectional")
        functions = [first.activation.__name__, getattr(getattr(first, "recurrent_activation", None), "__name__", "sigmoid")]
        settings = {"bidirectional": both, "return_sequences": first.return_sequences}
        if name == "SimpleRNN":
            settings["activation"] = self._function(first)
        elif functions != ["tanh", "sigmoid"]:
            raise ValueError(
                f"the activations of {name} must be 'tanh' and 'sigmoid', got {functions[0]!r} and {functions[1]!r}"
            )
        if first.go_backwards or first.dropout or first.recurrent_dropout:
            raise ValueError(f"`go_backwards` of {name} must be False, `dropout` and `recurrent_dropout` 0: use a Dropout")
        settings |= {"reset_after": first.reset_after} if name == "GRU" else {}
        params = [array for cell in cells for array in _of_cell(cell)]
        return [Part(RECURRENT[name](params[0].shape[0], first.units, **settings), params)]


def _relu(m: Any) -> Activation:
    """The activation of a layer ReLU, which may have a slope on its left, and ends."""
    slope, edge, most = float(m.negative_slope or 0.0), float(m.threshold or 0.0), m.max_value
    if edge == 0.0 and most is None:
        return leaky_relu(slope=slope) if slope else relu

    def function(x: Any) -> Any:
        y = where(x >= edge, x, slope * (x - edge))
        return y if most is None else minimum(y, float(most))

    return activation("clipped_relu", function)


def _of_cell(m: Any) -> list[np.ndarray]:
    """The arrays of a recurrent layer, in the order of `layers`. A GRU's gates are (z, r, h) in Keras, (r, z, n) here."""
    weight, recurrent, *bias = m.get_weights()
    if not bias:
        zeros = np.zeros(recurrent.shape[1], recurrent.dtype)
        bias = [np.stack([zeros, zeros]) if getattr(m, "reset_after", False) else zeros]
    arrays = [weight, recurrent, *np.atleast_2d(bias[0])]
    if type(m).__name__ != "GRU":
        return arrays
    gates = (np.split(array, 3, axis=-1) for array in arrays)
    return [np.concatenate([r, z, n], axis=-1) for z, r, n in gates]


RECURRENT: dict[str, Callable[..., layers.Recurrent]] = {"SimpleRNN": layers.RNN, "LSTM": layers.LSTM, "GRU": layers.GRU}

LAYERS: dict[str, Callable[[_Reader, Any], list[Part]]] = {
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
    "ReLU": lambda reader, m: [Part(layers.Activation(_relu(m)))],
    "Softmax": _Reader._softmax,
    "LeakyReLU": lambda reader, m: [Part(layers.Activation(leaky_relu(slope=m.negative_slope)))],
    "ELU": lambda reader, m: [Part(layers.Activation(elu(alpha=m.alpha)))],
    "Embedding": _Reader._embedding,
    **dict.fromkeys((*RECURRENT, "Bidirectional"), _Reader._recurrent),
}
OF_SEQUENCES = {"Embedding", "Bidirectional", *RECURRENT}
OF_CHANNELS = {name for name in LAYERS if "1D" in name or "2D" in name} | {"BatchNormalization"}
