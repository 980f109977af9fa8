"""Networks of PyTorch as networks of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chains import activations, layers
from chains.backends import Cupy
from chains.chain import Chain
from chains.interop.parts import Part, assembled, needed
from chains.interop.torch_sequences import attention_part, block_part, own_modules, recurrent_parts
from chains.layers.base import SampleShape
from chains.support.messages import shown

ACTIVATIONS = {
    "ReLU": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid", "SiLU": "silu", "Mish": "mish", "SELU": "selu",
    "Softsign": "softsign",
}  # fmt: skip


def from_torch(
    module: Any, input_shape: SampleShape | None = None, *, backend: str | Cupy = "auto"
) -> tuple[Chain, np.ndarray, np.ndarray | None]:
    """A network with the structure and the weights of a module of PyTorch.

    Parameters
    ----------
    module : torch.nn.Module
        An `nn.Sequential`, whose parts may be of that kind again, or one layer. A recurrent module gives its output at all
        steps, unless `to_torch` made it; `nn.MultiheadAttention` attends to its one input.
    input_shape : tuple of int, optional
        The shape of one sample, where the first layer does not fix it.
    backend : str or backends.Cupy
        That of the network; see `chains.Chain`.

    Returns
    -------
    net : Chain
        The network. An activation behind a layer with weights becomes a setting of that layer.
    p : array, shape (n_params,)
        Its parameters, float64 where those of the module are, else float32; a copy. Weights of linear layers are transposed.
    state : array, shape (n_state,), or None
        Its state, the running statistics; None for networks without.

    Raises
    ------
    TypeError, ValueError
        For modules and settings that there is nothing like here, naming them.
    ImportError
        Where PyTorch is missing.
    """
    torch = needed("torch")
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"`module` (={shown(module)}) must be a module of PyTorch")
    dtypes = {parameter.dtype for parameter in module.parameters()}
    return assembled(_parts(torch, module), input_shape, backend, np.float64 if torch.float64 in dtypes else np.float32)


def _parts(torch: Any, module: Any) -> list[Part]:
    name, own = type(module).__name__, own_modules(torch)
    if isinstance(module, own.Recurrence):
        return recurrent_parts(module.module, module.return_sequences, module.initial)
    if isinstance(module, own.SelfAttention):
        return [_attending(torch, module.module, module.causal)]
    if isinstance(module, own.Select):
        return [Part(layers.Select(module.indices))]
    if not type(module).__module__.startswith("torch.nn."):
        raise TypeError(f"{name} is not a layer of PyTorch: from_torch takes nn.Sequential and the layers of torch.nn")
    if name == "Sequential":
        return [part for child in module for part in _parts(torch, child)]
    if name == "TransformerEncoder":
        children = [*module.layers, *([module.norm] if module.norm is not None else [])]
        return [part for child in children for part in _parts(torch, child)]
    if name in ("MultiheadAttention", "TransformerEncoderLayer"):
        return [_attending(torch, module, False)]
    if name in ACTIVATIONS:
        return [Part(layers.Activation(ACTIVATIONS[name]))]
    if name not in MAKERS:
        raise TypeError(f"there is no layer like torch.nn.{name} here")
    made = MAKERS[name](module)
    return [made] if isinstance(made, Part) else made


def _attending(torch: Any, module: Any, causal: bool) -> Part:
    activation: Any
    if isinstance(module, torch.nn.MultiheadAttention):
        return attention_part(module, causal)
    if isinstance(module.activation, torch.nn.Module):
        (made,) = _parts(torch, module.activation) or [Part(layers.Activation("identity"))]
        activation = made.layer.f if isinstance(made.layer, layers.Activation) else None
    else:
        functional = torch.nn.functional
        names = {functional.relu: "relu", functional.gelu: "gelu", torch.tanh: "tanh", torch.sigmoid: "sigmoid"}
        activation = names.get(module.activation)
    if activation is None:
        raise ValueError(
            f"`activation` (={shown(module.activation)}) of TransformerEncoderLayer must be a module, or relu or gelu"
        )
    return block_part(module, activation, causal)


def _must(module: Any, **wanted: Any) -> None:
    """Raise ValueError, naming it, for a setting that is not as `wanted`."""
    for name, value in wanted.items():
        if getattr(module, name) != value:
            raise ValueError(f"`{name}` (={getattr(module, name)!r}) of {type(module).__name__} must be {value!r} here")


def _arrays(module: Any, *names: str) -> list[np.ndarray]:
    found = (getattr(module, name) for name in names)
    return [tensor.detach().cpu().numpy() for tensor in found if tensor is not None]


def _tuple(value: Any, ndim: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * ndim


def _linear(m: Any) -> Part:
    weight, *bias = _arrays(m, "weight", "bias")
    return Part(layers.Dense(m.in_features, m.out_features, bias=bool(bias)), [weight.T, *bias])


def _conv(m: Any) -> Part:
    _must(m, padding_mode="zeros")
    kind = layers.ConvTranspose if m.transposed else layers.Conv
    rest: dict[str, Any] = {"output_padding": tuple(m.output_padding)} if m.transposed else {}
    layer = kind(
        m.in_channels, m.out_channels, tuple(m.kernel_size), stride=tuple(m.stride), dilation=tuple(m.dilation),
        groups=m.groups,
        padding=m.padding if isinstance(m.padding, str) else tuple(m.padding), bias=m.bias is not None, **rest,
    )  # fmt: skip
    return Part(layer, _arrays(m, "weight", "bias"))


def _pool(ndim: int) -> Callable[[Any], Part]:
    def make(m: Any) -> Part:
        _must(m, ceil_mode=False)
        sizes = {"stride": _tuple(m.stride, ndim), "padding": _tuple(m.padding, ndim)}
        if type(m).__name__.startswith("Max"):
            _must(m, return_indices=False)
            if set(_tuple(m.dilation, ndim)) != {1}:
                raise ValueError(f"`dilation` (={m.dilation!r}) of {type(m).__name__} must be 1 here")
            return Part(layers.MaxPool(_tuple(m.kernel_size, ndim), **sizes))
        if getattr(m, "divisor_override", None) is not None:
            _must(m, divisor_override=None)
        return Part(layers.AvgPool(_tuple(m.kernel_size, ndim), **sizes, count_padding=m.count_include_pad))

    return make


def _global_pool(ndim: int) -> Callable[[Any], list[Part]]:
    def make(m: Any) -> list[Part]:
        if set(_tuple(m.output_size, ndim)) != {1}:
            raise ValueError(f"`output_size` (={m.output_size!r}) of {type(m).__name__} must be 1 here")
        return [Part(layers.GlobalAvgPool()), Part(layers.Reshape(-1, *(1,) * ndim))]

    return make


def _batch_norm(m: Any) -> Part:
    _must(m, track_running_stats=True)
    if m.momentum is None:
        raise ValueError("`momentum` (=None) of BatchNorm must be a number here")
    layer = layers.BatchNorm(m.num_features, momentum=m.momentum, eps=m.eps, affine=m.affine)
    return Part(layer, _arrays(m, "weight", "bias"), _arrays(m, "running_mean", "running_var"))


def _affine(kind: type, **settings: Any) -> Callable[[Any], Part]:
    def make(m: Any) -> Part:
        affine = getattr(m, "elementwise_affine", getattr(m, "affine", True))
        if affine and getattr(m, "bias", 0) is None:
            raise ValueError(f"`bias` (=False) of {type(m).__name__} must be True here")
        names = [name for name in ("weight", "bias") if getattr(m, name, None) is not None]
        return Part(kind(*(getattr(m, name) for name in settings["names"]), eps=_eps(m), affine=affine), _arrays(m, *names))

    return make


def _eps(m: Any) -> float:
    return float(np.finfo(np.float64 if "64" in str(m.weight.dtype) else np.float32).eps) if m.eps is None else m.eps


def _flatten(m: Any) -> Part:
    _must(m, start_dim=1, end_dim=-1)
    return Part(layers.Flatten())


def _unflatten(m: Any) -> Part:
    _must(m, dim=1)
    return Part(layers.Reshape(*m.unflattened_size))


def _softmax(kind: type) -> Callable[[Any], Part]:
    def make(m: Any) -> Part:
        _must(m, dim=-1)
        return Part(kind())

    return make


def _upsample(m: Any) -> Part:
    _must(m, mode="nearest", size=None)
    factors = m.scale_factor if isinstance(m.scale_factor, tuple) else (m.scale_factor,)
    if any(factor != int(factor) for factor in factors):
        raise ValueError(f"`scale_factor` (={m.scale_factor!r}) of Upsample must be whole here")
    whole = tuple(int(factor) for factor in factors)
    return Part(layers.Upsample(whole if len(whole) > 1 else whole[0]))


def _zero_pad(m: Any) -> Part:
    sides = tuple(m.padding)
    return Part(layers.Pad(tuple((sides[k], sides[k + 1]) for k in reversed(range(0, len(sides), 2)))))


def _gelu(m: Any) -> Part:
    _must(m, approximate="none")
    return Part(layers.Activation("gelu"))


def _softplus(m: Any) -> Part:
    _must(m, beta=1)
    return Part(layers.Activation("softplus"))


def _embedding(m: Any) -> Part:
    _must(m, max_norm=None)
    return Part(layers.Embedding(m.num_embeddings, m.embedding_dim, m.padding_idx), _arrays(m, "weight"))


MAKERS: dict[str, Callable[[Any], Part | list[Part]]] = {
    "Linear": _linear,
    **{f"Conv{d}": _conv for d in ("1d", "2d", "Transpose1d", "Transpose2d")},
    **{f"{kind}Pool{ndim}d": _pool(ndim) for kind in ("Max", "Avg") for ndim in (1, 2)},
    **{f"AdaptiveAvgPool{ndim}d": _global_pool(ndim) for ndim in (1, 2)},
    **{f"BatchNorm{ndim}d": _batch_norm for ndim in (1, 2)},
    "LayerNorm": _affine(layers.LayerNorm, names=["normalized_shape"]),
    "RMSNorm": _affine(layers.RMSNorm, names=["normalized_shape"]),
    "GroupNorm": _affine(layers.GroupNorm, names=["num_groups", "num_channels"]),
    "Dropout": lambda m: Part(layers.Dropout(m.p)),
    **{f"Dropout{ndim}d": lambda m: Part(layers.SpatialDropout(m.p)) for ndim in (1, 2)},
    "Flatten": _flatten,
    "Unflatten": _unflatten,
    "Identity": lambda m: [],
    "Softmax": _softmax(layers.Softmax),
    "LogSoftmax": _softmax(layers.LogSoftmax),
    "Upsample": _upsample,
    **{f"ZeroPad{ndim}d": _zero_pad for ndim in (1, 2)},
    "GELU": _gelu,
    "Softplus": _softplus,
    "ELU": lambda m: Part(layers.Activation(activations.elu(alpha=m.alpha))),
    "LeakyReLU": lambda m: Part(layers.Activation(activations.leaky_relu(slope=m.negative_slope))),
    "Embedding": _embedding,
    **dict.fromkeys(("RNN", "LSTM", "GRU"), recurrent_parts),
}
