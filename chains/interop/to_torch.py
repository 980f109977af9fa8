"""Networks of this package as modules of PyTorch."""

from __future__ import annotations

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
        parameters; gradients go to both. Its one parameter is `p`. In its mode for training, dropout is on, drawn by PyTorch's
        generator, and the state is updated. Gradients can be taken once: the gradient of a gradient is refused.

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
                y = net(x.detach().numpy(), p.detach().contiguous().numpy(), state=own, mode=mode, seed=seed)
            return torch.from_numpy(y)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, dy: Any) -> Any:
            x, p = ctx.saved_tensors
            net, state, mode, seed = ctx.rest
            dp, dx = net.vjp(p.detach().contiguous().numpy(), x.detach().numpy(), dy.numpy(), state=state, mode=mode, seed=seed)
            dx = torch.from_numpy(dx).to(x.dtype) if ctx.needs_input_grad[0] else None
            return dx, torch.from_numpy(dp), None, None, None, None

    return ChainFunction


class _Writer:
    """Makes modules of declared layers, with the arrays of a network, known by name."""

    def __init__(self, torch: Any, arrays: dict[str, np.ndarray]) -> None:
        self.torch, self.nn, self.arrays = torch, torch.nn, arrays

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

    def parameter(self, d: Declaration, name: str, transposed: bool = False) -> Any:
        array = self.arrays[f"{d.name}.{name}"]
        return self.nn.Parameter(self.torch.from_numpy((array.T if transposed else array).copy()))

    def recurrence(self, d: Declaration, layer: Any) -> Any:
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

    def block(self, d: Declaration, layer: layers.TransformerBlock, activation: Any) -> Any:
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
    """The classes of modules for `nn.Sequential` that PyTorch lacks, or calls with more arguments, or gets more from."""
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
