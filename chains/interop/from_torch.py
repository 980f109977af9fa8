"""Networks of PyTorch as networks of this package."""

from __future__ import annotations

import math
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from chains import layers
from chains.activations import Activation, Elu, LeakyRelu, activation
from chains.backends import Backend, Cupy
from chains.chain import Chain
from chains.expr import exp, expm1, log1p, maximum, minimum, tanh, where
from chains.interop.comparison import Source
from chains.interop.parts import Part, assembled, needed
from chains.interop.to_torch import NAMES, own_modules
from chains.interop.torch_modules import computing, is_known, kind, results, unread
from chains.layers.base import SampleShape
from chains.support.checks import check_flags
from chains.support.messages import shown

RECURRENT: dict[str, Callable[..., layers.Recurrent]] = {"RNN": layers.RNN, "LSTM": layers.LSTM, "GRU": layers.GRU}
ACTIVATIONS = {module: name for name, module in NAMES.items()}


def from_torch(
    module: Any, input_shape: SampleShape | None = None, *, backend: str | Cupy | Backend = "auto", check: bool = True
) -> tuple[Chain, np.ndarray, np.ndarray | None]:
    """A network with the structure and the weights of a module of PyTorch.

    Parameters
    ----------
    module : torch.nn.Module, str or path
        An `nn.Sequential`, perhaps of others, or one layer. A recurrent module gives its output at all steps, unless `to_torch`
        made it; `nn.MultiheadAttention` attends to its only input. Or a file with such a module, from ``torch.save``: no code
        in it is executed, and only classes of `torch.nn` are loaded.
    input_shape : tuple of int, optional
        The shape of one sample, if the first layer does not fix it.
    backend : str or backends.Cupy
        That of the network; see `chains.Chain`.
    check : bool
        Whether to compare the network with the module, in the mode "eval" and on two small random batches. A module that
        cannot be run on them gives a warning.

    Returns
    -------
    net : Chain
        The network. An activation after a layer with weights becomes a setting of that layer.
    p : array, shape (n_params,)
        A copy of its parameters, in float64 if the module has any of float64, else in float32. Weights of linear layers are
        transposed.
    state : array, shape (n_state,), or None
        Its state, the running statistics; None for networks without.

    Raises
    ------
    TypeError, ValueError
        For modules and settings without a counterpart here, by name, and for files that hold anything else. ValueError if the
        network does not compute what the module does; it names the first layer that differs.
    ImportError
        If PyTorch is missing.
    """
    torch = needed("torch")
    if isinstance(module, (str, os.PathLike)):
        module = _loaded(torch, os.fspath(module))
    if isinstance(module, (torch.jit.ScriptModule, torch.export.ExportedProgram)):
        compiler = "TorchScript" if isinstance(module, torch.jit.ScriptModule) else "torch.export"
        raise TypeError(f"`module` (of type {type(module).__name__}) is one of {compiler}, which {COMPILED}")
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"`module` (={shown(module)}) must be a module of PyTorch")
    check_flags(check=check)
    with computing(torch, module) as module:
        dtypes = {parameter.dtype for parameter in module.parameters()}
        source = Source("the module", partial(results, torch, module), 1e-5, unread=unread(module)) if check else None
        dtype = np.float64 if torch.float64 in dtypes else np.float32
        return assembled(_parts(torch, module), input_shape, backend, dtype, source)


# In a message, after the kind of file or module.
COMPILED = (
    "has code, but no layers that can be read: save the module it was made of, by torch.save(module, path), or its state "
    "dict, which `python -m chains export` reads with --structure. torch.onnx.export writes a file for from_onnx"
)


class NoStructureError(ValueError):
    """A file has weights alone."""


