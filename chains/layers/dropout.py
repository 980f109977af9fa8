"""Dropout, of single elements and of whole channels."""

from __future__ import annotations

from typing import Any

from chains.expr import where
from chains.layers.base import Declaration, Layer, SampleShape
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_number


class Dropout(Layer):
    """While training, zeroes each element with probability `rate` and divides the others by ``1 - rate``. Otherwise ``y = x``.

    Only the seed and the number of the step decide which elements are dropped (see `chains.program.operations.Random`): they
    are the same on every backend. Source: Srivastava et al. 2014, in the "inverted" form that PyTorch has.

    Parameters
    ----------
    rate : float
        From 0 to 1, exclusive.

    Raises
    ------
    TypeError, ValueError
        For another rate.
    """

    def __init__(self, rate: float = 0.5) -> None:
        check_number("rate", rate, "in [0, 1)")
        self.rate = rate

    def declare(self, d: Declaration) -> None:
        d.output(d.input)
        d.saved("factor", self._factors(d.input))  # 0 where dropped, 1 / (1 - rate) elsewhere

    def _factors(self, input: SampleShape) -> SampleShape:
        """The shape of the factors, which broadcasts to that of the input."""
        return input

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        if not ops.training or self.rate == 0.0:
            ops.copy(y, x)
            return
        rate = self.rate
        ops.random(s.factor)
        ops.map(s.factor, lambda u: where(u < rate, 0.0, 1.0 / (1.0 - rate)), s.factor)
        ops.map(y, lambda x, factor: x * factor, x, s.factor)


class SpatialDropout(Dropout):
    """While training, zeroes each channel of a sample with probability `rate` and divides the others by ``1 - rate``.

    Samples are (channels, ...), as for PyTorch's Dropout1d, Dropout2d and Dropout3d. Source: Tompson et al. 2015.

    Parameters
    ----------
    rate : float
        As of `Dropout`.

    Raises
    ------
    TypeError, ValueError
        For another rate, and for samples without an axis.
    """

    def _factors(self, input: SampleShape) -> SampleShape:
        if not input:
            raise ValueError(f"{self!r} needs samples with at least one axis, the channels, not scalars")
        return (input[0], *(1 for _ in input[1:]))
