"""Optimisers whose steps draw from a posterior or describe it.

A loss L, the mean over the samples, with a penalty stands for a posterior: its density is proportional to ``exp(-L / T)``,
where T is the `temperature`. For N samples with normal noise of variance s^2, ``SquaredLoss`` needs ``T = s^2 / N``, and a
normal prior of variance v on the parameters is ``L2Penalty(T / (2 v))``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from chains.expr import cos, floor, log, sqrt, where
from chains.optimizers import SGD, Optimizer, Rate
from chains.program.recorder import Recorder
from chains.program.view import View
from chains.support import arguments, streams
from chains.support.checks import check_count, check_number
from chains.support.deprecation import renamed_argument
from chains.support.messages import shown


@dataclass(frozen=True)
class SGLD(Optimizer):
    """Stochastic gradient Langevin dynamics: p -= rate * g + sqrt(2 * rate * temperature) * z, with normal numbers z.

    With a small rate, the parameters of the steps are draws from ``exp(-L / temperature)``. The numbers z depend only on `seed`
    of `train` and the step: they are the same on every backend to rounding. Members of an ensemble draw apart, since each has
    its own seed. Source: Welling and Teh 2011.

    Parameters
    ----------
    learning_rate : float or callable
        As of `Optimizer`; half the step size of the paper, times the number of samples.
    temperature : float
        Positive, or 0 for plain descent.
    clip_norm, sparse
        As of `Optimizer`.

    Raises
    ------
    TypeError, ValueError
        For settings that make no sense; and for ``sparse="lazy"``, since noise moves every parameter.
    """

    settings: ClassVar[tuple[str, ...]] = (*Optimizer.settings, "temperature")
    n_states: ClassVar[int] = 0

    learning_rate: Rate = 1e-3
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("temperature", self.temperature, "in [0, inf)")
        _check_dense(self)

    def scalars(self, step: Any) -> tuple[Any, ...]:
        return self.rate(step), sqrt(2.0 * self.rate(step) * self.temperature)

    def update(self, ops: Recorder, p: View, g: View, states: Sequence[View], scalars: Sequence[View]) -> None:
        first, second = (ops.scratch("uniform", p.sample_shape, batched=False) for _ in range(2))
        ops.random(first)
        ops.random(second)

        def step(p: Any, g: Any, u: Any, v: Any, rate: Any, width: Any) -> Any:
            z = sqrt(-2.0 * log(1.0 - u)) * cos(2.0 * math.pi * v)  # Box and Muller 1958
            return p - rate * g + width * z

        ops.map(p, step, p, g, first, second, *scalars)


@dataclass(frozen=True)
class SWAG(SGD):
    """Gradient descent that keeps mean and variance of the parameters along its trajectory (SWAG-Diagonal).

    The parameters are counted after step `start`, from 0, and then after every `every` steps. With a high, constant rate, these
    moments describe the posterior around the minimum; ``optimizer.draw(history.optimizer_state, 50)`` draws from it. Training
    is that of `SGD`. Source: Maddox et al. 2019.

    Parameters
    ----------
    learning_rate, momentum, nesterov
        As of `SGD`.
    start, every : int
        The step after which parameters are first counted, and the number of steps to the next count.
    clip_norm, sparse
        As of `Optimizer`.

    Raises
    ------
    TypeError, ValueError
        For settings that make no sense; and for ``sparse="lazy"``, since the mean of every parameter moves.
    """

    settings: ClassVar[tuple[str, ...]] = (*SGD.settings, "start", "every")

    start: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("start", self.start, 0)
        check_count("every", self.every)
        _check_dense(self)

    @property
    def n_states(self) -> int:
        return super().n_states + 2

    @property
    def rests(self) -> bool:
        return False

    def scalars(self, step: Any) -> tuple[Any, ...]:
        count = (step - self.start) / self.every  # of parameters that counted before, where it is whole
        share = where(count < 0.0, 0.0, where(floor(count) < count, 0.0, 1.0 / (count + 1.0)))
        return *super().scalars(step), share

    def update(self, ops: Recorder, p: View, g: View, states: Sequence[View], scalars: Sequence[View]) -> None:
        *others, mean, variance = states
        super().update(ops, p, g, others, scalars)

        def moments(p: Any, mean: Any, variance: Any, share: Any) -> tuple[Any, ...]:
            away = p - mean
            return mean + share * away, (1.0 - share) * (variance + share * (away * away))

        ops.map((mean, variance), moments, p, mean, variance, scalars[-1])

    def record(self, ops: Recorder, p: View, g: View, ranges: Sequence[tuple[int, int]]) -> None:
        super().record(ops, p, g, ranges)
        size, frozen = p.sample_size, 0
        moments = ops.external("moments", (self.n_states * size,), role="state")
        mean = moments.slice(0, (self.n_states - 2) * size, (self.n_states - 1) * size)
        for start, stop in [*ranges, (size, size)]:
            if frozen < start:  # their mean is their value, and their variance stays 0
                ops.copy(mean.slice(0, frozen, start), p.slice(0, frozen, start))
            frozen = stop

    def moments(self, state: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the parameters that counted.

        Parameters
        ----------
        state : OptimizerState
            Of training with this optimiser, ``history.optimizer_state``; of an ensemble, that of all members.

        Returns
        -------
        mean, variance : array, shape (n_params,) or (members, n_params)

        Raises
        ------
        TypeError, ValueError
            For another state, and for one of fewer than two parameters that counted.
        """
        if not isinstance(state, Mapping) or "moments" not in state:
            raise TypeError(f"`state` must be an optimiser's state, such as history.optimizer_state, got {shown(state)}")
        rows = np.asarray(state["moments"])
        if rows.shape[-1] % self.n_states:
            raise ValueError(f"`state` must be of {self!r}, which keeps {self.n_states} vectors, got {shown(state)}")
        if np.min(state["step"]) <= self.start + self.every:
            raise ValueError(f"`state` is of {int(np.min(state['step']))} steps, of which fewer than two count for {self!r}")
        vectors = rows.reshape(*rows.shape[:-1], self.n_states, -1)
        return vectors[..., -2, :], vectors[..., -1, :]

    @renamed_argument("n", "draws", end="2.0")
    def draw(self, state: Any, draws: int, seed: int = 0) -> np.ndarray:
        """Parameters drawn from the normal distribution of these moments.

        Parameters
        ----------
        state : OptimizerState
            As of `moments`.
        draws : int
            How many; of an ensemble, for each member.
        seed : int
            The same seed gives the same numbers.

        Returns
        -------
        array, shape (draws, n_params) or (members * draws, n_params)
            An ensemble: ``net(x, drawn)``.

        Raises
        ------
        TypeError, ValueError
            As `moments`, and for `draws` that is not a whole number from 1.
        """
        mean, variance = self.moments(state)
        shape = (*mean.shape[:-1], check_count("draws", draws), mean.shape[-1])
        z = streams.generator("posterior", arguments.check_seed(seed)).standard_normal(shape).astype(mean.dtype)
        drawn = mean[..., None, :] + np.sqrt(variance)[..., None, :] * z
        return drawn.reshape(-1, mean.shape[-1])


def _check_dense(optimizer: Optimizer) -> None:
    if optimizer.sparse == "lazy":
        raise ValueError(
            f"`sparse` (='lazy') is not for {type(optimizer).__name__}, each step of which changes every parameter"
        )
