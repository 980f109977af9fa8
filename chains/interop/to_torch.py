"""Networks of this package as modules of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains import layers
from chains.activations import Activation, Elu, LeakyRelu, identity, relu, tanh
from chains.chain import Chain, check_net
from chains.interop.parts import arrays_by_name, needed
from chains.interop.torch_sequences import Arrays, own_modules
from chains.layers.base import Declaration

NAMES = {
    "relu": "ReLU", "tanh": "Tanh", "sigmoid": "Sigmoid", "silu": "SiLU", "mish": "Mish", "selu": "SELU",
    "softsign": "Softsign",
    "gelu": "GELU", "softplus": "Softplus",
}  # fmt: skip


def to_torch(net: Chain, p: Any, state: Any = None) -> Any:
    """A module of PyTorch with the structure and the weights of a network.

    Parameters
    ----------
    net : Chain
        The network, of layers that PyTorch has too. Recurrent layers and attention become modules with one of PyTorch within,
        `module`, since those take or give more than one tensor.
    p : array, shape (n_params,)
        Its parameters; they are copied.
    state : array, shape (n_state,), optional
        Its state, for networks that have one.

    Returns
    -------
    torch.nn.Sequential
        In its mode for training, as any new module; call ``eval()`` for that of `net`.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit, and for layers and activations that PyTorch does not have: `as_torch` takes all of them.
    ImportError
        Where PyTorch is missing.
    """
    torch = needed("torch")
    check_net(net)
    _, arrays = arrays_by_name(net, p, state)
    return _Writer(torch, arrays).sequence(net.network.declaration)


class _Writer(Arrays):
    """Makes modules of declared layers."""

    def sequence(self, d: Declaration) -> Any:
        return self.nn.Sequential(*(module for child in d.children for module in self.modules(child)))

    def modules(self, d: Declaration) -> list[Any]:
        layer, nn = d.layer, self.nn
        if not type(layer).forward.__module__.startswith("chains.layers."):
            raise TypeError(f"{layer!r} is a custom layer: as_torch(net) makes a module of the whole network")
        if isinstance(layer, layers.TransformerBlock):
            return [self.block(d, layer, *(self.activation(layer.activation) or [nn.Identity()]))]
        if isinstance(layer, layers.Series) and not isinstance(layer, layers.CausalConv):
            return [self.sequence(d)]
        if isinstance(layer, layers.Dense):
            linear = self.filled(nn.Linear(layer.inputs, layer.outputs, bias=layer.bias), d, transposed=True)
            return [linear, *self.activation(layer.activation)]
        if isinstance(layer, (layers.Conv, layers.ConvTranspose)):
            return self.convolution(layer, d)
        if isinstance(layer, layers.Activation):
            return self.activation(layer.f) or [nn.Identity()]
        if isinstance(layer, (layers.MaxPool, layers.AvgPool)):
            return self.pool(layer)
        if isinstance(layer, layers.GlobalAvgPool):
            return [getattr(nn, f"AdaptiveAvgPool{len(d.input) - 1}d")(1), nn.Flatten()]
        if isinstance(layer, layers.Reshape):
            flat = [nn.Flatten()] if len(d.input) != 1 else []
            return flat + ([nn.Unflatten(1, d.output_shape)] if len(d.output_shape) != 1 else []) or [nn.Identity()]
        if isinstance(layer, layers.Pad):
            pads = [
                side
                for before, after in reversed(layer.padding * (len(d.input) - len(layer.padding)))
                for side in (before, after)
            ]
            return [getattr(nn, f"ZeroPad{len(d.input) - 1}d")(tuple(pads))]
        return [self.plain(layer, d)]

    def plain(self, layer: Any, d: Declaration) -> Any:
        """Layers that are one module."""
        nn, ndim = self.nn, max(1, len(d.input) - 1)
        if isinstance(layer, layers.BatchNorm):
            module = getattr(nn, f"BatchNorm{ndim}d")(
                layer.channels, eps=layer.eps, momentum=layer.momentum, affine=layer.affine
            )
            return self.filled(module, d)
        if isinstance(layer, layers.RMSNorm):
            return self.filled(nn.RMSNorm(layer.parameter_shape(d.input), eps=layer.eps, elementwise_affine=layer.affine), d)
        if isinstance(layer, layers.LayerNorm):
            return self.filled(nn.LayerNorm(layer.parameter_shape(d.input), eps=layer.eps, elementwise_affine=layer.affine), d)
        if isinstance(layer, layers.GroupNorm):
            return self.filled(nn.GroupNorm(layer.groups, layer.channels, eps=layer.eps, affine=layer.affine), d)
        if isinstance(layer, layers.SpatialDropout):
            return getattr(nn, f"Dropout{ndim}d")(layer.rate) if len(d.input) > 1 else nn.Dropout(layer.rate)
        if isinstance(layer, layers.Dropout):
            return nn.Dropout(layer.rate)
        if isinstance(layer, layers.Softmax):
            return (nn.LogSoftmax if isinstance(layer, layers.LogSoftmax) else nn.Softmax)(dim=-1)
        if isinstance(layer, layers.Upsample):
            return nn.Upsample(scale_factor=tuple(map(float, layer.factor * (ndim if len(layer.factor) == 1 else 1))))
        if isinstance(layer, layers.Select):
            return own_modules(self.torch).Select(layer.indices)
        if isinstance(layer, layers.Embedding):
            return self.filled(nn.Embedding(layer.count, layer.features, layer.padding), d)
        if isinstance(layer, layers.Attention):
            return self.attention(d, layer)
        plain = isinstance(layer, (layers.LSTM, layers.GRU, layers.RNN)) and getattr(layer, "reset_after", True)
        if plain and (not isinstance(layer, layers.RNN) or layer.activation in (relu, tanh)):
            return self.recurrence(d, layer)
        raise TypeError(f"PyTorch has no layer like {layer!r}: as_torch(net) makes a module of the whole network")

    def convolution(self, layer: Any, d: Declaration) -> list[Any]:
        nn, ndim, transposed = self.nn, layer.ndim, isinstance(layer, layers.ConvTranspose)
        even = all(before == after for before, after in layer.padding)
        if not even and transposed:
            raise ValueError(f"PyTorch has no uneven padding of {layer!r}: as_torch(net) makes a module of the whole network")
        settings: dict[str, Any] = {"output_padding": layer.output_padding} if transposed else {}
        module = getattr(nn, f"Conv{'Transpose' * transposed}{ndim}d")(
            layer.inputs, layer.outputs, layer.kernel, stride=layer.stride, dilation=layer.dilation, groups=layer.groups,
            padding=tuple(before for before, _ in layer.padding) if even else 0, bias=layer.bias, **settings,
        )  # fmt: skip
        pads = [] if even else [self.padding(layer, 0.0)]
        return [*pads, self.filled(module, d), *self.activation(layer.activation)]

    def pool(self, layer: Any) -> list[Any]:
        even, largest = all(before == after for before, after in layer.padding), isinstance(layer, layers.MaxPool)
        if not even and not largest and not layer.count_padding:
            raise ValueError(f"PyTorch has no uneven padding of {layer!r}: as_torch(net) makes a module of the whole network")
        settings = {} if largest else {"count_include_pad": layer.count_padding}
        module = getattr(self.nn, f"{'Max' if largest else 'Avg'}Pool{layer.ndim}d")(
            layer.kernel, stride=layer.stride, padding=tuple(before for before, _ in layer.padding) if even else 0, **settings
        )
        return [module] if even else [self.padding(layer, -np.inf if largest else 0.0), module]

    def padding(self, layer: Any, value: float) -> Any:
        pads = tuple(side for pair in reversed(layer.padding) for side in pair)
        return (
            getattr(self.nn, f"ConstantPad{layer.ndim}d")(pads, value)
            if value
            else getattr(self.nn, f"ZeroPad{layer.ndim}d")(pads)
        )

    def activation(self, f: Activation) -> list[Any]:
        if f is identity:
            return []
        if isinstance(f, Elu):
            return [self.nn.ELU(f.alpha)]
        if isinstance(f, LeakyRelu):
            return [self.nn.LeakyReLU(f.negative_slope)]
        if f._recipe is None or f.name not in NAMES:
            raise TypeError(f"PyTorch has no module for the activation {f.name}: as_torch(net) makes one of the whole network")
        return [getattr(self.nn, NAMES[f.name])()]

    def filled(self, module: Any, d: Declaration, transposed: bool = False) -> Any:
        """The module with the arrays of a declared layer."""
        for name in (*d.slices, *d.state_slices):
            array = self.arrays[f"{d.name}.{name}"]
            if transposed and name == "weight":
                array = array.T
            tensor = self.torch.from_numpy(array.copy())
            own = getattr(module, name)
            if name in d.slices:
                setattr(module, name, self.nn.Parameter(tensor))
            else:
                own.data = tensor
        return module
