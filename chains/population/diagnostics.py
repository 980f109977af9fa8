"""What a fitted model says of each measurement, and measurements drawn from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.population.data import Subjects
from chains.population.errors import variances
from chains.support import arguments, streams
from chains.support.axes import new_axes
from chains.support.checks import check_count
from chains.support.messages import shown

QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True)
class Residuals:
    """Predictions and residuals, each (samples, outputs) in the order of the data; NaN where nothing was measured.

    Attributes
    ----------
    y : array
        The measurements.
    pred, ipred : array
        The predictions without effects, and with those of each subject.
    iwres : array
        ``(y - ipred)`` in standard deviations of the residual error.
    cwres : array
        Conditional weighted residuals: ``y`` minus its approximate mean, times the inverse root of the approximate covariance
        of all measurements of the subject. If the model is right, they are about independent with variance 1. Source: Hooker,
        Staatz and Karlsson, "Conditional weighted residuals (CWRES)", Pharmaceutical Research 24, 2007.
    """

    y: np.ndarray
    pred: np.ndarray
    ipred: np.ndarray
    iwres: np.ndarray
    cwres: np.ndarray

    def plot(self, ax: Any = None) -> Any:
        """Draw the measurements over the individual predictions with matplotlib, on `ax` or on a new figure; the `Axes`."""
        ax = new_axes() if ax is None else ax
        ax.plot(self.pred.ravel(), self.y.ravel(), ".", color="0.7", label="population")
        ax.plot(self.ipred.ravel(), self.y.ravel(), ".", label="individual")
        ends = [np.nanmin(self.y), np.nanmax(self.y)]
        ax.plot(ends, ends, color="0.3", linewidth=1)
        ax.set(xlabel="prediction", ylabel="measurement")
        ax.legend()
        return ax


def predictions(model: Any, theta: np.ndarray, subjects: Subjects, effects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The predictions (samples, outputs) with the effects of each subject, and their derivatives, (samples, outputs, n)."""
    p = np.ascontiguousarray(model._split(theta)[0])
    n, shape = effects.shape[1], subjects.t.shape
    x = np.hstack([subjects.x, effects[subjects.number]])
    axes = np.eye(n, x.shape[1], x.shape[1] - n)
    f, a = model.net.derivatives(p, x, order=1, directions=axes)
    return f.reshape(shape), a.reshape(*shape, n)


def residuals(model: Any, theta: np.ndarray, subjects: Subjects, effects: np.ndarray, method: str) -> Residuals:
    """The residuals at these effects, (subjects, n), of a fit by a method."""
    pred, slopes = predictions(model, theta, subjects, np.zeros_like(effects))
    ipred, a = predictions(model, theta, subjects, effects)
    there = subjects.weights != 0.0
    y = np.where(there, subjects.t, np.nan)
    if not model.error.normal:
        missing = np.full_like(y, np.nan)
        return Residuals(*map(subjects.restored, (y, pred, ipred, missing, missing)))
    parameters = np.exp(model._split(theta)[2])
    own = variances(model.error, ipred, parameters)
    typical = variances(model.error, pred, parameters)
    mean, v = ipred - np.einsum("...i,...i", a, effects[subjects.number][:, None]), own
    if method == "FO":
        mean, a = pred, slopes
    if method in ("FO", "FOCE"):
        v = typical
    omega = model.values(theta)["covariance"]
    cwres = np.full_like(y, np.nan)
    for k in range(subjects.count):
        rows = subjects.rows(k)
        chosen = there[rows]
        change = a[rows][chosen]
        values, vectors = np.linalg.eigh(change @ omega @ change.T + np.diag(v[rows][chosen]))
        cwres[rows][chosen] = vectors @ ((vectors.T @ (y - mean)[rows][chosen]) / np.sqrt(values))
    return Residuals(*map(subjects.restored, (y, pred, ipred, (y - ipred) / np.sqrt(own), cwres)))


def simulate(model: Any, theta: np.ndarray, subjects: Subjects, draws: int, seed: int) -> np.ndarray:
    """Measurements of new subjects with the samples of these, (draws, samples, outputs), in the order of the data.

    Raises ValueError for a density, FloatingPointError where drawn effects have no prediction: quantiles of the other subjects
    would say something else.
    """
    if not model.error.normal:
        raise ValueError(f"measurements can be drawn from normal errors, not from {model.error!r}")
    rng = streams.generator("population", arguments.check_seed(seed))
    factor = np.linalg.cholesky(model.values(theta)["covariance"])
    parameters = np.exp(model._split(theta)[2])
    found = np.empty((check_count("draws", draws), *subjects.t.shape))
    for draw in found:
        effects = rng.standard_normal((subjects.count, len(factor))) @ factor.T
        f = predictions(model, theta, subjects, effects)[0]
        _check_solved(model, theta, subjects, effects, f)
        draw[...] = f + np.sqrt(variances(model.error, f, parameters)) * rng.standard_normal(f.shape)
    return np.stack([subjects.restored(draw) for draw in found])


