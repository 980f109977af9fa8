"""Residuals of differential equations as losses: formulas of a network's outputs and of their derivatives.

>>> burgers = Term(lambda u: u.t + u * u.x - 0.01 / math.pi * u.xx, points)  # points: (n, 2), columns t and x
>>> start = Term(lambda u, x: u + sin(math.pi * x), np.column_stack([np.zeros(100), np.linspace(-1, 1, 100)]))
>>> problem = ResidualProblem(("t", "x"), ("u",), [burgers, start])
>>> train(net, p, problem.x, problem.t, problem.loss, Adam(1e-3), epochs=1000, batch_size=None)

The derivatives are exact: the network is recorded for Taylor series, and the loss pulls back the cotangents of all
coefficients at once (`chains.jets`). Source of the method: Raissi, Perdikaris and Karniadakis, "Physics-informed neural
networks", Journal of Computational Physics 378, 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.expr.formulas import Replay
from chains.residuals.loss import ResidualLoss, Tracer
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
        Numbers that belong to the points: coefficients, forcing, values to be met.
    weight : float, or array, shape (n,)
        What the mean of the squared residuals over the points is multiplied by, or what each square is. Where an entry is 0,
        the data may be NaN, so that one of two states can be observed.
    """

    residual: Callable[..., Any]
    points: Any
    data: Mapping[str, Any] | None = None
    weight: Any = 1.0

    def __repr__(self) -> str:
        name = getattr(self.residual, "__name__", shown(self.residual))
        data = f", data {', '.join(self.data)}" if self.data else ""
        return f"<term: {name} at {shown(self.points)}{data}, weight {shown(self.weight)}>"


class ResidualProblem:
    """Equations and conditions as a training problem: points `x`, numbers `t` and a `loss`.

    The loss is the sum over the terms of ``weight * mean(residual ** 2)``, with the mean over the term's points. It goes where
    any other goes: ``net.value_and_grad(p, problem.x, problem.t, problem.loss)``, `train`, ``net.objective``.

    Parameters
    ----------
    coordinates : sequence of str
        The names of the network's inputs.
    outputs : sequence of str
        The names of the network's outputs.
    terms : sequence of Term
        The conditions.
    transform : callable, optional
        A formula of outputs and coordinates whose values the terms get instead of the outputs, for conditions that must hold
        exactly: ``lambda u, x: x * (1 - x) * u``.

    Raises
    ------
    TypeError, ValueError
        Where a name is unknown or not a word, and where points and data do not fit together.
    """

    def __init__(
        self,
        coordinates: Sequence[str],
        outputs: Sequence[str],
        terms: Sequence[Term],
        *,
        transform: Callable[..., Any] | None = None,
    ) -> None:
        self.coordinates, self.outputs = _names("coordinates", coordinates), _names("outputs", outputs)
        self.terms = () if isinstance(terms, Term) else tuple(terms)
        if not self.terms or not all(isinstance(term, Term) for term in self.terms):
            raise TypeError(f"`terms` (={shown(terms)}) must be a list of Term(residual, points), at least one")
        twice = {name for name in self.coordinates if name in self.outputs}
        if twice:
            raise ValueError(f"`{min(twice)}` is the name of a coordinate and of an output")
        points = [_points(term, len(self.coordinates), number) for number, term in enumerate(self.terms)]
        data = tuple(dict.fromkeys(name for term in self.terms for name in term.data or ()))
        total = sum(map(len, points))
        self.x = np.concatenate(points)
        self.t = np.zeros((total, len(self.terms) + len(data)))
        begin = 0
        for number, (term, own) in enumerate(zip(self.terms, points, strict=True)):
            rows = slice(begin, begin + len(own))
            weights = _weights(term.weight, len(own), number)
            self.t[rows, number] = weights * total / len(own)
            for name, values in (term.data or {}).items():
                column = _values(name, values, len(own), number)
                kept = column[np.argmax(weights != 0)] if weights.any() else 0.0
                self.t[rows, len(self.terms) + data.index(name)] = np.where(weights == 0, kept, column)
            begin = rows.stop
        tracer = Tracer(self.coordinates, self.outputs, data)
        shape = None if transform is None else tracer.transform(transform)
        self.loss = ResidualLoss(
            self.coordinates,
            self.outputs,
            data,
            tuple(tracer.residual(k, term.residual, term.data or ()) for k, term in enumerate(self.terms)),
            shape,
        )

    def evaluate(self, net: Any, p: np.ndarray, points: Any) -> dict[str, np.ndarray]:
        """The outputs at some points, with the transform: by name, each of shape (n,).

        Parameters
        ----------
        net : Chain
            The network.
        p : array, shape (n_params,)
            Its parameters.
        points : array, shape (n, coordinates)
            The points.
        """
        x = np.asarray(points)
        values = [*np.moveaxis(net(x, p), -1, 0)]
        if self.loss.transform is not None:
            found = Replay(self.loss.transform)(*values, *np.moveaxis(x, -1, 0))
            values = list(found) if isinstance(found, tuple) else [found]
        return dict(zip(self.outputs, values, strict=True))

    def __repr__(self) -> str:
        names = f"{', '.join(self.outputs)} in {', '.join(self.coordinates)}"
        return f"<residual problem of {names}: {counted(len(self.terms), 'term')}, {counted(len(self.x), 'point')}>"


def _names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) and name.isidentifier() for name in names) or not names:
        raise TypeError(f'`{what}` (={shown(names)}) must be names such as ("t", "x")')
    if len(set(names)) < len(names):
        raise ValueError(f"`{what}` (={shown(names)}) names one twice")
    return tuple(names)


def _points(term: Term, coordinates: int, number: int) -> np.ndarray:
    if term.data is not None and not isinstance(term.data, Mapping):
        raise TypeError(f'the `data` of term {number} (={shown(term.data)}) must be arrays by name, such as {{"k": k}}')
    if callable(term.points):
        raise TypeError(f"the `points` of term {number} are a function: write Term(residual, points)")
    points = np.asarray(term.points)
    if points.ndim != 2 or points.shape[1] != coordinates or not len(points):
        raise ValueError(
            f"the `points` of term {number} have shape {points.shape}: wanted (n, {coordinates}), at least one point"
        )
    return points.astype(np.float64)


def _weights(weight: Any, count: int, number: int) -> np.ndarray:
    """The weight of each point. Raises TypeError or ValueError unless it is one positive number, or one for each, 0 too."""
    if np.ndim(weight) == 0:
        check_number("weight", weight, "in (0, inf)")
    weights = np.asarray(weight, np.float64)
    if weights.shape not in ((), (count,)):
        raise ValueError(f"`weight` of term {number} has shape {weights.shape}, but there are {count} points")
    wrong = weights[~((weights >= 0) & (weights < np.inf))]
    if wrong.size:
        raise ValueError(f"`weight` of term {number} must be zero or positive, and finite, at each point, got {wrong[0]}")
    return np.broadcast_to(weights, (count,))


def _values(name: str, values: Any, count: int, number: int) -> np.ndarray:
    array = np.asarray(values, np.float64)
    if array.shape not in ((), (count,)):
        raise ValueError(f"`{name}` of term {number} has shape {array.shape}, but there are {count} points")
    return np.broadcast_to(array, (count,))
