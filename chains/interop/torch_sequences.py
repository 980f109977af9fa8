"""Layers of sequences in PyTorch: modules of one input and one output around its own, and these as layers here."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from chains import layers
from chains.activations import Activation
from chains.interop.parts import Part
from chains.layers.base import Declaration

KINDS: dict[str, Callable[..., layers.Recurrent]] = {"RNN": layers.RNN, "LSTM": layers.LSTM, "GRU": layers.GRU}


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


class Arrays:
    """Fills modules of PyTorch with the arrays of a network, known by name."""

    def __init__(self, torch: Any, arrays: dict[str, np.ndarray]) -> None:
        self.torch, self.nn, self.arrays = torch, torch.nn, arrays

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


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def recurrent_parts(m: Any, return_sequences: bool = True, initial: Any = ()) -> list[Part]:
    """The layers of an nn.RNN, nn.LSTM or nn.GRU, one for each of its own. Raises ValueError for other settings."""
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
            params += [_array(getattr(m, f"weight_{kind}{end}")).T for kind in ("ih", "hh")]
            zeros = np.zeros(params[-1].shape[-1:], params[-1].dtype)
            biases = [_array(getattr(m, f"bias_{kind}{end}")) if m.bias else zeros for kind in ("ih", "hh")]
            params += biases if name == "GRU" else [biases[0] + biases[1]]
            params += [_array(each)[row, 0] for each in initial]
        parts.append(Part(KINDS[name](inputs, m.hidden_size, **settings), params))
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
    params = [_array(tensor).T for product in products for tensor in product if tensor is not None]
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
    dense = [_array(tensor).T for linear in (m.linear1, m.linear2) for tensor in (linear.weight, linear.bias)]
    first, second = ([_array(norm.weight), _array(norm.bias)] for norm in (m.norm1, m.norm2))
    return Part(layer, [*first, *attention.params, *second, *dense])
