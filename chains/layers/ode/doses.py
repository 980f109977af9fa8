"""Doses of each trajectory: when they come, with lags and bioavailability, and the intervals between them and the times.

The times of the output and those of the doses are merged and sorted by counting how many come before each. All numbers are
differentiable by times, lags and amounts: the order is constant between two ties.
"""

from __future__ import annotations

from math import nan
from typing import Any

import numpy as np

from chains.expr import where
from chains.layers.base import Declaration, Layer
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support.checks import check_count, check_flags, check_word, whole
from chains.support.messages import shown

INFUSIONS = ("rate", "duration")


class Doses(Layer):
    """The doses of an `ODE`: amounts added to numbers of the state, at once or over a while, at times of each trajectory.

    A sample of the `ODE` is the state, its `given` features, then those of the doses, then its own times, if it has them. The
    features of doses are, each part only if it is asked for: the lags, the bioavailabilities, the times of all doses, their
    amounts, their rates or durations, and the numbers of the state that they go into. `columns` makes them from arrays, without
    the lags and bioavailabilities. These may come from a network or from `Equations` before the `ODE`.

    The output at the time of a dose is the state before it. Doses after the last time do nothing. A dose before the first time
    makes the solution NaN, unless its amount is 0. Spare places are doses of amount 0 at the time infinity.

    Parameters
    ----------
    count : int
        The number of doses of each trajectory, with spare places.
    into : int or tuple of int
        The number of the state that doses go into, counted from 0. For a tuple, each dose has its own one among these.
    infusion : str, optional
        "rate" or "duration", for doses that may be infusions at a constant rate; 0 means at once. With a rate, bioavailability
        changes the duration, ``bioavailability * amount / rate``; with a duration, it changes the rate.
    lag, bioavailability : bool
        Whether samples have a time by which doses come later, and the share of amounts that arrives: one number, or one for
        each of `into`.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid, by name.

    Notes
    -----
    As a layer, it takes these features, then the times, and gives a row for each of the merged times: the time, the length of
    the interval that begins there, the rates in it, the amounts at its beginning, and 1 for each of the times that it is.
    """

    def __init__(
        self, count: int, into: int | tuple[int, ...] = 0, *, infusion: str | None = None, lag: bool = False,
        bioavailability: bool = False,
    ) -> None:  # fmt: skip
        self.count = check_count("count", count)
        several = isinstance(into, (tuple, list))
        states: tuple[Any, ...] = tuple(into) if isinstance(into, (tuple, list)) else (into,)
        if not states or any(whole(each, 0) is None for each in states):
            raise ValueError(f"`into` (={shown(into)}) must be the number of a state, 0 or more, or a tuple of such numbers")
        if len({*states}) < len(states):
            raise ValueError(f"`into` (={shown(into)}) must not name a number of the state twice")
        self.into: int | tuple[int, ...] = tuple(map(int, states)) if several else int(states[0])
        if infusion is not None:
            check_word("infusion", infusion, *INFUSIONS)
        self.infusion = infusion
        check_flags(lag=lag, bioavailability=bioavailability)
        self.lag, self.bioavailability = bool(lag), bool(bioavailability)

    @property
    def states(self) -> tuple[int, ...]:
        """The numbers of the state that doses go into."""
        return self.into if isinstance(self.into, tuple) else (self.into,)

    @property
    def numbers(self) -> int:
        """The number of features for lags and bioavailabilities."""
        return len(self.states) * (self.lag + self.bioavailability)

    @property
    def width(self) -> int:
        """The number of features of a sample."""
        return self.numbers + self.count * (2 + (self.infusion is not None) + isinstance(self.into, tuple))

    @property
    def events(self) -> int:
        """The number of merged times, without those of the output."""
        return self.count * (1 + (self.infusion is not None))

    @property
    def rates(self) -> int:
        """The number of rates of an interval."""
        return len(self.states) if self.infusion is not None else 0

    def columns(self, times: Any, amounts: Any, infusion: Any = None, into: Any = None) -> np.ndarray:
        """The features of doses, without lags and bioavailabilities: (subjects, features).

        Parameters
        ----------
        times, amounts : array, shape (subjects, doses)
            At most `count` doses; spare places are filled. A dose of amount 0 may be at any time.
        infusion : array, shape (subjects, doses), optional
            Rates or durations, 0 for doses at once; by default all are.
        into : array of int, shape (subjects, doses), optional
            The number of the state that each dose goes into; by default the first of `into`.

        Returns
        -------
        array

        Raises
        ------
        TypeError, ValueError
            For arrays that do not fit, times that are not finite, negative amounts, rates and durations, and numbers that are
            not among `into`. The message names the subject and the dose.
        """
        times = numbers_of("times", times)
        amounts = numbers_of("amounts", amounts, times.shape)
        refuse("times", times, ~np.isfinite(times) & (amounts != 0.0), "must be finite")
        refuse("amounts", amounts, ~((amounts >= 0.0) & (amounts < np.inf)), "must be finite and not negative")
        parts = [np.where(np.isfinite(times), times, np.inf), amounts]
        if infusion is not None and self.infusion is None:
            raise ValueError("`infusion` is given, but these doses are at once: Doses(..., infusion='rate')")
        if self.infusion is not None:
            lasting = np.zeros(times.shape) if infusion is None else numbers_of("infusion", infusion, times.shape)
            refuse("infusion", lasting, ~((lasting >= 0.0) & (lasting < np.inf)), "must be finite and not negative")
            parts.append(lasting)
        if isinstance(self.into, tuple):
            places = np.full(times.shape, self.states[0]) if into is None else numbers_of("into", into, times.shape)
            refuse("into", places, ~np.isin(places, self.states), f"must be among {self.states}")
            parts.append(places)
        elif into is not None:
            raise ValueError(f"`into` is given, but all doses go into {self.into}: Doses(..., into=(0, 1))")
        if times.shape[1] > self.count:
            raise ValueError(f"`times` has {times.shape[1]} doses of each subject, but there is place for {self.count}")
        spare = ((0, 0), (0, self.count - times.shape[1]))
        fill = [np.inf, 0.0, *([0.0] if self.infusion is not None else []), float(self.states[0])]
        return np.concatenate([np.pad(part, spare, constant_values=value) for part, value in zip(parts, fill, strict=False)], 1)

    def problem(self, features: np.ndarray, times: np.ndarray) -> str:
        """Why a sample's features of doses do not fit its times; empty if they do."""
        count, numbers, states = self.count, self.numbers, self.states
        begins, amounts = features[numbers : numbers + count].astype(float), features[numbers + count : numbers + 2 * count]
        places = features[-count:] if isinstance(self.into, tuple) else np.full(count, self.into)
        if (nowhere := ~np.isin(places, states)).any():
            k = int(np.argmax(nowhere))
            return f"dose {k} goes into number {places[k]:g} of the state, which is not among {states}"
        for k, place in enumerate(places.tolist()):
            lag = features[states.index(int(place))] if self.lag else 0.0
            if not begins[k] + lag >= times[0] and amounts[k] != 0.0:
                return f"dose {k} comes at {begins[k] + lag:g}, but the solution begins at {times[0]:g}"
        return ""

    def declare(self, d: Declaration) -> None:
        if len(d.input) != 1 or d.input[0] < self.width + 2:
            raise ValueError(f"samples must have {self.width} features of doses and two or more times, but are {d.input}")
        times = d.input[0] - self.width
        d.output((times + self.events, 2 + self.rates + len(self.states) + times))

    def forward(self, ops: Recorder, x: View, y: View, p: Any, s: Any) -> None:
        times, (total, width), rates = x.slice(-1, self.width, x.sample_shape[0]), y.sample_shape, self.rates
        observed, here = times.sample_shape[0], y.slice(2, 2, width)
        numbers = ops.constant("numbers of merged times", np.arange(total, dtype=np.float64)[:, None])
        belongs = self._belongs(ops, x)
        begins, amounts, ends, speeds = self._each(ops, x, times, belongs)
        merged = self._merged(ops, times, begins, ends)
        rank, first = self._ranks(ops, merged, observed)
        self._intervals(ops, y, merged, rank, self._fault(ops, times, merged, belongs), numbers)
        place = rank.slice(-1, observed, observed + self.count).expand(1)
        arrive = ops.scratch("arrive", (total, self.count))
        ops.map(arrive, lambda rank, k: where(rank == k, 1.0, 0.0), place, numbers)
        ops.matmul(here.slice(2, rates, rates + len(self.states)), arrive, self._of_states(ops, "amounts", amounts, belongs))
        places = here.slice(2, width - 2 - observed, width - 2)
        ops.map(places, lambda first, k: where(first == k, 1.0, 0.0), first.expand(1), numbers)
        if rates:
            active, stop = ops.scratch("active", (total, self.count)), rank.slice(-1, observed + self.count, total).expand(1)
            ops.map(active, lambda start, stop, k: where((start <= k) & (k < stop), 1.0, 0.0), place, stop, numbers)
            ops.matmul(here.slice(2, 0, rates), active, self._of_states(ops, "rates", speeds, belongs))

    def _part(self, x: View, k: int) -> View:
        """The times, the amounts, and so on of all doses."""
        return x.slice(-1, self.numbers + k * self.count, self.numbers + (k + 1) * self.count)

    def _belongs(self, ops: Recorder, x: View) -> View | None:
        """1 for the number of the state that each dose goes into, (batch, doses, states); None if all go into one."""
        if not isinstance(self.into, tuple):
            return None
        belongs = ops.scratch("belongs", (self.count, len(self.into)))
        own = self._part(x, 2 + (self.infusion is not None))
        states = ops.constant("numbers of the state", np.array(self.into, np.float64))
        ops.map(belongs, lambda own, state: where(own == state, 1.0, 0.0), own.expand(-1), states)
        return belongs

    def _of_doses(self, ops: Recorder, name: str, values: View, belongs: View | None) -> View:
        """The lag or the bioavailability of each dose, from those of the states."""
        if belongs is None:
            return values
        terms, out = ops.scratch(f"{name} of states", belongs.sample_shape), ops.scratch(name, (self.count,))
        ops.map(terms, lambda belongs, value: where(belongs > 0.0, value, 0.0), belongs, values.expand(1))
        ops.sum(out.expand(-1), terms)
        return out

    def _of_states(self, ops: Recorder, name: str, values: View, belongs: View | None) -> View:
        """Numbers of doses, (batch, doses), in the columns of the states that they are for."""
        if belongs is None:
            return values.expand(-1)
        out = ops.scratch(f"{name} by state", belongs.sample_shape)
        ops.map(out, lambda belongs, value: where(belongs > 0.0, value, 0.0), belongs, values.expand(-1))
        return out

    def _each(self, ops: Recorder, x: View, times: View, belongs: View | None) -> tuple[View, View, View, View]:
        """When doses begin, the amounts that arrive at once, when infusions end, and their rates: (batch, doses)."""
        begins, arrived, amounts, ends, speeds = (
            ops.scratch(name, (self.count,)) for name in ("begins", "arrived", "amounts", "ends", "speeds")
        )
        count, first = len(self.states), times.slice(-1, 0, 1)
        last = times.slice(-1, times.sample_shape[0] - 1, times.sample_shape[0])
        lags = [self._of_doses(ops, "lag", x.slice(-1, 0, count), belongs)] if self.lag else []
        shares = [x.slice(-1, self.numbers - count, self.numbers)] if self.bioavailability else []
        shares = [self._of_doses(ops, "bioavailability", view, belongs) for view in shares]
        ops.map(begins, _begin, self._part(x, 0), self._part(x, 1), first, *lags)
        ops.map(arrived, _arrived, self._part(x, 1), begins, last, *shares)
        if self.infusion is None:
            return begins, arrived, begins, begins
        form = _by_rate if self.infusion == "rate" else _by_duration
        ops.map((amounts, ends, speeds), form, arrived, begins, self._part(x, 2))
        return begins, amounts, ends, speeds

    def _merged(self, ops: Recorder, times: View, begins: View, ends: View) -> View:
        """All times, those of the output first. None comes after the last time of the output."""
        observed = times.sample_shape[0]
        merged, last = ops.scratch("merged", (observed + self.events,)), times.slice(-1, observed - 1, observed)
        ops.copy(merged.slice(-1, 0, observed), times)
        for k, view in enumerate((begins, ends) if self.infusion is not None else (begins,)):
            own = merged.slice(-1, observed + k * self.count, observed + (k + 1) * self.count)
            ops.map(own, lambda t, last: where(t >= last, last, t), view, last)
        return merged

    def _ranks(self, ops: Recorder, merged: View, observed: int) -> tuple[View, View]:
        """The place of each of the times in their order, and that of the first one equal to each time of the output.

        Equal times keep their order, so that times of the output come before doses.
        """
        total = merged.sample_shape[0]
        before, rank = ops.scratch("before", (total, total)), ops.scratch("rank", (total,))
        earlier, first = ops.scratch("earlier", (observed, total)), ops.scratch("first rank", (observed,))
        lower = ops.constant("earlier in the list", np.tri(total, k=-1))
        ops.map(
            before, lambda own, other, lower: where((other < own) | ((other == own) & (lower > 0.0)), 1.0, 0.0),
            merged.expand(-1), merged.expand(1), lower,
        )  # fmt: skip
        ops.sum(rank.expand(-1), before)
        own = merged.slice(-1, 0, observed).expand(-1)
        ops.map(earlier, lambda own, other: where(other < own, 1.0, 0.0), own, merged.expand(1))
        ops.sum(first.expand(-1), earlier)
        return rank, first

    def _fault(self, ops: Recorder, times: View, merged: View, belongs: View | None) -> View:
        """NaN for samples whose times are not finite or fall, or whose doses go nowhere; 0 for others."""
        count = times.sample_shape[0]
        missing, falls, fault = ops.scratch("missing", merged.sample_shape), ops.scratch("falls", (count - 1,)), []
        ops.map(missing, lambda t: t - t, merged)
        ops.map(falls, lambda a, b: where(b >= a, 0.0, nan), times.slice(-1, 0, count - 1), times.slice(-1, 1, count))
        for k, view in enumerate([missing, falls] if belongs is None else [missing, falls, self._nowhere(ops, belongs)]):
            fault.append(ops.scratch(f"fault {k}", (1,)))
            ops.sum(fault[-1], view)
        total = ops.scratch("fault", (1,))
        ops.map(total, lambda *faults: where(sum(faults) == 0.0, 0.0, nan), *fault)
        return total

    def _nowhere(self, ops: Recorder, belongs: View) -> View:
        places, nowhere = (ops.scratch(name, (self.count,)) for name in ("places", "nowhere"))
        ops.sum(places.expand(-1), belongs)
        ops.map(nowhere, lambda places: where(places > 0.0, 0.0, nan), places)
        return nowhere

    def _intervals(self, ops: Recorder, y: View, merged: View, rank: View, fault: View, numbers: View) -> None:
        """Record the times in order, and the lengths of the intervals."""
        total = merged.sample_shape[0]
        places, ordered = ops.scratch("places in order", (total, total)), ops.scratch("ordered", (total,))
        ops.map(places, lambda rank, t, k: where(rank == k, t, 0.0), rank.expand(1), merged.expand(1), numbers)
        ops.sum(ordered.expand(-1), places)
        ops.map(y.index(2, 0), lambda t, fault: t + fault, ordered, fault)
        starts, stops = (ordered.slice(-1, k, k + total - 1) for k in (0, 1))
        ops.map(y.index(2, 1).slice(1, 0, total - 1), lambda a, b, fault: b - a + fault, starts, stops, fault)
        ops.fill(y.index(2, 1).slice(1, total - 1, total), 0.0)

    def __repr__(self) -> str:
        names = [f"{name}={value!r}" for name in ("infusion", "lag", "bioavailability") if (value := getattr(self, name))]
        return f"Doses({', '.join([str(self.count), str(self.into), *names])})"