def _loaded(torch: Any, path: str) -> Any:
    """The module in a file. Raises ValueError unless the file has a module of nothing but `torch.nn`."""
    if kind_of := _compiled_kind(path):
        raise ValueError(f"`module` (={path!r}) is a file of {kind_of}, which {COMPILED}")
    nn = torch.nn
    classes = [each for each in vars(nn).values() if isinstance(each, type)]
    others = [nn.modules.linear.NonDynamicallyQuantizableLinear, nn.functional.relu, nn.functional.gelu, set]
    try:
        with torch.serialization.safe_globals([*classes, *others]):
            module = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(f"`module` (={path!r}) is no file of a module with layers of torch.nn alone: {error}") from error
    if isinstance(module, Mapping):
        raise NoStructureError(
            f"`module` (={path!r}) is a file of weights without a structure: make the module, call "
            "load_state_dict(torch.load(...)), and pass the module"
        )
    return module


def _compiled_kind(path: str) -> str:
    """What compiled the module in a file, by the names of its parts; empty for other files, and for none."""
    if not zipfile.is_zipfile(path):
        return ""
    with zipfile.ZipFile(path) as archive:
        parts = {name.partition("/")[2] for name in archive.namelist()}  # after the name of the archive
    if "constants.pkl" in parts:
        return "TorchScript"
    return "torch.export" if "models/model.json" in parts else ""


def _parts(torch: Any, module: Any, path: str = "") -> list[Part]:
    """The layers of a module; the last one has the module's name."""
    parts = _layers(torch, module, path)
    if parts and not parts[-1].name:
        parts[-1].name = path or "module"
    return parts


def _layers(torch: Any, module: Any, path: str) -> list[Part]:
    name, own = kind(torch, module), own_modules(torch)
    if isinstance(module, own.Recurrence):
        return recurrent_parts(module.module, module.return_sequences, module.initial)
    if isinstance(module, own.SelfAttention):
        return [_attending(torch, module.module, module.causal)]
    if isinstance(module, own.Select):
        return [Part(layers.Select(module.indices))]
    if not is_known(torch, module):
        raise TypeError(
            f"{name} is not a layer of PyTorch: from_torch takes nn.Sequential and the layers of torch.nn. For a module with "
            "another `forward`, torch.onnx.export writes a file that chains.interop.from_onnx may read"
        )
    if name in ("Sequential", "TransformerEncoder"):
        children = module if name == "Sequential" else [*module.layers, *([module.norm] if module.norm is not None else [])]
        return [part for k, child in enumerate(children) for part in _parts(torch, child, f"{path}.{k}" if path else str(k))]
    if name in ("MultiheadAttention", "TransformerEncoderLayer"):
        return [_attending(torch, module, False)]
    for setting, value in REQUIRED.get(name, {}).items():
        if getattr(module, setting) != value:
            raise ValueError(f"`{setting}` (={getattr(module, setting)!r}) of {name} must be {value!r} here")
    if name in ACTIVATIONS and name not in MAKERS:
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


