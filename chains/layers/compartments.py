"""Linear compartments in closed form: concentrations after any doses, as a layer.

All amounts are sums of convolutions of exponentials with weights that are not negative, so that no digits cancel. `mean2` and
`mean3` are these convolutions, divided by their values at rates of zero. Where rates are close, they are series around the
mean rate, symmetric in the rates; elsewhere differences of exponentials. So equal rates need no limit, and derivatives of all
orders that a likelihood takes are as exact as the values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import nan
from typing import Any

from chains.expr import exp, expm1, floor, sqrt, where
from chains.layers.base import Declaration, Layer, SampleShape
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_flags


def mean2(a: Any, b: Any, t: Any) -> Any:
    """``(exp(-a t) - exp(-b t)) / ((b - a) t)``: the mean of ``exp(-r t)`` over rates r from a to b."""
    half = 0.5 * (b - a) * t
    near = abs(half) < 1.0
    square = where(near, half * half, 0.0)
    series: Any = 1.0 / math.factorial(21)
    for n in range(19, 0, -2):  # sinh(half) / half
        series = series * square + 1.0 / math.factorial(n)
    return where(near, exp(-0.5 * (a + b) * t) * series, (exp(-a * t) - exp(-b * t)) / where(near, 1.0, 2.0 * half))


def mean3(a: Any, b: Any, c: Any, t: Any) -> Any:
    """Twice the second divided difference of ``exp(-r t)`` at the rates a, b and c, over the square of t."""
    a, b = _ordered(a, b)
    b, c = _ordered(b, c)
    a, b = _ordered(a, b)
    spread = (c - a) * t
    near = spread < 2.0
    middle = (a + b + c) / 3.0
    x, y, z = (where(near, (middle - rate) * t, 0.0) for rate in (a, b, c))
    pairs, triple = x * (y + z) + y * z, x * y * z
    # Complete symmetric polynomials of x, y, z, whose sum is 0: h(n) = triple h(n - 3) - pairs h(n - 2), over (n + 2)! / 2.
    terms: list[Any] = [1.0, 0.0, -pairs]
    series: Any = 1.0 - pairs / 12.0
    for n in range(3, 25):
        terms.append(triple * terms[n - 3] - pairs * terms[n - 2])
        series = series + terms[n] * (2.0 / math.factorial(n + 2))
    far = 2.0 * (mean2(a, b, t) - mean2(b, c, t)) / where(near, 1.0, spread)
    return where(near, exp(-middle * t) * series, far)


def _ordered(a: Any, b: Any) -> tuple[Any, Any]:
    """The smaller and the larger; of equal ones in their order, so that each keeps its derivative."""
    swapped = b < a
    return where(swapped, b, a), where(swapped, a, b)


class One:
    """A compartment that is emptied at the rate k. Amounts are tuples of one."""

    count = 1
    parameters = ("clearance", "volume")

    @staticmethod
    def rates(clearance: Any, volume: Any) -> tuple[Any, ...]:
        return (clearance / volume,)

    def __init__(self, k: Any) -> None:
        self.k = k

    def after(self, t: Any, amounts: Sequence[Any]) -> tuple[Any, ...]:
        """The amounts that are left after a time."""
        return (amounts[0] * exp(-self.k * t),)

    def infused(self, t: Any) -> tuple[Any, ...]:
        """The amounts at the end of an infusion of a unit in the time t; for t = 0 a bolus."""
        return (mean2(0.0, self.k, t),)

    def absorbed(self, ka: Any, t: Any) -> tuple[Any, ...]:
        """The amounts at the time t after a unit was given into a depot that is emptied at the rate ka."""
        return (ka * t * mean2(self.k, ka, t),)

    def repeated(self, interval: Any, amounts: Sequence[Any]) -> tuple[Any, ...]:
        """The sum of the amounts after 0, 1, 2 ... intervals."""
        return (amounts[0] / -expm1(-self.k * interval),)


class Two:
    """A central and a peripheral compartment.

    The rates are alpha > beta, `u` = alpha - k21, `v` = k21 - beta, k12 and k21. As u v = k12 k21, none of them cancels.
    """

    count = 2
    parameters = ("clearance", "volume", "exchange", "second volume")

    @staticmethod
    def rates(clearance: Any, volume: Any, exchange: Any, second: Any) -> tuple[Any, ...]:
        k10, k12, k21 = clearance / volume, exchange / volume, exchange / second
        h = k10 + k12 - k21
        low = h < 0.0
        large = 0.5 * (where(low, -h, h) + sqrt(h * h + 4.0 * k12 * k21))
        small = k12 * k21 / large
        u, v = where(low, small, large), where(low, large, small)
        alpha = k21 + u
        return alpha, k10 * k21 / alpha, u, v, k12, k21

    def __init__(self, alpha: Any, beta: Any, u: Any, v: Any, k12: Any, k21: Any) -> None:
        self.alpha, self.beta, self.u, self.v, self.k12, self.k21 = alpha, beta, u, v, k12, k21

    def after(self, t: Any, amounts: Sequence[Any]) -> tuple[Any, ...]:
        a, b = amounts
        kept, moved = exp(-self.alpha * t), t * mean2(self.alpha, self.beta, t)
        return (kept + self.v * moved) * a + self.k21 * moved * b, self.k12 * moved * a + (kept + self.u * moved) * b

    def infused(self, t: Any) -> tuple[Any, ...]:
        moved = 0.5 * t * mean3(0.0, self.alpha, self.beta, t)
        return mean2(0.0, self.alpha, t) + self.v * moved, self.k12 * moved

    def absorbed(self, ka: Any, t: Any) -> tuple[Any, ...]:
        moved = 0.5 * t * mean3(self.alpha, self.beta, ka, t)
        return ka * t * (mean2(self.alpha, ka, t) + self.v * moved), ka * t * self.k12 * moved

    def repeated(self, interval: Any, amounts: Sequence[Any]) -> tuple[Any, ...]:
        """The solution of a linear system whose determinant is that of the two rates."""
        a, b = amounts
        fast, slow = -expm1(-self.alpha * interval), -expm1(-self.beta * interval)
        sum_, moved = self.u + self.v, interval * mean2(self.alpha, self.beta, interval)
        first = (self.v * fast + self.u * slow) / sum_ * a + self.k21 * moved * b
        second = self.k12 * moved * a + (self.u * fast + self.v * slow) / sum_ * b
        return first / (fast * slow), second / (fast * slow)


class Compartments(Layer):
    """Concentrations of linear compartments after doses, in closed form: (features,) to (times,).

    A sample begins with the parameters: clearance and volume; of two compartments also the clearance between them and the
    second volume; then the rate of absorption, the bioavailability and the lag, as far as there are any. They are outputs of
    layers before, and must be positive. The sample's times follow, then the times of all doses, their amounts, their durations
    with `infusion`, and their intervals with `steady`. `features` names all of them. A dose of amount 0 is none; one of
    duration 0 is a bolus, one of interval 0 a single dose.

    Parameters
    ----------
    compartments : int
        1 or 2.
    doses : int
        The number of doses in a sample.
    times : int
        The number of times in a sample.
    absorption : bool
        Whether doses are given into a depot, which is emptied at the rate of absorption.
    infusion : bool
        Whether doses have durations. Not with `absorption`: the concentrations of oral and of intravenous doses add up.
    steady : bool
        Whether doses have intervals. A dose with one was repeated without end before. The interval must not be
        shorter than the duration: then concentrations are NaN.
    bioavailability : bool
        Whether a part of each dose arrives, given by a parameter.
    lag : bool
        Whether doses arrive later, by a parameter. The gradient at the jump of a bolus is that of the side after it.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.
    """

    def __init__(
        self, compartments: int, doses: int, times: int = 1, *, absorption: bool = False, infusion: bool = False,
        steady: bool = False, bioavailability: bool = False, lag: bool = False,
    ) -> None:  # fmt: skip
        self.compartments = check_count("compartments", compartments)
        self.doses, self.times = check_count("doses", doses), check_count("times", times)
        check_flags(absorption=absorption, infusion=infusion, steady=steady, bioavailability=bioavailability, lag=lag)
        if compartments > 2:
            raise ValueError(f"`compartments` (={compartments}) must be 1 or 2: use an ODE for more")
        if absorption and infusion:
            raise ValueError("`infusion` (=True) must be False with `absorption`: add the outputs of two layers")
        self.absorption, self.infusion, self.steady = absorption, infusion, steady
        self.bioavailability, self.lag = bioavailability, lag
        self._kind = One if compartments == 1 else Two

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, which are the first features of a sample."""
        optional = {"absorption": self.absorption, "bioavailability": self.bioavailability, "lag": self.lag}
        return (*self._kind.parameters, *(name for name, is_there in optional.items() if is_there))

    @property
    def features(self) -> tuple[str, ...]:
        """The names of all features of a sample, in their order."""
        kinds = ("time", "amount", *["duration"] * self.infusion, *["interval"] * self.steady)
        of_doses = (f"{kind} of dose {k + 1}" for kind in kinds for k in range(self.doses))
        return (*self.parameters, *(f"time {k + 1}" for k in range(self.times)), *of_doses)

    def fixed_input(self) -> SampleShape:
        return (len(self.features),)

    def declare(self, d: Declaration) -> None:
        if d.input != self.fixed_input():
            raise ValueError(f"{self!r} needs samples of {len(self.features)} features, see `features`, not of shape {d.input}")
        d.saved("rates", (1 if self.compartments == 1 else 6,))
        d.saved("parts", (self.times, self.doses))
        if self.steady:
            d.saved("left", (self.compartments + 1, self.doses))
        d.output((self.times,))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        named = self._named(x)
        rates = [s.rates.slice(-1, k, k + 1) for k in range(s.rates.sample_shape[0])]
        ops.map(tuple(rates), self._kind.rates, *(named[name] for name in self._kind.parameters))
        if self.steady:
            self._record_before(ops, [s.left.index(1, k) for k in range(self.compartments + 1)], rates, named)
            named |= {f"before {k}": s.left.index(1, k) for k in range(self.compartments + 1)}
        operands = {name: view.expand(1) for name, view in named.items()}
        operands["time"] = named["time"].expand(-1)
        operands |= {f"rate {k}": view.expand(1) for k, view in enumerate(rates)}
        ops.map(s.parts, lambda *values: self._part(dict(zip(operands, values, strict=True))), *operands.values())
        ops.sum(y.expand(-1), s.parts)

    def _named(self, x: View) -> dict[str, View]:
        """The parts of the samples: parameters (1,), times (times,), and the others (doses,)."""
        lengths = dict.fromkeys(self.parameters, 1) | {"time": self.times, "given": self.doses, "amount": self.doses}
        lengths |= {"duration": self.doses} if self.infusion else {}
        lengths |= {"interval": self.doses} if self.steady else {}
        named, start = {}, 0
        for name, length in lengths.items():
            named[name] = x.slice(-1, start, start + length)
            start += length
        return named

    def _record_before(self, ops: Recorder, outs: list[View], rates: list[View], named: dict[str, View]) -> None:
        """What earlier doses of a steady state left at the time of each dose, in units of the dose; zero for a single dose."""
        names = ["interval", *(name for name in ("duration", "absorption") if name in named)]

        def left(*values: Any) -> tuple[Any, ...]:
            model, at = self._kind(*values[: len(rates)]), dict(zip(names, values[len(rates) :], strict=True))
            single = at["interval"] <= 0.0
            interval = where(single, 1.0, at["interval"])
            depot: Any = 1.0 / expm1(at["absorption"] * interval) if self.absorption else 0.0 * interval
            amounts = [(1.0 + depot) * each for each in self._of_one(model, interval, at)]
            if self.infusion:  # such infusions overlap
                amounts = [where(at["duration"] > interval, nan, each) for each in amounts]
            return tuple(where(single, 0.0, each) for each in (*model.repeated(interval, amounts), depot))

        ops.map(tuple(outs), left, *rates, *(named[name] for name in names))

    def _of_one(self, model: Any, since: Any, at: dict[str, Any]) -> tuple[Any, ...]:
        """The amounts after one dose of a unit, `since` ago."""
        if self.absorption:
            return model.absorbed(at["absorption"], since)
        if not self.infusion:
            return model.after(since, (1.0, 0.0)[: model.count])
        duration = at["duration"]
        ended = since > duration
        running, whole = where(ended, duration, since), duration > 0.0
        share = where(whole, running / where(whole, duration, 1.0), 1.0)
        return model.after(where(ended, since - duration, 0.0), [share * each for each in model.infused(running)])

    def _part(self, at: dict[str, Any]) -> Any:
        """The concentration at a time from a dose."""
        model = self._kind(*(value for name, value in at.items() if name.startswith("rate ")))
        elapsed = at["time"] - at["given"]
        since = elapsed - at["lag"] if self.lag else elapsed
        none = since < 0.0
        if self.steady and self.lag:  # the last doses of the steady state have not arrived: those before them count
            waits = none & (elapsed >= 0.0) & (at["interval"] > 0.0)
            interval = where(waits, at["interval"], 1.0)
            since = where(waits, since - interval * floor(since / interval), since)
            none = none & ~waits
        since = where(none, 0.0, since)
        amount = self._of_one(model, since, at)[0]
        if self.steady:
            before = [at[f"before {k}"] for k in range(model.count)]
            amount = (1.0 + at[f"before {model.count}"]) * amount + model.after(since, before)[0]
        given = at["amount"] * at["bioavailability"] if self.bioavailability else at["amount"]
        return where(none, 0.0, given * amount / at["volume"])
