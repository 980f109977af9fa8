"""The search for a learning rate."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chains.callbacks.base import Callback
from chains.chain import Chain
from chains.losses import Loss
from chains.network import checks
from chains.network.network import network_of
from chains.optimizers import Optimizer
from chains.support import arguments
from chains.support.axes import new_axes
from chains.support.checks import check_count, check_is, check_number
from chains.training.train import train

SMOOTHING = 0.9  # weight of the previous loss in the smoothed one
WORSE = 4.0  # times the smallest loss: the search ends there


@dataclass(frozen=True, repr=False)
class LearningRates:
    """The losses of steps with rising learning rates.

    Parameters
    ----------
    rates, losses : array, shape (steps,)
        The rates, and the losses, smoothed.
    suggestion : float
        The rate at which the loss falls fastest.
    """

    rates: np.ndarray
    losses: np.ndarray
    suggestion: float

    def plot(self, ax: Any = None) -> Any:
        """Draw the losses over the rates with matplotlib, on `ax` or on a new figure; returns the `Axes`."""
        ax = new_axes() if ax is None else ax
        ax.semilogx(self.rates, self.losses)
        ax.axvline(self.suggestion, linestyle=":")
        ax.set(xlabel="learning rate", ylabel="loss")
        return ax

    def __repr__(self) -> str:
        return f"<learning rates from {self.rates[0]:.3g} to {self.rates[-1]:.3g}: {self.suggestion:.3g} suggested>"


class _Watch(Callback):
    """Notes the losses, and ends the search when they have become much larger."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self._mean = 0.0

    def on_batch_end(self, state: Any, loss: float) -> None:
        self._mean = SMOOTHING * self._mean + (1.0 - SMOOTHING) * loss
        self.losses.append(self._mean / (1.0 - SMOOTHING ** (len(self.losses) + 1)))

    def on_epoch_end(self, state: Any) -> str | None:
        return "the loss has grown" if self.losses[-1] > WORSE * min(self.losses) else None


def find_learning_rate(
    net: Chain, p: np.ndarray, x: Any, t: Any, loss: Loss, optimizer: Optimizer, *, low: float = 1e-6, high: float = 10.0,
    steps: int = 200, batch_size: int | None = None, seed: int = 0, state: Any = None,
) -> LearningRates:  # fmt: skip
    """Try learning rates from `low` to `high`, one step each, on a copy of the parameters.

    Parameters
    ----------
    net, p, x, t, loss
        As of `train`. `p` is not changed.
    optimizer : Optimizer
        Its learning rate is replaced.
    low, high : float
        The first and the last rate; those between grow by a factor.
    steps : int
        The number of rates. The search ends earlier if the loss becomes four times its smallest value.
    batch_size : int, optional
        Samples a step; None for all.
    seed : int
        Of the order of the samples.
    state : array, optional
        The state of a network that has one. It is not changed.

    Returns
    -------
    LearningRates
        Rates, losses and a suggestion.

    Raises
    ------
    TypeError, ValueError
        For arguments that make no sense.

    Notes
    -----
    Source: Smith, "Cyclical learning rates for training neural networks", 2017.
    """
    check_is("optimizer", optimizer, Optimizer, "an optimiser such as Adam(1e-3)")
    check_number("low", low, "in (0, inf)")
    check_number("high", high, "in (0, inf)")
    if not low < high:
        raise ValueError(f"`low` (={low}) must be below `high` (={high})")
    steps = check_count("steps", steps, 3)
    growth = math.log(high / low) / (steps - 1)
    rising = replace(optimizer, learning_rate=lambda step: low * np.exp(growth * step))
    watch = _Watch()
    checks.check_order(network_of(net), p, x, "find_learning_rate(net, p, x, t, loss, optimizer)")
    x = arguments.check_input(x, net.input_shape)
    size = len(x) if batch_size is None else min(check_count("batch_size", batch_size), len(x))
    epochs = -(-steps // (len(x) // size))
    q, state = arguments.check_params(p, net.n_params).copy(), None if state is None else state.copy()
    with contextlib.suppress(FloatingPointError):  # if the loss has overflowed
        train(
            net, q, x, t, loss, rising, epochs=epochs, batch_size=size, drop_last=True, seed=seed, state=state, progress=False,
            callbacks=[watch],
        )  # fmt: skip
    losses = np.array([each for each in watch.losses[:steps] if math.isfinite(each)])
    if len(losses) < 3:
        raise ValueError(f"`low` (={low}) must be smaller: the loss is not finite after {len(losses)} steps")
    rates = low * np.exp(growth * np.arange(len(losses)))
    return LearningRates(rates, losses, float(rates[_steepest(losses)]))


def _steepest(losses: np.ndarray) -> int:
    """The position of the fastest relative fall of the losses, over ten steps, before the smallest one.

    The first ten are left out: their means are of few batches.
    """
    first = min(10, len(losses) // 4)
    way = losses[first : max(first + 2, first + int(losses[first:].argmin()) + 1)]
    reach = min(10, len(way) - 1)
    return first + int((way[reach:] / way[:-reach]).argmin()) + reach // 2
