"""Residuals of differential equations as losses: formulas of a network's outputs and of their derivatives.

>>> burgers = Term(lambda u: u.t + u * u.x - 0.01 / math.pi * u.xx, points)  # points: (n, 2), columns t and x
>>> start = Term(lambda u, x: u + sin(math.pi * x), np.column_stack([np.zeros(100), np.linspace(-1, 1, 100)]))
>>> problem = ResidualProblem(("t", "x"), ("u",), [burgers, start])
>>> train(net, p, problem.x, problem.t, problem.loss, Adam(1e-3), epochs=1000, batch_size=None)

The derivatives are exact: the network is recorded for Taylor series, and the loss pulls back the cotangents of all coefficients
together (`chains.jets`). Source of the method: Raissi, Perdikaris and Karniadakis, "Physics-informed neural networks", Journal
of Computational Physics 378, 2019.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chains.expr.formulas import Replay
from chains.residuals.loss import ResidualLoss, Tracer
from chains.residuals.scale_guesses import Sampled, find_scales
from chains.residuals.scales import Scales, given_scales
from chains.support import streams
from chains.support.arguments import check_seed
from chains.support.checks import check_number
from chains.support.messages import counted, shown


@dataclass(frozen=True)
class Term:
    """One condition on the outputs: a residual that should be zero at some points.

    Parameters
    ----------
    residual : callable
        A formula whose arguments are named like outputs, coordinates and `data`; an output ``u`` has derivatives ``u.x``,
        ``u.xx``, ``u.xt``, or ``u.d("x", "x")``, up to order 4. It returns a number, or a tuple of numbers for several
        equations.
    points : array, shape (n, coordinates)
        Where the condition holds.
    data : mapping of arrays, each of shape (n,), optional
        Numbers that belong to the points: coefficients, forcing, values to fit.
    weight : float, or array, shape (n,)
        A factor of the mean of the squared residuals, or a factor of each square. At a point of weight 0 the data may be NaN:
        so one of two states can be observed.
    name : str, optional
        What tables and messages call the term. By default it is "term" and its position in the problem, from 0.
    """

    residual: Callable[..., Any]
    points: Any
    data: Mapping[str, Any] | None = None
    weight: Any = 1.0
    name: str | None = None

    def __repr__(self) -> str:
        name = self.name or getattr(self.residual, "__name__", shown(self.residual))
        data = f", data {', '.join(self.data)}" if self.data else ""
        return f"<term: {name} at {shown(self.points)}{data}, weight {shown(self.weight)}>"


class ResidualProblem:
    """Equations and conditions as a training problem: points `x`, numbers `t` and a `loss`.

    The loss is the sum over the terms of ``weight * mean(residual ** 2)``, with the mean over the term's points. Use it like
    any other loss: ``net.value_and_grad(p, problem.x, problem.t, problem.loss)``, `train`, ``net.objective``.

    Parameters
    ----------
    coordinates : sequence of str
        The names of the network's inputs.
    outputs : sequence of str
        The names of the network's outputs.
    terms : sequence of Term
        The conditions.
    transform : callable, optional
        A formula of outputs and coordinates. The terms get its values instead of the outputs, so that conditions hold exactly:
        ``lambda u, x: x * (1 - x) * u``.
    scales : mapping of float or of pair of float, optional
        The length, or the offset and the length, of coordinates and outputs by name, in your units:
        ``{"x": 0.04, "T": (300.0, 700.0)}``. The network then works on ``(x - offset) / length``, and gives numbers that stand
        for ``offset + length * output``; each residual is divided by its size. Variables without an entry are guessed from the
        points and the conditions, all of them with ``{}``; ``print(problem)`` shows them. None leaves all numbers as they are.

    Attributes
    ----------
    points : array, shape (points, coordinates)
        All points.
    x : array, shape (points, coordinates)
        All points, as the network takes them.
    t : array, shape (points, terms + data)
        Each point's weights and data.
    loss : Loss
        The loss of a network at `x` and `t`.

    Raises
    ------
    TypeError, ValueError
        If a name is unknown or not a word, and if points and data do not fit together.
    """

    def __init__(
        self,
        coordinates: Sequence[str],
        outputs: Sequence[str],
        terms: Sequence[Term],
        *,
        transform: Callable[..., Any] | None = None,
        scales: Mapping[str, Any] | None = None,
    ) -> None:
        self.coordinates, self.outputs = _names("coordinates", coordinates), _names("outputs", outputs)
        self.terms = () if isinstance(terms, Term) else tuple(terms)
        if not self.terms or not all(isinstance(term, Term) for term in self.terms):
            raise TypeError(f"`terms` (={shown(terms)}) must be a list of Term(residual, points), at least one")
        labels = _labels(self.terms)
        twice = {name for name in self.coordinates if name in self.outputs}
        if twice:
            raise ValueError(f"`{min(twice)}` is the name of a coordinate and of an output")
        data = tuple(
            dict.fromkeys(name for label, term in zip(labels, self.terms, strict=True) for name in _data_names(term, label))
        )
        self.points, self.t = _arrays(self.terms, len(self.coordinates), data)
        tracer = Tracer(self.coordinates, self.outputs, data)
        shape = None if transform is None else tracer.transform(transform)
        self.loss = ResidualLoss(
            self.coordinates,
            self.outputs,
            data,
            tuple(
                tracer.residual(label, term.residual, term.data or ()) for label, term in zip(labels, self.terms, strict=True)
            ),
            shape,
        )
        if scales is not None:
            given = given_scales(scales, self.coordinates, self.outputs)
            self.loss = replace(self.loss, scales=find_scales(self.loss, self._sampled(), given))
        self.x = self._inward(self.points)

    @property
    def labels(self) -> tuple[str, ...]:
        """What messages call each term: its name, or "term" and its position."""
        return _labels(self.terms)

    @property
    def scales(self) -> Scales | None:
        """The offsets and lengths of variables, and the sizes of equations; None without `scales`."""
        return self.loss.scales

    def _inward(self, points: np.ndarray) -> np.ndarray:
        """Points as the network takes them."""
        return points if self.scales is None else self.scales.inward(points)

    def guessed_scales(self) -> Scales:
        """The scales of the problem; a guess of them, as by ``scales={}``, if it has none."""
        return self.scales or find_scales(self.loss, self._sampled(), {})

    def sizes(self, pairs: Mapping[str, tuple[float, float]]) -> tuple[tuple[float, ...], ...]:
        """The size of each equation of each term.

        Parameters
        ----------
        pairs : mapping of pair of float
            The offset and the length of each coordinate and output, by name.
        """
        return find_scales(self.loss, self._sampled(), pairs).residuals

    def _sampled(self) -> list[Sampled]:
        """The residual of each term at those of its points that have a weight."""
        found, begin = [], 0
        for number, (term, residual) in enumerate(zip(self.terms, self.loss.residuals, strict=True)):
            rows = np.arange(begin, begin + len(term.points))
            begin = rows[-1] + 1
            rows = rows[self.t[rows, number] != 0.0] if self.t[rows, number].any() else rows
            found.append(Sampled(residual, self.points[rows], self.t[rows, len(self.terms) :]))
        return found

    def evaluate(self, net: Any, p: np.ndarray, points: Any) -> dict[str, np.ndarray]:
        """The outputs by name at some points, after the transform; each has shape (n,).

        Parameters
        ----------
        net : Chain
            The network.
        p : array, shape (n_params,)
            Its parameters.
        points : array, shape (n, coordinates)
            The points.
        """
        if not callable(net):
            raise TypeError(f"`net` (={shown(net)}) must be a network such as Chain(Dense(2, 3))")
        x = np.asarray(points)
        values = [*np.moveaxis(net(self._inward(x), p), -1, 0)]
        if self.scales is not None:
            values = [offset + length * y for (offset, length), y in zip(self.scales.outputs, values, strict=True)]
        if self.loss.transform is not None:
            found = Replay(self.loss.transform)(*values, *np.moveaxis(x, -1, 0))
            values = list(found) if isinstance(found, tuple) else [found]
        return dict(zip(self.outputs, values, strict=True))

    def resampled(
        self, net: Any, p: np.ndarray, candidates: Any, seed: int = 0, *, k: float = 1.0, c: float = 1.0
    ) -> ResidualProblem:
        """The problem at points drawn from candidates, more of them where the residual is large.

        A candidate's probability is proportional to ``r ** k / mean(r ** k) + c``, where r is the norm of the term's equations
        there, and the mean is over the candidates of the term. If points have weights, r is multiplied by the root of the
        weight. Each candidate is drawn at most once. The new problem has the same shapes and the same loss, so all calls use
        the programs of this one.

        Source: Wu, Zhu, Tan, Kartha and Lu, "A comprehensive study of non-adaptive and residual-based adaptive sampling for
        physics-informed neural networks", 2023, with the name RAD and the same `k` and `c`.

        Parameters
        ----------
        net : Chain
            The network.
        p : array, shape (n_params,)
            Its parameters.
        candidates : array, Term or sequence of them
            For each term: points (n, coordinates), at least as many as the term has; None for a term that keeps its points,
            such as a boundary's; or ``dataclasses.replace(term, points=..., data=...)`` for a term with data, or with a weight
            for each point. For a single term, the sequence may be left out.
        seed : int
            The seed of the draws. Another seed draws other points from the same candidates.
        k : float
            The power of the residual; 0 draws all candidates with the same probability.
        c : float
            The part of the probability that does not depend on the residual. With 0, candidates with a residual of 0 are not
            drawn.

        Returns
        -------
        ResidualProblem
            The new problem.

        Raises
        ------
        TypeError, ValueError
            For settings that are not valid, candidates that do not belong to the terms or are too few, and a residual that is
            not finite.
        """
        check_number("k", k, "in [0, inf)")
        check_number("c", c, "in [0, inf)")
        rng = streams.generator("points", check_seed(seed))
        pools = self._pools(candidates)
        x, t = _arrays(pools, len(self.coordinates), self.loss.data)
        sizes = np.ones(len(x))  # equal ones need no residuals
        if k > 0.0:
            r = net.objective(self._inward(x), t, self.loss).residuals(p)
            sizes = np.linalg.norm(r.reshape(len(x), -1), axis=1)
        terms, begin = [], 0
        for label, term, pool in zip(self.labels, self.terms, pools, strict=True):
            rows = slice(begin, begin + len(pool.points))
            begin = rows.stop
            if pool is not term:
                density = _density(sizes[rows], k, c, label)
                pool = _drawn(pool, density, len(term.points), rng, label)
            terms.append(pool)
        return with_terms(self, terms)

    def _pools(self, candidates: Any) -> tuple[Term, ...]:
        """The terms at their candidates; those that keep their points as they are."""
        if len(self.terms) == 1 and (isinstance(candidates, Term) or hasattr(candidates, "shape")):
            candidates = [candidates]
        count = len(self.terms)
        if not isinstance(candidates, (list, tuple)) or len(candidates) != count:
            wanted = "an array of points" if count == 1 else f"a list of {count}: an array of points, or None, for each term"
            raise TypeError(f"`candidates` (={shown(candidates)}) must be {wanted}")
        return tuple(map(_pool, self.terms, candidates, self.labels))

    def __repr__(self) -> str:
        names = f"{', '.join(self.outputs)} in {', '.join(self.coordinates)}"
        scales = "" if self.scales is None else f"; {self.scales.text((*self.coordinates, *self.outputs))}"
        return f"<residual problem of {names}: {counted(len(self.terms), 'term')}, {counted(len(self.x), 'point')}{scales}>"


def _names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) and name.isidentifier() for name in names) or not names:
        raise TypeError(f'`{what}` (={shown(names)}) must be names such as ("t", "x")')
    if len(set(names)) < len(names):
        raise ValueError(f"`{what}` (={shown(names)}) names one twice")
    return tuple(names)


def _labels(terms: Sequence[Term]) -> tuple[str, ...]:
    """What messages call each term. Raises TypeError or ValueError for names that are no words, and for a name of two terms."""
    for term in terms:
        if term.name is not None and not (isinstance(term.name, str) and term.name.strip()):
            raise TypeError(f'`name` (={shown(term.name)}) of a term must be a word such as "start"')
    found = tuple(f"term {number}" if term.name is None else term.name for number, term in enumerate(terms))
    for number, name in enumerate(found):
        if name in found[:number]:
            raise ValueError(f"two terms have the name {shown(name)}: each needs its own")
    return found


def with_terms(problem: ResidualProblem, terms: Sequence[Term]) -> ResidualProblem:
    """The problem with other points, weights and data of its terms; the formulas, the loss and the scales stay.

    Each term is a ``dataclasses.replace`` of the one in its place.
    """
    problem = copy.copy(problem)
    problem.terms = tuple(terms)
    problem.points, problem.t = _arrays(problem.terms, len(problem.coordinates), problem.loss.data)
    problem.x = problem._inward(problem.points)
    return problem


def _arrays(terms: Sequence[Term], coordinates: int, data: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The points of all terms; for each point, a weight of each term and a number of each name in `data`."""
    labels = _labels(terms)
    points = [_points(term, coordinates, label) for label, term in zip(labels, terms, strict=True)]
    total = sum(map(len, points))
    t = np.zeros((total, len(terms) + len(data)))
    begin, known = 0, set[str]()
    for number, (term, own) in enumerate(zip(terms, points, strict=True)):
        rows = slice(begin, begin + len(own))
        weights = _weights(term.weight, len(own), labels[number])
        t[rows, number] = weights * total / len(own)
        for name, values in (term.data or {}).items():
            column, position = _values(name, values, len(own), labels[number]), len(terms) + data.index(name)
            kept = column[np.argmax(weights != 0)] if weights.any() else 0.0
            if name not in known:  # all formulas run at all points, so those of other terms get a number that is fine
                t[:, position] = kept
                known.add(name)
            t[rows, position] = np.where(weights == 0, kept, column)
        begin = rows.stop
    return np.concatenate(points), t


