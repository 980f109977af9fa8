"""Losses: the distance of outputs from targets, averaged over the batch, and its gradient.

Weights are factors of the samples' losses, or of the single terms: with a weight for each target, the squared loss is
``sum(w * (y - t) ** 2) / (2 * batch)`` and the mean of squares ``sum(w * (y - t) ** 2) / (batch * outputs)``. The denominators
do not depend on the weights; weights of one change nothing. This is ``(w * loss(y, t)).mean()`` for a loss of PyTorch with
``reduction="none"``. Weights may be any finite numbers. A target of weight zero is left out and may be NaN. A negative weight
makes training raise the loss of its sample, as a negative advantage does in policy gradients.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.activations import sigmoid
from chains.expr import exp, log, log1p, maximum, sign, where
from chains.expr.derivatives import derivative as derive
from chains.expr.formulas import Replay, traced
from chains.layers.derived import derive as derive_pullback
from chains.layers.node import check_filled
from chains.layers.softmax import log_sum_exp
from chains.program.places import Place
from chains.program.recorder import Recorder
from chains.program.settings import FrozenOnceRecorded
from chains.program.view import View, scratch_like
from chains.support.checks import check_flags, check_labels, check_number, check_text

__all__ = [
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "HuberLoss",
    "L1Loss",
    "Loss",
    "MSELoss",
    "PoissonNLLLoss",
    "QuantileLoss",
    "SquaredLoss",
    "loss",
]

SampleShape = tuple[int, ...]


class Loss(FrozenOnceRecorded, ABC):
    """A loss function. Losses of equal settings are equal, so that their programs are shared.

    After a program was recorded with a custom loss, its attributes are fixed: a change raises AttributeError.
    """

    takes_logits = False  # whether outputs are logits, so that a softmax before the loss would be a mistake
    weighs_targets = False  # whether `record` takes weights of the shape of the targets

    def check_target(self, output: SampleShape, target: SampleShape) -> None:
        """Raise ValueError unless targets of this sample shape go with outputs of that one.

        Parameters
        ----------
        output, target : tuple of int
            The shapes of one sample's outputs and of its target.
        """
        if target != output:
            hint = ""
            if (*target, 1) == output:
                hint = "; add an axis with t[..., None]"
            elif target == output[:-1]:
                hint = f"; for class labels, use data.one_hot(t, {output[-1]}) or CrossEntropyLoss()"
            raise ValueError(f"targets must have the sample shape of the outputs, {output}, got {target}{hint}")

    def check_values(self, t: np.ndarray, output: SampleShape) -> None:
        """Raise ValueError if the loss is not defined for a value of the targets.

        Parameters
        ----------
        t : array, shape (batch, ...)
            The targets.
        output : tuple of int
            The shape of one sample's outputs.
        """

    def forward(self, ops: Recorder, y: View, t: View, w: View | None, value: View) -> None:
        """Record how the loss is filled; its gradient is derived. Other views may not be written to.

        Parameters
        ----------
        ops, y, t, w, value
            As of `record`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method `forward`, from which its gradient could be derived")

    def record(self, ops: Recorder, y: View, t: View, w: View | None, value: View, dy: View) -> None:
        """Record how the loss and its gradient are filled. Other views may not be written to.

        A class without this method gets the gradient from the operations of `forward`.

        Parameters
        ----------
        ops : Recorder
            The operations.
        y, t : View, shapes (batch, *output) and (batch, *target)
            Outputs and targets.
        w : View, shape (batch,), or None
            Weights of the samples; of the steps, (batch, steps), if outputs have an axis of steps and samples have lengths.
            With `weighs_targets`, they may have the shape of `t`. A target of weight 0 may be NaN.
        value : View, shape ()
            Filled with the loss.
        dy : View, shape (batch, *output)
            Filled with its gradient.
        """
        given = dy if dy.contiguous else scratch_like(dy, "dy")
        slope = ops.scratch("d value", (), batched=False)
        places = [Place(y, given), Place(value, slope)]
        operations, pullback = derive_pullback(ops, lambda: self.forward(ops, y, t, w, value), places, [value], "")
        check_filled(f"{type(self).__name__}.forward", operations, {"value": value})
        ops.operations += operations
        ops.fill(slope, 1.0)
        ops.operations += pullback
        ops.copy(dy, given)


