"""The result of a fit: estimates with standard errors, effects of the subjects, and what they tell."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from chains.population.diagnostics import QUANTILES, PredictiveCheck, Residuals, predictive_check, residuals, simulate
from chains.population.fitting import hessian, names_and_values
from chains.population.likelihood import PopulationObjective
from chains.support.checks import check_word
from chains.support.messages import counted, shown

KINDS = ("sandwich", "R", "S")


@dataclass
class PopulationFit:
    """A fitted model.

    Attributes
    ----------
    model : PopulationModel
        The model.
    theta : array, shape (n_params,)
        The flat vector at the minimum.
    value : float
        Minus two times the logarithm of the marginal likelihood there, without constants.
    success, message, iterations, calls
        As of `chains.minimize`.
    """

    model: Any
    objective: PopulationObjective
    theta: np.ndarray
    value: float
    success: bool
    message: str
    iterations: int
    calls: int

    def __getstate__(self) -> dict[str, Any]:
        """Without what is computed when it is asked for."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def values(self) -> dict[str, Any]:
        """The estimates, as ``model.values(theta)``."""
        found: dict[str, Any] = self.model.values(self.theta)
        return found

    @property
    def subjects(self) -> np.ndarray:
        """The subjects in ascending order, the order of everything that has a row for each of them."""
        return self.objective.subjects.ids

    @cached_property
    def effects(self) -> np.ndarray:
        """The effects of each subject, (subjects, effects)."""
        return self.objective.effects(self.theta)

    def covariance(self, kind: str = "sandwich") -> np.ndarray:
        """The covariance of the flat vector's estimate, zero for frozen parameters.

        R is half the Hessian matrix of the objective, S a quarter of the sum of the products of the subjects' gradients. The
        sandwich is R^-1 S R^-1, which also holds where the model is wrong.

        Parameters
        ----------
        kind : str
            "sandwich", "R" for R^-1, or "S" for S^-1.

        Raises
        ------
        ValueError
            If the matrix is singular: the data do not tell all parameters.
        """
        check_word("kind", kind, *KINDS)
        free = self.objective.free
        free.restrict(self.theta)
        try:
            r, s = self._matrices
            if not np.isfinite(r).all():  # a step from the estimate has a variance that vanishes
                raise np.linalg.LinAlgError
            found = np.linalg.inv(s if kind == "S" else r)
        except np.linalg.LinAlgError:
            raise ValueError(
                f"the matrix {'S' if kind == 'S' else 'R'} is singular: the data do not tell all parameters"
            ) from None
        if kind == "sandwich":
            found = found @ s @ found
        return np.asarray(free.expand(np.asarray(free.expand(found)).T))

    @cached_property
    def _matrices(self) -> tuple[np.ndarray, np.ndarray]:
        """R and S."""
        return 0.5 * hessian(self.objective, self.theta), 0.25 * self.objective.products(self.theta)

    def estimates(self) -> dict[str, float]:
        """The estimates by name: each number of the network, the variances and covariances, the errors."""
        names, values, _ = names_and_values(self.model, self.theta)
        return dict(zip(names, values.tolist(), strict=True))

    def standard_errors(self, kind: str = "sandwich") -> dict[str, float]:
        """The standard errors of `estimates`, by the delta method; 0 for frozen parameters.

        Parameters
        ----------
        kind : str
            "sandwich", "R" or "S", as of `covariance`.

        Raises
        ------
        ValueError
            As of `covariance`.
        """
        names, _, jacobian = names_and_values(self.model, self.theta)
        variances = np.einsum("ij,jk,ik->i", jacobian, self.covariance(kind), jacobian)
        return dict(zip(names, np.sqrt(np.maximum(variances, 0.0)).tolist(), strict=True))

    def shrinkage(self) -> dict[str, float]:
        """By effect, 1 minus the standard deviation of the subjects' effects over that of the model; "errors", of `iwres`.

        Near 1, the data say little of single subjects: their effects are near 0, and plots of them mislead.
        """
        sd = self.effects.std(0)
        model = np.sqrt(np.diag(self.values["covariance"]))
        found = dict(zip(self.model.effects, (1.0 - sd / model).tolist(), strict=True))
        if self.model.error.normal:
            found["errors"] = 1.0 - float(np.nanstd(self.residuals.iwres))
        return found

    @cached_property
    def residuals(self) -> Residuals:
        """Predictions and residuals of each measurement; the last two are NaN for a `Density`."""
        return residuals(self.model, self.theta, self.objective.subjects, self.effects, self.objective.method)

    def check(
        self, by: Any, *, bins: int = 8, draws: int = 200, quantiles: tuple[float, ...] = QUANTILES, seed: int = 0
    ) -> PredictiveCheck:
        """A visual predictive check: quantiles of the measurements, and of measurements drawn from the model.

        Parameters
        ----------
        by : array, shape (samples,) or (samples, outputs)
            The number by which measurements are divided into bins, such as the time since the last dose.
        bins, draws : int
            How many; bins have about equal numbers of measurements.
        quantiles : tuple of float
            The quantiles, between 0 and 1.
        seed : int
            The seed of the draws.

        Raises
        ------
        ValueError, FloatingPointError
            As of ``model.simulate``, and for arguments that do not fit.
        """
        y = self.residuals.y
        drawn = simulate(self.model, self.theta, self.objective.subjects, draws, seed)
        return predictive_check(y, by, drawn, bins, quantiles)

    def individual(self, subject: Any) -> tuple[Any, np.ndarray]:
        """The network of one subject and its parameters, as ``model.individual``.

        Parameters
        ----------
        subject
            One of `subjects`.
        """
        found = np.flatnonzero(self.subjects == subject)
        if not len(found):
            raise ValueError(f"`subject` (={shown(subject)}) is not among the {len(self.subjects)} subjects of the fit")
        made: tuple[Any, np.ndarray] = self.model.individual(self.theta, self.effects[found[0]])
        return made

    def __str__(self) -> str:
        lines = [f"{self.objective.method}: {self.value:.5f} after {counted(self.iterations, 'iteration')}; {self.message}"]
        lines += [f"{name:30}{value:14.6g}" for name, value in self.estimates().items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<population fit, {self.objective.method}: {self.value:.5f}, {self.objective.subjects}>"