def _pool(term: Term, given: Any, label: str) -> Term:
    """The term at the candidates `given`, or as it is for None."""
    if given is None:
        return term
    advice = "pass dataclasses.replace(term, points=..., data=..., weight=...)"
    if not isinstance(given, Term):
        if term.data:
            raise ValueError(f"{label} has data, and its candidates have none: {advice}")
        if np.ndim(term.weight):
            raise ValueError(f"{label} has a weight for each point, and its candidates have none: {advice}")
        return replace(term, points=given)
    if given.residual is not term.residual:
        raise ValueError(f"the candidates of {label} have another residual than the term: {advice}")
    names, wanted = _data_names(given, label), _data_names(term, label)
    if set(names) != set(wanted):
        raise ValueError(f"the candidates of {label} have the data {names}, and the term {wanted}: {advice}")
    if not np.ndim(term.weight) and (np.ndim(given.weight) or given.weight != term.weight):
        raise ValueError(
            f"the candidates of {label} have the weight {shown(given.weight)}, and the term {term.weight}: {advice}"
        )
    return replace(given, name=term.name)


def _density(r: np.ndarray, k: float, c: float, label: str) -> np.ndarray:
    """The unnormalised probabilities of candidates with residuals `r`."""
    wrong = ~np.isfinite(r)
    if wrong.any():
        raise ValueError(f"the residual of {label} is {r[wrong][0]} at candidate {int(np.argmax(wrong))}")
    powers = (r / r.max()) ** k if r.any() else np.ones_like(r)
    return powers / powers.mean() + c


