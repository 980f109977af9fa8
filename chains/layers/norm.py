"""Normalisations: within one sample (layer, root mean square, group), and over the batch."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np

from chains.expr import sqrt
from chains.layers.base import Declaration, Layer, SampleShape
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_flags, check_number


class Grid(NamedTuple):
    """How a normalisation sees a sample: three shapes of as many axes, which broadcast to the first one."""

    values: SampleShape
    statistics: SampleShape  # one mean and one variance for each of these
    parameters: SampleShape

    @property
    def group(self) -> int:
        """How many values of a sample share their statistics."""
        return math.prod(self.values) // math.prod(self.statistics)


class Normalization(Layer):
    """``y = (x - mean) / sqrt(variance + eps) * weight + bias``, with the mean and biased variance of parts of each sample.

    Parameters
    ----------
    eps : float
        Added to the variance; positive.
    affine : bool
        Whether there are a weight and a bias.
    """

    def __init__(self, *, eps: float = 1e-5, affine: bool = True) -> None:
        check_number("eps", eps, "in (0, inf)")
        check_flags(affine=affine)
        self.eps = eps
        self.affine = affine

    @abstractmethod
    def grid(self, input: SampleShape) -> Grid:
        """The grid of samples of this shape. Raises ValueError if they do not fit."""

    @abstractmethod
    def parameter_shape(self, input: SampleShape) -> SampleShape:
        """The shape of weight and bias."""

    def declare(self, d: Declaration) -> None:
        grid = self.grid(d.input)
        if self.affine:
            d.param("weight", self.parameter_shape(d.input), "ones")
            d.param("bias", self.parameter_shape(d.input), "zeros")
        d.output(d.input)
        d.saved("mean", grid.statistics)
        d.saved("scale", grid.statistics)  # 1 / sqrt(variance + eps)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        grid, eps = self.grid(x.sample_shape), self.eps
        share = 1.0 / grid.group
        x, y = x.reshape(*grid.values), y.reshape(*grid.values)
        squares = ops.scratch("squares", grid.values)
        ops.sum(s.mean, x)
        ops.map(s.mean, lambda total: total * share, s.mean)
        ops.map(squares, lambda x, mean: (x - mean) * (x - mean), x, s.mean)
        ops.sum(s.scale, squares)
        ops.map(s.scale, lambda total: inverse_root(total * share + eps), s.scale)
        if self.affine:
            weight, bias = (view.reshape(*grid.parameters) for view in (p.weight, p.bias))
            ops.map(y, lambda x, mean, scale, w, b: (x - mean) * scale * w + b, x, s.mean, s.scale, weight, bias)
        else:
            ops.map(y, lambda x, mean, scale: (x - mean) * scale, x, s.mean, s.scale)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        grid = self.grid(x.sample_shape)
        share = 1.0 / grid.group
        x, dy, dx = (view.reshape(*grid.values) for view in (x, dy, dx))
        product = ops.scratch("product", grid.values)  # the normalised x times dy
        total, total_product = (ops.scratch(name, grid.statistics) for name in ("total", "total_product"))
        ops.map(product, lambda x, mean, scale, dy: (x - mean) * scale * dy, x, s.mean, s.scale, dy)
        if self.affine:
            sum_over_samples(ops, g.weight.reshape(*grid.parameters), product)
            sum_over_samples(ops, g.bias.reshape(*grid.parameters), dy)
            weight = p.weight.reshape(*grid.parameters)
            ops.map((product, dy), lambda product, dy, w: (product * w, dy * w), product, dy, weight)
        ops.sum(total, dy)
        ops.sum(total_product, product)
        ops.map(
            dx,
            lambda dy, x, mean, scale, total, total_product: (
                (dy - total * share - (x - mean) * (scale * total_product * share)) * scale
            ),
            dy, x, s.mean, s.scale, total, total_product,
        )  # fmt: skip


class LayerNorm(Normalization):
    """``y = (x - mean) / sqrt(variance + eps) * weight + bias``, with mean and biased variance over the last axes of a sample.

    As in PyTorch. Source: Ba, Kiros and Hinton 2016.

    Parameters
    ----------
    shape : int or tuple of int, optional
        The lengths of these axes, and the shape of weight and bias; by default that of the last axis.
    eps : float
        Added to the variance; positive.
    affine : bool
        Whether there are a weight and a bias.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    def __init__(self, shape: int | SampleShape | None = None, *, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__(eps=eps, affine=affine)
        if shape is not None:
            shape = tuple(check_count("shape", length) for length in (shape if isinstance(shape, (tuple, list)) else (shape,)))
            if not shape:
                raise ValueError("`shape` (=()) must have at least one axis")
        self.shape = shape

    def fixed_input(self) -> SampleShape | None:
        return self.shape

    def parameter_shape(self, input: SampleShape) -> SampleShape:
        return input[-1:] if self.shape is None else self.shape

    def grid(self, input: SampleShape) -> Grid:
        shape = self.parameter_shape(input)
        if not shape:
            raise ValueError(f"{self!r} needs samples with at least one axis, not scalars")
        if input[-len(shape) :] != shape:
            raise ValueError(f"`shape` (={shape}) must be the last lengths of the input's shape {input}")
        size = math.prod(shape)
        rows = math.prod(input) // size
        return Grid((rows, size), (rows, 1), (1, size))


class RMSNorm(LayerNorm):
    """``y = x / sqrt(mean(x^2) + eps) * weight``, with the mean over the last axes of a sample.

    As in PyTorch with the same eps. Source: Zhang and Sennrich 2019.

    Parameters
    ----------
    shape, eps, affine
        As of `LayerNorm`; there is no bias.
    """

    def declare(self, d: Declaration) -> None:
        grid = self.grid(d.input)
        if self.affine:
            d.param("weight", self.parameter_shape(d.input), "ones")
        d.output(d.input)
        d.saved("scale", grid.statistics)  # 1 / sqrt(mean(x^2) + eps)

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        grid, eps = self.grid(x.sample_shape), self.eps
        share = 1.0 / grid.group
        x, y = x.reshape(*grid.values), y.reshape(*grid.values)
        squares = ops.scratch("squares", grid.values)
        ops.map(squares, lambda x: x * x, x)
        ops.sum(s.scale, squares)
        ops.map(s.scale, lambda total: 1.0 / sqrt(total * share + eps), s.scale)
        if self.affine:
            ops.map(y, lambda x, scale, w: x * scale * w, x, s.scale, p.weight.reshape(*grid.parameters))
        else:
            ops.map(y, lambda x, scale: x * scale, x, s.scale)

    def pullback(self, ops: Recorder, x: View, y: View, dy: View, dx: View, p: Any, g: Any, s: Any) -> None:
        grid = self.grid(x.sample_shape)
        share = 1.0 / grid.group
        x, dy, dx = (view.reshape(*grid.values) for view in (x, dy, dx))
        product = ops.scratch("product", grid.values)  # the normalised x times dy
        total = ops.scratch("total", grid.statistics)
        ops.map(product, lambda x, scale, dy: x * scale * dy, x, s.scale, dy)
        if self.affine:
            sum_over_samples(ops, g.weight.reshape(*grid.parameters), product)
            weight = p.weight.reshape(*grid.parameters)
            ops.map((product, dy), lambda product, dy, w: (product * w, dy * w), product, dy, weight)
        ops.sum(total, product)
        ops.map(
            dx, lambda dy, x, scale, total: (dy - x * (scale * total * share)) * scale, dy, x, s.scale, total
        )  # fmt: skip


class GroupNorm(Normalization):
    """``y = (x - mean) / sqrt(variance + eps) * weight + bias``, with mean and biased variance over groups of channels.

    A group includes all positions of its channels. With one group for each channel it is instance normalisation. As in PyTorch.
    Source: Wu and He 2018.

    Parameters
    ----------
    groups : int
        The number of groups of equal size; a divisor of the channels.
    channels : int
        The first length of samples (channels,) or (channels, length, ...), and the length of weight and bias.
    eps, affine
        As of `LayerNorm`.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    def __init__(self, groups: int, channels: int, *, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__(eps=eps, affine=affine)
        self.groups = check_count("groups", groups)
        self.channels = check_count("channels", channels)
        if self.channels % self.groups:
            raise ValueError(f"`channels` (={channels}) must be divisible by `groups` (={groups})")

    def parameter_shape(self, input: SampleShape) -> SampleShape:
        return (self.channels,)

    def grid(self, input: SampleShape) -> Grid:
        positions = channels_first(self.channels, input)
        per_group = self.channels // self.groups
        return Grid((self.groups, per_group, positions), (self.groups, 1, 1), (self.groups, per_group, 1))


def sum_over_samples(ops: Recorder, out: View, a: View) -> None:
    """Record out = the sum of `a` over the batch, and over the axes that `out` has with length 1."""
    if out.shape[-1] == 1 < int(a.shape[-1]):  # type: ignore[arg-type]
        rows = ops.scratch("rows", out.sample_shape)
        ops.sum(rows, a)  # first along what lies together in memory
        a = rows
    ops.sum(out, a)


def inverse_root(variance: Any) -> Any:
    """1 / sqrt(variance), but NaN for an infinite variance: squares that overflow give NaN on every backend.

    With 0 instead, the order in which a backend sums the mean would decide between 0 and NaN.
    """
    return sqrt(variance) / variance


def channels_first(channels: int, input: SampleShape) -> int:
    """The number of positions of a sample (channels, ...). Raises ValueError if its first length is different."""
    if input[:1] != (channels,):
        hint = "; the channels are the first axis, not the last" if input[-1:] == (channels,) else ""
        raise ValueError(f"`channels` (={channels}) must be the first length of the input's shape {input}{hint}")
    return math.prod(input[1:])


class BatchNorm(Layer):
    """``y = (x - mean) / sqrt(variance + eps) * weight + bias``, with a mean and a variance for each channel. As in PyTorch.

    While training, mean and biased variance are those of the batch, over samples and positions, and the gradient takes this
    into account. At evaluation they are ``running_mean`` and ``running_var``, two slices of the network's state. Training
    updates these, even of frozen layers: ``running = (1 - momentum) * running + momentum * new``, with the unbiased variance.
    If the batch is divided among processes (`comm`), the statistics are those of the whole batch. Source: Ioffe and Szegedy
    2015.

    Parameters
    ----------
    channels : int
        The first length of samples (channels,) or (channels, length, ...).
    momentum : float
        The weight of a batch in the running statistics, from 0 to 1.
    eps, affine
        As of `LayerNorm`. Weight and bias have the shape (channels,).

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
        """Record the part of dy that comes from the dependence of mean and variance on x."""
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


def _column(vector: View) -> View:
    """(channels,) as (channels, 1)."""
    return vector.reshape(vector.sample_size, 1)