class SeriesLoss(Loss):
    """A loss of derivatives of the outputs with respect to the inputs, as coefficients of series along directions."""

    outputs: tuple[str, ...]

    @property
    @abstractmethod
    def orders(self) -> tuple[int, ...]:
        """The highest order of derivative along each direction."""

    @property
    @abstractmethod
    def tangents(self) -> np.ndarray:
        """The directions as vectors, shape (directions, coordinates)."""

    @property
    @abstractmethod
    def equations(self) -> int:
        """The largest number of equations of a term."""

    @abstractmethod
    def record_series(self, ops: Recorder, x: View, rows: Any, t: View, w: View | None, value: View, adjoints: Any) -> None:
        """Record how `value` and the `adjoints` are filled from the coefficients of the outputs, `rows`.

        Both have the same outputs and indices; coefficients without a row are zero.
        """

    @abstractmethod
    def record_equation(self, ops: Recorder, number: int, x: View, rows: Any, t: View, residual: View, adjoints: Any) -> None:
        """Record one equation of each point's term: its `residual` (batch,), times the root of the weight, and its slopes.

        Arguments as of `record_series`. Terms with fewer equations give zeros.
        """


@dataclass(frozen=True)
class ElementwiseLoss(Loss):
    """``factors[0] * function(y, t)`` summed over a sample's outputs, or averaged over them, and averaged over the batch.

    Weights multiply these terms before the sum.

    ``factors[1] * derivative(y, t)`` is the derivative of a term with respect to y. Constant factors are separate because they
    need not be multiplied element by element.
    """

    name: str
    function: Callable[[Any, Any], Any]
    derivative: Callable[[Any, Any], Any]
    average: bool = False
    factors: tuple[float, float] = (1.0, 1.0)

    weighs_targets = True

    def record(self, ops: Recorder, y: View, t: View, w: View | None, value: View, dy: View) -> None:
        f, df = self.function, self.derivative
        outputs = math.prod(y.sample_shape) if self.average else 1
        factor, slope_factor = (number / outputs for number in self.factors)
        terms = ops.scratch("terms", y.sample_shape)
        inverse = ops.inverse_batch
        if w is None:
            ops.map((terms, dy), lambda y, t, inverse: (f(y, t), df(y, t) * (inverse * slope_factor)), y, t, inverse)
        else:
            ops.map(
                (terms, dy),
                lambda y, t, w, inverse: (
                    where(w == 0.0, 0.0, f(y, t) * w),
                    where(w == 0.0, 0.0, df(y, t) * (w * (inverse * slope_factor))),
                ),
                y, t, _column(w, y.ndim), inverse,
            )  # fmt: skip
        ops.sum(value, terms)
        ops.map(value, lambda value, inverse: value * (inverse * factor), value, inverse)

    def __repr__(self) -> str:
        return self.name


def loss(
    name: str, function: Callable[[Any, Any], Any], *, derivative: Callable[[Any, Any], Any] | None = None,
    average: bool = False,
) -> Loss:  # fmt: skip
    """Make a custom loss: a function of one output and its target, summed over a sample's outputs and averaged over the batch.

    Parameters
    ----------
    name : str
        The name that is printed.
    function : callable
        ``function(y, t)``, in arithmetic and the functions of `chains.expr`.
    derivative : callable, optional
        ``derivative(y, t)``, with respect to y. None derives it from the function; at kinks it is the derivative from the left.
    average : bool
        Whether to average over a sample's outputs, instead of summing.

    Raises
    ------
    TypeError, ValueError
        Where one of the functions cannot be traced; the error names the loss.
    """
    check_text("name", name)
    check_flags(average=average)
    what = f"loss {name!r}"
    formula = traced(what, function, 2)
    derived = derive(formula) if derivative is None else traced(f"{what}, derivative", derivative, 2)
    return ElementwiseLoss(name, Replay(formula), Replay(derived), average)


