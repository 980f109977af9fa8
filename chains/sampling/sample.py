"""Hamiltonian Monte Carlo over the flat vector of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains.chain import Chain
from chains.losses import Loss
from chains.network import checks, ensembles
from chains.network.network import network_of
from chains.penalties import Penalty
from chains.sampling.draws import Draws
from chains.sampling.trajectories import Posterior, Trajectories
from chains.support import arguments, streams
from chains.support.checks import check_count, check_flags, check_is, check_number, with_hints
from chains.support.memory import is_elsewhere
from chains.support.messages import counted
from chains.support.progress import Progress
from chains.training.interrupts import Interrupts

MAX_RISE = 1000.0  # of the energy along a trajectory that counts as one


@dataclass(frozen=True)
class HMC:
    """Hamiltonian Monte Carlo: draws are the ends of trajectories along the gradient, accepted by their energies.

    Parameters
    ----------
    temperature : float
        Of the density ``exp(-(loss + penalty) / temperature)``; see `SGLD`.
    leapfrog_steps : int
        The largest number of leapfrog steps of a trajectory. The number is random, from half of it on, and the same in all
        chains.
    step_size : float, optional
        The time of a leapfrog step, with masses of 1. By default, the warm-up finds the time and the masses, which are the
        inverse variances of the parameters.
    target : float
        The share of accepted trajectories that the warm-up aims at.

    Raises
    ------
    TypeError, ValueError
        For settings that make no sense.

    Notes
    -----
    Sources: Duane et al. 1987; Neal 2011; for the step size, Hoffman and Gelman 2014.
    """

    temperature: float = 1.0
    leapfrog_steps: int = 20
    step_size: float | None = None
    target: float = 0.8

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, "in (0, inf)")
        if 1.0 / float(self.temperature) == np.inf:
            raise ValueError(f"`temperature` (={self.temperature}) must have a finite inverse")
        check_count("leapfrog_steps", self.leapfrog_steps)
        if self.step_size is not None:
            check_number("step_size", self.step_size, "in (0, inf)", ", or None")
        check_number("target", self.target, "in (0, 1)")

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({"leapfrog_steps" if name == "leaps" else name: value for name, value in state.items()})


@with_hints
def sample(
    net: Chain, p: np.ndarray, x: Any, t: Any, loss: Loss, method: HMC, *, draws: int = 1000, warmup: int = 1000,
    thin: int = 1, seed: int = 0, weights: Any = None, lengths: Any = None, penalty: Penalty | None = None,
    progress: bool | None = None, check_finite: bool = True,
) -> Draws:  # fmt: skip
    """Draw parameters from a posterior, by many chains together.

    All leapfrog steps of a trajectory are one call of compiled code, in which threads share the chains.

    Parameters
    ----------
    net : Chain
        The network, without random numbers and without a state.
    p : array, shape (n_params,) or (chains, n_params), float32 or float64
        The start of each chain, such as rows of `net.init_many` after some training. It is not changed.
    x : array, shape (samples, *input_shape), or (chains, samples, *input_shape)
        The inputs.
    t : array
        The targets, in the shape that the loss takes.
    loss : Loss
        The loss; the temperature divides its mean over the samples.
    method : HMC
        The sampler.
    draws : int
        Draws of each chain.
    warmup : int
        Trajectories before the first draw.
    thin : int
        The number of trajectories from one draw to the next.
    seed : int
        The same seed gives the same draws.
    weights : array, shape (samples,) or (chains, samples), or with the further axes of the targets, optional
        Factors of the samples' losses, or of their terms, as in `train`; zero or positive.
    lengths : array, shape (samples,) or (chains, samples), optional
        How many steps each sample has, for recurrent networks.
    penalty : Penalty, optional
        Added to the loss: minus the logarithm of a prior, times the temperature.
    progress : bool, optional
        Whether to show a bar, as of `train`.
    check_finite : bool
        Whether to refuse an infinity or NaN in `p` and in the data.

    Returns
    -------
    Draws
        Ctrl-C ends sampling after a trajectory: the draws so far, with the reason in ``stopped``.

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit; for a network that draws random numbers or has a state.
    FloatingPointError
        If the loss at the start of a chain is not finite.
    """
    checks.check_order(network_of(net), p, x, "sample(net, p, x, t, loss, method)")
    if is_elsewhere(p):
        raise TypeError('`p` must be a NumPy array, got one on a GPU: pass p.get(), and give the network backend="cupy"')
    rows = ensembles.check_members(p if checks.is_ensemble(p) else arguments.check_params(p, net.n_params)[None], net.n_params)
    checks.check_loss(loss)
    check_is("method", method, HMC, "a sampler such as HMC(temperature=1e-4)")
    counts = check_count("draws", draws, 0), check_count("warmup", warmup, 0), check_count("thin", thin)
    seed = arguments.check_seed(seed)
    check_flags(check_finite=check_finite)
    if progress is not None:
        check_flags(progress=progress)
    posterior = Posterior(net, loss, penalty, method.temperature, x, t, weights, lengths)
    trajectories = Trajectories(posterior, rows.copy(), check_finite)
    if weights is not None and (np.asarray(weights) < 0).any():
        raise ValueError("`weights` must be zero or positive: the density grows without bound along a negative one")
    chains = _Chains(method, trajectories, streams.generator("sample", seed))
    return chains.run(*counts, progress)


class _Chains:
    """Markov chains, each at a row of the trajectories' parameters."""

    def __init__(self, method: HMC, trajectories: Trajectories, rng: np.random.Generator) -> None:
        self._method, self._trajectories, self._rng = method, trajectories, rng
        self.p = trajectories.p
        self._before, self._momenta = np.empty_like(self.p), np.empty_like(self.p)
        self._inverse_mass = np.ones(self.p.shape[1])
        self._time = 1.0 if method.step_size is None else float(method.step_size)
        self._check: Callable[[], None] = lambda: None

    def run(self, draws: int, warmup: int, thin: int, progress: bool | None) -> Draws:
        count = len(self.p)
        try:
            positions, energies = np.empty((count, draws, self.p.shape[1]), self.p.dtype), np.empty((count, draws))
        except (MemoryError, ValueError):
            raise MemoryError(f"`draws` (={draws}) of {counted(count, 'chain')} are more than memory holds") from None
        accepted, diverged, done, made = np.zeros(count), np.zeros(count, int), 0, 0
        stopped = None
        try:
            with Interrupts() as interrupts, Progress(progress, warmup + draws * thin, "trajectory") as bar:
                self._check = interrupts.check
                self._begin()
                for _ in self._warm(warmup):
                    bar.update()
                for number in range(draws * thin):
                    energy, _, taken, rise = self._trajectory(self._time, self._leaps())
                    accepted += taken
                    diverged += ~(rise < MAX_RISE)
                    made += 1
                    if number % thin == thin - 1:
                        positions[:, done], energies[:, done] = self.p, energy
                        done += 1
                    bar.update()
                    if bar.due():
                        bar.show({"accepted": f"{accepted.mean() / made:.2f}", "energy": f"{energy.mean():.4g}"})
        except KeyboardInterrupt:
            stopped = f"interrupted after {done} of {draws} draws"
        positions, energies = (whole if done == draws else whole[:, :done].copy() for whole in (positions, energies))
        return Draws(positions, energies, accepted / max(1, made), diverged, self._time, self._inverse_mass.copy(), stopped)

    def _begin(self) -> None:
        """Raise FloatingPointError for a chain whose first energy is not finite."""
        energy = self._trajectory(1e-300, 1)[0]
        if not np.isfinite(energy).all():
            row = int(np.argmin(np.isfinite(energy)))
            raise FloatingPointError(f"the loss of row {row} of `p` is {energy[row]}: a chain must begin where it is finite")

    def _warm(self, warmup: int) -> Any:
        """Trajectories that find the time of a leapfrog step and the masses, unless the time is given."""
        adapts = self._method.step_size is None
        if adapts:
            self._time = self._reasonable(self._time)
        if not warmup:
            return
        averaging, variances, ends = DualAveraging(self._time, self._method.target), Variances(), windows(warmup)
        first = _before_windows(warmup)
        for number in range(1, warmup + 1):
            _, probability, _, _ = self._trajectory(averaging.time if adapts else self._time, self._leaps())
            if adapts:
                averaging.note(float(probability.mean()))
                if ends and first < number <= ends[-1]:
                    variances.note(self.p)
                if number in ends:
                    self._inverse_mass = variances.take()
                    averaging.begin(self._reasonable(averaging.time))
            yield
        if adapts:
            self._time = averaging.final

    def _reasonable(self, time: float) -> float:
        """A time for which half of the trajectories of one leapfrog step would be accepted (Hoffman and Gelman 2014, 3.2.1)."""
        here, direction = self.p.copy(), 0.0
        while True:
            probability = self._trajectory(time, 1)[1].mean()
            self.p[...] = here
            better = 1.0 if probability > 0.5 else -1.0
            if (direction and better != direction) or not 1e-12 < time < 1e12:
                return time
            direction = better
            time *= 2.0**direction

    def _leaps(self) -> int:
        most = self._method.leapfrog_steps
        return int(self._rng.integers((most + 1) // 2, most, endpoint=True))

    def _trajectory(self, time: float, leapfrog_steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Move each chain along a trajectory, or leave it where it is.

        Returns for each chain its energy, the probability of the move, whether it moved, and the rise of the energy along the
        trajectory.
        """
        momenta, inverse_mass, moves = self._momenta, self._inverse_mass, self._trajectories.moves
        momenta[...] = self._rng.standard_normal(momenta.shape) * np.where(moves, 1 / np.sqrt(inverse_mass), 0.0)
        self._before[...] = self.p
        kinetic = self._kinetic()
        begin, end = self._trajectories(momenta, inverse_mass, time, leapfrog_steps, self._check)
        with np.errstate(invalid="ignore", over="ignore"):
            rise = end + self._kinetic() - begin - kinetic
            probability = np.where(np.isnan(rise), 0.0, np.exp(np.minimum(0.0, -rise)))
        taken = self._rng.uniform(size=len(self.p)) < probability
        self.p[~taken] = self._before[~taken]
        return np.where(taken, end, begin), probability, taken, rise

    def _kinetic(self) -> np.ndarray:
        return np.einsum("cp,cp,p->c", self._momenta, self._momenta, self._inverse_mass, dtype=np.float64, casting="unsafe") / 2


class DualAveraging:
    """The time of a leapfrog step for which the share `target` of trajectories is accepted (Hoffman and Gelman 2014, 3.2)."""

    def __init__(self, time: float, target: float) -> None:
        self._target = target
        self.begin(time)

    def begin(self, time: float) -> None:
        """Forget all trajectories, and search near this time."""
        self._center, self._error, self._mean, self._count = math.log(10 * time), 0.0, math.log(time), 0
        self.time = time

    def note(self, accepted: float) -> None:
        """A trajectory was accepted with this probability, the mean over the chains."""
        self._count += 1
        count = self._count
        self._error += (self._target - accepted - self._error) / (count + 10)
        now = self._center - math.sqrt(count) / 0.05 * self._error
        share = count**-0.75
        self._mean = share * now + (1 - share) * self._mean
        self.time = math.exp(now)

    @property
    def final(self) -> float:
        """The time after the warm-up."""
        return math.exp(self._mean)


class Variances:
    """The variances of the parameters within the chains, of the positions noted."""

    def __init__(self) -> None:
        self._count = 0

    def note(self, p: np.ndarray) -> None:
        """Positions, a row for each chain."""
        if not self._count:
            self._mean, self._squares = np.zeros(p.shape), np.zeros(p.shape)
        self._count += 1
        away = p - self._mean
        self._mean += away / self._count
        self._squares += away * (p - self._mean)

    def take(self) -> np.ndarray:
        """The variances, drawn towards 1e-3 where there are few positions, as Stan does; the positions are forgotten."""
        count = self._count
        variance = self._squares.mean(axis=0) / max(1, count - 1)
        self._count = 0
        return (count * variance + 5e-3) / (count + 5)


def _before_windows(warmup: int) -> int:
    """The trajectories before the first window: 15 in 100."""
    return -(-15 * warmup // 100)


def windows(warmup: int) -> list[int]:
    """The trajectories after which variances are taken: windows of doubling length, between two parts for the time alone."""
    first, last = _before_windows(warmup), warmup - math.ceil(0.1 * warmup)
    ends, width, at = [], 25, first
    while at + width <= last:
        end = last if at + 3 * width > last else at + width
        ends.append(end)
        at, width = end, 2 * width
    return ends