def _check_solved(model: Any, theta: np.ndarray, subjects: Subjects, effects: np.ndarray, f: np.ndarray) -> None:
    """Raise FloatingPointError if a prediction of a measurement is NaN, with the network's own reason if it has one."""
    bad = np.flatnonzero((np.isnan(f) & (subjects.weights != 0.0)).any(1))
    if not len(bad):
        return
    row = bad[0]
    own = effects[subjects.number[row]]
    reason = "the prediction is NaN"
    try:
        model.net(np.hstack([subjects.x[row], own])[None], np.ascontiguousarray(model._split(theta)[0]))
    except FloatingPointError as error:
        reason = str(error)
    drawn = ", ".join(f"{name}={value:.3g}" for name, value in zip(model.effects, own, strict=True))
    raise FloatingPointError(f"subject {subjects.ids[subjects.number[row]]} with the drawn effects {drawn}: {reason}")


@dataclass(frozen=True)
class PredictiveCheck:
    """Quantiles of measurements in bins, and those of simulated ones: a visual predictive check.

    Attributes
    ----------
    centres : array, shape (bins,)
        The mean of the values by which measurements are divided.
    quantiles : tuple of float
        The quantiles.
    observed : array, shape (quantiles, bins)
        Those of the measurements.
    simulated : array, shape (draws, quantiles, bins)
        Those of each simulation.
    """

    centres: np.ndarray
    quantiles: tuple[float, ...]
    observed: np.ndarray
    simulated: np.ndarray

    @property
    def inside(self) -> np.ndarray:
        """Whether each observed quantile is among the middle 95 % of the simulated ones, (quantiles, bins)."""
        low, high = np.quantile(self.simulated, [0.025, 0.975], axis=0)
        inside: np.ndarray = (low <= self.observed) & (self.observed <= high)
        return inside

    def plot(self, ax: Any = None) -> Any:
        """Draw the observed quantiles, and 95 % of the simulated ones as bands, with matplotlib; the `Axes`.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; by default on a new pyplot figure.
        """
        ax = new_axes() if ax is None else ax
        low, high = np.quantile(self.simulated, [0.025, 0.975], axis=0)
        for k, quantile in enumerate(self.quantiles):
            ax.fill_between(self.centres, low[k], high[k], color=f"C{k}", alpha=0.25, linewidth=0)
            ax.plot(self.centres, self.observed[k], ".-", color=f"C{k}", label=f"{100 * quantile:g} %")
        ax.set_ylabel("measurement")
        ax.legend()
        return ax


def predictive_check(y: np.ndarray, by: Any, simulated: np.ndarray, bins: int, quantiles: tuple[float, ...]) -> PredictiveCheck:
    """The quantiles in bins of about equal size. Raises ValueError for `by`, bins and quantiles that do not fit."""
    by = np.asarray(by, np.float64)
    if by.shape not in (y.shape, y.shape[:1]) or not np.isfinite(by).all():
        raise ValueError(f"`by` must have a finite number for each measurement, shape {y.shape}, got shape {by.shape}")
    if not quantiles or not all(0.0 < each < 1.0 for each in quantiles):
        raise ValueError(f"`quantiles` (={shown(quantiles)}) must be between 0 and 1")
    by = np.broadcast_to(by if by.ndim == 2 else by[:, None], y.shape)
    there = np.isfinite(y)
    check_count("bins", bins)
    edges = np.unique(np.quantile(by[there], np.linspace(0.0, 1.0, bins + 1)))
    number = np.clip(np.searchsorted(edges, by, "right") - 1, 0, max(len(edges) - 2, 0))
    chosen = [there & (number == k) for k in range(max(len(edges) - 1, 1))]
    chosen = [each for each in chosen if each.any()]
    observed = np.array([np.quantile(y[each], quantiles) for each in chosen]).T
    drawn = np.array([np.quantile(simulated[:, each], quantiles, axis=1) for each in chosen])
    centres = np.array([by[each].mean() for each in chosen])
    return PredictiveCheck(centres, tuple(quantiles), observed, np.moveaxis(drawn, (0, 1, 2), (2, 1, 0)))