def _square(y: Any, t: Any) -> Any:
    return (y - t) * (y - t)


def _difference(y: Any, t: Any) -> Any:
    return y - t


class SquaredLoss(ElementwiseLoss):
    """Half the sum of squared differences over a sample's outputs, averaged over the batch (Nielsen's quadratic cost)."""

    def __init__(self) -> None:
        super().__init__("SquaredLoss()", _square, _difference, factors=(0.5, 1.0))


class MSELoss(ElementwiseLoss):
    """The mean of squared differences over all outputs and samples."""

    def __init__(self) -> None:
        super().__init__("MSELoss()", _square, _difference, average=True, factors=(1.0, 2.0))


def _absolute(y: Any, t: Any) -> Any:
    return abs(y - t)


def _absolute_slope(y: Any, t: Any) -> Any:
    return sign(y - t)


class L1Loss(ElementwiseLoss):
    """The mean of absolute differences over all outputs and samples."""

    def __init__(self) -> None:
        super().__init__("L1Loss()", _absolute, _absolute_slope, average=True)


@dataclass(frozen=True)
class _Huber:
    """Huber's function and, with `slope`, its derivative; a dataclass so that equal deltas are equal functions."""

    delta: float
    slope: bool = False

    def __call__(self, y: Any, t: Any) -> Any:
        d, delta = y - t, self.delta
        if self.slope:
            return where(abs(d) <= delta, d, delta * sign(d))
        return where(abs(d) <= delta, 0.5 * d * d, delta * (abs(d) - 0.5 * delta))


class HuberLoss(ElementwiseLoss):
    """The mean of d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), for differences d. Source: Huber 1964.

    Parameters
    ----------
    delta : float
        The largest difference that is squared; positive.

    Raises
    ------
    TypeError, ValueError
        For another delta.
    """

    def __init__(self, delta: float = 1.0) -> None:
        check_number("delta", delta, "in (0, inf)")
        super().__init__(f"HuberLoss({delta:g})", _Huber(delta), _Huber(delta, slope=True), average=True)


def _bce(y: Any, t: Any) -> Any:
    return maximum(y, 0.0) - y * t + log1p(exp(-abs(y)))


def _bce_slope(y: Any, t: Any) -> Any:
    return sigmoid(y) - t


class BCEWithLogitsLoss(ElementwiseLoss):
    """The mean binary cross-entropy of sigmoid(y) against targets in [0, 1], over all outputs and samples.

    The outputs y are logits: the loss itself applies the sigmoid. A logit above 0 means class 1; the metric is
    ``partial(accuracy, threshold=0)``.
    """

    takes_logits = True

    def __init__(self) -> None:
        super().__init__("BCEWithLogitsLoss()", _bce, _bce_slope, average=True)

    def check_values(self, t: np.ndarray, output: SampleShape) -> None:
        low, high = t.min(), t.max()
        if not (low >= 0 and high <= 1):
            raise ValueError(f"targets must be from 0 to 1, got {high if low >= 0 else low}")


def poisson(y: Any, t: Any) -> Any:
    """The negative log-likelihood of a count t, for the logarithm y of the mean, without the terms that depend on t alone."""
    return exp(y) - t * y


def poisson_slope(y: Any, t: Any) -> Any:
    return exp(y) - t


@dataclass(frozen=True)
class _PoissonOfMean:
    """`poisson` for the mean y itself and, with `slope`, its derivative."""

    eps: float
    slope: bool = False

    def __call__(self, y: Any, t: Any) -> Any:
        return 1.0 - t / (y + self.eps) if self.slope else y - t * log(y + self.eps)


