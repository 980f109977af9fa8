"""Losses: a number for how far outputs are from targets, averaged over the batch, and its gradient.

Weights are factors of the samples' losses, or of the single terms: with a weight for each target, the squared loss is
``sum(w * (y - t) ** 2) / (2 * batch)`` and the mean of squares ``sum(w * (y - t) ** 2) / (batch * outputs)``. The denominators
do not depend on the weights: weights of one change nothing. This is ``(w * loss(y, t)).mean()`` for a loss of PyTorch with
``reduction="none"``. Any finite numbers will do. A weight of zero leaves its target out, which may be NaN, also where all are
zero; a negative weight has the loss of its sample grow, as an advantage below zero does in policy gradients.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.activations import sigmoid
from chains.expr import exp, log1p, maximum, sign, where
from chains.expr.derivatives import derivative as derive
from chains.expr.formulas import Replay, traced
from chains.layers.softmax import log_sum_exp
from chains.program.recorder import Recorder
from chains.program.settings import FrozenOnceRecorded
from chains.program.view import View
from chains.support.checks import check_flags, check_labels, check_number, check_text

SampleShape = tuple[int, ...]


class Loss(FrozenOnceRecorded, ABC):
    """A loss function. Losses of equal settings are equal, so that their programs are shared.

    Attributes of a custom loss stay as they are once a program was recorded of it: a change raises AttributeError.
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
        """Raise ValueError where the targets hold values that the loss is not defined for.

        Parameters
        ----------
        t : array, shape (batch, ...)
            The targets.
        output : tuple of int
            The shape of one sample's outputs.
        """

    @abstractmethod
    def record(self, ops: Recorder, y: View, t: View, w: View | None, value: View, dy: View) -> None:
        """Record how the loss and its gradient are filled. Other views may not be written to.

        Parameters
        ----------
        ops : Recorder
            The operations.
        y, t : View, shapes (batch, *output) and (batch, *target)
            Outputs and targets.
        w : View, shape (batch,), or None
            Weights of the samples. Where outputs go along steps, and samples have lengths, those of the steps, (batch, steps).
            With `weighs_targets`, they may have the shape of `t`. Where one is 0, the target may be NaN.
        value : View, shape ()
            Filled with the loss.
        dy : View, shape (batch, *output)
            Filled with its gradient.
        """


@dataclass(frozen=True)
class ElementwiseLoss(Loss):
    """``factors[0] * function(y, t)`` summed over a sample's outputs, or averaged over them, and averaged over the batch.

    Weights multiply these terms before the sum.

    ``factors[1] * derivative(y, t)`` is its derivative with respect to y. Constant factors stand apart because they
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
        How it is printed.
    function : callable
        ``function(y, t)``, in arithmetic and the functions of `chains.expr`.
    derivative : callable, optional
        ``derivative(y, t)``, with respect to y. None derives it from the function, at kinks from the left.
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
        Where the square ends; positive.

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

    The outputs y are logits: the loss itself applies the sigmoid. They are above 0 where class 1 is the likelier one; the
    metric is ``partial(accuracy, threshold=0)``.
    """

    takes_logits = True

    def __init__(self) -> None:
        super().__init__("BCEWithLogitsLoss()", _bce, _bce_slope, average=True)

    def check_values(self, t: np.ndarray, output: SampleShape) -> None:
        low, high = t.min(), t.max()
        if not (low >= 0 and high <= 1):
            raise ValueError(f"targets must be from 0 to 1, got {high if low >= 0 else low}")


@dataclass(frozen=True)
class CrossEntropyLoss(Loss):
    """The cross-entropy of softmax(logits), over the last axis, against labels or probabilities.

    It is the mean over samples and positions. Logits have sample shape (*positions, classes); labels (*positions), whole
    numbers from 0; probabilities (*positions, classes). Rows of probabilities need not sum to one, as in PyTorch: their sums
    weigh the positions, and a row of zeros leaves its position out. Raises ValueError for numbers that are no labels, for
    negative probabilities, and for a single class, whose cross-entropy is always 0.

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
    """Weights shaped to multiply an array of `ndim` axes, of which they have the first ones."""
    while w.ndim < ndim:
        w = w.expand(-1)
    return w
