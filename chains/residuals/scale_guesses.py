"""Guesses of the scales of a residual problem, from its points and its conditions.

Coordinates have the extent of the points, and outputs that of the values in conditions. Another output has the length at which
its part of the residuals is as large as the rest of these, such as a source. Without one, as for a coefficient, it has the
length at which its part is as large as those of other outputs. The size of an equation is that of its residual for random
outputs of these scales. No guess depends on the unit of a variable.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chains.residuals.loss import Residual, ResidualLoss
from chains.residuals.scales import FAR, Pair, Scales
from chains.support import streams

SAMPLES = 256  # points of a term at which sizes are taken
ROUNDS = 60  # of the balance of unknown lengths; each halves the logarithm of the error
NEGLIGIBLE = 1e-9  # the part of an offset below which a length is rounding


@dataclass(frozen=True)
class Sampled:
    """A term's residual at some of its points, with the data there."""

    residual: Residual
    points: np.ndarray  # (n, coordinates), in users' units
    data: np.ndarray  # (n, data)


def find_scales(loss: ResidualLoss, terms: Sequence[Sampled], given: Mapping[str, Pair]) -> Scales:
    """All scales: those that are `given`, and guesses of the others from the points and the conditions."""
    points = np.concatenate([term.points for term in terms])
    coordinates = tuple(given.get(name) or _or_one(_span(points[:, k])) for k, name in enumerate(loss.coordinates))
    outputs = [given.get(name) or _span(_conditions(loss, terms, k)) for k, name in enumerate(loss.outputs)]
    unscaled = Scales(coordinates, ((0.0, 1.0),) * len(outputs))
    trials = [_Trial(replace(loss, scales=unscaled), number, term) for number, term in enumerate(terms)]
    least = {k: outputs[k][1] for k, name in enumerate(loss.outputs) if name not in given}
    found = _balanced(trials, outputs, least)
    sizes = tuple(tuple(_size(values) or 1.0 for values in trial(found)) for trial in trials)
    return Scales(coordinates, tuple(found), sizes)


class _Trial:
    """A term's equations at some of its points, for random outputs of given scales: values and derivatives have variance 1."""

    def __init__(self, loss: ResidualLoss, number: int, term: Sampled) -> None:
        rows = np.linspace(0, len(term.points), SAMPLES, endpoint=False).astype(int)
        assert loss.scales is not None
        self.fixed = [*loss.scales.inward(term.points[rows]).T, *term.data[rows].T]
        self.equations, self.keys = loss.equations_of(number), loss.keys
        self.numbers = streams.generator("scales", 0, number).uniform(
            -math.sqrt(3.0), math.sqrt(3.0), (len(self.keys), SAMPLES)
        )
        for row, (_, (_, power)) in zip(self.numbers, self.keys, strict=True):
            row /= math.factorial(power)

    def __call__(self, outputs: Sequence[Pair], without: Collection[int] = ()) -> list[np.ndarray]:
        """The values of each equation; the outputs `without` are at their offsets."""
        series = np.empty_like(self.numbers)
        for row, numbers, (output, (_, power)) in zip(series, self.numbers, self.keys, strict=True):
            offset, length = outputs[output]
            row[:] = (0.0 if power else offset) + (0.0 if output in without else length * numbers)
        with np.errstate(all="ignore"):
            return [np.broadcast_to(values, SAMPLES) for values in self.equations.values(*series, *self.fixed)]


def _span(values: np.ndarray) -> Pair:
    """The offset and length that map these values to [-1, 1]. One value is a length as well; the length is 0 without any."""
    if not len(values):
        return 0.0, 0.0
    low, high = float(values.min()), float(values.max())
    middle, half = low + (high - low) / 2, (high - low) / 2
    return middle, half if half > NEGLIGIBLE * abs(middle) else abs(middle)


def _or_one(pair: Pair) -> Pair:
    offset, length = pair
    return offset, length or 1.0