def _tensor(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().resolve_neg().numpy()


def _arrays(module: Any, *names: str) -> list[np.ndarray]:
    return [_tensor(tensor) for name in names if (tensor := getattr(module, name)) is not None]


def _tuple(value: Any, ndim: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * ndim


def _linear(m: Any) -> Part:
    weight, *bias = _arrays(m, "weight", "bias")
    return Part(layers.Dense(m.in_features, m.out_features, bias=bool(bias)), [weight.T, *bias])


def _conv(m: Any) -> Part:
    kind = layers.ConvTranspose if m.transposed else layers.Conv
    rest: dict[str, Any] = {"output_padding": tuple(m.output_padding)} if m.transposed else {}
    layer = kind(
        m.in_channels, m.out_channels, tuple(m.kernel_size), stride=tuple(m.stride), dilation=tuple(m.dilation),
        groups=m.groups,
        padding=m.padding if isinstance(m.padding, str) else tuple(m.padding), bias=m.bias is not None, **rest,
    )  # fmt: skip
    return Part(layer, _arrays(m, "weight", "bias"))


def _pool(ndim: int, m: Any) -> Part:
    sizes = {"stride": _tuple(m.stride, ndim), "padding": _tuple(m.padding, ndim)}
    if type(m).__name__.startswith("Max"):
        if set(_tuple(m.dilation, ndim)) != {1}:
            raise ValueError(f"`dilation` (={m.dilation!r}) of {type(m).__name__} must be 1 here")
        return Part(layers.MaxPool(_tuple(m.kernel_size, ndim), **sizes))
    if getattr(m, "divisor_override", None) is not None:  # nn.AvgPool1d has none
        raise ValueError(f"`divisor_override` (={m.divisor_override!r}) of {type(m).__name__} must be None here")
    return Part(layers.AvgPool(_tuple(m.kernel_size, ndim), **sizes, count_padding=m.count_include_pad))


def _global_pool(ndim: int, m: Any) -> list[Part]:
    if set(_tuple(m.output_size, ndim)) != {1}:
        raise ValueError(f"`output_size` (={m.output_size!r}) of {type(m).__name__} must be 1 here")
    return [Part(layers.GlobalAvgPool()), Part(layers.Reshape(-1, *(1,) * ndim))]


def _batch_norm(m: Any) -> Part:
    if m.momentum is None:
        raise ValueError("`momentum` (=None) of BatchNorm must be a number here")
    layer = layers.BatchNorm(m.num_features, momentum=m.momentum, eps=m.eps, affine=m.affine)
    return Part(layer, _arrays(m, "weight", "bias"), _arrays(m, "running_mean", "running_var"))


def _affine(kind: type, settings: tuple[str, ...], m: Any) -> Part:
    affine = getattr(m, "elementwise_affine", getattr(m, "affine", True))
    arrays = _arrays(m, *(name for name in ("weight", "bias") if getattr(m, name, None) is not None))
    if affine and getattr(m, "bias", 0) is None:
        arrays.append(np.zeros_like(arrays[0]))
    return Part(kind(*(getattr(m, name) for name in settings), eps=_eps(m), affine=affine), arrays)


def _softmax(kind: type, m: Any) -> Part:
    if m.dim is None or m.dim == 0 or m.dim < -1:
        raise ValueError(f"`dim` (={m.dim!r}) of {type(m).__name__} must be the last axis")
    return Part(kind(), axes=m.dim if m.dim > 0 else None)


def _formula(function: Callable[..., Any], m: Any) -> Part:
    return Part(layers.Activation(activation(type(m).__name__, partial(function, m))))


def _prelu(m: Any) -> Part:
    if m.num_parameters != 1:
        raise ValueError(f"`num_parameters` (={m.num_parameters}) of PReLU must be 1 here")
    return Part(layers.Activation(LeakyRelu(float(m.weight))))


def _gelu(m: Any, x: Any) -> Any:
    return 0.5 * x * (1.0 + tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def _instance_norm(m: Any) -> Part:
    if m.track_running_stats:
        raise ValueError(f"`track_running_stats` (=True) of {type(m).__name__} must be False here")
    layer = layers.GroupNorm(m.num_features, m.num_features, eps=m.eps, affine=m.affine)
    return Part(layer, _arrays(m, "weight", "bias"))


def _eps(m: Any) -> float:
    return float(np.finfo(np.float64 if "64" in str(m.weight.dtype) else np.float32).eps) if m.eps is None else m.eps


def _upsample(m: Any) -> Part:
    factors = m.scale_factor if isinstance(m.scale_factor, tuple) else (m.scale_factor,)
    if any(factor != int(factor) for factor in factors):
        raise ValueError(f"`scale_factor` (={m.scale_factor!r}) of Upsample must be whole here")
    whole = tuple(int(factor) for factor in factors)
    return Part(layers.Upsample(whole if len(whole) > 1 else whole[0]))


def _zero_pad(m: Any) -> Part:
    sides = tuple(m.padding)
    return Part(layers.Pad(tuple((sides[k], sides[k + 1]) for k in reversed(range(0, len(sides), 2)))))


def recurrent_parts(m: Any, return_sequences: bool = True, initial: Any = ()) -> list[Part]:
    """The layers of an nn.RNN, nn.LSTM or nn.GRU, one for each of its layers. Raises ValueError for other settings."""
    name = type(m).__name__
    if not m.batch_first or m.proj_size:
        raise ValueError(f"`batch_first` of {name} must be True, and `proj_size` 0")
    parts, inputs = [], m.input_size
    for k in range(m.num_layers):
        last = k == m.num_layers - 1
        settings = {"bidirectional": m.bidirectional, "return_sequences": return_sequences or not last}
        settings |= {"initial_state": "parameter"} if len(initial) else {}
        settings |= {"activation": m.nonlinearity} if name == "RNN" else {}
        params = []
        for row, end in enumerate((f"_l{k}", f"_l{k}_reverse")[: 1 + m.bidirectional]):
            params += [_tensor(getattr(m, f"weight_{kind}{end}")).T for kind in ("ih", "hh")]
            zeros = np.zeros(params[-1].shape[-1:], params[-1].dtype)
            biases = [_tensor(getattr(m, f"bias_{kind}{end}")) if m.bias else zeros for kind in ("ih", "hh")]
            params += biases if name == "GRU" else [biases[0] + biases[1]]
            params += [_tensor(each)[row, 0] for each in initial]
        parts.append(Part(RECURRENT[name](inputs, m.hidden_size, **settings), params))
        if m.dropout and not last:
            parts.append(Part(layers.Dropout(m.dropout)))
        inputs = m.hidden_size * (1 + m.bidirectional)
    return parts


def attention_part(m: Any, causal: bool = False) -> Part:
    """The layer of an nn.MultiheadAttention whose inputs are one sequence. Raises ValueError for other settings."""
    if not m.batch_first or m.in_proj_weight is None or m.bias_k is not None or m.add_zero_attn:
        raise ValueError(
            "`batch_first` of MultiheadAttention must be True, and `kdim`, `vdim`, `add_bias_kv`, `add_zero_attn` as they are"
        )
    products = (m.in_proj_weight, m.in_proj_bias), (m.out_proj.weight, m.out_proj.bias)
    params = [_tensor(tensor).T for product in products for tensor in product if tensor is not None]
    return Part(layers.Attention(m.embed_dim, m.num_heads, causal=causal, bias=m.in_proj_bias is not None), params)


def block_part(m: Any, activation: Activation | str, causal: bool = False) -> Part:
    """The layer of an nn.TransformerEncoderLayer. Raises ValueError for other settings."""
    if not m.norm_first or {m.norm1.eps, m.norm2.eps} != {1e-5} or m.norm1.bias is None:
        raise ValueError("`norm_first` and `bias` of TransformerEncoderLayer must be True, and `layer_norm_eps` 1e-5")
    attention = attention_part(m.self_attn)
    layer = layers.TransformerBlock(
        m.self_attn.embed_dim, m.self_attn.num_heads, m.linear1.out_features, activation=activation, causal=causal,
        dropout=m.dropout.p,
    )  # fmt: skip
    dense = [_tensor(tensor).T for linear in (m.linear1, m.linear2) for tensor in (linear.weight, linear.bias)]
    first, second = ([_tensor(norm.weight), _tensor(norm.bias)] for norm in (m.norm1, m.norm2))
    return Part(layer, [*first, *attention.params, *second, *dense])


# Activations by their formulas, functions of the module and its input.
FORMULAS: dict[str, Callable[..., Any]] = {
    "ReLU6": lambda m, x: minimum(maximum(x, 0.0), 6.0),
    "Hardtanh": lambda m, x: minimum(maximum(x, m.min_val), m.max_val),
    "Hardsigmoid": lambda m, x: minimum(maximum(x / 6.0 + 0.5, 0.0), 1.0),
    "Hardswish": lambda m, x: x * minimum(maximum(x / 6.0 + 0.5, 0.0), 1.0),
    "Hardshrink": lambda m, x: where(abs(x) > m.lambd, x, 0.0),
    "Softshrink": lambda m, x: x - minimum(maximum(x, -m.lambd), m.lambd),
    "Tanhshrink": lambda m, x: x - tanh(x),
    "Threshold": lambda m, x: where(x > m.threshold, x, m.value),
    "LogSigmoid": lambda m, x: minimum(x, 0.0) - log1p(exp(-abs(x))),
    "CELU": lambda m, x: where(x > 0.0, x, m.alpha * expm1(minimum(x, 0.0) / m.alpha)),
}

# Settings that have one value here.
REQUIRED: dict[str, dict[str, Any]] = {
    **{f"Conv{d}": {"padding_mode": "zeros"} for d in ("1d", "2d", "Transpose1d", "Transpose2d")},
    **{f"MaxPool{ndim}d": {"ceil_mode": False, "return_indices": False} for ndim in (1, 2)},
    **{f"AvgPool{ndim}d": {"ceil_mode": False} for ndim in (1, 2)},
    **{f"BatchNorm{ndim}d": {"track_running_stats": True} for ndim in (1, 2)},
    "Flatten": {"start_dim": 1, "end_dim": -1},
    "Unflatten": {"dim": 1},
    "Upsample": {"mode": "nearest", "size": None},
    "Softplus": {"beta": 1},
    "Embedding": {"max_norm": None},
}
MAKERS: dict[str, Callable[[Any], Part | list[Part]]] = {
    "Linear": _linear,
    **{f"Conv{d}": _conv for d in ("1d", "2d", "Transpose1d", "Transpose2d")},
    **{f"{kind}Pool{ndim}d": partial(_pool, ndim) for kind in ("Max", "Avg") for ndim in (1, 2)},
    **{f"AdaptiveAvgPool{ndim}d": partial(_global_pool, ndim) for ndim in (1, 2)},
    **{f"BatchNorm{ndim}d": _batch_norm for ndim in (1, 2)},
    "LayerNorm": partial(_affine, layers.LayerNorm, ("normalized_shape",)),
    "RMSNorm": partial(_affine, layers.RMSNorm, ("normalized_shape",)),
    "GroupNorm": partial(_affine, layers.GroupNorm, ("num_groups", "num_channels")),
    "Dropout": lambda m: Part(layers.Dropout(m.p)),
    **{f"Dropout{ndim}d": lambda m: Part(layers.SpatialDropout(m.p)) for ndim in (1, 2)},
    "Flatten": lambda m: Part(layers.Flatten()),
    "Unflatten": lambda m: Part(layers.Reshape(*m.unflattened_size), axes=1),
    "Identity": lambda m: [],
    "Softmax": partial(_softmax, layers.Softmax),
    "LogSoftmax": partial(_softmax, layers.LogSoftmax),
    "Upsample": _upsample,
    **{f"ZeroPad{ndim}d": _zero_pad for ndim in (1, 2)},
    **{name: partial(_formula, function) for name, function in FORMULAS.items()},
    "GELU": lambda m: _formula(_gelu, m) if m.approximate == "tanh" else Part(layers.Activation("gelu")),
    "PReLU": _prelu,
    **{f"InstanceNorm{ndim}d": _instance_norm for ndim in (1, 2)},
    "ELU": lambda m: Part(layers.Activation(Elu(m.alpha))),
    "LeakyReLU": lambda m: Part(layers.Activation(LeakyRelu(m.negative_slope))),
    "Embedding": lambda m: Part(layers.Embedding(m.num_embeddings, m.embedding_dim, m.padding_idx), _arrays(m, "weight")),
    **dict.fromkeys(RECURRENT, recurrent_parts),
}
