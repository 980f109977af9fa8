"""Interpolated states: at times within a step, from its slopes or stages.

The state at a share s of a step is a polynomial in s, the method's interpolant. Forwards, each accepted step fills the places
of the times that it has passed. Backwards, the cotangents there become those of the polynomial's coefficients, which are sums
of slopes. Begins and lengths of steps are constants, so the pullback is exact for the interpolated states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from chains.expr import where
from chains.layers.ode.methods import Tableau, combine
from chains.program.recorder import Recorder
from chains.program.view import View


class Span(NamedTuple):
    """The times of a step, (batch, 1): its begin and end, the length that was tried, and that taken, 0 if it was refused."""

    begin: View
    end: View
    tried: View
    taken: View


@dataclass(frozen=True)
class Interpolation:
    """The interpolated states at some times.

    Parameters
    ----------
    ops, tableau : Recorder, Tableau
        The recorder and the method.
    times : View, shape (times,) or (batch, times)
        The times, as the steps count them.
    d_times : View, optional
        For the pullback, the cotangents of the times, if these are not constants.
    """

    ops: Recorder
    tableau: Tableau
    times: View
    d_times: View | None = None

    def coefficients(self, state: View, h: View, pieces: Sequence[View]) -> list[View]:
        """Record the coefficients of s, s**2 and so on, for a step of length h from a state.

        The pieces are the slopes of an explicit method, and the states of the stages of an implicit one.
        """
        ops, weights = self.ops, self.tableau.interpolant
        found = [ops.scratch(f"coefficient {power}", state.sample_shape) for power in range(1, len(weights[0]) + 1)]
        for out, column in zip(found, zip(*weights, strict=True), strict=True):
            terms = [(w, piece) for w, piece in zip(column, pieces, strict=True) if w]
            if self.tableau.gamma:
                used = [w for w, _ in terms]
                sum_of = lambda y, *x, used=used: sum(w * (each - y) for w, each in zip(used, x, strict=True))  # noqa: E731
                ops.map(out, sum_of, state, *(piece for _, piece in terms))
            else:
                combine(ops, out, None, h, terms)
        return found

    def record(self, found: View, span: Span, state: View, new: View, pieces: Sequence[View]) -> None:
        """Record the states at the times within a step, from `state` to `new`, in `found`, (batch, times, n)."""
        coefficients = self.coefficients(state, span.tried, pieces)
        at_times = (view.expand(-1) for view in (self.times, *span))
        self.ops.map(found, _interpolated, *at_times, found, *(view.expand(1) for view in (state, new, *coefficients)))

    def pull(self, dy: View, span: Span) -> list[View]:
        """Record the cotangents of the state before a step, and of the coefficients, from those of the states at the times."""
        ops, (count, n), powers = self.ops, dy.sample_shape, len(self.tableau.interpolant[0]) + 1
        shares = ops.scratch("powers of shares", (powers, count))
        sums = ops.scratch("cotangents of the interpolant", (powers, n))
        ops.map(tuple(shares.index(1, k) for k in range(powers)), lambda *own: _powers(powers, *own), self.times, *span)
        ops.matmul(sums, shares, dy)
        return [sums.index(1, k) for k in range(powers)]

    def pull_times(self, dy: View, span: Span, state: View, pieces: Sequence[View]) -> None:
        """Record that the cotangents of the times within a step are added to `d_times`."""
        assert self.d_times is not None
        ops = self.ops
        terms, sums = ops.scratch("by the times", dy.sample_shape), ops.scratch("d_time", dy.sample_shape[:1])
        coefficients = (view.expand(1) for view in self.coefficients(state, span.tried, pieces))
        ops.map(terms, _by_time, *(view.expand(-1) for view in (self.times, *span)), dy, *coefficients)
        ops.sum(sums.expand(-1), terms)
        ops.map(self.d_times, lambda a, b: a + b, self.d_times, sums)


def _within(time: Any, begin: Any, end: Any, tried: Any, taken: Any) -> tuple[Any, Any]:
    """Whether a time is within a step that was accepted, and the share of the step that is over then."""
    return (taken > 0.0) & (time > begin) & (time <= end), (time - begin) / where(tried > 0.0, tried, 1.0)


def _interpolated(time: Any, begin: Any, end: Any, tried: Any, taken: Any, old: Any, y: Any, new: Any, *terms: Any) -> Any:
    within, share = _within(time, begin, end, tried, taken)
    total = terms[-1]
    for each in terms[-2::-1]:
        total = each + share * total
    return where(within, where(time == end, new, y + share * total), old)


def _by_time(time: Any, begin: Any, end: Any, tried: Any, taken: Any, d: Any, *terms: Any) -> Any:
    """The product of a cotangent with the slope of the interpolant."""
    within, share = _within(time, begin, end, tried, taken)
    total = len(terms) * terms[-1]
    for power in range(len(terms) - 1, 0, -1):
        total = power * terms[power - 1] + share * total
    return where(within, d * total / where(tried > 0.0, tried, 1.0), 0.0)


def _powers(count: int, time: Any, begin: Any, end: Any, tried: Any, taken: Any) -> tuple[Any, ...]:
    """The powers 0, 1 and so on of the share of a step, or zeros outside of it."""
    within, share = _within(time, begin, end, tried, taken)
    found = [where(within, 1.0, 0.0), where(within, share, 0.0)]
    while len(found) < count:
        found.append(found[-1] * share)
    return tuple(found)
