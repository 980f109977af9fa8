"""Fits of differential equations to long series, cut into segments with trained initial states.

Source: Bock, "Numerical treatment of inverse problems in chemical reaction kinetics", 1981; for networks within equations
Turan and Jäschke, arXiv 2109.06786.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from chains.backends import Backend, Cupy
from chains.chain import Chain
from chains.layers.ode import ODE
from chains.layers.ode.shooting import Shooting
from chains.losses import SquaredLoss
from chains.minimize.minimize import BAR_DELAY_SECONDS, minimize
from chains.minimize.result import Result
from chains.objectives.objective import Objective
from chains.support.arguments import check_finite, check_params
from chains.support.arrays import as_numpy
from chains.support.checks import check_count, check_is, check_number
from chains.support.messages import counted
from chains.support.progress import Progress

CONTINUITY = (1.0, 10.0, 100.0, 1000.0)


@dataclass(frozen=True)
class Shot:
    """The result of `MultipleShooting.fit`."""

    p: np.ndarray  # the parameters of `Chain(ode)`
    starts: np.ndarray  # the initial states (series, n)
    states: np.ndarray  # the solutions from there, (series, times, n)
    gaps: list[float]  # after each fit with segments, the largest gap between two of them
    error: float  # the mean of the squared errors of the numbers that were observed, in units of their variance
    result: Result  # of the last fit, whose solutions are continuous

    def __repr__(self) -> str:
        gaps = ", ".join(f"{gap:.2g}" for gap in self.gaps)
        return f"<shot: error {self.error:.3g}, {self.result.message}; largest gaps before: {gaps or 'none'}>"


class MultipleShooting:
    """The fit of a differential equation to observed series, which are cut into segments.

    A fit of the whole series often fails if solutions oscillate or are unstable: far from the start they depend on the
    parameters hardly at all, or far too much. The solution of a segment stays near the observations. Its initial state is
    trained, and the gaps between segments are made small.

    The loss is half the sum of the squared errors plus `continuity` times half the sum of the squared gaps, divided by the
    number of segments of all series. Errors and gaps are in units of the standard deviation of each number of the state.

    Parameters
    ----------
    ode : ODE
        The equation, at the times of the observations.
    observed : array, shape (times, n) or (series, times, n)
        The states; NaN where a number was not observed.
    segments : int
        The number of segments of a series. With 1, the solutions are continuous.
    given : array, shape (series, given), optional
        The `given` features of the equation.
    starts : array, shape (n,) or (series, times, n), optional
        The initial guess of numbers that were not observed. The guess of others is interpolated from the observations.
    backend : str or backends.Cupy
        As of `Chain`.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit together, and for a number of the state that was never observed and has no start.
    """

    def __init__(
        self, ode: ODE, observed: Any, segments: int, *, given: Any = None, starts: Any = None,
        backend: str | Cupy | Backend = "auto",
    ) -> None:  # fmt: skip
        _check_ode(ode)
        self.ode, self.times = ode, np.array(ode.times)
        self.observed = _checked_states(ode, observed)
        if check_count("segments", segments) > len(self.times) - 1:
            raise ValueError(f"`segments` (={segments}) must be at most {len(self.times) - 1}, the steps between the times")
        series, _, n = self.observed.shape
        self.given = _checked_constants(ode, given, series)
        self._begin = _filled(self.times, self.observed, starts)
        self._scale = _deviations(self._begin)
        length = -(-(len(self.times) - 1) // segments)  # steps of a segment; the last one may have fewer
        self._firsts = np.arange(0, len(self.times) - 1, length)
        self.segments = len(self._firsts)
        self._places = self._firsts[:, None] + np.arange(length + 1)  # of each segment's times; some are after the last one
        places = np.minimum(self._places, len(self.times) - 1)
        features = np.concatenate(
            [np.repeat(self.given, self.segments, axis=0), np.tile(self.times[places], (series, 1))], axis=1
        )
        rows = np.arange(series * self.segments)
        ends = rows % self.segments == self.segments - 1
        self.x = np.eye(len(rows))[np.stack([rows, np.where(ends, rows, rows + 1)], axis=1)]
        self.t = np.concatenate(
            [self.observed[:, places].reshape(len(rows), length + 1, n), np.zeros((len(rows), 1, n))], axis=1
        )
        known = np.isfinite(self.t)
        known[:, :-1] &= np.tile(self._is_counted(), (series, 1))[:, :, None]
        known[ends, -1] = False
        self._weights = known / self._scale**2
        self.net = Chain(Shooting(ode, features, n), input_shape=(2, len(rows)), backend=backend)

    def _is_counted(self) -> np.ndarray:
        """The times of segments whose errors count. A time that two segments share counts for the second."""
        counted = self._places < len(self.times)
        counted[:-1, -1] = False
        return counted

    @property
    def n_params(self) -> int:
        """The number of parameters of the equation."""
        return self.net.n_params - self._n_starts

    @property
    def _n_starts(self) -> int:
        return len(self.x) * self.observed.shape[2]

    def start(self, p: Any) -> np.ndarray:
        """The start of a fit: the initial states of all segments, from the observations, and the equation's parameters.

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters of ``Chain(ode)``.
        """
        p = as_numpy("p", check_params(p, self.n_params))
        return np.concatenate([self._begin[:, self._firsts].reshape(-1), p.astype(np.float64)])

    def objective(self, continuity: float = 1.0) -> Objective:
        """The loss as a function of the initial states of all segments and of the equation's parameters.

        Parameters
        ----------
        continuity : float
            The weight of the gaps.
        """
        check_number("continuity", continuity, "in [0, inf)")
        weights = self._weights.copy()
        weights[:, -1] *= continuity
        return cast(Objective, self.net.objective(self.x, self.t, SquaredLoss(), weights=weights))

    def fit(
        self, p: Any, *, continuity: Sequence[float] = CONTINUITY, method: str = "LM", maxiter: int = 100,
        ftol: float = 1e-6, progress: bool | None = None,
    ) -> Shot:  # fmt: skip
        """Fit with each weight of the gaps in turn, then with continuous solutions.

        Parameters
        ----------
        p : array, shape (n_params,)
            The parameters of ``Chain(ode)`` to begin with.
        continuity : sequence of float
            The weights of the gaps.
        method : str
            Of `minimize`.
        maxiter : int
            The largest number of iterations of each fit.
        ftol : float
            A fit ends when an iteration lowers the loss by at most `ftol` of its size, as in `minimize`.
        progress : bool, optional
            As in `minimize`: a bar that counts the fits.

        Returns
        -------
        Shot
            The parameters, the solutions and their error. If a solution explodes or ends early where the last fit begins, it
            ends there: `error` is infinite or NaN, and `result.message` says so.
        """
        if np.ndim(continuity) != 1:
            raise TypeError(f"`continuity` (={continuity!r}) must be a sequence of weights, such as [1.0, 10.0]")
        for weight in continuity:
            check_number("continuity", weight, "in [0, inf)")
        weights = list(continuity) if self.segments > 1 else []
        q, gaps = self.start(p), []
        settings: dict[str, Any] = {"maxiter": maxiter, "ftol": ftol, "progress": False}
        with Progress(progress, len(weights) + 1, "fit", BAR_DELAY_SECONDS) as bar:
            for weight in weights:
                q = minimize(self.objective(weight), q, method, **settings).x
                gaps.append(self._largest_gap(self._outputs(q)))
                bar.show({"gap": f"{gaps[-1]:.2g}"})
                bar.update()
            whole, n = self._whole, self.observed.shape[2]
            firsts = q[: self._n_starts].reshape(-1, self.segments, n)[:, 0].reshape(-1)
            result = minimize(whole.objective(), np.concatenate([firsts, q[self._n_starts :]]), method, **settings)
            bar.update()
        states = whole._states(whole._outputs(result.x))
        count = int((whole._weights > 0.0).sum())
        error = 2.0 * len(whole.x) * result.fun / max(1, count)
        return Shot(result.x[len(firsts) :], result.x[: len(firsts)].reshape(-1, n), states, gaps, error, result)

    def solve(self, q: Any) -> np.ndarray:
        """The solutions of the segments of each series one after another, (series, times, n), from the vector of a fit.

        Parameters
        ----------
        q : array, shape (segments * series * n + n_params,)
            The initial states of all segments, and the equation's parameters.
        """
        return self._states(self._solved(q))

    def largest_gap(self, q: Any) -> float:
        """The largest gap between two segments, in units of the standard deviation of that number of the state.

        Parameters
        ----------
        q : array, shape (segments * series * n + n_params,)
            The initial states of all segments, and the equation's parameters.
        """
        return self._largest_gap(self._solved(q))

    def _solved(self, q: Any) -> np.ndarray:
        if np.shape(q) != (self.net.n_params,):
            raise ValueError(f"`q` must have shape ({self.net.n_params},), as `start(p)`, got {np.shape(q)}")
        return self.net(self.x, q)

    def _outputs(self, q: np.ndarray) -> np.ndarray:
        """The solutions of all segments and their gaps; NaN after the end of a solution that ends early."""
        y = np.empty((len(self.x), *self.net.output_shape))
        with suppress(FloatingPointError):
            self.net(self.x, q, out=y)
        return y

    def _states(self, y: np.ndarray) -> np.ndarray:
        solved = y[:, :-1].reshape(len(self.observed), self.segments, -1, self.observed.shape[2])
        states = np.empty_like(self.observed)
        for k, (places, counts) in enumerate(zip(self._places, self._is_counted(), strict=True)):
            states[:, places[counts]] = solved[:, k, counts]
        return states

    def _largest_gap(self, y: np.ndarray) -> float:
        gaps = abs(y[:, -1]) / self._scale
        return float(gaps[self._weights[:, -1, 0] > 0.0].max(initial=0.0))

    @cached_property
    def _whole(self) -> MultipleShooting:
        """The same with one segment a series."""
        if self.segments == 1:
            return self
        return MultipleShooting(self.ode, self.observed, 1, given=self.given, starts=self._begin, backend=self.net.backend)

    def __repr__(self) -> str:
        cut = f"{counted(len(self.times), 'time')} in {counted(self.segments, 'segment')}"
        return f"<multiple shooting: {len(self.observed)} series of {cut}>"


def _check_ode(ode: Any) -> None:
    """Raise TypeError or ValueError unless this is an equation with the times of the observations."""
    check_is("ode", ode, ODE, "an `ODE`, such as ODE(rhs, times)")
    if isinstance(ode.times, int):
        raise ValueError(f"`ode` (={ode!r}) must have the times of the observations, not {ode.times} of each sample")
    if ode.event is not None:
        raise ValueError(f"`ode` (={ode!r}) must have no `event`: its solutions must have a state at all times")
    if ode.doses is not None:
        raise ValueError(f"`ode` (={ode!r}) must have no `doses`, which segments cannot divide: fit its whole solutions")


def _checked_states(ode: ODE, observed: Any) -> np.ndarray:
    """The observed states, (series, times, n). Raises TypeError or ValueError if they do not fit."""
    assert isinstance(ode.times, tuple)
    states, count = np.array(as_numpy("observed", observed), np.float64), len(ode.times)
    found = states[None] if states.ndim == 2 else states
    if found.ndim != 3 or found.shape[1] != count or not found.size:
        wanted = f"({count}, n) or (series, {count}, n), a state for each of the times of `ode`"
        raise ValueError(f"`observed` must have shape {wanted}, got {states.shape}")
    if np.isinf(found).any():
        raise ValueError("`observed` must be finite, or NaN where nothing was observed, but holds an infinity")
    if np.isnan(found).all():
        raise ValueError("`observed` must hold a number, but all are NaN")
    sample, n = ode.fixed_input(), found.shape[2]
    if sample is not None and sample[0] - ode.given != n:
        raise ValueError(f"`observed` has states (n = {n}), but `ode` (={ode!r}) n = {sample[0] - ode.given}")
    return found


def _checked_constants(ode: ODE, given: Any, series: int) -> np.ndarray:
    """The constants of each series. Raises TypeError or ValueError if they do not fit."""
    found = np.zeros((series, 0)) if given is None else np.array(as_numpy("given", given), np.float64)
    if found.shape != (series, ode.given):
        raise ValueError(f"`given` must have shape {(series, ode.given)}, a row for each series, got {found.shape}")
    check_finite(found.dtype, given=found)
    return found


def _filled(times: np.ndarray, observed: np.ndarray, starts: Any) -> np.ndarray:
    """The observations, interpolated where some are missing; `starts` for a number that was never observed."""
    filled = observed.copy()
    wanted = None
    if starts is not None:
        wanted = np.array(as_numpy("starts", starts), np.float64)
        if wanted.shape not in (observed.shape[2:], observed.shape):
            raise ValueError(f"`starts` must have shape {observed.shape[2:]} or {observed.shape}, got {wanted.shape}")
        if not np.isfinite(wanted).all():
            raise ValueError("`starts` must be finite")
        wanted = np.broadcast_to(wanted, observed.shape)
    for index in np.ndindex(observed.shape[0], observed.shape[2]):
        numbers = observed[index[0], :, index[1]]
        known = np.isfinite(numbers)
        if known.any():
            filled[index[0], :, index[1]] = np.interp(times, times[known], numbers[known])
        elif wanted is not None:
            filled[index[0], :, index[1]] = wanted[index[0], :, index[1]]
        else:
            raise ValueError(f"`starts` is missing: number {index[1]} of the state of series {index[0]} was never observed")
    return filled


def _deviations(states: np.ndarray) -> np.ndarray:
    """The standard deviation of each number of the state, over all series; 1 for one that never changes."""
    states = states.reshape(-1, states.shape[2])
    for k, width in enumerate(np.ptp(states, axis=0)):
        if width and not 1e-100 < width < 1e100:
            raise ValueError(f"`observed` must vary by 1e-100 to 1e100, but number {k} of the state varies by {width:.3g}")
    deviation = states.std(axis=0)
    return np.where(deviation > 0.0, deviation, 1.0)
