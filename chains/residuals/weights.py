"""Weights of a residual problem that follow the training: of single points, and of whole terms.

Weights are numbers in `problem.t`, so that every compiled program is used again.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from chains.residuals.problem import ResidualProblem
from chains.support.checks import check_flags, check_number


class AdaptiveWeights:
    """Weights of a residual problem that change during training; `update` makes the problem with the new weights.

    A point's weight is the square of a number that follows the size of its residual,
    ``decay * number + rate * (floor + (1 - floor) * abs(r) / max(abs(r)))``, with the maximum over the points of its term. The
    weights of a term have the mean 1, so that the loss keeps its scale. For new points the numbers start from the limit that
    they would reach with the present residuals. A term's factor is the mean of the norms of all terms' gradients, divided by
    the norm of this term's; it moves by a tenth.

    Source: Anagnostopoulos, Toscano, Stergiopulos and Karniadakis, "Residual-based attention in physics-informed neural
    networks", CMAME 421, 2024 (points); Wang, Teng and Perdikaris, "Understanding and mitigating gradient flow pathologies in
    physics-informed neural networks", SIAM J. Sci. Comput. 43, 2021, with the norms of Wang, Sankaran, Wang and Perdikaris,
    "An expert's guide to training physics-informed neural networks", 2023 (terms).

    Parameters
    ----------
    points : bool
        Whether points have weights.
    terms : bool
        Whether terms have factors.
    decay : float
        The share of a point's number that an update keeps, in [0, 1).
    rate : float
        The amount that an update adds at the largest residual.
    floor : float
        The limit of the number of a point without a residual, as a share of that at the largest residual.

    Raises
    ------
    TypeError, ValueError
        For settings that are not valid.
    """

    def __init__(
        self, *, points: bool = True, terms: bool = False, decay: float = 0.9, rate: float = 0.1, floor: float = 0.5
    ) -> None:
        check_flags(points=points, terms=terms)
        check_number("decay", decay, "in [0, 1)")
        check_number("rate", rate, "in (0, inf)")
        check_number("floor", floor, "in [0, 1]")
        if not (points or terms):
            raise ValueError("`points` and `terms` are both False: there is nothing to adapt")
        self.points, self.terms = points, terms
        self.decay, self.rate, self.floor = float(decay), float(rate), float(floor)
        self.factors: np.ndarray | None = None  # (terms,)
        self._numbers: np.ndarray | None = None  # (points,)
        self._at: np.ndarray | None = None  # the points that they belong to

    def update(self, net: Any, p: np.ndarray, problem: ResidualProblem) -> ResidualProblem:
        """The problem with weights for these parameters. It has the same points, loss and shapes.

        Parameters
        ----------
        net : Chain
            The network.
        p : array, shape (n_params,)
            Its parameters.
        problem : ResidualProblem
            The original problem, not one that `update` has made.

        Raises
        ------
        ValueError
            If a residual or a gradient is not finite.
        """
        t, terms = problem.t.copy(), len(problem.terms)
        if self.points:
            t[:, :terms] *= self._weights(net, p, problem)[:, None]
        if self.terms:
            t[:, :terms] *= self._factors(net, p, problem, t)
        weighted = copy.copy(problem)
        weighted.t = t
        return weighted

    def _weights(self, net: Any, p: np.ndarray, problem: ResidualProblem) -> np.ndarray:
        """A weight of each point."""
        r = net.objective(problem.x, problem.t, problem.loss).residuals(p).reshape(len(problem.x), -1)
        sizes = np.linalg.norm(r, axis=1)
        wrong = ~np.isfinite(sizes)
        if wrong.any():
            raise ValueError(f"the residual is {sizes[wrong][0]} at point {np.argmax(wrong)}")
        most, numbers, weights = self.rate / (1.0 - self.decay), self._numbers, np.empty(len(sizes))
        known = numbers is not None and self._at is not None and np.array_equal(self._at, problem.x)
        found = np.empty(len(sizes))
        for rows in _rows(problem):
            share = self.floor + (1.0 - self.floor) * sizes[rows] / (sizes[rows].max() or 1.0)
            found[rows] = self.decay * numbers[rows] + self.rate * share if known and numbers is not None else most * share
            squares = found[rows] ** 2
            weights[rows] = squares / (squares.mean() or 1.0)
        self._numbers, self._at = found, problem.x
        return weights

    def _factors(self, net: Any, p: np.ndarray, problem: ResidualProblem, t: np.ndarray) -> np.ndarray:
        """A factor of each term."""
        count = len(problem.terms)
        norms = np.empty(count)
        for number in range(count):
            own = t.copy()
            own[:, [k for k in range(count) if k != number]] = 0.0
            norms[number] = np.linalg.norm(net.value_and_grad(p, problem.x, own, problem.loss)[1])
        if not np.isfinite(norms).all():
            raise ValueError(f"the gradient of {problem.labels[np.argmax(~np.isfinite(norms))]} is not finite")
        wanted = norms.mean() / np.maximum(norms, 1e-12 * norms.max()) if norms.any() else np.ones(count)
        self.factors = wanted if self.factors is None else 0.9 * self.factors + 0.1 * wanted
        return self.factors

    def numbers(self) -> dict[str, float]:
        """The numbers for a history: the factor of each term, and the mean of the points' numbers, which is at most 1."""
        found = {} if self.factors is None else {f"factor {k}": float(each) for k, each in enumerate(self.factors)}
        if self._numbers is not None:
            found["mean number"] = float(self._numbers.mean() * (1.0 - self.decay) / self.rate)
        return found

    def state(self) -> dict[str, np.ndarray]:
        """The numbers as arrays, to save with parameters."""
        arrays = {"factors": self.factors, "numbers": self._numbers, "at": self._at}
        return {name: array for name, array in arrays.items() if array is not None}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from the result of `state`.

        Parameters
        ----------
        state : dict
            The arrays by name.
        """
        self.factors, self._numbers, self._at = (state.get(name) for name in ("factors", "numbers", "at"))

    def __repr__(self) -> str:
        settings = f"points={self.points}, terms={self.terms}, decay={self.decay}, rate={self.rate}, floor={self.floor}"
        return f"AdaptiveWeights({settings})"


def _rows(problem: ResidualProblem) -> list[slice]:
    """The points of each term."""
    ends = np.cumsum([len(term.points) for term in problem.terms])
    return [slice(int(end) - len(term.points), int(end)) for end, term in zip(ends, problem.terms, strict=True)]