@dataclass(frozen=True)
class _WithStirling:
    """`function` plus Stirling's approximation of log(t!), which is 0 for counts of 0 and 1."""

    function: Callable[[Any, Any], Any]

    def __call__(self, y: Any, t: Any) -> Any:
        n = maximum(t, 1.0)
        return self.function(y, t) + where(t > 1.0, (n + 0.5) * log(n) - n + 0.5 * math.log(2.0 * math.pi), 0.0)


class PoissonNLLLoss(ElementwiseLoss):
    """The mean negative log-likelihood of counts t >= 0 with Poisson's distribution, as PyTorch's.

    Parameters
    ----------
    log_input : bool
        Whether outputs y are the logarithms of means, with terms ``exp(y) - t * y``. Otherwise they are the means, with terms
        ``y - t * log(y + eps)``; these must not be negative, as after softplus.
    full : bool
        Whether to add Stirling's approximation of ``log(t!)`` where t > 1: ``t * log(t) - t + log(2 * pi * t) / 2``.
    eps : float
        Keeps the logarithm of a mean finite; positive.

    Raises
    ------
    TypeError, ValueError
        For other settings.
    """

    def __init__(self, log_input: bool = True, full: bool = False, eps: float = 1e-8) -> None:
        check_flags(log_input=log_input, full=full)
        check_number("eps", eps, "in (0, inf)")
        function, slope = (poisson, poisson_slope) if log_input else (_PoissonOfMean(eps), _PoissonOfMean(eps, slope=True))
        name = f"PoissonNLLLoss(log_input={log_input}, full={full}, eps={eps:g})"
        super().__init__(name, _WithStirling(function) if full else function, slope, average=True)

    def check_values(self, t: np.ndarray, output: SampleShape) -> None:
        if not (low := t.min()) >= 0:
            raise ValueError(f"counts must not be negative, got {low}")


