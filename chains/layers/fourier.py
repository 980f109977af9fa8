"""Layers of sines and cosines: random Fourier features and periodic inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from chains.expr import cos, sin
from chains.initializers import Normal
from chains.layers.base import Declaration, Layer, SampleShape, check_last_axis
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_flags, check_number
from chains.support.messages import shown

TURN = 2.0 * math.pi


class Fourier(Layer):
    """``y = (sin(2 pi x @ frequencies), cos(2 pi x @ frequencies))``, along the last axis: (..., inputs) to (..., 2 features).

    The frequencies are normal numbers. Networks of such features learn fine structure sooner. Source: Tancik et al.,
    "Fourier features let networks learn high frequency functions in low dimensional domains", 2020.

    Parameters
    ----------
    inputs : int
        The length of the last axis.
    features : int
        How many frequencies each input has.
    deviation : float
        The standard deviation of the frequencies, in periods for each unit of the inputs.
    trained : bool
        Whether the frequencies are trained; otherwise they are frozen.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    def __init__(self, inputs: int, features: int, deviation: float = 1.0, *, trained: bool = False) -> None:
        self.inputs = check_count("inputs", inputs)
        self.features = check_count("features", features)
        check_number("deviation", deviation, "in (0, inf)")
        self.deviation = float(deviation)
        check_flags(trained=trained)
        self.trained = trained

    def fixed_input(self) -> SampleShape:
        return (self.inputs,)

    def declare(self, d: Declaration) -> None:
        check_last_axis(d.input, "inputs", self.inputs)
        d.param("frequencies", (self.inputs, self.features), Normal(self.deviation))
        if not self.trained:
            d.freeze("frequencies")
        d.temporary("periods", (*d.input[:-1], self.features))
        d.output((*d.input[:-1], 2 * self.features))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        ops.matmul(s.periods.rows, x.rows, p.frequencies)
        ops.map(self._halves(y), lambda a: (sin(TURN * a), cos(TURN * a)), s.periods)

    def _halves(self, y: View) -> tuple[View, View]:
        """The sines and the cosines."""
        return y.slice(-1, 0, self.features), y.slice(-1, self.features, 2 * self.features)


class Periodic(Layer):
    """Chosen inputs become sines and cosines, so that the network is periodic in them; the others are copied.

    Along the last axis, an input x of period L is replaced by ``sin(2 pi j x / L)`` for j = 1, ..., harmonics, then by the
    cosines: (..., inputs) become (..., others + 2 harmonics periodic). All derivatives are periodic too.

    Source: Dong and Ni, "A method for representing periodic functions and enforcing exactly periodic boundary conditions with
    deep neural networks", 2021.

    Parameters
    ----------
    periods : float or sequence
        For each input its period, or None for an input that is copied: ``Periodic((None, 2.0))`` of coordinates (t, x). A
        number is the period of a single input.
    harmonics : int
        How many sines, and how many cosines, replace a periodic input.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name, and without any period.
    """

    def __init__(self, periods: float | Sequence[float | None], harmonics: int = 1) -> None:
        given: tuple[Any, ...] = tuple(periods) if isinstance(periods, (list, tuple, np.ndarray)) else (periods,)
        for period in given:
            if period is not None:
                check_number("periods", period, "in (0, inf)", ", or None")
        if all(period is None for period in given):
            raise ValueError(f"`periods` (={shown(periods)}) must have a period at least, such as Periodic((None, 2.0))")
        self.periods = tuple(None if period is None else float(period) for period in given)
        self.harmonics = check_count("harmonics", harmonics)

    def fixed_input(self) -> SampleShape:
        return (len(self.periods),)

    def declare(self, d: Declaration) -> None:
        if d.input[-1:] != (len(self.periods),):
            raise ValueError(
                f"`periods` (={self.periods}) must have an entry for each of the last length of the input's shape {d.input}"
            )
        d.temporary("slope", (*d.input[:-1], self.harmonics))
        d.output((*d.input[:-1], sum(1 if period is None else 2 * self.harmonics for period in self.periods)))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        for source, target, frequencies in self._parts(ops, x, y):
            if frequencies is None:
                ops.copy(target, source)
            else:
                ops.map(self._halves(target), lambda x, w: (sin(w * x), cos(w * x)), source, frequencies)

    def angular_frequencies(self, period: float) -> np.ndarray:
        """The angular frequencies of the sines of an input with this period."""
        return TURN * np.arange(1.0, self.harmonics + 1.0) / period

    def _parts(self, ops: Recorder, x: View, y: View) -> Iterator[tuple[View, View, View | None]]:
        """Each input, its part of the output, and its angular frequencies, (harmonics,), or None for a copied input."""
        start = 0
        for k, period in enumerate(self.periods):
            frequencies = None
            if period is not None:
                frequencies = ops.constant(f"frequencies {k}", self.angular_frequencies(period))
            stop = start + (1 if period is None else 2 * self.harmonics)
            yield x.slice(-1, k, k + 1), y.slice(-1, start, stop), frequencies
            start = stop

    def _halves(self, y: View) -> tuple[View, View]:
        """The sines and the cosines."""
        return y.slice(-1, 0, self.harmonics), y.slice(-1, self.harmonics, 2 * self.harmonics)
