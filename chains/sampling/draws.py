"""Draws from a posterior, with statistics of the chains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.support.axes import draw_many, new_axes
from chains.support.checks import check_count
from chains.support.messages import counted


@dataclass(eq=False, repr=False)
class Draws:
    """The result of `sample`.

    Parameters
    ----------
    p : array, shape (chains, draws, n_params)
        The parameters drawn.
    energy : array, shape (chains, draws), float64
        Minus the logarithm of the density at each draw, up to a constant: loss and penalty, divided by the temperature.
    accepted : array, shape (chains,)
        The share of the trajectories whose ends became draws.
    diverged : array, shape (chains,)
        The number of trajectories that diverged: their energy rose by more than 1,000, or was not finite.
    step_size : float
        The time of a leapfrog step.
    inverse_mass : array, shape (n_params,)
        The squares of the scales on which parameters move.
    stopped : str, optional
        The reason why there are fewer draws.
    """

    p: np.ndarray
    energy: np.ndarray
    accepted: np.ndarray
    diverged: np.ndarray
    step_size: float
    inverse_mass: np.ndarray
    stopped: str | None = None

    def ensemble(self, n: int | None = None) -> np.ndarray:
        """Draws of all chains as networks: ``net(x, draws.ensemble(100))``.

        Parameters
        ----------
        n : int, optional
            The number of networks, evenly spread over the draws; None for all.

        Returns
        -------
        array, shape (n, n_params)

        Raises
        ------
        TypeError, ValueError
            For an `n` that is not a whole number, or exceeds the number of draws.
        """
        rows = self.p.reshape(-1, self.p.shape[-1])
        n = len(rows) if n is None else check_count("n", n)
        if n > len(rows):
            raise ValueError(f"`n` (={n}) must be at most {len(rows)}, the number of draws")
        return np.ascontiguousarray(rows[np.linspace(0, len(rows) - 1, n).round().astype(int)])

    def plot(self, ax: Any = None) -> Any:
        """Draw the energies of the chains with matplotlib: those of chains that have converged vary about a constant level.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; by default on the axes of a new pyplot figure, which notebooks show.

        Returns
        -------
        Axes
        """
        ax = new_axes() if ax is None else ax
        draw_many(ax, np.arange(self.energy.shape[1]), self.energy.T, "energy", "chains")
        ax.legend()
        ax.set(xlabel="draw", ylabel="energy")
        return ax

    def __repr__(self) -> str:
        chains, draws, _ = self.p.shape
        text = f"{counted(draws, 'draw')} of each of {counted(chains, 'chain')}, accepted {self.accepted.mean():.2f}"
        if draws:
            text += f", energy {self.energy.mean():.4g} ± {self.energy.std():.2g}"
        text += f", step size {self.step_size:.3g}"
        if self.diverged.any():
            text += f", {int(self.diverged.sum()):,} diverged"
        return f"<{text}; {self.stopped}>" if self.stopped else f"<{text}>"
