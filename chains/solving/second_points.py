"""A second set of points for a residual problem, at which nothing is trained, and what the residuals there say.

A network can fit the points of its training and do anything between them. So `solve` looks at other points: those that
`candidates` give, or points between neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chains.residuals.problem import ResidualProblem, with_terms
from chains.solving.growth import growth
from chains.support import streams

GROUP = 2000  # points whose distances are computed at once
EDGES = 4  # one new point in this many is next to a point of another term
FEWEST = 10  # points of a term that may fill a region; two are often the ends of one
NEIGHBOURS = 3  # among which one is chosen
FLAT = 1e-9  # the extent along an axis, as a share of the largest, below which points lie in a plane
MOST_APART = 10.0  # the ratio of residuals at other points and at those of the training that still counts as equal
LARGEST_RESIDUAL = 3e-3  # as a share of its size
LARGEST_CHANGE = 3e-3  # of the outputs in the last round, as a share of their deviation
LEAST_LENGTH = 1e-3  # of an output, as a share of its scale: one that is zero everywhere is not compared with itself
FURTHER = 8  # sets of further points that have to confirm a success
MOST_GROWTH = 100.0  # from the start to the end, above which a solution that is not right is said to grow
HELD_OUT = 10  # one point with data in this many
FEWEST_HELD = 100  # points of which some are held out
BEHIND = 3.0  # the ratio of a condition's part of the loss to those of equations, above which it is left behind
FILLED = 0.2  # the least ratio of local extents of points that fill a region; that of a curve is smaller


def fresh_points(points: np.ndarray, others: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """As many points between neighbours; None for points that lie on several planes, on a curve, or in one place.

    Parameters
    ----------
    points : array, shape (n, coordinates)
        Points that fill a region, or a part of one line or plane, such as a start.
    others : array, shape (m, coordinates)
        The points of other terms. A part of the result is between these, which are often on the boundary, and points that fill
        the region.
    rng : Generator
        The choice of neighbours, and of the places between them.
    """
    extent = np.ptp(points, axis=0)
    if len(points) < FEWEST or _are_faces(points[:, extent > 0.0]):
        return None
    middle, unit = points.mean(axis=0), np.where(extent > 0.0, extent, 1.0)
    local = (points - middle) / unit
    sizes, axes = np.linalg.svd(local, full_matrices=False)[1:]
    axes = axes[sizes > FLAT * sizes[0]]
    local = local @ axes.T
    places = _Places(local)
    if (
        not len(axes)
        or _is_quadric(local[rng.permutation(len(local))[:GROUP]])
        or not _fills(places(local[rng.permutation(len(local))[:GROUP]]))
    ):
        return None
    edges = (others - middle) / unit @ axes.T if len(axes) == points.shape[1] else local
    count = len(local) // EDGES if len(others) else 0
    ends = np.concatenate([edges[rng.integers(0, len(edges), count)], local[rng.permutation(len(local))[count:]]])
    found = np.empty_like(ends)
    for begin in range(0, len(ends), GROUP):
        own = ends[begin : begin + GROUP]
        near = local[rng.permutation(len(local))[: 2 * GROUP]]
        nearest = _nearest(places(own), places(near), NEIGHBOURS)
        chosen = nearest[np.arange(len(own)), rng.integers(0, NEIGHBOURS, len(own))]
        found[begin : begin + GROUP] = own + rng.uniform(0.0, 1.0, (len(own), 1)) * (near[chosen] - own)
    return np.asarray(found @ axes * unit + middle)


class _Places:
    """Coordinates as numbers of levels, so that points are equally dense: on grids, and where many points crowd."""

    def __init__(self, points: np.ndarray) -> None:
        self.levels = [np.unique(column.round(12)) for column in points.T]

    def __call__(self, points: np.ndarray) -> np.ndarray:
        columns = zip(points.T, self.levels, strict=True)
        return np.column_stack([np.interp(column, levels, np.arange(len(levels))) for column, levels in columns])


def _nearest(points: np.ndarray, others: np.ndarray, count: int) -> np.ndarray:
    """The positions of the nearest of `others` at other places, (points, count)."""
    squares = (points**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2.0 * points @ others.T
    squares[squares <= FLAT] = np.inf
    return np.argpartition(squares, count, axis=1)[:, :count]


def _are_faces(points: np.ndarray) -> bool:
    """Whether all points are on faces of a box, as those of conditions on all sides are."""
    if points.shape[1] < 2:
        return False
    low, high = points.min(axis=0), points.max(axis=0)
    near = FLAT * (high - low)
    return bool(((points <= low + near) | (points >= high - near)).any(axis=1).all())


def _is_quadric(points: np.ndarray) -> bool:
    """Whether a polynomial of degree two vanishes at all points: on a sphere, a cylinder, or two planes.

    In several dimensions, few points on a sphere have neighbours on all sides.
    """
    numbers = np.column_stack([np.ones(len(points)), points])
    first, second = np.triu_indices(numbers.shape[1])
    terms = numbers[:, first] * numbers[:, second]
    if len(terms) <= terms.shape[1]:
        return False
    sizes = np.linalg.svd(terms / np.linalg.norm(terms, axis=0), compute_uv=False)
    return bool(sizes[-1] < FLAT * sizes[0])


def _fills(local: np.ndarray) -> bool:
    """Whether the neighbours of most points are on all sides, as in a region of this dimension."""
    count = 2 * local.shape[1] + 1
    if local.shape[1] < 2 or len(local) <= count:
        return local.shape[1] == 1
    sample = local[:100]
    differences = local[_nearest(sample, local, count)] - sample[:, None]
    sizes = np.linalg.svd(differences, compute_uv=False)
    return bool(np.median(sizes[:, -1] / sizes[:, 0]) > FILLED)


def held_out(problem: ResidualProblem, seed: int, terms: Collection[int]) -> list[np.ndarray | None]:
    """For each term which of its points are held out, (points,); None for terms that need no such points.

    Terms with data cannot be looked at anywhere else. These are measurements, and equations with a coefficient at each point.

    Parameters
    ----------
    problem : ResidualProblem
        The problem.
    seed : int
        The seed of the choice.
    terms : collection of int
        The terms that keep their points. Of these, terms without data and with few points hold nothing out.
    """
    rng = streams.generator("points", seed, 2)
    found: list[np.ndarray | None] = []
    for number, term in enumerate(problem.terms):
        count = len(term.points)
        weights = np.broadcast_to(np.asarray(term.weight, np.float64), count)
        known = np.flatnonzero(weights)
        if number not in terms or not term.data or len(known) < FEWEST_HELD:
            found.append(None)
            continue
        held = np.zeros(count, bool)
        held[rng.choice(known, len(known) // HELD_OUT, replace=False)] = True
        found.append(held)
    return found


def only_at(problem: ResidualProblem, kept: Sequence[np.ndarray | None]) -> ResidualProblem:
    """The problem with these points of terms alone, and their weights scaled to the mean that all have."""
    terms = []
    for term, rows in zip(problem.terms, kept, strict=True):
        if rows is not None:
            weights = np.broadcast_to(np.asarray(term.weight, np.float64), len(rows))
            term = replace(term, weight=np.where(rows, weights * (weights.sum() / weights[rows].sum()), 0.0))
        terms.append(term)
    return with_terms(problem, terms)


@dataclass(frozen=True)
class Verdict:
    """The residuals of one state of a network, at the points of its training and at others."""

    terms: np.ndarray  # each term's part of the loss, (terms,)
    second: np.ndarray  # the same at the second points
    further: np.ndarray  # the same, or what it is at further points if these are more
    relative: float  # the largest root of a mean squared residual at second points, as a share of its term's size
    change: float  # of the outputs in the last long stretch of iterations and after it, as a share of their deviation
    labels: tuple[str, ...]  # of the terms
    growth: float = 0.0  # the logarithm of that of the outputs, by the equations
    unseen: float = 0.0  # the part of the loss of measurements that are held out, at least that which counts as small
    exact: tuple[bool, ...] = ()  # whether a term's residual can be zero, as that of measurements cannot; by default it can
    looked: bool = True  # whether equations were looked at anywhere but at the points of their training

    @property
    def differing(self) -> list[int]:
        """The terms whose residuals are much larger at the second points."""
        return self._larger(self.second)

    def _larger(self, losses: np.ndarray) -> list[int]:
        """Those of the terms, without measurements: more points of these are no remedy for their noise."""
        exact = self.exact or (True,) * len(losses)
        return [k for k, (a, b) in enumerate(zip(self.terms, losses, strict=True)) if exact[k] and not b <= MOST_APART * a]

    @property
    def success(self) -> bool:
        return self.looked and self.relative <= LARGEST_RESIDUAL and self.change <= LARGEST_CHANGE

    def sentence(self) -> str:
        """What a small loss means here, or what is wrong."""
        if not self.success and self.growth > math.log(MOST_GROWTH):
            return f"{self._wrong()}; {self._growing()}"
        return self._wrong()

    def _growing(self) -> str:
        times = f"1e{self.growth / math.log(10.0):.0f}"
        return (
            f"by the equations, outputs can grow {times} times from their start: solve for the logarithm of what grows, give "
            "the `scales` of the others, or take windows of time, each from the end of the one before"
        )

    def _wrong(self) -> str:
        if not self.relative <= LARGEST_RESIDUAL:
            differing = self._larger(self.further)
            if differing:
                terms = ", ".join(self.labels[k] for k in differing)
                return f"the residual of {terms} is larger between its points than at them: take more points, or `candidates`"
            advice = "more iterations, a wider network, a shorter interval, or the `scales` that you know may help"
            return f"the residual is {self.relative:.1g} of its size: {advice}"
        if not self.change <= LARGEST_CHANGE:
            return f"the outputs changed by {self.change:.1g} of their deviation in the last round: more iterations may help"
        if not any(self.exact or (True,)):
            return "there are measurements alone, and no equation that says whether outputs are right"
        if not self.looked:
            return "the equations have too few points to look between them: take more points, or `candidates`"
        return f"at points that were not trained, residuals are at most {self.relative:.1g} of their size (root mean square)"


class Judge:
    """Looks at a network at second points, and keeps its outputs there from one look to the next."""

    def __init__(
        self, net: Any, p: np.ndarray, problem: ResidualProblem, candidates: Sequence[Any], seed: int,
        held: Sequence[np.ndarray | None] = (),
    ) -> None:  # fmt: skip
        self.net, self.problem = net, problem
        free = [k for k, pool in enumerate(candidates) if pool is None and not problem.terms[k].data]
        fresh = self.spread(free, seed, 1)
        pools = [fresh[k] if pool is None else pool for k, pool in enumerate(candidates)]
        self.second = problem.resampled(net, p, pools, seed, k=0.0) if any(pool is not None for pool in pools) else problem
        apart = [k for k, rows in enumerate(held) if rows is not None]
        if apart:
            self.second = only_at(self.second, held)
        self.held = [k for k in apart if _measured(problem, k)]
        self.free, self.seed = [k for k in free if fresh[k] is not None], seed
        apart += [k for k, pool in enumerate(pools) if pool is not None]
        self.renewable = [k for k in self.free if not np.ndim(problem.terms[k].weight)]
        self.scales = problem.guessed_scales()
        sizes = self.scales.residuals
        squares = [len(each) if problem.scales else sum(size * size for size in each) for each in sizes]
        weights = [float(np.mean(term.weight)) or 1.0 for term in problem.terms]  # a term without weight has no loss
        self.unit = np.array(squares) * weights
        self.exact = np.array([not _measured(problem, k) for k in range(len(squares))])
        orders = np.array([max((len(by) for _, by in each.pieces), default=0) for each in problem.loss.residuals])
        self.highest = self.exact & (orders == orders[self.exact].max(initial=0))  # the equations; other terms are conditions
        self.looked = bool(self.highest[apart].any())
        self.earlier = self.outputs = self._outputs(p)  # before the last long stretch, and after it

    def spread(self, terms: Collection[int], seed: int, times: int) -> list[Any]:
        """Candidates for these terms between their points, `times` as many; None for others, and where there are none."""
        rng = streams.generator("points", seed, 1)
        found: list[Any] = [None] * len(self.problem.terms)
        for k in terms:
            term = self.problem.terms[k]
            rest = [np.asarray(each.points, np.float64) for each in self.problem.terms if each is not term]
            others = np.concatenate([*rest, np.empty((0, len(self.problem.coordinates)))])
            drawn = (fresh_points(np.asarray(term.points, np.float64), others, rng) for _ in range(times))
            parts = [each for each in drawn if each is not None]
            if parts:
                weight = np.tile(term.weight, times) if np.ndim(term.weight) else term.weight
                found[k] = replace(term, points=np.concatenate(parts), weight=weight)
        return found

    def look(self, p: np.ndarray, at: ResidualProblem, number: int = 0, *, short: bool = False) -> Verdict:
        """The residuals of the parameters `p`, which were trained at the points of `at`, in look `number`.

        After a `short` stretch of iterations the change is that of the last long one as well: few iterations change little.
        """
        second, outputs = self._losses(p, self.second), self._outputs(p)
        if not short:
            self.earlier, self.outputs = self.outputs, outputs
        before = self.earlier
        with np.errstate(all="ignore"):
            deviation = np.maximum(outputs.std(axis=1), 1e-12 * abs(outputs).max(axis=1))
            change = (outputs - before).std(axis=1) / deviation  # a constant, as in a pressure, may be free
        tightened = self._tightened(p)
        relative = self._relative(second, tightened)
        further = second
        if relative <= LARGEST_RESIDUAL and self.free:
            further = np.maximum(second, np.mean([self._losses(p, each) for each in self._further(p, number)], axis=0))
            relative = self._relative(further, tightened)
        verdict = Verdict(
            self._losses(p, at), second, further, relative, float(np.nanmax(change, initial=0.0)), self.problem.labels,
            unseen=float(np.maximum(second, LARGEST_RESIDUAL**2 * self.unit)[self.held].sum()),
            exact=tuple(self.exact.tolist()), looked=self.looked,
        )  # fmt: skip
        return verdict if verdict.success else replace(verdict, growth=growth(self.net, p, self.problem))

    def behind(self, verdict: Verdict) -> list[int]:
        """The conditions whose part of the loss is much larger than that of every equation of the highest order."""
        share = verdict.second / self.unit
        least = BEHIND * share[self.highest].max(initial=0.0)
        return [k for k in np.flatnonzero(self.exact & ~self.highest).tolist() if share[k] > least]

    def _relative(self, second: np.ndarray, tightened: np.ndarray) -> float:
        """The largest root of a mean squared residual, as a share of its term's size."""
        return float((np.sqrt(second / self.unit) * tightened)[self.exact].max(initial=0.0))

    def _further(self, p: np.ndarray, number: int) -> list[ResidualProblem]:
        """The problem at several sets of points that are drawn for this look alone: a jump can hide from those of all looks."""
        seeds = np.random.SeedSequence([self.seed, number, 2]).generate_state(FURTHER).tolist()
        return [self.problem.resampled(self.net, p, self.spread(self.free, seed, 1), seed, k=0.0) for seed in seeds]

    def _tightened(self, p: np.ndarray) -> np.ndarray:
        """For each term, how many times smaller a residual's size is for outputs of the offsets and lengths of these, if any.

        Where a formula grows without bound with an output, as rates of reactions do with the temperature, the size for guessed
        scales can be orders of magnitude too large. Where outputs stay at zero, all residuals are small.
        """
        problem = self.problem
        values = [*np.moveaxis(np.asarray(self.net(self.second.x, p)), -1, 0)]
        if problem.scales is not None:
            values = [offset + length * y for (offset, length), y in zip(problem.scales.outputs, values, strict=True)]
        lengths = [max(float(y.std()), LEAST_LENGTH * pair[1]) for y, pair in zip(values, self.scales.outputs, strict=True)]
        pairs = [*self.scales.coordinates, *((float(y.mean()), length) for y, length in zip(values, lengths, strict=True))]
        sizes = problem.sizes(dict(zip((*problem.coordinates, *problem.outputs), pairs, strict=True)))
        ratios = [np.array(a) / np.array(b) for a, b in zip(self.scales.residuals, sizes, strict=True)]
        return np.array([np.max(ratio, initial=1.0) for ratio in ratios])

    def _outputs(self, p: np.ndarray) -> np.ndarray:
        return np.stack([*self.problem.evaluate(self.net, p, self.second.points).values()])

    def _losses(self, p: np.ndarray, at: ResidualProblem) -> np.ndarray:
        """Each term's part of the loss."""
        found = np.empty(len(at.terms))
        for number in range(len(found)):
            own = at.t.copy()
            own[:, [k for k in range(len(found)) if k != number]] = 0.0
            found[number] = self.net.value_and_grad(p, at.x, own, at.loss)[0]
        return found


def _measured(problem: ResidualProblem, number: int) -> bool:
    """Whether a term compares outputs with data, which may have noise."""
    return bool(problem.terms[number].data) and all(not by for _, by in problem.loss.residuals[number].pieces)
