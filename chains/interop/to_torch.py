"""Networks of this package as modules of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from chains import layers
from chains.activations import Activation, Elu, LeakyRelu, identity, relu, tanh
from chains.chain import Chain
from chains.interop.parts import arrays_by_name, needed
from chains.layers.base import Declaration
from chains.network.network import check_net, network_of
from chains.support import arguments

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
        The network, of layers that PyTorch has too. Recurrent layers and attention become modules that hold one of PyTorch,
        `module`, since that one takes or returns several tensors.
    p : array, shape (n_params,)
        Its parameters; they are copied.
    state : array, shape (n_state,), optional
        Its state, for networks that have one.

    Returns
    -------
    torch.nn.Sequential
        In its mode for training, as any new module; ``eval()`` gives the mode of `net`.

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
    return _Writer(torch, arrays).sequence(network_of(net).declaration)


def as_torch(net: Chain, p: Any = None, state: Any = None) -> Any:
    """A module of PyTorch that computes a network by this package, within PyTorch's graph of gradients.

    Parameters
    ----------
    net : Chain
        The network.
    p : array, shape (n_params,), optional
        Its parameters, float32 or float64; they are copied. None: those of ``net.init()``.
    state : array, shape (n_state,), optional
        Its state, for networks that have one; a copy of it is the module's buffer. None: that of ``net.init_state()``.

    Returns
    -------
    torch.nn.Module
        ``module(x)`` is the output for a tensor `x` (batch, *input_shape) on the CPU, and ``module(x, p)`` that at other
        parameters; both have gradients. Its only parameter is `p`. In its mode for training, dropout is on, drawn by PyTorch's
        generator, and the state is updated. The gradient of a gradient is refused.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit.
    ImportError
        Where PyTorch is missing.
    """
    torch = needed("torch")
    check_net(net)
    p = net.init() if p is None else arguments.check_params(p, net.n_params)
    if net.n_state:
        state = net.init_state(p.dtype) if state is None else state
        state = arguments.check_state(state, net.n_state, p.dtype, False, {})
    function = _function(torch)

    class ChainModule(torch.nn.Module):  # type: ignore[name-defined]
        """A network of chains."""

        def __init__(self) -> None:
            super().__init__()
            self.net = net
            self.p = torch.nn.Parameter(torch.from_numpy(p.copy()))
            self.register_buffer("state", torch.from_numpy(state.copy()) if net.n_state else None)

        def forward(self, x: Any, p: Any = None) -> Any:
            seed = int(torch.randint(2**62, ())) if self.training else 0
            return function.apply(x, self.p if p is None else p, net, self.state, "train" if self.training else "eval", seed)

        def extra_repr(self) -> str:
            return repr(net)

    return ChainModule()


@cache
def _function(torch: Any) -> Any:
    class ChainFunction(torch.autograd.Function):
        """The network and its pullback."""

        @staticmethod
        def forward(ctx: Any, x: Any, p: Any, net: Chain, state: Any, mode: str, seed: int) -> Any:
            ctx.save_for_backward(x, p)
            before = None if state is None else state.detach().numpy().copy()
            ctx.rest = net, before, mode, seed
            with torch.no_grad():
                own = None if state is None else state.numpy()
                y = net(_numbers(x), _numbers(p), state=own, mode=mode, seed=seed)
            return torch.from_numpy(y)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, dy: Any) -> Any:
            x, p = ctx.saved_tensors
            net, state, mode, seed = ctx.rest
            dp, dx = net.vjp(_numbers(p), _numbers(x), _numbers(dy), state=state, mode=mode, seed=seed)
            dx = torch.from_numpy(dx).to(x.dtype) if ctx.needs_input_grad[0] else None
            return dx, torch.from_numpy(dp), None, None, None, None

    return ChainFunction


def _numbers(tensor: Any) -> np.ndarray:
    """The numbers of a tensor in C order, also of one that is negated when it is read."""
    array: np.ndarray = tensor.detach().resolve_neg().contiguous().numpy()
    return array


class _Writer:
    """Makes modules of declared layers, with the arrays of a network, known by name."""

    def __init__(self, torch: Any, arrays: dict[str, np.ndarray]) -> None:
        self.torch, self.nn, self.arrays = torch, torch.nn, arrays

    def sequence(self, d: Declaration) -> Any:
        return self.nn.Sequential(*(module for child in d.children for module in self.modules(child)))

    def modules(self, d: Declaration) -> list[Any]:
        if not type(d.layer).forward.__module__.startswith("chains.layers."):
            raise TypeError(f"{d.layer!r} is a custom layer: as_torch(net) makes a module of the whole network")
        make = next((make for kind, make in MODULES.items() if isinstance(d.layer, kind)), None)
        made = make(self, d, d.layer) if make is not None else []
        if made == []:
            raise TypeError(f"PyTorch has no layer like {d.layer!r}: as_torch(net) makes a module of the whole network")
        return made if isinstance(made, list) else [made]

    def dimensional(self, name: str, d: Declaration) -> Any:
        """A class of modules, such as nn.BatchNorm2d, for the axes that a sample has after its channels, 1 at least."""
        return getattr(self.nn, f"{name}{max(1, len(d.input) - 1)}d")

    def norm(self, name: str, d: Declaration, *sizes: Any, **settings: Any) -> Any:
        layer: Any = d.layer
        kind = self.dimensional(name, d) if name == "BatchNorm" else getattr(self.nn, name)
        return self.filled(kind(*sizes, eps=layer.eps, **settings), d)

    def dense(self, d: Declaration, layer: layers.Dense) -> list[Any]:
        linear = self.filled(self.nn.Linear(layer.inputs, layer.outputs, bias=layer.bias), d, transposed=True)
        return [linear, *self.activation(layer.activation)]

    def reshape(self, d: Declaration) -> list[Any]:
        flat = [self.nn.Flatten()] if len(d.input) != 1 else []
        return flat + ([self.nn.Unflatten(1, d.output_shape)] if len(d.output_shape) != 1 else []) or [self.nn.Identity()]

    def upsample(self, d: Declaration, layer: layers.Upsample) -> Any:
        factors = layer.factor * (max(1, len(d.input) - 1) if len(layer.factor) == 1 else 1)
        return self.nn.Upsample(scale_factor=tuple(map(float, factors)))

    def convolution(self, d: Declaration, layer: Any) -> list[Any]:
        nn, ndim, transposed = self.nn, layer.ndim, isinstance(layer, layers.ConvTranspose)
        even = all(before == after for before, after in layer.padding)
        if not even and transposed:
            raise ValueError(f"PyTorch has no uneven padding of {layer!r}: as_torch(net) makes a module of the whole network")
        settings: dict[str, Any] = {"output_padding": layer.output_padding} if transposed else {}
        module = getattr(nn, f"Conv{'Transpose' * transposed}{ndim}d")(
            layer.inputs, layer.outputs, layer.kernel, stride=layer.stride, dilation=layer.dilation, groups=layer.groups,
            padding=tuple(before for before, _ in layer.padding) if even else 0, bias=layer.bias, **settings,
        )  # fmt: skip
        pads = [] if even else [self.padding(ndim, layer.padding, 0.0)]
        return [*pads, self.filled(module, d), *self.activation(layer.activation)]

    def pool(self, d: Declaration, layer: Any) -> list[Any]:
        even, largest = all(before == after for before, after in layer.padding), isinstance(layer, layers.MaxPool)
        if not even and not largest and not layer.count_padding:
            raise ValueError(f"PyTorch has no uneven padding of {layer!r}: as_torch(net) makes a module of the whole network")
        settings = {} if largest else {"count_include_pad": layer.count_padding}
        module = getattr(self.nn, f"{'Max' if largest else 'Avg'}Pool{layer.ndim}d")(
            layer.kernel, stride=layer.stride, padding=tuple(before for before, _ in layer.padding) if even else 0, **settings
        )
        return [module] if even else [self.padding(layer.ndim, layer.padding, -np.inf if largest else 0.0), module]

    def padding(self, ndim: int, padding: Any, value: float) -> Any:
        pads = tuple(side for pair in reversed(padding) for side in pair)
        return getattr(self.nn, f"ConstantPad{ndim}d")(pads, value) if value else getattr(self.nn, f"ZeroPad{ndim}d")(pads)

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
        for name in d.slices:
            setattr(module, name, self.parameter(d, name, transposed and name == "weight"))
        for name in d.state_slices:
            getattr(module, name).data = self.torch.from_numpy(self.arrays[f"{d.name}.{name}"].copy())
        return module

    def parameter(self, d: Declaration, name: str, transposed: bool = False) -> Any:
        array = self.arrays[f"{d.name}.{name}"]
        return self.nn.Parameter(self.torch.from_numpy((array.T if transposed else array).copy()))

    def recurrence(self, d: Declaration, layer: Any) -> Any:
        if not getattr(layer, "reset_after", True) or (isinstance(layer, layers.RNN) and layer.activation not in (relu, tanh)):
            return []
        settings = {"nonlinearity": layer.activation.name} if isinstance(layer, layers.RNN) else {}
        kind = getattr(self.nn, type(layer).__name__)
        module = kind(layer.inputs, layer.units, batch_first=True, bidirectional=layer.bidirectional, **settings)
        for child, end in zip(d.children, ("_l0", "_l0_reverse"), strict=False):
            setattr(module, f"weight_ih{end}", self.parameter(child, "weight", transposed=True))
            setattr(module, f"weight_hh{end}", self.parameter(child, "recurrent_weight", transposed=True))
            setattr(module, f"bias_ih{end}", bias := self.parameter(child, "bias"))
            two = "recurrent_bias" in child.slices
            second = self.parameter(child, "recurrent_bias") if two else self.nn.Parameter(self.torch.zeros_like(bias))
            setattr(module, f"bias_hh{end}", second)
        names = list(d.children[0].carried_shapes) if layer.initial_state == "parameter" else []
        initial = []
        for name in names:
            rows = [self.arrays[each.name] for key, each in d.slices.items() if key.endswith(f"initial_{name}")]
            initial.append(self.nn.Parameter(self.torch.from_numpy(np.stack(rows)[:, None])))
        return own_modules(self.torch).Recurrence(module, layer.return_sequences, initial)

    def attention(self, d: Declaration, layer: layers.Attention) -> Any:
        module = self.nn.MultiheadAttention(layer.features, layer.heads, bias=layer.bias, batch_first=True)
        return own_modules(self.torch).SelfAttention(self.attending(module, d, layer), layer.causal)

    def attending(self, module: Any, d: Declaration, layer: layers.Attention) -> Any:
        module.in_proj_weight = self.parameter(d, "in_weight", transposed=True)
        module.out_proj.weight = self.parameter(d, "out_weight", transposed=True)
        if layer.bias:
            module.in_proj_bias, module.out_proj.bias = self.parameter(d, "in_bias"), self.parameter(d, "out_bias")
        return module

    def block(self, d: Declaration, layer: layers.TransformerBlock) -> Any:
        (activation,) = self.activation(layer.activation) or [self.nn.Identity()]
        module = self.nn.TransformerEncoderLayer(
            layer.features, layer.heads, layer.hidden, layer.dropout, activation, batch_first=True, norm_first=True
        )
        module.self_attn.dropout = 0.0
        attends, computes = (part.children[0].children for part in d.children)
        self.attending(module.self_attn, attends[1], layer.attention)
        dense = [part for part in computes if isinstance(part.layer, layers.Dense)]
        for linear, part in zip((module.linear1, module.linear2), dense, strict=True):
            linear.weight, linear.bias = self.parameter(part, "weight", transposed=True), self.parameter(part, "bias")
        for norm, part in ((module.norm1, attends[0]), (module.norm2, computes[0])):
            norm.weight, norm.bias = self.parameter(part, "weight"), self.parameter(part, "bias")
        return own_modules(self.torch).SelfAttention(module, True) if layer.causal else module


@cache
def own_modules(torch: Any) -> SimpleNamespace:
    """The classes of modules for `nn.Sequential` that PyTorch lacks, or that take or return several tensors there."""
    nn = torch.nn

    class Recurrence(nn.Module):  # type: ignore[name-defined]
        """An nn.RNN, nn.LSTM or nn.GRU: its output at all steps, or at the last one; the first state may be trained."""

        def __init__(self, module: Any, return_sequences: bool, initial: list[Any]) -> None:
            super().__init__()
            self.module, self.return_sequences = module, return_sequences
            self.initial = nn.ParameterList(initial)  # (directions, 1, units) each

        def forward(self, x: Any) -> Any:
            states = tuple(each.expand(-1, len(x), -1).contiguous() for each in self.initial)
            lstm = isinstance(self.module, nn.LSTM)
            y, last = self.module(x, (states if lstm else states[0]) if states else None)
            return y if self.return_sequences else (last[0] if lstm else last).transpose(0, 1).flatten(1)

    class SelfAttention(nn.Module):  # type: ignore[name-defined]
        """An nn.MultiheadAttention of a sequence to itself, or an nn.TransformerEncoderLayer that sees no later steps."""

        def __init__(self, module: Any, causal: bool) -> None:
            super().__init__()
            self.module, self.causal = module, causal

        def forward(self, x: Any) -> Any:
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1) if self.causal else None
            if isinstance(self.module, nn.MultiheadAttention):
                return self.module(x, x, x, attn_mask=later, need_weights=False)[0]
            return self.module(x, src_mask=later)

    class Select(nn.Module):  # type: ignore[name-defined]
        """Entries of the last axis."""

        def __init__(self, indices: tuple[int, ...]) -> None:
            super().__init__()
            self.indices = indices

        def forward(self, x: Any) -> Any:
            return x[..., list(self.indices)]

        def extra_repr(self) -> str:
            return repr(list(self.indices))

    return SimpleNamespace(Recurrence=Recurrence, SelfAttention=SelfAttention, Select=Select)


# By the kinds of layers, modules or lists of them; the first one that fits counts. Empty lists: PyTorch has no such layer.
MODULES: dict[type, Callable[[_Writer, Declaration, Any], Any]] = {
    layers.TransformerBlock: _Writer.block,
    layers.CausalConv: lambda w, d, layer: [],
    layers.Series: lambda w, d, layer: w.sequence(d),
    layers.Dense: _Writer.dense,
    layers.Conv: _Writer.convolution,
    layers.ConvTranspose: _Writer.convolution,
    layers.Activation: lambda w, d, layer: w.activation(layer.f) or w.nn.Identity(),
    layers.MaxPool: _Writer.pool,
    layers.AvgPool: _Writer.pool,
    layers.GlobalAvgPool: lambda w, d, layer: [w.dimensional("AdaptiveAvgPool", d)(1), w.nn.Flatten()],
    layers.Reshape: lambda w, d, layer: w.reshape(d),
    layers.Pad: lambda w, d, layer: w.padding(len(d.input) - 1, layer.padding * (len(d.input) - len(layer.padding)), 0.0),
    layers.BatchNorm: lambda w, d, layer: w.norm("BatchNorm", d, layer.channels, affine=layer.affine, momentum=layer.momentum),
    layers.RMSNorm: lambda w, d, layer: w.norm("RMSNorm", d, layer.parameter_shape(d.input), elementwise_affine=layer.affine),
    layers.LayerNorm: lambda w, d, layer: w.norm(
        "LayerNorm", d, layer.parameter_shape(d.input), elementwise_affine=layer.affine
    ),
    layers.GroupNorm: lambda w, d, layer: w.norm("GroupNorm", d, layer.groups, layer.channels, affine=layer.affine),
    layers.SpatialDropout: lambda w, d, layer: (w.dimensional("Dropout", d) if len(d.input) > 1 else w.nn.Dropout)(layer.rate),
    layers.Dropout: lambda w, d, layer: w.nn.Dropout(layer.rate),
    layers.LogSoftmax: lambda w, d, layer: w.nn.LogSoftmax(dim=-1),
    layers.Softmax: lambda w, d, layer: w.nn.Softmax(dim=-1),
    layers.Upsample: _Writer.upsample,
    layers.Select: lambda w, d, layer: own_modules(w.torch).Select(layer.indices),
    layers.Embedding: lambda w, d, layer: w.filled(w.nn.Embedding(layer.count, layer.features, layer.padding), d),
    layers.Attention: _Writer.attention,
    **dict.fromkeys((layers.LSTM, layers.GRU, layers.RNN), _Writer.recurrence),
}