def _drawn(pool: Term, density: np.ndarray, count: int, rng: np.random.Generator, label: str) -> Term:
    """The term at `count` of its candidates."""
    possible = np.count_nonzero(density)
    if possible < count:
        zero = "" if possible == len(density) else f", of which {len(density) - possible} have a residual of 0: pass c=1"
        raise ValueError(f"{label} has {counted(count, 'point')}, but {counted(len(density), 'candidate')}{zero}")
    picked = rng.choice(len(density), count, replace=False, p=density / density.sum())

    def at_picked(values: Any) -> Any:
        return np.asarray(values)[picked] if np.ndim(values) else values

    data = None if pool.data is None else {name: at_picked(values) for name, values in pool.data.items()}
    return replace(pool, points=at_picked(pool.points), data=data, weight=at_picked(pool.weight))


def _data_names(term: Term, label: str) -> list[str]:
    if term.data is not None and not isinstance(term.data, Mapping):
        raise TypeError(f'the `data` of {label} (={shown(term.data)}) must be arrays by name, such as {{"k": k}}')
    return [*(term.data or ())]


def _points(term: Term, coordinates: int, label: str) -> np.ndarray:
    if callable(term.points):
        raise TypeError(f"the `points` of {label} are a function: write Term(residual, points)")
    points = np.asarray(term.points)
    if points.ndim != 2 or points.shape[1] != coordinates or not len(points):
        raise ValueError(f"the `points` of {label} have shape {points.shape}: wanted (n, {coordinates}), at least one point")
    return points.astype(np.float64)


def _weights(weight: Any, count: int, label: str) -> np.ndarray:
    """The weight of each point. Raises TypeError or ValueError unless it is a positive number, or one number from 0 for each
    point.
    """
    if np.ndim(weight) == 0:
        check_number("weight", weight, "in (0, inf)")
    weights = np.asarray(weight, np.float64)
    if weights.shape not in ((), (count,)):
        raise ValueError(f"`weight` of {label} has shape {weights.shape}, but there are {count} points")
    wrong = weights[~((weights >= 0) & (weights < np.inf))]
    if wrong.size:
        raise ValueError(f"`weight` of {label} must be zero or positive, and finite, at each point, got {wrong[0]}")
    return np.broadcast_to(weights, (count,))


def _values(name: str, values: Any, count: int, label: str) -> np.ndarray:
    array = np.asarray(values, np.float64)
    if array.shape not in ((), (count,)):
        raise ValueError(f"`{name}` of {label} has shape {array.shape}, but there are {count} points")
    return np.broadcast_to(array, (count,))
