"""The effects of all subjects at once: the minima of their objectives, by Newton's method with step control."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from chains.population import matrices
from chains.population.programs import pairs

MAX_ROUNDS = 200
SMALL, TINY = 1e-12, 1e-24  # of the fall that a step promises: one more step is exact to rounding; none is needed
ROUNDING = 1e-12  # of a value, which may rise by rounding alone
SHORTER = 0.25

# (effects) -> a column for each subject: deviance, gradient, upper triangles of the exact and of the expected Hessian matrix
Terms = Callable[[np.ndarray], np.ndarray]


@dataclass
class Modes:
    """The effects (n, subjects), the terms of their subjects there, and which subjects have converged."""

    effects: np.ndarray
    terms: np.ndarray
    converged: np.ndarray

    @property
    def n(self) -> int:
        return len(self.effects)

    def slope(self, precision: np.ndarray) -> np.ndarray:
        """The gradients of the objectives."""
        return self.terms[1 : 1 + self.n] + 2.0 * precision @ self.effects

    def hessian(self, precision: np.ndarray) -> np.ndarray:
        """The exact Hessian matrices, (n, n, subjects)."""
        return matrices.full(self._triangles[0], self.n) + 2.0 * precision[:, :, None]

    def half_expected(self, precision: np.ndarray) -> np.ndarray:
        """Half of the expected Hessian matrices, which are positive definite."""
        return matrices.full(self._triangles[1], self.n) + precision[:, :, None]

    @property
    def _triangles(self) -> np.ndarray:
        return self.terms[1 + self.n :].reshape(2, len(pairs(self.n)), -1)

    def values(self, precision: np.ndarray) -> np.ndarray:
        """Each subject's deviance plus that of its effects."""
        return self.terms[0] + np.einsum("ik,ij,jk->k", self.effects, precision, self.effects)


def find_modes(terms: Terms, precision: np.ndarray, start: np.ndarray) -> Modes:
    """The minima of all subjects, from `start`. A subject's bits do not depend on the others.

    A step that does not lower a subject's value is repeated, a quarter as long. Where the exact Hessian matrix is not positive
    definite, the expected one takes its place.
    """
    effects = start.copy()
    found = terms(effects)
    lost = ~np.isfinite(found).all(0)
    if lost.any():
        effects[:, lost] = 0.0
        found = terms(effects)
    modes = Modes(effects, found, np.zeros(effects.shape[1], bool))
    values = modes.values(precision)
    length = np.ones(effects.shape[1])
    last = np.zeros(effects.shape[1], bool)  # whose next step is the last one
    for _ in range(MAX_ROUNDS):
        step, fall = _step(modes, precision)
        scale = 1.0 + abs(values)
        modes.converged |= fall <= TINY * scale
        last = (fall <= SMALL * scale) & (length == 1.0)
        active = ~modes.converged & np.isfinite(values)
        if not active.any():
            break
        trial = Modes(modes.effects + np.where(active, length * step, 0.0), found, modes.converged)
        trial.terms = terms(trial.effects)
        with np.errstate(invalid="ignore"):
            reached = trial.values(precision)
            lower = active & (reached <= values + ROUNDING * scale) & np.isfinite(trial.terms).all(0)
        modes.converged |= last & active
        _take(modes, trial, lower)
        values = np.where(lower, reached, values)
        length = np.where(lower, 1.0, SHORTER * length)
    return modes


def _step(modes: Modes, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Newton's steps, and the falls that they promise."""
    slope = modes.slope(precision)
    factor = matrices.cholesky(modes.hessian(precision))
    wrong = ~np.isfinite(factor[-1, -1])
    if wrong.any():
        expected = matrices.cholesky(2.0 * modes.half_expected(precision))
        factor = np.where(wrong, expected, factor)
    step = -matrices.solve(factor, slope)
    return step, -0.5 * (slope * step).sum(0)


def _take(modes: Modes, trial: Modes, where: np.ndarray) -> None:
    if where.all():
        modes.effects, modes.terms = trial.effects, trial.terms
    elif where.any():
        modes.effects = np.where(where, trial.effects, modes.effects)
        modes.terms = np.where(where, trial.terms, modes.terms)
