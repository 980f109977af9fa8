"""Attention, and the other layers of encoders of sequences. Samples are (time, features)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chains.activations import Activation
from chains.expr import exp, where
from chains.initializers import InitializerLike, initializer
from chains.layers.base import Declaration, Layer, SampleShape, check_sequence
from chains.layers.combine import Residual, Series
from chains.layers.dense import Dense
from chains.layers.dropout import Dropout
from chains.layers.norm import LayerNorm
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_flags, check_number, check_word

FORBIDDEN = -1e30  # the score of a step that may not be seen: its share of the attention is exactly zero


class Attention(Layer):
    """Multi-head self-attention: each step of a sequence takes a mean of all steps, weighted by how well they match.

    Queries, keys and values are ``x @ in_weight + in_bias``, in this order. Each head takes a part of the features and computes
    ``softmax(queries @ keys.T / sqrt(features / heads)) @ values``. The output is the concatenation of the heads
    ``@ out_weight + out_bias``. This is PyTorch's MultiheadAttention, whose weights are transposed. If a call passes `lengths`,
    no step after a sample's length is seen, and outputs there have no meaning. Source: Vaswani et al. 2017.

    Parameters
    ----------
    features : int
        The last length of samples (time, features); the output has the same shape.
    heads : int
        The number of parts of the features that attend separately; a divisor of the features.
    causal : bool
        Whether a step sees itself and earlier steps only.
    bias : bool
        Whether there are biases.
    weight_init, bias_init : initializer
        Of both weights, in_weight (features, 3 features) and out_weight (features, features), and of both biases.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    def __init__(
        self, features: int, heads: int = 1, *, causal: bool = False, bias: bool = True,
        weight_init: InitializerLike = "glorot_uniform", bias_init: InitializerLike = "zeros",
    ) -> None:  # fmt: skip
        self.features = check_count("features", features)
        self.heads = check_count("heads", heads)
        if self.features % self.heads:
            raise ValueError(f"`heads` (={heads}) must divide `features` (={features})")
        check_flags(causal=causal, bias=bias)
        self.causal = causal
        self.bias = bias
        self.weight_init = initializer(weight_init, "weight_init")
        self.bias_init = initializer(bias_init, "bias_init")

    def declare(self, d: Declaration) -> None:
        time, features = check_sequence(self, d.input, "features", self.features)
        d.param("in_weight", (features, 3 * features), self.weight_init)
        if self.bias:
            d.param("in_bias", (3 * features,), self.bias_init)
        d.param("out_weight", (features, features), self.weight_init)
        if self.bias:
            d.param("out_bias", (features,), self.bias_init)
        d.timed = True
        d.output(d.input)
        d.saved("projected", (time, 3 * features))  # queries, keys and values
        d.saved("shares", (self.heads, time, time))  # of each step in what another one takes
        d.saved("mixed", d.input)
        d.temporary("row", (self.heads, time, 1))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.projected.rows, x.rows, p.in_weight)
        if self.bias:
            ops.map(s.projected, lambda z, b: z + b, s.projected, p.in_bias)
        queries, keys, values = self._heads(s.projected)
        ops.matmul(s.shares, queries, keys.swap(-1, -2))
        self._record_softmax(ops, s.shares, s.row)
        ops.matmul(self._of_heads(s.mixed), s.shares, values)
        ops.matmul(y.rows, s.mixed.rows, p.out_weight)
        if self.bias:
            ops.map(y, lambda z, b: z + b, y, p.out_bias)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        d_mixed, d_projected = (ops.scratch(f"d_{name}", getattr(s, name).sample_shape) for name in ("mixed", "projected"))
        d_shares, products = (ops.scratch(name, s.shares.sample_shape) for name in ("d_shares", "products"))
        ops.matmul(g.out_weight, s.mixed.rows.T, dy.rows)
        ops.matmul(d_mixed.rows, dy.rows, p.out_weight.T)
        (queries, keys, values), (d_queries, d_keys, d_values) = self._heads(s.projected), self._heads(d_projected)
        d_mixed, scale = self._of_heads(d_mixed), self._scale
        ops.matmul(d_values, s.shares.swap(-1, -2), d_mixed)
        ops.matmul(d_shares, d_mixed, values.swap(-1, -2))
        ops.map(products, lambda d, share: d * share, d_shares, s.shares)
        ops.sum(s.row, products)
        ops.map(d_shares, lambda d, share, total: share * (d - total) * scale, d_shares, s.shares, s.row)
        ops.matmul(d_queries, d_shares, keys)
        ops.matmul(d_keys, d_shares.swap(-1, -2), queries)
        ops.matmul(g.in_weight, x.rows.T, d_projected.rows)
        if self.bias:
            ops.sum(g.in_bias, d_projected)
            ops.sum(g.out_bias, dy)
        ops.matmul(dx.rows, d_projected.rows, p.in_weight.T)

    @property
    def _scale(self) -> float:
        return 1.0 / math.sqrt(self.features // self.heads)

    def _heads(self, projected: View) -> tuple[View, View, View]:
        """Queries, keys and values, each (batch, heads, time, features of a head)."""
        n = self.features
        queries, keys, values = (self._of_heads(projected.slice(-1, k * n, (k + 1) * n)) for k in range(3))
        return queries, keys, values

    def _of_heads(self, steps: View) -> View:
        """Steps (batch, time, features) as (batch, heads, time, features of a head)."""
        return steps.split(-1, self.heads).swap(-3, -2)

    def _record_softmax(self, ops: Recorder, scores: View, row: View) -> None:
        """Record that scores become shares: softmax over the last axis, of the steps that may be seen."""
        time, scale = scores.sample_shape[-1], self._scale
        if self.causal:
            seen = ops.constant("seen", np.tri(time))  # (time, time): 1 where a step sees another
            ops.map(scores, lambda s, seen: where(seen > 0.5, s, FORBIDDEN), scores, seen)
        if ops.lengths is not None:
            numbers, lengths = ops.constant("numbers of steps", np.arange(time)), ops.lengths.expand(1).expand(2).expand(3)
            ops.map(scores, lambda s, number, length: where(number < length, s, FORBIDDEN), scores, numbers, lengths)
        ops.max(row, scores)
        ops.map(scores, lambda s, largest: exp((s - largest) * scale), scores, row)
        ops.sum(row, scores)
        ops.map(scores, lambda e, total: e / total, scores, row)


class TransformerBlock(Series):
    """``x = x + attention(norm(x))``, then ``x + dense(activation(dense(norm(x))))``: a block of an encoder, norms first.

    This is PyTorch's TransformerEncoderLayer(norm_first=True) without dropout of attention's shares.

    Parameters
    ----------
    features, heads
        As of `Attention`.
    hidden : int, optional
        The outputs of the first dense layer; by default 4 times the features.
    activation : activation or str
        After the first dense layer.
    causal : bool
        As of `Attention`.
    dropout : float
        The rate of `Dropout` after attention, after the activation, and at the end.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    def __init__(
        self, features: int, heads: int = 1, hidden: int | None = None, *, activation: Activation | str = "relu",
        causal: bool = False, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        attention = Attention(features, heads, causal=causal)
        hidden = 4 * attention.features if hidden is None else check_count("hidden", hidden)
        check_number("dropout", dropout, "in [0, 1)")
        drop = (Dropout(dropout),) if dropout else ()
        first, last = Dense(attention.features, hidden, activation), Dense(hidden, attention.features)
        super().__init__(
            Residual(LayerNorm(attention.features), attention, *drop),
            Residual(LayerNorm(attention.features), first, *drop, last, *drop),
        )
        self.attention, self.hidden, self.activation, self.dropout = attention, hidden, first.activation, dropout
        self.features, self.heads, self.causal = attention.features, attention.heads, attention.causal

    __repr__ = Layer.__repr__

    def fixed_input(self) -> SampleShape | None:
        return None

    def declare(self, d: Declaration) -> None:
        check_sequence(self, d.input, "features", self.attention.features)
        super().declare(d)


class PositionalEncoding(Layer):
    """``y = x + encoding``, which makes the steps of a sequence distinguishable; samples are (time, features).

    Source: Vaswani et al. 2017.

    Parameters
    ----------
    kind : str
        "sinusoidal": sin(t / 10000^(2 k / features)) of the step's number t at feature 2 k, and its cosine at 2 k + 1.
        "learned": the parameter `encoding`, (time, features).
    init : initializer
        Of a learned encoding.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    def __init__(self, kind: str = "sinusoidal", *, init: InitializerLike = "normal") -> None:
        check_word("kind", kind, "sinusoidal", "learned")
        self.kind = kind
        self.init = initializer(init, "init")

    def declare(self, d: Declaration) -> None:
        check_sequence(self, d.input)
        if self.kind == "learned":
            d.param("encoding", d.input, self.init)
        d.output(d.input)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        learned = self.kind == "learned"
        encoding = p.encoding if learned else ops.constant("encoding", sinusoids(*x.sample_shape))
        ops.map(y, lambda x, encoding: x + encoding, x, encoding)


def sinusoids(time: int, features: int) -> np.ndarray:
    """The sinusoidal encoding of this many steps, shape (time, features)."""
    pairs = np.arange(features) // 2
    angles = np.arange(time)[:, None] / 10000.0 ** (2.0 * pairs / features)
    return np.where(np.arange(features) % 2 == 0, np.sin(angles), np.cos(angles))