def _check_blocks(output: SampleShape, target: SampleShape, blocks: int, what: str) -> None:
    """Raise ValueError unless the last axis of outputs holds `blocks` numbers for each target."""
    if not output or output[-1] % blocks:
        raise ValueError(f"outputs must have {what} along their last axis, got the sample shape {output}")
    wanted = (*output[:-1], output[-1] // blocks)
    if target not in (wanted, wanted[:-1] if wanted[-1] == 1 else wanted):
        raise ValueError(
            f"targets for outputs of sample shape {output}, with {what} along the last axis, must have the sample shape "
            f"{wanted}, got {target}"
        )


@dataclass(frozen=True, kw_only=True)
class GaussianNLLLoss(Loss):
    """The mean negative log-likelihood of targets with normal distributions; the outputs are means and variances.

    The last axis of the outputs holds all means, then all variances: outputs of sample shape (*shape, 2 * n) are for targets
    (*shape, n), or (*shape) where n is 1. Each target t with its mean m and variance v has the term
    ``(log(v) + (t - m)**2 / v) / 2``. PyTorch's takes the means as ``input`` and the variances as ``var``.

    Parameters
    ----------
    full : bool
        Whether to add ``log(2 * pi) / 2`` to each term.
    eps : float
        The smallest variance, positive. Smaller and negative ones count as this one. As in PyTorch, the gradient is then that
        at this variance, not 0.
    log_variance : bool
        Whether the second half of the outputs are logarithms of the variances, so that a linear layer can give them.

    Raises
    ------
    TypeError, ValueError
        For other settings.
    """

    full: bool = False
    eps: float = 1e-6
    log_variance: bool = False

    weighs_targets = True

    def __post_init__(self) -> None:
        check_flags(full=self.full, log_variance=self.log_variance)
        check_number("eps", self.eps, "in (0, inf)")

    def check_target(self, output: SampleShape, target: SampleShape) -> None:
        _check_blocks(output, target, 2, "means and variances")

    def record(self, ops: Recorder, y: View, t: View, w: View | None, value: View, dy: View) -> None:
        n = y.sample_shape[-1] // 2
        mean, spread = (y.slice(-1, k * n, (k + 1) * n) for k in range(2))
        slopes = (dy.slice(-1, k * n, (k + 1) * n) for k in range(2))
        terms = ops.scratch("terms", mean.sample_shape)
        w = ops.constant("one", np.ones(())) if w is None else _column(w, y.ndim)
        inverse, factor = ops.inverse_batch, 1.0 / mean.sample_size
        constant = math.log(2.0 * math.pi) if self.full else 0.0

        def of_terms(m: Any, s: Any, t: Any, w: Any, inverse: Any) -> tuple[Any, Any, Any]:
            d = m - t
            s = maximum(s, math.log(self.eps) if self.log_variance else self.eps)
            precision, logarithm = (exp(-s), s) if self.log_variance else (1.0 / s, log(s))
            square = d * d * precision
            slope = 1.0 - square if self.log_variance else (1.0 - square) * precision
            weight = w * (inverse * factor)
            formulas = (logarithm + square + constant) * w, d * precision * weight, slope * (0.5 * weight)
            return tuple(where(w == 0.0, 0.0, each) for each in formulas)

        ops.map((terms, *slopes), of_terms, mean, spread, _column(t, y.ndim), w, inverse)
        ops.sum(value, terms)
        ops.map(value, lambda value, inverse: value * (inverse * (0.5 * factor)), value, inverse)


def pinball(y: Any, t: Any, q: Any) -> Any:
    """The loss of a target t for the prediction y of its quantile q."""
    return where(y > t, (1.0 - q) * (y - t), q * (t - y))


def pinball_slope(y: Any, t: Any, q: Any) -> Any:
    return where(y > t, 1.0 - q, where(y < t, -q, 0.0))


@dataclass(frozen=True)
class QuantileLoss(Loss):
    """The mean pinball loss, ``max(q * (t - y), (q - 1) * (t - y))``. Its minimum is the quantile q.

    The slope is 0 where y equals t. ``QuantileLoss(0.5)`` is half of `L1Loss`. Source: Koenker and Bassett 1978.

    Parameters
    ----------
    q : float or sequence of float
        One quantile or several, between 0 and 1. With several, the last axis of the outputs holds the first quantile of all
        targets, then the second, and so on: outputs of sample shape (*shape, len(q) * n) are for targets (*shape, n), or
        (*shape) if n is 1.

    Raises
    ------
    TypeError, ValueError
        For other quantiles.
    """

    q: float | tuple[float, ...]

    weighs_targets = True

    def __post_init__(self) -> None:
        quantiles: tuple[float, ...] = tuple(self.q) if np.ndim(self.q) else (self.q,)  # type: ignore
        if not quantiles:
            raise ValueError("`q` (=()) must have a quantile")
        for q in quantiles:
            check_number("q", q, "in (0, 1)")
        object.__setattr__(self, "q", tuple(float(q) for q in quantiles) if np.ndim(self.q) else float(quantiles[0]))

    @property
    def _quantiles(self) -> tuple[float, ...]:
        return self.q if isinstance(self.q, tuple) else (self.q,)

    def check_target(self, output: SampleShape, target: SampleShape) -> None:
        if isinstance(self.q, tuple):
            _check_blocks(output, target, len(self.q), f"{len(self.q)} quantiles")
        else:
            super().check_target(output, target)

    def record(self, ops: Recorder, y: View, t: View, w: View | None, value: View, dy: View) -> None:
        if not y.sample_shape:
            y, dy = y.expand(-1), dy.expand(-1)
        parts, slopes = (view.split(-1, len(self._quantiles)) for view in (y, dy))  # (batch, *shape, quantiles, n)
        terms = ops.scratch("terms", parts.sample_shape)
        quantiles = ops.constant("quantiles", np.array(self._quantiles)[:, None])
        t = _column(t, y.ndim).expand(-2)
        w = ops.constant("one", np.ones(())) if w is None else _column(w, y.ndim).expand(-2)
        inverse, factor = ops.inverse_batch, 1.0 / y.sample_size
        ops.map(
            (terms, slopes),
            lambda y, t, q, w, inverse: (
                where(w == 0.0, 0.0, pinball(y, t, q) * w),
                where(w == 0.0, 0.0, pinball_slope(y, t, q) * (w * (inverse * factor))),
            ),
            parts, t, quantiles, w, inverse,
        )  # fmt: skip
        ops.sum(value, terms)
        ops.map(value, lambda value, inverse: value * (inverse * factor), value, inverse)


@dataclass(frozen=True)
class CrossEntropyLoss(Loss):
    """The cross-entropy of softmax(logits), over the last axis, against labels or probabilities.

    It is the mean over samples and positions. Logits have sample shape (*positions, classes); labels (*positions), whole
    numbers from 0; probabilities (*positions, classes). As in PyTorch, rows of probabilities need not sum to one: their sums
    are weights of the positions, and a row of zeros leaves its position out. Raises ValueError for wrong labels, for negative
    probabilities, and for a single class, whose cross-entropy is always 0.

    Weights w of the shape of labels make it ``-sum(w * log_softmax(y)[label]) / (batch * positions)``, those of the shape of
    probabilities t ``-sum(w * t * log_softmax(y)) / (batch * positions)``.
    """

    takes_logits = True
    weighs_targets = True

    def check_target(self, output: SampleShape, target: SampleShape) -> None:
        if target not in (output, output[:-1]) or not output:
            raise ValueError(
                f"targets for logits of sample shape {output} must be labels of sample shape {output[:-1]} or probabilities of "
                f"sample shape {output}, got {target}"
                + ("; drop the last axis with t[..., 0]" if target == (*output[:-1], 1) else "")
            )
        if output[-1] == 1:
            raise ValueError(
                f"logits of sample shape {output} are of one class, whose cross-entropy is always 0; for two classes use two "
                "outputs, or BCEWithLogitsLoss()"
            )

    def check_values(self, t: np.ndarray, output: SampleShape) -> None:
        if t.ndim > len(output):
            if not (low := t.min()) >= 0:
                raise ValueError(f"probabilities must not be negative, got {low}")
            return
        check_labels(t, output[-1], "labels")

    def record(self, ops: Recorder, y: View, t: View, w: View | None, value: View, dy: View) -> None:
        shape = y.sample_shape
        if t.ndim < y.ndim:
            classes = ops.constant("classes", np.arange(shape[-1]))
            target = ops.scratch("one_hot", shape)
            if w is None:
                ops.map(target, lambda label, k: where(label == k, 1.0, 0.0), t.expand(-1), classes)
            else:
                ops.map(target, lambda label, k, w: where(label == k, w, 0.0), t.expand(-1), classes, _column(w, y.ndim))
            t = target
        elif w is not None:
            target = ops.scratch("weighted targets", shape)
            ops.map(target, lambda t, w: where(w == 0.0, 0.0, t * w), t, _column(w, y.ndim))
            t = target
        normalizer = log_sum_exp(ops, y)
        total = ops.scratch("target_total", (*shape[:-1], 1))
        terms = ops.scratch("terms", shape)
        weight = ops.constant("one", np.ones(()))
        inverse, factor = ops.inverse_batch, 1.0 / math.prod(shape[:-1])
        ops.sum(total, t)
        ops.map(terms, lambda y, t, normalizer, w: t * (normalizer - y) * w, y, t, normalizer, weight)
        ops.map(
            dy,
            lambda y, t, normalizer, total, w, inverse: (exp(y - normalizer) * total - t) * (w * (inverse * factor)),
            y, t, normalizer, total, weight, inverse,
        )  # fmt: skip
        ops.sum(value, terms)
        ops.map(value, lambda value, inverse: value * (inverse * factor), value, inverse)


def _column(w: View, ndim: int) -> View:
    """Weights with axes of length 1 appended, up to `ndim` axes."""
    while w.ndim < ndim:
        w = w.expand(-1)
    return w
