"""Batch normalisation, with running statistics in the network's state."""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.expr import sqrt
from chains.layers.base import Declaration, Layer
from chains.layers.norm import channels_first, inverse_root, sum_over_samples
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_flags, check_number


class BatchNorm(Layer):
    """``y = (x - mean) / sqrt(variance + eps) * weight + bias``, with a mean and a variance for each channel. As in PyTorch.

    While training, mean and biased variance are those of the batch, over samples and positions, and the gradient goes through
    them. At evaluation they are ``running_mean`` and ``running_var``, two slices of the network's state. Training updates
    these, of frozen layers too: ``running = (1 - momentum) * running + momentum * new``, with the unbiased variance. Where the
    batch is divided among processes (`comm`), they are those of the whole batch. Source: Ioffe and Szegedy 2015.

    Parameters
    ----------
    channels : int
        The first length of samples (channels,) or (channels, length, ...).
    momentum : float
        The weight of a batch in the running statistics, from 0 to 1.
    eps : float
        Added to the variance; positive.
    affine : bool
        Whether there are a weight and a bias, of shape (channels,).

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name; while training, for batches with a single number a channel.
    """

    def __init__(self, channels: int, *, momentum: float = 0.1, eps: float = 1e-5, affine: bool = True) -> None:
        self.channels = check_count("channels", channels)
        check_number("momentum", momentum, "in [0, 1]")
        check_number("eps", eps, "in (0, inf)")
        check_flags(affine=affine)
        self.momentum = momentum
        self.eps = eps
        self.affine = affine

    def declare(self, d: Declaration) -> None:
        if channels_first(self.channels, d.input) == 1:
            d.batch_at_least(2)  # the variance of one number says nothing
        if self.affine:
            d.param("weight", (self.channels,), "ones")
            d.param("bias", (self.channels,), "zeros")
        d.state("running_mean", (self.channels,), "zeros")
        d.state("running_var", (self.channels,), "ones")
        d.output(d.input)
        d.shared("mean", (self.channels, 1))
        d.shared("scale", (self.channels, 1))  # 1 / sqrt(variance + eps)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        x, y = self._grid(x), self._grid(y)
        eps, (weight, bias) = self.eps, self._affine(ops, p)
        if ops.training:
            self._statistics(ops, x, s)
            ops.map(y, lambda x, mean, scale, w, b: (x - mean) * (scale * w) + b, x, s.mean, s.scale, weight, bias)
        else:
            running = (_column(view) for view in (s.state.running_mean, s.state.running_var))
            ops.map(y, lambda x, mean, var, w, b: (x - mean) * (w / sqrt(var + eps)) + b, x, *running, weight, bias)

    def _statistics(self, ops: Recorder, x: View, s: Any) -> None:
        """Record the batch's mean and scale, and the new running statistics."""
        eps, momentum = self.eps, self.momentum
        share = 1.0 / int(x.shape[-1])  # type: ignore[arg-type]
        inverse = ops.inverse_batch
        squares = ops.scratch("squares", x.sample_shape)
        variance = ops.scratch("variance", s.mean.sample_shape, batched=False)
        sum_over_samples(ops, s.mean, x)
        (total,) = ops.over_processes(s.mean)
        ops.map(s.mean, lambda total, inverse: total * (inverse * share), total, inverse)
        ops.map(squares, lambda x, mean: (x - mean) * (x - mean), x, s.mean)
        sum_over_samples(ops, variance, squares)
        (total,) = ops.over_processes(variance)
        ops.map(variance, lambda total, inverse: total * (inverse * share), total, inverse)
        ops.map(s.scale, lambda variance: inverse_root(variance + eps), variance)
        ops.map(
            _column(s.new_state.running_mean),
            lambda old, mean: (1.0 - momentum) * old + momentum * mean,
            _column(s.state.running_mean), s.mean,
        )  # fmt: skip
        ops.map(  # unbiased: times n / (n - 1)
            _column(s.new_state.running_var),
            lambda old, variance, inverse: (1.0 - momentum) * old + momentum / (1.0 - inverse * share) * variance,
            _column(s.state.running_var), variance, inverse,
        )  # fmt: skip

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        x, dy, dx = (self._grid(view) for view in (x, dy, dx))
        eps, shape = self.eps, s.mean.sample_shape
        slope, *totals = (ops.scratch(name, shape, batched=False) for name in ("slope", "total", "total_product"))
        total, total_product = (_column(g.bias), _column(g.weight)) if self.affine else totals
        if not ops.training:
            ops.copy(s.mean, _column(s.state.running_mean))
            ops.map(s.scale, lambda var: 1.0 / sqrt(var + eps), _column(s.state.running_var))
        product = ops.scratch("product", x.sample_shape)  # the normalised x times dy
        ops.map(product, lambda x, mean, scale, dy: (x - mean) * scale * dy, x, s.mean, s.scale, dy)
        sum_over_samples(ops, total_product, product)
        sum_over_samples(ops, total, dy)
        ops.map(slope, lambda scale, w: scale * w, s.scale, self._affine(ops, p)[0])
        if ops.training:
            self._through_statistics(ops, x, dy, total, total_product, s)
        ops.map(dx, lambda dy, slope: dy * slope, dy, slope)

    def _through_statistics(self, ops: Recorder, x: View, dy: View, total: View, total_product: View, s: Any) -> None:
        """Record what dy loses because mean and variance depend on x too."""
        share = 1.0 / int(x.shape[-1])  # type: ignore[arg-type]
        shift, factor = (ops.scratch(name, s.mean.sample_shape, batched=False) for name in ("shift", "factor"))
        inverse = ops.inverse_batch
        total, total_product = ops.over_processes(total, total_product)
        ops.map(shift, lambda total, inverse: total * (inverse * share), total, inverse)
        ops.map(factor, lambda total, scale, inverse: scale * total * (inverse * share), total_product, s.scale, inverse)
        ops.map(dy, lambda dy, x, mean, shift, factor: dy - shift - (x - mean) * factor, dy, x, s.mean, shift, factor)

    def _affine(self, ops: Recorder, p: Any) -> tuple[View, View]:
        """Weight and bias, or one and zero."""
        if self.affine:
            return _column(p.weight), _column(p.bias)
        return ops.constant("one", np.ones(())), ops.constant("zero", np.zeros(()))

    def _grid(self, view: View) -> View:
        """Samples as (channels, positions)."""
        return view.reshape(self.channels, view.sample_size // self.channels)

    def __repr__(self) -> str:
        parts = [str(self.channels)]
        parts += [] if self.momentum == 0.1 else [f"momentum={self.momentum:g}"]
        parts += [] if self.eps == 1e-5 else [f"eps={self.eps:g}"]
        return f"BatchNorm({', '.join(parts)}{'' if self.affine else ', affine=False'})"


def _column(vector: View) -> View:
    """(channels,) as (channels, 1)."""
    return vector.reshape(vector.sample_size, 1)