def _begin(t: Any, amount: Any, first: Any, *lag: Any) -> Any:
    """When a dose begins: NaN before the first time. A dose of nothing may be anywhere."""
    begin = t + lag[0] if lag else t
    return where(begin < first, where(amount == 0.0, first, nan), begin)


def _arrived(amount: Any, begin: Any, last: Any, *share: Any) -> Any:
    """The amount that arrives before the last time."""
    return where(begin >= last, 0.0, share[0] * amount if share else amount)


def _by_rate(amount: Any, begin: Any, rate: Any) -> tuple[Any, Any, Any]:
    """The amount at once, the end and the rate of a dose with a given rate."""
    lasts = rate > 0.0
    return where(lasts, 0.0, amount), begin + where(lasts, amount / where(lasts, rate, 1.0), 0.0), where(lasts, rate, 0.0)


def _by_duration(amount: Any, begin: Any, duration: Any) -> tuple[Any, Any, Any]:
    """The amount at once, the end and the rate of a dose with a given duration."""
    lasts = duration > 0.0
    return where(lasts, 0.0, amount), begin + duration, where(lasts, amount / where(lasts, duration, 1.0), 0.0)


def numbers_of(name: str, given: Any, shape: tuple[int, ...] | None = None, columns: str = "doses") -> np.ndarray:
    """An array (subjects, columns) of numbers. Raises TypeError or ValueError, naming it."""
    try:
        array = np.array(given, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` (={shown(given)}) must be numbers, an array (subjects, {columns})") from None
    if array.ndim != 2 or (shape is not None and array.shape != shape):
        raise ValueError(f"`{name}` has shape {array.shape}, but must be {shape or f'(subjects, {columns})'}")
    return array


def refuse(name: str, array: np.ndarray, wrong: np.ndarray, wanted: str, column: str = "dose") -> None:
    """Raise ValueError for the first number that is wrong, naming its column and subject."""
    if wrong.any():
        subject, number = np.argwhere(wrong)[0].tolist()
        raise ValueError(f"`{name}` {wanted}, but {column} {number} of subject {subject} has {array[subject, number]:g}")