def _conditions(loss: ResidualLoss, terms: Sequence[Sampled], output: int) -> np.ndarray:
    """The values of an output in equations without derivatives that are linear in this output alone."""
    found = [np.empty(0)]
    for term in terms if loss.transform is None else ():
        pieces, fixed = term.residual.pieces, [*term.points.T, *term.data.T]
        for equation in range(len(term.residual.formula.outputs)):
            read = [k for k in term.residual.formula.only((equation,))[1] if k < len(pieces)]
            if [pieces[k] for k in read] != [(output, ())]:
                continue
            zero, one, two = (
                term.residual.values(*[np.full(len(fixed[0]), at)] * len(pieces), *fixed)[equation] for at in range(3)
            )
            slope = np.asarray(one - zero)
            with np.errstate(all="ignore"):
                linear = (slope != 0.0) & (abs(two - one - slope) <= 1e-6 * abs(slope))
                values = np.broadcast_to(-zero / slope, len(fixed[0]))
                found.append(values[linear & np.isfinite(values)])
    return np.concatenate(found)


def _balanced(trials: Sequence[_Trial], outputs: Sequence[Pair], least: Mapping[int, float]) -> list[Pair]:
    """The outputs with lengths, `least` or more, that make their own parts of the residuals as large as the rest of these.

    The rest of a residual is its value where all outputs are at their offsets, such as a source.
    """
    found, wanted = [_or_one(pair) for pair in outputs], dict(least)
    # Each equation has its own unit, so none is added to another.
    rest = [[_rms(values) for values in trial(found, without=range(len(found)))] for trial in trials]
    for _ in range(ROUNDS if least else 0):
        before = list(found)
        everything = [trial(before) for trial in trials]
        for output, low in least.items():
            offset, length = before[output]
            wanted[output] = low
            for trial, totals, rests in zip(trials, everything, rest, strict=True):
                others = trial(before, without=(output,))
                for total, other, r in zip(totals, others, rests, strict=True):
                    with np.errstate(all="ignore"):
                        own = _rms(total - other)
                    if own > 0.0 and NEGLIGIBLE * abs(offset) < length * (r / own) < math.inf:
                        wanted[output] = max(wanted[output], length * (r / own))
            found[output] = offset, math.sqrt(length) * math.sqrt(wanted[output] or length)
    # Where a part does not grow with its length, as a sine does not, no length balances it.
    balanced = [_or_one(outputs[k]) if wanted.get(k, 0.0) > 1.5 * pair[1] else pair for k, pair in enumerate(found)]
    return _compared(trials, balanced, [k for k in least if not wanted[k]])


def _compared(trials: Sequence[_Trial], outputs: Sequence[Pair], unknown: Collection[int]) -> list[Pair]:
    """The outputs; those that are `unknown`, such as coefficients, have parts as large as the rest of the known ones."""
    found, left = list(outputs), set(unknown)
    for _ in unknown:
        lengths = {output: _length(trials, found, output, left) for output in left}
        for output in [each for each in left if lengths[each]]:
            found[output] = found[output][0], lengths[output]
            left.remove(output)
    return found


def _length(trials: Sequence[_Trial], outputs: Sequence[Pair], output: int, unknown: Collection[int]) -> float:
    """The length of an unknown output that makes its part of an equation as large as the known ones; 0 if none does."""
    (offset, length), found = outputs[output], list(outputs)
    rest = [values for trial in trials for values in trial(found, without=unknown)]
    wanted = 0.0
    for _ in range(ROUNDS):
        found[output] = offset, length
        totals = [values for trial in trials for values in trial(found, without={*unknown} - {output})]
        with np.errstate(all="ignore"):
            own = [_rms(total - other) for total, other in zip(totals, rest, strict=True)]
        wanted = length * max((_rms(other) / part for other, part in zip(rest, own, strict=True) if part > 0.0), default=0.0)
        if not 0.0 < wanted < math.inf:
            return 0.0
        length = math.sqrt(length) * math.sqrt(wanted)
    return length if wanted < 1.5 * length else 0.0


def _size(values: np.ndarray) -> float:
    """The root of the mean square; without the largest quarter where this makes nearly all of it, as by exponentials."""
    numbers = np.sort(abs(values[np.isfinite(values)]))
    whole, most = _rms(values), _rms(numbers[: len(numbers) - len(numbers) // 4])
    return most if whole > FAR * most > 0.0 else whole


def _rms(values: np.ndarray) -> float:
    """The root of the mean square of the finite numbers, which may be 0."""
    numbers = values[np.isfinite(values)]
    largest = float(abs(numbers).max(initial=0.0))
    return largest * float(np.sqrt(np.mean((numbers / largest) ** 2))) if largest else 0.0
