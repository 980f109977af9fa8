"""The steps of explicit Runge-Kutta methods, and their pullbacks, as operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chains.layers.ode.tableaus import Row, Tableau
from chains.program.recorder import Recorder
from chains.program.view import View

Length = View | float  # of a step: a number where all are alike


def move(ops: Recorder, tableau: Tableau, out: View, y: View, h: Length, rows: Sequence[Row], slopes: Sequence[View]) -> None:
    """Record ``out = y + h * (a weighted sum of slopes)``, with weights for each half of the state."""
    of_halves = (_halves(tableau, view) for view in (out, y, *slopes))
    for row, to, start, *ks in zip(rows, *of_halves, strict=True):
        combine(ops, to, start, h, [(a, k) for a, k in zip(row, ks, strict=False) if a])


def pull_slope(ops: Recorder, tableau: Tableau, out: View, d: View, h: Length, i: int, d_states: Sequence[View]) -> None:
    """Record the cotangent of slope i, from that of the step's end and those of the states of the stages."""
    later = [_halves(tableau, view) for view in d_states]
    halves = zip(tableau.halves, _halves(tableau, out), _halves(tableau, d), strict=True)
    for number, ((a, b), to, end) in enumerate(halves):
        terms = [(b[i], end)] if b[i] else []
        terms += [(a[r][i], later[r][number]) for r in range(i + 1, len(d_states)) if a[r][i]]
        combine(ops, to, None, h, terms)


def _halves(tableau: Tableau, view: View) -> list[View]:
    """The parts of a state that have numbers of their own in the method."""
    halves = len(tableau.halves)
    size = view.sample_shape[-1] // halves
    return [view.slice(-1, k * size, (k + 1) * size) for k in range(halves)]


def combine(ops: Recorder, out: View, start: View | None, h: Length, terms: Sequence[tuple[float, View]]) -> None:
    """Record ``out = start + h * sum(weight * view)``; without a start from zero."""
    weights, views = [weight for weight, _ in terms], [view for _, view in terms]
    first = [] if start is None else [start]
    if not terms:
        ops.fill(out, 0.0) if start is None else ops.copy(out, start)
    elif isinstance(h, View):

        def varying(h: Any, *values: Any) -> Any:
            change = h * sum(w * value for w, value in zip(weights, values[len(first) :], strict=True))
            return values[0] + change if first else change

        ops.map(out, varying, h, *first, *views)
    else:

        def fixed(*values: Any) -> Any:
            terms = [*values[: len(first)], *(h * w * value for w, value in zip(weights, values[len(first) :], strict=True))]
            return sum(terms[1:], terms[0])

        ops.map(out, fixed, *first, *views)
