"""Trajectories of Hamiltonian Monte Carlo for many chains together, each a row of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from chains.chain import Chain
from chains.expr import where
from chains.losses import Loss
from chains.network import executables
from chains.network.call import Call
from chains.network.network import network_of
from chains.optimizers import Optimizer
from chains.penalties import Penalty
from chains.program.recorder import Recorder
from chains.program.settings import numbers_of
from chains.program.view import View
from chains.support import arguments
from chains.training.batches import member_problem

PIECE = 1 << 23  # operations of all chains between two looks for Ctrl-C, about 50 ms


@dataclass(frozen=True)
class Leapfrog(Optimizer):
    """Parameters move in the potential ``loss / temperature``; the states are a momentum and an inverse mass for each.

    A trajectory of `leapfrog_steps` is ``leapfrog_steps + 1`` steps of the optimiser from step 0 on. The first and the last
    step change the momentum by half a kick, and the last step does not move p: their losses are those at the ends of the
    trajectory.

    Parameters
    ----------
    learning_rate : float
        The time that a leapfrog step takes.
    temperature : float
        Of the density ``exp(-loss / temperature)``.
    leapfrog_steps : float
        The number of leapfrog steps of a trajectory.
    clip_norm, sparse
        As of `Optimizer`.
    """

    settings: ClassVar[tuple[str, ...]] = ("learning_rate", "temperature", "leapfrog_steps")
    n_states: ClassVar[int] = 2

    temperature: float = 1.0
    leapfrog_steps: float = 1.0

    def scalars(self, step: Any) -> tuple[Any, ...]:
        time: Any = self.learning_rate
        ends = where(step < 0.5, 0.5, where(step < self.leapfrog_steps - 0.5, 1.0, 0.5))
        return ends * time / self.temperature, where(step < self.leapfrog_steps - 0.5, time, 0.0)

    def update(self, ops: Recorder, p: View, g: View, states: Sequence[View], scalars: Sequence[View]) -> None:
        momentum, inverse_mass = states

        def kick_and_drift(p: Any, g: Any, momentum: Any, inverse_mass: Any, kick: Any, time: Any) -> tuple[Any, ...]:
            kicked = momentum - kick * g
            return p + time * inverse_mass * kicked, kicked

        ops.map((p, momentum), kick_and_drift, p, g, momentum, inverse_mass, *scalars)


@dataclass(frozen=True)
class Posterior:
    """The density that is sampled, ``exp(-(loss + penalty) / temperature)`` of a network's parameters for given data."""

    net: Chain
    loss: Loss
    penalty: Penalty | None
    temperature: float
    x: Any
    t: Any
    weights: Any
    lengths: Any


class Trajectories:
    """The compiled leapfrog of a posterior, which moves the rows of `p`.

    Raises TypeError or ValueError if data do not fit, and for a network whose loss depends on more than its parameters.
    """

    def __init__(self, posterior: Posterior, p: np.ndarray, finite: bool) -> None:
        net, self._temperature = posterior.net, posterior.temperature
        leapfrog = Leapfrog(1.0, self._temperature, 2.0)
        network = network_of(net)
        given = {name: getattr(posterior, name) for name in ("x", "t", "loss", "weights", "lengths", "penalty")}
        members, criterion = member_problem(Call(network, given), len(p))
        data = arguments.to_device_of(p, dict(members.arrays), move=False)
        arguments.check_apart("p", p, data)
        if finite:
            arguments.check_finite(p.dtype, p=p, **members.with_counted_targets(network.declaration))
        step = executables.training_step(network, p, criterion, leapfrog)
        self._program, backend, samples = step.program, step.backend, members.samples
        _check_deterministic(net, step.program.buffers)
        network.check_batch(samples)
        self.p = p
        self._moments = np.zeros((len(p), 2, net.n_params), p.dtype)
        self._steps = np.zeros(len(p))
        self.moves = np.zeros(net.n_params, bool)  # parameters that are not frozen
        for start, stop in network.trainable:
            self.moves[start:stop] = True
        self._numbers = numbers_of((criterion, leapfrog))  # those of the leapfrog are the last: time, temperature, steps
        self._tuned = self._program.tuned(self._numbers)
        arrays = {"p": p, "moments": self._moments.reshape(len(p), -1), "step": self._steps}
        kinds = {name: self._program.buffers[name].dtype for name in data if name in self._program.buffers}
        bound = {name: np.ascontiguousarray(data[name], kind) for name, kind in kinds.items()}
        arrays = {name: a for name, a in (arrays | bound | self._tuned).items() if name in self._program.buffers}
        own = {*members.own, "p", "moments", "step"}
        order = np.zeros((1, samples), np.int64)
        sources: dict[str, np.ndarray] = {}
        self._feed, self._backend = backend.member_feed(self._program, samples, arrays, sources, order, own), backend
        self._members = np.arange(len(p))
        self._piece = max(1, PIECE // max(1, len(p) * self._program.flops(samples)))

    def _tune(self, time: float, leapfrog_steps: int) -> None:
        """Set the number of leapfrog steps and the time of each as inputs of the program."""
        if (self._numbers[-3], self._numbers[-1]) != (time, leapfrog_steps):
            self._numbers[-3], self._numbers[-1] = time, leapfrog_steps
            for name, number in self._program.tuned(self._numbers).items():
                self._tuned[name][...] = number

    def __call__(
        self, momenta: np.ndarray, inverse_mass: np.ndarray, time: float, leapfrog_steps: int, check: Callable[[], None]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Move the rows from these momenta by `leapfrog_steps` steps of `time` each, and change the momenta.

        Returns the potentials, minus the logarithms of the density, at the beginnings and at the ends; infinity if a loss is
        not finite. `check` is called regularly, and may raise.
        """
        self._tune(time, leapfrog_steps)
        self._steps[:] = 0.0
        self._moments[:, 0], self._moments[:, 1] = momenta, inverse_mass
        losses = np.full((len(self.p), leapfrog_steps + 1), np.nan)
        members = self._members
        for first in range(0, leapfrog_steps + 1, self._piece):
            piece = losses[:, first : first + self._piece].copy()
            with self._backend.running():
                self._feed(0, piece, members)
            losses[members, first : first + self._piece] = piece[members]
            members = members[np.isfinite(losses[members, first : first + self._piece]).all(axis=1)]
            check()
            if not len(members):
                break
        momenta[...] = self._moments[:, 0]
        ended = np.isfinite(losses).all(axis=1)
        ends = np.where(ended, losses[:, -1], np.inf)
        return losses[:, 0] / self._temperature, ends / self._temperature


def _check_deterministic(net: Chain, buffers: dict[str, Any]) -> None:
    if "random" in buffers:
        raise ValueError(f"`net` ({net!r}) draws random numbers at each step: its loss is no function of its parameters")
    if net.n_state:
        raise ValueError(f"`net` ({net!r}) has a state that each step changes: its loss is no function of its parameters")
